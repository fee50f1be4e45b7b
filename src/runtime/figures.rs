//! Figures of the process: the live file while it runs, the report and the log at its end.
//!
//! Other modules count events as they happen; this one collects the figures.

use super::{DISPATCHER, Process};
use crate::backend::engine::{Counts, Form, Handle};
use crate::backend::threads;
use crate::backend::threads::workers;
use crate::config::{Config, Level, LiveFiles};
use crate::dispatch::look;
use crate::dispatch::operation::Kind;
use crate::learn::{Context, Way};
use crate::os::lock::TryLock;
use crate::os::lookup::rare;
use crate::os::text::{as_text, say_to};
use crate::os::{process, sys};
use crate::stats::Recorder;
use crate::stats::file::{NotKept, Place};
use crate::stats::live::{self, Control, Live, MOST_CHANNELS, word};
use crate::stats::modules;
use crate::stats::report::{BUFFERS, write_all};
use crate::stats::snapshot::{EngineReport, Snapshot};
use alloc::ffi::CString;
use alloc::fmt::format;
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};

/// Prepares the live file, which the first large copy makes and other processes read.
#[cold]
pub(super) fn keep_live_file(config: &Config, command: Vec<u8>) {
    modules::resolve();
    let mut folders = Vec::new();
    match &config.live {
        LiveFiles::Off => return,
        LiveFiles::In(path) => folders.extend(CString::new(path.clone())), // no zeros in there
        LiveFiles::Auto => {
            let runtime = config.runtime_dir.as_deref().map(core::str::from_utf8);
            live::folders(sys::geteuid() as u32, runtime.and_then(Result::ok), |path| {
                folders.extend(CString::new(format(path)));
            });
        }
    }
    let is_collected = matches!(config.live, LiveFiles::In(_));
    // SAFETY: a function of the C library, and one of ours that is never unloaded.
    unsafe { on_exit().map(|on_exit| on_exit(note_status, core::ptr::null_mut())) };
    let mut room = [0; 4096];
    let exe = sys::NoFilter::look().and_then(|_| sys::read_link(c"/proc/self/exe", &mut room));
    let exe = exe.unwrap_or_default().to_vec();
    let is_reported = is_collected && folders.iter().any(|folder| is_of_command(folder));
    let place = Place { folders, is_collected, is_reported, exe, command, publish, obey };
    DISPATCHER.recorder.configure(place);
}

/// Stores the figures of the dispatcher and the engines into the live file.
fn publish(live: &'static Live) {
    let (facts, relaxed) = (&live.facts, Ordering::Relaxed);
    let (backend, channels) = DISPATCHER.backend();
    facts.backend.store(word(backend), relaxed);
    facts.channels.store(channels as u32, relaxed);
    facts.off.store(DISPATCHER.is_switched_off().into(), relaxed);
    facts.floor.store(DISPATCHER.floor() as u64, relaxed);
    facts.min_bytes.store(DISPATCHER.fixed_threshold().unwrap_or(0) as u64, relaxed);
    facts.threshold.store(DISPATCHER.threshold().unwrap_or(0) as u64, relaxed);
    let count = |count: &AtomicU64| count.load(relaxed);
    facts.faults.store(faults(), relaxed);
    facts.taken_back.store(count(&threads::TAKEN_BACK), relaxed);
    facts.caller_bytes.store(caller_bytes(), relaxed);
    for (number, to) in facts.channel_bytes.iter().enumerate().take(channels) {
        to.store(bytes_of_channel(backend, number), relaxed);
    }
}

/// Applies the user's settings for the running process; values out of range count as unset.
fn obey(live: &Live) {
    let Control { off, min_bytes, channels, .. } = &live.control;
    let min = min_bytes.load(Ordering::Relaxed);
    let channels = channels.load(Ordering::Relaxed) as usize;
    DISPATCHER.change(
        off.load(Ordering::Relaxed) == 1,
        Control::BYTES.contains(&min).then_some(min as usize),
        (1..=MOST_CHANNELS).contains(&channels).then_some(channels),
    );
}

