//! Settings that are read and checked but that this version does not act on.

use crate::diagnostics::Diagnostics;
use crate::document::Document;

/// A setting, and what this version lacks to act on it. Of a mapping, each entry is such a setting.
const INEFFECTIVE: &[(&[&str], &str)] = &[
    (&["dataLayer", "injectDefaults"], "metrics scraping"),
    (&["dataLayer", "peerDiscovery"], "peer discovery"),
    (&["dataLayer", "crossReplicaSyncInterval"], "synchronisation between replicas"),
    (&["flowControl"], "flow control"),
    (&["saturationDetector"], "flow control"),
    (&["sluice", "objectives"], "request priorities"),
    (&["sluice", "modelRewrites"], "model rewriting"),
    (&["sluice", "defaultObjective"], "request priorities"),
    (&["sluice", "unknownObjective"], "request priorities"),
    (&["sluice", "trust"], "request priorities"),
    (&["sluice", "headerOnly"], "admission"),
    (&["sluice", "bodies"], "choice of body mode"),
    (&["sluice", "dryRun"], "flow control"),
    (&["sluice", "queue"], "flow control"),
    (&["sluice", "eviction"], "eviction"),
    (&["sluice", "refusals", "retryAfter"], "estimate of when to come back"),
    (&["sluice", "limits", "bodyProgressTimeout"], "time limit on bodies"),
    (&["sluice", "limits", "bodyMemory"], "account of body memory"),
    (&["sluice", "reload"], "reload of the configuration"),
    (&["sluice", "drain"], "queues to drain"),
    (&["sluice", "metrics", "maxTenants"], "metrics by tenant"),
];

/// Warns of every setting in `document` that has no effect, unless there is a mistake in it to mend first.
pub(crate) fn warn(document: &Document, diagnostics: &mut Diagnostics) {
    for (path, lacking) in INEFFECTIVE {
        let Some(node) = document.descend(Document::ROOT, path) else { continue };
        let entries: Vec<_> =
            document.entries(node).map(|(_, entry)| entry).filter(|&entry| !document.is_null(entry)).collect();
        for setting in if entries.is_empty() { vec![node] } else { entries } {
            let place = document.key_place(setting);
            if !diagnostics.has_errors_in(&place.path) {
                diagnostics.warn(place, format!("has no effect: this version has no {lacking} yet"));
            }
        }
    }
}
