//! No fairness among flows: the band is served as if it were one queue.

use std::collections::BTreeSet;
use std::sync::Arc;

use slotmap::SecondaryMap;
use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};
use sluice_core::Time;
use sluice_flow::FlowId;
use sluice_flow::policy::{Fairness, FairnessPolicy, Head, Rank};

use super::NoParams;

/// Serves the flow whose head comes first.
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalStrict;

impl Plugin for GlobalStrict {
    const TYPE: &'static str = "global-strict-fairness-policy";
    const STABILITY: Stability = Stability::Beta;
    type Params = NoParams;

    fn build(_: Self::Params, _: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        Ok(Roles::fairness(Self))
    }
}

impl FairnessPolicy for GlobalStrict {
    fn new_band(&self) -> Box<dyn Fairness> {
        Box::new(Heads::default())
    }
}

#[derive(Debug, Default)]
struct Heads {
    order: BTreeSet<(Rank, FlowId)>,
    head: SecondaryMap<FlowId, Rank>,
}

impl Fairness for Heads {
    fn add(&mut self, _: FlowId, _: &Arc<str>) {}

    fn remove(&mut self, flow: FlowId) {
        self.set_head(flow, None);
    }

    fn set_head(&mut self, flow: FlowId, head: Option<Head>) {
        let head = head.map(|head| head.rank);
        let old = match head {
            Some(rank) => self.head.insert(flow, rank),
            None => self.head.remove(flow),
        };
        if let Some(rank) = old {
            self.order.remove(&(rank, flow));
        }
        if let Some(rank) = head {
            self.order.insert((rank, flow));
        }
    }

    fn pick(&mut self, _: Time) -> Option<FlowId> {
        self.order.first().map(|(_, flow)| *flow)
    }

    fn granted(&mut self, _: Time, _: FlowId, _: u64, _: bool) {}

    fn refund(&mut self, _: FlowId, _: u64) {}
}
