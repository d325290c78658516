//! File descriptors: how many the process may have, and how many it can need.

use std::collections::BTreeSet;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_core::Priority;
use sluice_flow::{Config, DesiredPriorities};

/// Requests per connection of a proxy. Envoy opens connections with up to 1,024 streams, 200 in the configurations that
/// come with Sluice; each of its threads has connections of its own.
const STREAMS_PER_CONNECTION: u64 = 100;
/// For everything that does not grow with the number of requests: ports, scrapes, probes, files, connections that are
/// being opened.
const MARGIN: u64 = 256;

/// Raises the limit as far as the process may, since the default of many systems (1,024) is one for programs that call
/// `select`. Returns what it is then; none means no limit.
pub(crate) fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Where it is refused, the old limit stays, and is what counts.
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

/// How many the process can need while `waiting` requests wait: one per connection, not one per request.
pub(crate) const fn needed(waiting: u64) -> u64 {
    waiting.div_ceil(STREAMS_PER_CONNECTION).saturating_add(MARGIN)
}

/// How many requests may wait in the bands that are known at start.
pub(crate) fn most_waiting(config: &Config, desired: &DesiredPriorities) -> u64 {
    // Requests without an objective run at priority 0.
    let mut priorities: BTreeSet<Priority> = config.bands.keys().copied().collect();
    priorities.extend(desired.iter().copied().chain([Priority(0)]));
    let negative = config.negative_template.as_ref();
    let template = |priority: Priority| negative.filter(|_| priority.is_sheddable()).unwrap_or(&config.template);
    let bands = priorities.iter().map(|priority| config.bands.get(priority).unwrap_or_else(|| template(*priority)));
    let waiting = bands.filter(|band| !band.shed).fold(0, |sum: u64, band| sum.saturating_add(band.max_requests));
    config.global.requests.map_or(waiting, |limit| limit.min(waiting))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_flow::BandConfig;
    use sluice_plugins::flow::{ConcurrencyDetector, Fcfs, RoundRobin, StaticUsageLimit};

    use super::*;

    fn band(max_requests: u64) -> BandConfig {
        BandConfig { max_requests, ..BandConfig::new(Arc::new(Fcfs), Arc::new(RoundRobin)) }
    }

    #[test]
    fn every_band_that_is_known_may_be_full() {
        let usage_limit = Arc::new(StaticUsageLimit::default());
        let mut config = Config::new(band(5_000), usage_limit, Arc::new(ConcurrencyDetector::default()));
        assert_eq!(most_waiting(&config, &BTreeSet::new()), 5_000, "the band of priority 0");
        config.bands.insert(Priority(10), band(70));
        config.bands.insert(Priority(20), BandConfig { shed: true, ..band(3_000) });
        config.negative_template = Some(band(200));
        let desired = [Priority(10), Priority(-1), Priority(0)].into();
        assert_eq!(most_waiting(&config, &desired), 5_000 + 70 + 200);
        config.global.requests = Some(300);
        assert_eq!(most_waiting(&config, &desired), 300);
    }

    #[test]
    fn requests_share_connections() {
        assert_eq!(needed(0), 256);
        assert_eq!(needed(1), 257);
        assert_eq!(needed(15_000), 406);
        assert_eq!(needed(u64::MAX), u64::MAX / 100 + 1 + 256);
    }
}
