//! A fairness policy by another's hand: least attained service, with patience, as one that knows the programs behind the
//! requests would have it. What the traits tell is enough for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::{TerminationCause, Time};
use sluice_flow::policy::{Fairness, FairnessPolicy, Head, Usage};
use sluice_flow::{Ended, FlowId, Ticket};
use sluice_plugins::flow::Fcfs;

use crate::harness::rig::{Rig, ask, band, granted, plain};

/// A token of the answer keeps the model server busy for as long as this many of the prompt.
const OUTPUT_WEIGHT: u64 = 10;

/// Whose head has waited for so long goes first.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct LeastAttained;

impl FairnessPolicy for LeastAttained {
    fn new_band(&self) -> Box<dyn Fairness> {
        Box::new(Service::default())
    }

    fn heeds_real_cost(&self) -> bool {
        true
    }
}

#[derive(Debug, Default)]
struct Service {
    heads: BTreeMap<FlowId, Head>,
    attained: BTreeMap<FlowId, u64>,
}

impl Service {
    fn is_overdue(&self, head: &Head, now: Time) -> bool {
        now.saturating_since(head.arrival) >= PATIENCE
    }
}

impl Fairness for Service {
    fn add(&mut self, _: FlowId, _: &Arc<str>) {}

    fn remove(&mut self, flow: FlowId) {
        self.heads.remove(&flow);
        self.attained.remove(&flow);
    }

    fn set_head(&mut self, flow: FlowId, head: Option<Head>) {
        match head {
            Some(head) => self.heads.insert(flow, head),
            None => self.heads.remove(&flow),
        };
    }

    fn pick(&mut self, now: Time) -> Option<FlowId> {
        let order = |(flow, head): &(&FlowId, &Head)| {
            let attained = self.attained.get(flow).copied().unwrap_or_default();
            (!self.is_overdue(head, now), attained, head.arrival, head.rank)
        };
        self.heads.iter().min_by_key(order).map(|(&flow, _)| flow)
    }

    fn granted(&mut self, _: Time, _: FlowId, _: u64, _: bool) {}

    fn refund(&mut self, _: FlowId, _: u64) {}

    fn settle(&mut self, _: Time, flow: FlowId, _: u64, Usage { prompt, output }: Usage) {
        *self.attained.entry(flow).or_default() += prompt + OUTPUT_WEIGHT * output;
    }

    fn next_change(&self, now: Time) -> Option<Time> {
        let overdue = self.heads.values().map(|head| head.arrival.saturating_add(PATIENCE));
        overdue.filter(|&time| time > now).min()
    }
}

const READING: Usage = Usage { prompt: 100, output: 0 };
const WRITING: Usage = Usage { prompt: 0, output: 100 };

/// Starts a granted request and ends it with `usage`; the one that is granted then.
fn serve(rig: &mut Rig, ticket: Ticket, usage: Usage) -> Vec<Ticket> {
    rig.start(ticket, 0).unwrap();
    let ended = Ended { cause: TerminationCause::Natural, usage: Some(usage) };
    rig.engine.release(rig.now, ticket, ended);
    granted(&rig.effects())
}

fn one_place() -> (Rig, Ticket) {
    let mut config = plain();
    config.template = band(Fcfs, LeastAttained);
    let mut rig = Rig::new(config, &[1]);
    let running = rig.run_on(0, ask("other", 5));
    (rig, running)
}

#[test]
fn prompt_and_answer_are_told_apart() {
    for (first_usage, second_usage, first_is_next) in [(READING, WRITING, true), (WRITING, READING, false)] {
        let (mut rig, running) = one_place();
        let first = [0; 2].map(|_| rig.queue(ask("first", 0)));
        let second = [0; 2].map(|_| rig.queue(ask("second", 0)));
        assert_eq!(granted(&rig.release(running)), [first[0]]);
        assert_eq!(serve(&mut rig, first[0], first_usage), [second[0]]);
        let next = if first_is_next { first[1] } else { second[1] };
        assert_eq!(serve(&mut rig, second[0], second_usage), [next]);
    }
}

#[test]
fn a_head_that_has_waited_for_long_is_known_by_its_arrival() {
    let (mut rig, running) = one_place();
    let greedy = [0; 2].map(|_| rig.queue(ask("greedy", 0)));
    assert_eq!(granted(&rig.release(running)), [greedy[0]]);
    let modest = rig.at_millis(4_000).queue(ask("modest", 0));
    rig.at_millis(6_000);
    assert_eq!(serve(&mut rig, greedy[0], WRITING), [greedy[1]]);
    assert_eq!(serve(&mut rig, greedy[1], WRITING), [modest]);
}

#[test]
fn the_engine_is_woken_when_the_order_changes() {
    let (mut rig, _) = one_place();
    rig.at_millis(100).queue(ask("greedy", 0));
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_millis(5_100)));
    // Once, although the closed gate keeps the policy from being asked.
    rig.at_millis(5_100).on_time();
    assert_eq!(rig.engine.next_wakeup(), Some(Time::from_millis(60_100)), "the end of its time in the queue");
}
