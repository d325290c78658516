//! Whatever is in a configuration file, reading it ends in a result or in errors.

use std::fmt::Write as _;

use proptest::prelude::*;
use proptest::sample::Index;

use crate::support::diagnose_bytes;

const SEED: &str = r#"
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl, haPopulateNonLeaderDatastore]
plugins:
  - &filter
    name: "filter-ä"
    type: test-filter
    parameters: {maxNumOfEndpoints: 3, labels: [a, 'b'], limit: {value: 0.5, strict: false}}
  - {<<: *filter, name: second}
  - {name: gate, type: concurrency-detector, parameters: {number: 3}}
  - {name: deadline, type: edf-ordering-policy}
  - type: test-discovery
    parameters:
      path: |
        /srv/x
schedulingProfiles:
  - name: main
    plugins: [{pluginRef: "filter-ä"}, {pluginRef: second, weight: 1e3}]
dataLayer: {discovery: {pluginRef: test-discovery}, injectDefaults: true}
flowControl:
  maxBytes: 6Gi
  maxRequests: "20k"
  defaultRequestTTL: 1h2m3.5s
  saturationDetector: {pluginRef: gate}
  priorityBands: [{priority: -5, maxRequests: 1500m, orderingPolicyRef: deadline}, {shed: true}]
  defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy}
sluice:
  objectives: [{name: a, priority: 1}]
  defaultObjective: a
  limits: {bodyMemory: 0x10}
"#;

/// One change to a text.
#[derive(Clone, Debug)]
enum Mutation {
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Repeat(Index, usize),
    Swap(Index, Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let token = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ":",
        ": ",
        ",",
        "- ",
        "\n",
        "\n  ",
        "&a ",
        "*a",
        "*filter",
        "<<: ",
        "!!int ",
        "!x ",
        "|",
        ">",
        "\"",
        "'",
        "#",
        "---\n",
        "...\n",
        "~",
        "? ",
        "\t",
        "\u{feff}",
        "\u{0}",
        "-1",
        "1e400",
        ".nan",
        "9".repeat(40).leak(),
    ]);
    prop_oneof![
        (any::<Index>(), 1_usize..30).prop_map(|(at, length)| Mutation::Remove(at, length)),
        (any::<Index>(), token).prop_map(|(at, token)| Mutation::Insert(at, token.as_bytes().to_vec())),
        (any::<Index>(), prop::collection::vec(any::<u8>(), 1..4)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        (any::<Index>(), 1_usize..60).prop_map(|(at, length)| Mutation::Repeat(at, length)),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Mutation::Swap(a, b)),
    ]
}

fn apply(text: &mut Vec<u8>, mutation: &Mutation) {
    if text.is_empty() {
        return;
    }
    let end = |at: usize, length: usize, text: &[u8]| (at + length).min(text.len());
    match mutation {
        Mutation::Remove(at, length) => {
            let at = at.index(text.len());
            text.drain(at..end(at, *length, text));
        }
        Mutation::Insert(at, bytes) => {
            let at = at.index(text.len());
            text.splice(at..at, bytes.iter().copied());
        }
        Mutation::Repeat(at, length) => {
            let at = at.index(text.len());
            let piece = text[at..end(at, *length, text)].to_vec();
            text.splice(at..at, piece);
        }
        Mutation::Swap(a, b) => {
            let (a, b) = (a.index(text.len()), b.index(text.len()));
            text.swap(a, b);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_damaged_configuration_never_panics(mutations in prop::collection::vec(mutation(), 1..12)) {
        let mut text = SEED.as_bytes().to_vec();
        for mutation in &mutations {
            apply(&mut text, mutation);
        }
        diagnose_bytes(&text);
    }

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        diagnose_bytes(text.as_bytes());
    }

    /// Any value in any place: the path is known, the value is not what belongs there.
    #[test]
    fn any_value_in_the_place_of_another_never_panics(
        path in prop::sample::select(vec![
            "plugins", "schedulingProfiles", "dataLayer", "flowControl", "requestHandler", "sluice",
            "parser", "saturationDetector", "kind", "apiVersion",
        ]),
        value in json(),
        flow_control: bool,
    ) {
        let mut text = String::new();
        write!(text, "{{featureGates: [flowControl={flow_control}], {path:?}: {value}}}").unwrap();
        diagnose_bytes(text.as_bytes());
    }
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let keys = prop::sample::select(vec![
        "name",
        "type",
        "plugins",
        "parameters",
        "pluginRef",
        "weight",
        "priority",
        "priorityBands",
        "defaultPriorityBand",
        "saturationDetector",
        "orderingPolicyRef",
        "defaultObjective",
        "dryRun",
        "sources",
        "extractors",
        "discovery",
        "parsers",
        "objectives",
        "limits",
        "queue",
        "maxBytes",
        "other",
    ]);
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,8}".prop_map(Into::into),
        prop::sample::select(vec![
            "test-filter",
            "test-scorer",
            "test-picker",
            "test-handler",
            "queue-scorer",
            "edf-ordering-policy"
        ])
        .prop_map(Into::into),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::vec((keys.clone(), inner), 0..6).prop_map(|entries| {
                entries
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            }),
        ]
    })
}
