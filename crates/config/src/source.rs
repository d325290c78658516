use std::sync::Arc;

/// The text of a configuration, and what to call it in messages.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) name: Arc<str>,
    pub(crate) text: Vec<u8>,
}

/// Requests go to the endpoint with the fewest in flight.
const BUILT_IN: &str = "
plugins:
  - type: active-request-scorer
  - type: max-score-picker
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
