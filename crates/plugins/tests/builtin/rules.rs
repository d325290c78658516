//! Every rule that a configuration is held to has a fixture that breaks it. The rules are taken from the source, so that a
//! new one without a fixture is noticed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use sluice_config::{Diagnostic, Source};

use crate::fixtures::{fixtures, said_of};
use crate::repository;

const SOURCES: [&str; 2] = ["crates/config/src", "crates/plugins/src"];

/// What a rule is applied with.
const CALLS: [&str; 8] = [
    "Remark::new(",
    "BuildError::new(",
    "E::custom(",
    "Error::custom(",
    "cx.warn(",
    "cx.refuse(",
    "cx.warn_of_plugin(",
    ".warn_if_given(",
];

/// Calls that no text of a configuration leads to, or that stand for those who call them.
const OTHERS: [(&str, &str); 9] = [
    ("crates/config/src/plugin.rs", "Remark::new(message)"),
    ("crates/config/src/document/problem.rs", "Problem::Other(Remark::new("),
    // What is asked is only which fields there are.
    ("crates/config/src/document/fields.rs", "not a struct"),
    // Nobody who reads a mapping does so.
    ("crates/config/src/document/deserializer.rs", "a value was asked for before its key"),
    // The binary has every plugin that is filled in, and profiles are checked before.
    ("crates/config/src/assemble/mod.rs", "Remark::new(message)"),
    ("crates/config/src/assemble/mod.rs", "Remark::new(error.to_string())"),
    ("crates/plugins/src/ignored_params.rs", "cx.warn(parameter, message)"),
    // Files are not read with a configuration.
    ("crates/config/src/files.rs", "Remark::new(mistake)"),
    ("crates/config/src/files.rs", "Remark::new(warning)"),
];

/// Errors of values, which any rule may pass on.
const ERRORS: [&str; 5] = [
    "crates/core/src/go_duration.rs",
    "crates/config/src/quantity.rs",
    "crates/config/src/timeout.rs",
    "crates/data/src/exposition/spec.rs",
    "crates/data/src/exposition/mappings.rs",
];

fn everything_said() -> Vec<Diagnostic> {
    let of_files = ["broken", "good"].into_iter().flat_map(fixtures).flat_map(|path| said_of(&path).0);
    // Nobody wants it in a file.
    let too_long = crate::read(&"#".repeat(Source::MAX_BYTES + 1)).unwrap_err();
    of_files.chain(too_long.iter().cloned()).collect()
}

/// Lines in which a rule is applied, and what stands there.
fn rules(directory: &str, found: &mut Vec<(String, u32, String)>) {
    for entry in fs::read_dir(repository().join(directory)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = format!("{directory}/{name}");
        if !name.contains('.') {
            rules(&path, found);
        } else if !name.ends_with("tests.rs") {
            let text = fs::read_to_string(repository().join(&path)).unwrap();
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
            for (line, number) in code.lines().zip(1..) {
                let is_code = !line.trim_start().starts_with("//");
                let is_other = OTHERS.iter().any(|(file, part)| path.starts_with(file) && line.contains(part));
                if is_code && !is_other && CALLS.iter().any(|call| line.contains(call)) {
                    found.push((path.clone(), number, line.trim().to_owned()));
                }
            }
        }
    }
}

#[test]
fn every_rule_has_a_fixture_that_breaks_it() {
    let mut rules_in_source = Vec::new();
    SOURCES.iter().for_each(|directory| rules(directory, &mut rules_in_source));
    assert!(rules_in_source.len() > 100, "{}", rules_in_source.len());
    let said = everything_said();
    let applied: BTreeSet<(&str, u32)> = said.iter().map(|said| (said.rule.file(), said.rule.line())).collect();
    let is_applied = |(path, line, _): &&(String, u32, String)| {
        applied.iter().any(|(file, at)| at == line && Path::new(file).ends_with(path))
    };
    let untested: Vec<_> = rules_in_source.iter().filter(|rule| !is_applied(rule)).collect();
    assert!(untested.is_empty(), "without a fixture: {untested:#?}");
    // The list is whole: what is said is said by what is in it.
    for (file, at) in applied.iter().filter(|(file, _)| SOURCES.iter().any(|source| file.contains(source))) {
        let is_listed = rules_in_source.iter().any(|(path, line, _)| line == at && Path::new(file).ends_with(path));
        assert!(is_listed, "not found in the source: {file}:{at}");
    }
}

/// The texts between the values of every `#[error("…")]`.
fn templates(code: &str) -> Vec<Vec<String>> {
    let template = |rest: &str| {
        let (before, rest) = rest.split_once('"')?;
        let text = rest.replace("\\\"", "\u{0}");
        let text = text.split('"').next()?.replace('\u{0}', "\"").replace("\\\\", "\\").replace("}}", "\u{1}");
        let texts = text.split('{').map(|text| text.rsplit('}').next().unwrap().trim().replace('\u{1}', "}"));
        // Otherwise it has no text of its own.
        before.trim().is_empty().then(|| texts.filter(|text| !text.is_empty()).collect())
    };
    code.split("#[error(").skip(1).filter_map(template).collect()
}

#[test]
fn every_error_of_a_value_has_a_fixture_that_makes_it() {
    let said = everything_said();
    for path in ERRORS {
        let templates = templates(&fs::read_to_string(repository().join(path)).unwrap());
        assert!(!templates.is_empty(), "{path}");
        for template in templates {
            assert!(!template.is_empty(), "{path}");
            let is_made = said.iter().any(|said| template.iter().all(|text| said.message.contains(text)));
            assert!(is_made, "{path}: {template:?} is in no fixture");
        }
    }
}
