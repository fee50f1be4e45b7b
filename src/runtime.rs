//! The one global: start, fork and exit of the process.

mod figures;

use crate::backend::asynchronous;
use crate::backend::card::staging;
use crate::backend::ioat::IOAT;
use crate::backend::kernel_calls::remote;
use crate::backend::threads::task::{Task, Work};
use crate::backend::threads::workers::{self, Dismissal};
use crate::backend::{ENGINES, libc as original, signals};
use crate::config::{Backend, Config, Level, LiveFiles};
use crate::dispatch::Dispatcher;
use crate::os::lookup::{self, rare};
use crate::os::mapped::Mapped;
use crate::os::once::Once;
use crate::os::signal_mask::SignalsHeld;
use crate::os::standard_error::StandardError;
use crate::os::text::say;
use crate::os::{arch, brief_file, cpus, huge_pages, mappings, process, sys};
use crate::stats::live::ended;
use crate::stats::report::BUFFERS;
use crate::{check, config, ipc};
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use zerocopy::FromZeros;

pub static DISPATCHER: Dispatcher = Dispatcher::new();
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, as for the next
static CONFIG: Once<Config> = Once::new();
#[unsafe(link_section = ".data")]
static PROCESS: Once<Process> = Once::new();

/// Stack for the report of a process that ends in a signal handler with hardly any stack left.
/// Mapped at start-up if a report is wanted.
static STACK: Mapped<Stack> = Mapped::new();

#[derive(FromZeros)]
struct Stack(UnsafeCell<[u128; 4096]>);

// SAFETY: `may_report` returns true to one thread, which alone uses the stack, see `before_leaving`.
unsafe impl Sync for Stack {}
/// State that start-up keeps for exit, if there may be a report.
struct Process {
    config: &'static Config,
    /// One moment by two clocks, to convert ticks to nanoseconds.
    ticks: u64,
    nanoseconds: u64,
    stderr: StandardError,
}

/// Copies for messages.
///
/// # Safety
/// As memmove.
unsafe fn copy_message(dst: usize, src: usize, len: usize) {
    // SAFETY: the caller has ranges that memmove may copy.
    unsafe { DISPATCHER.call(None, 0, &Task { work: Work::Copy, dst, src, len }) };
}

ctor::declarative::ctor! {
    #[ctor(unsafe, body(link_section = ".text.start"))] // see `intercept::entry`, as for the next ones
    fn at_load() {
        start();
    }
}

/// Initialises the library. Every step that may allocate happens here, and only if a report is wanted: a
/// program that never allocates should not begin to because of us. `Dispatcher::open` comes last.
#[inline(never)]
#[unsafe(link_section = ".text.start")]
fn start() {
    original::resolve();
    // LD_PRELOAD reaches every descendant, even one that is linked with another C library.
    let register_atfork = register_atfork();
    if register_atfork.is_none() || config::leaves_this_program_out() {
        let nothing = Config { backend: Backend::Libc, ..Config::default() };
        CONFIG.set(nothing).inspect(|config| DISPATCHER.configure(config));
        return DISPATCHER.close();
    }
    workers::init();
    asynchronous::init();
    let Some(config) = CONFIG.set(config::from_environment()) else { return };
    if config.check {
        check::run(config);
    }
    if let Some(why) = arch::obstacle() {
        if config.log >= Level::Info {
            say(format_args!("all is left to libc: {why}"));
        }
        DISPATCHER.configure(config);
        return DISPATCHER.close();
    }
    // The command that collects reports has warned for all processes.
    let is_collected = matches!(config.live, LiveFiles::In(_));
    if let Backend::Engine(name) = config.backend
        && config.log >= Level::Warn
        && !is_collected
    {
        complain_about(name);
    }
    if config.verify > 0 {
        // SAFETY: called with ranges that have just been copied, before their end is reported.
        asynchronous::VERIFY.set(|dst, src, len| unsafe { DISPATCHER.verify_some(dst, src, len) });
    }
    if config.counts() {
        asynchronous::AT_END.set(note_end);
        ipc::tally::begin(|message| DISPATCHER.recorder.messages(message));
    }
    ipc::configure(ipc::Settings {
        engines: config.ipc_engine,
        most_eager: config.ipc_eager << 10,
        patience: config.ipc_timeout as u64 * 1_000_000_000,
        helper: || {
            let (engine, how) = DISPATCHER.other_engine()?;
            engine.is(&IOAT).then_some(ipc::HelperEngine { engine: &IOAT, how })
        },
        workers: || {
            let count = || DISPATCHER.helpers();
            let note_overload = || DISPATCHER.note_overload();
            let cpus = DISPATCHER.cpus_for_messages().filter(|cpus| *cpus > 1)?;
            Some(ipc::Workers { cpus, copy: copy_message, count, note_overload })
        },
        ptracer: config.ipc_ptracer,
        tell: config.log >= Level::Info,
    });
    let speaks = config.speaks_at_exit();
    if speaks || config.counts() {
        // SAFETY: a function of the C library, and one of ours that is never unloaded.
        unsafe { __cxa_at_quick_exit().map(|call| call(at_quick_exit, core::ptr::null_mut())) };
        let (ticks, nanoseconds) = (sys::ticks(), sys::nanoseconds());
        DISPATCHER.recorder.start(ticks, nanoseconds, seconds_since_epoch());
        if config.counts() {
            figures::keep_live_file(config, command_line());
        }
        let mut stderr = StandardError::none();
        if speaks {
            BUFFERS.get_or_map();
            STACK.get_or_map();
            stderr = StandardError::noted();
        } else if is_collected {
            stderr = StandardError::identified();
        }
        PROCESS.set(Process { ticks, nanoseconds, stderr, config });
    }
    if let Some(register) = register_atfork {
        let object = (&raw const __dso_handle).cast_mut().cast();
        // SAFETY: the three functions can run in any thread that forks: they wait for workers, some
        // milliseconds at most, make system calls, and store to atomics.
        unsafe { register(Some(before_fork), Some(after_fork_here), Some(after_fork), object) };
    }
    let settings = config.engine_settings();
    for engine in ENGINES.iter().filter(|engine| engine.is_wanted(&settings)) {
        engine.prepare(&settings);
    }
    // Configure and open together: until here every copy, our own included, goes to libc.
    DISPATCHER.configure(config);
    DISPATCHER.open();
}

