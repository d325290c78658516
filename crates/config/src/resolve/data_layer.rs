use super::{ResolvedMetrics, ResolvedSource, Resolver, filled};
use crate::document::Located;
use crate::raw::RawDataLayer;

impl Resolver<'_, '_> {
    /// The instance that discovers endpoints.
    pub(super) fn discovery(&mut self, raw: &RawDataLayer) -> Option<Located<usize>> {
        // No plugin type is a syncer in this version.
        self.refuse(filled(raw.cross_replica_syncer_plugin_ref.as_ref()), "a syncer");
        let reference = self.plugin_ref(raw.discovery.as_ref()?)?;
        self.locate(reference)
    }

    pub(super) fn metrics(&mut self, raw: &RawDataLayer) -> ResolvedMetrics {
        let mut sources = Vec::new();
        for source in &raw.sources {
            let reference = self.required(source.value.plugin_ref.as_ref(), source.node, "pluginRef");
            let found = reference.and_then(|reference| self.locate(reference));
            // Looked at in any case, so that all mistakes show.
            let mut extractors = Vec::new();
            for extractor in &source.value.extractors {
                let reference = self.plugin_ref(extractor);
                extractors.extend(reference.and_then(|reference| self.locate(reference)));
            }
            sources.extend(found.map(|source| ResolvedSource { source, extractors }));
        }
        ResolvedMetrics { inject_defaults: raw.inject_defaults.unwrap_or(true), sources }
    }

    /// The instance that `reference` names, with the place of the reference.
    fn locate(&mut self, reference: &Located<String>) -> Option<Located<usize>> {
        let value = self.find(reference, &[])?;
        Some(Located { value, node: reference.node })
    }
}
