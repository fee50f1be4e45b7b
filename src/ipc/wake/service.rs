//! The service thread: the one thread that is responsible for all connections of this process.
//!
//! ```text
//! loop:
//!     wait until a socket of a connection or of a greeting is ready, or a thread calls
//!     take each greeting that is ready further            (`setup::accept`)
//!     serve each connection that is ready or called for:  (`wait::serve`)
//!         note the peer's end
//!         move every message that no thread waits for as far as it goes
//!         ring the event descriptor if there is something to look at
//! ```
//!
//! A thread that waits for a message copies it itself, at once. The service thread does the rest. It is
//! made with the first connection or greeting, and ends when the last one has.
//!
//! A descriptor that it makes exists under the lowest free number before it is moved. The kernel makes
//! none elsewhere: dup3 needs one that exists, and SCM_RIGHTS, pidfd_getfd and io_uring install at the
//! lowest number, too. A descriptor table of the thread's own (close_range with CLOSE_RANGE_UNSHARE) was
//! considered: calls of the program ring doorbells and look at pidfds, so each descriptor would be sent
//! to the other table and counted twice; the copy of the table flushes the program's files when it is
//! closed, which blocks on FUSE and NFS; and a second way would be needed where the thread or the call
//! is refused. So the manual says it (adma_read(3), Limits and costs).
//!
//! It is a thread of the C library: it copies with the rights of the process, so setuid must reach
//! it, and greetings need the heap. It is made inside of calls that allocate as well, never of a
//! hook. All signals of the program are blocked in it, and its descriptors lie above the numbers that
//! programs count on (`os::fd`).
//!
//! Where the system refuses the thread, calls of the program do its work: each that waits, checks or
//! accepts takes a turn (`help_out`). Then nothing goes on between calls, and there are no event
//! descriptors.

use crate::ipc::os::{self, Epoll, Fd, SERVICE_TID, blocking};
use crate::os::lock::Lock;
use crate::os::once::Once;
use crate::os::sync::full_fence;
use crate::os::{process, sys, thread};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Upper half of a key: it is a connection's handle, or a greeting's number.
pub const CONNECTION: u64 = 1 << 32;
pub const GREETING: u64 = 2 << 32;
const CALL: u64 = 3 << 32;

/// Most keys of one turn.
pub const AT_ONCE: usize = 64;

/// Milliseconds between two looks for changes that the kernel does not report: rights of a peer or of
/// this process, and greetings that are late.
const LOOK_MS: i32 = 1000;

/// Milliseconds without a connection and a greeting after which the thread ends.
const IDLE_MS: i32 = 100;

/// Nanoseconds after a refusal in which the thread is not tried again.
const RETRY_NS: u64 = 100_000_000;

/// Longest wait of `step_aside`, in nanoseconds.
const ASIDE_NS: u64 = 1_000_000_000;

/// Work of the thread, from modules above this one.
#[derive(Clone, Copy)]
pub struct Work {
    /// Serves the members of these keys.
    pub serve: fn(&[u64]),
    /// Looks for changes that are not reported.
    pub look: fn(),
    /// Joins all connections to a new set.
    pub join_all: fn(),
}

static WORK: Once<Work> = Once::new();

/// Sets the work, before the first member.
pub fn set_work(work: Work) {
    WORK.set(work);
}

/// Descriptors of the thread: all members, and a pair of sockets by which it is called. Sockets,
/// because a byte sent to a number that the program has reused for a file is refused.
struct Members {
    epoll: Epoll,
    call: [Fd; 2],
}

static MEMBERS: Lock<Option<Arc<Members>>> = Lock::new(None);

/// Approximate count of connections and greetings; not 0: the thread stays.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Value of `SERVICE_TID` until the thread has stored its number.
const BEING_MADE: i32 = -1;

/// Set while the thread steps aside: it ends, and no other is made.
static ASIDE: AtomicBool = AtomicBool::new(false);

/// Time of the last refusal, of `sys::nanoseconds`; 0: none.
static REFUSED_AT: AtomicU64 = AtomicU64::new(0);

/// Keys that threads of this process have called for.
static CALLED: Lock<Vec<u64>> = Lock::new(Vec::new());

