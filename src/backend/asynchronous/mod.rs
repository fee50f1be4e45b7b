//! Copies that go on while the caller does something else.

pub mod cookies;
#[cfg(not(loom))]
mod copies;

#[cfg(not(loom))]
pub use copies::*;
