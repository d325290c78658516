//! Mistakes in the text itself and in the shape of the document.

use insta::assert_snapshot;

use crate::support::{diagnose, diagnose_bytes};

#[test]
fn broken_yaml_names_the_position() {
    assert_snapshot!(diagnose("plugins: [{type: a}\nkind: x\n"), @"c.yaml:2:5: not valid YAML: illegal placement of ':' indicator");
    assert_snapshot!(diagnose("plugins:\n\t- type: a\n"), @"c.yaml:2:2: not valid YAML: tabs disallowed within this context (block indentation)");
    assert_snapshot!(diagnose("kind: 'EndpointPickerConfig\n"), @"c.yaml:1:7: not valid YAML: unclosed quote");
    assert_snapshot!(diagnose("kind: *nobody\n"), @"c.yaml:1:7: not valid YAML: reference to unknown value");
    assert_snapshot!(diagnose("{\"kind\": \"EndpointPickerConfig\",, }"), @"c.yaml:1:33: not valid YAML: unexpected EOF while parsing an implicit flow mapping");
}

#[test]
fn an_empty_text_is_not_a_configuration() {
    assert_snapshot!(diagnose(""), @"c.yaml:1:1: the configuration is empty; write {} to take every default");
    assert_snapshot!(diagnose("# nothing but a comment\n---\n"), @"c.yaml:1:1: the configuration is empty; write {} to take every default");
}

#[test]
fn one_document_only() {
    assert_snapshot!(diagnose("kind: EndpointPickerConfig\n---\nplugins: []\n"), @"c.yaml:3:1: a second document starts here, only one is read");
}

#[test]
fn text_must_be_utf_8() {
    assert_snapshot!(diagnose_bytes(b"kind: x\nplugins: \xc3\xa4\xff\n"), @"c.yaml:2:11: the configuration is not UTF-8: byte 0xff");
}

#[test]
fn size_and_nesting_are_bounded() {
    assert_snapshot!(diagnose(&"#".repeat((1 << 20) + 1)), @"c.yaml:1:1: the configuration has 1048577 bytes, at most 1048576 are read");
    assert_snapshot!(diagnose(&"- ".repeat(200)), @"c.yaml:1:97: the configuration is too large or too deeply nested, or its aliases expand to too much");
    assert_snapshot!(diagnose(&"{a: ".repeat(60)), @"c.yaml:1:193: not valid YAML: recursion limit exceeded");
    assert_snapshot!(diagnose(&"[".repeat(200)), @"c.yaml:1:49: not valid YAML: recursion limit exceeded");
    let laughs: String = std::iter::once("a0: &a0 [lol]\n".to_owned())
        .chain((1..12).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(","))))
        .collect();
    assert_snapshot!(diagnose(&laughs), @"c.yaml:5:30: the configuration is too large or too deeply nested, or its aliases expand to too much");
    assert_snapshot!(diagnose("a: &a\n  b: *a\n"), @"c.yaml:2:6: not valid YAML: Recursive reference not allowed here");
}

