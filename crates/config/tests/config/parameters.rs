//! Mistakes in the parameters of plugins.

use insta::assert_snapshot;

use crate::support::{REGISTRY, diagnose};

#[test]
fn each_mistake_is_named_with_its_path() {
    assert_snapshot!(diagnose("
plugins:
  - type: test-filter
    parameters:
      maxNumOfEndpoint: 3
      maxNumOfEndpoints: 70000
      labels: [a, 5, {b: c}, d]
      limit:
        value: high
        stric: true
  - type: test-scorer
    parameters: {anything: 1}
  - type: test-picker
    parameters: [1, 2]
"), @r#"
    c.yaml:5:7: plugins[0].parameters.maxNumOfEndpoint: unknown field "maxNumOfEndpoint", did you mean "maxNumOfEndpoints"?
    c.yaml:6:26: plugins[0].parameters.maxNumOfEndpoints: expected a whole number from 0 to 65535, found the number 70000
    c.yaml:7:19: plugins[0].parameters.labels[1]: expected a string, found the number 5; put it in quotes
    c.yaml:7:22: plugins[0].parameters.labels[2]: expected a string, found a mapping
    c.yaml:9:16: plugins[0].parameters.limit.value: expected a number, found the string "high"
    c.yaml:10:9: plugins[0].parameters.limit.stric: unknown field "stric", did you mean "strict"?
    c.yaml:12:18: plugins[1].parameters.anything: unknown field "anything"; there are no fields here
    c.yaml:14:17: plugins[2].parameters: expected a mapping, found a list
    "#);
}

#[test]
fn a_parameter_without_default_must_be_given() {
    assert_snapshot!(diagnose("plugins: [{type: test-discovery}]"), @r#"c.yaml:1:11: plugins[0].parameters.path: the field "path" is missing"#);
    assert_snapshot!(diagnose("plugins: [{type: test-discovery, parameters: {watch: true}}]"), @r#"c.yaml:1:46: plugins[0].parameters.path: the field "path" is missing"#);
    // Only the wrong value, not that the field is missing once it is left out.
    assert_snapshot!(diagnose("plugins: [{type: test-discovery, parameters: {path: [a], watch: 1}}]"), @"
    c.yaml:1:53: plugins[0].parameters.path: expected a string, found a list
    c.yaml:1:65: plugins[0].parameters.watch: expected true or false, found the number 1
    ");
}

#[test]
fn null_is_absent() {
    assert_snapshot!(diagnose("
plugins:
  - type: test-filter
    parameters: {maxNumOfEndpoints: null, labels:, limit: ~}
  - {name: b, type: test-filter, parameters:}
"), @"ok");
    assert_snapshot!(diagnose("plugins: [{type: test-discovery, parameters: {path: null}}]"), @r#"c.yaml:1:46: plugins[0].parameters.path: the field "path" is missing"#);
}

#[test]
fn a_plugin_can_refuse_and_warn() {
    assert_snapshot!(diagnose("
plugins:
  - type: test-filter
    parameters: {maxNumOfEndpoints: 13}
  - name: warned
    type: test-filter
    parameters:
      limit: {value: 1.5, strict: true}
"), @"
    c.yaml:4:37: plugins[0].parameters.maxNumOfEndpoints: 13 is an unlucky number
    c.yaml:5:5: warning: plugins[1].parameters.labels: strict without labels
    c.yaml:8:14: warning: plugins[1].parameters.limit: 1.5 is more than 1
    ");
}

#[test]
fn a_type_can_be_asked_for_its_parameters() {
    let parameters = |name: &str| REGISTRY.iter().find(|known| known.name() == name).unwrap().parameters();
    assert_eq!(parameters("test-filter"), ["maxNumOfEndpoints", "labels", "limit"]);
    assert_eq!(parameters("test-discovery"), ["path", "watch"]);
    assert_eq!(parameters("test-scorer"), [] as [&str; 0]);
}
