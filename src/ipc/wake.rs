//! Waking: other processes, and event loops; and the thread that serves connections.

pub mod doorbell;
pub mod events;
pub mod service;
