//! A reader of pages as one would write it first: it reads every line into a list, and then looks for what is wanted.

use std::collections::BTreeMap;

/// What a page says, line by line.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug)]
pub(crate) struct Line {
    /// What the sample may be called, and what the page says that is: for the sample of a counter also the family.
    pub(crate) names: Vec<(String, Option<String>)>,
    /// None: what follows the name cannot be read.
    pub(crate) sample: Option<Sample>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
    pub(crate) timestamp: Option<f64>,
}

impl Plain {
    /// Reads a page whose text is valid UTF-8.
    pub(crate) fn read(page: &str) -> Self {
        let mut kinds: BTreeMap<String, String> = BTreeMap::new();
        let mut plain = Self::default();
        let mut lines: Vec<&str> = page.split('\n').collect();
        let unfinished = lines.pop().unwrap_or_default();
        for line in lines {
            if let Some(declaration) = line.strip_prefix("# TYPE ") {
                if let Some((name, kind)) = declaration.split_once(' ') {
                    for name in [name.to_owned(), format!("{name}_total")] {
                        kinds.insert(name, kind.trim_ascii().to_owned());
                    }
                }
            } else if !line.starts_with('#') {
                plain.lines.extend(Line::read(line, &kinds, true));
            }
        }
        if !unfinished.starts_with(['#', ' ', '\t']) {
            plain.lines.extend(Line::read(unfinished, &kinds, false));
        }
        plain
    }
}

impl Line {
    fn read(line: &str, kinds: &BTreeMap<String, String>, finished: bool) -> Option<Self> {
        let line = if line.starts_with([' ', '\t']) { line.trim_ascii_start() } else { line };
        let name_end = line.find(['{', ' ', '\t', '\r']).unwrap_or(line.len());
        let (name, rest) = line.split_at(name_end);
        let kind_of = |family: &str| kinds.get(family).cloned();
        let mut names = vec![(name.to_owned(), kind_of(name))];
        if let Some(family) = name.strip_suffix("_total") {
            let kind = kind_of(family);
            if kind.as_deref() == Some("counter") {
                names.push((family.to_owned(), kind));
            }
        }
        let sample = if finished { Sample::read(rest.trim_ascii()) } else { None };
        (!name.is_empty()).then_some(Self { names, sample })
    }

    /// What the page says that `name` is; none if the line has another name.
    pub(crate) fn kind(&self, name: &str) -> Option<&str> {
        let (_, kind) = self.names.iter().find(|(found, _)| found == name)?;
        Some(kind.as_deref().unwrap_or("untyped"))
    }
}

impl Sample {
    fn read(text: &str) -> Option<Self> {
        let mut rest: Vec<char> = text.chars().rev().collect();
        let mut labels = BTreeMap::new();
        if rest.last() == Some(&'{') {
            rest.pop();
            skip_blanks(&mut rest);
            while rest.last() != Some(&'}') {
                let (name, value) = read_label(&mut rest)?;
                labels.entry(name).or_insert(value);
                skip_blanks(&mut rest);
                match rest.last()? {
                    ',' => {
                        rest.pop();
                        skip_blanks(&mut rest);
                    }
                    '}' => {}
                    _ => return None,
                }
            }
            rest.pop();
        }
        let rest: String = rest.into_iter().rev().collect();
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        // An exemplar may follow the value or the time.
        let exemplar = words.iter().skip(1).take(2).position(|word| word.starts_with('#'));
        let (value, timestamp) = match (words.as_slice(), exemplar) {
            ([value], _) | ([value, ..], Some(0)) => (value, None),
            ([value, time], _) | ([value, time, ..], Some(1)) => (value, Some(time)),
            _ => return None,
        };
        let timestamp = match timestamp {
            Some(time) => Some(time.parse().ok().filter(|time: &f64| time.is_finite())?),
            None => None,
        };
        Some(Self { labels, value: value.parse().ok()?, timestamp })
    }
}

fn skip_blanks(rest: &mut Vec<char>) {
    while rest.last().is_some_and(char::is_ascii_whitespace) {
        rest.pop();
    }
}

/// Name and value of the label that comes next. `rest` is the text in reverse.
fn read_label(rest: &mut Vec<char>) -> Option<(String, String)> {
    let mut name = String::new();
    loop {
        match rest.pop()? {
            '=' => break,
            character => name.push(character),
        }
    }
    let name = name.trim_ascii_end().to_owned();
    let valid = name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    if !valid || name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    skip_blanks(rest);
    if rest.pop()? != '"' {
        return None;
    }
    let mut value = String::new();
    loop {
        match rest.pop()? {
            '"' => return Some((name, value)),
            '\\' => value.push(match rest.pop()? {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            }),
            character => value.push(character),
        }
    }
}
