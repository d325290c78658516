use std::collections::BTreeMap;

use proptest::prelude::*;
use sluice_core::{Scraped, Time};
use sluice_flow::policy::{Departure, EndpointFacts, Reading, SaturationDetector};
use sluice_flow::{EndpointKey, Load, Partition, Stages};

use super::*;
use crate::testing::{reporting, request};

fn facts(key: u64) -> EndpointFacts {
    EndpointFacts { key: EndpointKey(key), partitions: Stages::DECODE.partitions(), max_concurrency: None }
}

/// What was said at `began` ms.
fn said(began: u64, waiting: u64, running: u64, kv_usage: f64) -> Scraped {
    let at = Scraped::at(Time::from_millis(began));
    Scraped { waiting: Some(waiting), running: Some(running), kv_usage: Some(kv_usage), ..at }
}

/// The saturation at `now` ms of endpoints that have said this, each for the first time; none: nothing.
fn saturation(detector: UtilizationDetector, now: u64, samples: &[Option<Scraped>]) -> f64 {
    let mut state = detector.new_state();
    let pool: Vec<_> = (0..samples.len() as u64).map(|key| (facts(key), Load::default())).collect();
    state.reset(&pool);
    for ((facts, _), sample) in pool.iter().zip(samples) {
        let estimate = state.estimate_mut().unwrap();
        sample.iter().for_each(|sample| estimate.scraped(sample.began, facts, sample));
    }
    state.advance(Time::from_millis(now));
    state.reading(Partition::Decode).saturation()
}

fn assert_close(left: f64, right: f64) {
    assert!((left - right).abs() < 1e-6, "{left} is not {right}");
}

fn ignoring() -> UtilizationDetector {
    UtilizationDetector { staleness_policy: StalenessPolicy::Ignore, ..UtilizationDetector::default() }
}

#[test]
fn an_endpoint_counts_by_the_worse_of_queue_and_cache() {
    let of = |sample| saturation(UtilizationDetector::default(), 0, &[Some(sample)]);
    assert_close(of(said(0, 0, 9, 0.0)), 0.0);
    assert_close(of(said(0, 1, 9, 0.1)), 0.2);
    assert_close(of(said(0, 1, 9, 0.4)), 0.5);
    assert_close(of(said(0, 5, 9, 0.4)), 1.0);
    assert_close(of(said(0, 15, 9, 1.0)), 3.0);
}

#[test]
fn the_pool_counts_by_its_mean_or_by_its_least_loaded() {
    let samples = [Some(said(0, 15, 9, 0.0)), Some(said(0, 1, 9, 0.0))];
    assert_close(saturation(UtilizationDetector::default(), 0, &samples), 1.6);
    let least = UtilizationDetector { aggregation: Aggregation::Min, ..UtilizationDetector::default() };
    assert_close(saturation(least, 0, &samples), 0.2);
}

#[test]
fn one_stale_of_two() {
    let samples = [Some(said(0, 0, 0, 0.0)), Some(said(200, 2, 0, 0.0))];
    assert_close(saturation(UtilizationDetector::default(), 200, &samples), 0.2);
    assert_close(saturation(UtilizationDetector::default(), 201, &samples), 0.7);
    assert_close(saturation(ignoring(), 201, &samples), 0.4);
}

#[test]
fn all_stale() {
    for samples in [vec![Some(said(0, 0, 0, 0.0))], vec![Some(said(0, 9, 0, 0.0)), None], vec![None]] {
        assert_close(saturation(UtilizationDetector::default(), 500, &samples), 1.0);
        assert_close(saturation(ignoring(), 500, &samples), 0.0);
    }
}

#[test]
fn an_empty_pool_is_saturated() {
    assert_close(saturation(UtilizationDetector::default(), 0, &[]), 1.0);
    assert_close(saturation(ignoring(), 0, &[]), 1.0);
}

