//! All data of a report, gathered at exit.

use super::Recorder;
use super::messages::Messages;
use crate::backend::engine::Form;
use core::fmt::{Result, Write};

pub type EngineReport<'a> = &'a dyn Fn(Form, &mut dyn Write) -> Result;

pub struct Snapshot<'a> {
    pub recorder: &'a Recorder,
    pub pid: i32,
    pub exe: &'a str,
    pub backend: &'a str,
    /// Channels besides the caller.
    pub channels: usize,
    /// Fixed threshold; `None`: learned.
    pub min_bytes: Option<usize>,
    /// Smallest copy that is considered.
    pub floor: usize,
    /// Threshold that was learned, or the fixed one.
    pub threshold: Option<usize>,
    pub nanoseconds_per_tick: f64,
    pub caller_bytes: u64,
    pub channel_bytes: &'a [u64],
    /// Copies in which the caller redid pieces because of a bad page.
    pub faults: u64,
    /// Copies whose pieces were taken back from workers that did not run.
    pub taken_back: u64,
    /// Writes the engine's own part; `None`: worker threads have none.
    pub engine: Option<EngineReport<'a>>,
    /// Messages between processes, if there were any.
    pub messages: Option<Messages>,
    pub profile: bool,
    /// Words of the command line, each terminated by a zero.
    pub command: &'a [u8],
    /// Start of the process, by the time stamp counter.
    pub start_ticks: u64,
    /// Seconds since the epoch when the process started.
    pub started: f64,
    pub seconds: f64,
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
mod tests {
    use super::super::sites::Origin;
    use super::super::{Fallback, Path, json, text};
    use super::*;
    use crate::backend::ioat::report::HelperCounts;
    use adma_shared::Counters;

    /// A report that only a machine with the kernel helper makes, of a program with odd names.
    #[test]
    fn helper_and_odd_names_are_reported_as_json_and_as_text_of_eighty_columns() {
        let recorder = Recorder::ZERO;
        (0..100).for_each(|i| recorder.record(Path::Engine, (1 << 20) + i * 1000, 50_000));
        recorder.record(Path::Libc(Fallback::Overlap), 100_000, 9000);
        recorder.record(Path::Libc(Fallback::Learned), 70_000, 3000);
        for bytes in [100, 200] {
            let origin = || Some(Origin { base: 0x1000, name: b"/lib/\"a\".so" });
            recorder.sites.note(0x1234, bytes, 1000, origin);
        }
        recorder.timeline.note(1, 2, true, 70_000);
        recorder.timeline.note(1_500_000, 1_600_000, false, 4096);
        let helper = HelperCounts {
            held: "dma0chan0 idxd 0000:00:04.0 up\ndma0chan1 idxd 0000:00:04.0 up\n",
            counts: [
                ("submit_calls", 1_000_000),
                ("wait_calls", 17),
                ("system_calls", 1_000_317),
                ("redone_pieces", 3),
                ("requests", 1000),
                ("pinned_pages", 512),
            ],
            costs: [("submission", 40_000_000), ("engine", 62_000_000_000), ("completion", 9)],
            kept: Some([("hits", 103), ("misses", 17), ("evictions", 10), ("invalidations", 11)]),
            module: Some([("copies", 21), ("errors", 26)]),
        };
        let snapshot = Snapshot {
            recorder: &recorder,
            pid: 4711,
            exe: "/usr/bin/od\"d",
            backend: "ioat",
            channels: 2,
            min_bytes: None,
            floor: 128 << 10,
            threshold: Some(1 << 20),
            nanoseconds_per_tick: 0.5,
            caller_bytes: 60,
            channel_bytes: &[30, 10],
            faults: 0,
            taken_back: 0,
            engine: Some(&|form, out| helper.write(form, out)),
            messages: None,
            profile: false,
            command: b"od\"d\0-c\0two words\0",
            start_ticks: 0,
            started: 1_700_000_000.25,
            seconds: 1.5,
        };
        let mut out = String::new();
        json::write(&snapshot, &mut out).unwrap();
        let found: serde_json::Value = serde_json::from_str(&out).unwrap();
        let expected = serde_json::json!([
            ["/exe", "/usr/bin/od\"d"],
            ["/command", ["od\"d", "-c", "two words"]],
            ["/saved/seconds", null],
            ["/saved/reason", "too few of its calls were timed by libc"],
            ["/sites/0", {
                "module": "/lib/\"a\".so", "offset": 0x234, "calls": 2, "bytes": 300, "ns": 1000
            }],
            ["/paths/libc/by_size", [[16, 170_000, 6000]]],
            ["/timeline/engine", [0, 4096]],
            ["/timeline/libc", [70_000, 0]],
            ["/channel_bytes/ioat-1", 10],
            ["/ioat/submit_calls", 1_000_000],
            ["/ioat/wait_calls", 17],
            ["/ioat/system_calls", 1_000_317],
            ["/ioat/redone_pieces", 3],
            ["/ioat/requests", 1000],
            ["/ioat/pinned_pages", 512],
            ["/ioat/channels/dma0chan1", "idxd"],
            ["/ioat/costs_ns/submission", 40_000_000],
            ["/ioat/module/errors", 26],
            ["/ioat/lines/hits", 103],
        ]);
        for row in expected.as_array().unwrap() {
            let pointer = row[0].as_str().unwrap();
            assert_eq!(found.pointer(pointer), Some(&row[1]), "{pointer}: {out}");
        }
        out.clear();
        text::write(&snapshot, &mut out).unwrap();
        for line in out.lines() {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
        for part in [
            "1000317 system calls, 17 to wait",
            "3 pieces done again",
            "ioat-1 10 %",
            "17 misses,",
            "2 channels of idxd: dma0chan0 to dma0chan1",
            "26 transfers failed or were too late",
            "11 invalidated",
            "submission 40",
        ] {
            assert!(out.contains(part), "{part} is missing:\n{out}");
        }
    }
}
