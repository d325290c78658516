//! Binds names to what they name, fills in what the text leaves out, and says what of it has no effect.
//! Nothing is built yet.

mod data_layer;
mod feature_gates;
mod flow_control;
mod ineffective;
mod names;
mod plugins;
mod references;
mod sluice;

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_core::Priority;
use sluice_flow::GlobalLimits;

use crate::diagnostics::{Diagnostics, Remark};
use crate::document::{Document, Located, NodeId};
use crate::plugin::PluginType;
use crate::raw::RawConfig;
use crate::settings::Settings;
use crate::weight::Weight;

pub(crate) use flow_control::UTILIZATION;
use names::Names;

/// The configuration with names bound to what they name.
#[derive(Debug)]
pub(crate) struct Resolved<'r> {
    /// In the order they are declared.
    pub(crate) instances: Vec<Instance<'r>>,
    /// There is an instance for every declaration.
    pub(crate) all_usable: bool,
    /// As written; empty if the default one is wanted.
    pub(crate) profiles: Vec<ResolvedProfile>,
    /// An index into `instances`.
    pub(crate) discovery: Option<Located<usize>>,
    pub(crate) metrics: ResolvedMetrics,
    /// In the order in which they are asked.
    pub(crate) parsers: Vec<Located<Choice>>,
    pub(crate) admission: ResolvedAdmission,
    /// Replicas that do not lead keep up with the cluster, too.
    pub(crate) populate_standbys: bool,
    pub(crate) settings: Settings,
}

/// A plugin that is to be built.
#[derive(Debug)]
pub(crate) struct Instance<'r> {
    pub(crate) name: String,
    pub(crate) plugin_type: &'r PluginType,
    pub(crate) node: NodeId,
}

impl Instance<'_> {
    /// What to say if it is referenced as something it is not.
    pub(crate) fn is_not(&self, role: &str) -> Remark {
        Remark::new(format!("the plugin {:?} of type {:?} is not {role}", self.name, self.plugin_type.name()))
    }
}

#[derive(Debug)]
pub(crate) struct ResolvedProfile {
    pub(crate) name: String,
    pub(crate) entries: Vec<ProfileEntry>,
    pub(crate) node: NodeId,
}

/// A plugin's part in a profile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProfileEntry {
    /// An index into the instances.
    pub(crate) instance: usize,
    pub(crate) weight: Option<Located<Weight>>,
    pub(crate) node: NodeId,
}

/// Where metrics of endpoints come from.
#[derive(Debug)]
pub(crate) struct ResolvedMetrics {
    /// Whether there is a default for what `sources` lacks.
    pub(crate) inject_defaults: bool,
    /// As written.
    pub(crate) sources: Vec<ResolvedSource>,
}

/// Indices into the instances.
#[derive(Debug)]
pub(crate) struct ResolvedSource {
    pub(crate) source: Located<usize>,
    pub(crate) extractors: Vec<Located<usize>>,
}

/// Who decides when a request may enter the pool.
#[derive(Debug)]
pub(crate) enum ResolvedAdmission {
    FlowControl(Box<ResolvedFlowControl>),
    /// Nobody, but what is sheddable is refused while this detector reports saturation, or the default one if none is
    /// known and endpoints are scraped.
    Legacy(Option<Choice>),
}

/// Limits of 0 and what is left out are none.
#[derive(Debug)]
pub(crate) struct ResolvedFlowControl {
    pub(crate) bands: BTreeMap<Priority, ResolvedBand>,
    pub(crate) template: ResolvedBand,
    pub(crate) negative_template: Option<ResolvedBand>,
    pub(crate) global: GlobalLimits,
    pub(crate) saturation_budget: Option<Duration>,
    pub(crate) no_endpoint_budget: Option<Duration>,
    pub(crate) usage_limit: Option<Choice>,
    pub(crate) detector: Option<Choice>,
    /// Where eviction is switched on.
    pub(crate) evict: Option<NodeId>,
}

#[derive(Debug)]
pub(crate) struct ResolvedBand {
    pub(crate) max_requests: Option<u64>,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) request_ttl: Option<Duration>,
    pub(crate) no_endpoint_request_ttl: Option<Duration>,
    pub(crate) shed: bool,
    pub(crate) ordering: Option<Choice>,
    pub(crate) fairness: Option<Choice>,
}

/// The plugin that fills a place; where there is none, an error has been noted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    /// An index into the instances.
    Declared(Located<usize>),
    /// One of this type that nobody has declared.
    Default(&'static str),
}