#[test]
fn an_endpoint_is_judged_by_what_it_reports() {
    let only_queue = Scraped { kv_usage: None, ..said(0, 2, 0, 0.0) };
    assert_close(saturation(UtilizationDetector::default(), 0, &[Some(only_queue)]), 0.4);
    let only_cache = Scraped { waiting: None, running: None, ..said(0, 0, 0, 0.4) };
    assert_close(saturation(UtilizationDetector::default(), 0, &[Some(only_cache)]), 0.5);
    let nothing = Scraped { waiting: None, kv_usage: None, ..said(0, 0, 3, 0.0) };
    assert_close(saturation(UtilizationDetector::default(), 0, &[Some(nothing)]), 1.0);
}

/// An endpoint that said at 0 ms that one request waits, and how much of its cache is used, 0.4: half of a threshold.
fn named_both() -> Box<dyn Saturation> {
    let mut state = UtilizationDetector::default().new_state();
    state.reset(&[(facts(0), Load::default())]);
    say(&mut *state, &said(0, 1, 0, 0.4));
    assert_close(judged(&*state), 0.5);
    state
}

fn say(state: &mut dyn Saturation, page: &Scraped) {
    let now = page.began;
    state.advance(now);
    state.estimate_mut().unwrap().scraped(now, &facts(0), page);
}

/// The saturation, which is 1 for exactly the stale.
fn judged(state: &dyn Saturation) -> f64 {
    let saturation = state.reading(Partition::Decode).saturation();
    assert_eq!(state.estimate().unwrap().stale_endpoints() == 1, saturation >= 1.0);
    saturation
}

/// What it says every 100 ms, up to and including the one at `last` ms.
fn keep_saying(state: &mut dyn Saturation, first: u64, last: u64, page: &Scraped) {
    for began in (first..=last).step_by(100) {
        say(state, &Scraped { began: Time::from_millis(began), ..page.clone() });
    }
}

#[test]
fn an_endpoint_that_ceases_to_name_its_cache_is_soon_judged_by_its_queue() {
    let mut state = named_both();
    let queue = Scraped { kv_usage: None, ..said(0, 1, 0, 0.0) };
    keep_saying(&mut *state, 100, 200, &queue);
    assert_close(judged(&*state), 0.5);
    keep_saying(&mut *state, 300, 300, &queue);
    assert_close(judged(&*state), 0.2);
    keep_saying(&mut *state, 400, 20_000, &queue);
    assert_close(judged(&*state), 0.2);
    say(&mut *state, &said(20_100, 1, 0, 0.4));
    assert_close(judged(&*state), 0.5);
}

#[test]
fn an_endpoint_that_has_lost_its_queue_is_stale_and_one_without_any_is_judged_by_its_cache() {
    let mut state = named_both();
    let lost = Scraped { waiting: None, lost_queue: true, ..said(0, 0, 0, 0.2) };
    keep_saying(&mut *state, 100, 200, &lost);
    assert_close(judged(&*state), 0.5);
    keep_saying(&mut *state, 300, 9_900, &lost);
    assert_close(judged(&*state), 1.0);
    keep_saying(&mut *state, 10_000, 20_000, &Scraped { lost_queue: false, ..lost });
    assert_close(judged(&*state), 0.25);
}

#[test]
fn a_new_detector_does_not_take_half_a_page_for_an_idle_endpoint() {
    let lost = Scraped { waiting: None, lost_queue: true, ..said(0, 0, 0, 0.2) };
    assert_close(saturation(UtilizationDetector::default(), 0, &[Some(lost)]), 1.0);
}

#[test]
fn an_endpoint_is_not_blamed_for_the_time_that_its_pages_take() {
    let slow = |began| Scraped { lenience: Duration::from_millis(750), ..said(began, 1, 0, 0.0) };
    let mut state = UtilizationDetector::default().new_state();
    state.reset(&[(facts(0), Load::default())]);
    // It took 250 ms to answer.
    state.advance(Time::from_millis(250));
    state.estimate_mut().unwrap().scraped(Time::from_millis(250), &facts(0), &slow(0));
    assert_close(judged(&*state), 0.2);
    assert_eq!(state.next_change(), Some(Time::from_nanos(950_000_001)));
    state.advance(Time::from_millis(950));
    assert_close(judged(&*state), 0.2);
    state.advance(state.next_change().unwrap());
    assert_close(judged(&*state), 1.0);
    // What happened while it answered is not in the page all the same.
    state.estimate_mut().unwrap().started(&facts(0), Time::from_millis(1_100));
    state.estimate_mut().unwrap().scraped(Time::from_millis(1_300), &facts(0), &slow(1_000));
    assert_close(judged(&*state), 0.4);
}

