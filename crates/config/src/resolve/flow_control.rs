use std::collections::{BTreeMap, BTreeSet};

use sluice_core::Priority;
use sluice_flow::GlobalLimits;

use super::names::Declared;
use super::{Choice, ResolvedBand, ResolvedFlowControl, Resolver, filled};
use crate::diagnostics::Remark;
use crate::document::{Document, Located, NodeId};
use crate::raw::{RawFlowControl, RawPluginRef, RawPriorityBand};
use crate::settings::VictimOrder;

const FIRST_COME: &str = "fcfs-ordering-policy";
const ROUND_ROBIN: &str = "round-robin-fairness-policy";
const GLOBAL_STRICT: &str = "global-strict-fairness-policy";
const STATIC_LIMIT: &str = "static-usage-limit-policy";
pub(crate) const UTILIZATION: &str = "utilization-detector";

/// Orderings whose keys are deadlines. They promise an order over all tenants, which turns by tenant would
/// break.
const DEADLINE_ORDERINGS: [&str; 2] = ["edf-ordering-policy", "slo-deadline-ordering-policy"];

impl Resolver<'_, '_> {
    /// The section `flowControl`, with the feature gate on.
    pub(super) fn flow_control(&mut self, raw: &RawFlowControl) -> ResolvedFlowControl {
        let RawFlowControl {
            max_bytes: _,
            max_requests: _,
            default_request_ttl,
            no_endpoint_request_ttl,
            default_priority_band,
            default_negative_priority_band,
            priority_bands,
            usage_limit_policy_plugin_ref,
            saturation_detector,
            enable_eviction,
        } = raw;
        let template = match default_priority_band {
            Some(band) => self.template(band),
            None => self.band(&Located { value: RawPriorityBand::default(), node: Document::ROOT }),
        };
        ResolvedFlowControl {
            bands: self.bands(priority_bands),
            template,
            negative_template: default_negative_priority_band.as_ref().map(|band| self.template(band)),
            global: global_limits(raw),
            saturation_budget: default_request_ttl.map(|ttl| ttl.0),
            no_endpoint_budget: no_endpoint_request_ttl.or(*default_request_ttl).map(|ttl| ttl.0),
            usage_limit: self.choose(usage_limit_policy_plugin_ref.as_ref(), &[STATIC_LIMIT]),
            detector: {
                let reference = saturation_detector.as_ref().and_then(|section| section.value.plugin_ref.as_ref());
                self.choose(reference, &[UTILIZATION])
            },
            evict: enable_eviction.filter(|enable| enable.value).map(|enable| enable.node),
        }
    }

    /// The detector that refuses sheddable requests where there is no flow control: the one that is named, else the declared
    /// plugin that has the name of the default one.
    pub(super) fn legacy_detector(&mut self, section: Option<&Located<RawPluginRef>>) -> Option<Choice> {
        let reference = section.and_then(|section| filled(section.value.plugin_ref.as_ref()));
        let is_known = reference.is_some() || self.names.contains(UTILIZATION);
        is_known.then(|| self.choose(reference, &[UTILIZATION])).flatten()
    }

    fn bands(&mut self, raw: &[Located<RawPriorityBand>]) -> BTreeMap<Priority, ResolvedBand> {
        if raw.len() > MANY_BANDS
            && let Some(node) = self.document.descend(Document::ROOT, &["flowControl", "priorityBands"])
        {
            self.warn(node, too_many_bands(raw.len()));
        }
        let mut bands = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for band in raw {
            let resolved = self.band(band);
            let priority = match band.value.priority {
                Some(priority) => priority,
                None if self.document.child(band.node, "priority").is_none() => Located { value: 0, node: band.node },
                // What it says has been refused already.
                None => continue,
            };
            if !seen.insert(priority.value) {
                self.error(
                    priority.node,
                    Remark::new(format!("there is a band for priority {} already", priority.value)),
                );
            }
            bands.insert(Priority(priority.value), resolved);
        }
        bands
    }

    /// A band that stands for those that are not listed.
    fn template(&mut self, band: &Located<RawPriorityBand>) -> ResolvedBand {
        if let Some(priority) = band.value.priority {
            self.diagnostics.warn(
                self.document.key_place(priority.node),
                Remark::new("has no effect: a template is for every priority that has no band of its own"),
            );
        }
        self.band(band)
    }

