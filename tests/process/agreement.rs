//! `epp check --files` and a start with the same flags say the same.

use std::fs;
use std::io::BufRead as _;

use serde_json::Value;

use crate::support::{Epp, configuration, directory, epp};

const PORTS: [&str; 4] = ["--listen-address=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"];

/// What a start says until it serves or ends, but for what is about its surroundings.
fn said_by_start(arguments: &[&str]) -> Vec<String> {
    let arguments: Vec<String> = PORTS.iter().chain(arguments).map(|&argument| argument.to_owned()).collect();
    let mut command = epp(&arguments);
    command.env("KUBECONFIG", "/nowhere/config").env_remove("KUBERNETES_SERVICE_HOST");
    let mut epp = Epp::starting(command);
    let lines = epp.log.take().unwrap().lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let mut said = Vec::new();
    for line in lines {
        let message = line["message"].as_str().unwrap();
        if message == "serving" {
            break;
        }
        let of_the_surroundings = [
            "no access to a Kubernetes API server",
            "too few file descriptors",
            "metrics of the endpoint cannot be read",
        ];
        let is_of_them = of_the_surroundings.iter().any(|start| message.starts_with(start));
        if (line["level"] == "WARN" || line["level"] == "ERROR") && !is_of_them {
            said.push(message.to_owned());
        }
    }
    said.sort();
    said
}

fn said_by_check(arguments: &[&str]) -> Vec<String> {
    let arguments = ["check", "--files"].iter().chain(&PORTS).chain(arguments);
    let arguments: Vec<String> = arguments.map(|&argument| argument.to_owned()).collect();
    let output = epp(&arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let mut said: Vec<String> =
        said.lines().map(|line| line.strip_prefix("warning: ").unwrap_or(line).to_owned()).collect();
    said.sort();
    said
}

#[test]
fn a_start_says_what_the_check_says() {
    let directory = directory("agreement");
    let from_file = format!("--config-text={}", configuration(&directory));
    let from_file = from_file.as_str();
    let with = |more: &str| format!("{from_file}{more}");
    let scraped = from_file.replace("plugins: [", "plugins: [{type: queue-scorer}, ");
    let [no_certificate, no_endpoints] = ["ca.pem", "none.yaml"].map(|name| directory.join(name));
    fs::write(&no_certificate, "none").unwrap();
    let bad_ca = format!("--metrics-client-ca-file={}", no_certificate.display());
    let bad_endpoints = from_file.replace("endpoints.yaml", "none.yaml");
    fs::write(no_endpoints, "endpoints: 3").unwrap();
    let mistakes = with("featureGates: [x]\nsluice: {a: 1}\n");
    let standbys = with("featureGates: [haPopulateNonLeaderDatastore=false]\n");
    let flow = with("flowControl: {maxRequests: 1}\n");
    // The flags, and what is said, by its beginning or a part of it.
    let cases: [(&[&str], &[&str]); 23] = [
        (&[from_file], &[]),
        (&[from_file, "--tracing", "--enable-pprof"], &["--enable-pprof: ", "--tracing: "]),
        (&[from_file, "--zap-log-level=loud"], &["--zap-log-level: \"loud\""]),
        (&[from_file, "--ha-enable-leader-election"], &["--ha-enable-leader-election: has no effect where"]),
        (&[from_file, "--metrics-endpoint-auth"], &["--metrics-endpoint-auth: "]),
        (&[&standbys], &["haPopulateNonLeaderDatastore=false: has no effect"]),
        (&[from_file, "--health-checking=false"], &["--health-checking=false: "]),
        (&[&scraped, "--refresh-metrics-interval=2s"], &["--metrics-staleness-threshold: 2s is too short"]),
        // But for the jitter it would do.
        (&[&scraped, "--refresh-metrics-interval=1900ms"], &["read once in up to 2.0925s"]),
        (&[&scraped, "--refresh-metrics-interval=1800ms"], &[]),
        (&[from_file, "--refresh-metrics-interval=2s"], &[]),
        (&[&flow], &["flowControl"]),
        (&[&mistakes], &["featureGates[0]", "sluice.a"]),
        (&["--config-text={}"], &["no source of endpoints"]),
        (&["--config-text=sluice: {a: 1}"], &["sluice.a", "no source of endpoints"]),
        (&["--config-text=plugins: ["], &["--config-text:1"]),
        (&["--config-file=/nowhere/epp.yaml", "--tracing"], &["--config-file /nowhere/epp.yaml", "--tracing: "]),
        (&["--config-text={}", "--pool-name=A/B", "--pool-group=a b"], &["--pool-group: ", "--pool-name: \"A/B\""]),
        (&["--config-text={}", "--pool-name=a", "--pool-namespace=a.b"], &["--pool-namespace: "]),
        (
            &["--config-text={}", "--endpoint-selector=!!", "--endpoint-target-ports=1"],
            &["--endpoint-selector: \"!\" stands where"],
        ),
        (
            &["--config-text=sluice: {a: 1}", "--endpoint-selector=a", "--metrics-endpoint-auth"],
            &["sluice.a", "--endpoint-selector needs 1 to 8 ports"],
        ),
        (
            &[&bad_endpoints, "--cert-path=/nowhere", "--metrics-cert-dir=/nowhere", &bad_ca],
            &["endpoints", "--cert-path: cannot read", "--metrics-cert-dir: cannot read"],
        ),
        (&[from_file, "--grpc-port=7", "--metrics-port=7"], &["--metrics-port: 7 is the port of --grpc-port"]),
    ];
    for (arguments, expected) in cases {
        let (start, check) = (said_by_start(arguments), said_by_check(arguments));
        assert_eq!(start, check, "{arguments:?}");
        assert_eq!(check.len(), expected.len(), "{arguments:?}: {check:?}");
        for part in expected {
            assert!(check.iter().any(|line| line.contains(part)), "{part} for {arguments:?}: {check:?}");
        }
    }
}
