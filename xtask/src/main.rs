//! The project's commands, run as `cargo xtask <command>`.
//!
//! Each command is a module with its arguments and a function `run`. They are programs rather than scripts so that
//! they share the code that starts Envoy, the picker and simulated model servers with the tests.

mod bench;
mod campaign;
mod console;
mod crds;
mod demo;
mod deploy;
mod fuzz;
mod mutants;
mod pages;
mod soak;
mod structure;
mod templates;
mod test;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The project's commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures what the product's parts cost
    Bench(bench::Arguments),
    /// Runs an experiment through a real Envoy and prints its table
    Campaign(campaign::Arguments),
    /// Writes the definitions of the kinds in Kubernetes from the types of the picker
    Crds(crds::Arguments),
    /// Sends chats through a real Envoy to simulated model servers and shows where each went
    Demo(demo::Arguments),
    /// Renders the manifests in deploy/ and checks what comes out
    Deploy(deploy::Arguments),
    /// Runs random operations on a part of the product until something breaks
    Fuzz(fuzz::Arguments),
    /// Changes the product in one place after the other and lists the changes that no test notices
    Mutants(mutants::Arguments),
    /// Loads a pool with every kind of request and ending and compares the picker's ledger with the engines
    Soak(soak::Arguments),
    /// Makes the configurations of Envoy in deploy/ from one source
    Templates(templates::Arguments),
    /// Checks everything that a change must hold: format, structure, lints, licences, tests
    Test(test::Arguments),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Campaign(arguments) => campaign::run(&arguments),
        Command::Crds(arguments) => crds::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Deploy(arguments) => deploy::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Mutants(arguments) => mutants::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Templates(arguments) => templates::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::complain(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
