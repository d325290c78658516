use sluice_core::nearest;

use super::names::Declared;
use super::plugins::unavailable;
use super::{Choice, ProfileEntry, ResolvedProfile, Resolver};
use crate::catalog;
use crate::diagnostics::Remark;
use crate::document::{Document, Located, NodeId};
use crate::raw::{RawPluginRef, RawProfile, RawRequestHandler};

/// What reads requests where nothing is said of it.
const DEFAULT_PARSERS: [&str; 4] = ["openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"];

impl Resolver<'_, '_> {
    pub(super) fn profiles(&mut self, raw: &[Located<RawProfile>]) -> Vec<ResolvedProfile> {
        let mut profiles: Vec<ResolvedProfile> = Vec::new();
        for profile in raw {
            let name = self.required(profile.value.name.as_ref(), profile.node, "name");
            if let Some(name) = name
                && profiles.iter().any(|earlier| earlier.name == name.value)
            {
                self.error(name.node, Remark::new(format!("there is a profile {:?} already", name.value)));
            }
            let mut entries = Vec::new();
            for entry in &profile.value.plugins {
                let reference = self.required(entry.value.plugin_ref.as_ref(), entry.node, "pluginRef");
                if let Some(instance) = reference.and_then(|reference| self.find(reference, &[])) {
                    entries.push(ProfileEntry { instance, weight: entry.value.weight, node: entry.node });
                }
            }
            let name = name.map(|name| name.value.clone()).unwrap_or_default();
            profiles.push(ResolvedProfile { name, entries, node: profile.node });
        }
        profiles
    }

    /// The parsers that are named, or else those of [`DEFAULT_PARSERS`] that there are. One that is not declared may be
    /// named by its type.
    pub(super) fn parsers(&mut self, raw: &RawRequestHandler) -> Vec<Located<Choice>> {
        if raw.parsers.is_empty() && !self.diagnostics.has_errors_in("requestHandler") {
            let default = DEFAULT_PARSERS.into_iter();
            let located = |value| Located { value, node: Document::ROOT };
            return default.filter_map(|name| self.declared_or_type(name, None)).map(located).collect();
        }
        let mut parsers = Vec::new();
        for parser in &raw.parsers {
            let Some(reference) = self.plugin_ref(parser) else { continue };
            match self.declared_or_type(&reference.value, Some(reference.node)) {
                Some(choice) => parsers.push(Located { value: choice, node: reference.node }),
                None => drop(self.find(reference, &DEFAULT_PARSERS)),
            }
        }
        parsers
    }

    /// The instance called `name`, as it is by the reference at `node`, or a plugin of this type that is to be made.
    fn declared_or_type(&self, name: &str, node: Option<NodeId>) -> Option<Choice> {
        match self.names.find(name) {
            Some(Declared::Instance(value)) => {
                let node = node.unwrap_or(self.instances[value].node);
                Some(Choice::Declared(Located { value, node }))
            }
            Some(Declared::Broken) => None,
            None => {
                let plugin_type = self.registry.iter().find(|plugin_type| plugin_type.name() == name)?;
                Some(Choice::Default(plugin_type.name()))
            }
        }
    }

    pub(super) fn plugin_ref<'t>(&mut self, section: &'t Located<RawPluginRef>) -> Option<&'t Located<String>> {
        self.required(section.value.plugin_ref.as_ref(), section.node, "pluginRef")
    }

    /// The instance that `reference` names; notes an error if there is none and that is not the fault of an
    /// earlier error. `others` are names that could have been given too.
    pub(super) fn find(&mut self, reference: &Located<String>, others: &[&str]) -> Option<usize> {
        match self.names.find(&reference.value) {
            Some(Declared::Instance(index)) => Some(index),
            Some(Declared::Broken) => None,
            None => {
                self.note_unknown(reference, others);
                None
            }
        }
    }

    /// Notes that no plugin has the name that is referenced.
    pub(super) fn note_unknown(&mut self, reference: &Located<String>, others: &[&str]) {
        if !self.names.is_complete() || self.diagnostics.is_full() {
            return;
        }
        let name = reference.value.as_str();
        let remark = Remark::new(format!("there is no plugin {name:?}"));
        let remark = if self.registry.iter().any(|plugin_type| plugin_type.name() == name) {
            remark.hint("declare it under plugins")
        } else if catalog::is_known(name) {
            unavailable(name)
        } else {
            match nearest(name, self.names.iter().chain(others.iter().copied())) {
                Some(suggestion) => remark.suggest(suggestion),
                None => remark,
            }
        };
        self.error(reference.node, remark);
    }

    /// Notes that the referenced plugin is not `role`, which no plugin type is in this version.
    pub(super) fn refuse(&mut self, reference: Option<&Located<String>>, role: &str) {
        let Some(reference) = reference else { return };
        if let Some(index) = self.find(reference, &[]) {
            self.error(reference.node, self.instances[index].is_not(role));
        }
    }
}
