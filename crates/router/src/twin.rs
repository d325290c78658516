use std::fmt;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

/// Emits a family of series also under a deprecated name, while what it counts is counted once.
pub struct Twin<C> {
    family: C,
    deprecated: Option<&'static str>,
}

impl<C: Collector> Twin<C> {
    /// Without a deprecated name, `family` as it is.
    pub const fn new(family: C, deprecated: Option<&'static str>) -> Self {
        Self { family, deprecated }
    }
}

impl<C: Collector> Collector for Twin<C> {
    fn desc(&self) -> Vec<&Desc> {
        self.family.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.family.collect();
        let Some(deprecated) = self.deprecated else { return families };
        let mut twins = families.clone();
        for twin in &mut twins {
            twin.set_help(format!("[Deprecated: Use {}] {}", twin.name(), twin.help()));
            twin.set_name(deprecated.to_owned());
        }
        families.extend(twins);
        families
    }
}

impl<C> fmt::Debug for Twin<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Twin").field("deprecated", &self.deprecated).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{IntCounter, Registry, TextEncoder};

    use super::*;

    #[test]
    fn one_count_stands_under_both_names() {
        let registry = Registry::new();
        let counter = IntCounter::new("new_total", "what is counted").unwrap();
        registry.register(Box::new(Twin::new(counter.clone(), Some("old_total")))).unwrap();
        counter.inc();
        let page = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert!(page.contains("\nnew_total 1\n") && page.contains("\nold_total 1\n"), "{page}");
        assert!(page.contains("# HELP old_total [Deprecated: Use new_total] what is counted"), "{page}");
    }
}
