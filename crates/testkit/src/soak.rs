//! A pool under every kind of load and ending for as long as wanted, and the question whether the picker's ledger is
//! still what the engines say.

mod load;
mod rig;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sluice_core::{Clock, SystemClock, Time};

use self::load::Load;
use self::rig::Rig;

/// Nothing in a round waits for long: no request has more than a minute to get in.
const LONGEST_ROUND: Duration = Duration::from_secs(150);

/// Rounds of load, changes of the pool and quiet moments.
///
/// ```text
/// hold some streams ─> load ─> an endpoint leaves and comes back, or dies ─> load ─> quiet: compare ─> next round
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Soak<'a> {
    /// The programs `epp` and `model-server-sim`.
    pub picker: &'a Path,
    pub simulator: &'a Path,
    pub duration: Duration,
    /// Makes the random choices repeatable.
    pub seed: u64,
}

/// What a [`Soak`] went through.
#[derive(Clone, Debug, Default)]
pub struct SoakReport {
    /// Requests by how they ended.
    pub endings: BTreeMap<String, u64>,
    pub quiet_moments: u64,
    /// Endpoints that left the pool and came back under the same name.
    pub returned: u64,
    /// Model servers that were killed and replaced under the same name.
    pub replaced: u64,
}

impl Soak<'_> {
    /// Fails at the first quiet moment at which the picker and the engines differ, and on an answer that the load cannot
    /// explain.
    pub async fn run(&self) -> Result<SoakReport> {
        let mut random = StdRng::seed_from_u64(self.seed);
        let mut rig = Rig::start(self.picker, self.simulator).await?;
        let mut report = SoakReport::default();
        let clock = SystemClock::start();
        while clock.now().saturating_since(Time::ZERO) < self.duration {
            let round = self.round(&mut rig, &mut random, &mut report);
            let round = tokio::time::timeout(LONGEST_ROUND, round).await.context("a round does not end");
            round.flatten().with_context(|| format!("seed {}, after {report}", self.seed))?;
        }
        rig.let_all_go();
        rig.compare().await.context("at the end")?;
        ensure!(report.quiet_moments > 0, "no time for a single quiet moment");
        Ok(report)
    }

    async fn round(&self, rig: &mut Rig, random: &mut StdRng, report: &mut SoakReport) -> Result<()> {
        rig.hold(random.random_range(0..3)).await?;
        let load = Load::start(rig.url(), &rig.addresses(), random.random())?;
        pause(random, 300).await;
        let server = random.random_range(0..rig.servers());
        let mut killed = false;
        match random.random_range(0..10) {
            0..6 => {
                rig.remove(server)?;
                pause(random, 300).await;
                rig.add_again(server).await?;
                report.returned += 1;
            }
            6..8 => {
                rig.replace(server).await?;
                report.replaced += 1;
                killed = true;
            }
            _ => {}
        }
        rig.hold(random.random_range(0..3)).await?;
        pause(random, 500).await;
        let endings = load.stop().await;
        for (ending, count) in &endings {
            ensure!(ending.is_explained(killed), "{count} requests ended with: {ending}");
            *report.endings.entry(ending.to_string()).or_default() += count;
        }
        rig.compare().await?;
        report.quiet_moments += 1;
        rig.let_go(random);
        Ok(())
    }
}

async fn pause(random: &mut StdRng, most_millis: u64) {
    tokio::time::sleep(Duration::from_millis(random.random_range(0..=most_millis))).await;
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endings, quiet_moments, returned, replaced } = self;
        let requests: u64 = endings.values().sum();
        write!(f, "{requests} requests, {quiet_moments} quiet moments, {returned} endpoints left and came back, ")?;
        write!(f, "{replaced} servers replaced; endings: ")?;
        for (index, (ending, count)) in endings.iter().enumerate() {
            write!(f, "{}{count} {ending}", if index > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