/// Counts the bytes that workers and engines have copied. It is a named function, because a test follows the
/// calls that it makes.
fn note_end(bytes: usize, begun: u64) {
    DISPATCHER.note_end(bytes, begun);
}

/// Warns that the engine which the user has asked for is missing.
fn complain_about(name: &str) {
    let engine = ENGINES.iter().find(|engine| engine.words().contains(&name));
    if let Some(remedy) = engine.and_then(|engine| engine.remedy()) {
        say(format_args!("ADMA_BACKEND={name}: {remedy}; using threads"));
    }
}

/// Dismisses workers: a program that counts its threads after a fork would find idle ones.
#[unsafe(link_section = ".text.fork")]
extern "C" fn before_fork() {
    workers::dismiss(Dismissal::Alone);
    Dispatcher::forget_unaided();
    DISPATCHER.carrier().inspect(|engine| engine.before_fork());
}

/// Runs in the parent after a fork.
#[unsafe(link_section = ".text.fork")]
extern "C" fn after_fork_here() {
    DISPATCHER.carrier().inspect(|engine| engine.after_fork());
}

/// Returns the figures of the report; `None`: nothing is counted.
pub fn figures() -> Option<[u64; 8]> {
    CONFIG.get().is_some_and(|config| config.counts()).then(figures::stats)
}

/// Modules whose state belongs to the parent, or to threads that the child of a fork does not have;
/// those of an engine are reset with it. A test looks for modules that are missing (tests/outlive.rs).
const AFTER_FORK: [fn(); 9] = [
    signals::forget_after_fork,
    asynchronous::forget_after_fork,
    remote::forget_after_fork,
    ipc::forget_after_fork,
    huge_pages::forget_after_fork,
    mappings::forget_after_fork,
    brief_file::forget_after_fork,
    cpus::forget_after_fork,
    staging::forget_after_fork,
];

#[unsafe(link_section = ".text.fork")]
extern "C" fn after_fork() {
    DISPATCHER.forget_after_fork();
    AFTER_FORK.iter().for_each(|forget| forget());
    if let Some(buffers) = BUFFERS.get() {
        buffers.forget_after_fork();
    }
    REPORT.store(report_state::IDLE, Ordering::Relaxed);
    if let Some(process) = PROCESS.get() {
        process.stderr.forget_after_fork();
        DISPATCHER.recorder.start(sys::ticks(), sys::nanoseconds(), seconds_since_epoch());
    }
}

type AtFork = Option<extern "C" fn()>;

unsafe extern "C" {
    static __dso_handle: u8;
}

/// Takes the functions to call before a fork, in the parent after it, and in the child; and the
/// object that registers them.
type RegisterAtFork = unsafe extern "C" fn(AtFork, AtFork, AtFork, *mut c_void) -> i32;

/// Returns glibc's __register_atfork; pthread_atfork, which calls it, would lie in a page of its own at
/// the end of our code. `None`: another C library.
fn register_atfork() -> Option<RegisterAtFork> {
    // SAFETY: the address is that of glibc's __register_atfork, which has this type.
    lookup::register_atfork().map(|found| unsafe { core::mem::transmute(found) })
}

