//! The live file: counters of one process, laid out so that its user can read them while the
//! process runs and after it was killed.
//!
//! The library counts in a shared mapping of such a file; the command `adma` looks at copies that it
//! has read. Every field is an atomic number, so that any bytes are a value: a reader asks
//! `Live::is_valid` before it believes one. Numbers of one moment need not fit each other exactly, for
//! no thread is stopped while they are read.

use crate::histogram::Histogram;
use crate::messages::MessageCounts;
use crate::samples::Samples;
use crate::sites::Sites;
use crate::timeline::Timeline;
use crate::under_way::UnderWay;
use crate::{Counters, Sums, Text, absorb_all};
use core::cmp::Reverse;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use zerocopy::{FromBytes, IntoBytes};

pub const MAGIC: u64 = u64::from_le_bytes(*b"adma-liv");
/// Changes with the layout and with the table of functions, which are counted by position; the
/// command reads files of its own version only.
pub const VERSION: u32 = 9 ^ crate::functions::fingerprint();

/// A name is the process number, a dash, and what makes it unique when the process executes
/// another program: `4711-1f0a33b2c4`.
pub const LONGEST_NAME: usize = 40;

pub const MOST_CHANNELS: usize = 64;
/// Room for more reasons and functions than there are; the last is for reasons of other versions.
pub const REASONS: usize = 20;
pub const FUNCTIONS: usize = 64;
const _: () = assert!(crate::functions::OPS.len() <= FUNCTIONS);
pub const LONGEST_EXE: usize = 256;
pub const LONGEST_COMMAND: usize = 256;

#[repr(C)]
#[derive(FromBytes, IntoBytes)]
pub struct Live {
    pub head: Head,
    pub control: Control,
    pub facts: Facts,
    pub recorder: Recorder,
    /// Messages between processes.
    pub messages: MessageCounts,
    pub under_way: UnderWay,
}

/// Description of the process. Written once, except for how the process has ended.
#[repr(C)]
#[derive(FromBytes, IntoBytes)]
pub struct Head {
    /// Stored last: without it the file is still being made.
    pub magic: AtomicU64,
    pub version: AtomicU32,
    /// Size of the whole layout.
    pub size: AtomicU32,
    pub pid: AtomicU32,
    /// How the process has ended, one of `ended`.
    pub ended: AtomicU32,
    /// Exit status, if the process has reported it.
    pub status: AtomicU32,
    reserved: AtomicU32,
    /// Inode of the namespace that `pid` belongs to; 0: unknown.
    pub pid_namespace: AtomicU64,
    /// Time of creation by CLOCK_BOOTTIME: a process that started later is another one.
    pub made: AtomicU64,
    /// Start of the process: time stamp counter, CLOCK_MONOTONIC, and since the epoch.
    pub start_ticks: AtomicU64,
    pub start_nanoseconds: AtomicU64,
    pub start_wall: AtomicU64,
    /// End of the process by CLOCK_MONOTONIC; 0: not yet, or it was killed.
    pub end_nanoseconds: AtomicU64,
    /// Path of the program; the end of a longer one.
    pub exe: Text<LONGEST_EXE>,
    /// Words of the command line, each terminated by a zero; the beginning of a longer one.
    pub command: Text<LONGEST_COMMAND>,
}

/// Ways in which a process has ended.
pub mod ended {
    /// Not ended, or not known.
    pub const NOT: u32 = 0;
    /// Returned from main or called exit.
    pub const EXIT: u32 = 1;
    /// Called `_exit`, `quick_exit` or the like.
    pub const AT_ONCE: u32 = 2;
    pub const ABORT: u32 = 3;
}

/// Value of `Head::status` where the status is not known.
pub const NO_STATUS: u32 = u32::MAX;

/// Settings that the user changes in the running process. All zeros: those of its environment. The
/// command writes them; the library reads, checks and applies them at the next large copy.
#[repr(C)]
#[derive(FromBytes, IntoBytes)]
pub struct Control {
    /// Number that differs with every change, stored last.
    pub change: AtomicU32,
    /// 1: every copy goes to libc.
    pub off: AtomicU32,
    /// A fixed threshold in bytes; 0: as before.
    pub min_bytes: AtomicU64,
    /// Channels that one copy may use; 0: as before.
    pub channels: AtomicU32,
    /// Last change that was applied.
    pub obeyed: AtomicU32,
}

impl Control {
    /// Thresholds that are accepted: sharing less would only cost, and no copy is larger.
    pub const BYTES: core::ops::RangeInclusive<u64> = 4096..=1 << 40;
}

