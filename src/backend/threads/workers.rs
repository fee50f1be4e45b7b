//! The pool of workers: how many there may be, for which user they work, and when they must leave.
//!
//! Before a call that wants a single thread (fork, unshare) or gives up rights (setuid), workers
//! are dismissed instead of left to end when idle, see `dismiss`.

use super::cookies::Table;
use super::queue::{Queue, Shared, headcount};
use super::refusal::Refusal;
use super::watch;
use crate::backend::Refused;
use crate::backend::copy_loop::Sequence;
use crate::backend::engine::tuning;
use crate::backend::signals::{self, WorkerPool};
use crate::os::mapped::zeroed;
use crate::os::signal_mask::{self, SignalsHeld};
use crate::os::sys::{self, NoFilter, NoNewFilter};
use crate::os::{cpus, holders, lookup, memory_policy, process, real_time};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use zerocopy::FromZeros;

pub const MOST_WORKERS: usize = 64;

/// Longest time that `dismiss` waits for workers to leave. It takes less than a millisecond where
/// they get a CPU.
const LEAVE_NANOS: u64 = 1_000_000_000;

/// Longest time that `let_pieces_end` waits.
const LET_END_TICKS: u64 = 200_000_000;

/// Nap of a caller between two looks at begun pieces. No worker wakes it: a worker that has copied
/// a piece claims the next one instead of looking for sleepers.
pub(super) const NAP_NANOS: u64 = 20_000;

/// Ticks that a thread spins before sleeping: about 20 µs, the price of a wake-up.
pub const SPIN_TICKS: u64 = 50_000;

pub static QUEUE: Queue = zeroed();
/// Asynchronous copies.
pub static PENDING: Table = zeroed();
pub(super) static WORKERS: [Worker; MOST_WORKERS] = zeroed();
/// Bytes of a worker's stack: what the kernel puts there for a signal handler, which with the
/// largest registers is 11 KiB, and some more for the handler and for what it interrupts.
static STACK_SIZE: AtomicUsize = AtomicUsize::new(OWN_STACK + USUAL_FRAME);
const OWN_STACK: usize = 8 << 10;
/// Size of a signal frame where the kernel does not report it (AT_MINSIGSTKSZ).
const USUAL_FRAME: usize = 12 << 10;
/// Workers alive, and how many of them are being made: see `headcount`.
pub(super) static ALIVE: AtomicU32 = AtomicU32::new(0);
/// Most workers alive at once; set when the engine starts, and again when the CPUs have changed.
pub(super) static LIMIT: AtomicU32 = AtomicU32::new(0);
/// Workers that add speed, as measured; see `note_gain`.
static USEFUL: AtomicU32 = AtomicU32::new(MOST_WORKERS as u32);
/// Lower bound of `USEFUL`: sixteen threads copied ten times as fast as one (`bench/run copy`).
const USEFUL_ANYHOW: u32 = 15;
/// Whether the limit follows the CPUs; which CPUs there were when they were last read; and when that was.
static FOLLOWS_CPUS: AtomicBool = AtomicBool::new(false);
static CPUS: AtomicU64 = AtomicU64::new(0);
static CPUS_ASKED: AtomicU64 = AtomicU64::new(0);
/// Ticks for which `CPUS` is valid after it was read: a second or two.
const CPUS_BELIEVED_TICKS: u64 = 1 << 32;
/// Scheduling of the main thread when the workers were made, see `cpus::worker_class`; when it was
/// read; and the ticks for which that is valid: about 10 ms.
static CLASS: AtomicU64 = AtomicU64::new(0);
static CLASS_ASKED: AtomicU64 = AtomicU64::new(0);
const CLASS_BELIEVED_TICKS: u64 = 1 << 25;
/// Set when the first worker is made.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, and every fork reads
pub(super) static EVER: AtomicBool = AtomicBool::new(false);
/// Set when the system refused something that workers need.
pub static REFUSED: Refusal = Refusal::new();
/// clone() failed although workers exist: make no more for a while.
pub(super) static GROW_REFUSED: Refusal = Refusal::new();
/// Workers of an earlier generation end at once: they have rights the program has given up.
pub(super) static GENERATION: AtomicU32 = AtomicU32::new(0);
/// State of `can_take_back`, one of `take_back`.
static TAKE_BACK: AtomicU32 = AtomicU32::new(take_back::UNKNOWN);
/// User id under which the workers were made; asked only in a program that started as root.
static USER: AtomicI32 = AtomicI32::new(NO_MATTER);
const NO_MATTER: i32 = -1;
/// Time at which an asynchronous copy last read the user id, and the ticks for which that answer is
/// valid (`USER_BELIEVED_TICKS`): some milliseconds. An idle worker keeps its rights for longer.
static USER_ASKED: AtomicU64 = AtomicU64::new(0);
/// Time of the last copy of the workers' user, and the ticks for which other users leave the
/// workers to that user (`USER_KEPT_TICKS`): some tens of milliseconds.
static USER_SERVED: AtomicU64 = AtomicU64::new(0);
const USER_KEPT_TICKS: u64 = 100_000_000;
const USER_BELIEVED_TICKS: u64 = 20_000_000;