impl Members {
    fn new() -> os::Result<Self> {
        let (epoll, call) = (Epoll::new()?, os::unix_pair()?);
        epoll.watch(call[0].raw(), libc::POLLIN, CALL)?;
        Ok(Self { epoll, call })
    }

    fn is_there(&self) -> bool {
        self.epoll.is_there() && self.call.iter().all(Fd::is_there)
    }
}

/// Returns the set, made if need be. A program that closes all descriptors has closed ours, too, and
/// may have files of its own under the numbers.
fn members() -> os::Result<Arc<Members>> {
    let mut held = MEMBERS.lock();
    let is_renewed = held.take_if(|members| !members.is_there()).is_some();
    if let Some(members) = &*held {
        return Ok(members.clone());
    }
    let members = Arc::new(Members::new()?);
    *held = Some(members.clone());
    drop(held);
    if let Some(work) = WORK.get().filter(|_| is_renewed) {
        (work.join_all)();
    }
    Ok(members)
}

/// Returns the set if there is one, and the program has not closed it.
fn existing() -> Option<Arc<Members>> {
    let members = MEMBERS.lock().clone();
    members.filter(|members| members.is_there())
}

/// Adds a descriptor under a key, or changes its events.
pub fn watch(fd: i32, events: i16, key: u64) -> os::Result<()> {
    members()?.epoll.watch(fd, events, key)
}

/// Removes a descriptor that is not closed yet.
pub fn forget(fd: i32) {
    if let Some(members) = existing() {
        members.epoll.forget(fd);
    }
}

/// Counts a connection or greeting, and makes the thread for the first one.
pub fn join() {
    COUNT.fetch_add(1, Ordering::SeqCst);
    start();
}

/// Uncounts a connection or greeting.
pub fn leave() {
    if COUNT.fetch_sub(1, Ordering::SeqCst) == 1 && runs() {
        wake();
    }
}

/// Returns whether the thread runs; otherwise the caller does its work.
#[inline]
pub fn runs() -> bool {
    SERVICE_TID.load(Ordering::Relaxed) != 0
}

/// Makes the thread, unless it runs or was refused just now. Returns whether it runs.
pub fn start() -> bool {
    // Tests of this crate do without, and so show what is left then.
    if runs() || cfg!(test) {
        return runs();
    }
    let (now, refused_at) = (sys::nanoseconds(), REFUSED_AT.load(Ordering::Relaxed));
    if refused_at != 0 && now.wrapping_sub(refused_at) < RETRY_NS {
        return false;
    }
    let begin = || SERVICE_TID.compare_exchange(0, BEING_MADE, Ordering::SeqCst, Ordering::Relaxed);
    if ASIDE.load(Ordering::SeqCst) || members().is_err() || begin().is_err() {
        return runs();
    }
    if os::check_heap().is_err() || thread::spawn(256 << 10, run).is_err() {
        REFUSED_AT.store(now, Ordering::Relaxed);
        SERVICE_TID.store(0, Ordering::SeqCst);
    }
    runs()
}

/// Has a member served soon, although no peer has rung.
pub fn call(key: u64) {
    let mut called = CALLED.lock();
    let is_first = called.is_empty();
    if !called.contains(&key) && called.try_reserve(1).is_ok() {
        called.push(key);
    }
    drop(called);
    if is_first && start() {
        wake();
    }
}

fn wake() {
    if let Some(members) = existing() {
        os::send_byte(members.call[1].raw());
    }
}

/// Takes keys that were called for.
fn take_called(keys: &mut [u64; AT_ONCE]) -> usize {
    let mut called = CALLED.lock();
    let count = called.len().min(AT_ONCE);
    for (key, taken) in keys.iter_mut().zip(called.drain(..count)) {
        *key = taken;
    }
    count
}

