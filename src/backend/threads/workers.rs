//! The workers: the threads behind the software channels, from clone to exit.
//!
//! Workers are made with the bare clone system call, for four reasons. pthread_create
//! enters the allocator, and the program may be copying inside its own. glibc would think
//! the program multi-threaded from then on and make its malloc and stdio slower. A program
//! whose main thread leaves by pthread_exit would wait for us for ever. And a library's
//! thread needs nothing of what libc would set up. The price is the law of this file: a
//! worker calls no libc function but memmove, which uses no thread-local storage.
//!
//! An idle worker spins a little, sleeps, and after `IDLE_NANOS` ends. A program that wants to
//! be alone (fork, unshare) or gives up rights (setuid) does not have to wait for that: idle
//! workers leave first, see `dismiss`.

use super::piece;
use super::queue::{End, Queue, Shared, headcount};
use super::refusal::Refusal;
use crate::backend::Refused;
use crate::backend::asynchronous::cookies::{ENTRIES, Entry, Table};
use crate::backend::copy_loop::Sequence;
use crate::backend::mode::Mode;
use crate::os::cpus;
use crate::os::signal_mask::{FaultsHeard, SignalsHeld};
use crate::os::sync::{Ordering, Woken, fetch_to_change, pause};
use crate::os::sys;
use crate::os::thread;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

pub const MOST_WORKERS: usize = 64;

/// An idle worker ends after this. Until then it is a thread that sleeps: some 20 KiB of memory
/// and no CPU time, which is less than making it anew.
const IDLE_NANOS: u64 = 5_000_000_000;

/// How long a program that wants to be alone is kept waiting for workers to leave, at most. It
/// takes less than a millisecond where they get a CPU.
const LEAVE_NANOS: u64 = 1_000_000_000;

/// See `let_pieces_end`.
const LET_END_TICKS: u64 = 200_000_000;

/// How long anybody spins before sleeping: about 20 µs, the price of a wake-up.
pub const SPIN_TICKS: u64 = 50_000;

pub static QUEUE: Queue = Queue::new();
/// Copies that nobody waits for yet.
pub static PENDING: Table = Table::new();
/// What a worker does with a part of such a copy: see `attend_with`.
#[unsafe(link_section = ".data")]
static ATTEND: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static WORKERS: [Worker; MOST_WORKERS] = [const { Worker::new() }; MOST_WORKERS];
/// Bytes of a worker's stack: what the kernel puts there for a signal handler, which with the
/// largest registers is 11 KiB, and some more for the handler and for what it interrupts.
static STACK_SIZE: AtomicUsize = AtomicUsize::new(OWN_STACK + USUAL_FRAME);
const OWN_STACK: usize = 8 << 10;
/// Where the kernel does not say what it needs.
const USUAL_FRAME: usize = 12 << 10;
/// How many there are; see `workers`.
static ALIVE: AtomicU32 = AtomicU32::new(0);
/// Most workers alive at once; set when the engine starts, and again when the CPUs have changed.
static LIMIT: AtomicU32 = AtomicU32::new(0);
/// Whether it follows the CPUs, which they were, and when that was asked.
static FOLLOWS_CPUS: AtomicBool = AtomicBool::new(false);
static CPUS: AtomicU64 = AtomicU64::new(0);
static CPUS_ASKED: AtomicU64 = AtomicU64::new(0);
/// For how long the answer is believed, in ticks: a second or two.
const CPUS_BELIEVED_TICKS: u64 = 1 << 32;
/// Whether there ever was a worker.
static EVER: AtomicBool = AtomicBool::new(false);
/// The system refused something we need.
static REFUSED: Refusal = Refusal::new();
/// It refused another worker when there were some.
static NO_MORE: Refusal = Refusal::new();
/// The process all of this belongs to: a vfork child shares our memory and must not make
/// workers, for they would die with it, perhaps in the middle of a piece.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, as for the next ones
static PID: AtomicI32 = AtomicI32::new(0);
/// A word that is 1 here and, wiped by the kernel, 0 in every child with memory of its own;
/// null until the engine is started.
#[unsafe(link_section = ".data")]
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// The seccomp mode the process started with.
#[unsafe(link_section = ".data")]
static SECCOMP: AtomicI32 = AtomicI32::new(0);
/// Workers of an earlier generation end at once: they have rights the program has given up.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Whether pieces can be taken back from workers; see `can_take_back`.
static TAKE_BACK: AtomicU32 = AtomicU32::new(take_back::UNKNOWN);
/// Under which user number the workers were made; asked only of a program that started as root.
static USER: AtomicI32 = AtomicI32::new(NO_MATTER);
const NO_MATTER: i32 = -1;
/// When that was last asked for a copy that nobody waits for; and for how long the answer is
/// believed then, in ticks: some milliseconds. An idle worker keeps its rights for longer.
static USER_ASKED: AtomicU64 = AtomicU64::new(0);
/// When the workers' user was served last; and for how long others leave them to it, in ticks:
/// some tens of milliseconds.
static USER_SERVED: AtomicU64 = AtomicU64::new(0);
const USER_KEPT_TICKS: u64 = 100_000_000;
const USER_BELIEVED_TICKS: u64 = 20_000_000;

