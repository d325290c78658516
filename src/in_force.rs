//! Which configuration is in force, for whoever asks: a page, and series.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest;
use prometheus::{Gauge, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use serde_json::{Value, json};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime as _;

/// The configuration in force, and what became of attempts to replace it. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct InForce {
    state: Arc<Mutex<State>>,
    metrics: Metrics,
}

#[derive(Debug)]
struct State {
    /// Where the configuration comes from.
    source: String,
    is_followed: bool,
    current: Current,
    /// The last attempt that came to nothing.
    refused: Option<Refused>,
}

#[derive(Debug)]
struct Current {
    sha256: String,
    since: String,
    warnings: Vec<String>,
    effective: Value,
}

#[derive(Debug)]
struct Refused {
    at: String,
    /// None if nothing could be read.
    sha256: Option<String>,
    diagnostics: Vec<String>,
}

/// A configuration that is to be shown as the one in force.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) sha256: String,
    pub(crate) warnings: Vec<String>,
    /// With everything filled in.
    pub(crate) effective: Value,
}

#[derive(Clone, Debug)]
struct Metrics {
    reloads: IntCounterVec,
    failing: IntGauge,
    info: IntGaugeVec,
    since: Gauge,
}

/// How an attempt to put another configuration in force ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Applied,
    Refused,
    Unreadable,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Applied, Self::Refused, Self::Unreadable];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
        }
    }
}

impl InForce {
    /// `source` tells where the configuration comes from, `is_followed` whether it can change.
    pub(crate) fn register(
        registry: &Registry,
        source: &str,
        is_followed: bool,
        shown: Shown,
    ) -> Result<Self, prometheus::Error> {
        let metrics = Metrics::register(registry)?;
        let current = metrics.show(shown);
        let state = State { source: source.to_owned(), is_followed, current, refused: None };
        Ok(Self { state: Arc::new(Mutex::new(state)), metrics })
    }

    /// Another configuration is in force; `is_followed` as before.
    pub(crate) fn applied(&self, is_followed: bool, shown: Shown) {
        let mut state = self.lock();
        state.current = self.metrics.show(shown);
        state.is_followed = is_followed;
        self.metrics.count(Outcome::Applied);
    }

    /// A configuration was no good.
    pub(crate) fn refused(&self, sha256: String, diagnostics: Vec<String>) {
        self.lock().refused = Some(Refused { at: written(), sha256: Some(sha256), diagnostics });
        self.metrics.count(Outcome::Refused);
    }

    /// There was no configuration to be read.
    pub(crate) fn unreadable(&self, error: String) {
        self.lock().refused = Some(Refused { at: written(), sha256: None, diagnostics: vec![error] });
        self.metrics.count(Outcome::Unreadable);
    }

    /// What can be read is what is in force.
    pub(crate) fn as_before(&self) {
        self.metrics.failing.set(0);
    }

    /// The page, in JSON.
    pub(crate) fn page(&self) -> String {
        let State { source, is_followed, current, refused } = &*self.lock();
        let Current { sha256, since, warnings, effective } = current;
        let refused = refused
            .as_ref()
            .map(|Refused { at, sha256, diagnostics }| json!({"at": at, "sha256": sha256, "diagnostics": diagnostics}));
        let page = json!({
            "source": source,
            "sha256": sha256,
            "inForceSince": since,
            "followed": is_followed,
            "failing": self.metrics.failing.get() != 0,
            "lastRefused": refused,
            "warnings": warnings,
            "config": effective,
        });
        format!("{page:#}\n")
    }

    /// With everything filled in.
    pub(crate) fn effective(&self) -> Value {
        self.lock().current.effective.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let reloads = Opts::new("llm_d_epp_config_reload_total", "attempts to put a changed configuration in force");
        let reloads = IntCounterVec::new(reloads, &["outcome"])?;
        for outcome in Outcome::ALL {
            reloads.with_label_values(&[outcome.as_str()]);
        }
        let failing = "1 while the configuration file is no good and the last good one is in force";
        let info =
            Opts::new("llm_d_epp_config_info", "always 1; the label is the SHA-256 of the configuration in force");
        let metrics = Self {
            reloads,
            failing: IntGauge::new("llm_d_epp_config_reload_failing", failing)?,
            info: IntGaugeVec::new(info, &["sha256"])?,
            since: Gauge::new(
                "llm_d_epp_config_in_force_since_timestamp_seconds",
                "when the configuration in force was put in force, in seconds since 1970",
            )?,
        };
        registry.register(Box::new(metrics.reloads.clone()))?;
        registry.register(Box::new(metrics.failing.clone()))?;
        registry.register(Box::new(metrics.info.clone()))?;
        registry.register(Box::new(metrics.since.clone()))?;
        Ok(metrics)
    }

