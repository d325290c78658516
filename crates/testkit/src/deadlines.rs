//! Jobs of batch work with deadlines, on a model server from which interactive requests keep taking slots.
//!
//! The figures are those of a published study on one GPU: three jobs of 64 texts of 1,500 tokens, due 45, 75 and 100 s
//! after they were all sent at once, on a server of 32 slots that needs 62 s for them alone. A [`Scale`] shrinks them so
//! that their proportions stay.

mod report;

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use model_server_sim::text::expected_text;
use serde_json::{Value, json};
use sluice_core::{Clock, SystemClock, Time};

pub use self::report::{DeadlineReport, JobReport};
use crate::batch::{Backoff, BatchClient, Failure, Final, Item};
use crate::{
    Arrivals, Class, EnvoyConfig, Load, PickerConfig, Protocol, Simulator, Stack, Tally, Template, flow_config,
};

const MODEL: &str = "campaign-model";
const SEED: u64 = 0;

/// The study's server and work.
const SLOTS: u32 = 32;
const ITEMS_PER_SLOT: u32 = 2;
const TOKENS: u32 = 1_500;
/// It allowed 256. What the batch work took beside them leaves room for about half of that.
const INTERACTIVE_TOKENS: u32 = 128;
const STEP: Duration = Duration::from_micros(6_900);
const FIRST_TOKEN_FLOOR: Duration = Duration::from_millis(110);
/// What such a GPU computes of prompts for a model of that size, in tokens a second.
const PREFILL_RATE: f64 = 130_000.0;
const DEADLINES: [(&str, Duration); 3] =
    [("a", Duration::from_secs(45)), ("b", Duration::from_secs(75)), ("c", Duration::from_secs(100))];

/// How long the batch client stays away after an eviction, whatever it is told: it is not to the end of the line that it
/// comes back, but to its place by deadline.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

const ISSUED: &str = "llm_d_epp_flow_control_revocations_issued_total";

/// How much smaller than the study a run is.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Of the server, in place of 32. Jobs, bursts and rates shrink with it.
    pub slots: NonZeroU32,
    /// Of a text, in place of 1,500. Each takes correspondingly longer.
    pub tokens: NonZeroU32,
    /// The length of a second of the study.
    pub second: Duration,
}

impl Scale {
    /// The study in a minute, with few enough tokens for a small machine.
    pub const MINUTE: Self = Self {
        slots: NonZeroU32::new(SLOTS).expect("not zero"),
        tokens: NonZeroU32::new(150).expect("not zero"),
        second: Duration::from_millis(600),
    };
    /// A quarter of the server for half a minute, with so few tokens that a busy machine keeps up.
    pub const SMALL: Self = Self {
        slots: NonZeroU32::new(8).expect("not zero"),
        tokens: NonZeroU32::new(40).expect("not zero"),
        second: Duration::from_millis(400),
    };

    fn time(self, time: Duration) -> Duration {
        time.mul_f64(self.second.as_secs_f64())
    }

    fn step(self) -> Duration {
        self.time(STEP).mul_f64(f64::from(TOKENS) / f64::from(self.tokens.get()))
    }

    fn interactive_tokens(self) -> u32 {
        (INTERACTIVE_TOKENS * self.tokens.get()).div_ceil(TOKENS)
    }
}

/// When interactive requests arrive, in the study's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InteractiveLoad {
    /// So many a second, for a minute.
    Steady(u32),
    /// As many at once as there are slots, 15 times, every 6 s.
    Bursts,
}

/// In which order batch work is let in, and who has to go for interactive requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policies {
    /// The ordering policy of the batch band.
    pub order: &'static str,
    /// `sluice.eviction.victimOrder`.
    pub victims: &'static str,
}

impl Policies {
    /// What the study had.
    pub const ARRIVAL_AND_NEWEST: Self = Self { order: "fcfs-ordering-policy", victims: "newest" };
    pub const DEADLINE_AND_NEWEST: Self = Self { order: "slo-deadline-ordering-policy", victims: "newest" };
    pub const DEADLINE_AND_MOST_SLACK: Self = Self { order: "slo-deadline-ordering-policy", victims: "most-slack" };
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct DeadlineCampaign<'a> {
    /// The programs `epp` and `model-server-sim`.
    pub picker: &'a Path,
    pub simulator: &'a Path,
    pub scale: Scale,
    pub load: InteractiveLoad,
    pub policies: Policies,
    /// Makes the clients' random waits repeatable.
    pub seed: u64,
}

