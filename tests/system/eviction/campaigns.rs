//! The short forms of `cargo xtask soak --evictions` and of `cargo xtask campaign eviction-deadlines`.

use sluice_testkit::{
    DeadlineCampaign, DeadlineReport, EvictionSoak, EvictionSoakReport, InteractiveLoad, Policies, Scale, Template,
    workspace,
};

use crate::support::picker;

/// At least.
const SEEN: EvictionSoakReport = EvictionSoakReport {
    evictions: 200,
    items: 100,
    attempts: 100,
    told: 50,
    cuts: 0,
    wasted_tokens: 100,
    urgent: 100,
    left: 100,
};

async fn soak(template: Template, mid_stream: &str, at_least: EvictionSoakReport) -> EvictionSoakReport {
    let [simulator] = workspace::build_programs(["model-server-sim"]).unwrap();
    let soak = EvictionSoak { picker: picker(), simulator: &simulator, template, mid_stream, at_least, seed: 1 };
    soak.run().await.unwrap_or_else(|error| panic!("{template:?}, {mid_stream}: {error:#}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_evictions_against_random_endings_lose_nothing_and_leave_nothing() {
    for (template, mid_stream) in [
        (Template::FullDuplex, "event-then-reset"),
        (Template::FullDuplex, "event-then-end"),
        (Template::PerRequest, "event-then-reset"),
    ] {
        let report = soak(template, mid_stream, SEEN).await;
        println!("{template:?}, {mid_stream}: {report}");
        // Clients are told, but for those whose model server is slow in the middle of an event.
        assert!(report.cuts * 5 <= report.told, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_left_where_streams_are_cut_without_a_word() {
    let at_least = EvictionSoakReport { cuts: 5, ..SEEN };
    println!("{}", soak(Template::ResponseBypass, "event-then-reset", at_least).await);
}

async fn campaign(policies: Policies) -> DeadlineReport {
    let [simulator] = workspace::build_programs(["model-server-sim"]).unwrap();
    let (picker, simulator) = (picker(), simulator.as_path());
    let load = InteractiveLoad::Steady(2);
    let campaign = DeadlineCampaign { picker, simulator, scale: Scale::SMALL, load, policies, seed: 1 };
    campaign.run().await.unwrap_or_else(|error| panic!("{policies:?}: {error:#}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_by_deadline_and_victims_with_most_slack_meet_deadlines_that_arrival_order_misses() {
    // Side by side, so that whatever else the machine does concerns both.
    let (arrival, deadline) =
        tokio::join!(campaign(Policies::ARRIVAL_AND_NEWEST), campaign(Policies::DEADLINE_AND_MOST_SLACK));
    for (policies, report) in [("arrival, newest", &arrival), ("deadline, most slack", &deadline)] {
        let jobs = &report.jobs;
        println!(
            "{policies}: {} evictions, {} tokens wasted by each",
            report.evictions,
            report.wasted_tokens_per_eviction()
        );
        println!("{jobs:?}");
        assert!(report.evictions > 10, "{policies}: {jobs:?}");
        assert!(report.interactive.served == report.interactive.sent(), "{policies}: {:?}", report.interactive);
    }
    assert!(!arrival.jobs[0].is_in_time(), "{:?}", arrival.jobs);
    assert!(deadline.all_in_time(), "{:?}", deadline.jobs);
}
