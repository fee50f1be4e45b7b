//! Place of the counters of this process: a live file of its user, or private memory.
//!
//! The file is made by the first large copy that is counted. Until then, and where no file can be
//! made, counters in private memory serve, whose counts are moved to the file. Counting is the same
//! in both: relaxed additions, no lock, no system call.
//!
//! A file belongs to one process. The child of a fork counts in private memory until its own first
//! large copy makes a file; one that ran no handler of ours (see `process::shares_our_memory`)
//! stays in private memory. A child of vfork runs in its parent's memory and counts there.

use super::live::{LONGEST_EXE, LONGEST_NAME, Live, MAGIC, NO_STATUS, Path, Recorder, VERSION};
use super::messages::MessageCounts;
use super::modules;
use crate::backend::{Refused, may_start};
use crate::functions::Op;
use crate::os::folder::{self, Folder, Unusable};
use crate::os::once::Once;
use crate::os::signal_mask::SignalsHeld;
use crate::os::{process, sys};
use adma_shared::Counters;
use adma_shared::under_way::Entry;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};
use zerocopy::FromZeros;

/// Ticks of a copy for each channel, about 13 µs, and number of shorter copies, after which facts
/// are published. Reading a channel's counter can take a cache miss.
const LONG_FOR_EACH: u64 = 1 << 15;
const SHORT_ONES: u32 = 64;

/// Folders for the file, and its initial contents. Made at start-up.
pub struct Place {
    /// Tried in turn.
    pub folders: Vec<CString>,
    /// Set if a command collects the files: they stay when the process ends.
    pub is_collected: bool,
    /// Set if that command reports for the process, so must know that counts are missing.
    pub is_reported: bool,
    /// Path of the program.
    pub exe: Vec<u8>,
    /// Words of its command line, each terminated by a zero.
    pub command: Vec<u8>,
    /// Stores counts of other modules into the file.
    pub publish: fn(&'static Live),
    /// Applies settings that the user has changed.
    pub obey: fn(&Live),
}

/// A file for a command that could not be made.
pub struct NotKept<'a> {
    pub folder: &'a CStr,
    pub why: Unusable,
    /// Set if that command wants to report for the process, which it cannot now.
    pub is_reported: bool,
}

/// One large call, as it is counted.
pub struct Call {
    pub path: Path,
    /// Row of the samples that it belongs to.
    pub kind: usize,
    pub size: usize,
    /// Number of its kind, if reports list that by itself.
    pub apart: Option<usize>,
    pub bytes: usize,
    /// Beginning and end, in ticks.
    pub begun: u64,
    pub ended: u64,
    /// Set if a large call of another thread has ended meanwhile.
    pub overlapped: bool,
    /// Return address; 0: not known.
    pub site: usize,
}

/// All zeros until it is configured.
#[derive(FromZeros)]
pub struct Statistics {
    /// Null until there is a file.
    file: AtomicPtr<Live>,
    /// Set at the first attempt to make the file.
    tried: AtomicBool,
    /// Index of its folder, and its name, terminated by a zero.
    folder: AtomicU32,
    name: [AtomicU8; LONGEST_NAME],
    short_ones: AtomicU32,
    /// Why there is no file although one was wanted, as an `Unusable`; 0: no attempt has failed.
    failed: AtomicI32,
    /// Start of the process: ticks, CLOCK_MONOTONIC, and nanoseconds since the epoch.
    start: [AtomicU64; 3],
    place: Once<Place>,
    private: Recorder,
    private_messages: MessageCounts,
}

impl Statistics {
    /// Sets where the file may be. Without this there is none.
    pub fn configure(&self, place: Place) {
        self.place.set(place);
    }

    /// Notes the start of the process, or of the child of a fork.
    pub fn start(&self, ticks: u64, nanoseconds: u64, wall: f64) {
        let now = [ticks, nanoseconds, (wall * 1e9) as u64];
        self.start.iter().zip(now).for_each(|(start, now)| start.store(now, Ordering::Relaxed));
    }

    /// Returns when the process started, by the time stamp counter.
    pub fn start_ticks(&self) -> u64 {
        self.start[0].load(Ordering::Relaxed)
    }

