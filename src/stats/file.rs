//! Where the counters of this process are: in a live file of its user, or in private memory.
//!
//! The file is made by the first large copy that is counted. Until then, and where no file is to
//! be had, the same counters in private memory serve; what they held is taken over. Counting is
//! the same in both: relaxed additions, no lock, no system call.
//!
//! A file has one process. The child of a fork counts in private memory until its own first large
//! copy makes a file; a child that ran no handler of ours, which `process::shares_our_memory` tells
//! from a page that the kernel wipes, stays in private memory. A child of vfork lives in its
//! parent's memory and counts there.

use super::live::{LONGEST_EXE, LONGEST_NAME, Live, MAGIC, NO_STATUS, Path, Recorder, VERSION};
use super::messages::MessageCounts;
use super::modules;
use crate::backend::{Refused, may_start};
use crate::functions::Op;
use crate::os::folder::{self, Folder};
use crate::os::signal_mask::SignalsHeld;
use crate::os::{process, sys};
use adma_record::Counters;
use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use once_cell::race::OnceRef;

/// Facts from elsewhere are put into the file after each copy that took this many ticks for each
/// channel, which is about 13 µs, and after this many shorter ones. Asking a channel can take as
/// long as a cache miss.
const LONG_FOR_EACH: u64 = 1 << 15;
const SHORT_ONES: u32 = 64;

/// Where files may be, and what stands in them from the beginning. Made at start-up.
pub struct Place {
    /// Tried in turn.
    pub folders: Vec<CString>,
    /// A command collects the files: they stay when the process ends.
    pub is_collected: bool,
    /// The program's file.
    pub exe: Vec<u8>,
    /// The words of its command line, each with a zero behind it.
    pub command: Vec<u8>,
    /// Puts into the file what is counted elsewhere.
    pub publish: fn(&'static Live),
    /// Reads the changed wishes of the user.
    pub obey: fn(&Live),
}

/// One large call, as it is counted.
pub struct Call {
    pub path: Path,
    /// Which row of the samples it belongs to.
    pub kind: usize,
    pub size: usize,
    pub is_read: bool,
    pub bytes: usize,
    /// In ticks.
    pub begun: u64,
    pub ended: u64,
    /// A large call of another thread has ended meanwhile.
    pub overlapped: bool,
    /// Return address; 0: not known.
    pub site: usize,
}

pub struct Statistics {
    /// Null until there is a file.
    file: AtomicPtr<Live>,
    /// There was an attempt to make one.
    tried: AtomicBool,
    /// Which of the folders it is in, and its name, ended by a byte 0.
    folder: AtomicU32,
    name: [AtomicU8; LONGEST_NAME],
    short_ones: AtomicU32,
    /// When the process started: ticks, CLOCK_MONOTONIC, and nanoseconds since the epoch.
    start: [AtomicU64; 3],
    place: OnceRef<'static, Place>,
    private: Recorder,
    private_messages: MessageCounts,
}

impl Statistics {
    /// All zeros.
    pub const fn new() -> Self {
        Self {
            file: AtomicPtr::new(null_mut()),
            tried: AtomicBool::new(false),
            folder: AtomicU32::new(0),
            name: [const { AtomicU8::new(0) }; LONGEST_NAME],
            short_ones: AtomicU32::new(0),
            start: [const { AtomicU64::new(0) }; 3],
            place: OnceRef::new(),
            private: Recorder::ZERO,
            private_messages: MessageCounts::ZERO,
        }
    }

    /// Lets there be a file. Without this there is none.
    pub fn configure(&self, place: Place) {
        let _ = self.place.set(Box::leak(Box::new(place))); // an error only means: was configured
    }

    /// The process has started, or is a new one after a fork.
    pub fn start(&self, ticks: u64, nanoseconds: u64, wall: f64) {
        let now = [ticks, nanoseconds, (wall * 1e9) as u64];
        self.start.iter().zip(now).for_each(|(start, now)| start.store(now, Ordering::Relaxed));
    }

    /// When that was, by the time stamp counter.
    pub fn start_ticks(&self) -> u64 {
        self.start[0].load(Ordering::Relaxed)
    }

