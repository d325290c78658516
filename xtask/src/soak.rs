//! `cargo xtask soak`: the long forms of system tests.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use sluice_testkit::{
    Burst, CountingUpstream, EnvoyConfig, EvictionSoak, EvictionSoakReport, PickerConfig, ReloadSoak, Soak, Stack,
    Template, envoy_binary, flow_config, workspace,
};

use crate::console::say;

const SERVERS: usize = 2;
const SLOTS: u32 = 8;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Requests of the burst
    #[arg(long, default_value_t = 20_000)]
    requests: u64,
    /// Seconds of random load, endings and changes of the pool; 0 for the burst alone
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Evictions at random moments, shared by the ways in which a stream may be ended, in place of the above
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["requests", "seconds"])]
    evictions: Option<u64>,
    /// Changes of the configuration under load, in place of the above
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["requests", "seconds", "evictions"])]
    reloads: Option<u64>,
    /// Pods that come and go under load for five minutes, and an API server that is away for one, in place of the above
    #[arg(long, conflicts_with_all = ["requests", "seconds", "evictions", "reloads"])]
    kubernetes: bool,
    /// Where the random numbers begin
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What is shown to the picker of answers, and how it ends those that it evicts.
const ENDS: [(Template, &str); 5] = [
    (Template::FullDuplex, "event-then-reset"),
    (Template::FullDuplex, "event-then-end"),
    (Template::FullDuplex, "reset"),
    (Template::PerRequest, "event-then-reset"),
    (Template::ResponseBypass, "event-then-reset"),
];

/// First a burst that must fill every server to its limit and no further, then the comparison of the ledger with the
/// engines. Or evictions, or reloads.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.kubernetes {
        return kubernetes();
    }
    say(format_args!("building the picker and the simulated model server"));
    let [picker, simulator] = workspace::build_programs_in_sight(["epp", "model-server-sim"])?;
    envoy_binary()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        if let Some(evictions) = arguments.evictions {
            return evict(&picker, &simulator, evictions, arguments.seed).await;
        }
        if let Some(reloads) = arguments.reloads {
            say(format_args!("{reloads} changes of the configuration under load"));
            let soak = ReloadSoak { picker: &picker, simulator: &simulator, reloads, seed: arguments.seed };
            say(format_args!("{}", soak.run().await?));
            return Ok(());
        }
        burst(&picker, arguments).await?;
        if arguments.seconds == 0 {
            return Ok(());
        }
        say(format_args!("{} s of random load, compared at quiet moments", arguments.seconds));
        let duration = Duration::from_secs(arguments.seconds);
        let soak = Soak { picker: &picker, simulator: &simulator, duration, seed: arguments.seed };
        say(format_args!("{}", soak.run().await?));
        Ok(())
    })
}

/// The long forms of two system tests, which say what they have seen.
fn kubernetes() -> Result<()> {
    envoy_binary()?;
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(workspace::root());
    command.args(["test", "--locked", "--package", "epp", "--test", "system", "--", "--ignored", "--nocapture"]);
    let status = command.arg("kubernetes").status().context("cargo does not start")?;
    ensure!(status.success(), "the tests ended with {status}");
    Ok(())
}

async fn evict(picker: &Path, simulator: &Path, evictions: u64, seed: u64) -> Result<()> {
    let evictions = evictions.div_ceil(ENDS.len() as u64);
    for (template, mid_stream) in ENDS {
        say(format_args!("{template:?}, {mid_stream}: {evictions} evictions or more"));
        let at_least = EvictionSoakReport { evictions, ..EvictionSoakReport::default() };
        let soak = EvictionSoak { picker, simulator, template, mid_stream, at_least, seed };
        say(format_args!("{}", soak.run().await?));
    }
    Ok(())
}

async fn burst(picker: &Path, arguments: &Arguments) -> Result<()> {
    let slots = usize::try_from(SLOTS)?;
    let burst = Burst { clients: SERVERS * slots * 10, requests: arguments.requests, seed: arguments.seed };
    say(format_args!("{} clients with {} requests for {SERVERS} times {slots} slots", burst.clients, burst.requests));
    let servers: Vec<_> = (0..SERVERS).map(|_| CountingUpstream::start()).collect::<Result<_>>()?;
    let addresses: Vec<_> = servers.iter().map(CountingUpstream::address).collect();
    let config = |endpoints: &Path| PickerConfig::custom(&flow_config(SLOTS), endpoints);
    let envoy = EnvoyConfig::from_template(Template::FullDuplex)?;
    let stack = Stack::start_configured(picker, &[], config, envoy, &addresses).await?;
    let report = burst.run(&stack, &servers).await?;
    say(format_args!("{report}"));
    let stats = stack.envoy.stats().await?;
    let labels = [("envoy_http_conn_manager_prefix", "inference"), ("envoy_response_code_class", "5")];
    let server_errors = stats.count("envoy_http_downstream_rq_xx", &labels);
    ensure!(server_errors == Some(0), "Envoy has answered {server_errors:?} requests with 5xx");
    ensure!(report.broken == 0 && report.statuses.keys().all(|&status| status == 200), "not all were served");
    for (index, server) in report.servers.iter().enumerate() {
        ensure!(server.peak_without_aborted == slots, "server-{index} was not filled to its limit and no further");
    }
    Ok(())
}
