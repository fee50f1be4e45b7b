//! Parts of messages for loom's models: `mod.rs` without modules that use other atomics.

pub mod claims;
#[path = "wake/doorbell.rs"]
pub mod doorbell;
