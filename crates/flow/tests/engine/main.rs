//! The engine, event by event, and under random operations.

mod harness;
mod random_operations;
