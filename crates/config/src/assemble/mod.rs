//! Builds the plugins and puts together what they fill.

mod bounded;
mod ceilings;
mod data_layer;
mod effective;
mod flow_control;
mod parsers;
mod scheduling;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use sluice_core::TokenEstimate;
use sluice_data::{Discovery, Scraping};
use sluice_flow::policy::SaturationDetector;
use sluice_payload::Parsers;
use sluice_schedule::{Profile, Scheduler};

use crate::carry_over::{Fixed, Plugins, Previous};
use crate::diagnostics::{Diagnostics, Remark};
use crate::document::{Document, Located, NodeId};
use crate::files::NamedFile;
use crate::plugin::{Built, PluginType, Roles, Stability};
use crate::resolve::{Instance, Resolved, ResolvedAdmission};
use crate::{FlowControl, Options};

/// What the plugins of a configuration amount to.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) scheduler: Scheduler,
    pub(crate) discovery: Option<Discovery>,
    pub(crate) scraping: Option<Scraping>,
    pub(crate) flow_control: Option<FlowControl>,
    pub(crate) legacy_detector: Option<Arc<dyn SaturationDetector>>,
    pub(crate) parsers: Parsers,
    pub(crate) token_estimate: TokenEstimate,
    pub(crate) load_producer: String,
    pub(crate) tenant_headers: Vec<String>,
    pub(crate) populate_standbys: bool,
    pub(crate) effective: Value,
    pub(crate) files: Vec<NamedFile>,
    pub(crate) as_previous: Previous,
}

/// Builds every declared plugin and puts together what they fill. What is left out is filled in, always by
/// the order of declaration:
///
/// * no profile: one called `default` of every declared filter, scorer and picker
/// * a profile without a picker: the first declared picker, else `max-score-picker`
/// * one profile and no handler: `single-profile-handler`
/// * no source of metrics, and a plugin in use that reads them: `metrics-data-source` and `core-metrics-extractor`
/// * no parser: those of the reference's default list
/// * nobody who brings what a plugin needs: the default producer of it
/// * a policy of flow control: the declared plugin that has the name of the default type, else that type
/// * no detector without flow control: the same, if endpoints are scraped
///
/// Plugins of `previous` that stay the same go on. Every plugin is built anyhow, so that what is said of it does not
/// depend on what was before.
///
/// Without a result there is an error in `diagnostics`.
pub(crate) fn assemble(
    resolved: &Resolved<'_>,
    document: &Document,
    registry: &[PluginType],
    options: &Options,
    previous: Option<&Previous>,
    diagnostics: &mut Diagnostics,
) -> Option<Parts> {
    let mut kept = Plugins::after(previous);
    let mut plugins: Vec<Option<Built>> = vec![None; resolved.instances.len()];
    let mut scrape_interval = options.scrape_interval;
    // Sources of metrics come first, since others want to know how often they are read.
    let (sources, others): (Vec<usize>, Vec<usize>) =
        (0..plugins.len()).partition(|&index| data_layer::is_default_source(&resolved.instances[index]));
    for indices in [sources, others] {
        for index in indices {
            let instance = &resolved.instances[index];
            let built = build(instance, document, options, scrape_interval, diagnostics);
            plugins[index] = built.map(|built| kept.keep(&instance.name, instance.plugin_type.name(), built));
        }
        scrape_interval = data_layer::scrape_interval(resolved, &plugins, options.scrape_interval);
    }
    let parameters = plugins.iter().map(|built| built.as_ref().map(|built| built.parameters.clone())).collect();
    let files =
        plugins.iter().map(|built| built.as_ref().map(|built| built.files.clone()).unwrap_or_default()).collect();
    let mut assembler = Assembler {
        document,
        registry,
        scrape_interval,
        instances: &resolved.instances,
        admission: &resolved.admission,
        used: vec![false; plugins.len()],
        all_usable: resolved.all_usable && plugins.iter().all(Option::is_some),
        roles: plugins.into_iter().map(|built| built.map(|built| built.roles)).collect(),
        parameters,
        files,
        injected: BTreeMap::new(),
        kept,
        diagnostics,
    };
    let discovery = resolved.discovery.and_then(|reference| assembler.discovery(reference));
    let default = [assembler.default_profile()];
    let wanted = if resolved.profiles.is_empty() { &default } else { resolved.profiles.as_slice() };
    let profiles: Vec<Profile> = wanted.iter().filter_map(|profile| assembler.profile(profile)).collect();
    let handler = assembler.handler(wanted);
    let sheds_by = assembler.sheds_by(resolved);
    let admission = match &resolved.admission {
        ResolvedAdmission::FlowControl(flow_control) => {
            assembler.flow_control(flow_control, &resolved.settings).map(|mut built| {
                assembler.bound_by_filters(&mut built, flow_control, wanted);
                (Some(built), None)
            })
        }
        ResolvedAdmission::Legacy(_) => match &sheds_by {
            Some(detector) => assembler.detector(Some(detector)).map(|detector| (None, Some(detector))),
            None => Some((None, None)),
        },
    };
    let parsers = assembler.parsers(&resolved.parsers);
    let (token_estimate, load_producer) = assembler.token_estimate();
    let tenant_headers = assembler.tenant_headers();
    let metrics = assembler.metrics(&resolved.metrics);
    assembler.fill_in_producers();
    assembler.warn_of_unused();
    if assembler.diagnostics.has_errors() {
        return None;
    }
    let fixed = Fixed::of(resolved, discovery.as_ref());
    if let Some(previous) = previous {
        previous.refuse_changes(&fixed, resolved, document, assembler.diagnostics);
    }
    let (flow_control, legacy_detector) = admission?;
    let effective = assembler.effective(resolved, wanted, metrics.as_ref(), &parsers, flow_control.as_ref(), sheds_by);
    match Scheduler::new(handler?, profiles) {
        Ok(scheduler) => Some(Parts {
            scheduler,
            discovery,
            scraping: metrics.map(|metrics| metrics.scraping),
            flow_control,
            legacy_detector,
            parsers: parsers.parsers,
            token_estimate,
            load_producer,
            tenant_headers,
            populate_standbys: resolved.populate_standbys,
            effective,
            files: assembler.files_in_use(),
            as_previous: assembler.kept.into_previous(fixed),
        }),
        Err(error) => {
            assembler.error(Document::ROOT, Remark::new(error.to_string()));
            None
        }
    }
}

