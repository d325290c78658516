use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_core::{Priority, TokenEstimate};
use sluice_flow::policy::SaturationDetector;
use sluice_flow::{BandConfig, Budgets, Config, DesiredPriorities, DryRun, EvictionConfig, VictimOrder, WhenFull};

use super::Assembler;
use crate::FlowControl;
use crate::diagnostics::Remark;
use crate::plugin::Roles;
use crate::resolve::{Choice, Resolved, ResolvedAdmission, ResolvedBand, ResolvedFlowControl, UTILIZATION};
use crate::settings::{self, Settings};

/// The plugin that the reference makes where none is declared.
const DEFAULT_LOAD_PRODUCER: &str = "inflight-load-producer";

impl Assembler<'_, '_> {
    /// What flow control runs on. Without a result there is an error.
    pub(super) fn flow_control(&mut self, resolved: &ResolvedFlowControl, settings: &Settings) -> Option<FlowControl> {
        let ResolvedFlowControl {
            bands,
            template,
            negative_template,
            global,
            saturation_budget,
            no_endpoint_budget,
            usage_limit,
            detector,
            evict,
        } = resolved;
        // Everything is looked at before the first thing that is missing ends it, so that all mistakes show.
        let template = self.band(template);
        let negative_template = negative_template.as_ref().map(|band| self.band(band));
        let bands: Vec<_> = bands.iter().map(|(priority, band)| Some((*priority, self.band(band)?))).collect();
        let usage_limit = self.chosen(usage_limit.as_ref(), "a usage limit policy", |roles| roles.usage_limit.clone());
        let detector = self.detector(detector.as_ref());

        let defaults = Config::new(template?, usage_limit?, detector?);
        let config = Config {
            bands: bands.into_iter().collect::<Option<BTreeMap<_, _>>>()?,
            negative_template: match negative_template {
                Some(band) => Some(band?),
                None => None,
            },
            global: *global,
            budgets: Budgets {
                saturation: saturation_budget.unwrap_or(defaults.budgets.saturation),
                no_endpoint: no_endpoint_budget.unwrap_or(defaults.budgets.no_endpoint),
            },
            when_full: match settings.queue.when_full {
                settings::WhenFull::Reject => WhenFull::Reject,
                settings::WhenFull::Displace => WhenFull::Displace,
            },
            max_flows_per_band: usize::try_from(settings.queue.max_flows_per_band.get()).unwrap_or(usize::MAX),
            eviction: evict.map(|_| eviction(&settings.eviction)),
            dry_run: DryRun {
                ceilings: settings.dry_run.contains(&settings::DryRun::Ceilings),
                eviction: settings.dry_run.contains(&settings::DryRun::Eviction),
            },
            ..defaults
        };
        let desired: DesiredPriorities =
            settings.objectives.iter().map(|objective| Priority(objective.priority)).collect();
        if let Some(node) = evict
            && !config.detector.supports_eviction()
        {
            let detector = self.chosen_name(resolved.detector).unwrap_or_default();
            let remark = Remark::new(format!("has no effect: nobody is evicted for what {detector:?} reports"));
            self.warn(*node, remark.hint("a utilization-detector has to have aggregation: mean"));
        }
        self.warn_of_closed_bands(resolved.usage_limit.as_ref(), &config, &desired);
        Some(FlowControl { config, desired })
    }

    /// The detector that refuses sheddable requests where there is no flow control. The default one does so where
    /// endpoints are scraped anyway; it is no reason to scrape them. To be called when it is known which plugins are in use.
    pub(super) fn sheds_by(&self, resolved: &Resolved<'_>) -> Option<Choice> {
        match resolved.admission {
            ResolvedAdmission::FlowControl(_) => None,
            ResolvedAdmission::Legacy(Some(named)) => Some(named),
            ResolvedAdmission::Legacy(None) => {
                self.is_scraped(&resolved.metrics).then_some(Choice::Default(UTILIZATION))
            }
        }
    }

