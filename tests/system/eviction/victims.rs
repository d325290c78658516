//! Who is evicted among those of the lowest priority, and by how much the others are spared.

use serde_json::json;
use sluice_core::Time;
use sluice_testkit::{EnvoyConfig, Template, eventually};

use super::rig::{Pool, Revocations, SLACK, evicting};
use super::seen::Ending;
use crate::flow::support::AT_ONCE;
use crate::support::LIMIT;

const SLOTS: usize = 32;

/// When a request reached the model server.
fn began(pool: &Pool, tag: &str) -> Time {
    let visits = pool.counted.servers.iter().flat_map(|server| server.visits());
    visits.into_iter().find(|visit| visit.tag == tag).expect("a visit").began
}

/// A single interactive request comes to the full pool, and gets in; who had to go for it?
async fn victim_of_one(pool: &mut Pool, number: usize) -> String {
    let before = pool.victims();
    let tag = format!("interactive-{number}");
    let request = pool.stream("interactive", &tag);
    pool.send(&tag, request);
    eventually(LIMIT, "the newcomer is at the model server", async || {
        Ok(pool.counted.servers.iter().any(|server| server.tags().contains(&tag)).then_some(()))
    })
    .await
    .unwrap();
    pool.wait_for(SLOTS, 0).await;
    pool.settle().await.unwrap();
    let mut victims = pool.victims();
    victims.retain(|tag, _| !before.contains_key(tag));
    assert_eq!(victims.len(), 1, "{victims:?}");
    let (victim, left) = victims.pop_first().unwrap();
    // The newcomer comes when the victim's stream has ended; the model server notices that end about then.
    assert!(left <= began(pool, &tag).saturating_add(AT_ONCE), "{left:?}");
    let (ended, seen) = pool.next_end().await;
    assert_eq!((&ended, seen.ending()), (&victim, Ending::ToldThenCut), "{seen}");
    victim
}

#[tokio::test]
async fn the_newest_goes_first() {
    let mut pool = Pool::start(&evicting(32, &json!({"victimOrder": "newest"}))).await;
    // Where priorities differ, the lowest goes before the newest.
    let batch = pool.fill("batch", 4).await;
    pool.fill("sheddable", SLOTS - 4).await;
    for (number, expected) in batch.iter().rev().enumerate() {
        assert_eq!(victim_of_one(&mut pool, number).await, *expected);
    }
    // Nobody else has noticed anything.
    pool.counted.servers[0].release(SLOTS);
    for _ in 0..SLOTS {
        let (tag, seen) = pool.next_end().await;
        assert_eq!(seen.ending(), Ending::Complete, "{tag}: {seen}");
    }
}

#[tokio::test]
async fn the_one_with_the_most_slack_goes_first_and_one_without_a_deadline_before_all() {
    let mut config = evicting(32, &json!({"victimOrder": "most-slack"}));
    config["plugins"].as_array_mut().unwrap().push(json!({"type": "slo-deadline-ordering-policy"}));
    config["flowControl"]["defaultNegativePriorityBand"] = json!({"orderingPolicyRef": "slo-deadline-ordering-policy"});
    let mut pool = Pool::start(&config).await;
    let slack = |index: usize| match index {
        7 => Some("9000000"),
        20 => Some("3000000"),
        11 => None,
        _ => Some("600000"),
    };
    for index in 0..SLOTS {
        let tag = format!("batch-{index}");
        let mut request = pool.stream("batch", &tag);
        if let Some(slack) = slack(index) {
            request = request.header(SLACK, slack);
        }
        pool.run(&tag, request).await;
    }
    // Of those with the same slack the last to arrive has the latest deadline.
    for (number, expected) in ["batch-11", "batch-7", "batch-20", "batch-31", "batch-30"].into_iter().enumerate() {
        assert_eq!(victim_of_one(&mut pool, number).await, expected);
    }
}

#[tokio::test]
async fn the_one_whose_client_has_seen_least_goes_first() {
    let mut pool = Pool::start(&evicting(32, &json!({"victimOrder": "cheapest"}))).await;
    for index in 0..SLOTS {
        let tag = format!("batch-{index}");
        let silent = [3, 17].contains(&index);
        let request = if silent { pool.whole("batch", &tag) } else { pool.stream("batch", &tag) };
        pool.run(&tag, request).await;
    }
    eventually(LIMIT, "the first events have passed", async || {
        let page = pool.counted.stack.picker.metrics().await?;
        Ok(page.count("llm_d_epp_request_running", &[]).is_some_and(|running| running == 32).then_some(()))
    })
    .await
    .unwrap();
    for expected in ["batch-17", "batch-3"] {
        let arrived = pool.arrived();
        pool.burst("interactive", 1);
        pool.wait_for_arrivals(arrived + 1, SLOTS, 0).await;
        let (victim, seen) = pool.next_end().await;
        assert_eq!((victim.as_str(), seen.ending()), (expected, Ending::ToldByStatus), "{seen}");
    }
    // All others have had the same.
    assert_eq!(victim_of_one(&mut pool, 0).await, "batch-31");
}

