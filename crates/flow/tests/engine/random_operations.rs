//! Random operations: the engine does what the oracle does, and breaks no invariant.

use proptest::prelude::*;

use crate::harness::history::Seen;
use crate::harness::ops::{Op, Words};
use crate::harness::shrink::{Coverage, run, search};

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
