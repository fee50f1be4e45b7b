//! The one global: start, fork and exit of the process.

use crate::backend::asynchronous;
use crate::backend::ioat::helper;
use crate::backend::threads::remote::TransferCall;
use crate::backend::threads::task::{Task, Work};
use crate::backend::threads::workers;
use crate::backend::threads::workers::Dismissal;
use crate::backend::{gpu, ioat, libc as original, may_start, signals, threads};
use crate::config::{Backend, Config, Level, LiveFiles};
use crate::dispatch::Dispatcher;
use crate::dispatch::operation::Kind;
use crate::functions::Op;
use crate::os::lock::TryLock;
use crate::os::lookup::rare;
use crate::os::mapped::{Mapped, Zeroed};
use crate::os::once::Once;
use crate::os::signal_mask::SignalsHeld;
use crate::os::text::{as_text, meaning, say, say_to};
use crate::os::{process, sys};
use crate::stats::Recorder;
use crate::stats::file::Place;
use crate::stats::live::{Control, Live, MOST_CHANNELS, ended, word};
use crate::stats::report::{BUFFERS, write_all};
use crate::stats::snapshot::{HelperCounts, Snapshot};
use crate::{check, config, ipc};
use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;
use core::arch::asm;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

static DISPATCHER: Dispatcher = Dispatcher::new();
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, as for the next
static CONFIG: Once<Config> = Once::new();
#[unsafe(link_section = ".data")]
static PROCESS: Once<Process> = Once::new();

/// For reports of who leaves with hardly any stack, in a signal handler. Mapped at start-up
/// where there will be something to say.
static STACK: Mapped<Stack> = Mapped::new();

struct Stack(UnsafeCell<[u128; 4096]>);

// SAFETY: used by one thread, see `before_leaving`.
unsafe impl Sync for Stack {}
// SAFETY: bytes.
unsafe impl Zeroed for Stack {}

/// What start-up has noted for exit, where there may be something to say then.
struct Process {
    config: &'static Config,
    /// One moment by two clocks, so that ticks can be told in nanoseconds.
    ticks: u64,
    nanoseconds: u64,
    stderr: StandardError,
}

/// Copies, one way or the other.
///
/// # Safety
/// As memmove.
pub unsafe fn copy(op: Op, dst: usize, src: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { DISPATCHER.call(Some(op), &Task { work: Work::Copy, dst, src, len }) };
}

/// Fills, one way or the other.
///
/// # Safety
/// As memset.
pub unsafe fn fill(op: Op, dst: usize, value: u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { DISPATCHER.call(Some(op), &Task::fill(dst, value, len)) };
}

/// Compares, one way or the other.
///
/// # Safety
/// As memcmp; the length is in bytes.
pub unsafe fn compare(op: Op, a: usize, b: usize, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { DISPATCHER.call(Some(op), &Task { work: Work::Compare(op), dst: a, src: b, len }) }
}

/// process_vm_readv or process_vm_writev, one way or the other.
///
/// # Safety
/// The program's own call.
pub unsafe fn transfer(call: &TransferCall) -> isize {
    // SAFETY: the caller's promise.
    unsafe { DISPATCHER.transfer(call) }
}

/// The same for a program that calls us by name.
///
/// # Safety
/// As memmove.
pub unsafe fn copy_by_name(dst: usize, src: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { DISPATCHER.call(None, &Task { work: Work::Copy, dst, src, len }) };
}

/// Starts copies; see `Dispatcher::begin`.
///
/// # Safety
/// As `asynchronous::begin`.
pub unsafe fn begin(
    copies: &[asynchronous::Copy],
    wanted: asynchronous::Wanted,
) -> Option<asynchronous::Cookie> {
    // SAFETY: the caller's promise.
    unsafe { DISPATCHER.begin(copies, wanted) }
}

/// Something that others have carried has ended; called by any thread of ours.
fn note_end(bytes: usize, begun: u64) {
    DISPATCHER.note_end(bytes, begun);
}

