use std::collections::VecDeque;

use proptest::prelude::*;
use slotmap::SlotMap;

use super::*;

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

/// A row with the flows that were ever made for it.
#[derive(Default)]
struct Band {
    ids: SlotMap<FlowId, ()>,
    row: Row,
}

impl Band {
    fn add(&mut self) -> FlowId {
        let flow = self.ids.insert(());
        self.row.add(flow, &"tenant".into());
        flow
    }

    fn backlogged(&mut self) -> FlowId {
        let flow = self.add();
        self.row.set_head(flow, Some(Head::default()));
        flow
    }

    /// The flow stays backlogged.
    fn turn(&mut self) -> Option<FlowId> {
        let flow = self.row.pick(Time::ZERO)?;
        self.row.granted(Time::ZERO, flow, 1, true);
        Some(flow)
    }
}

proptest! {
    /// Beside a plain list.
    #[test]
    fn turns_go_to_whoever_has_waited_longest(steps in steps()) {
        let mut band = Band::default();
        let mut flows = Vec::new();
        let mut waiting: VecDeque<FlowId> = VecDeque::new();
        for step in steps {
            let nth = |which: usize, flows: &[FlowId]| flows.get(which % flows.len().max(1)).copied();
            match step {
                Step::Add => flows.push(band.add()),
                Step::Remove(which) => {
                    if let Some(flow) = nth(which, &flows) {
                        band.row.remove(flow);
                        band.ids.remove(flow);
                        flows.retain(|other| *other != flow);
                        waiting.retain(|other| *other != flow);
                    }
                }
                Step::SetHead(which, head) => {
                    if let Some(flow) = nth(which, &flows) {
                        band.row.set_head(flow, head.then(Head::default));
                        if !head {
                            waiting.retain(|other| *other != flow);
                        } else if !waiting.contains(&flow) {
                            waiting.push_back(flow);
                        }
                    }
                }
                Step::Turn => {
                    prop_assert_eq!(band.turn(), waiting.front().copied());
                    let rounds = usize::from(!waiting.is_empty());
                    waiting.rotate_left(rounds);
                }
                Step::OutOfTurn(which) => {
                    if let Some(flow) = nth(which, &flows) {
                        band.row.granted(Time::ZERO, flow, 1, false);
                    }
                }
            }
            prop_assert_eq!(band.row.pick(Time::ZERO), waiting.front().copied());
            prop_assert_eq!(band.row.last, waiting.back().copied());
        }
    }

    /// Whoever comes, goes and comes again meanwhile: only those that had something to send when a wait began are served
    /// before it, and each of them once.
    #[test]
    fn nobody_waits_for_flows_that_came_later(before in 0_usize..20, fresh in prop::collection::vec(0_usize..4, 1..40)) {
        let mut band = Band::default();
        for _ in 0..before {
            band.backlogged();
        }
        let patient = band.backlogged();
        let mut turns = 0;
        for newcomers in fresh.into_iter().cycle() {
            for _ in 0..newcomers {
                band.backlogged();
            }
            let served = band.turn().expect("somebody waits");
            if served == patient {
                break;
            }
            if newcomers % 2 == 1 {
                band.row.set_head(served, None);
                band.row.set_head(served, Some(Head::default()));
            }
            turns += 1;
        }
        prop_assert_eq!(turns, before);
    }
}
