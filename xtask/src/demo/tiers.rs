//! Three classes of service on a pool that is full: `config/tiers.yaml`, with flow control and without.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use sluice_testkit::{Arrivals, Class, PickerConfig};

use super::Programs;
use super::pool::{Pool, mean_wait};
use super::table::{Row, Table};
use crate::console::say;

const SERVERS: usize = 2;
const DURATION: Duration = Duration::from_secs(12);
/// Of different lengths, so that slots do not all come free at once. With one for 1.2 s on average, the pool serves about 53 a second.
const TOKENS: RangeInclusive<u32> = 4..=12;
/// Of the classes, as the example has them.
const PRIORITIES: [&str; 3] = ["100", "0", "-10"];

pub(super) async fn show(programs: &Programs) -> Result<()> {
    say(format_args!(
        "config/tiers.yaml on {SERVERS} servers of 32 slots, for {} s each time: 96 batch clients with one request \
         after the other,\n64 standard requests at once every 4 s, and 8 premium ones a second. With flow control \
         premium hardly waits,\nbatch takes what is left over, and nothing is refused.",
        DURATION.as_secs()
    ));
    run(programs, |pool| format!("with flow control: watch it with `curl {}`", pool.flow_page()), |_| Ok(())).await?;
    say(format_args!(
        "The same file with `featureGates: []`. Nothing waits in the picker any more: batch is refused while the pool \
         is full,\nand where a burst has come before premium, premium waits behind it in the model servers: see its p95."
    ));
    run(programs, |_| "without:".to_owned(), |config| config.set("featureGates", Value::Array(Vec::new()))).await
}

async fn run(
    programs: &Programs,
    title: impl FnOnce(&Pool) -> String,
    edit: impl FnOnce(&mut PickerConfig) -> Result<()>,
) -> Result<()> {
    let pool = Pool::start(programs, SERVERS, |endpoints| {
        let mut config = PickerConfig::example("tiers.yaml", endpoints)?;
        edit(&mut config)?;
        Ok(config)
    })
    .await?;
    say(format_args!("{}", title(&pool)));
    let classes = classes();
    let tallies = pool.load(&classes, DURATION).await?;
    let page = pool.metrics().await?;
    let waits = PRIORITIES.map(|priority| mean_wait(&page, &[("priority", priority)]));
    let rows = classes.iter().zip(tallies).zip(waits);
    let rows = rows.map(|((class, tally), waited)| Row { class: class.name, tally, waited });
    say(format_args!("\n{}", Table::new(rows.collect())));
    Ok(())
}

fn classes() -> [Class; 3] {
    [
        class("premium", Arrivals::Open { at_once: 1, every: Duration::from_millis(125) }),
        class("standard", Arrivals::Open { at_once: 64, every: Duration::from_secs(4) }),
        class("batch", Arrivals::Closed { clients: 96 }),
    ]
}

fn class(name: &'static str, arrivals: Arrivals) -> Class {
    Class { name, headers: vec![("x-llm-d-inference-objective", name)], arrivals, tokens: TOKENS }
}