/// Start-up. Everything that may allocate happens here, and even that only when there is
/// something to say: a program that never allocates should not begin to because of us.
/// "open" comes last.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[unsafe(link_section = ".text.start")] // see `intercept::entry`, as for the next ones
extern "C" fn start() {
    signals::calls::set_original(original::resolve());
    // LD_PRELOAD reaches every descendant, also one that another C library has been linked with.
    let register_atfork = register_atfork();
    if register_atfork.is_none() || config::leaves_this_program_out() {
        let nothing = Config { backend: Backend::Libc, ..Config::default() };
        if let Some(config) = CONFIG.set(nothing) {
            DISPATCHER.configure(config);
        }
        return DISPATCHER.close();
    }
    workers::settle_in();
    asynchronous::settle_in();
    let Some(config) = CONFIG.set(config::from_environment()) else { return };
    if config.check {
        check::run(config, &DISPATCHER.ioat);
    }
    if config.backend == Backend::Ioat && config.log >= Level::Warn {
        complain_about_helper();
    }
    let card = config.gpu();
    if config.verify > 0 {
        // SAFETY: what `later` promises of it: just copied.
        asynchronous::verify_with(|dst, src, len| unsafe { DISPATCHER.verify_some(dst, src, len) });
    }
    if config.counts() {
        asynchronous::record_with(note_end);
        ipc::tally::begin(|message| DISPATCHER.recorder.messages(message));
    }
    ipc::configure(ipc::Settings {
        engines: config.ipc_engine,
        patience: config.ipc_timeout as u64 * 1_000_000_000,
        helper: || {
            let (engine, how) = DISPATCHER.helper()?;
            Some(ipc::HelperEngine { engine, how })
        },
        workers: || {
            let count = || DISPATCHER.helpers();
            let crowded = || DISPATCHER.note_crowd();
            let cpus = DISPATCHER.cpus_for_messages().filter(|cpus| *cpus > 1)?;
            Some(ipc::Workers { cpus, copy: copy_by_name, count, crowded })
        },
        ptracer: config.ipc_ptracer,
        tell: config.log >= Level::Info,
    });
    let speaks = config.speaks_at_exit();
    if speaks || config.counts() {
        // SAFETY: a function of the C library, and one of ours that is never unloaded.
        unsafe {
            if let Some(call) = __cxa_at_quick_exit() {
                call(at_quick_exit, core::ptr::null_mut());
            }
        }
        let (ticks, nanoseconds) = (sys::ticks(), sys::nanoseconds());
        DISPATCHER.recorder.start(ticks, nanoseconds, seconds_since_epoch());
        if config.counts() {
            keep_live_file(config);
        }
        let mut stderr = StandardError::none();
        if speaks {
            BUFFERS.get_or_map();
            STACK.get_or_map();
            stderr = StandardError::noted();
        }
        PROCESS.set(Process { ticks, nanoseconds, stderr, config });
    }
    if let Some(register) = register_atfork {
        let object = (&raw const __dso_handle).cast_mut().cast();
        // SAFETY: they wait for workers, some milliseconds at most, make system calls, and store
        // to atomics.
        unsafe { register(Some(before_fork), Some(after_fork_here), Some(after_fork), object) };
    }
    // What a seccomp filter does to the calls that it takes nobody knows.
    if let Some(settings) = card.filter(|_| !process::is_filtered()) {
        gpu::start(&settings);
    }
    // Both at once: until here every copy, our own included, is the bootstrap's.
    DISPATCHER.configure(config);
    DISPATCHER.open();
}

