//! What pages say of each other: links that lead somewhere, metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The page that names every metric; a test holds it to the program.
const METRICS: &str = "docs/metrics.md";
/// How the names of metrics begin.
const FAMILIES: [&str; 3] = ["llm_d_epp_", "sluice_", "inference_extension_"];
/// What begins like a metric and is none.
const NO_METRICS: [&str; 1] = ["sluice_testkit"];

/// What is wrong with `pages`, texts by path from the root of the workspace. `exists` tells of other files.
pub(crate) fn findings(pages: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let anchors: BTreeMap<&Path, BTreeSet<String>> =
        pages.iter().map(|(path, text)| (path.as_path(), anchors(text).collect())).collect();
    let metrics: BTreeSet<&str> = pages.get(Path::new(METRICS)).map(|text| metric_names(text)).unwrap_or_default();
    let mut findings = Vec::new();
    for (path, text) in pages {
        let page = path.display();
        for link in links(text).filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { beside(path, file) };
            match anchors.get(target.as_path()) {
                Some(there) if !anchor.is_empty() && !there.contains(anchor) => {
                    findings.push(format!("{page} links to {link}, which has no such heading"));
                }
                None if !exists(&target) => findings.push(format!("{page} links to {link}, which does not exist")),
                Some(_) | None => {}
            }
        }
        let unknown =
            metric_names(text).into_iter().filter(|name| !metrics.contains(name) && !NO_METRICS.contains(name));
        findings.extend(unknown.map(|name| format!("{page} names {name}, which {METRICS} does not have")));
    }
    findings
}

/// `file`, as a page at `path` means it.
fn beside(path: &Path, file: &str) -> PathBuf {
    let mut target = path.parent().unwrap_or_else(|| Path::new("")).to_path_buf();
    for component in Path::new(file).components() {
        match component {
            Component::ParentDir => {
                target.pop();
            }
            Component::Normal(name) => target.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    target
}

fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

/// What a page's headings are linked by: in lower case, words joined by `-`, without other marks.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let mut fenced = false;
    text.lines().filter_map(move |line| {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        let heading = line.trim_start_matches('#');
        let is_heading = !fenced && heading.len() < line.len() && heading.starts_with(' ');
        is_heading.then(|| anchor(heading.trim()))
    })
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

/// The words of `text` that are names of metrics, not of families of them.
fn metric_names(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| FAMILIES.iter().any(|family| word.starts_with(family)) && !word.ends_with('_'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_of(page: &str) -> Vec<String> {
        let metrics = "# Metrics\n\n## Of queues\n\n`llm_d_epp_info` `llm_d_epp_queue_size{priority}`\n";
        let pages = [("docs/a.md", page), (METRICS, metrics)];
        let pages = pages.map(|(path, text)| (path.into(), text.to_owned())).into();
        findings(&pages, |path| path == Path::new("deploy/x.yaml"))
    }

    #[test]
    fn links_that_lead_somewhere_are_good() {
        let good =
            "# A `b` page\n[a](#a-b-page) [b](metrics.md#of-queues) [c](../deploy/x.yaml) [d](https://e.org/f#g)";
        assert_eq!(findings_of(good), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_are_named() {
        let bad = "# A\n```sh\n# no heading\n```\n[a](#no-heading) [b](metrics.md#queues) [c](gone.md)";
        assert_eq!(
            findings_of(bad),
            [
                "docs/a.md links to #no-heading, which has no such heading",
                "docs/a.md links to metrics.md#queues, which has no such heading",
                "docs/a.md links to gone.md, which does not exist",
            ]
        );
    }

    #[test]
    fn a_metric_that_nobody_has_is_named() {
        let page =
            "`llm_d_epp_info`, `llm_d_epp_queue_size{priority}`, llm_d_epp_*, `llm_d_epp_queue_length`, sluice_testkit";
        assert_eq!(findings_of(page), ["docs/a.md names llm_d_epp_queue_length, which docs/metrics.md does not have"]);
    }
}
