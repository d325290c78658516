use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::flags::Flags;

/// They say of every request that fails, and of every answer that is not understood, what we say once, and with the body
/// of the answer.
const TOO_TALKATIVE: [&str; 2] = ["kube_client::client", "kube_runtime::watcher"];
/// A part of the first that says something else: which certificates are not read.
const KUBE_TLS: &str = "kube_client::client::tls";

/// Sends JSON lines to stderr, as much as the flags ask for. Other crates are heard only when something is wrong,
/// or when everything is asked for.
pub(crate) fn start(flags: &Flags) {
    let targets = targets(level(flags.verbosity, flags.zap_log_level.as_deref()));
    let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(targets).with(lines).init();
}

/// Who is heard, and how much of them.
fn targets(level: LevelFilter) -> Targets {
    let others = if level == LevelFilter::TRACE { LevelFilter::DEBUG } else { LevelFilter::WARN };
    let targets = Targets::new().with_default(others).with_target("epp", level).with_target("sluice", level);
    if level == LevelFilter::TRACE {
        return targets;
    }
    let silenced = TOO_TALKATIVE.map(|target| (target, LevelFilter::OFF));
    targets.with_targets(silenced).with_target(KUBE_TLS, others)
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
    use tracing::Level;

    use super::*;

    #[test]
    fn answers_of_the_api_server_are_shown_by_nobody_unless_everything_is_asked_for() {
        let talkative = ["kube_client::client", "kube_client::client::builder", "kube_runtime::watcher"];
        for level in [LevelFilter::ERROR, LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG] {
            let targets = targets(level);
            assert!(talkative.iter().all(|target| !targets.would_enable(target, &Level::ERROR)), "{level}");
            for target in ["kube_client::client::tls", "kube_client::config", "kube_runtime", "hyper", "epp"] {
                assert!(targets.would_enable(target, &Level::ERROR), "{level} {target}");
            }
            assert_eq!(targets.would_enable("sluice_kube::watch", &Level::INFO), level >= LevelFilter::INFO, "{level}");
            assert!(!targets.would_enable("hyper", &Level::INFO), "{level}");
        }
        let everything = targets(LevelFilter::TRACE);
        assert!(talkative.iter().all(|target| everything.would_enable(target, &Level::DEBUG)));
    }

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
