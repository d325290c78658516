//! Where metrics of endpoints come from, and when nobody asks for them.

use std::time::Duration;

use insta::assert_snapshot;
use sluice_config::{Assembled, Source, load};

use crate::support::{REGISTRY, accept, diagnose};

/// What is scraped, in milliseconds and by the names in the effective configuration.
fn scraped(text: &str) -> String {
    let Assembled { scraping, effective, .. } = accept(text);
    let data_layer = &effective["dataLayer"];
    match scraping {
        None => format!("nothing, {data_layer}"),
        Some(scraping) => format!("every {:?}, {}", scraping.interval, data_layer["sources"]),
    }
}

#[test]
fn nothing_is_scraped_that_nobody_reads() {
    assert_eq!(scraped("plugins: [{type: test-scorer}]"), "nothing, {}");
    let unused = "
plugins: [{type: test-scorer}, {type: test-reader}, {type: metrics-data-source}, {type: core-metrics-extractor}]
schedulingProfiles: [{name: main, plugins: [{pluginRef: test-scorer}]}]";
    assert_eq!(scraped(unused), "nothing, {}");
    assert_snapshot!(diagnose(unused), @r#"
    c.yaml:2:32: warning: plugins[1]: has no effect: nothing refers to the plugin "test-reader"
    c.yaml:2:53: warning: plugins[2]: has no effect: nothing refers to the plugin "metrics-data-source"
    c.yaml:2:82: warning: plugins[3]: has no effect: nothing refers to the plugin "core-metrics-extractor"
    ok
    "#);
}

#[test]
fn a_reader_brings_the_default_pair() {
    let expected =
        r#"every 50ms, [{"extractors":[{"pluginRef":"core-metrics-extractor"}],"pluginRef":"metrics-data-source"}]"#;
    assert_eq!(scraped("plugins: [{type: test-reader}]"), expected);
    let effective = accept("plugins: [{type: test-reader}]").effective.to_string();
    assert_eq!(scraped(&effective), expected);
    assert_eq!(accept(&effective).effective.to_string(), effective);
}

#[test]
fn declared_plugins_of_the_default_types_are_taken_whatever_their_names() {
    let text = "
plugins:
  - type: test-reader
  - {name: pages, type: metrics-data-source, parameters: {interval: 200}}
  - {name: engines, type: core-metrics-extractor}";
    assert_eq!(scraped(text), r#"every 200ms, [{"extractors":[{"pluginRef":"engines"}],"pluginRef":"pages"}]"#);
    assert_snapshot!(diagnose(text), @"
    c.yaml:3:5: warning: plugins[0].parameters.staleness: scraped every 200ms
    ok
    ");
}

#[test]
fn a_source_that_is_named_is_scraped_and_there_is_no_second_one() {
    let text = "
plugins:
  - type: test-scorer
  - {name: pages, type: metrics-data-source, parameters: {interval: 100}}
  - {name: engines, type: core-metrics-extractor}
dataLayer:
  sources: [{pluginRef: pages, extractors: [{pluginRef: engines}]}]";
    let expected = r#"every 100ms, [{"extractors":[{"pluginRef":"engines"}],"pluginRef":"pages"}]"#;
    assert_eq!(scraped(text), expected, "it was asked for, although no plugin reads it");
    assert_eq!(scraped(&text.replace("test-scorer", "test-reader")), expected);
}

#[test]
fn a_reader_needs_an_extractor_that_hangs_on_a_source() {
    assert_snapshot!(diagnose("
plugins: [{type: test-reader}, {type: core-metrics-extractor}]
dataLayer: {injectDefaults: false}
"), @r#"
    c.yaml:2:32: warning: plugins[1]: has no effect: nothing refers to the plugin "core-metrics-extractor"
    c.yaml:3:29: dataLayer.injectDefaults: nothing is scraped, but the plugin "test-reader" acts on scraped metrics; list a core-metrics-extractor under the extractors of a source
    "#);
    assert_snapshot!(diagnose("
plugins: [{type: test-reader}, {type: metrics-data-source}]
dataLayer: {sources: [{pluginRef: metrics-data-source}]}
"), @r#"
    c.yaml:3:35: warning: dataLayer.sources[0].pluginRef: has no effect: without an extractor nothing of its page is read
    c.yaml:3:35: dataLayer.sources[0].pluginRef: nothing is scraped, but the plugin "test-reader" acts on scraped metrics; list a core-metrics-extractor under the extractors of a source
    "#);
    assert_eq!(
        scraped("{plugins: [{type: test-scorer}], dataLayer: {injectDefaults: false}}"),
        r#"nothing, {"injectDefaults":false}"#
    );
}

#[test]
fn a_source_that_is_not_read_says_nothing_of_how_often() {
    let text = "
plugins:
  - type: test-reader
  - {name: idle, type: metrics-data-source, parameters: {interval: 100}}
  - {name: pages, type: metrics-data-source, parameters: {interval: 5000}}
  - type: core-metrics-extractor
dataLayer:
  sources: [{pluginRef: idle}, {pluginRef: pages, extractors: [{pluginRef: core-metrics-extractor}]}]";
    let expected = r#"every 5s, [{"extractors":[{"pluginRef":"core-metrics-extractor"}],"pluginRef":"pages"}]"#;
    assert_eq!(scraped(text), expected);
    assert_snapshot!(diagnose(text), @"
    c.yaml:3:5: warning: plugins[0].parameters.staleness: scraped every 5s
    c.yaml:8:25: warning: dataLayer.sources[0].pluginRef: has no effect: without an extractor nothing of its page is read
    ok
    ");
}

#[test]
fn a_source_of_another_type_is_as_good() {
    let text = "
plugins: [{type: test-reader}, {type: test-source}, {type: core-metrics-extractor}]
dataLayer: {sources: [{pluginRef: test-source, extractors: [{pluginRef: core-metrics-extractor}]}]}";
    let expected = r#"every 50ms, [{"extractors":[{"pluginRef":"core-metrics-extractor"}],"pluginRef":"test-source"}]"#;
    assert_eq!(scraped(text), expected);
}

#[test]
fn one_page_of_each_endpoint_is_read_by_one_extractor_of_a_type() {
    assert_snapshot!(diagnose("
plugins:
  - type: metrics-data-source
  - {name: second, type: metrics-data-source}
  - type: core-metrics-extractor
  - {name: engines, type: core-metrics-extractor}
dataLayer:
  sources:
    - pluginRef: metrics-data-source
      extractors: [{pluginRef: core-metrics-extractor}, {pluginRef: engines}]
    - {pluginRef: second, extractors: [{pluginRef: engines}]}
"), @r#"
    c.yaml:10:69: dataLayer.sources[0].extractors[1].pluginRef: a second extractor of type "core-metrics-extractor" for the same source
    c.yaml:11:19: dataLayer.sources[1].pluginRef: a second source of metrics: this version reads one page of each endpoint
    "#);
}

#[test]
fn a_mistake_elsewhere_is_not_told_again_as_a_missing_source() {
    assert_snapshot!(diagnose("
plugins: [{type: test-reader}, {type: models-data-source}]
dataLayer: {sources: [{pluginRef: models-data-source}, {pluginRef: test-reader}], injectDefaults: false}
"), @r#"
    c.yaml:2:39: plugins[1].type: the plugin type "models-data-source" is known but not available in this version
    c.yaml:3:68: dataLayer.sources[1].pluginRef: the plugin "test-reader" of type "test-reader" is not a data source
    "#);
}

#[test]
fn the_process_says_how_often_by_default() {
    let options = sluice_config::Options { scrape_interval: Duration::from_secs(1), ..Default::default() };
    let interval = |text: &str| {
        let assembled = load(&Source::new("c.yaml", text), REGISTRY, &options).unwrap();
        assembled.scraping.unwrap().interval
    };
    assert_eq!(interval("plugins: [{type: test-reader}]"), Duration::from_secs(1));
    let own = "plugins: [{type: test-reader}, {type: metrics-data-source, parameters: {interval: 200}}]";
    assert_eq!(interval(own), Duration::from_millis(200));
}
