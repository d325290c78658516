use std::sync::Arc;
use std::time::Duration;

use sluice_core::Endpoint;

use crate::config::{Config, DesiredPriorities};
use crate::load::{EndpointKey, Stages};

/// News from outside.
#[derive(Debug)]
pub enum Signal {
    /// The whole pool as it is now. A key that was gone and comes back brings what is still booked under it.
    Pool(Vec<PoolMember>),
    /// The priorities that objectives name now.
    Desired(DesiredPriorities),
    /// Another configuration, and the priorities that objectives name with it; none if those stay as they are. Smaller
    /// limits drop nobody.
    Reload { config: Box<Config>, desired: Option<DesiredPriorities> },
    /// This process takes over from another one, whose requests may still run. What endpoints say is `stale` after so long;
    /// for twice that time an endpoint weighs the larger of what is booked on it and what it says that it runs and has
    /// waiting, unless saturation goes by what endpoints say anyway.
    Inherit { stale: Duration },
    /// Admission closes: waiting requests end at once and new ones are refused; started ones go on.
    Drain,
    /// As [`Signal::Drain`], and every started request is revoked.
    Shutdown,
}

/// An endpoint of the present pool.
#[derive(Clone, Debug)]
pub struct PoolMember {
    pub key: EndpointKey,
    pub endpoint: Arc<Endpoint>,
    pub stages: Stages,
    /// The endpoint's own limit on concurrent requests, in place of the detector's.
    pub max_concurrency: Option<u64>,
}
