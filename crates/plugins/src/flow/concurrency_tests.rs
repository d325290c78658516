use proptest::prelude::*;

use sluice_flow::EndpointKey;

use super::*;

fn decode() -> Partitions {
    sluice_flow::Stages::DECODE.partitions()
}

fn facts(max_concurrency: Option<u64>) -> EndpointFacts {
    EndpointFacts { key: EndpointKey(0), partitions: decode(), max_concurrency }
}

fn detector(mode: ConcurrencyMode) -> ConcurrencyDetector {
    ConcurrencyDetector { mode, max_concurrency: 4, max_token_concurrency: 100, ..ConcurrencyDetector::default() }
}

fn saturation(detector: ConcurrencyDetector, loads: &[(u64, u64)]) -> f64 {
    let mut state = detector.new_state();
    let pool: Vec<_> = loads.iter().map(|&(requests, tokens)| (facts(None), Load { requests, tokens })).collect();
    state.reset(&pool);
    state.reading(Partition::Decode).saturation()
}

fn assert_close(left: f64, right: f64) {
    assert!((left - right).abs() < 1e-6, "{left} is not {right}");
}

#[test]
fn endpoints_that_are_new_are_empty_and_none_at_all_are_full() {
    for mode in [ConcurrencyMode::Requests, ConcurrencyMode::Tokens, ConcurrencyMode::Hybrid] {
        assert_close(saturation(detector(mode), &[(0, 0); 3]), 0.0);
        assert_close(saturation(detector(mode), &[]), 1.0);
    }
}

#[test]
fn requests_are_summed_over_the_pool() {
    assert_close(saturation(detector(ConcurrencyMode::Requests), &[(0, 0), (8, 0)]), 1.0);
    assert_close(saturation(detector(ConcurrencyMode::Requests), &[(1, 999), (2, 0)]), 0.375);
}

#[test]
fn tokens_are_summed_over_the_pool() {
    assert_close(saturation(detector(ConcurrencyMode::Tokens), &[(99, 50), (0, 25)]), 0.375);
}

fn capped(mode: ConcurrencyMode) -> ConcurrencyDetector {
    ConcurrencyDetector { cap_endpoint_tokens: true, ..detector(mode) }
}

#[test]
fn an_endpoint_over_its_limit_speaks_for_others() {
    let idle_and_twice_full = [(0, 0), (8, 0)];
    assert_close(saturation(detector(ConcurrencyMode::Requests), &idle_and_twice_full), 1.0);
    assert_close(saturation(detector(ConcurrencyMode::Hybrid), &idle_and_twice_full), 1.0);
    let by_tokens = [(0, 0), (1, 200)];
    assert_close(saturation(detector(ConcurrencyMode::Tokens), &by_tokens), 1.0);
    assert_close(saturation(detector(ConcurrencyMode::Hybrid), &by_tokens), 1.0);
    for mode in [ConcurrencyMode::Tokens, ConcurrencyMode::Hybrid] {
        assert_close(unstarted(detector(mode), 150), 0.75);
    }
}

#[test]
fn capped_tokens_fill_one_endpoint_and_no_more() {
    assert_close(saturation(capped(ConcurrencyMode::Tokens), &[(1, 1_000_000), (0, 0), (0, 0), (0, 20)]), 0.3);
    assert_close(saturation(capped(ConcurrencyMode::Hybrid), &[(1, 1_000_000), (1, 0)]), (1.0 + 0.25) / 2.0);
    // Requests are counted as they are: their limit is exact.
    assert_close(saturation(capped(ConcurrencyMode::Hybrid), &[(8, 1_000_000), (0, 0)]), 1.0);
    for mode in [ConcurrencyMode::Tokens, ConcurrencyMode::Hybrid] {
        assert_close(unstarted(capped(mode), 1_000_000), 0.5);
    }
}

/// The saturation of two idle endpoints when one lease of `tokens` was granted. Its end leaves nothing behind.
fn unstarted(detector: ConcurrencyDetector, tokens: u64) -> f64 {
    let mut state = detector.new_state();
    state.reset(&[(facts(None), Load::default()), (facts(None), Load::default())]);
    state.charge(decode(), tokens);
    let saturation = state.reading(Partition::Decode).saturation();
    state.discharge(decode(), tokens);
    assert_close(state.reading(Partition::Decode).saturation(), 0.0);
    saturation
}

