//! The short form of `cargo xtask campaign concurrency`.

use sluice_testkit::{ConcurrencyCampaign, ConcurrencyReport, Room, workspace};

use crate::support::picker;

const THRESHOLD: u64 = 4;

async fn campaign(clients: usize, threshold: Option<u32>) -> ConcurrencyReport {
    let [simulator] = workspace::build_programs(["model-server-sim"]).unwrap();
    let (picker, simulator) = (picker(), simulator.as_path());
    let campaign = ConcurrencyCampaign { picker, simulator, room: Room::SMALL, clients, threshold, seed: 1 };
    campaign.run().await.unwrap_or_else(|error| panic!("{clients} clients, {threshold:?}: {error:#}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_by_metrics_keeps_the_queue_out_of_the_model_server_and_the_server_busy() {
    let threshold = u32::try_from(THRESHOLD).ok();
    // Half as many clients as the server has slots, and three times as many.
    for (clients, excess) in [(8, 0), (48, 32)] {
        // Side by side, so that whatever else the machine does concerns both.
        let (gated, open) = tokio::join!(campaign(clients, threshold), campaign(clients, None));
        let queues = [&gated, &open].map(|report| report.waiting_percentile(95));
        let rates = [&gated, &open].map(ConcurrencyReport::completed_per_second);
        println!("{clients} clients: {queues:?} waiting at the server, {rates:?} requests per second");
        let [gated, open] = queues;
        assert!(gated <= 3 * THRESHOLD, "{clients} clients: {queues:?}");
        assert!(open + THRESHOLD >= excess, "{clients} clients: {queues:?}");
        assert!(rates[0] >= 0.9 * rates[1], "{clients} clients: {rates:?}");
    }
}
