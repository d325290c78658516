use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::client;

/// The samples of a page in the Prometheus text format.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    samples: Vec<Sample>,
}

/// One line of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Exposition {
    /// Fetches and parses `url`.
    pub async fn scrape(url: &str) -> Result<Self> {
        let response = client::http1()?.get(url).send().await?.error_for_status()?;
        Self::parse(&response.text().await?)
    }

    /// Fails on a line that is neither a comment nor a sample.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines.map(|line| Sample::parse(line).with_context(|| format!("no sample: {line}")));
        Ok(Self { samples: samples.collect::<Result<_>>()? })
    }

    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The sum over the samples of `name` that carry all of `labels`; `None` if there is no such sample.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let matches = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|found| found == value))
        };
        self.samples.iter().filter(matches).map(|sample| sample.value).reduce(|sum, value| sum + value)
    }

    /// The same for values that count something; `None` also if the sum is no whole number.
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> Option<i64> {
        const LARGEST: f64 = (1_u64 << 53) as f64;
        let sum = self.sum(name, labels)?;
        #[expect(clippy::cast_possible_truncation, reason = "whole, and small enough to be exact")]
        (sum.fract() == 0.0 && sum.abs() <= LARGEST).then_some(sum as i64)
    }
}

impl Sample {
    fn parse(line: &str) -> Option<Self> {
        let (name, mut rest) = line.split_at_checked(line.find(['{', ' '])?)?;
        let mut labels = BTreeMap::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                rest = rest.trim_start_matches([',', ' ']);
                if let Some(after) = rest.strip_prefix('}') {
                    rest = after;
                    break;
                }
                let (key, quoted) = rest.split_once("=\"")?;
                let (value, after) = unquote(quoted)?;
                labels.insert(key.to_owned(), value);
                rest = after;
            }
        }
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Self { name: name.to_owned(), labels, value })
    }
}

/// The label value up to its closing quote, and what follows the quote.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => value.push(match chars.next()? {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# HELP waiting Requests that wait.
# TYPE waiting gauge
waiting{model=\"a\",pool=\"p\"} 2
waiting{model=\"b, \\\"c\\\"}\",pool=\"p\",} 3.5 1700000000000
up 1
seconds_bucket{le=\"+Inf\"} +Inf
";

    #[test]
    fn sums_what_carries_the_labels() {
        let page = Exposition::parse(PAGE).unwrap();
        assert_eq!(page.sum("waiting", &[]), Some(5.5));
        assert_eq!(page.sum("waiting", &[("model", "a")]), Some(2.0));
        assert_eq!(page.sum("waiting", &[("model", "b, \"c\"}"), ("pool", "p")]), Some(3.5));
        assert_eq!(page.sum("up", &[]), Some(1.0));
        assert_eq!(page.sum("seconds_bucket", &[("le", "+Inf")]), Some(f64::INFINITY));
    }

    #[test]
    fn a_count_is_a_whole_number() {
        let page = Exposition::parse(PAGE).unwrap();
        assert_eq!(page.count("waiting", &[("model", "a")]), Some(2));
        assert_eq!(page.count("waiting", &[]), None);
        assert_eq!(page.count("seconds_bucket", &[]), None);
    }

    #[test]
    fn an_absent_series_is_not_zero() {
        let page = Exposition::parse(PAGE).unwrap();
        assert_eq!(page.sum("running", &[]), None);
        assert_eq!(page.sum("waiting", &[("model", "z")]), None);
    }

    #[test]
    fn a_line_that_is_no_sample_is_an_error() {
        for line in ["waiting", "waiting{model=\"a} 1", "waiting{model=\"a\"} many"] {
            assert!(Exposition::parse(line).is_err(), "{line}");
        }
    }
}
