//! A request wants in.

use std::time::Duration;

use sluice_core::{DropReason, Priority, Time};
use sluice_flow::{
    Ask, Effect, EndpointKey, EvictionConfig, GlobalLimits, Outcome, Signal, Stages, Start, Ticket, TtlHeader, Verdict,
    WhenFull,
};
use sluice_plugins::flow::{ConcurrencyDetector, ConcurrencyMode};

use crate::harness::rig::{Rig, ask, dropped, granted, hint, plain, pool, revoked, verdicts, with_ceilings};

#[test]
fn an_open_gate_admits_at_once() {
    let mut rig = Rig::new(plain(), &[1]);
    let (ticket, effects) = rig.submit(ask("a", 0));
    assert_eq!(verdicts(&effects), [(ticket, Verdict::Granted { reserved: None })]);
    assert_eq!(rig.engine.next_wakeup(), None);
}

#[test]
fn a_burst_fills_the_pool_exactly_and_the_rest_waits() {
    let mut rig = Rig::new(plain(), &[1]);
    let admitted: usize = (0..50).map(|_| granted(&rig.submit(ask("a", 0)).1).len()).sum();
    assert_eq!(admitted, 1);
    assert_eq!(rig.stats().waiting.requests, 49);
}

#[test]
fn no_grant_is_made_at_or_above_the_ceiling() {
    let mut rig = Rig::new(with_ceilings(&[(100, 0.9), (0, 0.8), (-10, 0.6)]), &[32]);
    let mut admitted = |priority: i32| (0..40).map(|_| granted(&rig.submit(ask("a", priority)).1).len()).sum::<usize>();
    assert_eq!(admitted(-10), 20);
    assert_eq!(admitted(0), 6);
    assert_eq!(admitted(100), 3);
}

#[test]
fn a_full_band_refuses_the_newcomer() {
    let mut config = plain();
    config.template.max_requests = 1;
    let mut rig = Rig::new(config, &[1]);
    rig.grant(ask("a", 0));
    rig.queue(ask("a", 0));
    let (ticket, effects) = rig.submit(ask("b", 0));
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedCapacity)]);
    assert_eq!(Outcome::RejectedCapacity.reason(), Some(DropReason::RejectedSaturated));
}

#[test]
fn bytes_may_reach_a_limit_exactly() {
    let mut config = plain();
    config.template.max_bytes = 100;
    let mut rig = Rig::new(config, &[0]);
    let sized = |bytes| Ask { bytes, ..ask("a", 0) };
    rig.queue(sized(60));
    rig.queue(sized(40));
    let (ticket, effects) = rig.submit(sized(1));
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedCapacity)]);
    rig.queue(sized(0));
}

#[test]
fn a_full_queue_on_an_empty_pool_is_a_lack_of_endpoints() {
    let mut config = plain();
    config.template.max_requests = 1;
    let mut rig = Rig::new(config, &[]);
    rig.queue(ask("a", 0));
    let (ticket, effects) = rig.submit(ask("a", 0));
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedNoEndpoints)]);
}

#[test]
fn a_shedding_band_admits_at_once_or_refuses() {
    let mut config = with_ceilings(&[(0, 1.0), (-1, 0.5)]);
    config.bands.get_mut(&Priority(-1)).unwrap().shed = true;
    let mut rig = Rig::new(config, &[2]);
    rig.grant(ask("batch", -1));
    let (ticket, effects) = rig.submit(ask("batch", -1));
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedCapacity)]);
    assert_eq!(rig.stats().waiting.requests, 0);
    rig.grant(ask("chat", 0));
}

#[test]
fn a_required_stage_without_endpoints_is_refused_at_once() {
    let mut rig = Rig::new(plain(), &[1]);
    let (ticket, effects) = rig.submit(Ask { required: Stages::BOTH, ..ask("a", 0) });
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedNoEndpoints)]);
}

