//! One model server under 32 to 200 clients: where those wait for whom it has no room.

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result};
use sluice_testkit::{ConcurrencyCampaign, ConcurrencyReport, Room};

use super::Seconds;
use crate::console::say;

/// `queueDepthThreshold` of the study.
const THRESHOLD: u32 = 4;

pub(super) async fn run(picker: &Path, simulator: &Path, clients: &[usize], seed: u64) -> Result<()> {
    say(format_args!("\n{HEAD}"));
    for &clients in clients {
        let arm = async |threshold| {
            let room = Room::FULL;
            let campaign = ConcurrencyCampaign { picker, simulator, room, clients, threshold, seed };
            campaign.run().await.with_context(|| format!("{clients} clients, threshold {threshold:?}"))
        };
        let (gated, open) = (arm(Some(THRESHOLD)).await?, arm(None).await?);
        say(format_args!("{}", Line { clients, gated: &gated, open: &open }));
    }
    Ok(())
}

const HEAD: &str = "\
| clients | requests per second, gated | without a gate | 95 % of queues at the server, gated | without a gate | \
TTFT p95, gated | without a gate |
|---|---|---|---|---|---|---|";

/// A line of the table, in Markdown.
struct Line<'a> {
    clients: usize,
    gated: &'a ConcurrencyReport,
    open: &'a ConcurrencyReport,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, gated, open } = self;
        let arms = [gated, open];
        let [gated_rate, open_rate] = arms.map(|arm| arm.completed_per_second());
        let [gated_queue, open_queue] = arms.map(|arm| arm.waiting_percentile(95));
        let [gated_ttft, open_ttft] = arms.map(|arm| Seconds(arm.clients.ttft_percentile(95).unwrap_or_default(), 2));
        write!(f, "| {clients} | {gated_rate:.1} | {open_rate:.1} | {gated_queue} | {open_queue} | ")?;
        write!(f, "{gated_ttft} | {open_ttft} |")
    }
}
