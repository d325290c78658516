use sluice_core::nearest;

use crate::diagnostics::{Diagnostics, Remark};
use crate::document::{Document, Located};

/// Functions that a configuration switches on or off by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Queues, fairness, ceilings, eviction. Off by default.
    FlowControl,
    /// Replicas that do not lead keep up with the cluster too. On by default.
    HaPopulateNonLeaderDatastore,
    /// Once had a meaning.
    Retired,
}

const GATES: [(&str, Gate); 5] = [
    ("flowControl", Gate::FlowControl),
    ("haPopulateNonLeaderDatastore", Gate::HaPopulateNonLeaderDatastore),
    ("dataLayer", Gate::Retired),
    ("enableLegacyMetrics", Gate::Retired),
    ("prepareDataPlugins", Gate::Retired),
];

/// What is switched on, of what makes a difference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gates {
    pub(super) flow_control: bool,
    pub(super) populate_standbys: bool,
}

/// Reads the items of `featureGates`: `name`, `name=true` or `name=false`; of a repeated name the last item
/// counts.
pub(super) fn read(items: &[Located<String>], document: &Document, diagnostics: &mut Diagnostics) -> Gates {
    let (mut flow_control, mut populate_standbys) = (false, true);
    for item in items {
        let mut parts = item.value.splitn(3, '=');
        let name = parts.next().unwrap_or_default();
        let enabled = match parts.next() {
            None => Some(true),
            Some(value) => go_bool(value.trim()),
        };
        let place = document.place(item.node);
        if let Some(rest) = parts.next() {
            diagnostics.warn(place.clone(), Remark::new(format!("{rest:?}, behind the second =, has no effect")));
        }
        let Some(&(_, gate)) = GATES.iter().find(|(known, _)| *known == name) else {
            let current = GATES.iter().filter(|(_, gate)| *gate != Gate::Retired).map(|(known, _)| *known);
            let remark = Remark::new(format!("unknown feature gate {name:?}"));
            let remark = match nearest(name, current.clone()) {
                Some(suggestion) => remark.suggest(suggestion),
                None => remark.hint(format!("the gates are {}", current.collect::<Vec<_>>().join(", "))),
            };
            diagnostics.error(place, remark);
            continue;
        };
        let Some(enabled) = enabled else {
            diagnostics
                .error(place, Remark::new(format!("the value of feature gate {:?} must be true or false", item.value)));
            continue;
        };
        match gate {
            Gate::FlowControl => flow_control = enabled,
            Gate::HaPopulateNonLeaderDatastore => populate_standbys = enabled,
            Gate::Retired => {
                diagnostics.warn(place, Remark::new(format!("the feature gate {name:?} is retired")).hint("remove it"));
            }
        }
    }
    Gates { flow_control, populate_standbys }
}

/// A truth value in the notation of Go, in any case.
fn go_bool(text: &str) -> Option<bool> {
    match text.to_lowercase().as_str() {
        "1" | "t" | "true" => Some(true),
        "0" | "f" | "false" => Some(false),
        _ => None,
    }
}