#[test]
fn a_hint_that_no_endpoint_fits_is_refused_at_once_unless_the_pool_is_empty() {
    let mut rig = Rig::new(plain(), &[1]);
    let elsewhere = Ask { eligible: hint(&[7]), ..ask("a", 0) };
    let (ticket, effects) = rig.submit(elsewhere.clone());
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedNoEndpoints)]);
    let mut rig = Rig::new(plain(), &[]);
    rig.queue(elsewhere);
}

#[test]
fn displacing_takes_the_newest_of_the_lowest_band_below() {
    let mut config = plain();
    config.global = GlobalLimits { requests: Some(4), bytes: None };
    config.when_full = WhenFull::Displace;
    let mut rig = Rig::new(config, &[0]);
    let batch: Vec<_> = [-1, -5, -5, 0].map(|priority| rig.queue(ask("a", priority))).into();
    let (_, effects) = rig.submit(ask("a", 5));
    assert_eq!(dropped(&effects), [(batch[2], Outcome::RejectedCapacity)]);
    let (_, effects) = rig.submit(ask("a", 5));
    assert_eq!(dropped(&effects), [(batch[1], Outcome::RejectedCapacity)]);
    // Nothing below the lowest band, and nothing below itself.
    let (ticket, effects) = rig.submit(ask("a", -1));
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedCapacity)]);
    let displaced = rig.stats().totals[&Priority(-5)].displaced;
    assert_eq!(displaced, 2);
}

#[test]
fn displacing_drops_nobody_if_all_of_them_would_not_do() {
    let mut config = plain();
    config.global = GlobalLimits { requests: None, bytes: Some(100) };
    config.when_full = WhenFull::Displace;
    let mut rig = Rig::new(config, &[0]);
    let sized = |priority, bytes| Ask { bytes, ..ask("a", priority) };
    rig.queue(sized(0, 60));
    rig.queue(sized(-1, 30));
    let (ticket, effects) = rig.submit(sized(1, 101));
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedCapacity)]);
    assert_eq!(rig.stats().waiting.requests, 2);
}

/// One batch request waits in a queue that has room for no other, behind a gate that is closed to all but
/// priority 5.
fn full_of_batch() -> (Rig, Ticket) {
    let mut config = with_ceilings(&[(5, 1.0), (0, 0.5), (-1, 0.5)]);
    config.global = GlobalLimits { requests: Some(1), bytes: None };
    config.when_full = WhenFull::Displace;
    config.bands.get_mut(&Priority(0)).unwrap().shed = true;
    let mut rig = Rig::new(config, &[2]);
    rig.grant(ask("a", -1));
    let batch = rig.queue(ask("a", -1));
    (rig, batch)
}

#[test]
fn a_newcomer_that_is_refused_anyway_displaces_nobody() {
    let within = |nanos| TtlHeader::Within(Duration::from_nanos(nanos));
    let refused = |mut rig: Rig, ask: Ask, expected| {
        let (ticket, effects) = rig.submit(ask);
        assert_eq!(dropped(&effects), [(ticket, expected)]);
        assert_eq!(rig.stats().waiting.requests, 1, "the one that waited waits on");
        assert_eq!(rig.stats().totals.values().map(|totals| totals.displaced).sum::<u64>(), 0);
    };
    let closed = || {
        let (mut rig, batch) = full_of_batch();
        rig.grant(ask("b", 5));
        (rig, batch)
    };
    // What ends before a timer could tell that it had begun is no wait.
    for nanos in [0, 1, 999_999] {
        let (rig, _) = closed();
        refused(rig, Ask { ttl: within(nanos), ..ask("b", 5) }, Outcome::EvictedTtl);
    }
    let (rig, _) = closed();
    refused(rig, Ask { stream_deadline: Some(Time::ZERO), ..ask("b", 5) }, Outcome::EvictedTtl);
    let (rig, _) = closed();
    refused(rig, ask("b", 0), Outcome::RejectedCapacity);
    let (rig, _) = closed();
    refused(rig, Ask { eligible: hint(&[7]), ..ask("b", 5) }, Outcome::RejectedNoEndpoints);
    let (rig, _) = closed();
    refused(rig, Ask { required: Stages::BOTH, ..ask("b", 5) }, Outcome::RejectedNoEndpoints);
    let (mut rig, _) = closed();
    rig.observe(Signal::Pool(vec![]));
    refused(rig, Ask { ttl: within(0), ..ask("b", 5) }, Outcome::EvictedNoEndpoints);
    let (mut rig, batch) = closed();
    rig.observe(Signal::Drain);
    let (ticket, effects) = rig.submit(ask("b", 5));
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedOther)]);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Verdict { ticket, .. } if *ticket == batch)));
}

