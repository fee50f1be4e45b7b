//! What of `backend` is built for loom: the claiming protocol.

#[path = "mode.rs"]
pub mod mode;
#[path = "request.rs"]
mod request;
#[path = "threads/mod.rs"]
pub mod threads;
