use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use sluice_core::Scraped;

use super::super::pace::{Pace, effort};
use super::*;

const INTERVAL: Duration = Duration::from_millis(50);

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn rng() -> SmallRng {
    SmallRng::seed_from_u64(1)
}

/// The pause between the end of a scrape and the next one.
fn pause_after(schedule: &Schedule, now: Time) -> Duration {
    schedule.next_due().unwrap().saturating_since(now)
}

/// A tenth and half a tick more or less, and as much as rounding may cost.
fn about(expected: Duration) -> std::ops::RangeInclusive<Duration> {
    expected.mul_f64(0.899) - TICK / 2..=expected.mul_f64(1.101) + TICK / 2
}

/// A schedule with one endpoint whose first scrape has been answered at `now`.
fn answered_at(now: Time) -> Schedule {
    let mut schedule = Schedule::new(INTERVAL);
    schedule.add(now, 1);
    assert_eq!(schedule.take_due(now), Some(1));
    assert_eq!(schedule.finished(now, 1, Some(Duration::ZERO), &mut rng()), Some(0));
    schedule
}

#[test]
fn an_endpoint_is_due_when_it_appears_and_not_again_while_it_runs() {
    let mut schedule = Schedule::new(INTERVAL);
    assert_eq!(schedule.next_due(), None);
    schedule.add(at(7), 1);
    assert_eq!(schedule.next_due(), Some(at(7)));
    assert_eq!(schedule.take_due(at(6)), None);
    assert_eq!(schedule.take_due(at(7)), Some(1));
    assert_eq!(schedule.take_due(at(10_000)), None);
    assert_eq!(schedule.next_due(), None);
}

#[test]
fn the_first_interval_is_cut_at_random_and_the_others_are_about_what_was_asked() {
    let mut schedule = Schedule::new(INTERVAL);
    let mut rng = rng();
    for serial in 0..100 {
        schedule.add(at(0), serial);
        assert_eq!(schedule.take_due(at(0)), Some(serial));
        schedule.finished(at(1), serial, Some(Duration::ZERO), &mut rng);
    }
    let mut firsts = Vec::new();
    while let Some(due) = schedule.next_due().filter(|due| *due <= at(50)) {
        let serial = schedule.take_due(due).unwrap();
        firsts.push(due);
        let end = due.saturating_add(Duration::from_millis(1));
        schedule.finished(end, serial, Some(Duration::ZERO), &mut rng);
        let next = schedule.due.iter().find(|(_, of)| *of == serial).unwrap().0;
        assert!(about(INTERVAL).contains(&next.saturating_since(due)), "{next}");
    }
    for tenth in 1..10 {
        let before = firsts.iter().filter(|first| **first < at(5 * tenth)).count() as u64;
        assert!(before.abs_diff(10 * tenth) <= 15, "{before} of 100 in {tenth} tenths");
    }
}

#[test]
fn many_endpoints_are_scraped_at_few_points_in_time_and_as_often_as_was_asked() {
    const ENDPOINTS: u64 = 100;
    let mut schedule = Schedule::new(INTERVAL);
    let mut rng = rng();
    (0..ENDPOINTS).for_each(|serial| schedule.add(at(0), serial));
    let (mut begun, until) = (BTreeMap::<Time, u64>::new(), at(10_000));
    while let Some(due) = schedule.next_due().filter(|due| *due < until) {
        let serial = schedule.take_due(due).unwrap();
        *begun.entry(due).or_default() += 1;
        schedule.finished(due.saturating_add(Duration::from_millis(1)), serial, Some(Duration::ZERO), &mut rng);
    }
    let points = u64::try_from(begun.len()).unwrap();
    let ticks = until.as_nanos() / u64::try_from(TICK.as_nanos()).unwrap();
    assert!(points <= ticks, "{points} points in time, {ticks} ticks");
    let scrapes: u64 = begun.values().sum();
    assert!(scrapes.abs_diff(ENDPOINTS * 200) <= ENDPOINTS * 200 / 100, "{scrapes} scrapes");
    // Once their first intervals are over they are out of step.
    let at_once = begun.range(at(100)..).map(|(_, count)| *count).max().unwrap();
    assert!(at_once <= ENDPOINTS / 4, "{at_once} at once");
}

