use proptest::prelude::*;
use slotmap::SlotMap;

use super::*;

/// A band and the flows in it, in the order of their addition.
struct Band {
    ids: SlotMap<FlowId, ()>,
    fairness: Box<dyn Fairness>,
}

impl Band {
    fn new(weights: Weights) -> Self {
        Self { ids: SlotMap::with_key(), fairness: Weighted::new(weights, None).new_band() }
    }

    fn add(&mut self, tenant: &str) -> FlowId {
        let flow = self.ids.insert(());
        self.fairness.add(flow, &tenant.into());
        flow
    }

    fn backlogged(&mut self, tenant: &str) -> FlowId {
        let flow = self.add(tenant);
        self.fairness.set_head(flow, Some(Head::default()));
        flow
    }

    /// One turn at `cost`; the flow stays backlogged.
    fn turn(&mut self, cost: u64) -> FlowId {
        let flow = self.fairness.pick(Time::ZERO).unwrap();
        self.fairness.granted(Time::ZERO, flow, cost, true);
        flow
    }
}

fn weights(exact: &[(&str, f64)], prefixes: &[(&str, f64)]) -> Result<Weights, String> {
    let own =
        |list: &[(&str, f64)]| -> Vec<_> { list.iter().map(|&(name, weight)| (name.to_owned(), weight)).collect() };
    Weights::new(1.0, own(exact), own(prefixes))
}

#[test]
fn turns_follow_the_weights() {
    let mut band = Band::new(weights(&[("big", 4.0)], &[]).unwrap());
    let big = band.backlogged("big");
    let small = band.backlogged("small");
    let turns: Vec<FlowId> = (0..50).map(|_| band.turn(100)).collect();
    assert_eq!(turns.iter().filter(|&&flow| flow == big).count(), 40);
    assert_eq!(turns.iter().filter(|&&flow| flow == small).count(), 10);
}

#[test]
fn tokens_count_and_not_turns() {
    let mut band = Band::new(Weights::default());
    let long = band.backlogged("long");
    band.backlogged("short");
    let mut served = [0_u64; 2];
    for _ in 0..1100 {
        let flow = band.fairness.pick(Time::ZERO).unwrap();
        let cost = if flow == long { 1000 } else { 10 };
        band.fairness.granted(Time::ZERO, flow, cost, true);
        served[usize::from(flow != long)] += cost;
    }
    assert!(served[0].abs_diff(served[1]) <= 1010, "{served:?}");
}

#[test]
fn an_exact_name_goes_before_the_longest_prefix() {
    let weights = weights(&[("team-a-prod", 8.0)], &[("team-", 2.0), ("team-a", 4.0)]).unwrap();
    let of = |tenant| weights.of(tenant).0;
    assert_eq!([of("team-a-prod"), of("team-a-dev"), of("team-b"), of("else")], [8000, 4000, 2000, 1000]);
}

#[test]
fn weights_that_make_no_sense_are_refused_by_name() {
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 0.0001] {
        assert_eq!(weights(&[("x", bad)], &[]).unwrap_err(), "x", "{bad}");
    }
}

#[test]
fn going_idle_forgets_no_debt() {
    let mut band = Band::new(Weights::default());
    let greedy = band.backlogged("greedy");
    let steady = band.backlogged("steady");
    assert_eq!(band.turn(9_950), greedy);
    band.fairness.remove(greedy);
    assert_eq!(band.turn(100), steady);
    let greedy = band.backlogged("greedy");
    for _ in 0..99 {
        assert_eq!(band.turn(100), steady, "what it had is not paid back yet");
    }
    assert_eq!(band.turn(100), greedy);
}

#[test]
fn going_idle_earns_no_credit() {
    let mut band = Band::new(Weights::default());
    let steady = band.backlogged("steady");
    let late = band.add("late");
    for _ in 0..1000 {
        band.turn(100);
    }
    band.fairness.set_head(late, Some(Head::default()));
    let turns: Vec<FlowId> = (0..10).map(|_| band.turn(100)).collect();
    assert_eq!(turns.iter().filter(|&&flow| flow == steady).count(), 5);
}

