//! The admission engine.
