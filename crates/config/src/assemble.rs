use std::sync::Arc;

use sluice_data::Discovery;
use sluice_schedule::{Picker, Profile, ProfileHandler, Scheduler, WeightedScorer};

use crate::diagnostics::{Diagnostics, Remark};
use crate::document::{Document, Located, NodeId};
use crate::plugin::{PluginType, Roles, Stability};
use crate::resolve::{Instance, ProfileEntry, Resolved, ResolvedProfile};
use crate::weight::Weight;

const DEFAULT_PROFILE: &str = "default";
const DEFAULT_PICKER: &str = "max-score-picker";
const DEFAULT_HANDLER: &str = "single-profile-handler";

/// What the plugins of a configuration amount to.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) scheduler: Scheduler,
    pub(crate) discovery: Option<Discovery>,
}

/// Builds every declared plugin and puts together what they fill. What is left out is filled in, always by
/// the order of declaration:
///
/// * no profile: one called `default` of every declared filter, scorer and picker
/// * a profile without a picker: the first declared picker, else `max-score-picker`
/// * one profile and no handler: `single-profile-handler`
///
/// Without a result there is an error in `diagnostics`.
pub(crate) fn assemble(
    resolved: &Resolved<'_>,
    document: &Document,
    registry: &[PluginType],
    allow_experimental: bool,
    diagnostics: &mut Diagnostics,
) -> Option<Parts> {
    let plugins = resolved
        .instances
        .iter()
        .map(|instance| build(instance, document, allow_experimental, diagnostics))
        .collect::<Vec<_>>();
    let mut assembler = Assembler {
        document,
        registry,
        instances: &resolved.instances,
        used: vec![false; plugins.len()],
        all_usable: resolved.all_usable && plugins.iter().all(Option::is_some),
        roles: plugins,
        diagnostics,
    };
    let discovery = resolved.discovery.and_then(|reference| assembler.discovery(reference));
    let default = [assembler.default_profile()];
    let wanted = if resolved.profiles.is_empty() { &default } else { resolved.profiles.as_slice() };
    let profiles: Vec<Profile> = wanted.iter().filter_map(|profile| assembler.profile(profile)).collect();
    let handler = assembler.handler(wanted)?;
    assembler.warn_of_unused();
    if assembler.diagnostics.has_errors() {
        return None;
    }
    match Scheduler::new(handler, profiles) {
        Ok(scheduler) => Some(Parts { scheduler, discovery }),
        Err(error) => {
            assembler.error(Document::ROOT, error.to_string());
            None
        }
    }
}

fn build(
    instance: &Instance<'_>,
    document: &Document,
    allow_experimental: bool,
    diagnostics: &mut Diagnostics,
) -> Option<Roles> {
    let Instance { name: _, plugin_type, node } = instance;
    if plugin_type.stability() == Stability::Alpha && !allow_experimental {
        let remark = Remark::new(format!("the plugin type {:?} is experimental", plugin_type.name()));
        let at = document.child(*node, "type").unwrap_or(*node);
        diagnostics.error(document.place(at), remark.hint("start with --allow-experimental-plugins to use it"));
        return None;
    }
    plugin_type.build(document, *node, diagnostics)
}

struct Assembler<'a, 'r> {
    document: &'a Document,
    registry: &'r [PluginType],
    instances: &'a [Instance<'r>],
    /// By instance; none for one that could not be built.
    roles: Vec<Option<Roles>>,
    /// By instance: something refers to it.
    used: Vec<bool>,
    /// Nothing is missing but what the configuration does not name.
    all_usable: bool,
    diagnostics: &'a mut Diagnostics,
}

impl Assembler<'_, '_> {
    fn error(&mut self, node: NodeId, remark: impl Into<Remark>) {
        self.diagnostics.error(self.document.place(node), remark);
    }

    fn warn(&mut self, node: NodeId, remark: impl Into<Remark>) {
        self.diagnostics.warn(self.document.place(node), remark);
    }

    /// The indices of the instances with a certain role, in the order of declaration.
    fn having(&self, role: impl Fn(&Roles) -> bool) -> Vec<usize> {
        let has_role = |roles: &Option<Roles>| roles.as_ref().is_some_and(&role);
        self.roles.iter().enumerate().filter(|(_, roles)| has_role(roles)).map(|(index, _)| index).collect()
    }

    fn discovery(&mut self, reference: Located<usize>) -> Option<Discovery> {
        let roles = self.roles[reference.value].as_ref()?;
        self.used[reference.value] = true;
        let discovery = roles.discovery.clone();
        if discovery.is_none() {
            self.error(reference.node, self.instances[reference.value].is_not("an endpoint discovery"));
        }
        discovery
    }

