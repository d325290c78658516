use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;
use slotmap::SlotMap;
use sluice_flow::policy::OrderKey;

use super::*;

const HEAD: Rank = Rank { key: OrderKey(0), sequence: 0 };

#[derive(Clone, Debug)]
enum Step {
    Add,
    Remove(usize),
    SetHead(usize, bool),
    Turn,
    /// A grant to a flow that was not picked.
    OutOfTurn(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Add),
        2 => any::<usize>().prop_map(Step::Remove),
        6 => any::<(usize, bool)>().prop_map(|(which, head)| Step::SetHead(which, head)),
        4 => Just(Step::Turn),
        1 => any::<usize>().prop_map(Step::OutOfTurn),
    ];
    prop::collection::vec(step, 0..600)
}

proptest! {
    /// Beside a map from numbers that are never given out twice.
    #[test]
    fn turns_go_round_in_the_order_in_which_flows_came_to_be(steps in steps()) {
        let mut circle = Circle::default();
        let mut ids: SlotMap<FlowId, ()> = SlotMap::with_key();
        let mut flows: BTreeMap<u64, (FlowId, bool)> = BTreeMap::new();
        let mut cursor = 0;
        for (step, number) in steps.into_iter().zip(1..) {
            let nth = |which: usize| flows.keys().nth(which % flows.len().max(1)).copied();
            match step {
                Step::Add => {
                    let flow = ids.insert(());
                    circle.add(flow, &"tenant".into());
                    prop_assert!(circle.flows.len() <= 2 * flows.len() + SPARE + 1);
                    flows.insert(number, (flow, false));
                }
                Step::Remove(which) => {
                    if let Some((flow, _)) = nth(which).and_then(|number| flows.remove(&number)) {
                        circle.remove(flow);
                        ids.remove(flow);
                    }
                }
                Step::SetHead(which, head) => {
                    if let Some((flow, active)) = nth(which).and_then(|number| flows.get_mut(&number)) {
                        circle.set_head(*flow, head.then_some(HEAD));
                        *active = head;
                    }
                }
                Step::Turn => {
                    let behind = flows.range((Bound::Excluded(cursor), Bound::Unbounded)).chain(&flows);
                    let next = behind.map(|(number, flow)| (*number, *flow)).find(|(_, (_, active))| *active);
                    prop_assert_eq!(circle.pick(Time::ZERO), next.map(|(_, (flow, _))| flow));
                    if let Some((number, (flow, _))) = next {
                        circle.granted(Time::ZERO, flow, 1, true);
                        cursor = number;
                    }
                }
                Step::OutOfTurn(which) => {
                    if let Some((flow, _)) = nth(which).and_then(|number| flows.get(&number)) {
                        circle.granted(Time::ZERO, *flow, 1, false);
                    }
                }
            }
        }
    }
}