#[test]
fn an_unstarted_lease_weighs_as_on_the_smallest_endpoint_there_is() {
    let of = |limits: &[u64]| limits.iter().map(|&limit| (facts(Some(limit)), Load::default())).collect::<Vec<_>>();
    let mut state = detector(ConcurrencyMode::Hybrid).new_state();
    state.reset(&of(&[48, 8]));
    state.charge(decode(), 0);
    state.charge(decode(), 50);
    assert_close(state.reading(Partition::Decode).saturation(), (0.125 + 0.5) / 2.0);
    // What was charged is weighed anew when another is the smallest.
    state.reset(&of(&[48, 2]));
    assert_close(state.reading(Partition::Decode).saturation(), (0.5 + 0.5) / 2.0);
    state.reset(&of(&[48, 50]));
    state.discharge(decode(), 50);
    assert_close(state.reading(Partition::Decode).saturation(), (1.0 / 48.0) / 2.0);
}

#[test]
fn what_waits_is_taken_for_the_least_that_it_can_come_to_weigh() {
    let mut state = detector(ConcurrencyMode::Hybrid).new_state();
    state.reset(&[(facts(Some(48)), Load::default()), (facts(Some(8)), Load::default())]);
    let endpoints =
        |requests, tokens| state.in_its_terms(state.demand_units(Partition::Decode, Load { requests, tokens }));
    assert_close(endpoints(3, 0), 3.0 / 48.0);
    assert_close(endpoints(3, 50), 0.5);
}

#[test]
fn hybrid_is_the_mean_of_the_worse() {
    assert_close(saturation(detector(ConcurrencyMode::Hybrid), &[(1, 90), (2, 10)]), (0.9 + 0.5) / 2.0);
}

#[test]
fn an_unstarted_lease_weighs_its_share_in_hybrid_mode() {
    let mut state = detector(ConcurrencyMode::Hybrid).new_state();
    state.reset(&[(facts(None), Load::default()), (facts(None), Load::default())]);
    state.charge(decode(), 50);
    assert_close(state.reading(Partition::Decode).saturation(), 0.25);
    state.discharge(decode(), 50);
    state.charge(decode(), 1);
    assert_close(state.reading(Partition::Decode).saturation(), 0.125);
}

#[test]
fn an_endpoint_may_have_its_own_limit() {
    let mut state = detector(ConcurrencyMode::Requests).new_state();
    state.reset(&[(facts(Some(12)), Load::one(0)), (facts(None), Load::default())]);
    assert_eq!(state.reading(Partition::Decode), Reading { load: 1, capacity: 16 });
}

#[test]
fn headroom_is_truncated() {
    let limits = |mode, headroom| {
        let detector = ConcurrencyDetector { headroom, ..detector(mode) };
        detector.new_state().booking_limit(&facts(None))
    };
    let unlimited = u64::MAX;
    assert_eq!(limits(ConcurrencyMode::Requests, 0.2), BookingLimit { requests: 4, tokens: unlimited });
    assert_eq!(limits(ConcurrencyMode::Requests, 0.25), BookingLimit { requests: 5, tokens: unlimited });
    assert_eq!(limits(ConcurrencyMode::Tokens, 0.5), BookingLimit { requests: unlimited, tokens: 150 });
    assert_eq!(limits(ConcurrencyMode::Hybrid, 1.0), BookingLimit { requests: 8, tokens: 200 });
}

fn any_mode() -> impl Strategy<Value = ConcurrencyMode> {
    prop_oneof![Just(ConcurrencyMode::Requests), Just(ConcurrencyMode::Tokens), Just(ConcurrencyMode::Hybrid)]
}

proptest! {
    /// What the eviction plan relies on.
    #[test]
    fn units_never_fall_and_loads_together_weigh_no_more_than_apart(
        mode in any_mode(),
        cap in any::<bool>(),
        limit in prop_oneof![Just(None), (1_u64..9).prop_map(Some)],
        one in (0_u64..20, 0_u64..300),
        other in (0_u64..20, 0_u64..300),
    ) {
        let state = ConcurrencyDetector { cap_endpoint_tokens: cap, ..detector(mode) }.new_state();
        let load = |(requests, tokens)| Load { requests, tokens };
        let units = |load| state.endpoint_units(&facts(limit), load);
        let together = units(load(one).plus(load(other)));
        prop_assert!(together >= units(load(one)));
        prop_assert!(together <= units(load(one)) + units(load(other)));
    }

    #[test]
    fn increments_agree_with_a_fresh_count(
        mode in any_mode(),
        changes in prop::collection::vec((0_usize..4, 0_u64..50, 0_u64..1000), 0..60),
    ) {
        let detector = detector(mode);
        let mut pool: Vec<(EndpointFacts, Load)> =
            [None, Some(1), Some(7), None].into_iter().map(|limit| (facts(limit), Load::default())).collect();
        let mut state = detector.new_state();
        state.reset(&pool);
        for (at, requests, tokens) in changes {
            let after = Load { requests, tokens };
            state.load_changed(&pool[at].0, pool[at].1, after);
            pool[at].1 = after;
            let mut fresh = detector.new_state();
            fresh.reset(&pool);
            prop_assert_eq!(state.reading(Partition::Decode), fresh.reading(Partition::Decode));
        }
    }
}
