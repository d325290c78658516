//! The configuration that the process runs on, written as a configuration: with everything that was filled in.

use std::time::Duration;

use serde_json::{Map, Value, json};
use sluice_flow::{BandConfig, Budgets};

use super::Assembler;
use super::data_layer::Metrics;
use super::parsers::ChosenParsers;
use super::scheduling::DEFAULT_PICKER;
use crate::FlowControl;
use crate::plugin::Roles;
use crate::resolve::{
    API_VERSION, Choice, Instance, KIND, ProfileEntry, Resolved, ResolvedAdmission, ResolvedBand, ResolvedFlowControl,
    ResolvedProfile,
};
use crate::settings::TrustSource;
use crate::timeout::Timeout;
use crate::weight::Weight;

impl Assembler<'_, '_> {
    /// A configuration that means the same as the one that was read, and leaves nothing out that has an effect: neither
    /// plugins nor their parameters.
    pub(super) fn effective(
        &self,
        resolved: &Resolved<'_>,
        profiles: &[ResolvedProfile],
        metrics: Option<&Metrics>,
        parsers: &ChosenParsers,
        flow_control: Option<&FlowControl>,
        sheds_by: Option<Choice>,
    ) -> Value {
        let declared = self.instances.iter().zip(&self.parameters);
        let declared = declared.map(|(Instance { name, plugin_type, .. }, parameters)| {
            entry(name, plugin_type.name(), parameters.as_ref())
        });
        let filled_in = self.injected.iter();
        let filled_in = filled_in.map(|(type_name, built)| {
            let parameters = built.as_ref().map(|built| &built.parameters);
            entry(&self.name_of_injected(type_name), type_name, parameters)
        });
        let mut data_layer = Map::new();
        if let Some(discovery) = resolved.discovery {
            let discovery = json!({"pluginRef": self.instances[discovery.value].name});
            data_layer.insert("discovery".to_owned(), discovery);
        }
        if let Some(Metrics { source, extractor, scraping: _ }) = metrics {
            let source = json!({"pluginRef": source, "extractors": [{"pluginRef": extractor}]});
            data_layer.insert("sources".to_owned(), json!([source]));
        } else if !resolved.metrics.inject_defaults {
            data_layer.insert("injectDefaults".to_owned(), false.into());
        }
        let (mut gates, section) = match (&resolved.admission, flow_control) {
            (ResolvedAdmission::FlowControl(section), Some(built)) => {
                (vec!["flowControl"], self.flow_control_section(section, built))
            }
            (ResolvedAdmission::Legacy(_), _) if sheds_by.is_some() => {
                (vec![], json!({"saturationDetector": {"pluginRef": self.chosen_name(sheds_by)}}))
            }
            (ResolvedAdmission::FlowControl(_) | ResolvedAdmission::Legacy(_), _) => (vec![], json!({})),
        };
        if !resolved.populate_standbys {
            gates.push("haPopulateNonLeaderDatastore=false");
        }
        json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "featureGates": gates,
            "plugins": declared.chain(filled_in).collect::<Vec<_>>(),
            "schedulingProfiles": profiles.iter().map(|profile| self.profile_entry(profile)).collect::<Vec<_>>(),
            "requestHandler": {"parsers": parsers.names.iter().map(|name| json!({"pluginRef": name})).collect::<Vec<_>>()},
            "dataLayer": data_layer,
            "flowControl": section,
            "sluice": settings_in_effect(resolved),
        })
    }

    fn profile_entry(&self, ResolvedProfile { name, entries, node: _ }: &ResolvedProfile) -> Value {
        let roles = |instance: usize| self.roles[instance].as_ref();
        let takes_part = |entry: &&ProfileEntry| roles(entry.instance).is_some_and(Roles::has_profile_role);
        let mut plugins: Vec<Value> = entries
            .iter()
            .filter(takes_part)
            .map(|ProfileEntry { instance, weight, node: _ }| {
                let mut plugin = json!({"pluginRef": self.instances[*instance].name});
                if roles(*instance).is_some_and(|roles| roles.scorer.is_some()) {
                    plugin["weight"] = weight.map_or(Weight::ONE, |weight| weight.value).as_f32().into();
                }
                plugin
            })
            .collect();
        let is_picker = |instance: usize| roles(instance).is_some_and(|roles| roles.picker.is_some());
        if !entries.iter().any(|entry| is_picker(entry.instance)) {
            let declared = (0..self.instances.len()).find(|instance| is_picker(*instance));
            let picker = match declared {
                Some(instance) => self.instances[instance].name.clone(),
                None => self.name_of_injected(DEFAULT_PICKER),
            };
            plugins.push(json!({"pluginRef": picker}));
        }
        json!({"name": name, "plugins": plugins})
    }

    fn flow_control_section(&self, resolved: &ResolvedFlowControl, built: &FlowControl) -> Value {
        let FlowControl { config, desired: _ } = built;
        let band = |resolved: &ResolvedBand, band: &BandConfig| self.band_entry(resolved, band, config.budgets);
        let bands = resolved.bands.iter().filter_map(|(priority, resolved)| {
            let mut entry = band(resolved, config.bands.get(priority)?);
            entry.insert("priority".to_owned(), priority.0.into());
            Some(Value::Object(entry))
        });
        let negative = resolved.negative_template.as_ref().zip(config.negative_template.as_ref());
        json!({
            "maxRequests": config.global.requests.unwrap_or(0),
            "maxBytes": config.global.bytes.unwrap_or(0),
            "defaultRequestTTL": duration(config.budgets.saturation),
            "noEndpointRequestTTL": duration(config.budgets.no_endpoint),
            "saturationDetector": {"pluginRef": self.chosen_name(resolved.detector)},
            "usageLimitPolicyPluginRef": self.chosen_name(resolved.usage_limit),
            "enableEviction": resolved.evict.is_some(),
            "defaultPriorityBand": band(&resolved.template, &config.template),
            "defaultNegativePriorityBand": negative.map(|(resolved, built)| band(resolved, built)),
            "priorityBands": bands.collect::<Vec<_>>(),
        })
    }

    fn band_entry(&self, resolved: &ResolvedBand, band: &BandConfig, budgets: Budgets) -> Map<String, Value> {
        let BandConfig { max_requests, max_bytes, request_ttl, no_endpoint_request_ttl, shed, .. } = band;
        let mut entry = Map::new();
        let mut put = |key: &str, value: Value| entry.insert(key.to_owned(), value);
        put("shed", (*shed).into());
        put("fairnessPolicyRef", self.chosen_name(resolved.fairness).into());
        // Nothing waits in a band that sheds.
        if !shed {
            put("orderingPolicyRef", self.chosen_name(resolved.ordering).into());
            put("maxRequests", (*max_requests).into());
            put("maxBytes", (*max_bytes).into());
            put("requestTTL", duration(request_ttl.unwrap_or(budgets.saturation)));
            put("noEndpointRequestTTL", duration(no_endpoint_request_ttl.unwrap_or(budgets.no_endpoint)));
        }
        entry
    }

    pub(super) fn chosen_name(&self, choice: Option<Choice>) -> Option<&str> {
        match choice? {
            Choice::Declared(reference) => Some(&self.instances[reference.value].name),
            Choice::Default(plugin_type) => Some(plugin_type),
        }
    }
}