/// Lets the first large copy make a file with what is counted, for others to read.
#[cold]
fn keep_live_file(config: &Config) {
    let mut folders = Vec::new();
    let mut add = |path: Vec<u8>| folders.extend(CString::new(path)); // no zeros in there
    match &config.live {
        LiveFiles::Off => return,
        LiveFiles::In(path) => add(path.clone()),
        LiveFiles::Auto => {
            let user = sys::geteuid();
            if let Some(path) = &config.runtime_dir {
                add([path, &b"/adma"[..]].concat());
            }
            add(format!("/run/user/{user}/adma").into());
            add(format!("/dev/shm/adma-{user}").into());
            add(format!("/tmp/adma-{user}").into());
        }
    }
    let is_collected = matches!(config.live, LiveFiles::In(_));
    // SAFETY: a function of the C library, and one of ours that is never unloaded.
    unsafe {
        if let Some(on_exit) = on_exit() {
            on_exit(note_status, core::ptr::null_mut());
        }
    }
    let mut room = [0; 4096];
    let exe = match process::is_filtered() {
        true => None,
        false => sys::read_link(c"/proc/self/exe", &mut room),
    };
    let exe = exe.unwrap_or_default().to_vec();
    DISPATCHER.recorder.configure(Place { folders, is_collected, exe, publish, obey });
}

/// Puts into the live file what is counted elsewhere.
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
    facts.faults.store(threads::faults() + count(&ioat.faults), relaxed);
    facts.taken_back.store(threads::taken_back(), relaxed);
    facts.caller_bytes.store(caller_bytes(), relaxed);
    for (number, to) in facts.channel_bytes.iter().enumerate().take(channels) {
        to.store(bytes_of_channel(backend, number), relaxed);
    }
}

/// The user wants something else than the environment has said. What makes no sense is not done.
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

/// What exit was called with. Runs after all destructors, which are not told.
extern "C" fn note_status(status: i32, _: *mut c_void) {
    if process::is_ours() {
        DISPATCHER.recorder.note_status(status);
    }
}

/// The user has asked for the helper; nothing is opened before the first large copy.
fn complain_about_helper() {
    let remedy = match -sys::may_read(helper::PATH) as i32 {
        0 => return,
        libc::EACCES => "no permission for /dev/adma (join the group adma)",
        _ => "no /dev/adma (load the kernel helper, see kmod-c/README.md)",
    };
    say(format_args!("ADMA_BACKEND=ioat: {remedy}; using threads"));
}

/// The program counts its threads after a fork, and would find those that wait for work.
extern "C" fn before_fork() {
    workers::dismiss(Dismissal::ToBeAlone);
    DISPATCHER.ioat.let_go();
}

/// In the parent.
extern "C" fn after_fork_here() {
    DISPATCHER.ioat.keep_again();
}

/// The same before other calls.
pub fn before_being_alone() {
    workers::dismiss(Dismissal::ToBeAlone);
}

/// No worker keeps rights that the program is just giving up.
pub fn before_rights_change() {
    workers::dismiss(Dismissal::ToChangeRights);
}

extern "C" fn after_fork() {
    DISPATCHER.forget_after_fork();
    signals::forget_after_fork();
    if let Some(buffers) = BUFFERS.get() {
        buffers.forget_after_fork();
    }
    ipc::forget_after_fork();
    TELLING.store(telling::NOBODY, Ordering::Relaxed);
    if let Some(process) = PROCESS.get() {
        process.stderr.forget_after_fork();
        DISPATCHER.recorder.start(sys::ticks(), sys::nanoseconds(), seconds_since_epoch());
    }
}

type AtFork = Option<extern "C" fn()>;

unsafe extern "C" {
    static __dso_handle: u8;
}

/// To be called before a fork, in the parent after it, and in the child; and the object that asks.
type RegisterAtFork = unsafe extern "C" fn(AtFork, AtFork, AtFork, *mut c_void) -> i32;

/// What pthread_atfork calls, which lies in a page of its own at the end of our code. `None`: this
/// is not glibc, whose loader would not start a program for which a symbol is missing.
fn register_atfork() -> Option<RegisterAtFork> {
    let function: usize;
    // SAFETY: reads what the loader has put there: an address, or null, for the symbol is weak;
    // null is `None`, and anything else a function of this kind.
    unsafe {
        asm!(".weak __register_atfork",
            "mov {}, qword ptr [rip + __register_atfork@GOTPCREL]",
            out(reg) function, options(pure, readonly, nostack, preserves_flags));
        core::mem::transmute(function)
    }
}

