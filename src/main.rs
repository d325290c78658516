//! `epp`: wires the parts of Sluice together and decides nothing.

mod access;
mod certificate;
mod check;
mod client_authorities;
mod connection;
mod debug;
#[cfg(test)]
mod deploy_tests;
mod descriptors;
mod environment;
mod flags;
#[cfg(test)]
mod flags_page;
mod health;
mod health_port;
mod http_port;
mod in_force;
mod kubernetes;
mod leadership;
mod listen;
mod logging;
mod memory;
mod metrics_server;
mod objectives;
mod plugin_states;
mod pool_view;
mod pulse;
mod reload;
mod rendering;
mod rewrites;
mod run;
mod scraping;
mod serve;
mod setup;
mod signals;
mod standing;
mod tasks;
mod terms;
mod tls;
mod tls_options;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::main()
}
