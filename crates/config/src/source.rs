use std::sync::Arc;

/// The text of a configuration, and what to call it in messages.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) name: Arc<str>,
    pub(crate) text: Vec<u8>,
}

/// As that of llm-d-router's EPP.
const BUILT_IN: &str = "
plugins:
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
  - type: metrics-data-source
  - type: core-metrics-extractor
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: kv-cache-utilization-scorer, weight: 2}
      - {pluginRef: prefix-cache-scorer, weight: 3}
dataLayer:
  sources:
    - pluginRef: metrics-data-source
      extractors: [{pluginRef: core-metrics-extractor}]
";

impl Source {
    /// A longer text is refused.
    pub const MAX_BYTES: usize = 1 << 20;

    /// `name` is usually the path of the file; `text` need not be valid in any way.
    pub fn new(name: &str, text: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// What it is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// What is used when no configuration is given.
    pub fn built_in() -> Self {
        Self::new("built-in configuration", BUILT_IN)
    }
}
