//! Settings that are read and checked but not acted on: by this version, or without flow control.

use crate::diagnostics::{Diagnostics, Remark};
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
            let remark = Remark::new(format!("has no effect: this version has no {lacking} yet"));
            warn_of(setting, remark, document, diagnostics);
        }
    }
    if !flow_control {
        let without_gate = document.descend(Document::ROOT, WITHOUT_GATE);
        let settings = FLOW_CONTROL.iter().flat_map(|path| settings(document, path));
        for setting in settings.filter(|&setting| Some(setting) != without_gate) {
            let remark = Remark::new("has no effect without the feature gate flowControl");
            warn_of(setting, remark, document, diagnostics);
        }
    }
}

/// What is set at `path`: the entries of a mapping, or the value that it is. What is empty sets nothing.
fn settings(document: &Document, path: &[&str]) -> Vec<NodeId> {
    let Some(node) = document.descend(Document::ROOT, path).filter(|&node| !document.is_empty(node)) else {
        return Vec::new();
    };
    let entries: Vec<NodeId> =
        document.entries(node).map(|(_, entry)| entry).filter(|&entry| !document.is_null(entry)).collect();
    if entries.is_empty() { vec![node] } else { entries }
}

fn warn_of(setting: NodeId, remark: Remark, document: &Document, diagnostics: &mut Diagnostics) {
    let place = document.key_place(setting);
    if !diagnostics.has_errors_in(&place.path) {
        diagnostics.warn(place, remark);
    }
}
