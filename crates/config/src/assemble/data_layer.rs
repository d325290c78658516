//! What endpoints are asked of themselves, and whether anybody wants to know.

use std::sync::Arc;
use std::time::Duration;

use sluice_data::{EngineMappings, MetricsSource, Scraping};

use super::Assembler;
use crate::diagnostics::Remark;
use crate::document::Located;
use crate::plugin::{Built, Roles};
use crate::resolve::{Instance, Resolved, ResolvedAdmission, ResolvedMetrics, ResolvedSource};

/// The pair that is there by default. What counts is the type: a declared plugin of it may have any name.
const DEFAULT_SOURCE: &str = "metrics-data-source";
const DEFAULT_EXTRACTOR: &str = "core-metrics-extractor";

/// What is scraped, and the names of the plugins that say so.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) scraping: Scraping,
    pub(super) source: String,
    pub(super) extractor: String,
}

/// A plugin in a role.
struct Chosen<T> {
    name: String,
    role: T,
}

pub(super) fn is_default_source(instance: &Instance<'_>) -> bool {
    instance.plugin_type.name() == DEFAULT_SOURCE
}

/// How often endpoints are scraped once all sources of metrics are built; `default` is for a source that does not say. A
/// source without an extractor is not read, whatever it says.
pub(super) fn scrape_interval(resolved: &Resolved<'_>, built: &[Option<Built>], default: Duration) -> Duration {
    let named = resolved.metrics.sources.iter().filter(|source| !source.extractors.is_empty());
    let named = named.map(|source| source.source.value);
    let of_type = (0..built.len()).filter(|&index| is_default_source(&resolved.instances[index]));
    let source = |index: usize| built[index].as_ref()?.roles.metrics_source.as_ref();
    named.chain(of_type).find_map(source).map_or(default, |source| source.interval(default))
}

impl Assembler<'_, '_> {
    /// What is scraped: what a source in the configuration says, else the default pair if some plugin in use reads what it
    /// brings. To be called when it is known what is in use.
    pub(super) fn metrics(&mut self, resolved: &ResolvedMetrics) -> Option<Metrics> {
        let reader = self.reader();
        let mut metrics = None;
        for source in &resolved.sources {
            let found = self.metrics_of(source);
            if metrics.is_none() {
                metrics = found;
            } else if found.is_some() {
                let message = "a second source of metrics: this version reads one page of each endpoint";
                self.error(source.source.node, Remark::new(message));
            }
        }
        let is_default = |source: &ResolvedSource| is_default_source(&self.instances[source.source.value]);
        if resolved.inject_defaults && !resolved.sources.iter().any(is_default) && metrics.is_none() {
            return reader.and_then(|_| self.default_metrics());
        }
        if metrics.is_none()
            && let Some(reader) = reader
            && self.all_usable
        {
            self.note_unserved(reader, resolved);
        }
        metrics
    }

    /// Endpoints are scraped, or there is an error: a source says so, or a plugin in use. To be called when all of those are
    /// known that do not depend on it.
    pub(super) fn is_scraped(&self, resolved: &ResolvedMetrics) -> bool {
        resolved.sources.iter().any(|source| !source.extractors.is_empty()) || self.reader().is_some()
    }

    /// A plugin in use that acts on scraped metrics: the first one declared, by its index, or one that nobody declared.
    fn reader(&self) -> Option<Reader> {
        let reads = |roles: &Roles| roles.reads_scraped;
        let declared = self.having(reads).into_iter().find(|&index| self.used[index]);
        let injected = || {
            let mut injected = self.injected.iter();
            injected.find_map(|(name, built)| built.as_ref().is_some_and(|built| reads(&built.roles)).then_some(*name))
        };
        declared.map(Reader::Declared).or_else(|| injected().map(Reader::Injected))
    }

    /// Notes that nothing brings what `reader` acts on.
    fn note_unserved(&mut self, reader: Reader, resolved: &ResolvedMetrics) {
        let place = match resolved.sources.first() {
            Some(source) => self.document.place(source.source.node),
            None => self.document.place_at(&["dataLayer", "injectDefaults"]),
        };
        let name = match reader {
            Reader::Declared(index) => self.instances[index].name.as_str(),
            Reader::Injected(name) => name,
        };
        let remark = Remark::new(format!("nothing is scraped, but the plugin {name:?} acts on scraped metrics"));
        let remark = match reader {
            Reader::Declared(_) => remark.hint(format!("list a {DEFAULT_EXTRACTOR} under the extractors of a source")),
            Reader::Injected(_) => remark.hint("it is there by default: name another saturation detector"),
        };
        // Without flow control the default detector only sheds.
        if matches!((reader, self.admission), (Reader::Injected(_), ResolvedAdmission::Legacy(_))) {
            self.diagnostics.warn(place, remark);
        } else {
            self.diagnostics.error(place, remark);
        }
    }

    /// None if nothing is to be read of it, or there is an error.
    fn metrics_of(&mut self, ResolvedSource { source, extractors }: &ResolvedSource) -> Option<Metrics> {
        let page = self.role(*source, "a data source", |roles| roles.metrics_source.clone());
        let mut engines = None;
        let mut types = Vec::new();
        for extractor in extractors {
            let found = self.role(*extractor, "an extractor", |roles| roles.metrics_extractor.clone());
            let extractor_type = self.instances[extractor.value].plugin_type.name();
            if types.contains(&extractor_type) {
                let message = format!("a second extractor of type {extractor_type:?} for the same source");
                self.error(extractor.node, Remark::new(message));
            }
            types.push(extractor_type);
            engines = engines.or_else(|| found.map(|engines| self.chosen_as(*extractor, engines)));
        }
        if extractors.is_empty() && page.is_some() {
            self.warn(source.node, Remark::new("has no effect: without an extractor nothing of its page is read"));
        }
        let page = self.chosen_as(*source, page?);
        Some(self.scraped(page, engines?))
    }

    fn default_metrics(&mut self) -> Option<Metrics> {
        let page = self.declared_or_injected(DEFAULT_SOURCE, |roles| roles.metrics_source.clone());
        let engines = self.declared_or_injected(DEFAULT_EXTRACTOR, |roles| roles.metrics_extractor.clone());
        Some(self.scraped(page?, engines?))
    }

    /// The first declared plugin of a type in its role, else one with default parameters.
    fn declared_or_injected<T>(
        &mut self,
        plugin_type: &'static str,
        of: impl Fn(&Roles) -> Option<T>,
    ) -> Option<Chosen<T>> {
        let mut instances = self.instances.iter();
        match instances.position(|instance| instance.plugin_type.name() == plugin_type) {
            Some(index) => {
                self.used[index] = true;
                let role = of(self.roles[index].as_ref()?)?;
                Some(Chosen { name: self.instances[index].name.clone(), role })
            }
            None => {
                let role = of(&self.inject(plugin_type)?)?;
                Some(Chosen { name: self.name_of_injected(plugin_type), role })
            }
        }
    }

    fn chosen_as<T>(&self, reference: Located<usize>, role: T) -> Chosen<T> {
        Chosen { name: self.instances[reference.value].name.clone(), role }
    }

    fn scraped(&self, page: Chosen<MetricsSource>, engines: Chosen<Arc<EngineMappings>>) -> Metrics {
        let scraping = Scraping { source: page.role, engines: engines.role, interval: self.scrape_interval };
        Metrics { scraping, source: page.name, extractor: engines.name }
    }
}

#[derive(Clone, Copy, Debug)]
enum Reader {
    /// An index into the instances.
    Declared(usize),
    /// The name of a type that nobody has declared.
    Injected(&'static str),
}