    fn band(&mut self, band: &Located<RawPriorityBand>) -> ResolvedBand {
        let RawPriorityBand {
            priority: _,
            max_bytes,
            max_requests,
            fairness_policy_ref,
            ordering_policy_ref,
            request_ttl,
            no_endpoint_request_ttl,
            shed,
        } = &band.value;
        if *shed {
            self.warn_of_queue_settings(band.node);
        } else {
            self.warn_of_zero_limits(&band.value, band.node);
        }
        let ordering = self.choose(ordering_policy_ref.as_ref(), &[FIRST_COME]);
        let fairness: &[_] = if ordering.as_ref().is_some_and(|ordering| self.is_by_deadline(ordering)) {
            &[GLOBAL_STRICT, ROUND_ROBIN]
        } else {
            &[ROUND_ROBIN, GLOBAL_STRICT]
        };
        ResolvedBand {
            max_requests: max_requests.map(|limit| limit.0).filter(|&limit| limit > 0),
            max_bytes: max_bytes.map(|limit| limit.0).filter(|&limit| limit > 0),
            request_ttl: request_ttl.map(|ttl| ttl.0),
            no_endpoint_request_ttl: no_endpoint_request_ttl.map(|ttl| ttl.0),
            shed: *shed,
            ordering,
            fairness: self.choose(fairness_policy_ref.as_ref(), fairness),
        }
    }

    fn warn_of_queue_settings(&mut self, band: NodeId) {
        for key in ["maxRequests", "maxBytes", "requestTTL", "noEndpointRequestTTL", "orderingPolicyRef"] {
            if let Some(setting) = self.document.child(band, key) {
                let message = "has no effect: nothing waits in a band that sheds";
                self.diagnostics.warn(self.document.key_place(setting), Remark::new(message));
            }
        }
    }

    fn warn_of_zero_limits(&mut self, band: &RawPriorityBand, node: NodeId) {
        let limits = [
            ("maxRequests", band.max_requests.is_some_and(|limit| limit.0 == 0)),
            ("maxBytes", band.max_bytes.is_some_and(|limit| limit.0 == 0)),
        ];
        for (key, _) in limits.into_iter().filter(|(_, is_zero)| *is_zero) {
            if let Some(setting) = self.document.child(node, key) {
                let remark = Remark::new("0 stands for the default here");
                self.warn(setting, remark.hint("write shed: true for a band in which nothing waits"));
            }
        }
    }

    /// Warns of an order of victims by deadlines that none of them has.
    pub(super) fn check_victim_order(&mut self, order: VictimOrder, resolved: &ResolvedFlowControl) {
        let ResolvedFlowControl { bands, template, negative_template, evict, .. } = resolved;
        if order != VictimOrder::MostSlack || evict.is_none() {
            return;
        }
        let sheddable = bands.iter().filter(|(priority, _)| priority.0 < 0).map(|(_, band)| band);
        let mut orderings =
            sheddable.chain([negative_template.as_ref().unwrap_or(template)]).map(|band| &band.ordering);
        if !orderings.any(|ordering| ordering.as_ref().is_none_or(|ordering| self.is_by_deadline(ordering))) {
            let place = self.document.place_at(&["sluice", "eviction", "victimOrder"]);
            let remark = Remark::new("has no effect: no band of negative priority is ordered by deadlines");
            self.diagnostics.warn(place, remark.hint("name edf-ordering-policy in its orderingPolicyRef"));
        }
    }

    fn is_by_deadline(&self, ordering: &Choice) -> bool {
        let plugin_type = match ordering {
            Choice::Declared(Located { value, .. }) => self.instances[*value].plugin_type.name(),
            Choice::Default(plugin_type) => plugin_type,
        };
        DEADLINE_ORDERINGS.contains(&plugin_type)
    }

    /// The plugin that `reference` names, or the first of `defaults` if it names none. Those need not be
    /// declared; a declared plugin with the name of one takes its place.
    fn choose(&mut self, reference: Option<&Located<String>>, defaults: &[&'static str]) -> Option<Choice> {
        let reference = filled(reference);
        let name = reference.map_or(defaults[0], |reference| reference.value.as_str());
        match self.names.find(name) {
            Some(Declared::Instance(value)) => {
                let node = reference.map_or(self.instances[value].node, |reference| reference.node);
                Some(Choice::Declared(Located { value, node }))
            }
            Some(Declared::Broken) => None,
            None => match defaults.iter().find(|default| **default == name) {
                Some(default) => Some(Choice::Default(default)),
                None => {
                    self.note_unknown(reference?, defaults);
                    None
                }
            },
        }
    }
}

/// More bands than this are not meant to be: each is looked at whenever a request is let in.
pub(super) const MANY_BANDS: usize = 64;

pub(super) fn too_many_bands(bands: usize) -> Remark {
    let remark =
        Remark::new(format!("{bands} priorities are more than the {MANY_BANDS} bands that flow control is made for"));
    remark.hint("give what is equally urgent the same priority, and tell tenants apart by their fairness ids")
}

/// The limits over all bands together.
pub(super) fn global_limits(raw: &RawFlowControl) -> GlobalLimits {
    GlobalLimits {
        requests: raw.max_requests.map(|limit| limit.0).filter(|&limit| limit > 0),
        bytes: raw.max_bytes.map(|limit| limit.0).filter(|&limit| limit > 0),
    }
}
