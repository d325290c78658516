//! Random operations: the engine does what the oracle does, and breaks no invariant.

use proptest::prelude::*;

use crate::harness::history::Seen;
use crate::harness::ops::{Op, Words};
use crate::harness::shrink::{Coverage, Failure, minimal, run, search};

#[test]
fn the_engine_does_what_the_oracle_does() {
    let mut coverage = Coverage::default();
    if let Err(failure) = search(1, 20_000, 400, &mut coverage) {
        let ops: Vec<String> = failure.ops.iter().map(|op| format!("{op:?}")).collect();
        panic!("setup {:#x}\n{}\n{}", failure.setup, ops.join("\n"), failure.message);
    }
    let seen: Vec<&str> = coverage.counts().filter(|(_, count)| *count > 0).map(|(what, _)| what).collect();
    for what in [
        "cancel",
        "desired",
        "drain",
        "empty pool",
        "first chunk",
        "park: RoomAppeared",
        "park: Waiting",
        "pool",
        "rebook",
        "refused by headers",
        "not refused by headers",
        "release",
        "reload",
        "start",
        "start: Full",
        "start: Left",
        "submit",
        "time",
        "-> EvictedNoEndpoints",
        "-> EvictedOther",
        "-> EvictedTTL",
        "-> RejectedCapacity",
        "-> RejectedNoEndpoints",
        "-> RejectedOther",
        "-> granted",
        "-> granted after parking",
        "-> revoked: Eviction",
        "counted: displaced",
        "counted: would gate",
        "counted: would revoke",
    ] {
        assert!(seen.contains(&what), "the operations never came to {what:?}, only to {seen:?}");
    }
}

#[test]
fn a_failing_list_is_made_as_short_as_can_be() {
    let wait = Op::Wait { millis: 1, tell: true };
    let ops = [vec![wait; 100], vec![Op::Drain], vec![wait; 60], vec![Op::Shutdown], vec![wait; 7]].concat();
    let failing = |_: u64, ops: &[Op]| {
        let drained = ops.iter().position(|op| *op == Op::Drain)?;
        ops[drained..].contains(&Op::Shutdown).then(|| format!("{} are left", ops.len()))
    };
    let shortest = minimal(Failure { setup: 0, ops, message: String::new() }, failing);
    assert_eq!((shortest.ops, shortest.message.as_str()), (vec![Op::Drain, Op::Shutdown], "2 are left"));
}

/// Requests counted, weighted turns, no limit on the queue that is ever reached; calm.
const CALM_AND_WEIGHTED: u64 = 0xc002_0401_0104_0000;

#[test]
fn shares_keep_to_their_bound_while_all_have_something_to_send() {
    let (mut words, mut grants) = (Words::new(1), 0);
    for _ in 0..20 {
        let ops = Op::decode_all(CALM_AND_WEIGHTED, words.by_ref().take(400));
        let history = run(CALM_AND_WEIGHTED, &ops).unwrap();
        let effects = history.iter().flat_map(|step| &step.effects);
        grants += effects.filter(|seen| matches!(seen, Seen::Granted { .. })).count();
    }
    assert!(grants > 1_000, "{grants} grants show nothing");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_list_of_operations_ends_well(setup: u64, words in prop::collection::vec(any::<u64>(), 0..120)) {
        let ops = Op::decode_all(setup, words);
        if let Err(message) = run(setup, &ops) {
            return Err(TestCaseError::fail(message));
        }
    }
}
