//! What loom checks of messages: `mod.rs` without all that has other atomics than loom's.

pub mod claims;
pub mod doorbell;
