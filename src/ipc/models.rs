//! What loom checks of messages: `mod.rs` without all that has other atomics than loom's.

pub mod claims;
#[path = "wake/doorbell.rs"]
pub mod doorbell;
