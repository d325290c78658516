use serde_json::Value;

/// The objects that a request is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    labels: Vec<Term>,
    /// `metadata.name=`.
    name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    OneOf(String, Vec<String>),
    Present(String),
    Absent(String),
}

impl Selection {
    /// From the query of a request.
    pub(crate) fn new(label_selector: &str, field_selector: &str) -> Self {
        let name = field_selector.strip_prefix("metadata.name=").map(str::to_owned);
        Self { labels: terms(label_selector).iter().map(|term| Term::parse(term)).collect(), name }
    }

    pub(crate) fn has(&self, object: &Value) -> bool {
        let named = self.name.as_ref().is_none_or(|name| object["metadata"]["name"] == name.as_str());
        named && self.labels.iter().all(|term| term.has(&object["metadata"]["labels"]))
    }
}

/// Cut at the commas that are in no parentheses.
fn terms(selector: &str) -> Vec<String> {
    let (mut terms, mut depth) = (vec![String::new()], 0);
    for letter in selector.chars() {
        match letter {
            ',' if depth == 0 => terms.push(String::new()),
            _ => {
                depth += i32::from(letter == '(') - i32::from(letter == ')');
                if let Some(term) = terms.last_mut() {
                    term.push(letter);
                }
            }
        }
    }
    terms.retain(|term| !term.trim().is_empty());
    terms
}

impl Term {
    fn parse(term: &str) -> Self {
        let list = |values: &str| {
            values.trim_matches(['(', ')', ' ']).split(',').map(|value| value.trim().to_owned()).collect()
        };
        if let Some((key, values)) = term.split_once(" in ") {
            return Self::OneOf(key.trim().to_owned(), list(values));
        }
        match term.split_once('=') {
            Some((key, value)) => {
                Self::OneOf(key.trim().to_owned(), vec![value.trim_start_matches('=').trim().to_owned()])
            }
            None => match term.trim().strip_prefix('!') {
                Some(key) => Self::Absent(key.to_owned()),
                None => Self::Present(term.trim().to_owned()),
            },
        }
    }

    fn has(&self, labels: &Value) -> bool {
        match self {
            Self::OneOf(key, values) => {
                labels[key].as_str().is_some_and(|label| values.iter().any(|value| value == label))
            }
            Self::Present(key) => labels.get(key).is_some(),
            Self::Absent(key) => labels.get(key).is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_term_of_a_selector_counts() {
        let object = json!({"metadata": {"name": "a", "labels": {"app": "vllm", "zone": "b"}}});
        let cases = [
            ("", "", true),
            ("app=vllm", "metadata.name=a", true),
            ("app==vllm,zone in (a, b),!gpu,zone", "", true),
            ("app=vllm,zone=c", "", false),
            ("zone in (a,c)", "", false),
            ("!zone", "", false),
            ("gpu", "", false),
            ("", "metadata.name=b", false),
        ];
        for (labels, fields, expected) in cases {
            assert_eq!(Selection::new(labels, fields).has(&object), expected, "{labels} {fields}");
        }
    }
}
