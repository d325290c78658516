use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::flags::Flags;

const KUBE_REQUESTS: &str = "kube_client::client::builder";
const KUBE_WATCHES: &str = "kube_runtime::watcher";

/// Sends JSON lines to stderr, as much as the flags ask for. Other crates are heard only when something is wrong,
/// or when everything is asked for.
pub(crate) fn start(flags: &Flags) {
    let level = level(flags.verbosity, flags.zap_log_level.as_deref());
    let others = if level == LevelFilter::TRACE { LevelFilter::DEBUG } else { LevelFilter::WARN };
    let mut targets = Targets::new().with_default(others).with_target("epp", level).with_target("sluice", level);
    if level != LevelFilter::TRACE {
        // They say of every request that fails what we say once, and with the body of the answer.
        targets = targets.with_targets([KUBE_REQUESTS, KUBE_WATCHES].map(|target| (target, LevelFilter::OFF)));
    }
    let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(targets).with(lines).init();
}

fn level(verbosity: i32, name: Option<&str>) -> LevelFilter {
    name.and_then(named).unwrap_or_else(|| by_verbosity(verbosity))
}

/// Whether `name` is the name of a level or a verbosity.
pub(crate) fn is_level(name: &str) -> bool {
    named(name).is_some()
}

/// What a level's name or a verbosity stands for.
fn named(name: &str) -> Option<LevelFilter> {
    match name.to_ascii_lowercase().as_str() {
        "error" | "dpanic" | "panic" | "fatal" => Some(LevelFilter::ERROR),
        "warn" => Some(LevelFilter::WARN),
        "info" => Some(LevelFilter::INFO),
        "debug" => Some(LevelFilter::DEBUG),
        "trace" => Some(LevelFilter::TRACE),
        number => number.parse().ok().map(by_verbosity),
    }
}

/// A negative verbosity counts as the default.
const fn by_verbosity(verbosity: i32) -> LevelFilter {
    match verbosity {
        ..=3 => LevelFilter::INFO,
        4 => LevelFilter::DEBUG,
        5.. => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_wins_over_the_verbosity() {
        for (verbosity, name, expected) in [
            (2, None, LevelFilter::INFO),
            (-1, None, LevelFilter::INFO),
            (4, None, LevelFilter::DEBUG),
            (9, None, LevelFilter::TRACE),
            (2, Some("DEBUG"), LevelFilter::DEBUG),
            (5, Some("error"), LevelFilter::ERROR),
            (2, Some("5"), LevelFilter::TRACE),
            (4, Some("nonsense"), LevelFilter::DEBUG),
        ] {
            assert_eq!(level(verbosity, name), expected, "{verbosity} {name:?}");
        }
    }
}
