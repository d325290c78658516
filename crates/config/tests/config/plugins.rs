//! Mistakes in the list of plugins, and in what names a plugin.

use insta::assert_snapshot;
use sluice_config::{Options, Source, load};

use crate::support::{REGISTRY, diagnose};

#[test]
fn a_plugin_has_a_type() {
    assert_snapshot!(diagnose("plugins: [{name: a}, {type: ''}, {}]"), @r#"
    c.yaml:1:11: plugins[0].type: the field "type" is missing
    c.yaml:1:22: plugins[1].type: the field "type" is missing
    c.yaml:1:34: plugins[2].type: the field "type" is missing
    "#);
}

#[test]
fn names_are_unique() {
    assert_snapshot!(diagnose("
plugins:
  - {name: a, type: test-scorer}
  - {name: a, type: test-filter}
  - {type: test-scorer}
  - {type: test-scorer}
"), @r#"
    c.yaml:4:12: plugins[1].name: there is a plugin "a" already
    c.yaml:6:12: plugins[3].type: there is a plugin "test-scorer" already; give one of them a name
    "#);
}

#[test]
fn a_type_of_the_reference_says_that_it_is_not_there_yet() {
    assert_snapshot!(diagnose("
plugins:
  - type: prefix-cache-scorer
  - type: queue-scorer
  - type: vllmgrpc-parser
"), @r#"
    c.yaml:3:11: plugins[0].type: the plugin type "prefix-cache-scorer" is known but not available in this version
    c.yaml:4:11: plugins[1].type: the plugin type "queue-scorer" is known but not available in this version
    c.yaml:5:11: plugins[2].type: the plugin type "vllmgrpc-parser" is known but not available in this version; the passthrough-parser passes such requests on without reading them
    "#);
}

#[test]
fn an_unknown_type_gets_the_nearest() {
    assert_snapshot!(diagnose("
plugins:
  - type: test-score
  - type: max-scores-picker
  - type: prefix-cache-scorr
  - type: something-else-altogether
"), @r#"
    c.yaml:3:11: plugins[0].type: unknown plugin type "test-score", did you mean "test-scorer"?
    c.yaml:4:11: plugins[1].type: unknown plugin type "max-scores-picker", did you mean "max-score-picker"?
    c.yaml:5:11: plugins[2].type: unknown plugin type "prefix-cache-scorr", did you mean "prefix-cache-scorer"?
    c.yaml:6:11: plugins[3].type: unknown plugin type "something-else-altogether"
    "#);
}

#[test]
fn alpha_plugins_must_be_allowed() {
    let text = "plugins: [{type: alpha-scorer}]";
    assert_snapshot!(diagnose(text), @r#"c.yaml:1:18: plugins[0].type: the plugin type "alpha-scorer" is experimental; start with --allow-experimental-plugins to use it"#);
    let options = Options { allow_experimental_plugins: true, ..Options::default() };
    assert!(load(&Source::new("c.yaml", text), REGISTRY, &options).is_ok());
}

#[test]
fn references_must_name_a_plugin() {
    assert_snapshot!(diagnose("
plugins:
  - {name: spread, type: test-scorer}
schedulingProfiles:
  - name: main
    plugins:
      - pluginRef: spraed
      - pluginRef: queue-scorer
      - pluginRef: nobody-knows-this
      - weight: 2
dataLayer:
  discovery: {pluginRef: endpoints}
  crossReplicaSyncerPluginRef: sync
  sources:
    - pluginRef: metrics-data-source
      extractors: [{pluginRef: core-metrics-extractor}]
    - {}
"), @r#"
    c.yaml:3:5: warning: plugins[0]: has no effect: nothing refers to the plugin "spread"
    c.yaml:7:20: schedulingProfiles[0].plugins[0].pluginRef: there is no plugin "spraed", did you mean "spread"?
    c.yaml:8:20: schedulingProfiles[0].plugins[1].pluginRef: the plugin type "queue-scorer" is known but not available in this version
    c.yaml:9:20: schedulingProfiles[0].plugins[2].pluginRef: there is no plugin "nobody-knows-this"
    c.yaml:10:9: schedulingProfiles[0].plugins[3].pluginRef: the field "pluginRef" is missing
    c.yaml:12:26: dataLayer.discovery.pluginRef: there is no plugin "endpoints"
    c.yaml:13:32: dataLayer.crossReplicaSyncerPluginRef: there is no plugin "sync"
    c.yaml:15:18: dataLayer.sources[0].pluginRef: there is no plugin "metrics-data-source"; declare it under plugins
    c.yaml:16:32: dataLayer.sources[0].extractors[0].pluginRef: there is no plugin "core-metrics-extractor"; declare it under plugins
    c.yaml:17:7: dataLayer.sources[1].pluginRef: the field "pluginRef" is missing
    "#);
}

#[test]
fn a_reference_to_a_broken_plugin_is_not_a_second_mistake() {
    assert_snapshot!(diagnose("
plugins:
  - type: queue-scorer
  - {name: picky, type: no-such-thing}
  - {name: unlucky, type: test-filter, parameters: {maxNumOfEndpoints: 13}}
schedulingProfiles:
  - name: main
    plugins: [{pluginRef: queue-scorer}, {pluginRef: picky}, {pluginRef: unlucky}]
"), @r#"
    c.yaml:3:11: plugins[0].type: the plugin type "queue-scorer" is known but not available in this version
    c.yaml:4:25: plugins[1].type: unknown plugin type "no-such-thing"
    c.yaml:5:72: plugins[2].parameters.maxNumOfEndpoints: 13 is an unlucky number
    "#);
    assert_snapshot!(diagnose("
plugins:
  - {nmae: spread, type: test-scorer}
schedulingProfiles:
  - name: main
    plugins: [{pluginRef: spread}]
"), @r#"
    c.yaml:3:5: warning: plugins[0]: has no effect: nothing refers to the plugin "test-scorer"
    c.yaml:3:6: plugins[0].nmae: unknown field "nmae", did you mean "name"?
    "#);
}

#[test]
fn references_must_name_the_right_kind() {
    assert_snapshot!(diagnose("
plugins:
  - {name: spread, type: test-scorer}
dataLayer:
  discovery: {pluginRef: spread}
  sources: [{pluginRef: spread, extractors: [{pluginRef: spread}]}]
  crossReplicaSyncerPluginRef: spread
requestHandler:
  parsers: [{pluginRef: spread}]
"), @r#"
    c.yaml:5:26: dataLayer.discovery.pluginRef: the plugin "spread" of type "test-scorer" is not an endpoint discovery
    c.yaml:6:25: dataLayer.sources[0].pluginRef: the plugin "spread" of type "test-scorer" is not a data source
    c.yaml:6:58: dataLayer.sources[0].extractors[0].pluginRef: the plugin "spread" of type "test-scorer" is not an extractor
    c.yaml:7:32: dataLayer.crossReplicaSyncerPluginRef: the plugin "spread" of type "test-scorer" is not a syncer
    c.yaml:9:25: requestHandler.parsers[0].pluginRef: the plugin "spread" of type "test-scorer" is not a parser
    "#);
}

#[test]
fn what_nothing_refers_to_is_a_warning() {
    assert_snapshot!(diagnose("
plugins:
  - type: test-scorer
  - type: test-filter
  - {type: test-discovery, parameters: {path: x}}
schedulingProfiles:
  - name: main
    plugins: [{pluginRef: test-filter}]
"), @r#"
    c.yaml:3:5: warning: plugins[0]: has no effect: nothing refers to the plugin "test-scorer"
    c.yaml:5:5: warning: plugins[2]: has no effect: nothing refers to the plugin "test-discovery"
    ok
    "#);
}