#[test]
fn what_one_engine_ran_at_once_says_nothing_of_another() {
    let mut state = UtilizationDetector::default().new_state();
    state.reset(&[(facts(0), Load::default())]);
    let [triton, vllm, other_vllm] = ["triton", "vllm", "vllm"].map(Arc::<str>::from);
    let page = |began, engine: &Arc<str>, running| Scraped {
        engine: Some(Arc::clone(engine)),
        ..said(began, 0, running, 0.0)
    };
    say(&mut *state, &page(0, &triton, 500));
    let expected =
        |state: &dyn Saturation| state.estimate().unwrap().seen(Time::from_millis(50), EndpointKey(0)).unwrap();
    say(&mut *state, &page(50, &triton, 0));
    assert_eq!(expected(&*state).room, 500);
    say(&mut *state, &page(100, &vllm, 40));
    say(&mut *state, &page(150, &vllm, 0));
    assert_eq!(expected(&*state).room, 40);
    say(&mut *state, &page(200, &other_vllm, 0));
    assert_eq!(expected(&*state).room, 0, "of the same name, and read in another way");
}

/// The state of `detector`, which takes the place of that of another one.
fn taken_over(
    mut former: Box<dyn Saturation>,
    now: Time,
    detector: UtilizationDetector,
    pool: &[(EndpointFacts, Load)],
) -> Box<dyn Saturation> {
    let known = former.estimate_mut().unwrap().hand_over();
    let mut state = detector.new_state();
    assert!(state.estimate_mut().unwrap().take_over(now, known));
    state.reset(pool);
    state
}

#[test]
fn another_staleness_holds_for_what_was_said_before() {
    let (pool, now) = ([(facts(0), Load::default())], Time::from_millis(150));
    let mut state = UtilizationDetector::default().new_state();
    state.reset(&pool);
    say(&mut *state, &said(0, 0, 1, 0.0));
    state.advance(now);
    let with =
        |millis| UtilizationDetector { staleness: Duration::from_millis(millis), ..UtilizationDetector::default() };
    let mut state = taken_over(state, now, with(149), &pool);
    assert_close(judged(&*state), 1.0);
    assert_eq!(state.next_change(), None);
    state = taken_over(state, now, with(160), &pool);
    assert_close(judged(&*state), 0.0);
    assert_eq!(state.next_change(), Some(Time::from_nanos(160_000_001)));
    state.advance(Time::from_millis(161));
    assert_close(judged(&*state), 1.0);
}

#[test]
fn an_endpoint_that_ceases_to_name_both_stays_stale() {
    let mut state = named_both();
    keep_saying(
        &mut *state,
        100,
        20_000,
        &Scraped { waiting: None, kv_usage: None, lost_queue: true, ..said(0, 0, 0, 0.0) },
    );
    assert_close(judged(&*state), 1.0);
}

#[test]
fn an_endpoint_that_names_its_queue_again_is_judged_by_it_at_once() {
    for silent in [300, 9_900, 20_000] {
        for kv_usage in [None, Some(0.2)] {
            let mut state = named_both();
            keep_saying(
                &mut *state,
                100,
                silent,
                &Scraped { waiting: None, kv_usage, lost_queue: true, ..said(0, 0, 0, 0.0) },
            );
            say(&mut *state, &said(silent + 100, 3, 0, 0.0));
            assert_close(judged(&*state), 0.6);
        }
    }
}