mod take_back {
    pub const UNKNOWN: u32 = 0;
    pub const READY: u32 = 1;
    pub const NEVER: u32 = 2;
}

/// What is known of a worker; apart from its stack, so that a look at all of them touches
/// few pages.
#[repr(align(64))]
struct Worker {
    /// 0: no such thread. The kernel clears it when the thread has left its stack.
    alive: AtomicU32,
    /// Its number, which stays when it has left.
    tid: AtomicU32,
    generation: AtomicU32,
    bytes: AtomicU64,
    /// It may have a piece of a shared copy.
    busy: AtomicBool,
    /// The upper end of its stack; 0: there is none yet. It stays when the worker has left.
    stack: AtomicUsize,
    /// What makes its pieces come back to a caller that does not wait for it.
    sequence: Sequence,
}

impl Worker {
    const fn new() -> Self {
        Self {
            alive: AtomicU32::new(0),
            tid: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            stack: AtomicUsize::new(0),
            sequence: Sequence::new(),
        }
    }

    /// Its stack, mapped if need be, by who is about to make it.
    fn stack(&self) -> Option<usize> {
        let mut top = self.stack.load(Ordering::Relaxed);
        if top == 0 {
            top = sys::map_stack(STACK_SIZE.load(Ordering::Relaxed))?;
            self.stack.store(top, Ordering::Relaxed);
        }
        Some(top)
    }

    fn is_wanted(&self) -> bool {
        self.generation.load(Ordering::Relaxed) == GENERATION.load(Ordering::Relaxed)
    }
}

/// Notes whose memory this is. At start-up, before anybody copies.
pub fn settle_in() {
    claim_memory();
    SECCOMP.store(sys::seccomp_mode() as i32, Ordering::Relaxed);
    let page = |bytes: usize| bytes.next_multiple_of(4096);
    let frame = sys::auxiliary(libc::AT_MINSIGSTKSZ).map_or(USUAL_FRAME, |bytes| bytes as usize);
    STACK_SIZE.store(page(frame + OWN_STACK), Ordering::Relaxed);
    if sys::auxiliary(libc::AT_EUID) == Some(0) {
        USER.store(sys::geteuid(), Ordering::Relaxed);
    }
}

/// This process is the one whose memory it is.
fn claim_memory() {
    PID.store(sys::getpid(), Ordering::Relaxed);
    if !MARK.load(Ordering::Relaxed).is_null() {
        mark_our_memory();
    }
}

/// Whether a stack pointer is a worker's.
pub fn is_worker_stack(at: usize) -> bool {
    let size = STACK_SIZE.load(Ordering::Relaxed);
    WORKERS.iter().any(|worker| {
        let top = worker.stack.load(Ordering::Relaxed);
        top != 0 && (top - size..=top).contains(&at)
    })
}