    fn count(&self, outcome: Outcome) {
        self.reloads.with_label_values(&[outcome.as_str()]).inc();
        self.failing.set(i64::from(outcome != Outcome::Applied));
    }

    fn show(&self, shown: Shown) -> Current {
        let Shown { sha256, warnings, effective } = shown;
        self.info.reset();
        self.info.with_label_values(&[&sha256]).set(1);
        self.since.set(since_1970().as_secs_f64());
        Current { sha256, since: written(), warnings, effective }
    }
}

/// As `sha256sum` prints it.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a string cannot fail.
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}

/// The present time as log lines have it.
pub(crate) fn written() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    tracing_subscriber::fmt::time::SystemTime.format_time(&mut Writer::new(&mut text)).unwrap_or_default();
    text
}

#[expect(
    clippy::disallowed_methods,
    reason = "shown to people and alerts, who have other clocks; nothing depends on it"
)]
fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    fn shown(text: &str) -> Shown {
        Shown { sha256: sha256(text.as_bytes()), warnings: vec![], effective: json!({"kind": text}) }
    }

    fn in_force() -> (Registry, InForce) {
        let registry = Registry::new();
        let in_force = InForce::register(&registry, "c.yaml", true, shown("first")).unwrap();
        (registry, in_force)
    }

    fn page(in_force: &InForce) -> Value {
        serde_json::from_str(&in_force.page()).unwrap()
    }

    #[test]
    fn the_page_shows_what_is_in_force_and_what_was_refused_last() {
        let (_registry, in_force) = in_force();
        let page_at_start = page(&in_force);
        assert_eq!((&page_at_start["source"], &page_at_start["config"]["kind"]), (&json!("c.yaml"), &json!("first")));
        assert_eq!((&page_at_start["failing"], &page_at_start["lastRefused"]), (&json!(false), &Value::Null));

        in_force.refused(sha256(b"bad"), vec!["c.yaml:1:1: bad".to_owned()]);
        let page_after = page(&in_force);
        assert_eq!(page_after["config"]["kind"], "first");
        assert_eq!(page_after["failing"], true);
        assert_eq!(page_after["lastRefused"]["diagnostics"][0], "c.yaml:1:1: bad");
        assert_eq!(page_after["lastRefused"]["sha256"], sha256(b"bad"));

        in_force.applied(false, shown("second"));
        let page_after = page(&in_force);
        assert_eq!(
            (&page_after["config"]["kind"], &page_after["sha256"]),
            (&json!("second"), &json!(sha256(b"second")))
        );
        assert_eq!((&page_after["failing"], &page_after["followed"]), (&json!(false), &json!(false)));
        assert!(!page_after["lastRefused"].is_null(), "with its time");
        in_force.unreadable("gone".to_owned());
        assert_eq!(page(&in_force)["lastRefused"]["sha256"], Value::Null);
        in_force.as_before();
        assert_eq!(page(&in_force)["failing"], false);
    }

    #[test]
    fn series_tell_how_attempts_ended_and_name_one_configuration() {
        let (registry, in_force) = in_force();
        in_force.refused(String::new(), vec![]);
        in_force.unreadable(String::new());
        in_force.applied(true, shown("second"));
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for outcome in Outcome::ALL {
            let line = format!("llm_d_epp_config_reload_total{{outcome=\"{}\"}} 1\n", outcome.as_str());
            assert!(text.contains(&line), "{text}");
        }
        assert_eq!(text.matches("llm_d_epp_config_info{").count(), 1, "{text}");
        assert!(text.contains(&format!("llm_d_epp_config_info{{sha256=\"{}\"}} 1\n", sha256(b"second"))), "{text}");
        assert!(text.contains("llm_d_epp_config_reload_failing 0\n"), "{text}");
    }

    #[test]
    fn the_hash_is_that_of_sha256sum() {
        assert_eq!(sha256(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