#[test]
fn the_filter_keeps_fresh_endpoints_below_the_thresholds() {
    let fitting = |detector: UtilizationDetector, received: u64| {
        let endpoints = reporting(&[(0, 4, 0), (0, 5, 0), (0, 6, 0)]);
        let mut candidates = Candidates::new(&endpoints);
        let request = Request { received: Time::from_millis(received), ..request() };
        detector.filter(&request, &mut candidates);
        candidates.as_slice().iter().map(|endpoint| endpoint.id.name.to_string()).collect::<Vec<_>>()
    };
    let detector = UtilizationDetector::default();
    assert_eq!(fitting(detector, 200), ["0"]);
    assert_eq!(fitting(UtilizationDetector { headroom: 0.1, ..detector }, 200), ["0", "1"]);
    assert_eq!(fitting(UtilizationDetector { queue_depth_threshold: 4, ..detector }, 200), ["0", "1", "2"]);
    assert_eq!(fitting(detector, 201), ["0", "1", "2"], "all are stale");
}

#[test]
fn the_filter_takes_out_a_stale_endpoint_and_a_full_cache() {
    let endpoints = reporting(&[(0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0)]);
    endpoints[0].set_scraped(said(100, 0, 0, 0.0));
    endpoints[1].set_scraped(said(301, 0, 0, 0.0));
    endpoints[2].set_scraped(said(301, 0, 0, 0.8));
    let mut candidates = Candidates::new(&endpoints);
    UtilizationDetector::default().filter(&request(), &mut candidates);
    let kept: Vec<_> = candidates.as_slice().iter().map(|endpoint| &*endpoint.id.name).collect();
    assert_eq!(kept, ["1"]);
}

/// The filter lets no endpoint through that saturation takes for stale.
#[test]
fn the_filter_and_saturation_agree_on_what_can_be_gone_by() {
    for lost_queue in [false, true] {
        let half = Scraped { waiting: None, lost_queue, ..said(0, 0, 0, 0.2) };
        let endpoints = reporting(&[(0, 0, 0), (0, 0, 0)]);
        endpoints[1].set_scraped(half.clone());
        let mut candidates = Candidates::new(&endpoints);
        UtilizationDetector::default().filter(&request(), &mut candidates);
        let is_stale = saturation(UtilizationDetector::default(), 0, &[Some(half)]) >= 1.0;
        assert_eq!((candidates.len() == 1, is_stale), (lost_queue, lost_queue));
    }
}

/// The rule written down plainly: everything that ever happened is kept and looked at.
#[derive(Debug, Default)]
struct Plain {
    leases: Vec<Lease>,
    sample: Option<Scraped>,
    hidden: u64,
    foreign: u64,
    learned: u64,
    /// When the queue was first seen that it still has.
    queue_since: Option<Time>,
}

#[derive(Debug)]
struct Lease {
    started: Time,
    ended: Option<(Time, Departure)>,
}

impl Plain {
    fn count(&self, which: impl Fn(&Lease) -> bool) -> u64 {
        self.leases.iter().filter(|lease| which(lease)).count() as u64
    }

    fn scraped(&mut self, sample: Scraped) {
        let began = sample.began;
        let there = |lease: &Lease| lease.started <= began && lease.ended.is_none_or(|(at, _)| at > began);
        let in_flight = self.count(there);
        let lately =
            self.count(|lease| there(lease) && lease.started > began.saturating_sub(Duration::from_millis(20)));
        let shown = sample.waiting.unwrap() + sample.running.unwrap();
        self.hidden = (in_flight + self.foreign).saturating_sub(shown).min(lately);
        self.foreign = (shown + self.hidden).saturating_sub(in_flight);
        let running = sample.running.unwrap();
        self.queue_since = if sample.waiting == Some(0) { None } else { self.queue_since.or(Some(began)) };
        let has_lasted = |since| began.saturating_since(since) >= Duration::from_millis(100);
        self.learned = if self.queue_since.is_some_and(has_lasted) { running } else { self.learned.max(running) };
        self.sample = Some(sample);
    }