    fn default_profile(&self) -> ResolvedProfile {
        let entries = self
            .having(Roles::has_profile_role)
            .into_iter()
            .map(|instance| ProfileEntry { instance, weight: None, node: self.instances[instance].node })
            .collect();
        ResolvedProfile { name: DEFAULT_PROFILE.to_owned(), entries, node: Document::ROOT }
    }

    fn profile(&mut self, profile: &ResolvedProfile) -> Option<Profile> {
        let mut filters = Vec::new();
        let mut scorers = Vec::new();
        let mut picker: Option<Arc<dyn Picker>> = None;
        let mut seen = Vec::new();
        for &ProfileEntry { instance, weight, node } in &profile.entries {
            self.used[instance] = true;
            let Some(roles) = self.roles[instance].clone() else { continue };
            let name = &self.instances[instance].name;
            if !roles.has_profile_role() {
                self.warn(node, format!("has no effect: {name:?} is neither filter, scorer nor picker"));
            } else if roles.scorer.is_some() && seen.contains(&instance) {
                self.warn(node, format!("the scorer {name:?} counts twice, its weights add up"));
            }
            seen.push(instance);
            filters.extend(roles.filter);
            match (roles.scorer, weight) {
                (Some(scorer), weight) => {
                    let weight = weight.map_or(Weight::ONE, |weight| weight.value);
                    scorers.push(WeightedScorer { scorer, weight: weight.as_f32() });
                }
                (None, Some(weight)) => self.warn(weight.node, "has no effect: only a scorer has a weight"),
                (None, None) => {}
            }
            if let Some(another) = roles.picker
                && picker.replace(another).is_some()
            {
                let remark = Remark::new(format!("a second picker in the profile {:?}", profile.name));
                let remark = if profile.node == Document::ROOT {
                    remark.hint("list the plugins to use under schedulingProfiles")
                } else {
                    remark
                };
                self.error(node, remark);
            }
        }
        let picker = match picker {
            Some(picker) => picker,
            None => self.picker_of_last_resort(profile)?,
        };
        Some(Profile { name: profile.name.as_str().into(), filters, scorers, picker })
    }

    fn picker_of_last_resort(&mut self, profile: &ResolvedProfile) -> Option<Arc<dyn Picker>> {
        let declared = self.having(|roles| roles.picker.is_some());
        let Some(&first) = declared.first() else {
            return self.inject(DEFAULT_PICKER)?.picker;
        };
        if declared.len() > 1 {
            let name = &self.instances[first].name;
            let remark = Remark::new(format!("names no picker, so it takes {name:?}, the first one declared"));
            self.warn(profile.node, remark.hint("name the picker"));
        }
        self.used[first] = true;
        self.roles[first].as_ref().and_then(|roles| roles.picker.clone())
    }

    fn handler(&mut self, profiles: &[ResolvedProfile]) -> Option<Arc<dyn ProfileHandler>> {
        let declared = self.having(|roles| roles.profile_handler.is_some());
        let handler = match *declared.as_slice() {
            [] if profiles.len() > 1 => {
                if self.all_usable {
                    let message =
                        format!("there are {} profiles and no profile handler to choose between them", profiles.len());
                    self.error(profiles[1].node, message);
                }
                return None;
            }
            [] => return self.inject(DEFAULT_HANDLER)?.profile_handler,
            [only] => only,
            [first, second, ..] => {
                let message = format!("a second profile handler, {:?} is one already", self.instances[first].name);
                self.error(self.instances[second].node, message);
                first
            }
        };
        let roles = self.roles[handler].as_ref()?;
        let profile_handler = roles.profile_handler.clone()?;
        let names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        if let Err(reason) = profile_handler.check(&names) {
            self.error(self.instances[handler].node, format!("does not suit the scheduling profiles: {reason}"));
        }
        Some(profile_handler)
    }

    /// A plugin that the configuration does not mention, with its default parameters.
    fn inject(&mut self, name: &str) -> Option<Roles> {
        let Some(plugin_type) = self.registry.iter().find(|plugin_type| plugin_type.name() == name) else {
            self.error(Document::ROOT, format!("the plugin type {name:?}, which is needed here, is not available"));
            return None;
        };
        plugin_type.build(&Document::empty(), Document::ROOT, self.diagnostics)
    }

    fn warn_of_unused(&mut self) {
        for index in self.having(|roles| roles.has_profile_role() || roles.discovery.is_some()) {
            if !self.used[index] {
                let Instance { name, node, .. } = &self.instances[index];
                self.warn(*node, format!("has no effect: nothing refers to the plugin {name:?}"));
            }
        }
    }
}
