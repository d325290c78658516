//! What valid configurations lead to.

use std::time::Duration;

use sluice_config::settings::{
    DryRun, Eviction, HeaderOnly, Limits, MessageTimeout, MidStream, ModelRewrite, Objective, RewriteTarget, Trust,
    TrustSource, UnknownObjective, VictimOrder, WhenFull,
};
use sluice_config::{ByteSize, Options, Settings, Source, Timeout, load};
use sluice_data::{Discovery, FileDiscovery};

use crate::support::{REGISTRY, accept, diagnose};

const FULL: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [haPopulateNonLeaderDatastore]
plugins:
  - name: endpoints
    type: test-discovery
    parameters: {path: /srv/endpoints.yaml, watch: true}
  - type: test-scorer
  - name: chooser
    type: test-picker
schedulingProfiles:
  - name: main
    plugins:
      - {pluginRef: test-scorer, weight: 2.5}
      - pluginRef: chooser
dataLayer:
  discovery: {pluginRef: endpoints}
";

#[test]
fn yaml_and_json_mean_the_same() {
    let document: serde_json::Value = serde_saphyr::from_str(FULL).unwrap();
    let yaml = accept(FULL);
    for json in [document.to_string(), serde_json::to_string_pretty(&document).unwrap().replace("  ", "\t")] {
        let json = accept(&json);
        assert_eq!(format!("{:?}", json.scheduler), format!("{:?}", yaml.scheduler));
        assert_eq!(json.discovery, yaml.discovery);
        assert_eq!(json.warnings, []);
    }
    assert_eq!(yaml.warnings, []);
}

#[test]
fn discovery_is_the_plugin_that_is_referenced() {
    let expected = FileDiscovery { path: "/srv/endpoints.yaml".into(), watch: true };
    assert_eq!(accept(FULL).discovery, Some(Discovery::File(expected)));
    assert_eq!(accept("{}").discovery, None);
}

#[test]
fn the_lines_that_name_version_and_kind_may_be_left_out() {
    assert_eq!(diagnose("plugins: []"), "ok");
    assert_eq!(diagnose("apiVersion: ''\nkind:\nplugins:\nschedulingProfiles: []"), "ok");
}

#[test]
fn anchors_aliases_and_merge_keys_are_followed() {
    let text = "
plugins:
  - &scorer {type: test-scorer}
  - {<<: *scorer, name: second}
schedulingProfiles:
  - name: main
    plugins:
      - &entry {pluginRef: second, weight: 2}
      - {<<: *entry, pluginRef: test-scorer}
";
    let scheduler = format!("{:?}", accept(text).scheduler);
    assert_eq!(scheduler.matches("weight: 2.0").count(), 2, "{scheduler}");
}

#[test]
fn without_a_sluice_section_every_setting_has_its_default() {
    let settings = accept("{}").settings;
    assert_eq!(settings, Settings::default());
    assert_eq!(settings.limits.max_request_headers, ByteSize(64 << 10));
    assert_eq!(settings.limits.max_request_body, ByteSize(64 << 20));
    assert_eq!(settings.limits.body_progress_timeout, Timeout(Duration::from_secs(60)));
    assert_eq!(settings.eviction.confirmation_timeout, Timeout(Duration::from_secs(1)));
    assert_eq!(settings.trust.metadata_namespace, "sluice");
    assert_eq!(settings.queue.max_flows_per_band.get(), 1000);
    assert!(settings.refusals.retry_after && settings.reload.enabled && settings.metrics.legacy_names);
}

#[test]
fn the_sluice_section_is_read_in_full() {
    let settings = accept(
        "
sluice:
  objectives:
    - {name: premium, priority: 100}
    - {name: batch, priority: -10}
  modelRewrites:
    - matches: [{model: {type: Exact, value: llama}}, {model: {value: qwen}}]
      targets: [{modelRewrite: llama-v2, weight: 9}, {modelRewrite: llama-v3, weight: 1}]
    - targets: [{modelRewrite: fallback}]
  defaultObjective: batch
  unknownObjective: reject
  trust: {source: metadata, metadataNamespace: auth}
  headerOnly: admit
  messageTimeout: keep
  dryRun: [ceilings, eviction]
  queue: {whenFull: displace, maxFlowsPerBand: 20}
  eviction: {midStream: event-then-end, victimOrder: most-slack, maxInFlightRevocations: 2, confirmationTimeout: 1m}
  limits: {maxRequestHeaders: 8Ki, maxRequestBody: 1.5Mi, bodyProgressTimeout: 500ms, bodyMemory: 2e9}
",
    )
    .settings;
    assert_eq!(
        settings.objectives,
        [Objective { name: "premium".into(), priority: 100 }, Objective { name: "batch".into(), priority: -10 }]
    );
    let target = |name: &str, weight: u32| RewriteTarget { model_rewrite: name.into(), weight: weight.try_into().ok() };
    assert_eq!(
        settings.model_rewrites,
        [
            ModelRewrite {
                models: vec!["llama".into(), "qwen".into()],
                targets: vec![target("llama-v2", 9), target("llama-v3", 1)]
            },
            ModelRewrite { models: vec![], targets: vec![target("fallback", 0)] },
        ]
    );
    assert_eq!(settings.default_objective.as_deref(), Some("batch"));
    assert_eq!(settings.unknown_objective, UnknownObjective::Reject);
    assert_eq!(settings.trust, Trust { source: TrustSource::Metadata, metadata_namespace: "auth".into() });
    assert_eq!(settings.header_only, HeaderOnly::Admit);
    assert_eq!(settings.message_timeout, MessageTimeout::Keep);
    assert_eq!(settings.dry_run, [DryRun::Ceilings, DryRun::Eviction]);
    assert_eq!((settings.queue.when_full, settings.queue.max_flows_per_band.get()), (WhenFull::Displace, 20));
    assert_eq!(
        settings.eviction,
        Eviction {
            mid_stream: MidStream::EventThenEnd,
            victim_order: VictimOrder::MostSlack,
            max_in_flight_revocations: 2,
            confirmation_timeout: Timeout(Duration::from_secs(60)),
        }
    );
    assert_eq!(
        settings.limits,
        Limits {
            max_request_headers: ByteSize(8 << 10),
            max_request_body: ByteSize(3 << 19),
            body_progress_timeout: Timeout(Duration::from_millis(500)),
            body_memory: ByteSize(2_000_000_000),
        }
    );
}

#[test]
fn a_registry_without_the_default_plugins_cannot_fill_in() {
    let error = load(&Source::new("c.yaml", "{}"), &[], &Options::default()).unwrap_err().to_string();
    assert!(error.contains("max-score-picker"), "{error}");
}

#[test]
fn the_same_text_leads_to_the_same_result() {
    let first = format!("{:?}", accept(FULL).scheduler);
    assert!((0..10).all(|_| format!("{:?}", accept(FULL).scheduler) == first));
    assert!(load(&Source::new("c.yaml", FULL), REGISTRY, &Options::default()).is_ok());
}
