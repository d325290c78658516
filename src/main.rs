//! `epp`: wires the parts of Sluice together and decides nothing.

mod debug;
mod flags;
mod health;
mod listen;
mod logging;
mod metrics_server;
mod pool_view;
mod run;
mod serve;
mod signals;
mod tasks;
mod tls;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::main()
}
