//! `epp`: wires the parts of Sluice together and decides nothing.

mod flags;
mod health;
mod logging;
mod metrics_server;
mod run;
mod serve;
mod signals;
mod tasks;
mod tls;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::main()
}