    /// Returns when the process started, in seconds since the epoch, and the seconds since then.
    pub fn started(&self) -> (f64, f64) {
        let [_, nanoseconds, wall] = &self.start;
        let passed = sys::nanoseconds().saturating_sub(nanoseconds.load(Ordering::Relaxed));
        (wall.load(Ordering::Relaxed) as f64 / 1e9, passed as f64 / 1e9)
    }

    /// Returns the command line of this process, as far as it is known.
    pub fn command(&self) -> &[u8] {
        self.place.get().map_or(&[], |place| &place.command)
    }

    /// Returns the file, if this process has one.
    #[inline]
    pub fn live(&self) -> Option<&'static Live> {
        // SAFETY: null, or a mapping that is never taken away, of atomic numbers only.
        let live = unsafe { self.file.load(Ordering::Acquire).as_ref() }?;
        process::shares_our_memory().then_some(live)
    }

    /// Returns the folder in which the file that `adma program` collects could not be made, and why.
    pub fn not_kept(&self) -> Option<NotKept<'_>> {
        let place = self.place.get().filter(|place| place.is_collected)?;
        let why = Unusable(self.failed.load(Ordering::Relaxed));
        let folder = place.folders.first().map_or(c"", |path| path);
        (why != Unusable(0)).then_some(NotKept { folder, why, is_reported: place.is_reported })
    }

    /// Returns the counters in use.
    #[inline]
    pub fn counters(&self) -> &Recorder {
        self.live().map_or(&self.private, |live| &live.recorder)
    }

    /// Returns the counters of messages, the first of which may make the file as well.
    #[inline]
    pub fn messages(&self, may_make: bool) -> &MessageCounts {
        let live = if may_make { self.live_or_made() } else { self.live() };
        live.map_or(&self.private_messages, |live| &live.messages)
    }

    /// Counts a large copy.
    #[inline]
    pub fn record(&self, path: Path, len: usize, ticks: u64) {
        let Some(live) = self.live_or_made() else {
            return self.private.record(path, len, ticks);
        };
        live.recorder.record(path, len, ticks);
        self.publish_at_times(live, ticks);
    }

    /// Counts a large call, also in the tables of time, samples and call sites. Returns the counters.
    #[inline]
    pub fn record_call(&self, call: &Call) -> &Recorder {
        let live = self.live_or_made();
        let recorder = live.map_or(&self.private, |live| &live.recorder);
        let (bytes, ticks) = (call.bytes as u64, call.ended.wrapping_sub(call.begun));
        recorder.record(call.path, call.bytes, ticks);
        if let Some(kind) = call.apart {
            recorder.note_apart(kind, call.path, call.bytes);
        }
        if call.path == Path::Engine {
            recorder.samples.row(call.kind, call.size).shared.add([1, bytes, ticks]);
            if call.overlapped {
                recorder.samples.overlapped.fetch_add(ticks, Ordering::Relaxed);
            }
            recorder.samples.note_thread(sys::thread_register().unwrap_or(0), ticks);
        }
        recorder.timeline.note(call.begun, call.ended, call.path != Path::Engine, bytes);
        recorder.sites.note(call.site as u64, bytes, ticks, || modules::origin(call.site));
        if let Some(live) = live {
            self.publish_at_times(live, ticks);
        }
        recorder
    }

    /// Notes in the file that this thread begins a large call. Returns the thread, for `leave`.
    #[inline]
    pub fn enter(&self, site: usize) -> u64 {
        let Some(live) = self.live().filter(|_| site != 0) else { return 0 };
        let Some(register) = sys::thread_register() else { return 0 };
        let (thread, site) = (register << 6, site as u64);
        live.under_way.enter(Entry { thread, begun: sys::ticks(), site });
        thread
    }

    /// Notes that the call is over.
    #[inline]
    pub fn leave(&self, thread: u64) {
        if let Some(live) = self.live().filter(|_| thread != 0) {
            live.under_way.leave(thread);
        }
    }

    /// Publishes after a long copy, after some short ones, and when the user has changed a setting.
    #[inline]
    fn publish_at_times(&self, live: &'static Live, ticks: u64) {
        let short_ones = self.short_ones.load(Ordering::Relaxed).wrapping_add(1);
        self.short_ones.store(short_ones, Ordering::Relaxed);
        let (control, channels) = (&live.control, &live.facts.channels);
        if ticks / LONG_FOR_EACH > u64::from(channels.load(Ordering::Relaxed))
            || short_ones.is_multiple_of(SHORT_ONES)
            || control.change.load(Ordering::Relaxed) != control.obeyed.load(Ordering::Relaxed)
        {
            self.publish(live);
        }
    }

    /// Counts a copy by a worker, which makes no file and publishes nothing.
    pub fn record_end(&self, path: Path, len: usize, ticks: u64) {
        let counters = self.counters();
        counters.record(path, len, ticks);
        counters.samples.background.fetch_add(ticks, Ordering::Relaxed);
        let now = sys::ticks();
        counters.timeline.note(now.wrapping_sub(ticks), now, path != Path::Engine, len as u64);
    }

    /// Counts one call of the profile, of any size. Makes the file if reports are collected,
    /// because then the process writes none itself.
    pub fn profile(&self, op: Op, len: usize) {
        let is_collected = || self.place.get().is_some_and(|place| place.is_collected);
        let live = self.live().or_else(|| is_collected().then(|| self.live_or_made())?);
        live.map_or(&self.private, |live| &live.recorder).profile(op as usize, len);
    }

    /// Returns the file; the first copy makes it.
    #[inline]
    pub fn live_or_made(&self) -> Option<&'static Live> {
        match self.live() {
            None if !self.tried.load(Ordering::Relaxed) => self.make(),
            live => live,
        }
    }

    fn publish(&self, live: &'static Live) {
        let Some(place) = self.place.get() else { return };
        let change = live.control.change.load(Ordering::Acquire);
        if live.control.obeyed.swap(change, Ordering::Relaxed) != change {
            (place.obey)(live);
        }
        (place.publish)(live);
        live.facts.ticks.store(sys::ticks(), Ordering::Relaxed);
    }

    /// Makes the file, in the first thread that asks; others count in private memory meanwhile.
    #[cold]
    fn make(&self) -> Option<&'static Live> {
        let Some(place) = self.place.get() else {
            self.tried.store(true, Ordering::Relaxed); // no file is wanted
            return None;
        };
        // A child of vfork shares its parent's memory, in which it must not leave a file.
        let allowed = may_start();
        if allowed == Err(Refused::NotOurs) {
            return None;
        }
        // No handler may copy while it is half done, nor jump out: `tried` stays set.
        let held = allowed.ok().and_then(|_| SignalsHeld::all());
        if self.tried.swap(true, Ordering::Relaxed) {
            return None;
        }
        self.failed.store(libc::EPERM, Ordering::Relaxed); // until it is known better
        let (allowed, _held) = allowed.ok().zip(held)?;
        let no_filter = sys::NoFilter::look();
        process::mark_our_memory();
        let name = self.choose_name();
        let mut found = None;
        for (number, path) in place.folders.iter().enumerate() {
            // Under a filter only calls that every program makes are allowed, so the folder must
            // exist already, made by the command.
            let folder = match no_filter {
                Some(allowed) => Folder::open_or_make(path, allowed),
                None if place.is_collected => Folder::open(path, allowed),
                None => Err(Unusable(libc::EPERM)),
            };
            let made = folder.and_then(|folder| {
                folder.map_new_file(name, Live::SIZE).inspect_err(|_| {
                    let Some(allowed) = no_filter else { return };
                    folder.remove(name, allowed);
                    if place.is_reported {
                        folder.make_empty(name, allowed);
                    }
                })
            });
            self.failed.store(made.err().map_or(0, |why| why.0), Ordering::Relaxed);
            found = made.ok();
            if found.is_some() {
                self.folder.store(number as u32, Ordering::Relaxed);
                break;
            }
        }
        // SAFETY: a fresh mapping of `Live::SIZE` bytes, page aligned, which stays. All zeros is a
        // `Live`, and it is used by shared reference only.
        let live: &'static Live = unsafe { &*found?.cast() };
        self.begin(live, place, no_filter);
        self.file.store(core::ptr::from_ref(live).cast_mut(), Ordering::Release);
        self.publish(live);
        Some(live)
    }

    /// Writes the name of this process's file, digit by digit: formatting would copy, and copies
    /// are counted here.
    fn choose_name(&self) -> &CStr {
        let mut places = self.name.iter();
        let mut push = |byte: u8| {
            if let Some(place) = places.next() {
                place.store(byte, Ordering::Relaxed);
            }
        };
        push_digits(sys::getpid() as u64, 10, &mut push);
        push(b'-');
        push_digits(sys::ticks(), 16, &mut push);
        push(0);
        self.name()
    }

    fn name(&self) -> &CStr {
        // SAFETY: written by `choose_name`, which ends it, or all zeros; and never longer than
        // its place, for the largest numbers have 10 and 16 digits.
        unsafe { CStr::from_ptr(self.name.as_ptr().cast()) }
    }

    fn begin(&self, live: &Live, place: &Place, no_filter: Option<sys::NoFilter>) {
        let (head, relaxed) = (&live.head, Ordering::Relaxed);
        head.version.store(VERSION, relaxed);
        head.size.store(size_of::<Live>() as u32, relaxed);
        head.pid.store(sys::getpid() as u32, relaxed);
        head.status.store(NO_STATUS, relaxed);
        head.made.store(sys::nanoseconds_of(libc::CLOCK_BOOTTIME), relaxed);
        let places = [&head.start_ticks, &head.start_nanoseconds, &head.start_wall];
        for (to, from) in places.into_iter().zip(&self.start) {
            to.store(from.load(relaxed), relaxed);
        }
        head.exe.set(&place.exe[place.exe.len().saturating_sub(LONGEST_EXE)..]);
        head.command.set(&place.command);
        if no_filter.is_some() {
            head.pid_namespace.store(folder::pid_namespace(), relaxed);
        }
        self.absorb_private(live);
        head.magic.store(MAGIC, Ordering::Release);
    }

    fn absorb_private(&self, live: &Live) {
        live.recorder.absorb(&self.private);
        live.messages.absorb(&self.private_messages);
    }

    /// Moves all counts into one place, for a report.
    pub fn settle(&self) -> &Recorder {
        if let Some(live) = self.live() {
            // Includes what was counted while the file was being made.
            self.absorb_private(live);
            self.publish(live);
            return &live.recorder;
        }
        &self.private
    }

    /// Notes how the process ends, and removes the file unless it is collected.
    pub fn end(&self, how: u32, status: Option<i32>) {
        let (Some(live), Some(place)) = (self.live(), self.place.get()) else { return };
        self.settle();
        let status = status.map_or(NO_STATUS, |status| status as u32 & 0xff);
        live.head.status.store(status, Ordering::Relaxed);
        live.head.end_nanoseconds.store(sys::nanoseconds(), Ordering::Relaxed);
        live.head.ended.store(how, Ordering::Release);
        let Some(allowed) = sys::NoFilter::look().filter(|_| !place.is_collected) else {
            return; // the next reader removes it
        };
        let path = place.folders.get(self.folder.load(Ordering::Relaxed) as usize);
        if let Some(folder) = path.and_then(|path| Folder::open(path, allowed.into()).ok())
            && folder.is_private()
        {
            folder.remove(self.name(), allowed);
        }
    }

    /// Notes the status of exit, which is known after everything else.
    pub fn note_status(&self, status: i32) {
        if let Some(live) = self.live() {
            live.head.status.store(status as u32 & 0xff, Ordering::Relaxed);
        }
    }

    /// Leaves the file to the parent, in the child of a fork. Our own zeros are mapped in its
    /// place, because a handler may have called fork in the middle of `record`.
    pub fn forget_after_fork(&self) {
        let file = self.file.swap(null_mut(), Ordering::Relaxed);
        if !file.is_null() {
            // SAFETY: the mapping that `make` has made.
            unsafe { folder::map_zeros_over(file.cast(), Live::SIZE) };
        }
        self.tried.store(false, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
        self.private.clear_used();
        self.private_messages.clear();
    }
}

fn push_digits(number: u64, base: u64, push: &mut impl FnMut(u8)) {
    let mut unit = 1;
    while number / unit >= base {
        unit *= base;
    }
    while unit > 0 {
        push(b"0123456789abcdef"[(number / unit % base) as usize]);
        unit /= base;
    }
}
