use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::Time;

/// What a model server said of itself in one scrape of its metrics. None: it did not say, or nothing that makes sense.
#[derive(Clone, Debug, PartialEq)]
pub struct Scraped {
    /// When the scrape began: what happened on the server later may be missing in it.
    pub began: Time,
    /// For so long after `began` it cannot be expected to have said anything newer, because its pages take their time. At
    /// most [`Scraped::MOST_LENIENCE`].
    pub lenience: Duration,
    /// What the page was read as: the same object for as long as it is the same page, read in the same way. None: it does
    /// not matter.
    pub engine: Option<Arc<str>>,
    /// It does not name its queue, though it did a short while ago: what else it says is half the truth.
    pub lost_queue: bool,
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
    /// Nobody is waited for longer than this, however slow.
    pub const MOST_LENIENCE: Duration = Duration::from_secs(4);

    /// A scrape that brought nothing.
    pub const fn at(began: Time) -> Self {
        Self {
            began,
            lenience: Duration::ZERO,
            engine: None,
            lost_queue: false,
            waiting: None,
            running: None,
            kv_usage: None,
            lora: None,
            cache: None,
            custom: BTreeMap::new(),
        }
    }

    /// What is out of date once it lies further back than the staleness that somebody allows: when the scrape began, or
    /// rather the end of the time for which a slow endpoint is not blamed.
    pub fn good_since(&self) -> Time {
        self.began.saturating_add(self.lenience.min(Self::MOST_LENIENCE))
    }

    /// Whether it can be gone by at `now`.
    pub fn is_fresh(&self, now: Time, staleness: Duration) -> bool {
        now.saturating_since(self.good_since()) <= staleness
    }

    /// What can be gone by for how full the endpoint is: its queue, or its KV usage if it has no queue to name.
    pub const fn tells_load(&self) -> bool {
        self.waiting.is_some() || (self.kv_usage.is_some() && !self.lost_queue)
    }

    /// There is no figure in it.
    pub fn is_empty(&self) -> bool {
        let Self { began: _, lenience: _, engine: _, lost_queue: _, waiting, running, kv_usage, lora, cache, custom } =
            self;
        waiting.is_none()
            && running.is_none()
            && kv_usage.is_none()
            && lora.is_none()
            && cache.is_none()
            && custom.is_empty()
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
