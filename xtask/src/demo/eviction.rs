//! Batch work that makes room: `config/eviction.yaml` without its reserve, with eviction and with a dry run of it.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use sluice_core::{Clock, SystemClock};
use sluice_testkit::batch::{Backoff, BatchClient, Final, Item};
use sluice_testkit::{Arrivals, Class, PickerConfig, Tally};

use super::pool::{Pool, SLOTS, mean_wait};
use super::table::{Row, Table};
use super::{MODEL, Programs};
use crate::console::say;

const DURATION: Duration = Duration::from_secs(12);
/// Three times what fits.
const BATCH_REQUESTS: usize = 96;
const BATCH_TOKENS: NonZeroU32 = NonZeroU32::new(30).expect("not zero");
/// When batch work is due: long after it is done.
const DUE: Duration = Duration::from_secs(120);
/// Of the two classes, as the example has them.
const INTERACTIVE: i32 = 100;
const BATCH: i32 = -10;

pub(super) async fn show(programs: &Programs) -> Result<()> {
    say(format_args!(
        "config/eviction.yaml without its reserve, on a server of {SLOTS} slots: {BATCH_REQUESTS} batch requests of \
         {BATCH_TOKENS} tokens, sent at once,\nand interactive requests, 10 at once every 2 s. Each of these makes one \
         batch request go, whose client comes\nback with the tokens it has got: interactive requests hardly wait, and \
         batch work is served to the last token."
    ));
    run(programs, "with eviction:", |_| Ok(())).await?;
    say(format_args!(
        "The same with `dryRun: [eviction]`, which counts who would have to go and lets everybody stay: interactive \
         requests\nwait until a batch request ends by itself."
    ));
    run(programs, "with a dry run:", |config| config.add("sluice", "dryRun", json!(["eviction"]))).await
}

async fn run(programs: &Programs, title: &str, edit: impl FnOnce(&mut PickerConfig) -> Result<()>) -> Result<()> {
    let pool = Pool::start(programs, 1, |endpoints| {
        let mut config = PickerConfig::example("eviction.yaml", endpoints)?;
        config.set("plugins/[name=reserve]/parameters/ceilings/[1]/ceiling", 1.0)?;
        edit(&mut config)?;
        Ok(config)
    })
    .await?;
    say(format_args!("\n{title} watch it with `curl {}`", pool.flow_page()));
    let interactive = [interactive()];
    let (batch, tallies) = tokio::try_join!(work_off(&pool), async {
        // Batch work is there first.
        tokio::time::sleep(Duration::from_secs(1)).await;
        pool.load(&interactive, DURATION).await
    })?;
    let interactive = tallies.into_iter().next().context("what became of one class")?;
    let page = pool.metrics().await?;
    let wait = |priority: i32| mean_wait(&page, &[("priority", &priority.to_string())]);
    let batch_tally = Tally { served: batch.len(), refused: BATCH_REQUESTS - batch.len(), ..Tally::default() };
    let table = Table::new(vec![
        Row { class: "interactive", tally: interactive, waited: wait(INTERACTIVE) },
        Row { class: "batch", tally: batch_tally, waited: wait(BATCH) },
    ]);
    say(format_args!("\n{table}"));
    let count = |name: &str| page.count(&format!("llm_d_epp_flow_control_{name}"), &[]).unwrap_or_default();
    let told: u64 = batch.iter().map(|done| u64::from(done.cost.evictions)).sum();
    let wasted: u64 = batch.iter().map(|done| done.cost.wasted_tokens).sum();
    let per_eviction = wasted.checked_div(told).unwrap_or_default();
    match (count("revocations_issued_total"), count("would_revoke_total")) {
        (0, would) => say(format_args!("  llm_d_epp_flow_control_would_revoke_total: {would}")),
        (evictions, _) => say(format_args!(
            "  evictions: {evictions}; {wasted} tokens were read a second time, {per_eviction} for each"
        )),
    }
    say(format_args!(""));
    Ok(())
}

fn interactive() -> Class {
    Class {
        name: "interactive",
        headers: vec![("x-llm-d-inference-objective", "interactive")],
        arrivals: Arrivals::Open { at_once: 10, every: Duration::from_secs(2) },
        tokens: 5..=5,
    }
}

/// The batch requests that were served.
async fn work_off(pool: &Pool) -> Result<Vec<Final>> {
    let clock = SystemClock::start();
    let client = BatchClient {
        objective: Some("batch".to_owned()),
        // A short demo: nobody waits long before trying again.
        backoff: Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(1) },
        ..BatchClient::new(&pool.url("/v1/completions"), MODEL, clock)
    };
    let deadline = clock.now().saturating_add(DUE);
    let item = |number| Item {
        id: format!("item-{number}"),
        prompt: format!("Tell me about sluice number {number}."),
        max_tokens: BATCH_TOKENS,
        deadline,
    };
    let ends = client.run((0..BATCH_REQUESTS).map(item).collect()).await?;
    Ok(ends.into_iter().filter_map(Result::ok).collect())
}
