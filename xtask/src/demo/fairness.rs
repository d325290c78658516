//! Tenants of one priority, one of which sends ten times as much: `config/tenants.yaml` with different turns.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Result;
use sluice_testkit::{Arrivals, Class, PickerConfig};

use super::Programs;
use super::pool::{Pool, mean_wait};
use super::table::{Row, Table};
use crate::console::say;

const DURATION: Duration = Duration::from_secs(12);
/// Of different lengths, so that slots do not all come free at once. With one for 1.2 s on average, the pool serves about 26 a second.
const TOKENS: RangeInclusive<u32> = 4..=12;

pub(super) async fn show(programs: &Programs) -> Result<()> {
    say(format_args!(
        "config/tenants.yaml on a server of 32 slots, for {} s each time: three tenants of one priority. \"a\" sends \
         80 requests at\nonce every 4 s, \"b\" and \"c\" one every half a second, a tenth of it.\n",
        DURATION.as_secs()
    ));
    say(format_args!(
        "With `fairnessPolicyRef: global-strict-fairness-policy` all of them stand in one line behind \"a\"."
    ));
    run(programs, "one line:", "global-strict-fairness-policy").await?;
    say(format_args!(
        "With `fairnessPolicyRef: round-robin-fairness-policy`, the default, they take turns: \"b\" and \"c\" hardly wait, \
         and\n\"a\" waits for itself."
    ));
    run(programs, "turns:", "round-robin-fairness-policy").await
}

async fn run(programs: &Programs, title: &str, policy: &str) -> Result<()> {
    let pool = Pool::start(programs, 1, |endpoints| {
        let mut config = PickerConfig::example("tenants.yaml", endpoints)?;
        config.set("flowControl/defaultPriorityBand/fairnessPolicyRef", policy)?;
        Ok(config)
    })
    .await?;
    say(format_args!("{title} watch it with `curl {}`", pool.flow_page()));
    let classes = classes();
    let tallies = pool.load(&classes, DURATION).await?;
    let page = pool.metrics().await?;
    let rows = classes.iter().zip(tallies).map(|(class, tally)| Row {
        class: class.name,
        tally,
        waited: mean_wait(&page, &[("fairness_id", class.name)]),
    });
    say(format_args!("\n{}", Table::new(rows.collect())));
    Ok(())
}

fn classes() -> [Class; 3] {
    let steady = Arrivals::Open { at_once: 1, every: Duration::from_millis(500) };
    [
        tenant("a", Arrivals::Open { at_once: 80, every: Duration::from_secs(4) }),
        tenant("b", steady),
        tenant("c", steady),
    ]
}

fn tenant(name: &'static str, arrivals: Arrivals) -> Class {
    Class { name, headers: vec![("x-llm-d-inference-fairness-id", name)], arrivals, tokens: TOKENS }
}
