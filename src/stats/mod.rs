//! One record per copy, lock-free and without allocation, where others can read it while the
//! process runs; reports are made at exit.

pub mod file;
pub mod histogram;
mod hlog;
mod json;
pub mod live;
pub mod modules;
pub mod report;
pub mod samples;
pub mod sites;
pub mod snapshot;
mod tables;
mod text;
mod timeline;
mod units;
mod worth;

use crate::ipc::counts as messages;
pub use file::Statistics;
pub use live::{Fallback, Flow, Path, Recorder};

// The layout of live files has room for them.
const _: () = assert!(crate::functions::Op::ALL.len() <= live::FUNCTIONS);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::Op;

    #[test]
    fn recorder_counts_paths_and_reasons_and_forgets_on_demand() {
        let recorder = Recorder::new();
        recorder.record(Path::Engine, 1 << 20, 500);
        recorder.record(Path::Libc(Fallback::Overlap), 70_000, 10);
        recorder.record(Path::Libc(Fallback::Overlap), 70_000, 10);
        recorder.profile(Op::Bcopy as usize, 3);
        assert_eq!(recorder.engine.sizes.count(), 1);
        assert_eq!(recorder.libc_bytes(), 140_000);
        assert!(recorder.fallbacks().any(|reason| reason == ("overlap", 2)));
        recorder.clear();
        assert!(recorder.is_empty());
        assert!(recorder.fallbacks().all(|(_, count)| count == 0));
    }
}