/// Counters from elsewhere, published here now and then, at the latest when the process ends.
#[repr(C)]
#[derive(FromBytes, IntoBytes)]
pub struct Facts {
    /// Engine that is up, encoded by `word`.
    pub backend: AtomicU64,
    pub channels: AtomicU32,
    /// 1: switched off through `Control`.
    pub off: AtomicU32,
    /// The fixed threshold; 0: learned.
    pub min_bytes: AtomicU64,
    /// Smallest copy that is considered.
    pub floor: AtomicU64,
    /// Threshold that was learned; 0: none yet.
    pub threshold: AtomicU64,
    /// Time of the last update, by the time stamp counter.
    pub ticks: AtomicU64,
    pub faults: AtomicU64,
    pub taken_back: AtomicU64,
    pub caller_bytes: AtomicU64,
    pub channel_bytes: [AtomicU64; MOST_CHANNELS],
}

/// Sizes and times of the copies that took one path.
#[repr(C)]
#[derive(FromBytes, IntoBytes)]
pub struct Flow {
    pub sizes: Histogram,
    /// Times in ticks; reports convert them to nanoseconds.
    pub ticks: Histogram,
    /// Bytes and ticks by power of two of the size, from `FIRST_SPEED` up.
    speeds: [Sums<2>; SPEEDS],
}

const FIRST_SPEED: u32 = 12;
const SPEEDS: usize = 28;

/// Calls of one function, or copies that stayed with libc for one reason, and their bytes.
pub type Calls = Sums<2>;

/// Number of kinds of calls that reports list by themselves.
pub const APART: usize = 3;

/// Returns the names of such a kind, in JSON and in texts. No table, which the loader would relocate.
pub fn names_apart(kind: usize) -> (&'static str, &'static str) {
    match kind {
        0 => ("reads", "reads of files"),
        1 => ("to_card", "copies to a card"),
        _ => ("from_card", "copies from a card"),
    }
}

#[repr(C)]
#[derive(FromBytes, IntoBytes)]
pub struct Recorder {
    pub engine: Flow,
    /// Bytes carried by the engine.
    pub carried: AtomicU64,
    pub libc: Flow,
    pub fallbacks: [Calls; REASONS],
    /// Calls of some kinds among all those, see `names_apart`: by the engine, by libc.
    pub apart: [[Calls; 2]; APART],
    pub verified: AtomicU64,
    pub mismatched: AtomicU64,
    pub samples: Samples,
    pub sites: Sites,
    pub timeline: Timeline,
    /// Sizes of every copy, small ones too; only with ADMA_PROFILE.
    pub every_size: Histogram,
    pub by_function: [Calls; FUNCTIONS],
}

/// Path of a large copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Engine,
    Libc(Fallback),
}

/// Reasons, each with its name in JSON and with words that can follow "because".
macro_rules! reasons {
    ($($(#[$about:meta])* $reason:ident = $name:literal, $words:literal;)*) => {
        /// Why a large copy stayed with libc.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Fallback { $($(#[$about])* $reason,)* }

        impl Fallback {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$reason),*];
            const TEXTS: [(&str, &str); Self::ALL.len()] = [$(($name, $words)),*];
        }
    };
}

reasons! {
    /// ADMA_BACKEND=libc, switched off, or a copy failed verification.
    Off = "off", "sharing was switched off";
    Overlap = "overlap", "source and destination overlap";
    /// Measuring has shown that libc is at least as fast here.
    Learned = "learned", "libc was as fast";
    Compared = "compared", "libc had its turn, to be compared with";
    /// As many copies are in flight as there is help for.
    Busy = "busy", "other copies had the CPUs";
    /// The system refused threads or futexes, or what the helper needs.
    Refused = "refused", "the system refused help";
    OneCpu = "one_cpu", "there was one CPU";
    /// The engine is being started, or this is a child that shares its parent's memory.
    Starting = "starting", "the engine was just starting";
    /// Every I/OAT channel has failed and is in quarantine.
    NoChannels = "no_channels", "every channel has failed";
    Unaligned = "unaligned", "the engine cannot copy such addresses";
    /// The engine that is up only copies within one process.
    Unsupported = "unsupported", "the engine cannot do such calls";
    /// Two ranges differ in their first bytes, which the caller compares before it asks for help.
    Early = "early", "a comparison ended with its first bytes";
    RealTime = "real_time", "real-time threads do not wait for workers";
    BelowMin = "below_min", "they are below the threshold set by adma top";
    /// The first bytes of the file are not in the page cache.
    NotCached = "not_cached", "files were not in the page cache";
    /// The CPUs divided by the ranks of an MPI job leave one to each.
    Ranks = "ranks", "other ranks of the job hold the CPUs";
}