    /// Expected waiting, in fifths.
    fn expected(&self, now: Time) -> u64 {
        let fresh = |sample: &&Scraped| now.saturating_since(sample.began) <= Duration::from_millis(200);
        let Some(sample) = self.sample.as_ref().filter(fresh) else { return 5 };
        let began = sample.began;
        let sent = self.count(|lease| {
            lease.started > began && lease.ended.is_none_or(|(_, departure)| departure == Departure::Revoked)
        });
        let over = self.count(|lease| {
            lease.started <= began && lease.ended.is_some_and(|(at, how)| at > began && how == Departure::Over)
        });
        let room = if sample.waiting == Some(0) { self.learned - sample.running.unwrap() } else { 0 };
        (sample.waiting.unwrap() + self.hidden + sent).saturating_sub(over + room)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Nothing that is kept up by increments, or forgotten in time, makes a difference, nor does a new detector.
    #[test]
    fn increments_agree_with_the_rule(
        steps in prop::collection::vec((0_u8..7, 0_u64..2, 0_u64..60, 0_u64..12, 0_u64..12), 0..150),
    ) {
        let mut state = UtilizationDetector::default().new_state();
        let mut plain: BTreeMap<u64, Plain> = (0..2).map(|key| (key, Plain::default())).collect();
        let mut pool = [(facts(0), Load::default()), (facts(1), Load::default())];
        state.reset(&pool);
        let mut now = Time::ZERO;
        for (what, key, wait, a, b) in steps {
            // No two things happen at the same time.
            now = now.saturating_add(Duration::from_millis(wait / 4) + Duration::from_micros(1));
            state.advance(now);
            let at = usize::try_from(key).unwrap();
            let (facts, before) = pool[at];
            let endpoint = plain.get_mut(&key).unwrap();
            match what {
                0 | 1 => {
                    pool[at].1 = before.plus(Load::one(0));
                    state.load_changed(&facts, before, pool[at].1);
                    state.estimate_mut().unwrap().started(&facts, now);
                    endpoint.leases.push(Lease { started: now, ended: None });
                }
                2 | 3 => {
                    let open = endpoint.leases.iter_mut().filter(|lease| lease.ended.is_none());
                    let departure = if b == 0 { Departure::Revoked } else { Departure::Over };
                    if let Some(lease) = open.take(usize::try_from(a).unwrap() + 1).last() {
                        pool[at].1.requests -= 1;
                        state.load_changed(&facts, before, pool[at].1);
                        state.estimate_mut().unwrap().ended(now, facts.key, lease.started, departure);
                        lease.ended = Some((now, departure));
                    }
                }
                4 => {
                    // A scrape that began a while ago, but after the last one.
                    let began = now.saturating_sub(Duration::from_millis(wait));
                    let sample = Scraped { began, ..said(0, a.saturating_sub(6), b, 0.0) };
                    state.estimate_mut().unwrap().scraped(now, &facts, &sample);
                    if endpoint.sample.as_ref().is_none_or(|last| began > last.began) {
                        endpoint.scraped(sample);
                    }
                }
                5 => state.reset(&pool),
                _ => state = taken_over(state, now, UtilizationDetector::default(), &pool),
            }
            let Reading { load, capacity } = state.reading(Partition::Decode);
            let expected: u64 = plain.values().map(|plain| plain.expected(now)).sum();
            let whole = capacity / 2;
            // Shares are rounded up, each by less than one unit.
            prop_assert!(load >= expected * whole / 5 && load <= expected * whole / 5 + 2, "{load} is not {expected}/5");
            prop_assert!(state.next_change().is_none_or(|time| time > now));
        }
    }

    /// What the eviction plan relies on.
    #[test]
    fn fewer_requests_weigh_no_more_and_each_end_takes_off_no_more_than_is_said(
        waiting in 0_u64..12, running in 0_u64..12, usage in 0.0..1.0_f64, booked in 0_u64..20,
    ) {
        let mut state = UtilizationDetector::default().new_state();
        let load = |requests| Load { requests, tokens: 0 };
        state.reset(&[(facts(0), load(booked))]);
        state.estimate_mut().unwrap().scraped(Time::ZERO, &facts(0), &said(0, waiting, running, usage));
        prop_assert_eq!(state.endpoint_units(&facts(0), load(booked)), state.reading(Partition::Decode).load);
        for fewer in 0..booked {
            let (less, more) = (state.endpoint_units(&facts(0), load(fewer)), state.endpoint_units(&facts(0), load(fewer + 1)));
            prop_assert!(less <= more && more - less <= state.most_freed(&facts(0), Load::one(0)));
        }
    }
}
