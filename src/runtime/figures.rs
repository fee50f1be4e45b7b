//! Figures of the process: the live file while it runs, the report and the log at its end.
//!
//! The figures are counted where things happen, in every module below; here they come together.

use super::{DISPATCHER, Process};
use crate::backend::ioat::{helper, queues};
use crate::backend::threads::workers;
use crate::backend::{gpu, may_start, threads};
use crate::config::{Config, Level, LiveFiles};
use crate::dispatch::operation::Kind;
use crate::os::lock::TryLock;
use crate::os::lookup::rare;
use crate::os::text::{as_text, meaning, say_to};
use crate::os::{process, sys};
use crate::stats::Recorder;
use crate::stats::file::{NotKept, Place};
use crate::stats::live::{self, Control, Live, MOST_CHANNELS, word};
use crate::stats::modules;
use crate::stats::report::{BUFFERS, write_all};
use crate::stats::snapshot::{HelperCounts, Snapshot};
use alloc::ffi::CString;
use alloc::fmt::format;
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

/// Lets the first large copy make a file with what is counted, for others to read.
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

/// Stores into the live file what is counted elsewhere.
fn publish(live: &'static Live) {
    let (facts, relaxed) = (&live.facts, Ordering::Relaxed);
    let (backend, channels) = DISPATCHER.backend();
    facts.backend.store(word(backend), relaxed);
    facts.channels.store(channels as u32, relaxed);
    facts.off.store(DISPATCHER.is_switched_off().into(), relaxed);
    facts.floor.store(DISPATCHER.floor() as u64, relaxed);
    facts.min_bytes.store(DISPATCHER.fixed_threshold().unwrap_or(0) as u64, relaxed);
    facts.threshold.store(DISPATCHER.threshold().unwrap_or(0) as u64, relaxed);
    let ioat = &DISPATCHER.ioat.counts;
    let count = |count: &AtomicU64| count.load(relaxed);
    facts.faults.store(count(&threads::FAULTS) + count(&ioat.faults), relaxed);
    facts.taken_back.store(count(&threads::TAKEN_BACK), relaxed);
    facts.caller_bytes.store(caller_bytes(), relaxed);
    for (number, to) in facts.channel_bytes.iter().enumerate().take(channels) {
        to.store(bytes_of_channel(backend, number), relaxed);
    }
}

/// Applies what the user asks of the running process, where that makes sense.
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

/// Notes the status of exit. Runs after all destructors, which do not get it.
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
    let messages = DISPATCHER.recorder.messages(false).told();
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
    // Taken only while another thread reports: then there is nothing left to report.
    let Some(mut buffers) = BUFFERS.get_or_map().and_then(TryLock::try_take_at_exit) else {
        return;
    };
    let (exe, space) = buffers.parts();
    // By this thread's link: the main thread may have exited, and with it /proc/self/exe.
    let exe = name_of_program(exe);
    let (started, seconds) = DISPATCHER.recorder.started();
    let (backend, channels) = DISPATCHER.backend();
    let bytes: [u64; workers::MOST_WORKERS] =
        core::array::from_fn(|number| bytes_of_channel(backend, number));
    let used = bytes.iter().rposition(|&bytes| bytes > 0).map_or(0, |last| last + 1);
    let ioat = &DISPATCHER.ioat.counts;
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let mut room = [0; queues::ROOM];
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
        faults: count(&threads::FAULTS) + count(&ioat.faults),
        taken_back: count(&threads::TAKEN_BACK),
        helper: (backend == "ioat").then(|| HelperCounts {
            held: may_start().map_or("", |allowed| queues::held(&mut room, allowed)),
            counts: [
                ("submit_calls", count(&ioat.submits)),
                ("wait_calls", count(&ioat.waits)),
                ("system_calls", count(&ioat.submits) + count(&ioat.waits) + count(&ioat.others)),
                ("redone_pieces", count(&ioat.redone)),
                ("requests", count(&ioat.requests)),
                ("pinned_pages", count(&ioat.pinned_pages)),
            ],
            costs: core::array::from_fn(|i| {
                let nanoseconds = count(&ioat.ticks[i]) as f64 * nanoseconds_per_tick;
                (["submission", "engine", "completion"][i], nanoseconds as u64)
            }),
            // These are system calls, for which a newer filter might kill.
            kept: may_start().ok().and_then(|_| DISPATCHER.ioat.kept()),
            module: may_start().ok().and_then(helper::counted),
        }),
        registrations: (backend == "gpu").then(|| gpu::GPU.counts.of_registrations()),
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

