//! Sleeping and waking: `doorbell` between the two processes, `wakeups` between threads of this one,
//! `events` for event loops, and `background` for connections that need any thread of the process.

pub mod background;
pub mod doorbell;
pub mod events;
pub mod wakeups;
