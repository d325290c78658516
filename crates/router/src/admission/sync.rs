//! The primitives that the loom tests replace.

#[cfg(not(loom))]
pub(super) use std::sync::{Arc, Mutex, MutexGuard};

#[cfg(loom)]
pub(super) use loom::sync::{Arc, Mutex, MutexGuard};