#[test]
fn what_is_refunded_counts_for_nothing() {
    for cost in [0, 1000] {
        let mut band = Band::new(Weights::default());
        let refunded = band.backlogged("refunded");
        band.backlogged("other");
        assert_eq!(band.turn(cost), refunded);
        band.fairness.refund(refunded, cost);
        assert_eq!(band.turn(cost), refunded);
    }
}

#[test]
fn settlement_charges_what_was_really_used() {
    let mut band = Band::new(Weights::default());
    let modest = band.backlogged("modest");
    let honest = band.backlogged("honest");
    // It says 10 and uses 1000.
    assert_eq!(band.turn(10), modest);
    band.fairness.settle(Time::ZERO, modest, 10, Usage { prompt: 10, output: 990 });
    for _ in 0..10 {
        assert_eq!(band.turn(100), honest);
    }
    assert_eq!(band.turn(10), modest);
}

/// Whatever a request costs and whatever weight its tenant has, it takes some virtual time.
#[test]
fn requests_that_cost_nothing_take_turns_too() {
    for weight in [1.0, 1_000_000.0] {
        let mut band = Band::new(weights(&[("free", weight)], &[]).unwrap());
        let free = band.backlogged("free");
        let other = band.backlogged("other");
        let turn = |band: &mut Band| {
            let flow = band.turn(0);
            band.fairness.settle(Time::ZERO, flow, 0, Usage::default());
            flow
        };
        assert_eq!([turn(&mut band), turn(&mut band)], [free, other], "{weight}");
    }
}

/// A known limit of start-time fair queueing: whoever is new begins at the virtual time, which stands still meanwhile.
#[test]
fn a_stream_of_new_tenants_goes_before_whoever_had_a_turn() {
    let mut band = Band::new(Weights::default());
    let old = band.backlogged("old");
    assert_eq!(band.turn(10), old);
    for number in 0..100 {
        let new = band.backlogged(&format!("new-{number}"));
        assert_eq!(band.turn(10), new);
        band.fairness.remove(new);
    }
    assert_eq!(band.turn(10), old);
}

#[test]
fn remembered_debts_are_bounded() {
    let mut departed = Departed::default();
    for number in 0..MAX_DEPARTED + 10 {
        departed.keep(format!("tenant-{number}").into(), number as Tag);
    }
    assert_eq!((departed.finish.len(), departed.order.len()), (MAX_DEPARTED, MAX_DEPARTED));
    assert_eq!(departed.take(&"tenant-9".into()), None);
    assert_eq!(departed.take(&"tenant-10".into()), Some(10));
    departed.forget_until(11);
    assert_eq!(departed.take(&"tenant-11".into()), None);
}

proptest! {
    /// While both are backlogged: |Sᵢ/wᵢ − Sⱼ/wⱼ| ≤ maxᵢ/wᵢ + maxⱼ/wⱼ.
    #[test]
    fn shares_stay_within_the_bound(
        tenants in prop::collection::vec((1_u32..20, 1_u64..2000), 2..6),
        jitter in prop::collection::vec(0_u64..1000, 1..400),
    ) {
        let names: Vec<String> = (0..tenants.len()).map(|number| format!("t{number}")).collect();
        let exact = names.iter().zip(&tenants).map(|(name, (weight, _))| (name.clone(), f64::from(*weight)));
        let mut band = Band::new(Weights::new(1.0, exact, []).unwrap());
        let flows: Vec<FlowId> = names.iter().map(|name| band.backlogged(name)).collect();
        let mut served = vec![0_u64; flows.len()];
        let mut largest = vec![0_u64; flows.len()];
        for extra in jitter {
            let flow = band.fairness.pick(Time::ZERO).unwrap();
            let index = flows.iter().position(|other| *other == flow).unwrap();
            let cost = tenants[index].1 + extra;
            band.fairness.granted(Time::ZERO, flow, cost, true);
            served[index] += cost;
            largest[index] = largest[index].max(cost);
            for i in 0..flows.len() {
                for j in 0..flows.len() {
                    let per_weight = |sum: u64, at: usize| sum as f64 / f64::from(tenants[at].0);
                    let gap = (per_weight(served[i], i) - per_weight(served[j], j)).abs();
                    let bound = per_weight(largest[i], i) + per_weight(largest[j], j);
                    prop_assert!(gap <= bound + 1e-3, "{served:?} {largest:?} {tenants:?}");
                }
            }
        }
    }
}