#[test]
fn failures_are_asked_after_ever_longer_pauses_and_the_first_answer_ends_that() {
    let mut schedule = answered_at(at(0));
    let mut rng = rng();
    for (failures, pause) in (0..).zip([50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000]) {
        let begin = schedule.next_due().unwrap();
        assert_eq!(schedule.take_due(begin), Some(1));
        let end = begin.saturating_add(Duration::from_secs(1));
        assert_eq!(schedule.finished(end, 1, None, &mut rng), Some(failures));
        assert!(about(Duration::from_millis(pause)).contains(&pause_after(&schedule, end)), "after {failures}");
    }
    let begin = schedule.next_due().unwrap();
    schedule.take_due(begin);
    assert_eq!(schedule.finished(begin, 1, Some(Duration::ZERO), &mut rng), Some(10));
    assert!(about(INTERVAL).contains(&pause_after(&schedule, begin)));
    schedule.take_due(schedule.next_due().unwrap());
    assert_eq!(schedule.finished(begin, 1, Some(Duration::ZERO), &mut rng), Some(0));
}

#[test]
fn an_interval_longer_than_the_longest_pause_stays_the_pause() {
    assert_eq!(pause(Duration::from_secs(60), 0), Duration::from_secs(60));
    assert_eq!(pause(Duration::from_secs(60), 40), Duration::from_secs(60));
    assert_eq!(pause(INTERVAL, u32::MAX), MAX_PAUSE);
}

#[test]
fn one_that_answers_slowly_is_left_alone_for_as_long_as_it_took() {
    let mut schedule = answered_at(at(0));
    let begin = schedule.next_due().unwrap();
    schedule.take_due(begin);
    let slow = Duration::from_millis(300);
    let end = begin.saturating_add(slow);
    schedule.finished(end, 1, Some(slow), &mut rng());
    assert_eq!(pause_after(&schedule, end), slow);
}

#[test]
fn a_request_makes_an_endpoint_due_at_once_but_not_more_often_than_the_gap() {
    let mut schedule = answered_at(at(0));
    schedule.request(at(2), 1);
    assert_eq!(schedule.next_due(), Some(at(5)), "the last one began at 0");
    assert_eq!(schedule.take_due(at(5)), Some(1));
    schedule.finished(at(6), 1, Some(Duration::ZERO), &mut rng());
    schedule.request(at(20), 1);
    assert_eq!(schedule.next_due(), Some(at(20)));
    schedule.request(at(30), 1);
    assert_eq!(schedule.next_due(), Some(at(20)), "a later request does not put it off");
    schedule.request(at(30), 2);
    assert_eq!(schedule.take_due(at(30)), Some(1), "nobody knows endpoint 2");
}

#[test]
fn a_request_while_one_runs_is_served_right_after_it() {
    let mut schedule = answered_at(at(0));
    schedule.request(at(10), 1);
    assert_eq!(schedule.take_due(at(10)), Some(1));
    schedule.request(at(11), 1);
    schedule.request(at(12), 1);
    assert_eq!(schedule.take_due(at(30)), None);
    schedule.finished(at(30), 1, Some(Duration::ZERO), &mut rng());
    assert_eq!(schedule.take_due(at(30)), Some(1));
    schedule.finished(at(31), 1, Some(Duration::ZERO), &mut rng());
    assert!(schedule.next_due().unwrap() > at(70), "both requests were served by one scrape");
}

#[test]
fn requests_do_not_shorten_the_rest_of_one_that_is_slow() {
    let slow = Duration::from_millis(300);
    let rested = at(310).saturating_add(slow);
    for asked_at in [[20, 320], [20, 20], [320, 500]] {
        let mut schedule = answered_at(at(0));
        schedule.request(at(10), 1);
        assert_eq!(schedule.take_due(at(10)), Some(1));
        let (during, after): (Vec<_>, Vec<_>) = asked_at.into_iter().partition(|millis| *millis < 310);
        during.into_iter().for_each(|millis| schedule.request(at(millis), 1));
        schedule.finished(at(310), 1, Some(slow), &mut rng());
        after.into_iter().for_each(|millis| schedule.request(at(millis), 1));
        assert_eq!(schedule.next_due(), Some(rested), "asked for at {asked_at:?}");
        // Once it is quick again it is asked at once again.
        schedule.take_due(rested);
        schedule.finished(rested, 1, Some(Duration::ZERO), &mut rng());
        schedule.request(rested, 1);
        assert_eq!(schedule.next_due(), Some(rested.saturating_add(MIN_GAP)));
    }
}

