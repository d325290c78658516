//! Settings that are read and checked but not acted on: by this version, or without flow control.

use crate::diagnostics::Diagnostics;
use crate::document::{Document, NodeId};

/// A setting, and what this version lacks to act on it. Of a mapping, each entry is such a setting.
const INEFFECTIVE: &[(&[&str], &str)] = &[
    (&["dataLayer", "peerDiscovery"], "peer discovery"),
    (&["dataLayer", "crossReplicaSyncInterval"], "synchronisation between replicas"),
];

/// What only flow control acts on, except [`WITHOUT_GATE`].
const FLOW_CONTROL: &[&[&str]] =
    &[&["flowControl"], &["sluice", "dryRun"], &["sluice", "queue"], &["sluice", "eviction"]];
const WITHOUT_GATE: &[&str] = &["flowControl", "saturationDetector"];

/// Warns of every setting in `document` that has no effect, unless there is a mistake in it to mend first.
/// `flow_control`: the feature gate is on.
pub(super) fn warn(document: &Document, flow_control: bool, diagnostics: &mut Diagnostics) {
    for (path, lacking) in INEFFECTIVE {
        for setting in settings(document, path) {
            warn_of(setting, &format!("has no effect: this version has no {lacking} yet"), document, diagnostics);
        }
    }
    if !flow_control {
        let without_gate = document.descend(Document::ROOT, WITHOUT_GATE);
        let settings = FLOW_CONTROL.iter().flat_map(|path| settings(document, path));
        for setting in settings.filter(|&setting| Some(setting) != without_gate) {
            warn_of(setting, "has no effect without the feature gate flowControl", document, diagnostics);
        }
    }
}

/// The entries of what is at `path`, or itself if it has none.
fn settings(document: &Document, path: &[&str]) -> Vec<NodeId> {
    let Some(node) = document.descend(Document::ROOT, path) else { return Vec::new() };
    let entries: Vec<NodeId> =
        document.entries(node).map(|(_, entry)| entry).filter(|&entry| !document.is_null(entry)).collect();
    if entries.is_empty() { vec![node] } else { entries }
}

fn warn_of(setting: NodeId, message: &str, document: &Document, diagnostics: &mut Diagnostics) {
    let place = document.key_place(setting);
    if !diagnostics.has_errors_in(&place.path) {
        diagnostics.warn(place, message);
    }
}
