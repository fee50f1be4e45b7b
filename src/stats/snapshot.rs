//! Everything a report tells, gathered at exit.

use super::Recorder;
use super::messages::Messages;

pub struct Snapshot<'a> {
    pub recorder: &'a Recorder,
    pub pid: i32,
    pub exe: &'a str,
    pub backend: &'a str,
    /// Channels besides the caller.
    pub channels: usize,
    /// `None`: learned.
    pub min_bytes: Option<usize>,
    /// Smaller copies are never considered.
    pub floor: usize,
    /// What learning has found, or the fixed number.
    pub threshold: Option<usize>,
    pub nanoseconds_per_tick: f64,
    pub caller_bytes: u64,
    /// What channels are called in front of their number.
    pub channel_name: &'a str,
    pub channel_bytes: &'a [u64],
    /// Copies in which the caller redid pieces because a page refused.
    pub faults: u64,
    /// Copies whose pieces were taken back from workers that did not run.
    pub taken_back: u64,
    /// Only with the kernel helper.
    pub helper: Option<HelperCounts<'a>>,
    /// Only with a graphics card: what has become of memory that was registered with it.
    pub registrations: Option<[(&'static str, u64); 7]>,
    /// Only where there were some.
    pub messages: Option<Messages>,
    pub profile: bool,
    /// The words of the command line, each with a zero behind it.
    pub command: &'a [u8],
    /// When the process started, by the time stamp counter.
    pub start_ticks: u64,
    /// Seconds since the epoch when the process started.
    pub started: f64,
    pub seconds: f64,
}

/// What the kernel helper was asked, and what it has done itself.
pub struct HelperCounts<'a> {
    /// Its channels, as `queues::held` has them.
    pub held: &'a str,
    pub submit_calls: u64,
    /// For copies whose words did not come, or came late.
    pub wait_calls: u64,
    /// All that a copy needs, those two included.
    pub system_calls: u64,
    /// Pieces that were refused or failed and that the caller has copied.
    pub redone_pieces: u64,
    pub requests: u64,
    /// For these requests; a page that was pinned already does not count.
    pub pinned_pages: u64,
    /// Where their time went, in nanoseconds.
    pub costs: [(&'static str, u64); 3],
    /// Ranges of 64 pages: found pinned, not found, let go.
    pub kept: Option<[(&'static str, u64); 4]>,
    /// What the module has counted for all processes together since it was loaded.
    pub module: Option<[(&'static str, u64); 2]>,
}

impl Snapshot<'_> {
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        (ticks as f64 * self.nanoseconds_per_tick) as u64
    }

    pub fn program(&self) -> &str {
        self.exe.rsplit('/').next().unwrap_or(self.exe)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::sites::Origin;
    use super::super::{Fallback, Path};
    use super::*;
    use crate::functions::Op;
    use adma_record::Counters;
    use std::fmt::{self, Write};

    /// As long as they get.
    pub const MESSAGES: Messages = Messages {
        directions: [("sent", 1_000_000_000, 1 << 50), ("received", 7, 700)],
        regimes: [
            ("eager", 1_000_000_000, 40_000),
            ("one_copy", 3, 30_000),
            ("two_ended", 2, 1 << 50),
            ("chunks", 0, 0),
        ],
        copied: [
            ("helper", 7),
            ("mapped", 3 << 20),
            ("process_vm", 1 << 49),
            ("process_vm_workers", 1 << 40),
            ("shared_memory", 40_000),
        ],
    };

    pub const REGISTRATIONS: [(&str, u64); 7] = [
        ("hits", 1_000_000_000),
        ("misses", 1_000_000_001),
        ("made", 1_000_000_002),
        ("most_bytes", 1 << 42),
        ("evictions", 1_000_000_003),
        ("invalidations", 1_000_000_004),
        ("refused", 1_000_000_005),
    ];

    /// What the software channels tell, or the kernel helper's.
    pub fn with_snapshot<T>(
        profile: bool,
        helper: Option<HelperCounts<'_>>,
        use_it: impl FnOnce(&Snapshot<'_>) -> T,
    ) -> T {
        let recorder = Recorder::ZERO;
        for i in 0..100u64 {
            recorder.record(Path::Engine, (1 << 20) + i as usize * 1000, 50_000 + i * 10);
        }
        recorder.record(Path::Libc(Fallback::Overlap), 100_000, 9000);
        recorder.record(Path::Libc(Fallback::Learned), 70_000, 3000);
        recorder.note_read(Path::Engine, 1 << 20);
        for bytes in [100, 200] {
            let origin = || Some(Origin { base: 0x1000, name: b"/lib/\"a\".so" });
            recorder.sites.note(0x1234, bytes, 1000, origin);
        }
        recorder.timeline.note(1, 2, true, 70_000);
        recorder.timeline.note(1_500_000, 1_600_000, false, 4096);
        if profile {
            for size in [1usize, 8, 8, 8, 100, 5000, 1 << 20] {
                recorder.profile(Op::Memcpy as usize, size);
            }
        }
        use_it(&Snapshot {
            recorder: &recorder,
            pid: 4711,
            exe: "/usr/bin/od\"d",
            backend: "threads",
            channels: 2,
            min_bytes: None,
            floor: 128 << 10,
            threshold: Some(1 << 20),
            nanoseconds_per_tick: 0.5,
            caller_bytes: 60,
            channel_name: if helper.is_some() { "ioat" } else { "adma" },
            channel_bytes: &[30, 10],
            faults: 0,
            taken_back: 0,
            helper,
            registrations: profile.then_some(REGISTRATIONS),
            messages: profile.then_some(MESSAGES),
            profile,
            command: b"od\"d\0-c\0two words\0",
            start_ticks: 0,
            started: 1_700_000_000.25,
            seconds: 1.5,
        })
    }

    pub fn rendered(
        profile: bool,
        write: fn(&Snapshot<'_>, &mut dyn Write) -> fmt::Result,
    ) -> String {
        let mut out = String::new();
        with_snapshot(profile, None, |snapshot| write(snapshot, &mut out)).unwrap();
        out
    }

    /// What the kernel helper's channels tell.
    pub fn rendered_with_helper(write: fn(&Snapshot<'_>, &mut dyn Write) -> fmt::Result) -> String {
        let helper = HelperCounts {
            held: "dma0chan0 idxd 0000:00:04.0 up\ndma0chan1 idxd 0000:00:04.0 up\n",
            submit_calls: 1_000_000,
            wait_calls: 17,
            system_calls: 1_000_317,
            redone_pieces: 3,
            requests: 1000,
            pinned_pages: 512,
            costs: [("submission", 40_000_000), ("engine", 62_000_000_000), ("completion", 999)],
            kept: Some([
                ("hits", 1_000_003),
                ("misses", 17),
                ("evictions", 10),
                ("invalidations", 11),
            ]),
            module: Some([("copies", 21), ("errors", 26)]),
        };
        let mut out = String::new();
        with_snapshot(false, Some(helper), |snapshot| write(snapshot, &mut out)).unwrap();
        out
    }
}