rare! {
    fn __cxa_at_quick_exit(extern "C" fn(*mut c_void), *mut c_void) -> i32;
}

/// Reports at quick_exit. Registered before any other handler, so it runs last.
extern "C" fn at_quick_exit(_: *mut c_void) {
    before_leaving(ended::AT_ONCE, None);
}

/// Runs at exit: destructors of libraries run after the program's own exit handlers. Closes first;
/// nothing is torn down, because other threads may still be copying.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

#[unsafe(link_section = ".text.start")]
extern "C" fn end() {
    // In a child of vfork, or of a fork that ran no handler, counters and report are the parent's.
    if is_used() && process::is_ours() && may_report() {
        report(ended::EXIT, None);
    }
}

/// Returns whether there is an engine to close or anything to report. Makes no system call: a process
/// that has used nothing of ours may have a seccomp filter that kills for getpid.
#[unsafe(link_section = ".text.start")]
fn is_used() -> bool {
    let recorder = &DISPATCHER.recorder;
    let has_counted =
        || !recorder.counters().is_empty() || recorder.messages(false).sums().is_some();
    let speaks = |process: &Process| process.config.log >= Level::Info || has_counted();
    DISPATCHER.has_engine() || PROCESS.get().is_some_and(speaks)
}

/// Exit report: written once, by one thread.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static REPORT: AtomicU32 = AtomicU32::new(report_state::IDLE);

mod report_state {
    pub const IDLE: u32 = 0;
    pub const WRITING: u32 = 1;
    pub const DONE: u32 = 2;
}

/// Reports before the process ends without running destructors; `how` is one of `ended`.
#[unsafe(link_section = ".text.fork")]
pub fn before_leaving(how: u32, status: Option<i32>) {
    let Some(process) = PROCESS.get() else { return };
    let recorder = &DISPATCHER.recorder;
    let is_wanted = process.config.speaks_at_exit()
        || recorder.live().is_some()
        || recorder.not_kept().is_some();
    if !is_wanted || !is_used() || !process::is_ours() {
        return;
    }
    let _held = SignalsHeld::all();
    // Another thread may be in the middle of a report, which leaving now would cut off.
    let is_writing = || REPORT.load(Ordering::Acquire) == report_state::WRITING;
    (0..100).take_while(|_| is_writing()).for_each(|_| sys::sleep(1_000_000));
    if !may_report() {
        return;
    }
    /// Arguments of `report`, written by the thread that may call it.
    static HOW: AtomicU32 = AtomicU32::new(0);
    static STATUS: AtomicI32 = AtomicI32::new(-1);
    extern "C" fn report_now() {
        let status = STATUS.load(Ordering::Relaxed);
        report(HOW.load(Ordering::Relaxed), (status >= 0).then_some(status));
    }
    HOW.store(how, Ordering::Relaxed);
    STATUS.store(status.map_or(-1, |status| status & 0xff), Ordering::Relaxed);
    if let Some(top) = STACK.get_or_map().map(|stack| stack.0.get() as usize + size_of::<Stack>()) {
        // SAFETY: `may_report` returns true once, so the stack is used once only, by this thread.
        unsafe { arch::call_on_stack(top, report_now) };
    }
}

/// Returns true once, to one thread.
fn may_report() -> bool {
    let (idle, writing) = (report_state::IDLE, report_state::WRITING);
    REPORT.compare_exchange(idle, writing, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Writes report and log; `how` is one of `ended`. May allocate nothing except at exit: the caller may be a
/// signal handler, or the child of a process with many threads.
#[unsafe(link_section = ".text.start")]
fn report(how: u32, status: Option<i32>) {
    DISPATCHER.close();
    if let Some(process) = PROCESS.get() {
        let stderr = process.stderr.still_open();
        figures::report(process, stderr);
        if let Some(stderr) = stderr {
            figures::log(process, stderr);
        }
        DISPATCHER.recorder.end(how, status);
    }
    REPORT.store(report_state::DONE, Ordering::Release);
}

/// Returns the first page of the command line: words, each with a zero behind it.
fn command_line() -> Vec<u8> {
    let mut room = [0; 4096];
    let allowed = sys::NoNewFilter::look();
    let line =
        allowed.and_then(|allowed| brief_file::read(c"/proc/self/cmdline", &mut room, allowed));
    line.unwrap_or_default().to_vec()
}

fn seconds_since_epoch() -> f64 {
    sys::nanoseconds_of(libc::CLOCK_REALTIME) as f64 / 1e9
}
