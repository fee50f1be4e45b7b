//! Counters of large calls, added to without locks or allocation, where others can read them while
//! the process runs; reports are made at exit. Layout, words and tables are those of the crate
//! `adma-record`, which the command has too.

pub mod file;
mod json;
pub mod modules;
pub mod report;
pub mod snapshot;
mod text;

pub use adma_record::{live, messages, samples, sites, tables, units, worth};
pub use file::Statistics;
pub use live::{Fallback, Flow, Path, Recorder};

// The layout of live files has room for them.
const _: () = assert!(crate::functions::Op::ALL.len() <= live::FUNCTIONS);
