//! Runs random operations on the engine beside its oracle: `fuzz --ops N --seed S`.
//!
//! Prints a minimal list of operations if they come to differ or an invariant breaks, and exits with 1.

use std::collections::BTreeMap;
use std::process::ExitCode;

#[path = "../tests/engine/harness"]
mod harness {
    pub(crate) mod checker;
    pub(crate) mod checker_pool;
    pub(crate) mod checker_shares;
    pub(crate) mod endpoints;
    pub(crate) mod history;
    pub(crate) mod ops;
    pub(crate) mod oracle;
    pub(crate) mod oracle_drain;
    pub(crate) mod oracle_evict;
    pub(crate) mod oracle_limits;
    pub(crate) mod oracle_pool;
    pub(crate) mod oracle_turns;
    pub(crate) mod shrink;
    pub(crate) mod world;
}

use harness::shrink::{Coverage, search};

/// Operations in one run from an empty engine.
const RUN_LENGTH: usize = 400;

#[expect(clippy::print_stdout, reason = "the result is for whoever ran the command")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given: BTreeMap<&str, &str> =
        arguments.chunks(2).filter_map(|pair| Some((pair.first()?.as_str(), pair.get(1)?.as_str()))).collect();
    let number = |name: &str, default: u64| given.get(name).map_or(Ok(default), |text| text.replace('_', "").parse());
    let (Ok(ops), Ok(seed)) = (number("--ops", 1_000_000), number("--seed", 1)) else {
        println!("usage: fuzz [--ops N] [--seed S]");
        return ExitCode::from(64);
    };
    std::panic::set_hook(Box::new(|_| {}));
    let mut coverage = Coverage::default();
    match search(seed, ops, RUN_LENGTH, &mut coverage) {
        Ok(()) => {
            println!("{ops} operations from seed {seed}: no difference, no broken invariant");
            for (what, count) in coverage.counts() {
                println!("{count:>12}  {what}");
            }
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("seed {seed} fails under setup {:#x} after these operations:", failure.setup);
            for op in &failure.ops {
                println!("    {op:?}");
            }
            println!("{}", failure.message);
            ExitCode::FAILURE
        }
    }
}
