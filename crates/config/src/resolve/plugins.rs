use sluice_core::nearest;

use super::names::Declared;
use super::{Instance, Resolver, filled};
use crate::catalog;
use crate::diagnostics::Remark;
use crate::document::Located;
use crate::plugin::PluginType;
use crate::raw::RawPlugin;

impl<'r> Resolver<'_, 'r> {
    /// Enters the list `plugins` into `names` and `instances`.
    pub(super) fn declare(&mut self, plugins: &[Located<RawPlugin>]) {
        for plugin in plugins {
            if self.diagnostics.is_full() {
                self.names.mark_incomplete();
                return;
            }
            let type_field = self.required(plugin.value.plugin_type.as_ref(), plugin.node, "type");
            let name_field = filled(plugin.value.name.as_ref());
            let Some(name) = name_field.or(type_field) else {
                self.names.mark_incomplete();
                continue;
            };
            if self.names.contains(&name.value) {
                let remark = Remark::new(format!("there is a plugin {:?} already", name.value));
                let remark = if name_field.is_some() { remark } else { remark.hint("give one of them a name") };
                self.error(name.node, remark);
                continue;
            }
            let declared = match type_field.and_then(|field| self.find_type(field)) {
                Some(plugin_type) => {
                    self.instances.push(Instance { name: name.value.clone(), plugin_type, node: plugin.node });
                    Declared::Instance(self.instances.len() - 1)
                }
                None => Declared::Broken,
            };
            self.names.insert(name.value.clone(), declared);
        }
    }

    fn find_type(&mut self, field: &Located<String>) -> Option<&'r PluginType> {
        let name = field.value.as_str();
        let found = self.registry.iter().find(|plugin_type| plugin_type.name() == name);
        if found.is_none() {
            let remark = if catalog::is_known(name) {
                unavailable(name)
            } else {
                let known = self.registry.iter().map(PluginType::name).chain(catalog::known());
                let remark = Remark::new(format!("unknown plugin type {name:?}"));
                match nearest(name, known) {
                    Some(suggestion) => remark.suggest(suggestion),
                    None => remark,
                }
            };
            self.error(field.node, remark);
        }
        found
    }
}

/// What to say of a type that llm-d-router's EPP has and this version has not.
pub(super) fn unavailable(plugin_type: &str) -> Remark {
    let remark = Remark::new(format!("the plugin type {plugin_type:?} is known but not available in this version"));
    match catalog::advice(plugin_type) {
        Some(advice) => remark.hint(advice),
        None => remark,
    }
}
