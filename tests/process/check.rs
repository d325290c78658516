//! `epp check`: what the process would run on.

use std::fs;
use std::path::Path;

use crate::support::{directory, epp};

/// Exit code, standard output and standard error.
fn check(arguments: &[&str]) -> (Option<i32>, String, String) {
    let arguments: Vec<String> = ["check"].iter().chain(arguments).map(|&argument| argument.to_owned()).collect();
    let output = epp(&arguments).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, err)
}

const GOOD: &str = "
featureGates: [flowControl, dataLayer]
plugins:
  - {type: file-discovery, parameters: {path: nowhere.yaml}}
  - {type: concurrency-detector, parameters: {maxConcurrency: 32}}
  - {type: priority-holdback-policy, parameters: {ceilings: [{priority: -10, ceiling: 0.6}]}}
dataLayer: {discovery: {pluginRef: file-discovery}}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  usageLimitPolicyPluginRef: priority-holdback-policy
sluice: {objectives: [{name: batch, priority: -10}]}
";

#[test]
fn a_good_configuration_is_printed_with_what_was_left_out_and_may_be_given_back() {
    let path = directory("check").join("epp.yaml");
    fs::write(&path, GOOD).unwrap();
    let file = path.display().to_string();
    let (code, page, said) = check(&["--config-file", &file, "--tracing", "--enable-cert-reload"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(page.contains("\n# batch: 20 of 32\n") && page.contains("maxTokenConcurrency: 1000000\n"), "{page}");
    for warned in ["--tracing", "--enable-cert-reload", &format!("{file}:2:29: warning: ")] {
        assert!(said.lines().any(|line| line.contains(warned)), "{warned}: {said}");
    }
    fs::write(&path, &page).unwrap();
    assert_eq!(check(&["--config-file", &file]).1, page);
    assert_eq!(check(&["--config-text", &page]).1, page);
}

#[test]
fn every_mistake_is_named_and_the_exit_code_is_64() {
    let (code, page, said) =
        check(&["--config-text", "plugins: [{type: a}, {type: random-piker}]\nkind: x\nfeatureGates: [dataLayer]"]);
    assert_eq!((code, page.as_str()), (Some(64), ""));
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.contains("--config-text:1:29: plugins[1].type: "), "{said}");
    let (code, _, said) = check(&["--config-file", "/nowhere/epp.yaml"]);
    assert!(code == Some(64) && said.contains("/nowhere/epp.yaml"), "{said}");
    let (code, _, said) = check(&["--nonsense"]);
    assert!(code == Some(64) && said.contains("--nonsense"), "{said}");
}

#[test]
fn a_configuration_that_the_process_would_not_start_with_is_printed_all_the_same() {
    let (code, page, said) = check(&["--config-text={}"]);
    assert_eq!(code, Some(64));
    assert!(page.contains("kind: EndpointPickerConfig\n") && said.contains("no source of endpoints"), "{page}{said}");
}

#[test]
fn every_broken_configuration_ends_it_with_64_and_a_line_that_names_the_place() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/config/tests/fixtures/broken");
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let file = path.display().to_string();
            let (code, page, said) = check(&["--config-file", &file]);
            assert_eq!((code, page.as_str()), (Some(64), ""), "{file}: {said}");
            let place = |line: &str| line.strip_prefix(&file)?.strip_prefix(':')?.chars().next();
            assert!(said.lines().all(|line| place(line).is_some_and(|digit| digit.is_ascii_digit())), "{said}");
        }
    }
}

#[test]
fn an_experimental_plugin_has_to_be_allowed() {
    let text = GOOD.replace("plugins:\n", "plugins:\n  - {type: agent-identity}\n");
    let (code, _, said) = check(&["--config-text", &text]);
    assert!(code == Some(64) && said.contains("--allow-experimental-plugins"), "{said}");
    assert!(!check(&["--config-text", &text, "--allow-experimental-plugins"]).2.contains("experimental"));
}
