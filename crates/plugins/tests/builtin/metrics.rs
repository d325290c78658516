//! The source of metrics and their extractor: what their parameters lead to.

use std::time::Duration;

use insta::assert_snapshot;
use sluice_data::{ClientPair, HttpsOptions, MetricsPath, MetricsSource, Scraping, Transport, Verify};

use crate::read;

fn config(source: &str, extractor: &str) -> String {
    format!(
        "plugins:
- type: queue-scorer
- {{type: metrics-data-source, parameters: {source}}}
- {{type: core-metrics-extractor, parameters: {extractor}}}
"
    )
}

fn scraping(source: &str) -> Scraping {
    read(&config(source, "{}")).unwrap_or_else(|error| panic!("{error}")).scraping.unwrap()
}

/// What is said about a source with these parameters and an extractor with those.
fn said(source: &str, extractor: &str) -> String {
    match read(&config(source, extractor)) {
        Ok(assembled) => assembled.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn without_parameters_the_page_is_read_as_by_default() {
    let expected =
        MetricsSource { transport: Transport::Http, path: MetricsPath::default(), port: None, interval: None };
    let Scraping { source, interval, .. } = scraping("{}");
    assert_eq!((source, interval), (expected, Duration::from_millis(50)));
}

#[test]
fn every_parameter_of_the_source_counts() {
    let Scraping { source, interval, .. } = scraping(
        "{scheme: https, path: /internal, port: 8443, insecureSkipVerify: false, caCertPath: ca.pem,
          clientCertPath: c.pem, clientKeyPath: k.pem, interval: 200ms}",
    );
    let client = Some(ClientPair { certificate: "c.pem".into(), key: "k.pem".into() });
    let expected = MetricsSource {
        transport: Transport::Https(HttpsOptions { verify: Verify::Authorities("ca.pem".into()), client }),
        path: MetricsPath::parse("/internal").unwrap(),
        port: Some(8443),
        interval: Some(Duration::from_millis(200)),
    };
    assert_eq!((source, interval), (expected, Duration::from_millis(200)));
    for (insecure, verify) in [("true", Verify::Anybody), ("false", Verify::System)] {
        let source = scraping(&format!("{{scheme: https, insecureSkipVerify: {insecure}}}")).source;
        assert_eq!(source.transport, Transport::Https(HttpsOptions { verify, client: None }));
    }
    assert_eq!(scraping("{interval: 0s}").source.interval, None);
}

#[test]
fn mistakes_of_the_source_are_named() {
    for (parameters, place) in [
        ("{scheme: ftp}", r#"scheme: "ftp" is neither http nor https"#),
        ("{path: metrics}", r#"path: "metrics" does not start with a slash"#),
        ("{port: 0}", "port: a port is a number from 1 to 65535"),
        ("{port: 65536}", "port: a port is a number from 1 to 65535"),
        ("{interval: -1s}", "interval: -1s is negative"),
        ("{interval: 5}", "interval: expected a string, found the number 5"),
        ("{interval: 5q}", "interval: invalid duration"),
        (
            "{scheme: https, clientCertPath: c.pem}",
            "clientCertPath: a certificate needs its key: set clientKeyPath too",
        ),
        ("{scheme: https, clientKeyPath: k.pem}", "clientKeyPath: a key needs its certificate: set clientCertPath too"),
        ("{insecureSkipVerfiy: true}", r#"did you mean "insecureSkipVerify"?"#),
    ] {
        let said = said(parameters, "{}");
        assert!(said.contains("plugins[1].parameters.") && said.contains(place), "{parameters}: {said}");
    }
}

#[test]
fn what_has_no_effect_or_another_one_is_a_warning() {
    assert_snapshot!(said("{caCertPath: ca.pem, clientCertPath: c.pem, clientKeyPath: k.pem}", "{}"), @"
    c.yaml:3:56: warning: plugins[1].parameters.caCertPath: has no effect: the scheme is http
    c.yaml:3:80: warning: plugins[1].parameters.clientCertPath: has no effect: the scheme is http
    c.yaml:3:102: warning: plugins[1].parameters.clientKeyPath: has no effect: the scheme is http
    ");
    assert_snapshot!(said("{scheme: https, caCertPath: ca.pem, interval: 120ms}", "{}"), @"
    c.yaml:3:71: warning: plugins[1].parameters.caCertPath: has no effect: insecureSkipVerify is true, as it is by default
    c.yaml:3:89: warning: plugins[1].parameters.interval: 120ms becomes 100ms, a multiple of 50ms
    ");
    assert_snapshot!(said("{interval: 10ms}", "{}"), @"c.yaml:3:54: warning: plugins[1].parameters.interval: 10ms becomes 50ms, a multiple of 50ms");
}

#[test]
fn mistakes_of_the_extractor_are_named() {
    assert_snapshot!(said("{}", "{defaultEngine: vlm}"), @r#"c.yaml:4:62: plugins[2].parameters.defaultEngine: there is no engine "vlm"; the engines are sglang, triton, triton-tensorrt-llm, trtllm-serve, vllm"#);
    let twice = "{engineConfigs: [{name: acme}, {name: acme}, {name: default}]}";
    let said_twice = said("{}", twice);
    assert!(
        said_twice.contains("engineConfigs[1].name") && said_twice.contains("engineConfigs[2].name"),
        "{said_twice}"
    );
    assert!(said("{}", "{engineConfigs: [{name: acme, kvUsageSpec: 'a{b=~c}'}]}").contains("kvUsageSpec"));
    assert!(said("{}", "{engineConfigs: [{name: acme, kvSpec: a}]}").contains("unknown field"));
    assert_eq!(said("{}", "{engineLabelKey: '', defaultEngine: ''}"), "");
}

#[test]
fn an_engine_that_does_not_tell_how_full_it_is_is_a_warning() {
    for (specs, is_warned_of) in
        [("runningRequestsSpec: a", true), ("queuedRequestsSpec: a", false), ("kvUsageSpec: a", false)]
    {
        let said = said("{}", &format!("{{engineConfigs: [{{name: acme, {specs}}}]}}"));
        let warning = "warning: plugins[2].parameters.engineConfigs[0]: \"acme\" has neither";
        assert_eq!(said.contains(warning), is_warned_of, "{said}");
    }
}
