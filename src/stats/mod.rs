//! Lock-free counters of large calls, which other processes can read while this one runs, and
//! reports at exit. Layout, words and tables are in the crate `adma-shared`, which the command uses
//! too.

pub mod file;
mod json;
pub mod modules;
pub mod report;
pub mod snapshot;
mod text;

pub use adma_shared::{live, messages, samples, sites, tables, worth};
pub use file::Statistics;
pub use live::{Fallback, Flow, Path, Recorder};
