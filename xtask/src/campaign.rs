//! `cargo xtask campaign`: experiments through a real Envoy, whose tables stand in the documentation.

mod concurrency;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use sluice_testkit::{DeadlineCampaign, DeadlineReport, InteractiveLoad, Policies, Scale, envoy_binary, workspace};

use crate::console::say;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    campaign: Campaign,
}

#[derive(Debug, Subcommand)]
enum Campaign {
    /// Three jobs of batch work with deadlines, evicted by interactive requests: `docs/eviction.md`
    EvictionDeadlines {
        /// When interactive requests come; one table for each
        #[arg(long, value_delimiter = ',', default_values_t = [Pattern::Steady, Pattern::Bursts], value_enum)]
        load: Vec<Pattern>,
        /// Where the random numbers begin
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// More and more clients on one model server, with a gate by its metrics and without: `docs/performance.md`
    Concurrency {
        /// One line for each
        #[arg(long, value_delimiter = ',', default_values_t = [32, 64, 96, 128, 160, 200])]
        clients: Vec<usize>,
        /// Where the random numbers begin
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pattern {
    /// One after the other
    Steady,
    /// As many at once as there are slots
    Bursts,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let [picker, simulator] = workspace::build_programs(["epp", "model-server-sim"])?;
    envoy_binary()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match &arguments.campaign {
            Campaign::EvictionDeadlines { load, seed } => {
                for pattern in load {
                    eviction_deadlines(&picker, &simulator, *pattern, *seed).await?;
                }
                Ok(())
            }
            Campaign::Concurrency { clients, seed } => concurrency::run(&picker, &simulator, clients, *seed).await,
        }
    })
}

const POLICIES: [(&str, Policies); 3] = [
    ("arrival order, newest", Policies::ARRIVAL_AND_NEWEST),
    ("deadline order, newest", Policies::DEADLINE_AND_NEWEST),
    ("deadline order, most slack", Policies::DEADLINE_AND_MOST_SLACK),
];

async fn eviction_deadlines(picker: &Path, simulator: &Path, pattern: Pattern, seed: u64) -> Result<()> {
    let (title, load) = match pattern {
        Pattern::Steady => ("an interactive request every 0.3 s for 36 s", InteractiveLoad::Steady(2)),
        Pattern::Bursts => ("32 interactive requests every 3.6 s, 15 times", InteractiveLoad::Bursts),
    };
    say(format_args!("\n{title}:\n\n{HEAD}"));
    for (name, policies) in POLICIES {
        let campaign = DeadlineCampaign { picker, simulator, scale: Scale::MINUTE, load, policies, seed };
        let report = campaign.run().await?;
        say(format_args!("{}", Line { name, report: &report }));
    }
    Ok(())
}

const HEAD: &str = "\
| order, victims | evictions | tokens read again for each | TTFT p50 | TTFT p95 | batch done | job a, by 27 s | job b, by 45 s | job c, by 60 s |
|---|---|---|---|---|---|---|---|---|";

/// A line of the table, in Markdown.
struct Line<'a> {
    name: &'a str,
    report: &'a DeadlineReport,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, report } = self;
        let ttft = |percent| Seconds(report.interactive.ttft_percentile(percent).unwrap_or_default(), 2);
        let (evictions, wasted) = (report.evictions, report.wasted_tokens_per_eviction());
        write!(f, "| {name} | {evictions} | {wasted} | {} | {} | ", ttft(50), ttft(95))?;
        write!(f, "{} |", Seconds(report.batch_took(), 1))?;
        for job in &report.jobs {
            write!(f, " {}%, {} |", job.percent_in_time(), Seconds(job.took, 1))?;
        }
        Ok(())
    }
}

/// A time with so many decimals.
struct Seconds(Duration, usize);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.*} s", self.1, self.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use sluice_testkit::{JobReport, Tally};

    use super::*;

    #[test]
    fn a_line_says_what_became_of_each_job() {
        let job = |name, in_time, took| JobReport {
            name,
            items: 64,
            in_time,
            deadline: Duration::from_secs(27),
            took: Duration::from_millis(took),
            interruptions: 10,
            wasted_tokens: 500,
        };
        let jobs = vec![job("a", 63, 28_000), job("b", 64, 30_040), job("c", 64, 41_960)];
        let interactive = Tally { served: 2, ttft: [100, 250].map(Duration::from_millis).into(), ..Tally::default() };
        let report = DeadlineReport { evictions: 31, interactive, jobs };
        let expected = "| arrival order, newest | 31 | 50 | 0.10 s | 0.25 s | 42.0 s | 98%, 28.0 s | 100%, 30.0 s | \
                        100%, 42.0 s |";
        assert_eq!(Line { name: "arrival order, newest", report: &report }.to_string(), expected);
        assert_eq!(HEAD.lines().next().unwrap().matches('|').count(), expected.matches('|').count());
    }
}