fn build(
    instance: &Instance<'_>,
    document: &Document,
    options: &Options,
    scrape_interval: Duration,
    diagnostics: &mut Diagnostics,
) -> Option<Built> {
    let Instance { name: _, plugin_type, node } = instance;
    if plugin_type.stability() == Stability::Alpha && !options.allow_experimental_plugins {
        let remark = Remark::new(format!("the plugin type {:?} is experimental", plugin_type.name()));
        let at = document.child(*node, "type").unwrap_or(*node);
        diagnostics.error(document.place(at), remark.hint("start with --allow-experimental-plugins to use it"));
        return None;
    }
    plugin_type.build(document, *node, scrape_interval, diagnostics)
}

struct Assembler<'a, 'r> {
    document: &'a Document,
    registry: &'r [PluginType],
    scrape_interval: Duration,
    instances: &'a [Instance<'r>],
    admission: &'a ResolvedAdmission,
    /// By instance; none for one that could not be built.
    roles: Vec<Option<Roles>>,
    /// By instance, with their defaults.
    parameters: Vec<Option<Map<String, Value>>>,
    /// By instance, those it reads.
    files: Vec<Vec<NamedFile>>,
    /// By instance: something refers to it.
    used: Vec<bool>,
    /// Nothing is missing but what the configuration does not name.
    all_usable: bool,
    /// Plugins that the configuration does not mention, by type; none for one that could not be built.
    injected: BTreeMap<&'static str, Option<Built>>,
    kept: Plugins<'a>,
    diagnostics: &'a mut Diagnostics,
}

impl Assembler<'_, '_> {
    fn error(&mut self, node: NodeId, remark: Remark) {
        self.diagnostics.error(self.document.place(node), remark);
    }

    fn warn(&mut self, node: NodeId, remark: Remark) {
        self.diagnostics.warn(self.document.place(node), remark);
    }

    /// The indices of the instances with a certain role, in the order of declaration.
    fn having(&self, role: impl Fn(&Roles) -> bool) -> Vec<usize> {
        let has_role = |roles: &Option<Roles>| roles.as_ref().is_some_and(&role);
        self.roles.iter().enumerate().filter(|(_, roles)| has_role(roles)).map(|(index, _)| index).collect()
    }