#[test]
fn the_top_is_a_mapping() {
    assert_snapshot!(diagnose("- plugins\n"), @"c.yaml:1:1: expected a mapping, found a list");
    assert_snapshot!(diagnose("plugins\n"), @r#"c.yaml:1:1: expected a mapping, found the string "plugins""#);
}

#[test]
fn unknown_fields_get_a_suggestion_or_the_list() {
    assert_snapshot!(diagnose("
pluginz: []
schedulingProfiles:
  - name: a
    plugins:
      - pluginRef: x
        wieght: 2
flowControl:
  max_bytes: 1Gi
  defaultRequestTtl: 3s
metadata: {name: x}
plugins:
  - {name: x, type: test-scorer, color: red}
"), @r#"
    c.yaml:2:1: pluginz: unknown field "pluginz", did you mean "plugins"?
    c.yaml:7:9: schedulingProfiles[0].plugins[0].wieght: unknown field "wieght", did you mean "weight"?
    c.yaml:9:3: flowControl.max_bytes: unknown field "max_bytes", did you mean "maxBytes"?
    c.yaml:10:3: flowControl.defaultRequestTtl: unknown field "defaultRequestTtl", did you mean "defaultRequestTTL"?
    c.yaml:11:1: metadata: unknown field "metadata"; the fields are apiVersion, kind, featureGates, plugins, schedulingProfiles, dataLayer, flowControl, requestHandler, saturationDetector, parser, sluice
    c.yaml:13:34: plugins[0].color: unknown field "color"; the fields are name, type, parameters
    "#);
}

#[test]
fn keys_stand_once_and_are_text() {
    assert_snapshot!(diagnose("
kind: EndpointPickerConfig
plugins:
  - type: test-scorer
    type: test-filter
    parameters: {a: 1, a: 2}
kind: EndpointPickerConfig
[a]: b
"), @r#"
    c.yaml:5:5: plugins[0].type: duplicate key "type", first seen on line 4
    c.yaml:6:18: plugins[0].parameters.a: unknown field "a"; there are no fields here
    c.yaml:6:24: plugins[0].parameters.a: duplicate key "a", first seen on line 6
    c.yaml:7:1: kind: duplicate key "kind", first seen on line 2
    c.yaml:8:1: a key must be plain text
    "#);
}

#[test]
fn values_of_the_wrong_kind_say_what_was_expected() {
    assert_snapshot!(diagnose("
kind: [EndpointPickerConfig]
featureGates: flowControl
plugins:
  - type: 7
  - test-scorer
  - {name: on, type: test-scorer}
schedulingProfiles: {name: main}
dataLayer:
  injectDefaults: 'true'
  crossReplicaSyncInterval: 200
flowControl:
  enableEviction: 1
  priorityBands:
    - priority: '5'
    - priority: 1.5
    - priority: 3000000000
    - maxRequests: 2GB
    - maxRequests: [1]
    - requestTTL: 5 minutes
"), @r#"
    c.yaml:2:7: kind: expected a string, found a list
    c.yaml:3:15: featureGates: expected a list, found the string "flowControl"
    c.yaml:5:11: plugins[0].type: expected a string, found the number 7; put it in quotes
    c.yaml:6:5: plugins[1]: expected a mapping, found the string "test-scorer"
    c.yaml:7:12: plugins[2].name: expected a string, found true; put it in quotes
    c.yaml:8:21: schedulingProfiles: expected a list, found a mapping
    c.yaml:10:19: dataLayer.injectDefaults: expected true or false, found the string "true"
    c.yaml:11:29: dataLayer.crossReplicaSyncInterval: expected a duration with a unit, such as 200ms or 30s, found the number 200
    c.yaml:13:19: flowControl.enableEviction: expected true or false, found the number 1
    c.yaml:15:17: flowControl.priorityBands[0].priority: expected a whole number from -2147483648 to 2147483647, found the string "5"; remove the quotes
    c.yaml:16:17: flowControl.priorityBands[1].priority: expected a whole number from -2147483648 to 2147483647, found the number 1.5
    c.yaml:17:17: flowControl.priorityBands[2].priority: expected a whole number from -2147483648 to 2147483647, found the number 3000000000
    c.yaml:18:20: flowControl.priorityBands[3].maxRequests: invalid quantity "2GB": unknown suffix "GB", use n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei or an exponent such as e3
    c.yaml:19:20: flowControl.priorityBands[4].maxRequests: expected a quantity such as 2000, 20k or 1Gi, found a list
    c.yaml:20:19: flowControl.priorityBands[5].requestTTL: invalid duration "5 minutes": unknown unit " minutes", use ns, us, ms, s, m or h
    "#);
}

#[test]
fn negative_limits_and_times_are_refused() {
    assert_snapshot!(diagnose("
flowControl:
  maxBytes: -1Gi
  maxRequests: -5
  defaultRequestTTL: -5s
  noEndpointRequestTTL: -1ms
"), @"
    c.yaml:3:13: flowControl.maxBytes: -1073741824 is negative, it must be zero or more
    c.yaml:4:16: flowControl.maxRequests: -5 is negative, it must be zero or more
    c.yaml:5:22: flowControl.defaultRequestTTL: -5s is negative, it must be zero or more
    c.yaml:6:25: flowControl.noEndpointRequestTTL: -1ms is negative, it must be zero or more
    ");
}

#[test]
fn a_wrong_value_in_an_anchor_is_shown_where_it_stands() {
    assert_snapshot!(diagnose("
flowControl:
  defaultPriorityBand: &band
    maxRequests: many
  priorityBands:
    - <<: *band
      priority: 1
"), @r#"
    c.yaml:4:18: flowControl.defaultPriorityBand.maxRequests: invalid quantity "many": it has no digits
    c.yaml:4:18: flowControl.priorityBands[0].maxRequests: invalid quantity "many": it has no digits
    "#);
}

#[test]
fn no_more_mistakes_than_anyone_would_read() {
    let text: String = (0..500).map(|n| format!("field{n}: {n}\n")).collect();
    let said = diagnose(&text);
    assert_eq!(said.lines().count(), 101);
    assert_snapshot!(said.lines().last().unwrap(), @"c.yaml: there are more mistakes than the 100 shown");

    let text: String = std::iter::once("plugins:\n".to_owned()).chain((0..500).map(|n| format!("  - {n}\n"))).collect();
    assert!(diagnose(&text).lines().count() <= 101);
}