/// The section `sluice` without what has no effect beside the other settings, of which its author would be warned.
fn settings_in_effect(resolved: &Resolved<'_>) -> Value {
    let mut settings = json!(resolved.settings);
    let Some(sections) = settings.as_object_mut() else { return settings };
    let flow_control = match &resolved.admission {
        ResolvedAdmission::FlowControl(flow_control) => Some(flow_control),
        ResolvedAdmission::Legacy(_) => None,
    };
    if flow_control.is_none() {
        sections.retain(|section, _| !matches!(section.as_str(), "dryRun" | "queue"));
    }
    if flow_control.is_none_or(|flow_control| flow_control.evict.is_none()) {
        sections.remove("eviction");
        if let Some(dry_run) = sections.get_mut("dryRun").and_then(Value::as_array_mut) {
            dry_run.retain(|part| part != "eviction");
        }
    }
    if resolved.settings.trust.source == TrustSource::Headers
        && let Some(trust) = sections.get_mut("trust").and_then(Value::as_object_mut)
    {
        trust.remove("metadataNamespace");
    }
    settings
}

/// An element of `plugins`.
fn entry(name: &str, plugin_type: &str, parameters: Option<&Map<String, Value>>) -> Value {
    let mut entry = json!({"name": name, "type": plugin_type});
    if let Some(parameters) = parameters.filter(|parameters| !parameters.is_empty()) {
        entry["parameters"] = parameters.clone().into();
    }
    entry
}

fn duration(duration: Duration) -> Value {
    json!(Timeout(duration))
}
