//! Parts of `os` for loom: its atomics and a word to sleep on.

#[path = "sync.rs"]
pub mod sync;