/// Notes the status of exit. Runs after all destructors, which do not get the status.
extern "C" fn note_status(status: i32, _: *mut c_void) {
    if DISPATCHER.recorder.live().is_some() && process::is_ours() {
        DISPATCHER.recorder.note_status(status);
    }
}

rare! {
    fn on_exit(extern "C" fn(i32, *mut c_void), *mut c_void) -> i32;
}

/// Writes the reports that are wanted, unless nothing was counted.
#[cold]
pub(super) fn report(process: &Process, stderr: Option<i32>) {
    let config = &process.config;
    let mut formats = config.stats;
    let is_collected = matches!(config.live, LiveFiles::In(_));
    formats.text |= config.profile && !formats.any() && !is_collected;
    let recorder: &Recorder = DISPATCHER.recorder.settle();
    let messages = DISPATCHER.recorder.messages(false).sums();
    let has_counted = !recorder.is_empty() || messages.is_some();
    if let Some(not_kept) = DISPATCHER.recorder.not_kept().filter(|_| has_counted) {
        if !formats.any() || config.stats_file.is_some() {
            complain_about_folder(config, &not_kept, stderr);
        }
        formats.text |= not_kept.is_reported && !formats.any();
    }
    if !formats.any() || !has_counted {
        return;
    }
    let passed = sys::nanoseconds().saturating_sub(process.nanoseconds);
    let ticks = sys::ticks().wrapping_sub(process.ticks).max(1);
    let nanoseconds_per_tick = passed as f64 / ticks as f64;
    // The buffers are taken only while another thread reports: then there is nothing left to report.
    let Some(mut buffers) = BUFFERS.get_or_map().and_then(TryLock::try_take_at_exit) else {
        return;
    };
    let (exe, space) = buffers.parts();
    // Read by this thread's link: /proc/self/exe is of no use once the main thread has exited.
    let exe = name_of_program(exe);
    let (started, seconds) = DISPATCHER.recorder.started();
    let (backend, channels) = DISPATCHER.backend();
    let bytes: [u64; workers::MOST_WORKERS] =
        core::array::from_fn(|number| bytes_of_channel(backend, number));
    let used = bytes.iter().rposition(|&bytes| bytes > 0).map_or(0, |last| last + 1);
    let engine = engine_named(backend);
    let of_engine = |form: Form, out: &mut dyn Write| match engine {
        Some(engine) => engine.report(form, nanoseconds_per_tick, out),
        None => Ok(()),
    };
    let snapshot = Snapshot {
        recorder,
        pid: sys::getpid(),
        exe,
        backend,
        channels,
        min_bytes: config.min_bytes,
        floor: DISPATCHER.floor(),
        threshold: DISPATCHER.threshold(),
        nanoseconds_per_tick,
        caller_bytes: caller_bytes(),
        channel_bytes: &bytes[..used.max(channels)],
        faults: faults(),
        taken_back: threads::TAKEN_BACK.load(Ordering::Relaxed),
        engine: engine.map(|_| &of_engine as EngineReport<'_>),
        messages,
        profile: config.profile,
        command: DISPATCHER.recorder.command(),
        start_ticks: DISPATCHER.recorder.start_ticks(),
        started,
        seconds,
    };
    write_all(&snapshot, space, formats, config.stats_file.as_deref(), stderr);
}

/// Returns whether `adma program` has made a folder, to report for all processes.
fn is_of_command(folder: &CStr) -> bool {
    let path = folder.to_bytes();
    let name = path.iter().rposition(|&byte| byte == b'/').map_or(path, |at| &path[at + 1..]);
    name.starts_with(live::TREE.as_bytes())
}

/// Warns that nothing could be kept in the folder of ADMA_LIVE.
fn complain_about_folder(config: &Config, not_kept: &NotKept<'_>, stderr: Option<i32>) {
    if let Some(stderr) = stderr.filter(|_| config.log >= Level::Warn) {
        let folder = not_kept.folder.to_str().unwrap_or("ADMA_LIVE");
        let why = not_kept.why.meaning();
        say_to(stderr, format_args!("warning: no live statistics in {folder}: {why}"));
    }
}

/// Returns the program's file, without the suffix that the kernel appends if the file was replaced meanwhile.
fn name_of_program(room: &mut [u8]) -> &str {
    let len = sys::read_link(c"/proc/thread-self/exe", room).map_or(0, <[u8]>::len);
    let name = as_text(&mut room[..len]);
    name.strip_suffix(" (deleted)").unwrap_or(name)
}

/// Returns the figures of `struct adma_stats`, in its order.
pub(super) fn stats() -> [u64; 8] {
    let recorder = DISPATCHER.recorder.counters();
    let messages = DISPATCHER.recorder.messages(false).sums();
    let [sent, received] = messages
        .map_or([(0, 0); 2], |sums| sums.directions.map(|(_, messages, bytes)| (messages, bytes)));
    let (engine, libc) = (recorder.engine.sizes.count(), recorder.libc.sizes.count());
    let bytes = [recorder.engine_bytes(), recorder.libc_bytes()];
    [engine, bytes[0], libc, bytes[1], sent.0, sent.1, received.0, received.1]
}

/// Returns the sum of one counter over all engines but workers.
fn of_engines(counter: impl Fn(Counts<'_>) -> u64) -> u64 {
    DISPATCHER.engines().fold(0, |sum, engine| sum.wrapping_add(counter(engine.counts())))
}

/// Returns the bytes that callers have copied themselves, beside any engine.
fn caller_bytes() -> u64 {
    let beside_workers = threads::CALLER_BYTES.load(Ordering::Relaxed);
    beside_workers.wrapping_add(of_engines(|counts| counts.caller_bytes))
}

/// Returns the copies in which a bad page was left to the caller.
fn faults() -> u64 {
    threads::FAULTS.load(Ordering::Relaxed) + of_engines(|counts| counts.faults)
}

/// Returns the engine of this name; `None`: workers, or libc.
fn engine_named(backend: &str) -> Option<Handle> {
    DISPATCHER.engines().find(|engine| engine.name() == backend)
}

fn bytes_of_channel(backend: &str, number: usize) -> u64 {
    let Some(engine) = engine_named(backend) else { return workers::bytes_of_worker(number) };
    let bytes = engine.counts().channel_bytes.get(number);
    bytes.map_or(0, |count| count.load(Ordering::Relaxed))
}

/// Logs at exit, because the hook must not: wrong copies, the state of the engines, and the costs that the
/// learner has noted.
#[cold]
pub(super) fn log(process: &Process, stderr: i32) {
    let say = |line: core::fmt::Arguments<'_>| say_to(stderr, line);
    let wrong = DISPATCHER.recorder.counters().mismatched.load(Ordering::Relaxed);
    if wrong > 0 {
        say(format_args!("ADMA_VERIFY: {wrong} copies were wrong and have been repaired"));
    }
    if process.config.log < Level::Info {
        return;
    }
    let (backend, channels) = DISPATCHER.backend();
    let up = format_args!("{backend} backend was up with {channels} channels");
    match (DISPATCHER.why_not(), DISPATCHER.threshold()) {
        (Some(why), _) => say(format_args!("engine not used: {why}")),
        (None, Some(bytes)) => say(format_args!("{up}, from {bytes} bytes")),
        (None, None) => say(format_args!("{up}; no size gained by it yet")),
    }
    DISPATCHER.engines().for_each(|engine| engine.why_not(&say));
    if process.config.log < Level::Debug || look::cache_ticks() == 0 {
        return;
    }
    say(format_args!("a look takes {} ticks in the cache", look::cache_ticks()));
    for kind in Kind::ALL {
        for (size, cell) in DISPATCHER.learner(kind).known() {
            let [libc, alone, shared, streamed] = Way::ALL.map(|way| cell.cost(way));
            let is_in = |context, words| if cell.context().contains(context) { words } else { "" };
            say(format_args!(
                "from {size} bytes{}{}{}: {} {}, best {}; ticks per MiB by libc {libc}, streamed by the caller \
                 {alone}, shared {shared}, shared and streamed {streamed} (0: not tried)",
                is_in(Context::BETWEEN, ", between cache and memory"),
                is_in(Context::UNUSED, ", unused"),
                is_in(Context::CROWD, ", by several threads"),
                cell.calls(),
                kind.name(),
                cell.best().map_or("not known", Way::name),
            ));
        }
    }
}