impl Fallback {
    pub fn name(self) -> &'static str {
        Self::TEXTS[self as usize].0
    }

    pub fn words(self) -> &'static str {
        Self::TEXTS[self as usize].1
    }
}

const _: () = assert!(Fallback::ALL.len() < REASONS);

/// Folders of live files besides that of XDG_RUNTIME_DIR: what stands before and after the number of
/// their user in a folder for all users.
pub const FOLDERS: [(&str, &str, &str); 3] =
    [("/run/user", "", "/adma"), ("/dev/shm", "adma-", ""), ("/tmp", "adma-", "")];

/// Beginning of the name of a folder in which `adma program` collects the files of all its processes.
pub const TREE: &str = "tree-";

/// Lists folders in which a user's live files may be, in order. `runtime`: XDG_RUNTIME_DIR.
pub fn folders(user: u32, runtime: Option<&str>, mut add: impl FnMut(core::fmt::Arguments<'_>)) {
    if let Some(runtime) = runtime.filter(|path| path.starts_with('/')) {
        add(format_args!("{runtime}/adma"));
    }
    for (folder, before, after) in FOLDERS {
        add(format_args!("{folder}/{before}{user}{after}"));
    }
}

/// Returns the name of an engine's channels, in front of their number.
pub fn channel_name(backend: &str) -> &str {
    if matches!(backend, "ioat" | "gpu") { backend } else { "adma" }
}

impl Live {
    pub const SIZE: usize = size_of::<Self>().next_multiple_of(4096);

    /// Returns whether the contents of a file are valid: complete, of this version, and without
    /// impossible numbers.
    pub fn is_valid(&self) -> bool {
        let head = &self.head;
        head.magic.load(Relaxed) == MAGIC
            && head.version.load(Relaxed) == VERSION
            && head.size.load(Relaxed) as usize == size_of::<Self>()
            && self.facts.channels.load(Relaxed) as usize <= MOST_CHANNELS
            && head.pid.load(Relaxed) <= i32::MAX as u32
    }
}

/// Encodes a name of at most eight bytes as a number.
pub fn word(name: &str) -> u64 {
    name.bytes().take(8).rev().fold(0, |word, byte| word << 8 | u64::from(byte))
}

impl Flow {
    fn record(&self, len: u64, ticks: u64) {
        self.sizes.record(len);
        self.ticks.record(ticks);
        self.note_speed(len.max(1).ilog2(), len, ticks);
    }

    /// Counts bytes and ticks of copies of a size class.
    pub fn note_speed(&self, class: u32, bytes: u64, ticks: u64) {
        let class = class.saturating_sub(FIRST_SPEED) as usize;
        if let Some(speed) = self.speeds.get(class.min(SPEEDS - 1)) {
            speed.add([bytes, ticks]);
        }
    }

    /// Returns exponent, bytes and ticks of each size class in use.
    pub fn speeds(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let speeds = self.speeds.iter().map(Sums::get);
        let speeds =
            (FIRST_SPEED..).zip(speeds).map(|(class, [bytes, ticks])| (class, bytes, ticks));
        speeds.filter(|speed| speed.1 > 0)
    }

    /// Returns bytes per tick of copies of a size class; `None`: there were none.
    pub fn speed(&self, class: u32) -> Option<f64> {
        let (_, bytes, ticks) = self.speeds().find(|speed| speed.0 == class && speed.2 > 0)?;
        Some(bytes as f64 / ticks as f64)
    }

    fn absorb(&self, from: &Self) {
        self.sizes.absorb(&from.sizes);
        self.ticks.absorb(&from.ticks);
        self.speeds.iter().zip(&from.speeds).for_each(|(to, from)| to.absorb(from));
    }
}

// SAFETY: every field is atomic, as the trait demands.
unsafe impl Counters for Live {}

// SAFETY: every field is atomic, as the trait demands.
unsafe impl Counters for Recorder {}

impl Recorder {
    #[inline]
    pub fn record(&self, path: Path, len: usize, ticks: u64) {
        let flow = match path {
            Path::Engine => {
                self.carried.fetch_add(len as u64, Relaxed);
                &self.engine
            }
            Path::Libc(fallback) => {
                self.fallbacks[fallback as usize].add([1, len as u64]);
                &self.libc
            }
        };
        flow.record(len as u64, ticks);
    }

    /// Counts a large call of one of the kinds of `names_apart`, which `record` has counted among all.
    pub fn note_apart(&self, kind: usize, path: Path, len: usize) {
        self.apart[kind][usize::from(path != Path::Engine)].add([1, len as u64]);
    }

    /// Returns calls and bytes of one of the kinds of `names_apart`, by the engine and by libc.
    pub fn counts_apart(&self, kind: usize) -> [(&'static str, u64, u64); 2] {
        let [engine, libc] = self.apart[kind].each_ref().map(Sums::get);
        [("engine", engine[0], engine[1]), ("libc", libc[0], libc[1])]
    }

    /// Counts one call of the profile, of any size, of the function with this number.
    pub fn profile(&self, function: usize, len: usize) {
        self.every_size.record(len as u64);
        if let Some(calls) = self.by_function.get(function) {
            calls.add([1, len as u64]);
        }
    }

    /// Returns the bytes that the engine has copied.
    pub fn engine_bytes(&self) -> u64 {
        self.carried.load(Relaxed)
    }

    /// Returns the bytes of large copies that libc has made.
    pub fn libc_bytes(&self) -> u64 {
        let bytes = self.fallbacks.iter().map(|calls| calls.get()[1]);
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the flows of large copies: by the engine, by libc.
    pub fn flows(&self) -> [&Flow; 2] {
        [&self.engine, &self.libc]
    }

    /// Returns calls and bytes of large copies, by the engine and by libc.
    pub fn counts(&self) -> [(&'static str, u64, u64); 2] {
        let [engine, libc] = self.flows().map(|flow| flow.sizes.count());
        [("engine", engine, self.engine_bytes()), ("libc", libc, self.libc_bytes())]
    }

    /// Returns the number of large copies, and their bytes.
    pub fn total(&self) -> (u64, u64) {
        let [engine, libc] = self.counts();
        (engine.1.saturating_add(libc.1), engine.2.saturating_add(libc.2))
    }

    /// Returns the calls for each reason.
    pub fn fallbacks(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Fallback::ALL.iter().map(|&why| (why.name(), self.fallbacks[why as usize].get()[0]))
    }

    /// Returns calls and bytes for each reason, most bytes first.
    pub fn reasons(&self) -> [(Fallback, u64, u64); Fallback::ALL.len()] {
        let mut all = Fallback::ALL.map(|why| {
            let [calls, bytes] = self.fallbacks[why as usize].get();
            (why, calls, bytes)
        });
        all.sort_unstable_by_key(|&(why, calls, bytes)| Reverse((bytes, calls, why as usize)));
        all
    }

    pub fn is_empty(&self) -> bool {
        [&self.engine.sizes, &self.libc.sizes, &self.every_size].iter().all(|h| h.count() == 0)
    }

    /// Clears the counters in the child of a fork, whose report covers its own copies only.
    pub fn clear_used(&self) {
        if !self.is_empty() {
            self.clear();
        }
    }

    /// Moves all counts of another one here. Nothing is lost or counted twice, even if threads go
    /// on counting there meanwhile.
    pub fn absorb(&self, from: &Self) {
        if from.is_empty() {
            return;
        }
        self.engine.absorb(&from.engine);
        self.libc.absorb(&from.libc);
        self.every_size.absorb(&from.every_size);
        absorb_all(
            [&self.carried, &self.verified, &self.mismatched],
            [&from.carried, &from.verified, &from.mismatched],
        );
        self.samples.absorb(&from.samples);
        self.sites.absorb(&from.sites);
        self.timeline.absorb(&from.timeline);
        self.fallbacks.iter().zip(&from.fallbacks).for_each(|(to, from)| to.absorb(from));
        self.by_function.iter().zip(&from.by_function).for_each(|(to, from)| to.absorb(from));
        let (to, from) = (self.apart.as_flattened(), from.apart.as_flattened());
        to.iter().zip(from).for_each(|(to, from)| to.absorb(from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorder_counts_paths_and_reasons_and_forgets_on_demand() {
        let recorder = std::boxed::Box::new(Recorder::ZERO);
        recorder.record(Path::Engine, 1 << 20, 500);
        recorder.record(Path::Libc(Fallback::Overlap), 70_000, 10);
        recorder.record(Path::Libc(Fallback::Overlap), 70_000, 10);
        recorder.profile(3, 3);
        assert_eq!(recorder.engine.sizes.count(), 1);
        assert_eq!(recorder.libc_bytes(), 140_000);
        assert!(recorder.fallbacks().any(|reason| reason == ("overlap", 2)));
        recorder.clear_used();
        assert!(recorder.is_empty());
        assert!(recorder.fallbacks().all(|(_, count)| count == 0));
    }
}
