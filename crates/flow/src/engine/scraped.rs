//! News of what endpoints say of themselves, and the wish for more.

use sluice_core::{Scraped, Time};

use super::Engine;
use crate::effect::Effect;
use crate::load::EndpointKey;
use crate::stale::StaleWatch;

impl Engine {
    /// The endpoint was scraped, and has said this.
    pub fn scraped(&mut self, now: Time, endpoint: EndpointKey, sample: &Scraped) {
        self.advance(now);
        if self.pool.scraped(self.now, endpoint, sample) {
            self.run();
            self.watch_staleness();
        }
    }

    /// Has endpoints scraped before their time where somebody waits who may wait for an estimate only.
    pub(super) fn ask_for_scrapes(&mut self) {
        if self.next_ask.is_some_and(|time| time > self.now) {
            return;
        }
        self.next_ask = None;
        let lowest = self.bands.len() - 1;
        if self.waiting.requests == 0 || self.gate_is_open(lowest) {
            return;
        }
        let (endpoints, again) = self.pool.doubtful(self.now);
        self.next_ask = again;
        self.effects.extend(endpoints.into_iter().map(|endpoint| Effect::Scrape { endpoint }));
    }

    /// Says it when the number of silent endpoints has become another. A detector that does not go by what endpoints say
    /// knows of no silence and of no end of one.
    pub(super) fn watch_staleness(&mut self) {
        let Some(stale) = self.pool.estimate().map(|estimate| estimate.stale_endpoints()) else {
            self.stale_watch = StaleWatch::default();
            return;
        };
        if self.stale_watch.note(self.now, stale) {
            self.effects.push_back(Effect::Stale { stale, endpoints: self.pool.len() });
        }
    }
}
