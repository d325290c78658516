//! From one configuration to the next: what goes on with its state, and what cannot change while the process runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_data::Discovery;
use sluice_flow::policy::SaturationDetector;

use crate::diagnostics::{Diagnostics, Place, Remark};
use crate::document::Document;
use crate::plugin::Built;
use crate::resolve::{Resolved, ResolvedAdmission};

/// What [`reload`](crate::reload) has to know of the configuration in force.
#[derive(Clone, Debug)]
pub struct Previous {
    plugins: BTreeMap<Key, Built>,
    bounded: Option<BoundedGate>,
    fixed: Fixed,
}

/// Name and type.
type Key = (String, &'static str);

/// A detector that filters bound, and what it is made of.
#[derive(Clone, Debug)]
struct BoundedGate {
    gate: Arc<dyn SaturationDetector>,
    filters: Vec<Arc<dyn SaturationDetector>>,
    whole: Arc<dyn SaturationDetector>,
}

/// What stays as it was at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fixed {
    discovery: Option<Discovery>,
    flow_control: bool,
    populate_standbys: bool,
    legacy_names: bool,
}

impl Fixed {
    pub(crate) fn of(resolved: &Resolved<'_>, discovery: Option<&Discovery>) -> Self {
        Self {
            discovery: discovery.cloned(),
            flow_control: matches!(resolved.admission, ResolvedAdmission::FlowControl(_)),
            populate_standbys: resolved.populate_standbys,
            legacy_names: resolved.settings.metrics.legacy_names,
        }
    }
}

impl Previous {
    /// Notes as an error, with its place, everything in which `document`, which leads to `fixed`, differs and that cannot
    /// change.
    pub(crate) fn refuse_changes(
        &self,
        fixed: &Fixed,
        resolved: &Resolved<'_>,
        document: &Document,
        diagnostics: &mut Diagnostics,
    ) {
        let Fixed { discovery, flow_control, populate_standbys, legacy_names } = &self.fixed;
        let mut refuse = |place: Place, what: &str| {
            let remark = Remark::new(format!("{what} cannot change while the process runs"));
            diagnostics.error(place, remark.hint("restart the process, or set it back"));
        };
        if fixed.flow_control != *flow_control {
            refuse(document.place_at(&["featureGates"]), "the feature gate flowControl");
        }
        if fixed.populate_standbys != *populate_standbys {
            refuse(document.place_at(&["featureGates"]), "the feature gate haPopulateNonLeaderDatastore");
        }
        if fixed.discovery != *discovery {
            let plugin = resolved.discovery.map(|reference| resolved.instances[reference.value].node);
            let place = match plugin {
                Some(plugin) => document.place(document.child(plugin, "parameters").unwrap_or(plugin)),
                None => document.place_at(&["dataLayer", "discovery"]),
            };
            refuse(place, "the source of the endpoints");
        }
        if fixed.legacy_names != *legacy_names {
            refuse(document.place_at(&["sluice", "metrics", "legacyNames"]), "the names of the metrics");
        }
    }
}

/// The plugins of a configuration, declared or filled in, as they are built.
#[derive(Debug)]
pub(crate) struct Plugins<'a> {
    previous: Option<&'a Previous>,
    plugins: BTreeMap<Key, Built>,
    bounded: Option<BoundedGate>,
}

impl<'a> Plugins<'a> {
    pub(crate) const fn after(previous: Option<&'a Previous>) -> Self {
        Self { previous, plugins: BTreeMap::new(), bounded: None }
    }

    pub(crate) fn into_previous(self, fixed: Fixed) -> Previous {
        let Self { previous: _, plugins, bounded } = self;
        Previous { plugins, bounded, fixed }
    }

    /// The plugin that goes on where one of this name and type is `built`: an earlier one if its parameters were the same.
    pub(crate) fn keep(&mut self, name: &str, plugin_type: &'static str, built: Built) -> Built {
        let key = (name.to_owned(), plugin_type);
        let before = self.previous.and_then(|previous| previous.plugins.get(&key));
        let same = before.filter(|before| before.parameters == built.parameters);
        let kept = same.cloned().unwrap_or(built);
        self.plugins.insert(key, kept.clone());
        kept
    }

    /// `gate` bound by `filters`: the same detector as before if it is made of the same ones.
    pub(crate) fn bound(
        &mut self,
        gate: Arc<dyn SaturationDetector>,
        filters: Vec<Arc<dyn SaturationDetector>>,
        bind: impl FnOnce(Arc<dyn SaturationDetector>, Vec<Arc<dyn SaturationDetector>>) -> Arc<dyn SaturationDetector>,
    ) -> Arc<dyn SaturationDetector> {
        let is_same = |before: &&BoundedGate| {
            Arc::ptr_eq(&before.gate, &gate)
                && before.filters.len() == filters.len()
                && before.filters.iter().zip(&filters).all(|(before, now)| Arc::ptr_eq(before, now))
        };
        let before = self.previous.and_then(|previous| previous.bounded.as_ref()).filter(is_same);
        let whole = match before {
            Some(before) => Arc::clone(&before.whole),
            None => bind(Arc::clone(&gate), filters.clone()),
        };
        self.bounded = Some(BoundedGate { gate, filters, whole: Arc::clone(&whole) });
        whole
    }
}
