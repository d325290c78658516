use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Time;

/// What a model server said of itself in one scrape of its metrics. None: it did not say, or nothing that makes sense.
#[derive(Clone, Debug, PartialEq)]
pub struct Scraped {
    /// When the scrape began: what happened on the server later may be missing in it.
    pub began: Time,
    /// Requests in its queue, of all its engines together.
    pub waiting: Option<u64>,
    /// Requests that it works on, of all its engines together.
    pub running: Option<u64>,
    /// The used part of its KV cache, in `0.0..=1.0`; of several engines the fullest.
    pub kv_usage: Option<f64>,
    pub lora: Option<LoraAdapters>,
    pub cache: Option<CacheGeometry>,
    /// Gauges that the configuration names, by attribute key.
    pub custom: BTreeMap<Arc<str>, f64>,
}

impl Scraped {
    /// A scrape that brought nothing.
    pub const fn at(began: Time) -> Self {
        Self { began, waiting: None, running: None, kv_usage: None, lora: None, cache: None, custom: BTreeMap::new() }
    }
}

/// The LoRA adapters of a model server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoraAdapters {
    pub running: BTreeSet<Arc<str>>,
    pub waiting: BTreeSet<Arc<str>>,
    /// How many may run at once.
    pub max: Option<u64>,
}

/// The KV cache of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGeometry {
    /// Tokens per block.
    pub block_size: Option<u64>,
    pub blocks: Option<u64>,
}