    pub(super) fn detector(&mut self, choice: Option<&Choice>) -> Option<Arc<dyn SaturationDetector>> {
        self.chosen(choice, "a saturation detector", |roles| roles.detector.clone())
    }

    /// The first declared estimate, else the default one; and the name of the plugin it comes from.
    pub(super) fn token_estimate(&mut self) -> (TokenEstimate, String) {
        let declared = self.having(|roles| roles.token_estimate.is_some());
        let Some((&first, others)) = declared.split_first() else {
            return (TokenEstimate::default(), DEFAULT_LOAD_PRODUCER.to_owned());
        };
        let has_reader = matches!(self.admission, ResolvedAdmission::FlowControl(_))
            || !self.having(|roles| roles.detector.is_some()).is_empty();
        if !has_reader {
            let message = "has no effect: without flow control or a saturation detector nothing counts tokens";
            self.warn(self.instances[first].node, Remark::new(message));
        }
        for &other in others {
            let message = format!("has no effect: tokens are estimated by {:?}", self.instances[first].name);
            self.warn(self.instances[other].node, Remark::new(message));
        }
        let estimate = self.roles[first].as_ref().and_then(|roles| roles.token_estimate).unwrap_or_default();
        (estimate, self.instances[first].name.clone())
    }

    /// Those of every plugin that names some, in the order of declaration.
    pub(super) fn tenant_headers(&self) -> Vec<String> {
        self.roles.iter().flatten().filter_map(|roles| roles.tenant_headers.clone()).flatten().collect()
    }

    fn band(&mut self, band: &ResolvedBand) -> Option<BandConfig> {
        let ResolvedBand { max_requests, max_bytes, request_ttl, no_endpoint_request_ttl, shed, ordering, fairness } =
            band;
        let ordering = self.chosen(ordering.as_ref(), "an ordering policy", |roles| roles.ordering.clone());
        let fairness = self.chosen(fairness.as_ref(), "a fairness policy", |roles| roles.fairness.clone());
        let defaults = BandConfig::new(ordering?, fairness?);
        Some(BandConfig {
            max_requests: max_requests.unwrap_or(defaults.max_requests),
            max_bytes: max_bytes.unwrap_or(defaults.max_bytes),
            request_ttl: *request_ttl,
            no_endpoint_request_ttl: *no_endpoint_request_ttl,
            shed: *shed,
            ..defaults
        })
    }

    fn chosen<T>(&mut self, choice: Option<&Choice>, role: &str, of: impl Fn(&Roles) -> Option<T>) -> Option<T> {
        match *choice? {
            Choice::Declared(reference) => self.role(reference, role, of),
            Choice::Default(plugin_type) => of(&self.inject(plugin_type)?),
        }
    }
}

fn eviction(settings: &settings::Eviction) -> EvictionConfig {
    // How a stream is taken back is not the engine's concern.
    let settings::Eviction { mid_stream: _, victim_order, max_in_flight_revocations, confirmation_timeout } = settings;
    EvictionConfig {
        victim_order: match victim_order {
            settings::VictimOrder::Newest => VictimOrder::Newest,
            settings::VictimOrder::MostSlack => VictimOrder::MostSlack,
            settings::VictimOrder::Cheapest => VictimOrder::Cheapest,
        },
        max_in_flight_revocations: Some(u64::from(*max_in_flight_revocations)).filter(|&limit| limit > 0),
        confirmation_timeout: confirmation_timeout.0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::timeout::Timeout;

    #[test]
    fn eviction_is_planned_as_the_settings_say() {
        assert_eq!(eviction(&settings::Eviction::default()), EvictionConfig::default());
        let settings = settings::Eviction {
            mid_stream: settings::MidStream::Reset,
            victim_order: settings::VictimOrder::Cheapest,
            max_in_flight_revocations: 3,
            confirmation_timeout: Timeout(Duration::from_millis(200)),
        };
        let expected = EvictionConfig {
            victim_order: VictimOrder::Cheapest,
            max_in_flight_revocations: Some(3),
            confirmation_timeout: Duration::from_millis(200),
        };
        assert_eq!(eviction(&settings), expected);
    }
}
