//! The built-in plugins as a configuration sees them, and the pages and examples that describe them.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod damaged;
mod documentation;
mod effective;
mod fixtures;
mod metrics;
mod parameters;
mod rules;
mod spread;

use std::path::PathBuf;

use sluice_config::{Assembled, Diagnostics, Options, Source, load};
use sluice_plugins::BUILTIN;

fn read(text: &str) -> Result<Assembled, Diagnostics> {
    load(&Source::new("c.yaml", text), BUILTIN, &Options::default())
}

/// A configuration that is valid and gives no reason for a warning.
fn read_silently(name: &str, text: &str) -> Assembled {
    let assembled = read(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(assembled.warnings, [], "{name}");
    assembled
}

/// The root of the repository.
fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}
