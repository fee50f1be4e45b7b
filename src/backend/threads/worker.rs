//! A worker: a thread of ours, from clone to exit.
//!
//! It is made with the bare clone system call, for four reasons. pthread_create
//! enters the allocator, and the program may be copying inside its own. glibc would think
//! the program multi-threaded from then on and make its malloc and stdio slower. A program
//! whose main thread leaves by pthread_exit would wait for us for ever. And a library's
//! thread needs none of libc's set-up. The price is the law of this file: a
//! worker calls no libc function but memmove, which uses no thread-local storage.
//!
//! An idle worker spins a little, sleeps, and after `IDLE_NANOS` ends.

use super::cookies::{ENTRIES, Entry};
use super::piece;
use super::queue::{End, Queue, Shared, headcount};
use super::watch;
use super::workers::{
    self, ALIVE, EVER, GENERATION, GROW_REFUSED, MOST_WORKERS, PENDING, QUEUE, SPIN_TICKS, WORKERS,
    Worker,
};
use crate::backend::mode::Mode;
use crate::backend::{Refused, may_start};
use crate::os::once::Once;
use crate::os::signal_mask::{FaultsHeard, SignalsHeld};
use crate::os::sync::{Woken, pause};
use crate::os::sys::{self, NoFilter, NoNewFilter, syscall};
use crate::os::{arch, cpus, memory_policy, process};
use core::arch::naked_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Time after which an idle worker ends. Until then it counts against the program's limits
/// (RLIMIT_NPROC, pids.max), and keeps its nice value. Making a new one takes 50 µs.
const IDLE_NANOS: u64 = 100_000_000;

/// Interval at which an idle worker checks whether the main thread has ended.
const LOOK_AT_MAIN_NANOS: u64 = 10_000_000;

