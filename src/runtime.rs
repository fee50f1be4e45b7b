//! The one global: start, fork and exit of the process.

use crate::backend::{libc as original, threads};
use crate::config::{Backend, Config, Level};
use crate::dispatch::{Dispatcher, Policy};
use crate::stats::report::write_all;
use crate::stats::snapshot::Snapshot;
use crate::sys::{self, Op};
use crate::{check, config};
use std::sync::OnceLock;
use std::time::SystemTime;

static DISPATCHER: Dispatcher = Dispatcher::new();
static POLICY: OnceLock<Policy> = OnceLock::new();
static PROCESS: OnceLock<Process> = OnceLock::new();

/// What start-up has noted for exit.
struct Process {
    config: Config,
    ticks: u64,
    nanoseconds: u64,
    wall: f64,
    stderr: Option<FileIdentity>,
}

/// Copies, one way or the other.
///
/// # Safety
/// As memmove.
pub unsafe fn copy(op: Op, dst: usize, src: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { DISPATCHER.copy(op, dst, src, len) }
}

/// Start-up. Everything that may allocate happens here, and even that only when there is
/// something to say: a program that never allocates should not begin to because of us.
/// "open" comes last.
#[ctor::ctor(unsafe)]
fn start() {
    original::resolve();
    threads::settle_in();
    let config = config::from_environment();
    if config.check {
        check::run(&config);
    }
    if config.backend == Backend::Ioat && config.log >= Level::Warn {
        sys::say(format_args!(
            "ADMA_BACKEND=ioat: this build has no I/OAT backend yet; using threads"
        ));
    }
    DISPATCHER.configure(POLICY.get_or_init(|| Policy::new(&config)));
    let speaks = config.speaks_at_exit();
    let _ = PROCESS.set(Process {
        ticks: sys::ticks(),
        nanoseconds: sys::nanoseconds(),
        wall: seconds_since_epoch(),
        stderr: if speaks { FileIdentity::of(libc::STDERR_FILENO) } else { None },
        config,
    });
    // SAFETY: the handler only stores to atomics.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    DISPATCHER.open();
}

extern "C" fn after_fork() {
    DISPATCHER.forget_after_fork();
}

/// Exit: destructors of libraries run after the program's own exit handlers. Offload is off
/// first; nothing is torn down, for other threads may still be copying.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    DISPATCHER.close();
    let Some(process) = PROCESS.get().filter(|process| process.config.speaks_at_exit()) else {
        return;
    };
    // The program may have closed its standard error and opened a file of its own there.
    let may_speak = FileIdentity::of(libc::STDERR_FILENO) == process.stderr;
    report(process, may_speak);
    if may_speak {
        log(process);
    }
}

fn report(process: &Process, may_speak: bool) {
    let config = &process.config;
    let mut formats = config.stats;
    formats.text |= config.profile && !formats.any();
    if !formats.any() || DISPATCHER.recorder.is_empty() {
        return;
    }
    if config.stats_file.is_none() && !may_speak {
        return;
    }
    let passed = sys::nanoseconds().saturating_sub(process.nanoseconds);
    let ticks = sys::ticks().wrapping_sub(process.ticks).max(1);
    let exe = std::fs::read_link("/proc/thread-self/exe").unwrap_or_default();
    let (caller_bytes, worker_bytes) = threads::bytes_by_channel();
    let workers = DISPATCHER.workers();
    let worker_bytes: Vec<u64> = worker_bytes.take(workers).collect();
    let snapshot = Snapshot {
        recorder: &DISPATCHER.recorder,
        pid: sys::getpid(),
        exe: &exe.to_string_lossy(),
        backend: if workers > 0 { "threads" } else { "libc" },
        channels: workers,
        min_bytes: config.min_bytes,
        threshold: DISPATCHER.threshold(),
        nanoseconds_per_tick: passed as f64 / ticks as f64,
        caller_bytes,
        worker_bytes: &worker_bytes,
        faults: threads::faults(),
        profile: config.profile,
        started: process.wall,
        seconds: passed as f64 / 1e9,
    };
    write_all(&snapshot, formats, config.stats_file.as_deref(), may_speak);
}

/// What the hook may not say it has left for now.
fn log(process: &Process) {
    if process.config.log < Level::Info {
        return;
    }
    match DISPATCHER.state() {
        Ok(workers) => match DISPATCHER.threshold() {
            Some(bytes) => sys::say(format_args!(
                "threads backend was up with {workers} channels, from {bytes} bytes"
            )),
            None => sys::say(format_args!(
                "threads backend was up with {workers} channels; no size gained by it yet"
            )),
        },
        Err(why) => sys::say(format_args!("engine not used: {why}")),
    }
}

fn seconds_since_epoch() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// Which file a descriptor stands for.
#[derive(PartialEq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(fd: i32) -> Option<Self> {
        // SAFETY: all zeros is a valid `stat`, and the kernel fills it.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `stat` is writable.
        let answer = unsafe { libc::fstat(fd, &mut stat) };
        (answer == 0).then_some(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}