impl DeadlineCampaign<'_> {
    /// Works until every item of every job and every interactive request has ended. Fails if an item was given up, or
    /// has ended with another text than the model writes.
    pub async fn run(&self) -> Result<DeadlineReport> {
        let engine = self.engine();
        let engine: Vec<&str> = engine.iter().map(String::as_str).collect();
        let server = Simulator::start(self.simulator, &engine).await?;
        let config = |endpoints: &Path| PickerConfig::custom(&self.config(), endpoints);
        let envoy = EnvoyConfig::from_template(Template::FullDuplex)?;
        let stack = Stack::start_configured(self.picker, &[], config, envoy, &[server.address()]).await?;
        let clock = SystemClock::start();
        let begin = clock.now();
        let (batch, interactive) = tokio::join!(self.work_off(&stack, clock, begin), self.interrupt(&stack));
        let finals: Vec<Final> = batch?.into_iter().collect::<Result<_, _>>()?;
        for done in &finals {
            ensure_right(done)?;
        }
        let evictions = stack.picker.metrics().await?.count(ISSUED, &[]).unwrap_or_default();
        let evictions = u64::try_from(evictions).context("a count")?;
        Ok(DeadlineReport { evictions, interactive: interactive?, jobs: JobReport::of_each(begin, &finals) })
    }

    async fn work_off(&self, stack: &Stack, clock: SystemClock, begin: Time) -> Result<Vec<Result<Final, Failure>>> {
        let longest_wait = self.scale.time(LONGEST_WAIT);
        let client = BatchClient {
            objective: Some("batch".to_owned()),
            // One connection, so that requests arrive in the order of the list.
            protocol: Protocol::Http2,
            backoff: Backoff { first: longest_wait, longest: longest_wait },
            seed: self.seed,
            ..BatchClient::new(&stack.envoy.url("/v1/completions"), MODEL, clock)
        };
        client.run(self.items(begin)).await
    }

    fn items(&self, begin: Time) -> Vec<Item> {
        let per_job = self.scale.slots.get() * ITEMS_PER_SLOT;
        let item = |(job, due, number): (&str, Duration, u32)| Item {
            id: format!("{job}-{number}"),
            prompt: format!("text {number} of job {job} is about the locks and sluices of an old canal and who built"),
            max_tokens: self.scale.tokens,
            deadline: begin.saturating_add(self.scale.time(due)),
        };
        DEADLINES.iter().flat_map(|&(job, due)| (0..per_job).map(move |number| (job, due, number))).map(item).collect()
    }

    async fn interrupt(&self, stack: &Stack) -> Result<Tally> {
        let Self { scale, load, .. } = self;
        let slots = scale.slots.get();
        let (arrivals, duration) = match load {
            InteractiveLoad::Steady(rate) => {
                let every = scale.time(Duration::from_secs(1)) * SLOTS / slots / *rate;
                (Arrivals::Open { at_once: 1, every }, scale.time(Duration::from_secs(60)))
            }
            InteractiveLoad::Bursts => {
                let every = scale.time(Duration::from_secs(6));
                (Arrivals::Open { at_once: usize::try_from(slots)?, every }, every * 15)
            }
        };
        let tokens = scale.interactive_tokens();
        let class = Class {
            name: "interactive",
            headers: vec![("x-llm-d-inference-objective", "interactive")],
            arrivals,
            tokens: tokens..=tokens,
        };
        // Batch work is there first.
        tokio::time::sleep(scale.time(Duration::from_secs(1))).await;
        let url = stack.envoy.url("/v1/chat/completions");
        let load = Load { url: &url, model: MODEL, classes: &[class], duration, seed: self.seed };
        load.run().await?.pop().context("what became of one class")
    }

    fn engine(&self) -> Vec<String> {
        let Self { scale, .. } = self;
        let tokens_per_token = f64::from(scale.tokens.get()) / f64::from(TOKENS);
        let prefill_rate = PREFILL_RATE * tokens_per_token / scale.second.as_secs_f64();
        let millis = |time: Duration| (time.as_secs_f64() * 1e3).to_string();
        let settings = [
            ("--model", MODEL.to_owned()),
            ("--seed", SEED.to_string()),
            ("--max-num-seqs", scale.slots.to_string()),
            ("--time-per-output-token", millis(scale.step())),
            ("--first-token-floor", millis(scale.time(FIRST_TOKEN_FLOOR))),
            ("--prefill-rate", prefill_rate.round().to_string()),
        ];
        settings.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    fn config(&self) -> Value {
        let Policies { order, victims } = self.policies;
        let mut config = flow_config(self.scale.slots.get());
        if let Some(plugins) = config["plugins"].as_array_mut() {
            plugins.push(json!({"type": order}));
        }
        config["flowControl"]["enableEviction"] = true.into();
        config["flowControl"]["defaultRequestTTL"] = "30m".into();
        config["flowControl"]["defaultNegativePriorityBand"] = json!({"orderingPolicyRef": order});
        config["sluice"]["eviction"] = json!({"victimOrder": victims});
        config
    }
}

/// An item must end with what the model writes, each token once, however often it was interrupted.
fn ensure_right(done: &Final) -> Result<()> {
    let Final { item, text, tokens, .. } = done;
    let expected = item.max_tokens.get();
    ensure!(*tokens == expected, "{} ended with {tokens} tokens instead of {expected}", item.id);
    ensure!(*text == expected_text(SEED, &item.prompt, expected), "{} ended with another text: {text}", item.id);
    Ok(())
}