/// Called by workers with every part of a pending copy that they find, their counter of bytes, and
/// their memory policy. Set before the first part is offered.
#[unsafe(link_section = ".data")]
pub static ATTEND: Once<fn(&'static Entry, &AtomicU64, &AtomicU32)> = Once::new();

/// Wakes up to `count` workers. False: none sleeps.
fn wake(count: u32) -> bool {
    let woken = QUEUE.wake_sleepers(count);
    if woken == Some(false) {
        workers::REFUSED.note();
    }
    woken.is_some()
}

/// Calls more workers: wakes up to `count` of those that sleep, or makes one if none does. Each
/// worker that comes calls two more, so that many are up soon and the caller pays for one: making
/// one takes 30 µs.
pub fn summon(count: u32) {
    if !wake(count) && workers::lacks_workers() && cpus::may_make_workers() {
        make(1, GENERATION.load(Ordering::Relaxed));
    }
}

/// Calls `count` workers that call no others, and makes those that are missing. Workers that are
/// awake find the work by themselves.
pub fn summon_all(count: u32) {
    wake(count);
    let alive = headcount::alive(ALIVE.load(Ordering::Relaxed));
    let missing = count.saturating_sub(alive.saturating_sub(watch::workers()));
    if missing > 0 && cpus::may_make_workers() {
        make(missing, GENERATION.load(Ordering::Relaxed));
    }
}

/// Calls more workers, from a worker. New workers get the generation of `me`, so all are sent away together.
fn summon_others(count: u32, me: &Worker) {
    if !wake(count) {
        make(count, me.generation.load(Ordering::Relaxed));
    }
}

fn make(count: u32, generation: u32) {
    for _ in 0..count {
        // After a refusal clone is not called again for a while.
        if workers::lacks_workers() && !workers::REFUSED.is_recent() {
            spawn(generation);
        }
    }
}

/// Calls a worker for a pending copy, after ringing. The caller will not wait, so it must be
/// sure that one comes: either it finds a worker asleep or awake, or makes one.
pub fn call_for_pending() {
    let lacks = || Queue::lacks_workers(&ALIVE, workers::limit());
    if !wake(1) && lacks() && cpus::may_make_workers() {
        spawn(GENERATION.load(Ordering::Relaxed));
    }
}

/// Makes a worker. False: there are enough, or the system refuses.
fn spawn(generation: u32) -> bool {
    if GROW_REFUSED.is_recent() {
        return false;
    }
    // The new thread starts with all signals blocked.
    let held = SignalsHeld::all();
    let allowed = match held.as_ref().map_or(Err(Refused::System), |_| may_start()) {
        Ok(allowed) => allowed,
        Err(refused) => {
            if refused == Refused::System {
                workers::REFUSED.note();
            }
            return false;
        }
    };
    let limit = workers::limit();
    let to_come = headcount::ONE + headcount::ONE_TO_COME;
    let before = headcount::alive(ALIVE.fetch_add(to_come, Ordering::Relaxed));
    let take = |worker: &Worker| {
        worker.alive.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let mut free = (0..MOST_WORKERS).filter(|&number| take(&WORKERS[number]));
    let number = if before < limit { free.next() } else { None };
    let Some(number) = number else {
        ALIVE.fetch_sub(to_come, Ordering::Relaxed);
        return false;
    };
    WORKERS[number].generation.store(generation, Ordering::Relaxed);
    WORKERS[number].policy.store(memory_policy::ANY, Ordering::Relaxed);
    EVER.store(true, Ordering::Relaxed);
    let made =
        WORKERS[number].stack().is_some_and(|stack| clone_thread(number, stack, allowed) > 0);
    if !made {
        WORKERS[number].alive.store(0, Ordering::Release);
        ALIVE.fetch_sub(to_come, Ordering::Relaxed);
        // Existing workers can go on without another one.
        if before == 0 { workers::REFUSED.note() } else { GROW_REFUSED.note() }
    } else {
        ALIVE.fetch_sub(headcount::ONE_TO_COME, Ordering::Relaxed);
    }
    made
}

/// Clones a thread. Signals are held, by the caller's `SignalsHeld` or because a worker calls: the
/// new thread inherits the mask.
fn clone_thread(number: usize, stack: usize, _: NoNewFilter) -> sys::SysResult {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let Worker { alive, tid, .. } = &WORKERS[number];
    // SAFETY: the child starts on a stack of its own, at a 16-byte boundary, and goes on in `begin`,
    // which never returns. The parent's registers are kept but for those named.
    unsafe {
        arch::clone_thread!(flags as usize, stack, tid.as_ptr(), alive.as_ptr(), number, begin)
    }
}

#[unsafe(naked)]
unsafe extern "C" fn begin() {
    naked_asm!(".cfi_startproc", arch::first_frame!(), ".cfi_endproc", work = sym work)
}

/// Runs a worker, from its first instruction to its exit.
extern "C" fn work(number: usize) -> ! {
    let me = &WORKERS[number];
    let mut last = number * 64 % ENTRIES;
    set_name(number);
    if let Some(allowed) = NoFilter::look() {
        cpus::run_anywhere(allowed);
    }
    // SIGSEGV and SIGBUS stay unblocked from the first piece until the worker sleeps: two system
    // calls per copy would delay every copy. They are blocked while it sleeps, because a signal
    // that the program blocks should be pending where the program can see it.
    let mut faults_heard = None;
    if !NoFilter::look().is_some_and(|allowed| me.sequence.register(allowed)) {
        workers::give_up_taking_back();
    }
    loop {
        // A worker that is not wanted stays while pending copies have unclaimed pieces: no other
        // worker may come for them.
        while me.is_wanted() || PENDING.has_work() {
            if !take_turn(number, &mut last, &mut faults_heard) {
                break;
            }
        }
        faults_heard = None; // deferred signals go back to the process
        if PENDING.count_out(&ALIVE) {
            leave(me);
        }
    }
}

/// Runs one round: does available work, or sleeps. Returns false if the system refuses the sleep.
fn take_turn(number: usize, last: &mut usize, faults_heard: &mut Option<FaultsHeard>) -> bool {
    let me = &WORKERS[number];
    let heard = QUEUE.bell();
    let can_leave_it = || {
        let generation = me.generation.load(Ordering::Relaxed);
        QUEUE.find_work(number).is_some() && workers::lacks_workers() && spawn(generation)
    };
    if watch::is_wanted() && !can_leave_it() {
        watch::keep(|| me.is_wanted());
        return true;
    }
    // Checked after reading the bell, which rings when workers are sent away.
    if !me.is_wanted() && !PENDING.has_work() {
        return true;
    }
    if me.is_wanted()
        && let Some(slot) = QUEUE.find_work(number)
    {
        // Before a piece is claimed: no caller waits for this worker yet.
        if !slot.mode().contains(Mode::ALL_CALLED) {
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
    workers::prepare_to_take_back();
    *faults_heard = None;
    match sleep_idle(heard) {
        Woken::TimedOut if QUEUE.count_out(&ALIVE, heard) => leave(me),
        Woken::TimedOut | Woken::LookAgain => {}
        Woken::Refused => {
            workers::REFUSED.note();
            return false;
        }
    }
    true
}

/// Unblocks SIGSEGV and SIGBUS, before pieces are copied. False: the system refuses.
fn hear_faults(heard: &mut Option<FaultsHeard>) -> bool {
    if heard.is_none() {
        *heard = FaultsHeard::now();
        if heard.is_none() {
            workers::REFUSED.note();
        }
    }
    heard.is_some()
}

/// Sleeps until there is work, for `IDLE_NANOS` at most; shorter if the main thread has ended,
/// because the process lives as long as its last thread.
fn sleep_idle(heard: u64) -> Woken {
    let mut slept = 0;
    loop {
        match QUEUE.sleep(heard, LOOK_AT_MAIN_NANOS) {
            Woken::TimedOut if slept < IDLE_NANOS && !process::main_has_ended() => {
                slept += LOOK_AT_MAIN_NANOS;
            }
            woken => return woken,
        }
    }
}

/// Ends a worker. The last thread of a process sets its exit status: if the main thread has ended
/// by a bare exit, the worker exits with the main thread's status. Where a seccomp filter refuses
/// the exit, the worker sleeps for ever.
fn leave(me: &Worker) -> ! {
    let status = if process::main_has_ended() { process::status_of_main() } else { 0 };
    loop {
        // SAFETY: ends this thread only; the kernel clears `alive` when the stack is free again.
        unsafe { syscall!(SYS_exit, status) };
        me.alive.store(Worker::STUCK, Ordering::Relaxed);
        sys::futex_wake_shared(me.alive.as_ptr()); // for `dismiss`
        sys::futex_wait(me.alive.as_ptr(), Worker::STUCK, 0);
        // SAFETY: no descriptor is polled.
        unsafe { sys::poll(0, 0, -1) }; // serves where futexes are refused as well
        sys::yield_now();
    }
}

fn help(shared: &Shared, me: &Worker) {
    me.helps.store(core::ptr::from_ref(shared) as usize, Ordering::Relaxed);
    let end = End::Back.or_nearer(shared.mode());
    while me.is_wanted()
        && let Some(claim) = shared.claim(end)
    {
        claim.copy.mode.adopt(&me.policy);
        // Counted before the piece is finished, because after that the caller may return and report.
        me.bytes.fetch_add(piece::bytes_of(&claim) as u64, Ordering::Relaxed);
        piece::run(shared, &claim, workers::can_be_interrupted().then_some(&me.sequence));
    }
    me.helps.store(0, Ordering::Release);
}

/// Works on one part of a pending copy, until other work comes.
fn attend_to(part: &'static Entry, me: &Worker) {
    let Some(attend) = ATTEND.get() else { return };
    let heard = QUEUE.bell();
    while part.slot.unclaimed() > 0 {
        attend(part, &me.bytes, &me.policy);
        if QUEUE.bell() != heard || part.is_carried_by_helper() {
            return;
        }
    }
}

/// Names the thread "adma-N".
fn set_name(number: usize) {
    let digit = |number: usize| b'0' + (number % 10) as u8;
    let mut name = *b"adma-00\0";
    match number {
        0..10 => [name[5], name[6]] = [digit(number), 0],
        _ => [name[5], name[6]] = [digit(number / 10), digit(number)],
    }
    let option = libc::PR_SET_NAME as usize;
    // SAFETY: a terminated name of at most 16 bytes.
    unsafe { sys::syscall(libc::SYS_prctl, [option, name.as_ptr() as usize, 0, 0, 0, 0]) };
}
