//! How many are evicted, row by row of a table: a pool of 32 slots, what fills it, and what comes.

use serde_json::{Value, json};

use super::rig::{Pool, evicting, with_ceilings};
use crate::flow::support::{SUBSET, vouching_envoy};

/// What comes to a pool, how many have to go, and how many get in.
struct Vector {
    in_flight: &'static [(&'static str, usize)],
    demand: (&'static str, usize),
    revoked: &'static [(&'static str, usize)],
    admitted: usize,
}

impl Vector {
    /// The pool is empty before and after.
    async fn check(&self, pool: &mut Pool) {
        let Self { in_flight, demand: (objective, count), revoked, admitted } = self;
        let context = format!("{in_flight:?} in flight, {count} {objective} come");
        for (objective, count) in *in_flight {
            pool.fill(objective, *count).await;
        }
        let (before, issued) = (pool.victims(), pool.issued(None).await);
        let (open, arrived) = (pool.counted.open(), pool.arrived());
        let gone: usize = revoked.iter().map(|(_, count)| count).sum();
        pool.burst(objective, *count);
        pool.wait_for_arrivals(arrived + admitted, open - gone + admitted, (count - admitted) as u64).await;
        pool.settle().await.unwrap_or_else(|error| panic!("{context}: {error:#}"));

        let mut victims = pool.victims();
        victims.retain(|tag, _| !before.contains_key(tag));
        for (objective, count) in *revoked {
            let own = victims.keys().filter(|tag| tag.starts_with(&format!("{objective}-"))).count();
            assert_eq!(own, *count, "{context}: {victims:?}");
        }
        assert_eq!(victims.len(), gone, "{context}: {victims:?}");
        assert_eq!(pool.issued(None).await - issued, gone as i64, "{context}");
        pool.wait_for(open - gone + admitted, (count - admitted) as u64).await;
        pool.hang_up().await;
    }
}

const fn vector(
    in_flight: &'static [(&'static str, usize)],
    demand: (&'static str, usize),
    revoked: &'static [(&'static str, usize)],
    admitted: usize,
) -> Vector {
    Vector { in_flight, demand, revoked, admitted }
}

async fn check_all(config: &Value, vectors: &[Vector]) {
    let mut pool = Pool::start(config).await;
    for vector in vectors {
        vector.check(&mut pool).await;
    }
}

#[tokio::test]
async fn as_many_are_evicted_as_the_demand_needs_and_none_of_priority_zero_or_above() {
    let vectors = [
        vector(&[("batch", 32)], ("interactive", 1), &[("batch", 1)], 1),
        vector(&[("batch", 32)], ("interactive", 32), &[("batch", 32)], 32),
        // The highest band is gated, and nobody waits in it: the shortage is further down.
        vector(&[("batch", 32)], ("standard", 1), &[("batch", 1)], 1),
        vector(&[("batch", 32)], ("standard", 32), &[("batch", 32)], 32),
        vector(&[("standard", 32)], ("interactive", 5), &[], 0),
        vector(&[("standard", 31), ("batch", 1)], ("interactive", 5), &[("batch", 1)], 1),
        vector(&[("sheddable", 16), ("idle", 16)], ("sheddable", 2), &[("idle", 2)], 2),
        vector(&[("sheddable", 30), ("idle", 2)], ("interactive", 3), &[("idle", 2), ("sheddable", 1)], 3),
        vector(&[("batch", 32)], ("batch", 3), &[], 0),
        vector(&[("batch", 31)], ("interactive", 1), &[], 1),
    ];
    check_all(&evicting(32, &json!({})), &vectors).await;
}

#[tokio::test]
async fn a_reserve_that_was_used_up_is_restored() {
    // 26 slots for everything below interactive.
    let config = with_ceilings(evicting(32, &json!({})), &[(100, 1.0), (0, 0.8)]);
    let vectors = [
        vector(&[("batch", 20), ("interactive", 10)], ("standard", 1), &[("batch", 5)], 1),
        vector(&[("batch", 26)], ("standard", 2), &[("batch", 2)], 2),
        vector(&[("batch", 26)], ("interactive", 6), &[], 6),
        // No number of victims brings the load below 26.
        vector(&[("batch", 4), ("interactive", 26)], ("standard", 1), &[], 0),
    ];
    check_all(&config, &vectors).await;
}

/// A gateway that names the endpoint changes nothing about how many have to go.
#[tokio::test]
async fn a_reserve_on_the_only_endpoint_that_will_do_is_restored_as_well() {
    let config = with_ceilings(evicting(32, &json!({})), &[(100, 1.0), (0, 0.8)]);
    let mut pool = Pool::start_with(1, &config, vouching_envoy().unwrap()).await;
    pool.fill("batch", 20).await;
    pool.fill("interactive", 10).await;
    let request = pool.stream("standard", "hinted").header(SUBSET, pool.counted.servers[0].address().to_string());
    pool.send("hinted", request);
    pool.wait_for_arrivals(31, 26, 0).await;
    pool.settle().await.unwrap();
    let victims = pool.victim_tags();
    assert!(victims.len() == 5 && victims.iter().all(|tag| tag.starts_with("batch-")), "{victims:?}");
    assert_eq!((pool.issued(Some(0)).await, pool.issued(None).await), (5, 5));
    pool.wait_for(26, 0).await;
}