mod take_back {
    pub const UNKNOWN: u32 = 0;
    pub const READY: u32 = 1;
    pub const NEVER: u32 = 2;
}

/// State of a worker; apart from its stack, so that a look at all of them touches few pages.
#[repr(align(64))]
#[derive(FromZeros)]
pub(super) struct Worker {
    /// 0: no such thread. The kernel clears it when the thread has left its stack. `STUCK`: it cannot
    /// leave, so its stack is not used again.
    pub alive: AtomicU32,
    /// Thread id, which stays when the worker has left.
    pub tid: AtomicU32,
    pub generation: AtomicU32,
    pub bytes: AtomicU64,
    /// Memory policy that the worker has adopted.
    pub policy: AtomicU32,
    /// Address of the shared copy that it may have a piece of; 0: none.
    pub helps: AtomicUsize,
    /// The upper end of its stack; 0: there is none yet. It stays when the worker has left.
    stack: AtomicUsize,
    /// Restartable sequence, by which its piece can be taken back.
    pub sequence: Sequence,
}

impl Worker {
    pub const STUCK: u32 = 2;

    /// Returns the upper end of its stack, and maps the stack if there is none. Only for the thread
    /// that makes the worker.
    pub fn stack(&self) -> Option<usize> {
        let mut top = self.stack.load(Ordering::Relaxed);
        if top == 0 {
            top = sys::map_stack(STACK_SIZE.load(Ordering::Relaxed))?;
            self.stack.store(top, Ordering::Relaxed);
        }
        Some(top)
    }

    /// Returns whether the thread is there, or is just being made or ending.
    fn is_alive(&self) -> bool {
        !matches!(self.alive.load(Ordering::Acquire), 0 | Self::STUCK)
    }

    pub fn is_wanted(&self) -> bool {
        self.generation.load(Ordering::Relaxed) == GENERATION.load(Ordering::Relaxed)
    }
}

/// Sets up workers at start-up, before the first copy.
pub fn init() {
    process::note_start();
    signals::POOL.set(WorkerPool { is_worker_stack, let_pieces_end, send_away });
    sys::look_at_thread_register();
    let page = |bytes: usize| bytes.next_multiple_of(4096);
    let frame = sys::auxiliary(libc::AT_MINSIGSTKSZ).map_or(USUAL_FRAME, |bytes| bytes as usize);
    STACK_SIZE.store(page(frame + OWN_STACK), Ordering::Relaxed);
    if sys::auxiliary(libc::AT_EUID) == Some(0) {
        USER.store(0, Ordering::Relaxed);
    }
}

/// Returns whether a stack pointer is a worker's.
pub fn is_worker_stack(at: usize) -> bool {
    let size = STACK_SIZE.load(Ordering::Relaxed);
    WORKERS.iter().any(|worker| {
        let top = worker.stack.load(Ordering::Relaxed);
        top != 0 && (top - size..=top).contains(&at)
    })
}

/// Prepares for up to `workers` threads; none is made before the first copy.
pub fn start(workers: usize) {
    FOLLOWS_CPUS.store(false, Ordering::Relaxed);
    LIMIT.store(workers.min(MOST_WORKERS) as u32, Ordering::Relaxed);
    prepare();
}

/// Prepares for as many threads as were allowed before.
pub fn prepare() {
    process::mark_our_memory();
    memory_policy::prepare();
    // With more threads the preparation takes milliseconds, which an idle worker has.
    if lookup::has_one_thread() {
        prepare_to_take_back();
    }
}

