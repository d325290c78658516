use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluice_core::Priority;

use crate::policy::{FairnessPolicy, OrderingPolicy, SaturationDetector, UsageLimitPolicy};

/// Everything the engine can be told by configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The bands that exist whether or not they are used.
    pub bands: BTreeMap<Priority, BandConfig>,
    /// What a band is made from that `bands` does not name.
    pub template: BandConfig,
    /// The same for priorities below zero; none means `template`.
    pub negative_template: Option<BandConfig>,
    /// Limits over all bands together.
    pub global: GlobalLimits,
    pub budgets: Budgets,
    pub when_full: WhenFull,
    /// Tenants beyond this many share the flow [`OTHER_TENANT`].
    pub max_flows_per_band: usize,
    pub usage_limit: Arc<dyn UsageLimitPolicy>,
    pub detector: Arc<dyn SaturationDetector>,
    /// None: nothing is ever evicted.
    pub eviction: Option<EvictionConfig>,
    pub dry_run: DryRun,
}

/// The name of the flow that tenants beyond `max_flows_per_band` share.
pub const OTHER_TENANT: &str = "other";

impl Config {
    /// No bands of its own, no global limits, nothing evicted; 60 s in the queue whatever the pool.
    pub fn new(
        template: BandConfig,
        usage_limit: Arc<dyn UsageLimitPolicy>,
        detector: Arc<dyn SaturationDetector>,
    ) -> Self {
        Self {
            bands: BTreeMap::new(),
            template,
            negative_template: None,
            global: GlobalLimits::default(),
            budgets: Budgets { saturation: Duration::from_secs(60), no_endpoint: Duration::from_secs(60) },
            when_full: WhenFull::Reject,
            max_flows_per_band: 1000,
            usage_limit,
            detector,
            eviction: None,
            dry_run: DryRun::default(),
        }
    }

    pub(crate) fn band(&self, priority: Priority) -> &BandConfig {
        let template = || match &self.negative_template {
            Some(negative) if priority.is_sheddable() => negative,
            _ => &self.template,
        };
        self.bands.get(&priority).unwrap_or_else(template)
    }
}

#[derive(Clone, Debug)]
pub struct BandConfig {
    pub max_requests: u64,
    pub max_bytes: u64,
    /// The band's own saturation budget; zero means no bound.
    pub request_ttl: Option<Duration>,
    /// The band's own no-endpoint budget; zero means no bound.
    pub no_endpoint_request_ttl: Option<Duration>,
    /// Admit at once or refuse: nothing ever waits in this band.
    pub shed: bool,
    pub ordering: Arc<dyn OrderingPolicy>,
    pub fairness: Arc<dyn FairnessPolicy>,
}

impl BandConfig {
    /// 5000 requests, 1 GB, the global budgets.
    pub const fn new(ordering: Arc<dyn OrderingPolicy>, fairness: Arc<dyn FairnessPolicy>) -> Self {
        Self {
            max_requests: 5000,
            max_bytes: 1_000_000_000,
            request_ttl: None,
            no_endpoint_request_ttl: None,
            shed: false,
            ordering,
            fairness,
        }
    }

    pub(crate) fn budgets(&self, global: Budgets) -> Budgets {
        Budgets {
            saturation: self.request_ttl.unwrap_or(global.saturation),
            no_endpoint: self.no_endpoint_request_ttl.unwrap_or(global.no_endpoint),
        }
    }
}

/// How long a request may wait, by what it waits for. Zero means no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// While the pool has endpoints.
    pub saturation: Duration,
    /// While it has none.
    pub no_endpoint: Duration,
}

/// None means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalLimits {
    pub requests: Option<u64>,
    pub bytes: Option<u64>,
}

/// What happens to a request for which a global limit has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is refused.
    #[default]
    Reject,
    /// It takes the place of the newest requests of the lowest bands below its own.
    Displace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionConfig {
    pub victim_order: VictimOrder,
    /// How many revoked leases may be outstanding; none means as many as the demand needs.
    pub max_in_flight_revocations: Option<u64>,
    /// After this long a revoked lease no longer holds back the next victim.
    pub confirmation_timeout: Duration,
}

impl Default for EvictionConfig {
    fn default() -> Self {
        Self {
            victim_order: VictimOrder::Newest,
            max_in_flight_revocations: None,
            confirmation_timeout: Duration::from_secs(1),
        }
    }
}

/// Which of several leases of the lowest priority goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimOrder {
    /// The last started.
    #[default]
    Newest,
    /// The one with the latest deadline of its band's ordering; one without a deadline before all.
    MostSlack,
    /// One of which the client has seen nothing, then the one with the fewest response bytes, then the last
    /// started.
    Cheapest,
}

/// Parts of the engine that only count what they would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// Every band is gated at a ceiling of 1 only.
    pub ceilings: bool,
    /// Victims are chosen and counted, not revoked.
    pub eviction: bool,
}

/// The priorities that objectives name.
pub type DesiredPriorities = BTreeSet<Priority>;
