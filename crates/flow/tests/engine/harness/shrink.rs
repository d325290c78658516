//! Runs a list of operations and, if it fails, finds a short list that fails too.

use std::collections::BTreeMap;

use super::checker;
use super::history::{Counts, Event, Seen, Step};
use super::ops::{Op, Setup, Words};
use super::world::World;

/// A failing run.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) setup: u64,
    pub(crate) ops: Vec<Op>,
    pub(crate) message: String,
}

/// How often each kind of event and effect occurred, to see that the operations reach everything.
#[derive(Debug, Default)]
pub(crate) struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    fn count(&mut self, history: &[Step]) {
        for step in history {
            let event = match &step.event {
                Event::Submit { .. } => "submit".to_owned(),
                Event::RefuseByHeaders { result: Some(_), .. } => "refused by headers".to_owned(),
                Event::RefuseByHeaders { result: None, .. } => "not refused by headers".to_owned(),
                Event::Cancel { .. } => "cancel".to_owned(),
                Event::Start { result: Ok(()), .. } => "start".to_owned(),
                Event::Start { result: Err(error), .. } => format!("start: {}", name(error)),
                Event::Park { result, .. } => format!("park: {}", name(result)),
                Event::FirstChunk { .. } => "first chunk".to_owned(),
                Event::Rebook { .. } => "rebook".to_owned(),
                Event::Release { .. } => "release".to_owned(),
                Event::Pool(places) if places.is_empty() => "empty pool".to_owned(),
                Event::Pool(_) => "pool".to_owned(),
                Event::Desired(_) => "desired".to_owned(),
                Event::Reload(_) => "reload".to_owned(),
                Event::Time => "time".to_owned(),
                Event::Drain => "drain".to_owned(),
                Event::Shutdown => "shutdown".to_owned(),
            };
            *self.0.entry(event).or_default() += 1;
            for effect in &step.effects {
                let effect = match effect {
                    Seen::Granted { reserved: None, .. } => "-> granted".to_owned(),
                    Seen::Granted { reserved: Some(_), .. } => "-> granted after parking".to_owned(),
                    Seen::Dropped { outcome, .. } => format!("-> {}", outcome.as_str()),
                    Seen::Revoked { cause, .. } => format!("-> revoked: {cause:?}"),
                };
                *self.0.entry(effect).or_default() += 1;
            }
        }
        history.last().into_iter().for_each(|last| self.count_last(last));
    }

    fn count_last(&mut self, last: &Step) {
        for counts in last.after.counts.values() {
            let Counts { outcomes: _, displaced, revocations: _, would_gate, would_revoke } = *counts;
            for (what, number) in [("displaced", displaced), ("would gate", would_gate), ("would revoke", would_revoke)]
            {
                *self.0.entry(format!("counted: {what}")).or_default() += number;
            }
        }
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(what, count)| (what.as_str(), *count))
    }
}

/// The variant's name alone.
fn name(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").split('(').next().unwrap_or_default().to_owned()
}

/// Runs `ops` under the configuration `setup` to the end, then checks its history.
pub(crate) fn run(setup: u64, ops: &[Op]) -> Result<Vec<Step>, String> {
    let attempt = std::panic::catch_unwind(|| {
        let mut world = World::new(Setup::decode(setup));
        for &op in ops {
            world.apply(op)?;
        }
        world.finish()?;
        let broken = checker::violations(world.setup(), &world.history);
        if broken.is_empty() { Ok(world.history) } else { Err(format!("broken: {broken:?}")) }
    });
    attempt.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Runs lists of `length` operations made from `seed` until `total` of them were carried out: one that finds nothing to
/// work on does not count.
pub(crate) fn search(seed: u64, total: u64, length: usize, coverage: &mut Coverage) -> Result<(), Failure> {
    let mut words = Words::new(seed);
    let mut done = 0;
    while done < total {
        let setup = words.next().unwrap_or_default();
        let ops = Op::decode_all(setup, words.by_ref().take(length));
        match run(setup, &ops) {
            Ok(history) => {
                done += history.len() as u64;
                coverage.count(&history);
            }
            Err(message) => return Err(minimal(Failure { setup, ops, message }, |setup, ops| run(setup, ops).err())),
        }
    }
    Ok(())
}

/// Leaves out operations as long as `failing` has something to say of the rest.
pub(crate) fn minimal(mut failure: Failure, failing: impl Fn(u64, &[Op]) -> Option<String>) -> Failure {
    let mut chunk = failure.ops.len().div_ceil(2);
    while chunk > 0 {
        let mut from = 0;
        let mut shorter = false;
        while from < failure.ops.len() {
            let mut ops = failure.ops.clone();
            ops.drain(from..(from + chunk).min(ops.len()));
            match failing(failure.setup, &ops) {
                Some(message) => {
                    failure.ops = ops;
                    failure.message = message;
                    shorter = true;
                }
                None => from += chunk,
            }
        }
        if chunk == 1 && !shorter {
            break;
        }
        chunk = if shorter && chunk == 1 { 1 } else { chunk / 2 };
    }
    failure
}