#[test]
fn another_interval_holds_at_once_and_shortens_no_rest() {
    let mut schedule = Schedule::new(Duration::from_secs(3_600));
    let mut rng = rng();
    for (serial, effort) in [(1, Duration::ZERO), (2, Duration::from_secs(4_000)), (3, Duration::ZERO)] {
        schedule.add(at(0), serial);
        schedule.take_due(at(0));
        if serial != 3 {
            schedule.finished(at(0), serial, Some(effort), &mut rng);
        }
    }
    schedule.set_interval(at(1_000), INTERVAL, &mut rng);
    assert!(schedule.next_due().unwrap() <= at(1_050));
    assert_eq!(schedule.take_due(at(1_050)), Some(1));
    assert_eq!(schedule.next_due(), Some(at(4_000_000)), "the second one rests");
    schedule.finished(at(1_050), 3, Some(Duration::ZERO), &mut rng);
    assert!(schedule.next_due().unwrap() <= at(1_060), "the third one ran meanwhile");
    schedule.set_interval(at(1_050), Duration::from_secs(3_600), &mut rng);
    assert!(schedule.next_due().unwrap() <= at(1_060), "nothing is put off");
}

#[test]
fn requests_do_not_shorten_the_pause_of_one_that_fails() {
    let mut schedule = answered_at(at(0));
    schedule.request(at(10), 1);
    schedule.take_due(at(10));
    schedule.request(at(11), 1);
    schedule.finished(at(12), 1, None, &mut rng());
    let due = schedule.next_due().unwrap();
    assert!(due > at(50));
    schedule.request(at(13), 1);
    assert_eq!(schedule.next_due(), Some(due));
}

#[test]
fn one_that_is_gone_is_forgotten_even_in_mid_scrape() {
    let mut schedule = Schedule::new(INTERVAL);
    schedule.add(at(0), 1);
    schedule.remove(1);
    assert_eq!(schedule.next_due(), None);
    schedule.add(at(1), 1);
    schedule.take_due(at(1));
    schedule.remove(1);
    assert_eq!(schedule.finished(at(2), 1, Some(Duration::ZERO), &mut rng()), None);
    assert_eq!(schedule.next_due(), None);
    schedule.remove(9);
}

/// What may happen to a schedule; the endpoint is one of four.
#[derive(Clone, Copy, Debug)]
enum Step {
    Appear(u64),
    Leave(u64),
    Request(u64),
    /// Milliseconds pass, and whatever is due begins when it is.
    Pass(u64),
    /// A running scrape ends, with a page that took so many milliseconds of effort if with any.
    End(u64, Option<u64>),
}

fn step() -> impl Strategy<Value = Step> {
    let serial = 0..4_u64;
    prop_oneof![
        1 => serial.clone().prop_map(Step::Appear),
        1 => serial.clone().prop_map(Step::Leave),
        3 => serial.clone().prop_map(Step::Request),
        6 => (0..120_u64).prop_map(Step::Pass),
        6 => (serial, prop::option::weighted(0.8, prop_oneof![4 => Just(0), 1 => 0..200_u64]))
            .prop_map(|(serial, effort)| Step::End(serial, effort)),
    ]
}

/// What the test itself knows of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    running: bool,
    began: Option<Time>,
    failing: bool,
    rests_until: Time,
}