#[test]
fn a_queue_above_its_limit_by_parking_is_not_cut_for_a_newcomer_that_is_refused() {
    let mut config = with_ceilings(&[(5, 1.0), (0, 1.0), (-1, 0.5)]);
    config.global = GlobalLimits { requests: Some(1), bytes: None };
    config.when_full = WhenFull::Displace;
    let mut rig = Rig::new(config, &[1, 1]);
    rig.run_on(0, ask("a", 0));
    let parks = rig.grant(ask("a", 0));
    rig.queue(ask("a", -1));
    rig.engine.park(rig.now, parks, hint(&[0]).unwrap());
    rig.run_on(1, ask("a", 5));
    assert_eq!(rig.stats().waiting.requests, 2);
    let (ticket, effects) = rig.submit(Ask { ttl: TtlHeader::Within(Duration::ZERO), ..ask("b", 5) });
    assert_eq!(dropped(&effects), [(ticket, Outcome::EvictedTtl)]);
}

#[test]
fn a_newcomer_that_is_granted_at_once_displaces_nobody() {
    let (mut rig, batch) = full_of_batch();
    rig.grant(Ask { ttl: TtlHeader::Within(Duration::ZERO), ..ask("b", 5) });
    // The next one has to wait, and needs the place.
    let (waiting, effects) = rig.submit(ask("b", 5));
    assert_eq!(dropped(&effects), [(batch, Outcome::RejectedCapacity)]);
    assert_eq!(rig.stats().waiting.requests, 1);
    assert_eq!(rig.stats().totals[&Priority(-1)].displaced, 1);
    rig.engine.cancel(rig.now, waiting);
}

#[test]
fn a_newcomer_that_is_refused_has_nothing_revoked() {
    let mut config = with_ceilings(&[(5, 1.0), (0, 1.0), (-1, 1.0)]);
    config.eviction = Some(EvictionConfig::default());
    config.bands.get_mut(&Priority(0)).unwrap().shed = true;
    let mut rig = Rig::new(config, &[1]);
    let batch = rig.run_on(0, ask("a", -1));
    let (ticket, effects) = rig.submit(ask("b", 0));
    assert_eq!((dropped(&effects), revoked(&effects)), (vec![(ticket, Outcome::RejectedCapacity)], vec![]));
    let within = |nanos| Ask { ttl: TtlHeader::Within(Duration::from_nanos(nanos)), ..ask("b", 5) };
    for nanos in [0, 1, 999_999] {
        let (ticket, effects) = rig.submit(within(nanos));
        assert_eq!((dropped(&effects), revoked(&effects)), (vec![(ticket, Outcome::EvictedTtl)], vec![]));
    }
    assert_eq!(revoked(&rig.submit(within(1_000_000)).1), [batch]);
}

#[test]
fn a_band_limit_displaces_nobody() {
    let mut config = plain();
    config.template.max_requests = 1;
    config.when_full = WhenFull::Displace;
    let mut rig = Rig::new(config, &[0]);
    rig.queue(ask("a", -1));
    rig.queue(ask("a", 0));
    let (ticket, effects) = rig.submit(ask("a", 0));
    assert_eq!(dropped(&effects), [(ticket, Outcome::RejectedCapacity)]);
}