rare! {
    fn on_exit(extern "C" fn(i32, *mut c_void), *mut c_void) -> i32;
    fn __cxa_at_quick_exit(extern "C" fn(*mut c_void), *mut c_void) -> i32;
}

/// Registered before anybody else's, so it comes last.
extern "C" fn at_quick_exit(_: *mut c_void) {
    before_leaving(ended::AT_ONCE, None);
}

/// Exit: destructors of libraries run after the program's own exit handlers. Offload is off
/// first; nothing is torn down, for other threads may still be copying.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

#[unsafe(link_section = ".text.start")]
extern "C" fn end() {
    // What was copied, and what is to be said, is the parent's in a child of vfork or of a fork
    // that ran no handler.
    if process::is_ours() && may_tell() {
        tell(ended::EXIT, None);
    }
}

/// Who is at it, and whether it is over.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static TELLING: AtomicU32 = AtomicU32::new(telling::NOBODY);

mod telling {
    pub const NOBODY: u32 = 0;
    pub const SOMEBODY: u32 = 1;
    pub const OVER: u32 = 2;
}

/// Before the process ends without anybody's destructors; `how` is one of `ended`.
pub fn before_leaving(how: u32, status: Option<i32>) {
    let Some(process) = PROCESS.get() else { return };
    let has_to = process.config.speaks_at_exit() || DISPATCHER.recorder.live().is_some();
    if !has_to || !process::is_ours() {
        return;
    }
    let _held = SignalsHeld::all();
    // Another thread may be in the middle of a report, which this one would cut off.
    for _ in 0..100 {
        if TELLING.load(Ordering::Acquire) != telling::SOMEBODY {
            break;
        }
        sys::sleep(1_000_000);
    }
    if !may_tell() {
        return;
    }
    /// What `tell_at_once` is to be told; written by who may tell.
    static HOW: AtomicU32 = AtomicU32::new(0);
    static STATUS: AtomicI32 = AtomicI32::new(-1);
    extern "C" fn tell_at_once() {
        let status = STATUS.load(Ordering::Relaxed);
        tell(HOW.load(Ordering::Relaxed), (status >= 0).then_some(status));
    }
    HOW.store(how, Ordering::Relaxed);
    STATUS.store(status.map_or(-1, |status| status & 0xff), Ordering::Relaxed);
    if let Some(top) = STACK.get_or_map().map(|stack| stack.0.get() as usize + size_of::<Stack>()) {
        // SAFETY: used once only, by who may tell.
        unsafe { sys::call_on_stack(top, tell_at_once) };
    }
}