proptest! {
    #[test]
    fn scrapes_of_an_endpoint_never_overlap_crowd_or_stop(steps in prop::collection::vec(step(), 0..200), seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut schedule = Schedule::new(INTERVAL);
        let mut now = at(0);
        let mut pool: BTreeMap<u64, Seen> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Appear(serial) if !pool.contains_key(&serial) => {
                    schedule.add(now, serial);
                    pool.insert(serial, Seen::default());
                }
                Step::Leave(serial) => {
                    schedule.remove(serial);
                    pool.remove(&serial);
                }
                Step::Request(serial) => schedule.request(now, serial),
                Step::Pass(millis) => {
                    let until = now.saturating_add(Duration::from_millis(millis));
                    while let Some(due) = schedule.next_due().filter(|due| *due <= until) {
                        now = now.max(due);
                        let serial = schedule.take_due(now).unwrap();
                        let seen = pool.get_mut(&serial).expect("it is in the pool");
                        prop_assert!(!seen.running, "overlaps itself");
                        if let Some(began) = seen.began {
                            prop_assert!(now.saturating_since(began) >= MIN_GAP);
                        }
                        prop_assert!(now >= seen.rests_until, "is not left alone");
                        *seen = Seen { running: true, began: Some(now), ..*seen };
                    }
                    now = until;
                }
                Step::End(serial, effort) => {
                    let Some(seen) = pool.get_mut(&serial).filter(|seen| seen.running) else { continue };
                    let effort = effort.map(Duration::from_millis);
                    let before = schedule.finished(now, serial, effort, &mut rng).unwrap();
                    prop_assert_eq!(before > 0, seen.failing);
                    seen.running = false;
                    seen.failing = effort.is_none();
                    seen.rests_until = now.saturating_add(effort.filter(|effort| *effort > INTERVAL).unwrap_or_default());
                }
                Step::Appear(_) => {}
            }
            // Whatever does not run has its turn, and no later than the rules say.
            for (serial, seen) in &pool {
                let due = schedule.due.iter().find(|(_, of)| of == serial).map(|(due, _)| *due);
                prop_assert_eq!(due.is_none(), seen.running);
                let latest = if seen.failing { MAX_PAUSE.mul_f64(1.1) + TICK } else { now.saturating_since(at(0)).max(INTERVAL.mul_f64(1.1) + TICK) };
                let latest = now.saturating_add(latest).max(seen.rests_until);
                prop_assert!(due.is_none_or(|due| due <= latest));
            }
            prop_assert_eq!(schedule.endpoints.len(), pool.len());
        }
    }
}

/// From each page to the next one, what a slow endpoint said never becomes older than its lenience and the staleness that a
/// detector allows by default.
#[test]
fn an_endpoint_that_answers_in_time_never_becomes_stale_however_slow() {
    for (first, second) in [(0, 0), (90, 90), (130, 130), (250, 250), (900, 900), (130, 900), (900, 10)] {
        let (mut schedule, mut rng, mut pace) = (Schedule::new(INTERVAL), rng(), Pace::default());
        schedule.add(at(0), 1);
        let mut said: Option<Scraped> = None;
        for page in 0..200 {
            let began = schedule.next_due().unwrap();
            schedule.take_due(began);
            // The first page of the slower kind is a surprise.
            let took = Duration::from_millis(if page % 2 == 0 { first.max(second) } else { first.min(second) });
            let there = began.saturating_add(took);
            if let Some(said) = said {
                assert!(said.is_fresh(there, 4 * INTERVAL), "{first} and {second} ms, page {page}");
            }
            let effort = effort(took, 60_000);
            schedule.finished(there, 1, Some(effort), &mut rng);
            said = Some(Scraped { lenience: pace.note(effort), ..Scraped::at(began) });
        }
    }
}

#[test]
fn an_endpoint_with_huge_pages_has_its_turn_less_often_and_is_not_blamed_for_it() {
    let bytes = 8 << 20;
    let mut schedule = answered_at(at(0));
    let begin = schedule.next_due().unwrap();
    schedule.take_due(begin);
    let took = Duration::from_millis(80);
    let effort = effort(took, bytes);
    schedule.finished(begin.saturating_add(took), 1, Some(effort), &mut rng());
    let rest = pause_after(&schedule, begin.saturating_add(took));
    assert!(rest >= 10 * took, "{rest:?}");
    let said = Scraped { lenience: Pace::default().note(effort), ..Scraped::at(begin) };
    assert!(said.is_fresh(begin.saturating_add(2 * took + rest), 4 * INTERVAL));
}