/// Returns the program's file. Where that was replaced meanwhile, the kernel says so in its name.
fn name_of_program(room: &mut [u8]) -> &str {
    let len = sys::read_link(c"/proc/thread-self/exe", room).map_or(0, <[u8]>::len);
    let name = as_text(&mut room[..len]);
    name.strip_suffix(" (deleted)").unwrap_or(name)
}

/// Returns the figures of `struct adma_stats`, in its order.
pub(super) fn stats() -> [u64; 8] {
    let recorder = DISPATCHER.recorder.counters();
    let messages = DISPATCHER.recorder.messages(false).told();
    let [sent, received] = messages
        .map_or([(0, 0); 2], |told| told.directions.map(|(_, messages, bytes)| (messages, bytes)));
    let (engine, libc) = (recorder.engine.sizes.count(), recorder.libc.sizes.count());
    let bytes = [recorder.engine_bytes(), recorder.libc_bytes()];
    [engine, bytes[0], libc, bytes[1], sent.0, sent.1, received.0, received.1]
}

/// Returns the bytes that callers have copied themselves, beside any engine.
fn caller_bytes() -> u64 {
    let [ioat, gpu] = [&DISPATCHER.ioat.counts.caller_bytes, &gpu::GPU.counts.caller_bytes];
    let all = [&threads::CALLER_BYTES, ioat, gpu].map(|count| count.load(Ordering::Relaxed));
    all.into_iter().fold(0, u64::wrapping_add)
}

fn bytes_of_channel(backend: &str, number: usize) -> u64 {
    let counts: &[AtomicU64] = match backend {
        "gpu" => &gpu::GPU.counts.channel_bytes,
        "ioat" => &DISPATCHER.ioat.counts.channel_bytes,
        _ => return workers::bytes_of_worker(number),
    };
    counts.get(number).map_or(0, |count| count.load(Ordering::Relaxed))
}

/// Logs what the hook must not log.
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
    let (gpu, count) = (&gpu::GPU, |count: &AtomicU64| count.load(Ordering::Relaxed));
    if gpu.why_not() != gpu::Unavailable::Nothing {
        say(format_args!("GPU not used, or not any more: {}", gpu.why_not()));
    }
    if gpu.was_up() {
        let counts = &gpu.counts;
        let [_, _, made, _, evicted, gone, _] = counts.of_registrations().map(|(_, count)| count);
        say(format_args!(
            "GPU: {made} registrations, {gone} let go because their memory went, {evicted} because \
             others came; {} words lost, {} copies taken back",
            count(&counts.lost),
            count(&counts.taken_back),
        ));
    }
    // A missing helper is as common as missing hardware.
    let errno = DISPATCHER.ioat.why_not();
    if errno != 0 && errno != libc::ENOENT {
        say(format_args!("/dev/adma not used: {} (errno {errno})", meaning(errno)));
    }
    if process.config.log < Level::Debug {
        return;
    }
    for kind in Kind::ALL {
        for (size, back_to_back, cell, [series, pairs, afterwards, streaming]) in
            DISPATCHER.learner(kind).known()
        {
            say(format_args!(
                "from {size} bytes, {}: {}, {} {}; gain by series {series:.2}, by pairs \
                 {pairs:.2}, with what follows {afterwards:.2}, of streaming stores {streaming:.2}",
                if back_to_back { "back to back" } else { "after a pause" },
                if cell.is_shared() { "shared" } else { "libc" },
                cell.calls(),
                kind.name(),
            ));
        }
    }
}
