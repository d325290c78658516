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
    assert_eq!(said.lines().count(), 5, "{said}");
    assert!(said.contains("no source of endpoints"), "{said}");
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
            let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
            if text.starts_with("# in force:") {
                // Wrong for a process that runs on another one.
                continue;
            }
            let flags = text.lines().next().and_then(|line| line.strip_prefix("# flags: ")).unwrap_or_default();
            let known = ["--pool-name=a", "--config-file", &file];
            let arguments: Vec<&str> = known.into_iter().chain(flags.split_whitespace()).collect();
            let (code, page, said) = check(&arguments);
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

/// What is wrong with a file is told at the setting that names it, if somebody asks for it.
#[test]
fn files_that_are_named_are_read_on_demand() {
    let directory = directory("check-files");
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let twice = "endpoints:\n- {name: a, address: 10.0.0.1, port: 1, x: 1}\n- {name: b, address: 10.0.0.1, port: 1}\n";
    let (good, bad) = (file("good.yaml", twice), file("bad.yaml", "endpoints:\n- {name: a}\n"));
    let ca = file("ca.pem", "no certificate");
    let config = |endpoints: &str| {
        format!(
            "plugins:
  - {{type: queue-scorer}}
  - {{type: file-discovery, parameters: {{path: {endpoints:?}}}}}
  - {{name: unused, type: file-discovery, parameters: {{path: /nowhere/endpoints.yaml}}}}
  - type: metrics-data-source
    parameters:
      scheme: https
      insecureSkipVerify: false
      caCertPath: {ca:?}
      clientCertPath: /nowhere/tls.crt
      clientKeyPath: /nowhere/tls.key
dataLayer: {{discovery: {{pluginRef: file-discovery}}}}
"
        )
    };
    let (code, page, said) = check(&["--config-text", &config(&bad)]);
    assert_eq!((code, said.contains(&bad)), (Some(0), false), "{said}");
    let (code, page_again, said) = check(&["--files", "--config-text", &config(&bad), "--cert-path", "/nowhere"]);
    assert_eq!((code, page_again), (Some(64), page), "{said}");
    for (place, what) in [
        ("3:47: plugins[1].parameters.path", "endpoints[0] (a): port: missing"),
        ("9:19: plugins[3].parameters.caCertPath", "holds no certificate in PEM"),
        ("10:23: plugins[3].parameters.clientCertPath", "cannot read /nowhere/tls.crt"),
        ("11:22: plugins[3].parameters.clientKeyPath", "cannot read /nowhere/tls.key"),
    ] {
        let is_told = |line: &str| line.starts_with(&format!("--config-text:{place}: ")) && line.contains(what);
        assert!(said.lines().any(is_told), "{place}: {said}");
    }
    assert!(said.contains("--cert-path: cannot read /nowhere/tls.crt"), "{said}");
    assert!(!said.contains("/nowhere/endpoints.yaml"), "nobody reads it: {said}");

    let text = config(&good).replace("scheme: https", "scheme: http");
    let (code, _, said) = check(&["--files", "--config-text", &text]);
    assert_eq!(code, Some(0), "{said}");
    for what in ["warning: plugins[1].parameters.path: line 2: the key \"x\"", "lines 2 and 3: default/a and default/b"]
    {
        assert!(said.contains(what), "{said}");
    }
}
