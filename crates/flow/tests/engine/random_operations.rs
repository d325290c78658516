//! Random operations: the engine does what the oracle does, and breaks no invariant.

use proptest::prelude::*;

use crate::harness::ops::Op;
use crate::harness::shrink::{Coverage, run, search};

#[test]
fn the_engine_does_what_the_oracle_does() {
    let mut coverage = Coverage::default();
    if let Err(failure) = search(1, 20_000, 400, &mut coverage) {
        let ops: Vec<String> = failure.ops.iter().map(|op| format!("{op:?}")).collect();
        panic!("setup {:#x}\n{}\n{}", failure.setup, ops.join("\n"), failure.message);
    }
    let seen: Vec<&str> = coverage.counts().map(|(what, _)| what).collect();
    for what in [
        "cancel",
        "desired",
        "drain",
        "empty pool",
        "first chunk",
        "park: RoomAppeared",
        "park: Waiting",
        "pool",
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
    ] {
        assert!(seen.contains(&what), "the operations never came to {what:?}, only to {seen:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_list_of_operations_ends_well(setup: u64, words in prop::collection::vec(any::<u64>(), 0..120)) {
        let ops: Vec<Op> = words.into_iter().map(Op::decode).collect();
        if let Err(message) = run(setup, &ops) {
            return Err(TestCaseError::fail(message));
        }
    }
}
