//! Where the metrics of each endpoint are, as the configuration says it.

use std::path::PathBuf;
use std::time::Duration;

use http::uri::PathAndQuery;

/// No endpoint is scraped more often than this by schedule.
pub const MIN_SCRAPE_INTERVAL: Duration = Duration::from_millis(50);

/// A page of metrics that every endpoint serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsSource {
    pub transport: Transport,
    pub path: MetricsPath,
    /// Its port on every endpoint; none: the one that requests go to.
    pub port: Option<u16>,
    /// How often it is read; none: as the process does by default.
    pub interval: Option<Duration>,
}

/// A path in a URL, with a query or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsPath(pub(super) PathAndQuery);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    Http,
    Https(HttpsOptions),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpsOptions {
    pub verify: Verify,
    /// How this process proves who it is, if it does.
    pub client: Option<ClientPair>,
}

/// Whose certificates are believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    Anybody,
    /// The authorities that the machine trusts.
    System,
    /// The authorities in this file, in PEM.
    Authorities(PathBuf),
}

/// Files in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl MetricsSource {
    /// It is the same page, however often it is read.
    pub(super) fn is_same_page(&self, other: &Self) -> bool {
        let Self { transport, path, port, interval: _ } = self;
        *transport == other.transport && *path == other.path && *port == other.port
    }

    /// How often it is read where `default` is how often the process reads by default: what it asks for, as a multiple of
    /// the smaller of the two, and never more often than [`MIN_SCRAPE_INTERVAL`].
    pub fn interval(&self, default: Duration) -> Duration {
        let wanted = self.interval.unwrap_or(default);
        let tick = default.min(wanted).max(MIN_SCRAPE_INTERVAL);
        let (wanted, nanos) = (wanted.as_nanos(), tick.as_nanos());
        let ticks = ((wanted + nanos / 2) / nanos).max(1);
        tick.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
    }
}

impl MetricsPath {
    /// The error says what is wrong with `path`.
    pub fn parse(path: &str) -> Result<Self, String> {
        if !path.starts_with('/') {
            return Err(format!("{path:?} does not start with a slash"));
        }
        // Without this the rest would be left out in silence.
        if path.contains('#') {
            return Err(format!("{path:?} has a fragment, which is never sent: leave it out"));
        }
        path.parse().map(Self).map_err(|error| format!("{path:?} is not the path of a URL: {error}"))
    }
}

impl Default for MetricsPath {
    fn default() -> Self {
        Self(PathAndQuery::from_static("/metrics"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(wanted: Option<u64>, default: u64) -> u128 {
        let source = MetricsSource {
            transport: Transport::Http,
            path: MetricsPath::default(),
            port: None,
            interval: wanted.map(Duration::from_millis),
        };
        source.interval(Duration::from_millis(default)).as_millis()
    }

    #[test]
    fn an_interval_is_a_multiple_of_the_smaller_one_and_never_below_the_floor() {
        assert_eq!(interval(None, 50), 50);
        assert_eq!(interval(None, 10), 50);
        assert_eq!(interval(Some(200), 50), 200);
        assert_eq!(interval(Some(220), 50), 200);
        assert_eq!(interval(Some(230), 50), 250);
        assert_eq!(interval(Some(60), 50), 50);
        assert_eq!(interval(Some(10), 50), 50);
        assert_eq!(interval(Some(100), 1_000), 100, "the smaller one sets the pace");
        assert_eq!(interval(Some(1_400), 1_000), 1_000);
    }

    #[test]
    fn a_path_is_that_of_a_url() {
        for good in ["/", "/metrics", "/metrics?name=vllm"] {
            assert_eq!(MetricsPath::parse(good).unwrap().0.as_str(), good);
        }
        for bad in ["", "metrics", "/a b", "/\u{7f}", "/a#", "/metrics#frag", "http://a/metrics"] {
            assert!(MetricsPath::parse(bad).unwrap_err().contains(&format!("{bad:?}")), "{bad:?}");
        }
    }
}