/// Does what there is to do, after waiting for it at most `limit_ms`. An error: the system refuses
/// to let it wait.
fn take_turn(limit_ms: i32) -> os::Result<()> {
    let Some(work) = WORK.get() else { return Ok(()) };
    let (mut keys, members) = ([0; AT_ONCE], members()?);
    let count = take_called(&mut keys);
    (work.serve)(&keys[..count]);
    let limit_ms = if CALLED.lock().is_empty() { limit_ms } else { 0 };
    let count = match members.epoll.wait(&mut keys, limit_ms) {
        Err(libc::EINTR) => 0,
        count => count?,
    };
    if keys[..count].contains(&CALL) {
        let _ = os::drain(members.call[0].raw());
    }
    (work.serve)(&keys[..count]);
    Ok(())
}

/// Takes a turn of the thread, where there is none. False: there is, or nothing to serve.
pub fn help_out() -> bool {
    let is_needed = !runs() && COUNT.load(Ordering::SeqCst) != 0 && !start();
    if is_needed {
        let _ = take_turn(0);
        look_now_and_then();
    }
    is_needed
}

/// Returns whether it has looked.
fn look_now_and_then() -> bool {
    static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
    let (now, looked_at) = (sys::nanoseconds(), LOOKED_AT.load(Ordering::Relaxed));
    let is_due = now.wrapping_sub(looked_at) >= LOOK_MS as u64 * 1_000_000;
    if is_due {
        LOOKED_AT.store(now, Ordering::Relaxed);
        if let Some(work) = WORK.get() {
            (work.look)();
        }
    }
    is_due
}

/// The thread, from its beginning to its end.
fn run() {
    SERVICE_TID.store(sys::gettid(), Ordering::Relaxed);
    os::set_thread_name(c"adma-messages");
    let mut turns_alone = 0;
    while !ASIDE.load(Ordering::SeqCst) {
        let is_alone = COUNT.load(Ordering::SeqCst) == 0;
        turns_alone = if is_alone { turns_alone + 1 } else { 0 };
        // The first turn alone waits for the next connection; those that are woken count, too.
        if turns_alone > 2 {
            break;
        }
        if take_turn(if is_alone { IDLE_MS } else { LOOK_MS }).is_err() {
            REFUSED_AT.store(sys::nanoseconds(), Ordering::Relaxed);
            break;
        }
        if look_now_and_then() && program_has_ended() {
            break;
        }
    }
    // Members are counted before they are in the set.
    let mut members = MEMBERS.lock();
    let unused = if COUNT.load(Ordering::SeqCst) == 0 { members.take() } else { None };
    drop(members);
    drop(unused);
    SERVICE_TID.store(0, Ordering::SeqCst);
    full_fence();
    // A connection that came in this moment has found the thread running.
    if COUNT.load(Ordering::SeqCst) != 0 && !program_has_ended() {
        start();
    }
}

/// Returns whether all threads of the program have ended: the process then ends with the service thread.
/// A main thread that has ended is counted until then.
fn program_has_ended() -> bool {
    process::main_has_ended() && process::threads() == Some(2)
}

/// Ends the thread before a call that works only in a process with one thread; call `step_back` then.
pub fn step_aside() {
    let (mut tid, end) = (0, sys::nanoseconds() + ASIDE_NS);
    if !runs() || SERVICE_TID.load(Ordering::Relaxed) == sys::gettid() {
        return;
    }
    ASIDE.store(true, Ordering::SeqCst);
    wake();
    loop {
        // A thread that was just made stores its number soon.
        let now = SERVICE_TID.load(Ordering::Relaxed);
        tid = if now != 0 { now } else { tid };
        let has_left = now == 0 && (tid == 0 || !sys::is_thread(tid as u32));
        if has_left || sys::nanoseconds() > end {
            break;
        }
        sys::sleep(100_000);
    }
    blocking::dismiss(end);
}

/// Makes the thread again after `step_aside`.
pub fn step_back() {
    ASIDE.store(false, Ordering::SeqCst);
    if COUNT.load(Ordering::SeqCst) != 0 {
        start();
    }
}

/// Forgets the parent's thread in the child of a fork.
pub fn forget_after_fork() {
    ASIDE.store(false, Ordering::SeqCst);
    SERVICE_TID.store(0, Ordering::Relaxed);
    COUNT.store(0, Ordering::SeqCst);
    REFUSED_AT.store(0, Ordering::Relaxed);
    MEMBERS.renew();
    CALLED.renew();
}