/// Returns whether pieces can be taken back from workers that do not run (`copy_loop::TakeBack`).
pub fn can_take_back() -> bool {
    TAKE_BACK.load(Ordering::Relaxed) == take_back::READY && NoFilter::look().is_some()
}

/// Returns whether workers register their sequences. They also do so before it is known whether
/// pieces can be taken back, because that may become known while they copy a piece.
pub(super) fn can_be_interrupted() -> bool {
    TAKE_BACK.load(Ordering::Relaxed) != take_back::NEVER
}

/// Notes that a worker cannot be interrupted.
pub(super) fn give_up_taking_back() {
    TAKE_BACK.store(take_back::NEVER, Ordering::Relaxed);
}

/// Aborts the pieces that were taken back. False: workers cannot be interrupted (any more), so they
/// have to be waited for and nothing is taken back from now on.
pub(super) fn drive_out() -> bool {
    let interrupted = NoFilter::look().is_some_and(sys::interrupt_workers);
    if interrupted && TAKE_BACK.load(Ordering::Relaxed) == take_back::READY {
        return true;
    }
    give_up_taking_back();
    false
}

/// Returns whether a worker may have a piece of this copy.
pub(super) fn help_with(shared: &Shared) -> bool {
    let address = core::ptr::from_ref(shared) as usize;
    WORKERS.iter().any(|worker| worker.helps.load(Ordering::Acquire) == address)
}