    fn discovery(&mut self, reference: Located<usize>) -> Option<Discovery> {
        self.role(reference, "an endpoint discovery", |roles| roles.discovery.clone())
    }

    /// What the referenced plugin is as `role`; notes an error if it is none.
    fn role<T>(&mut self, reference: Located<usize>, role: &str, of: impl Fn(&Roles) -> Option<T>) -> Option<T> {
        let found = of(self.roles[reference.value].as_ref()?);
        self.used[reference.value] = true;
        if found.is_none() {
            self.error(reference.node, self.instances[reference.value].is_not(role));
        }
        found
    }

    /// The plugin of a type that the configuration does not mention, with its default parameters: always the
    /// same one.
    fn inject(&mut self, type_name: &'static str) -> Option<Roles> {
        if let Some(injected) = self.injected.get(type_name) {
            return injected.clone().map(|built| built.roles);
        }
        let built = match self.registry.iter().find(|plugin_type| plugin_type.name() == type_name) {
            Some(plugin_type) => {
                // What nobody has written is nothing to warn anybody of.
                let mut diagnostics = self.diagnostics.none_yet();
                let interval = self.scrape_interval;
                let built = plugin_type.build(&Document::empty(), Document::ROOT, interval, &mut diagnostics);
                self.diagnostics.add_errors(diagnostics);
                built
            }
            None => {
                let message = format!("the plugin type {type_name:?}, which is needed here, is not available");
                self.error(Document::ROOT, Remark::new(message));
                None
            }
        };
        let name = self.name_of_injected(type_name);
        let built = built.map(|built| self.kept.keep(&name, type_name, built));
        let roles = built.as_ref().map(|built| built.roles.clone());
        self.injected.insert(type_name, built);
        roles
    }

    /// What a plugin of this type is called that nobody has declared: as its type, unless a declared plugin, which is of
    /// another type, has that name.
    fn name_of_injected(&self, type_name: &str) -> String {
        let is_free = |name: &String| self.instances.iter().all(|instance| instance.name != *name);
        let numbered = (2..).map(|number: u64| format!("{type_name}-{number}"));
        // Endless, and only as many are taken as there are instances.
        std::iter::once(type_name.to_owned()).chain(numbered).find(is_free).unwrap_or_default()
    }

    /// Whatever declared plugins need and none of them brings. What none of them needs is warned of.
    fn fill_in_producers(&mut self) {
        for needing in self.having(|roles| roles.needs.is_some()) {
            let Some(needed) = self.roles[needing].as_ref().and_then(|roles| roles.needs) else { continue };
            if self.having(|roles| roles.produces == Some(needed)).is_empty() {
                // Without a result there is an error.
                drop(self.inject(needed.default_producer()));
            }
        }
        for producing in self.having(|roles| roles.produces.is_some()) {
            let produced = self.roles[producing].as_ref().and_then(|roles| roles.produces);
            if self.having(|roles| roles.needs == produced).is_empty() {
                let Instance { name, node, .. } = &self.instances[producing];
                self.warn(*node, Remark::new(format!("has no effect: no plugin asks for what {name:?} brings")));
            }
        }
    }

    fn files_in_use(&self) -> Vec<NamedFile> {
        let in_use = self.files.iter().zip(&self.used).filter(|(_, used)| **used);
        in_use.flat_map(|(files, _)| files.iter().cloned()).collect()
    }

    fn warn_of_unused(&mut self) {
        let by_reference = |roles: &Roles| {
            roles.has_profile_role()
                || roles.discovery.is_some()
                || roles.detector.is_some()
                || roles.metrics_source.is_some()
                || roles.metrics_extractor.is_some()
                || roles.parser.is_some()
        };
        let gate_is_off = matches!(self.admission, ResolvedAdmission::Legacy(_));
        for index in self.having(|roles| by_reference(roles) || roles.has_policy_role()) {
            if self.used[index] {
                continue;
            }
            let Instance { name, node, .. } = &self.instances[index];
            if gate_is_off && !self.roles[index].as_ref().is_some_and(by_reference) {
                self.warn(*node, Remark::new("has no effect without the feature gate flowControl"));
            } else {
                self.warn(*node, Remark::new(format!("has no effect: nothing refers to the plugin {name:?}")));
            }
        }
    }
}