    /// When that was, in seconds since the epoch, and how many seconds have passed since.
    pub fn started(&self) -> (f64, f64) {
        let [_, nanoseconds, wall] = &self.start;
        let passed = sys::nanoseconds().saturating_sub(nanoseconds.load(Ordering::Relaxed));
        (wall.load(Ordering::Relaxed) as f64 / 1e9, passed as f64 / 1e9)
    }

    /// The command line of this process, as far as it is known.
    pub fn command(&self) -> &[u8] {
        self.place.get().map_or(&[], |place| &place.command)
    }

    /// The file, if this process has one.
    #[inline]
    pub fn live(&self) -> Option<&'static Live> {
        // SAFETY: null, or a mapping that is never taken away, of atomic numbers only.
        let live = unsafe { self.file.load(Ordering::Acquire).as_ref() }?;
        process::shares_our_memory().then_some(live)
    }

    /// The counters in use now.
    #[inline]
    pub fn counters(&self) -> &Recorder {
        self.live().map_or(&self.private, |live| &live.recorder)
    }

    /// The counters of messages between processes, the first of which may make the file as well.
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
        if call.is_read {
            recorder.note_read(call.path, call.bytes);
        }
        if call.path == Path::Engine {
            recorder.samples.row(call.kind, call.size).note_shared(bytes, ticks);
            if call.overlapped {
                recorder.samples.overlapped.fetch_add(ticks, Ordering::Relaxed);
            }
        }
        recorder.timeline.note(call.begun, call.ended, call.path != Path::Engine, bytes);
        recorder.sites.note(call.site as u64, bytes, ticks, || modules::origin(call.site));
        if let Some(live) = live {
            self.publish_at_times(live, ticks);
        }
        recorder
    }

    /// After a copy that took this many ticks.
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

    /// Counts one call of the profile, of any size. Makes the file where reports are collected:
    /// there the process writes none of its own.
    pub fn profile(&self, op: Op, len: usize) {
        let is_collected = || self.place.get().is_some_and(|place| place.is_collected);
        let live = self.live().or_else(|| is_collected().then(|| self.live_or_made())?);
        live.map_or(&self.private, |live| &live.recorder).profile(op as usize, len);
    }

    /// The file, made by the first copy.
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

    /// Makes the file, in the first thread that comes; others count in private memory meanwhile.
    #[cold]
    fn make(&self) -> Option<&'static Live> {
        let Some(place) = self.place.get() else {
            self.tried.store(true, Ordering::Relaxed); // no file is wanted
            return None;
        };
        // A child of vfork shares its parent's memory, in which it must not leave a file.
        let allowed = may_start();
        if allowed == Err(Refused::NotOurs) || self.tried.swap(true, Ordering::Relaxed) {
            return None;
        }
        let allowed = allowed.ok()?;
        // A handler that jumps out of this, or copies itself, finds nothing half done.
        let _held = SignalsHeld::all()?;
        let no_filter = sys::NoFilter::look();
        process::mark_our_memory();
        let name = self.choose_name();
        let mut found = None;
        for (number, path) in place.folders.iter().enumerate() {
            // Under a filter no call is made that not every program makes, so there the folder
            // has to be there already, made by the command.
            let folder = match no_filter {
                Some(allowed) => Folder::open_or_make(path, allowed),
                None if place.is_collected => Folder::open(path, allowed),
                None => None,
            };
            let Some(folder) = folder else { continue };
            found = folder.map_new_file(name, Live::SIZE);
            if found.is_some() {
                self.folder.store(number as u32, Ordering::Relaxed);
                break;
            }
            if let Some(allowed) = no_filter {
                folder.remove(name, allowed);
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
    /// are what is counted here.
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
        head.made.store(folder::since_boot(), relaxed);
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

    /// Before a report: everything in one place.
    pub fn settle(&self) -> &Recorder {
        if let Some(live) = self.live() {
            // What was counted while the file was being made.
            self.absorb_private(live);
            self.publish(live);
            return &live.recorder;
        }
        &self.private
    }

    /// The process ends, in this way; the file is removed, unless it is collected.
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
        if let Some(folder) = path.and_then(|path| Folder::open(path, allowed.into()))
            && folder.is_private()
        {
            folder.remove(self.name(), allowed);
        }
    }

    /// What exit was called with; told after everything else.
    pub fn note_status(&self, status: i32) {
        if let Some(live) = self.live() {
            live.head.status.store(status as u32 & 0xff, Ordering::Relaxed);
        }
    }

    /// In the child of a fork: the file is the parent's. It stays mapped, with zeros of our own
    /// instead, for a handler may have called fork in the middle of `record`.
    pub fn forget_after_fork(&self) {
        let file = self.file.swap(null_mut(), Ordering::Relaxed);
        if !file.is_null() {
            // SAFETY: the mapping that `make` has made.
            unsafe { folder::map_zeros_over(file.cast(), Live::SIZE) };
        }
        self.tried.store(false, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn statistics(name: &str) -> (Statistics, PathBuf) {
        process::settle_in();
        let folder = PathBuf::from(format!("/dev/shm/adma-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let statistics = Statistics::new();
        statistics.configure(Place {
            folders: vec![CString::new(folder.to_str().unwrap()).unwrap()],
            is_collected: true,
            exe: b"/usr/bin/test".to_vec(),
            command: b"prog\0word\0".to_vec(),
            publish: |live| live.facts.channels.store(3, Ordering::Relaxed),
            obey: |_| {},
        });
        (statistics, folder)
    }

    #[test]
    fn first_large_copy_makes_the_file_and_takes_over_what_was_counted() {
        let (statistics, folder) = statistics("first");
        statistics.private.profile(Op::Memcpy as usize, 100);
        assert!(statistics.live().is_none() && !folder.exists());
        statistics.record(Path::Engine, 1 << 20, 5);
        let live = statistics.live().unwrap();
        assert!(live.is_valid());
        assert_eq!(live.recorder.every_size.count(), 1);
        assert_eq!(live.recorder.engine.sizes.count(), 1);
        assert_eq!(live.facts.channels.load(Ordering::Relaxed), 3);
        assert_eq!(live.head.exe.get(&mut [0; 256]), b"/usr/bin/test");
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().collect();
        let name = files[0].file_name().into_string().unwrap();
        assert_eq!(files.len(), 1);
        assert!(name.starts_with(&format!("{}-", std::process::id())), "{name}");
        assert_eq!(files[0].metadata().unwrap().len(), Live::SIZE as u64);

        statistics.forget_after_fork();
        assert!(statistics.live().is_none());
        // What was mapped is our own now, and the file stays as it was.
        live.recorder.record(Path::Engine, 1 << 20, 5);
        assert_eq!(live.head.magic.load(Ordering::Relaxed), 0);
        // A profile that is collected needs no large copy.
        statistics.profile(Op::Memcpy, 100);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "a file of its own");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn without_a_folder_counting_goes_on_in_private_memory() {
        let statistics = Statistics::new();
        process::settle_in();
        statistics.configure(Place {
            folders: vec![c"/nowhere/at/all".to_owned(), c"/proc/self/task".to_owned()],
            is_collected: true,
            exe: Vec::new(),
            command: b"prog\0word\0".to_vec(),
            publish: |_| {},
            obey: |_| {},
        });
        statistics.record(Path::Engine, 1 << 20, 5);
        statistics.record(Path::Engine, 1 << 20, 5);
        assert!(statistics.live().is_none());
        assert_eq!(statistics.settle().engine.sizes.count(), 2);
    }

    #[test]
    fn numbers_are_written_as_formatting_would() {
        for number in [0, 7, 10, 99, 100, 4711, u64::from(u32::MAX), u64::MAX] {
            let mut text = String::new();
            push_digits(number, 10, &mut |byte| text.push(byte.into()));
            text.push('-');
            push_digits(number, 16, &mut |byte| text.push(byte.into()));
            assert_eq!(text, format!("{number}-{number:x}"));
        }
    }
}