#[test]
fn a_ttl_of_zero_means_at_once_or_not_at_all() {
    let mut rig = Rig::new(plain(), &[1]);
    let at_once = Ask { ttl: TtlHeader::Within(Duration::ZERO), ..ask("a", 0) };
    rig.grant(at_once.clone());
    let (ticket, effects) = rig.submit(at_once);
    assert_eq!(dropped(&effects), [(ticket, Outcome::EvictedTtl)]);
}

#[test]
fn an_unusable_ttl_is_ignored_and_counted() {
    let mut rig = Rig::new(plain(), &[0]);
    rig.queue(Ask { ttl: TtlHeader::Invalid, ..ask("a", 0) });
    assert_eq!(rig.stats().invalid_ttls, 1);
}

#[test]
fn tokens_may_pass_the_ceiling_by_one_request_but_size_alone_never_refuses() {
    let mut config = plain();
    config.detector = std::sync::Arc::new(ConcurrencyDetector {
        mode: ConcurrencyMode::Tokens,
        max_token_concurrency: 100,
        ..ConcurrencyDetector::default()
    });
    let mut rig = Rig::new(config, &[1]);
    let sized = |tokens| Ask { tokens, ..ask("a", 0) };
    rig.grant(sized(99));
    let huge = rig.grant(sized(1000));
    rig.queue(sized(0));
    assert_eq!(granted(&rig.release(huge)).len(), 1);
}

#[test]
fn where_tokens_are_capped_a_huge_prompt_leaves_the_gate_open_for_other_endpoints() {
    for mode in [ConcurrencyMode::Tokens, ConcurrencyMode::Hybrid] {
        let mut config = plain();
        config.detector = std::sync::Arc::new(ConcurrencyDetector {
            mode,
            max_concurrency: 4,
            max_token_concurrency: 100,
            cap_endpoint_tokens: true,
            ..ConcurrencyDetector::default()
        });
        let mut rig = Rig::new(config, &[4, 4]);
        let sized = |tokens| Ask { tokens, ..ask("a", 0) };
        let huge = rig.grant(sized(5_000_000));
        // Neither before it has started nor after.
        let small = rig.grant(sized(99));
        rig.start(small, 1).unwrap();
        rig.engine.start(rig.now, huge, Start::on(EndpointKey(0), 5_000_000)).unwrap();
        let last = rig.grant(sized(1));
        rig.engine.start(rig.now, last, Start::on(EndpointKey(1), 100)).unwrap();
        rig.queue(sized(1));
        assert!((rig.stats().effective_saturation - 1.0).abs() < 1e-9, "{mode:?}");
    }
}

#[test]
fn hybrid_with_own_limits_keeps_the_ceiling() {
    let mut config = plain();
    config.detector = std::sync::Arc::new(ConcurrencyDetector {
        mode: ConcurrencyMode::Hybrid,
        max_concurrency: 48,
        ..ConcurrencyDetector::default()
    });
    let mut rig = Rig::new(config, &[8, 48]);
    let on_small: Vec<_> = (0..8).map(|_| rig.run_on(0, ask("a", 0))).collect();
    for _ in 0..48 {
        rig.run_on(1, ask("a", 0));
    }
    for _ in 0..6 {
        rig.queue(ask("a", 0));
    }
    // Six shares of the large endpoint would fit into the place that comes free on the small one.
    let granted = granted(&rig.release(on_small[0]));
    assert_eq!(granted.len(), 1);
    assert_eq!(rig.start(granted[0], 0), Ok(()));
    assert_eq!(rig.effects(), []);
    assert!((rig.stats().effective_saturation - 1.0).abs() < 1e-9);
}

