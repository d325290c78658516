//! Sheddable work in flight makes room for more urgent work: who has to go, how many, when none, and what each client
//! sees of it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod body_modes;
mod campaigns;
mod demand;
mod one_slot;
mod phases;
mod rig;
mod scraped;
mod seen;
mod steps;
mod vectors;
mod victims;