/// The process whose memory this is.
pub fn process() -> u32 {
    PID.load(Ordering::Relaxed) as u32
}

/// Whether this is the process whose memory it is: no child of vfork, nor of a fork that ran
/// no handler.
pub fn is_ours() -> bool {
    mark() != Some(false) && sys::getpid() == PID.load(Ordering::Relaxed)
}

/// What the page says that the kernel wipes; `None`: there is none. The child of an init in a
/// pid namespace of its own has the same number as its parent.
fn mark() -> Option<bool> {
    // SAFETY: null, or a page that is never unmapped.
    let mark = unsafe { MARK.load(Ordering::Acquire).as_ref() };
    mark.map(|mark| mark.load(Ordering::Relaxed) == 1)
}

/// Whether workers that are alive by our count are alive. Asked without a system call, for
/// who starts a copy and goes on. A child of vfork lives in our memory, and so do our workers:
/// they work for it too.
pub fn shares_our_memory() -> bool {
    mark().unwrap_or_else(is_ours)
}

/// Fetches what `shares_our_memory` will look at.
pub fn expect() {
    fetch_to_change(MARK.load(Ordering::Relaxed) as usize);
}

/// Makes `shares_our_memory` an answer without a system call, where that is to be had.
pub fn mark_our_memory() {
    let mut page = MARK.load(Ordering::Acquire);
    if page.is_null() && !is_filtered() {
        page = sys::page_wiped_on_fork().cast();
    }
    if page.is_null() {
        return; // the process number will have to do
    }
    // SAFETY: a page that is never unmapped.
    unsafe { (*page).store(1, Ordering::Relaxed) };
    MARK.store(page, Ordering::Release);
}

/// Whether an engine may be started, or workers made: this is not a vfork child, and the
/// program has not installed a seccomp filter since it started, which may kill where we
/// would only be refused.
pub fn may_start() -> Result<(), Refused> {
    if !is_ours() {
        return Err(Refused::NotOurs);
    }
    if sys::seccomp_mode() as i32 != SECCOMP.load(Ordering::Relaxed) {
        return Err(Refused::System);
    }
    Ok(())
}

/// Prepares for up to `workers` threads; none is made before the first copy.
pub fn start(workers: usize) {
    FOLLOWS_CPUS.store(false, Ordering::Relaxed);
    LIMIT.store(workers.min(MOST_WORKERS) as u32, Ordering::Relaxed);
    mark_our_memory();
    // With more threads it takes milliseconds, which an idle worker has.
    if sys::has_one_thread() {
        prepare_to_take_back();
    }
}

/// Whether this thread is under a seccomp filter, from the start or since: then only calls may
/// be made that every program makes, those that stand in adma(7).
pub fn is_filtered() -> bool {
    SECCOMP.load(Ordering::Relaxed) != 0 || sys::seccomp_mode() != 0
}

/// Whether pieces can be taken back from workers that do not run (see `copy_loop::TakeBack`).
pub fn can_take_back() -> bool {
    takes_back() && !is_filtered()
}

/// Whether every worker can. Also those that work while nobody knows yet whether pieces can be
/// taken back: it may become known while they have one.
fn can_be_interrupted() -> bool {
    TAKE_BACK.load(Ordering::Relaxed) != take_back::NEVER
}