#[test]
fn unstarted_leases_are_weighed_anew_when_a_smaller_endpoint_comes() {
    let mut config = plain();
    config.detector =
        std::sync::Arc::new(ConcurrencyDetector { mode: ConcurrencyMode::Hybrid, ..ConcurrencyDetector::default() });
    let mut rig = Rig::new(config, &[8]);
    let waits = rig.grant(ask("a", 0));
    rig.observe(pool(&[8, 2]));
    assert!((rig.stats().effective_saturation - 0.25).abs() < 1e-9);
    assert_eq!(rig.start(waits, 0), Ok(()));
    assert!((rig.stats().effective_saturation - 0.0625).abs() < 1e-9);
}

#[test]
fn tenants_beyond_the_limit_share_a_flow() {
    let mut config = plain();
    config.max_flows_per_band = 2;
    let mut rig = Rig::new(config, &[0]);
    for tenant in ["a", "b", "c", "d", "a"] {
        rig.queue(ask(tenant, 0));
    }
    let stats = rig.stats();
    let flows: Vec<(&str, u64)> =
        stats.bands[0].flows.iter().map(|flow| (&*flow.tenant, flow.waiting.requests)).collect();
    assert_eq!(flows, [("a", 2), ("b", 1), ("other", 2)]);
}

fn retry_after(effects: &[Effect]) -> Option<u8> {
    match verdicts(effects)[0].1 {
        Verdict::Dropped { outcome: Outcome::RejectedCapacity, retry_after } => retry_after,
        other => panic!("it was to be refused: {other:?}"),
    }
}

#[test]
fn a_refusal_says_when_the_queue_is_likely_to_have_drained() {
    let mut config = plain();
    config.template.max_requests = 4;
    let mut rig = Rig::new(config, &[1]);
    let mut running = rig.run_on(0, ask("a", 0));
    for _ in 0..4 {
        rig.queue(ask("a", 0));
    }
    // One goes every two seconds.
    for second in 1..=20 {
        rig.at_millis(second * 2_000);
        let next = granted(&rig.release(running))[0];
        rig.start(next, 0).unwrap();
        rig.queue(ask("a", 0));
        running = next;
    }
    assert_eq!(retry_after(&rig.submit(ask("a", 0)).1), Some(8));
}

#[test]
fn only_what_waits_at_or_above_counts_for_when_to_come_back() {
    let mut config = plain();
    config.template.max_requests = 4;
    let mut rig = Rig::new(config, &[1]);
    let mut running = rig.run_on(0, ask("a", 9));
    for _ in 0..4 {
        rig.queue(ask("a", -1));
    }
    // One goes every second, of the band above all others.
    for second in 1..=20 {
        rig.queue(ask("a", 9));
        rig.at_millis(second * 1_000);
        let next = granted(&rig.release(running))[0];
        rig.start(next, 0).unwrap();
        running = next;
    }
    for _ in 0..4 {
        rig.queue(ask("a", 0));
    }
    assert_eq!(retry_after(&rig.submit(ask("a", 0)).1), Some(4));
    assert_eq!(retry_after(&rig.submit(ask("a", -1)).1), Some(8));
}

#[test]
fn a_refusal_after_a_quiet_spell_does_not_take_silence_for_a_standstill() {
    let mut config = plain();
    config.template.max_requests = 2;
    let mut rig = Rig::new(config, &[100]);
    // Requests come and go for an hour; none has to wait.
    for second in 0..3_600 {
        rig.at_millis(second * 1_000);
        let ticket = rig.run_on(0, ask("a", 0));
        rig.release(ticket);
    }
    rig.at_millis(4_000_000);
    rig.run_many(100, "a", 0);
    rig.queue(ask("a", 0));
    rig.queue(ask("a", 0));
    assert_eq!(retry_after(&rig.submit(ask("a", 0)).1), Some(1));
    // But a queue that stands still does not become shorter by that.
    rig.at_millis(4_020_000);
    assert_eq!(retry_after(&rig.submit(ask("a", 0)).1), Some(15));
}