/// Binds what `document` says. Mistakes are noted; what they leave is returned, so that the next step can
/// find those of its own.
pub(crate) fn resolve<'r>(
    document: &Document,
    registry: &'r [PluginType],
    diagnostics: &mut Diagnostics,
) -> Option<Resolved<'r>> {
    let mut raw: RawConfig = document.decode(Document::ROOT, diagnostics)?;
    let names = Names::new(!diagnostics.has_errors_in("plugins"));
    let mut resolver = Resolver { document, diagnostics, registry, names, instances: Vec::new() };
    resolver.move_deprecated(&mut raw);
    let RawConfig {
        api_version,
        kind,
        feature_gates,
        plugins,
        scheduling_profiles,
        data_layer,
        flow_control,
        request_handler,
        saturation_detector: _,
        parser: _,
        sluice,
    } = raw;

    resolver.check_kind(api_version.as_ref(), kind.as_ref());
    let gates = feature_gates::read(&feature_gates, document, resolver.diagnostics);
    ineffective::warn(document, gates.flow_control, resolver.diagnostics);
    let settings = resolver.settings(sluice, gates.flow_control.then_some(&flow_control));
    resolver.declare(&plugins);
    let profiles = resolver.profiles(&scheduling_profiles);
    let discovery = resolver.discovery(&data_layer);
    let metrics = resolver.metrics(&data_layer);
    let parsers = resolver.parsers(&request_handler);
    let admission = if gates.flow_control {
        let resolved = resolver.flow_control(&flow_control);
        resolver.check_victim_order(settings.eviction.victim_order, &resolved);
        ResolvedAdmission::FlowControl(Box::new(resolved))
    } else {
        ResolvedAdmission::Legacy(resolver.legacy_detector(flow_control.saturation_detector.as_ref()))
    };

    let Resolver { names, instances, .. } = resolver;
    Some(Resolved {
        all_usable: names.all_usable(),
        instances,
        profiles,
        discovery,
        metrics,
        parsers,
        admission,
        populate_standbys: gates.populate_standbys,
        settings,
    })
}

pub(crate) const KIND: &str = "EndpointPickerConfig";
pub(crate) const API_VERSION: &str = "llm-d.ai/v1alpha1";
const OLD_API_VERSION: &str = "inference.networking.x-k8s.io/v1alpha1";

/// What the parts of this step share.
struct Resolver<'a, 'r> {
    document: &'a Document,
    diagnostics: &'a mut Diagnostics,
    registry: &'r [PluginType],
    names: Names,
    instances: Vec<Instance<'r>>,
}

impl Resolver<'_, '_> {
    fn error(&mut self, node: NodeId, remark: Remark) {
        self.diagnostics.error(self.document.place(node), remark);
    }

    fn warn(&mut self, node: NodeId, remark: Remark) {
        self.diagnostics.warn(self.document.place(node), remark);
    }

    /// The text in the field `key` of `owner`; notes an error if there is none.
    fn required<'t>(
        &mut self,
        field: Option<&'t Located<String>>,
        owner: NodeId,
        key: &str,
    ) -> Option<&'t Located<String>> {
        let text = filled(field);
        // A field that is there but could not be read has been noted already.
        if text.is_none() && (field.is_some() || self.document.child(owner, key).is_none()) {
            self.missing(owner, key);
        }
        text
    }

    fn missing(&mut self, owner: NodeId, key: &str) {
        let place = self.document.place_of_missing(owner, key);
        self.diagnostics.error(place, Remark::new(format!("the field {key:?} is missing")));
    }

    fn check_kind(&mut self, api_version: Option<&Located<String>>, kind: Option<&Located<String>>) {
        if let Some(Located { value, node }) = filled(api_version)
            && value != API_VERSION
        {
            let hint = format!("write {API_VERSION}");
            if value == OLD_API_VERSION {
                self.warn(*node, Remark::new(format!("{value:?} is deprecated")).hint(hint));
            } else {
                self.error(*node, Remark::new(format!("unknown version {value:?}")).hint(hint));
            }
        }
        if let Some(Located { value, node }) = filled(kind)
            && value != KIND
        {
            let remark = Remark::new(format!("unknown kind {value:?}"));
            self.error(*node, remark.hint(format!("write {KIND}")));
        }
    }

    /// Puts fields of old versions in the place of the new ones, unless those are set too.
    fn move_deprecated(&mut self, raw: &mut RawConfig) {
        if let Some(detector) = raw.saturation_detector.take() {
            let moved = raw.flow_control.saturation_detector.is_none();
            self.warn_deprecated(detector.node, "flowControl.saturationDetector", moved);
            raw.flow_control.saturation_detector.get_or_insert(detector);
        }
        if let Some(parser) = raw.parser.take() {
            let moved = raw.request_handler.parsers.is_empty();
            self.warn_deprecated(parser.node, "requestHandler.parsers", moved);
            if moved {
                raw.request_handler.parsers.push(parser);
            }
        }
    }

    fn warn_deprecated(&mut self, node: NodeId, new: &str, moved: bool) {
        let remark = Remark::new(format!("deprecated in favour of {new}"));
        let remark = if moved { remark } else { remark.hint("ignored, because that is set too") };
        self.diagnostics.warn(self.document.key_place(node), remark);
    }
}

/// An empty text counts as absent.
fn filled(text: Option<&Located<String>>) -> Option<&Located<String>> {
    text.filter(|text| !text.value.is_empty())
}