fn prepare_to_take_back() {
    if TAKE_BACK.load(Ordering::Relaxed) == take_back::UNKNOWN {
        let possible = !is_filtered() && sys::expect_interruptions();
        let answer = if possible { take_back::READY } else { take_back::NEVER };
        // Unless a worker has found meanwhile that it cannot be interrupted.
        let _ = TAKE_BACK.compare_exchange(
            take_back::UNKNOWN,
            answer,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

/// The same for as many workers as there are CPUs beside the caller's, now and later.
pub fn start_on(limits: &cpus::Limits) {
    CPUS.store(limits.which, Ordering::Relaxed);
    CPUS_ASKED.store(sys::ticks(), Ordering::Relaxed);
    start(limits.cpus() - 1);
    FOLLOWS_CPUS.store(true, Ordering::Relaxed);
}

/// How many workers can be had now.
pub fn workers() -> usize {
    if LIMIT.load(Ordering::Relaxed) == 0 {
        look_at_cpus(); // there is no worker to do it
    }
    LIMIT.load(Ordering::Relaxed) as usize
}

/// Now and then: affinity and quota may have changed. Takes some tenths of a millisecond, so
/// workers do it where there are any.
fn look_at_cpus() {
    let now = sys::ticks();
    let asked = CPUS_ASKED.load(Ordering::Relaxed);
    if !FOLLOWS_CPUS.load(Ordering::Relaxed) || now.wrapping_sub(asked) < CPUS_BELIEVED_TICKS {
        return;
    }
    CPUS_ASKED.store(now, Ordering::Relaxed);
    let Some(limits) = cpus::Limits::try_now() else { return };
    let workers = (limits.cpus() - 1).min(MOST_WORKERS) as u32;
    let before = LIMIT.swap(workers, Ordering::Relaxed);
    // New ones are for the CPUs there are now.
    if CPUS.swap(limits.which, Ordering::Relaxed) != limits.which || workers < before {
        send_away();
    }
}

/// Workers call `attend` with every part of a pending copy that they find, and where they
/// count the bytes they copy. Set before the first is offered.
pub fn attend_with(attend: fn(&'static Entry, &AtomicU64)) {
    ATTEND.store((attend as *const ()).cast_mut(), Ordering::Release);
}

/// In the child of a fork nobody works for us any more.
pub fn forget_after_fork() {
    claim_memory();
    QUEUE.forget_everything();
    for worker in &WORKERS {
        worker.alive.store(0, Ordering::Relaxed);
        worker.tid.store(0, Ordering::Relaxed);
        worker.bytes.store(0, Ordering::Relaxed);
        worker.busy.store(false, Ordering::Relaxed);
    }
    ALIVE.store(0, Ordering::Relaxed);
    TAKE_BACK.fetch_and(take_back::NEVER, Ordering::Relaxed);
    REFUSED.forget();
    NO_MORE.forget();
}

/// Bytes copied by each worker.
pub fn bytes_by_worker() -> [u64; MOST_WORKERS] {
    core::array::from_fn(|number| WORKERS[number].bytes.load(Ordering::Relaxed))
}

/// Bytes copied by one of them.
pub fn bytes_of_worker(number: usize) -> u64 {
    WORKERS.get(number).map_or(0, |worker| worker.bytes.load(Ordering::Relaxed))
}

/// Whether the system has refused something that we need, a short while ago.
pub fn is_refused() -> bool {
    REFUSED.is_recent()
}

pub fn note_refusal() {
    REFUSED.note();
}

/// Whether this thread's copy may be posted. A child of vfork posts nothing: it may be killed
/// at any moment, and what it had taken in our memory would stay taken.
pub fn may_post() -> Result<(), Refused> {
    if is_refused() {
        return Err(Refused::System);
    }
    if !is_ours() {
        return Err(Refused::NotOurs);
    }
    let nobody_comes =
        || ALIVE.load(Ordering::Relaxed) == 0 && !cpus::may_make_workers(is_filtered());
    if user_has_changed() || nobody_comes() {
        return Err(Refused::Busy);
    }
    Ok(())
}

/// Whether pieces that workers have begun need not be waited for.
pub fn takes_back() -> bool {
    TAKE_BACK.load(Ordering::Relaxed) == take_back::READY
}

/// Where they do: whether this thread's copy may be posted nevertheless. A real-time thread would
/// wait for everything that keeps a worker from its CPU.
pub fn may_wait_for_pieces() -> Result<(), Refused> {
    if !is_filtered() && cpus::is_real_time() {
        return Err(Refused::Busy);
    }
    Ok(())
}

/// Calls more workers: wakes those that sleep, or makes them. Each worker that comes calls
/// two again, so that many are up soon and the caller pays for one.
pub fn summon(count: u32) {
    match QUEUE.wake_sleepers(count) {
        Some(true) => {}
        Some(false) => note_refusal(),
        None if !lacks_workers() || !cpus::may_make_workers(is_filtered()) => {}
        None => make(count, GENERATION.load(Ordering::Relaxed)),
    }
}

/// The same by a worker. Those it makes are of its own generation: when it is sent away, so are they.
fn summon_others(count: u32, me: &Worker) {
    match QUEUE.wake_sleepers(count) {
        Some(true) => {}
        Some(false) => note_refusal(),
        None => make(count, me.generation.load(Ordering::Relaxed)),
    }
}

fn make(count: u32, generation: u32) {
    for _ in 0..count {
        if lacks_workers() {
            spawn(generation);
        }
    }
}

fn lacks_workers() -> bool {
    headcount::alive(ALIVE.load(Ordering::Relaxed)) < LIMIT.load(Ordering::Relaxed)
}

/// Calls a worker for a pending copy, after ringing. The caller will not wait, so it must be
/// sure that one comes: either it finds a worker asleep or awake, or makes one.
pub fn call_for_pending() {
    match QUEUE.wake_sleepers(1) {
        Some(true) => {}
        Some(false) => note_refusal(),
        None if Queue::lacks_workers(&ALIVE, LIMIT.load(Ordering::Relaxed))
            && cpus::may_make_workers(is_filtered()) =>
        {
            spawn(GENERATION.load(Ordering::Relaxed));
        }
        None => {}
    }
}

/// Whether called workers come. One that another thread is just making may not.
pub fn somebody_works() -> bool {
    !is_refused() && headcount::somebody_is_there(ALIVE.load(Ordering::Acquire))
}

/// Workers serve the user under whose number they were made. When somebody else comes, and
/// nobody with that number has copied for a while, they are sent away, and new ones made when
/// they have gone: a program may change its number by system calls that we do not see. Threads
/// that have numbers of their own, as file servers do, do not take workers from each other.
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

/// Every worker ends when it has finished its piece; others are made when they are needed.
pub fn send_away() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    QUEUE.ring_for_all();
}

/// For whom workers are dismissed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// The program wants to be alone; while it copies it is not, and workers stay.
    ToBeAlone,
    /// Rights of the process change: no worker may keep the old ones.
    ToChangeRights,
}

/// Sends workers away, and waits until the kernel does not count them as threads any more
/// where that takes no longer than it takes idle ones to leave. New ones come with the next
/// copy.
pub fn dismiss(why: Dismissal) {
    if !EVER.load(Ordering::Relaxed) || !is_ours() {
        return;
    }
    let idle = QUEUE.copies() == 0 && !PENDING.has_work();
    if !idle && why == Dismissal::ToBeAlone {
        return;
    }
    send_away();
    if idle {
        wait_until_they_have_left();
    }
}

fn wait_until_they_have_left() {
    let end = sys::nanoseconds() + LEAVE_NANOS;
    let is_alive = |worker: &&Worker| worker.alive.load(Ordering::Acquire) != 0;
    // One that leaves may just have made another.
    while let Some(worker) = WORKERS.iter().find(is_alive) {
        let now = sys::nanoseconds();
        if now >= end {
            return;
        }
        // The kernel wakes us when it clears the word.
        sys::futex_wait_shared(worker.alive.as_ptr(), 1, end - now);
    }
    // They have left their stacks, but may still be counted.
    for worker in &WORKERS {
        let tid = worker.tid.swap(0, Ordering::Relaxed);
        while tid != 0 && thread::is_thread(tid) && sys::nanoseconds() < end {
            sys::yield_now();
        }
    }
}

/// The same for who starts a copy and goes on: asked now and then.
pub fn user_was_seen_to_change(now: u64) -> bool {
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

fn spawn(generation: u32) {
    if NO_MORE.is_recent() {
        return;
    }
    // The new thread is born with all of them blocked.
    let Some(_held) = SignalsHeld::all() else { return note_refusal() };
    match may_start() {
        Ok(()) => {}
        Err(Refused::System) => return note_refusal(),
        Err(_) => return,
    }
    let limit = LIMIT.load(Ordering::Relaxed);
    let to_come = headcount::ONE + headcount::ONE_TO_COME;
    let before = headcount::alive(ALIVE.fetch_add(to_come, Ordering::Relaxed));
    let take = |worker: &Worker| {
        worker.alive.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let mut free = (0..MOST_WORKERS).filter(|&number| take(&WORKERS[number]));
    let number = if before < limit { free.next() } else { None };
    let Some(number) = number else {
        ALIVE.fetch_sub(to_come, Ordering::Relaxed);
        return;
    };
    WORKERS[number].generation.store(generation, Ordering::Relaxed);
    EVER.store(true, Ordering::Relaxed);
    let made = WORKERS[number].stack().is_some_and(|stack| clone_thread(number, stack) > 0);
    if !made {
        WORKERS[number].alive.store(0, Ordering::Release);
        ALIVE.fetch_sub(to_come, Ordering::Relaxed);
        // What the others can do without another one they may.
        if before == 0 { note_refusal() } else { NO_MORE.note() }
    } else {
        ALIVE.fetch_sub(headcount::ONE_TO_COME, Ordering::Relaxed);
    }
}

/// Signals are held here, by the caller's `SignalsHeld` or because a worker calls: the new
/// thread is born with all of them blocked.
fn clone_thread(number: usize, stack: usize) -> sys::SysResult {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let Worker { alive, tid, .. } = &WORKERS[number];
    let answer;
    // SAFETY: the child starts on a stack of its own, at a 16-byte boundary, with no frame
    // to return to: it calls `work`, which never returns. The parent's registers are kept
    // but for those named.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => answer,
            in("rdi") flags as usize,
            in("rsi") stack,
            in("rdx") tid.as_ptr(),
            in("r10") alive.as_ptr(),
            in("r8") 0usize,
            in("r12") number,
            in("r13") work as *const (),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// The life of a worker.
extern "C" fn work(number: usize) -> ! {
    let me = &WORKERS[number];
    let mut last = number * 64 % ENTRIES;
    set_name(number);
    if !is_filtered() {
        cpus::run_anywhere();
    }
    // From the first piece until it sleeps: two calls for each copy would delay every one of
    // them, and a signal that the program blocks should wait where the program can see it.
    let mut faults_heard = None;
    if is_filtered() || !me.sequence.register() {
        TAKE_BACK.store(take_back::NEVER, Ordering::Relaxed);
    }
    loop {
        // Nobody else may come for what is pending.
        while me.is_wanted() || PENDING.has_work() {
            if !take_turn(number, &mut last, &mut faults_heard) {
                break;
            }
        }
        faults_heard = None; // what was put off goes back to the process
        if PENDING.count_out(&ALIVE) {
            leave();
        }
    }
}

/// Does what there is to do, or waits for it. False: it cannot be waited for.
fn take_turn(number: usize, last: &mut usize, faults_heard: &mut Option<FaultsHeard>) -> bool {
    let me = &WORKERS[number];
    let heard = QUEUE.bell();
    // After a look at the bell, with which one is sent away.
    if !me.is_wanted() && !PENDING.has_work() {
        return true;
    }
    if me.is_wanted()
        && let Some(slot) = QUEUE.find_work(number)
    {
        // Before a piece is claimed: nobody waits for us yet. `parallel` has called all it wants.
        if slot.mode() & piece::PARALLEL == 0 {
            summon_others(2, me);
        }
        if !hear_faults(faults_heard) {
            return false;
        }
        help(slot, me);
        return true;
    }
    if let Some((at, part)) = PENDING.find_work(*last) {
        *last = at;
        summon_others(2, me);
        if !hear_faults(faults_heard) {
            return false;
        }
        attend_to(part, me);
        return true;
    }
    let begun = sys::ticks();
    while QUEUE.bell() == heard && sys::ticks().wrapping_sub(begun) < SPIN_TICKS {
        pause();
    }
    if QUEUE.bell() != heard {
        return true;
    }
    prepare_to_take_back();
    look_at_cpus();
    *faults_heard = None;
    match QUEUE.sleep(heard, IDLE_NANOS) {
        Woken::TimedOut if QUEUE.count_out(&ALIVE, heard) => leave(),
        Woken::TimedOut | Woken::LookAgain => {}
        Woken::Refused => {
            note_refusal();
            return false;
        }
    }
    true
}

/// Before pieces are copied. False: not to be had.
fn hear_faults(heard: &mut Option<FaultsHeard>) -> bool {
    if heard.is_none() {
        *heard = FaultsHeard::now();
        if heard.is_none() {
            note_refusal();
        }
    }
    heard.is_some()
}

/// The end of a worker.
fn leave() -> ! {
    // SAFETY: ends this thread only; the kernel clears `alive` when the stack is free again.
    unsafe { asm!("syscall", in("rax") libc::SYS_exit, in("rdi") 0, options(noreturn, nostack)) }
}

/// Waits until no worker has a piece, for about a tenth of a second at most. For a thread that is
/// about to die of a fault: one that a worker has just met in a piece that was taken back from it
/// must not be what the process dies of.
pub fn let_pieces_end() {
    let begun = sys::ticks();
    let is_busy = |worker: &Worker| worker.busy.load(Ordering::Acquire);
    while WORKERS.iter().any(is_busy) && sys::ticks().wrapping_sub(begun) < LET_END_TICKS {
        sys::yield_now();
    }
}

fn help(shared: &Shared, me: &Worker) {
    me.busy.store(true, Ordering::Relaxed);
    while me.is_wanted()
        && let Some(claim) = shared.claim(End::Back)
    {
        Mode::unpack(claim.copy.mode).adopt_rights();
        // Counted before it is over: then the caller may go on, and report.
        me.bytes.fetch_add(piece::bytes_of(&claim) as u64, Ordering::Relaxed);
        piece::run(shared, &claim, can_be_interrupted().then_some(&me.sequence));
    }
    me.busy.store(false, Ordering::Release);
}

/// One piece of a pending copy after the other, as long as nothing else has come up.
fn attend_to(part: &'static Entry, me: &Worker) {
    let attend = ATTEND.load(Ordering::Acquire);
    if attend.is_null() {
        return;
    }
    // SAFETY: what `attend_with` has put there.
    let attend = unsafe { core::mem::transmute::<*mut (), fn(&'static Entry, &AtomicU64)>(attend) };
    let heard = QUEUE.bell();
    while part.slot.unclaimed() > 0 {
        attend(part, &me.bytes);
        if QUEUE.bell() != heard || part.is_carried_by_helper() {
            return;
        }
    }
}

/// "adma-N", as tools show it.
fn set_name(number: usize) {
    let mut name = *b"adma-00\0";
    if number < 10 {
        name[5] = b'0' + number as u8;
        name[6] = 0;
    } else {
        name[5] = b'0' + (number / 10) as u8;
        name[6] = b'0' + (number % 10) as u8;
    }
    let option = libc::PR_SET_NAME as usize;
    // SAFETY: a terminated name of at most 16 bytes.
    unsafe { sys::syscall(libc::SYS_prctl, [option, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_of_a_bare_fork_does_not_take_the_parents_workers_for_its_own() {
        settle_in();
        start(2);
        assert!(shares_our_memory());
        // SAFETY: the child only asks and leaves.
        let status = unsafe {
            let child = libc::syscall(libc::SYS_fork) as i32;
            if child == 0 {
                // As in a pid namespace of its own, where both are number 1.
                PID.store(sys::getpid(), Ordering::Relaxed);
                libc::_exit(i32::from(shares_our_memory() || is_ours()));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
    }
}
