//! Signals that have to wait for the end of a copy although they are not blocked: SIGSEGV and
//! SIGBUS that were sent, not raised by a bad page, to a thread that shares a copy.
//!
//! The program's handler could jump out of the copy while others write, so it must not run yet. Nor
//! may the signal be blocked: a fault with its signal blocked kills the process, whatever the
//! program would have done. So our handler notes the signal here, and it is sent again when the
//! thread does not handle bad pages any more (`signal_mask::SignalsHeld`,
//! `signal_mask::FaultsHeard`).
//!
//! An entry is used only by the thread that it is for, and by that thread's handler.

use super::sys::{self, syscall};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

struct DeferredSignal {
    /// Thread that it is for; 0: free.
    thread: AtomicI32,
    /// Signal; 0: nothing is noted yet.
    signal: AtomicI32,
    noted: UnsafeCell<MaybeUninit<libc::siginfo_t>>,
}

// SAFETY: what is noted is touched by one thread only, the one that `thread` names.
unsafe impl Sync for DeferredSignal {}

impl DeferredSignal {
    const fn new() -> Self {
        let (thread, signal) = (AtomicI32::new(0), AtomicI32::new(0));
        Self { thread, signal, noted: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    fn take(&self, thread: i32) -> bool {
        self.thread.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn is_of(&self, thread: i32) -> bool {
        self.thread.load(Ordering::Relaxed) == thread
    }

    fn signal(&self) -> i32 {
        self.signal.load(Ordering::Relaxed)
    }

    fn free(&self) {
        self.signal.store(0, Ordering::Relaxed);
        self.thread.store(0, Ordering::Release);
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// More threads than are likely to get such a signal at the same time.
static ENTRIES: [DeferredSignal; 32] = [const { DeferredSignal::new() }; 32];
/// Entries in use, of all threads.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Notes a signal that this thread has got. False: there is no room.
pub fn note(signal: i32, info: &libc::siginfo_t) -> bool {
    let thread = sys::gettid();
    // One of each signal is pending, as in the kernel.
    if ENTRIES.iter().any(|entry| entry.is_of(thread) && entry.signal() == signal) {
        return true;
    }
    let Some(entry) = ENTRIES.iter().find(|entry| entry.take(thread)) else { return false };
    // SAFETY: ours since `take`.
    unsafe { (*entry.noted.get()).write(*info) };
    COUNT.fetch_add(1, Ordering::Relaxed);
    entry.signal.store(signal, Ordering::Relaxed);
    true
}

/// Returns whether any thread has something to send again: asked after every shared copy.
pub fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Has `send` send again what this thread has noted. Both signals are blocked and come when
/// unblocked.
#[cold]
pub fn send_again(send: fn(i32, &libc::siginfo_t)) {
    let thread = sys::gettid();
    for entry in ENTRIES.iter().filter(|entry| entry.is_of(thread) && entry.signal() != 0) {
        // SAFETY: written before the signal was, by a handler of this thread, none of which
        // runs now.
        send(entry.signal(), unsafe { (*entry.noted.get()).assume_init_ref() });
        entry.free();
    }
}

/// Clears the entries in the child of a fork: deferred signals stay with the parent.
pub fn forget_after_fork() {
    for entry in ENTRIES.iter().filter(|entry| !entry.is_of(0)) {
        entry.free();
    }
    COUNT.store(0, Ordering::Relaxed);
}

/// Sends a signal as it came, to this thread.
pub fn send_to_oneself(signal: i32, info: &libc::siginfo_t) {
    let (process, thread, info) = (sys::getpid(), sys::gettid(), &raw const *info);
    // SAFETY: reads the siginfo.
    unsafe { syscall!(SYS_rt_tgsigqueueinfo, process, thread, signal, info) };
}

/// Sends a signal as it came, to the process: the thread that has got it is a worker, which no
/// sender can have meant.
pub fn send_to_process(signal: i32, info: &libc::siginfo_t) {
    let process = sys::getpid();
    // SAFETY: reads the siginfo.
    unsafe {
        // A signal of kill may be passed on by the main thread only.
        if syscall!(SYS_rt_sigqueueinfo, process, signal, &raw const *info) < 0 {
            syscall!(SYS_kill, process, signal);
        }
    }
}
