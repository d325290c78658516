//! Slots that batch work leaves free: `config/holdback.yaml`, with its ceilings and with a dry run of them.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use sluice_testkit::{Arrivals, Class, PickerConfig};

use super::Programs;
use super::pool::{Pool, SLOTS, mean_wait};
use super::table::{Row, Table};
use crate::console::say;

const DURATION: Duration = Duration::from_secs(12);
/// Long enough for two bursts, to see what they take on an idle server.
const ALONE: Duration = Duration::from_secs(4);
/// Of the two classes, as the example has them.
const INTERACTIVE: i32 = 100;
const BATCH: i32 = -10;

pub(super) async fn show(programs: &Programs) -> Result<()> {
    say(format_args!(
        "config/holdback.yaml on a server of {SLOTS} slots: interactive requests, 10 at once every 2 s, first alone, \
         then with\n160 batch requests that are all sent at the start. The ceiling of batch is 0.6, so it fills 20 \
         slots,\nand a burst finds room at once: its times stay near those that it has alone."
    ));
    run(programs, "with ceilings:", true, |_| Ok(())).await?;
    say(format_args!(
        "The same file with `dryRun: [ceilings]`, which counts what would be held back and holds nothing back:\n\
         batch fills every slot, and a burst waits until some of its long answers end."
    ));
    run(programs, "with a dry run:", false, |config| config.add("sluice", "dryRun", json!(["ceilings"]))).await
}

async fn run(
    programs: &Programs,
    title: &str,
    alone_first: bool,
    edit: impl FnOnce(&mut PickerConfig) -> Result<()>,
) -> Result<()> {
    let pool = Pool::start(programs, 1, |endpoints| {
        let mut config = PickerConfig::example("holdback.yaml", endpoints)?;
        edit(&mut config)?;
        Ok(config)
    })
    .await?;
    say(format_args!("\n{title} watch it with `curl {}`", pool.flow_page()));
    let [interactive, batch] = classes();
    let mut rows = Vec::new();
    if alone_first {
        for tally in pool.load(std::slice::from_ref(&interactive), ALONE).await? {
            rows.push(Row { class: "alone", tally, waited: wait(&pool, INTERACTIVE).await? });
        }
    }
    let (tallies, most) = pool.watched_load(&[interactive, batch], DURATION, BATCH).await?;
    for ((class, priority), tally) in [("interactive", INTERACTIVE), ("batch", BATCH)].into_iter().zip(tallies) {
        rows.push(Row { class, tally, waited: wait(&pool, priority).await? });
    }
    say(format_args!("\n{}  batch in flight: at most {most} of {SLOTS}", Table::new(rows)));
    if let Some(count) = pool.metrics().await?.count("llm_d_epp_flow_control_would_gate_total", &[])
        && count > 0
    {
        say(format_args!("  llm_d_epp_flow_control_would_gate_total: {count}"));
    }
    say(format_args!(""));
    Ok(())
}

/// Since the pool was started.
async fn wait(pool: &Pool, priority: i32) -> Result<Option<Duration>> {
    Ok(mean_wait(&pool.metrics().await?, &[("priority", &priority.to_string())]))
}

fn classes() -> [Class; 2] {
    [
        Class {
            name: "interactive",
            headers: vec![("x-llm-d-inference-objective", "interactive")],
            arrivals: Arrivals::Open { at_once: 10, every: Duration::from_secs(2) },
            tokens: 5..=5,
        },
        Class {
            name: "batch",
            headers: vec![("x-llm-d-inference-objective", "batch")],
            // Once: the next time would be after the end.
            arrivals: Arrivals::Open { at_once: 160, every: DURATION },
            tokens: 10..=20,
        },
    ]
}