/// True once, for one thread.
fn may_tell() -> bool {
    let (nobody, somebody) = (telling::NOBODY, telling::SOMEBODY);
    TELLING.compare_exchange(nobody, somebody, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// `how` is one of `ended`. Otherwise than by exit nothing may be allocated: it may be a signal
/// handler that leaves, or the child of a process with many threads.
#[unsafe(link_section = ".text.start")]
fn tell(how: u32, status: Option<i32>) {
    DISPATCHER.close();
    if let Some(process) = PROCESS.get() {
        let stderr = process.stderr.still_open();
        report(process, stderr);
        if let Some(stderr) = stderr {
            log(process, stderr);
        }
        DISPATCHER.recorder.end(how, status);
    }
    TELLING.store(telling::OVER, Ordering::Release);
}

#[cold]
fn report(process: &Process, stderr: Option<i32>) {
    let config = &process.config;
    let mut formats = config.stats;
    formats.text |= config.profile && !formats.any();
    let recorder: &Recorder = DISPATCHER.recorder.settle();
    let messages = DISPATCHER.recorder.messages(false).told();
    if !formats.any() || (recorder.is_empty() && messages.is_none()) {
        return;
    }
    let passed = sys::nanoseconds().saturating_sub(process.nanoseconds);
    let ticks = sys::ticks().wrapping_sub(process.ticks).max(1);
    // Taken only if somebody else just reports: then there is nothing left to tell.
    let Some(mut buffers) = BUFFERS.get_or_map().and_then(TryLock::try_take) else { return };
    let (exe, space) = buffers.parts();
    // Of this thread: the main thread may have left, and with it /proc/self/exe.
    let exe = name_of_program(exe);
    let (started, seconds) = DISPATCHER.recorder.started();
    let (backend, channels) = DISPATCHER.backend();
    let bytes: [u64; workers::MOST_WORKERS] =
        core::array::from_fn(|number| bytes_of_channel(backend, number));
    let used = bytes.iter().rposition(|&bytes| bytes > 0).map_or(0, |last| last + 1);
    let ioat = &DISPATCHER.ioat.counts;
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let snapshot = Snapshot {
        recorder,
        pid: sys::getpid(),
        exe,
        backend,
        channels,
        min_bytes: config.min_bytes,
        floor: DISPATCHER.floor(),
        threshold: DISPATCHER.threshold(),
        nanoseconds_per_tick: passed as f64 / ticks as f64,
        caller_bytes: caller_bytes(),
        channel_name: if matches!(backend, "ioat" | "gpu") { backend } else { "adma" },
        channel_bytes: &bytes[..used.max(channels)],
        faults: threads::faults() + count(&ioat.faults),
        taken_back: threads::taken_back(),
        helper: (backend == "ioat").then(|| HelperCounts {
            submit_calls: count(&ioat.submits),
            wait_calls: count(&ioat.waits),
            system_calls: count(&ioat.submits) + count(&ioat.waits) + count(&ioat.others),
            redone_pieces: count(&ioat.redone),
            requests: count(&ioat.costs.requests),
            pinned_pages: count(&ioat.costs.pinned_pages),
            costs: costs(&ioat.costs, passed as f64 / ticks as f64),
            // A call more, and not into a filter that came since.
            kept: may_start().ok().and_then(|()| DISPATCHER.ioat.kept()),
            module: may_start().ok().and_then(|()| helper::counted()),
        }),
        registrations: (backend == "gpu").then(|| gpu::GPU.counts.of_registrations()),
        messages,
        profile: config.profile,
        started,
        seconds,
    };
    write_all(&snapshot, space, formats, config.stats_file.as_deref(), stderr);
}

/// The program's file. Where that was replaced meanwhile, the kernel says so in its name.
fn name_of_program(room: &mut [u8]) -> &str {
    let len = sys::read_link(c"/proc/thread-self/exe", room).map_or(0, <[u8]>::len);
    let name = as_text(&mut room[..len]);
    name.strip_suffix(" (deleted)").unwrap_or(name)
}

/// Where the time of requests went, in nanoseconds.
fn costs(costs: &ioat::counts::Costs, nanoseconds_per_tick: f64) -> [(&'static str, u64); 3] {
    let own =
        |count: &AtomicU64| (count.load(Ordering::Relaxed) as f64 * nanoseconds_per_tick) as u64;
    [
        ("submission", own(&costs.call_ticks)),
        ("engine", own(&costs.engine_ticks)),
        ("completion", own(&costs.completion_ticks)),
    ]
}

/// Bytes that callers have copied themselves, beside any engine.
fn caller_bytes() -> u64 {
    [&DISPATCHER.ioat.counts.caller_bytes, &gpu::GPU.counts.caller_bytes]
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .fold(threads::caller_bytes(), u64::wrapping_add)
}

fn bytes_of_channel(backend: &str, number: usize) -> u64 {
    let counts: &[AtomicU64] = match backend {
        "gpu" => &gpu::GPU.counts.channel_bytes,
        "ioat" => &DISPATCHER.ioat.counts.channel_bytes,
        _ => return workers::bytes_of_worker(number),
    };
    counts.get(number).map_or(0, |count| count.load(Ordering::Relaxed))
}

/// What the hook may not say it has left for now.
#[cold]
fn log(process: &Process, stderr: i32) {
    let say = |line: core::fmt::Arguments<'_>| say_to(stderr, line);
    let wrong = DISPATCHER.recorder.counters().mismatched.load(Ordering::Relaxed);
    if wrong > 0 {
        say(format_args!("ADMA_VERIFY: {wrong} copies were wrong and have been repaired"));
    }
    if process.config.log < Level::Info {
        return;
    }
    let (backend, channels) = DISPATCHER.backend();
    match (DISPATCHER.why_not(), DISPATCHER.threshold()) {
        (Some(why), _) => say(format_args!("engine not used: {why}")),
        (None, Some(bytes)) => say(format_args!(
            "{backend} backend was up with {channels} channels, from {bytes} bytes"
        )),
        (None, None) => say(format_args!(
            "{backend} backend was up with {channels} channels; no size gained by it yet"
        )),
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
    // That there is no helper is as usual as that there is no such hardware.
    let errno = DISPATCHER.ioat.why_not();
    if errno != 0 && errno != libc::ENOENT {
        say(format_args!("/dev/adma not used: {} (errno {errno})", meaning(errno)));
    }
    if process.config.log < Level::Debug {
        return;
    }
    for kind in Kind::ALL {
        for (size, in_a_row, cell, [series, pairs, streaming]) in DISPATCHER.learner(kind).known() {
            say(format_args!(
                "from {size} bytes, {}: {}, {} {}; gain by series {series:.2}, by pairs \
                 {pairs:.2}, of streaming stores {streaming:.2}",
                if in_a_row { "in a row" } else { "after a pause" },
                if cell.is_shared() { "shared" } else { "libc" },
                cell.calls(),
                kind.name(),
            ));
        }
    }
}

fn seconds_since_epoch() -> f64 {
    sys::nanoseconds_of(libc::CLOCK_REALTIME) as f64 / 1e9
}

/// The standard error the program started with. It may have closed it since, as coreutils do
/// at exit, or opened a file of its own in its place, where nothing of ours belongs.
struct StandardError {
    /// Its device and inode.
    identity: Option<(u64, u64)>,
    duplicate: AtomicI32,
}

impl StandardError {
    /// High, out of the way of programs that expect the lowest free number.
    const LOWEST_DUPLICATE: usize = 500;
    const NONE: i32 = -1;

    fn none() -> Self {
        Self { identity: None, duplicate: AtomicI32::new(Self::NONE) }
    }

    fn noted() -> Self {
        let identity = sys::file_of(libc::STDERR_FILENO);
        let mut duplicate = Self::NONE;
        if identity.is_some() {
            let (fd, command) = (libc::STDERR_FILENO as usize, libc::F_DUPFD_CLOEXEC as usize);
            let arguments = [fd, command, Self::LOWEST_DUPLICATE, 0, 0, 0];
            // SAFETY: no memory.
            let answer = unsafe { sys::syscall(libc::SYS_fcntl, arguments) };
            duplicate = if answer < 0 { Self::NONE } else { answer as i32 };
        }
        Self { identity, duplicate: AtomicI32::new(duplicate) }
    }

    fn still_open(&self) -> Option<i32> {
        let identity = self.identity?;
        [libc::STDERR_FILENO, self.duplicate.load(Ordering::Relaxed)]
            .into_iter()
            .find(|&fd| sys::file_of(fd) == Some(identity))
    }

    /// A child may become a daemon, and must not keep its parent's pipe open then.
    fn forget_after_fork(&self) {
        let duplicate = self.duplicate.swap(Self::NONE, Ordering::Relaxed);
        // The number still stands for our duplicate, as far as can be known.
        if duplicate != Self::NONE && sys::file_of(duplicate) == self.identity {
            sys::close(duplicate);
        }
    }
}