pub(super) fn prepare_to_take_back() {
    if TAKE_BACK.load(Ordering::Relaxed) == take_back::UNKNOWN {
        let possible = NoFilter::look().is_some_and(sys::expect_interruptions);
        let answer = if possible { take_back::READY } else { take_back::NEVER };
        // Keeps `NEVER`, if a worker has found meanwhile that it cannot be interrupted.
        let _ = TAKE_BACK.compare_exchange(
            take_back::UNKNOWN,
            answer,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

/// Prepares for as many workers as there are CPUs beside the caller's, now and later.
pub fn start_on(limits: &cpus::Limits) {
    CPUS.store(limits.which, Ordering::Relaxed);
    CPUS_ASKED.store(sys::ticks(), Ordering::Relaxed);
    start(limits.cpus() - 1);
    FOLLOWS_CPUS.store(true, Ordering::Relaxed);
}

/// Returns whether the CPUs were read a short while ago, perhaps before a fork: a child has the
/// affinity and the control group of its parent.
pub fn knows_cpus() -> bool {
    FOLLOWS_CPUS.load(Ordering::Relaxed) && !cpus_may_have_changed()
}

/// Returns whether there are workers, or some that are just being made.
pub fn are_made() -> bool {
    ALIVE.load(Ordering::Relaxed) != 0
}

/// Returns how many workers a copy can have now.
pub fn workers() -> usize {
    if cpus_may_have_changed() && !real_time::is_real_time() {
        look_at_cpus();
    }
    most() as usize
}

/// Returns the most workers that copy: the user's number, or as many as the CPUs allow and as add speed.
fn most() -> u32 {
    let limit = LIMIT.load(Ordering::Relaxed);
    match FOLLOWS_CPUS.load(Ordering::Relaxed) {
        true => limit.min(USEFUL.load(Ordering::Relaxed)),
        false => limit,
    }
}

/// Notes how many times as fast as one thread a long copy was. Where memory bandwidth is the limit,
/// threads beyond 1.5 times that number only wait for memory and are sent away.
pub fn note_gain(times: usize) {
    let (before, now) = (USEFUL.load(Ordering::Relaxed), useful(times));
    let alive = headcount::alive(ALIVE.load(Ordering::Relaxed));
    let now = tuning::blend(before.into(), now.into(), 4, MOST_WORKERS as u64) as u32;
    if now != before {
        USEFUL.store(now, Ordering::Relaxed);
        if alive > now + now / 4 {
            send_away();
        }
    }
}

/// Returns how many workers add speed where copies are `times` as fast as one thread.
fn useful(times: usize) -> u32 {
    (times + times / 2).clamp(USEFUL_ANYHOW as usize, MOST_WORKERS) as u32
}

/// Returns whether affinity and quota were last read so long ago that they may have changed.
fn cpus_may_have_changed() -> bool {
    let age = sys::ticks().wrapping_sub(CPUS_ASKED.load(Ordering::Relaxed));
    FOLLOWS_CPUS.load(Ordering::Relaxed) && age >= CPUS_BELIEVED_TICKS
}

/// Reads affinity and quota again. Done by a caller, in its own call: the quota is in files, and a
/// worker must not take a descriptor number from the program.
fn look_at_cpus() {
    CPUS_ASKED.store(sys::ticks(), Ordering::Relaxed);
    signal_mask::look_at_handlers(); // as rarely: some are set by bare system calls
    // A handler that jumped out of this would leave a descriptor open and the buffers taken, as would
    // a child of vfork that is killed.
    let Some(_held) = SignalsHeld::all().filter(|_| process::is_ours()) else { return };
    let Some(limits) = NoNewFilter::look().and_then(cpus::Limits::try_now) else { return };
    let workers = (limits.cpus() - 1).min(MOST_WORKERS) as u32;
    let before = LIMIT.swap(workers, Ordering::Relaxed);
    // Workers that were made for other CPUs are replaced.
    if CPUS.swap(limits.which, Ordering::Relaxed) != limits.which || workers < before {
        send_away();
    }
}

/// Sends the workers away when the main thread's nice value, scheduling class or I/O priority has
/// changed: workers that are made then have the new values. Idle workers leave soon anyhow.
fn follow_class(now: u64) {
    let age = now.wrapping_sub(CLASS_ASKED.load(Ordering::Relaxed));
    if age < CLASS_BELIEVED_TICKS {
        return;
    }
    CLASS_ASKED.store(now, Ordering::Relaxed);
    let Some(class) = NoFilter::look().map(cpus::worker_class) else { return };
    if CLASS.swap(class, Ordering::Relaxed) != class && are_made() {
        send_away();
    }
}

/// Resets the pool in the child of a fork, which has no workers.
pub fn forget_after_fork() {
    watch::forget_after_fork();
    QUEUE.forget_everything();
    for worker in &WORKERS {
        worker.alive.store(0, Ordering::Relaxed);
        worker.tid.store(0, Ordering::Relaxed);
        worker.bytes.store(0, Ordering::Relaxed);
        worker.helps.store(0, Ordering::Relaxed);
    }
    ALIVE.store(0, Ordering::Relaxed);
    TAKE_BACK.fetch_and(take_back::NEVER, Ordering::Relaxed);
    REFUSED.forget();
    GROW_REFUSED.forget();
}

/// Returns the bytes copied by a worker.
pub fn bytes_of_worker(number: usize) -> u64 {
    WORKERS.get(number).map_or(0, |worker| worker.bytes.load(Ordering::Relaxed))
}

/// Returns whether this thread's copy may be posted. A child of vfork posts nothing: it may be
/// killed at any moment, and a slot that it had taken in our memory would stay taken.
pub fn may_post() -> Result<(), Refused> {
    if REFUSED.is_recent() {
        return Err(Refused::System);
    }
    if !process::is_ours() {
        return Err(Refused::NotOurs);
    }
    follow_class(sys::ticks());
    let none_comes = || ALIVE.load(Ordering::Relaxed) == 0 && !cpus::may_make_workers();
    if user_has_changed() || none_comes() {
        return Err(Refused::Busy);
    }
    Ok(())
}

pub(super) fn lacks_workers() -> bool {
    headcount::alive(ALIVE.load(Ordering::Relaxed)) < limit()
}

/// Returns the most workers alive, with the one that only watches.
pub(super) fn limit() -> u32 {
    match most() {
        0 => 0,
        most => most + watch::workers(),
    }
}

/// Returns whether a called worker is certain to arrive: one that is still being made may fail.
pub fn any_running() -> bool {
    !REFUSED.is_recent() && headcount::any_running(ALIVE.load(Ordering::Acquire))
}

/// Returns whether this thread's user is not the workers' own: it may change by system calls that
/// we do not see. Workers are sent away only when their user has not copied for a while, so that
/// threads of several users, as in file servers, do not take them from each other.
pub fn user_has_changed() -> bool {
    let before = USER.load(Ordering::Relaxed);
    if before == NO_MATTER {
        return false;
    }
    let (user, now) = (sys::geteuid(), sys::ticks());
    if user == before {
        USER_SERVED.store(now, Ordering::Relaxed);
        return false;
    }
    if ALIVE.load(Ordering::Acquire) == 0 {
        USER.store(user, Ordering::Relaxed);
        USER_SERVED.store(now, Ordering::Relaxed);
        return false;
    }
    if now.wrapping_sub(USER_SERVED.load(Ordering::Relaxed)) > USER_KEPT_TICKS {
        send_away();
    }
    true
}

/// Like `user_has_changed`, for callers that do not wait for their copy; the answer is cached.
pub fn user_was_seen_to_change(now: u64) -> bool {
    follow_class(now);
    if USER.load(Ordering::Relaxed) == NO_MATTER
        || now.wrapping_sub(USER_ASKED.load(Ordering::Relaxed)) < USER_BELIEVED_TICKS
    {
        return false;
    }
    let changed = user_has_changed();
    if !changed {
        USER_ASKED.store(now, Ordering::Relaxed);
    }
    changed
}

/// Has every worker end when it has finished its piece; others are made when they are needed.
pub fn send_away() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    QUEUE.ring_for_all();
    watch::hurry();
}

/// Why workers are dismissed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// The program wants to be alone. Ignored while it copies.
    Alone,
    /// Rights of the process change: no worker may keep the old ones.
    RightsChange,
    /// The program has reached its limit of threads: no worker may take the place of its own.
    ThreadLimit,
    /// A seccomp filter is about to come, which may kill a worker that leaves. None are made meanwhile.
    Filter,
}

/// Sends workers away. If they are idle, or must not stay, waits until the kernel does not count
/// them as threads any more. The next copy makes new ones; not for a while at `ThreadLimit`. False:
/// there was nothing to wait for.
pub fn dismiss(why: Dismissal) -> bool {
    if !EVER.load(Ordering::Relaxed) || !process::is_ours() {
        return false;
    }
    let idle = QUEUE.copies() == 0 && !PENDING.has_work();
    match why {
        Dismissal::Alone if !idle => return false,
        Dismissal::ThreadLimit if !WORKERS.iter().any(Worker::is_alive) => return false,
        Dismissal::ThreadLimit => REFUSED.note(),
        Dismissal::Filter if !WORKERS.iter().any(Worker::is_alive) => return false,
        _ => {}
    }
    send_away();
    if idle || matches!(why, Dismissal::ThreadLimit | Dismissal::Filter) {
        wait_until_they_have_left();
    }
    true
}

fn wait_until_they_have_left() {
    let end = sys::nanoseconds() + LEAVE_NANOS;
    // A worker that leaves may just have made another.
    while let Some(worker) = WORKERS.iter().find(|worker| worker.is_alive()) {
        let now = sys::nanoseconds();
        if now >= end {
            return;
        }
        // The kernel wakes us when it clears the word.
        sys::futex_wait_shared(worker.alive.as_ptr(), 1, end - now);
    }
    // Workers have left their stacks, but the kernel may still count them.
    for worker in &WORKERS {
        let tid = worker.tid.swap(0, Ordering::Relaxed);
        while tid != 0 && sys::is_thread(tid) && sys::nanoseconds() < end {
            sys::yield_now();
        }
    }
}

/// Ends every worker's piece as a bad page would, where pieces cannot be taken back.
pub(super) fn interrupt_pieces() {
    if NoFilter::look().is_none() {
        return;
    }
    for worker in WORKERS.iter().filter(|worker| worker.helps.load(Ordering::Acquire) != 0) {
        holders::interrupt(worker.tid.load(Ordering::Relaxed) as i32, libc::SIGBUS);
    }
}

/// Waits until no worker has a piece, for about a tenth of a second at most. Called by a thread
/// that is about to die of a fault: the process must die of that fault, not of one that a worker
/// meets in a piece that was taken back.
fn let_pieces_end() {
    let begun = sys::ticks();
    let is_busy = |worker: &Worker| worker.helps.load(Ordering::Acquire) != 0;
    while WORKERS.iter().any(is_busy) && sys::ticks().wrapping_sub(begun) < LET_END_TICKS {
        sys::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_wait_for_memory_are_not_counted_as_useful() {
        for (times, expected) in [(0, 15), (2, 15), (10, 15), (12, 18), (20, 30), (60, 64)] {
            assert_eq!(useful(times), expected, "{times} times as fast");
        }
    }
}