/// With `response-bypass.yaml`: of requests whose answers have begun nothing more is known.
#[tokio::test]
async fn where_answers_pass_the_picker_by_the_ones_that_have_not_begun_go_first() {
    let template = EnvoyConfig::from_template(Template::ResponseBypass).unwrap();
    let mut pool = Pool::start_with(1, &evicting(4, &json!({"victimOrder": "cheapest"})), template).await;
    for (tag, silent) in [("batch-0", false), ("batch-1", true), ("batch-2", false), ("batch-3", false)] {
        let request = if silent { pool.whole("batch", tag) } else { pool.stream("batch", tag) };
        pool.run(tag, request).await;
    }
    // Until the picker has seen all the headers that have come.
    tokio::time::sleep(AT_ONCE).await;
    for (expected, ending) in [("batch-1", Ending::ToldByStatus), ("batch-3", Ending::Cut), ("batch-2", Ending::Cut)] {
        let arrived = pool.arrived();
        pool.burst("interactive", 1);
        pool.wait_for_arrivals(arrived + 1, 4, 0).await;
        let (victim, seen) = pool.next_end().await;
        assert_eq!((victim.as_str(), seen.ending()), (expected, ending), "{seen}");
    }
}

/// All victims are behind an Envoy that does not move: that none of them has ended shows that nobody was waited for.
#[tokio::test]
async fn a_burst_evicts_all_it_needs_without_waiting_for_any() {
    for (objective, priority) in [("interactive", 100), ("standard", 0)] {
        let mut pool = Pool::start(&evicting(32, &json!({"confirmationTimeout": "60s"}))).await;
        pool.fill("batch", SLOTS).await;
        let other = pool.freeze_behind_another_envoy().await;
        for number in 0..SLOTS {
            let tag = format!("{objective}-{number}");
            pool.send(&tag, pool.stream_through(&other, objective, &tag));
        }
        pool.wait_for_revocations(Revocations { issued: 32, timed_out: 0, confirmed: 0 }).await;
        assert_eq!(pool.issued(Some(priority)).await, 32, "{objective}");
        let page = pool.counted.stack.picker.flow().await.unwrap();
        assert_eq!((&page["leases"]["revoked"], &page["waiting"]["requests"]), (&json!(32), &json!(32)), "{page}");

        pool.counted.stack.envoy.process_mut().resume().unwrap();
        pool.wait_for_arrivals(2 * SLOTS, SLOTS, 0).await;
        let victims = pool.victims();
        assert_eq!(victims.len(), SLOTS, "{objective}");
        let (first, last) = (victims.values().min().unwrap(), victims.values().max().unwrap());
        println!("{objective}: 32 victims gone within {:?}", last.saturating_since(*first));
        for _ in 0..SLOTS {
            let (tag, seen) = pool.next_end().await;
            assert!(tag.starts_with("batch-"), "{tag}");
            // An Envoy that was frozen may read the event and the cut at once.
            assert!([Ending::ToldThenCut, Ending::Cut].contains(&seen.ending()), "{seen}");
        }
        assert_eq!(pool.revocations().await.unwrap(), Revocations { issued: 32, timed_out: 0, confirmed: 32 });
        assert_eq!(pool.counted.servers[0].peak_without_aborted(AT_ONCE), SLOTS, "{objective}");
    }
}

#[tokio::test]
async fn no_more_than_the_allowed_number_are_revoked_at_the_same_time() {
    let mut pool = Pool::start(&evicting(8, &json!({"maxInFlightRevocations": 1}))).await;
    pool.fill("batch", 8).await;
    pool.burst("interactive", 8);
    pool.wait_for_arrivals(16, 8, 0).await;
    pool.settle().await.unwrap();
    // One after the other, so each slot that came free was taken before the next one did.
    let server = &pool.counted.servers[0];
    let took: Vec<Time> = server.visits().iter().skip(8).map(|visit| visit.began).collect();
    let gone: Vec<Time> = pool.victims().into_values().collect();
    let (first_in, last_gone) = (took.iter().min().unwrap(), gone.iter().max().unwrap());
    assert_eq!((took.len(), gone.len()), (8, 8));
    assert!(first_in < last_gone, "all were gone before the first newcomer came");
}
