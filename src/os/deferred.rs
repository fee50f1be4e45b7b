//! Signals that have to wait for the end of a copy although they are not blocked: SIGSEGV and
//! SIGBUS that were sent, not raised by a bad page, to a thread that shares a copy.
//!
//! The program's handler could jump out of the copy while others write, so it must not run yet. Nor
//! may the signal be blocked: a fault with its signal blocked kills the process, whatever the program would
//! have done. So our handler notes the signal here, and the thread sends it again when it no longer handles
//! bad pages (`signal_mask::SignalsHeld`, `signal_mask::FaultsHeard`).
//!
//! An entry is used only by the thread that received the signal, and by that thread's handler.

use super::sys::{self, syscall};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

struct DeferredSignal {
    /// Thread that received the signal; 0: the entry is free.
    thread: AtomicI32,
    /// Number of the signal; 0: not noted yet.
    signal: AtomicI32,
    noted: UnsafeCell<MaybeUninit<libc::siginfo_t>>,
}

// SAFETY: `noted` is accessed only by the thread whose number is in `thread`, and `take` gives an entry to
// one thread.
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

/// Deferred signals: more entries than threads are likely to receive one at the same time.
static ENTRIES: [DeferredSignal; 32] = [const { DeferredSignal::new() }; 32];
/// Entries in use, of all threads.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Notes a signal that this thread has received. False: no entry is free.
pub fn note(signal: i32, info: &libc::siginfo_t) -> bool {
    let thread = sys::gettid();
    // At most one of each signal is kept, as the kernel does for pending ones.
    if ENTRIES.iter().any(|entry| entry.is_of(thread) && entry.signal() == signal) {
        return true;
    }
    let Some(entry) = ENTRIES.iter().find(|entry| entry.take(thread)) else { return false };
    // SAFETY: `take` has given the entry to this thread alone.
    unsafe { (*entry.noted.get()).write(*info) };
    COUNT.fetch_add(1, Ordering::Relaxed);
    entry.signal.store(signal, Ordering::Relaxed);
    true
}

/// Returns whether any thread has deferred signals. Checked after every shared copy.
pub fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Calls `send` for each signal that this thread has noted. The caller has blocked SIGSEGV and SIGBUS, so a
/// signal sent to this thread arrives when it unblocks them.
#[cold]
pub fn send_again(send: fn(i32, &libc::siginfo_t)) {
    let thread = sys::gettid();
    for entry in ENTRIES.iter().filter(|entry| entry.is_of(thread) && entry.signal() != 0) {
        // SAFETY: `noted` was written before `signal`, by a handler of this thread; such handlers do not run
        // now, because both signals are blocked.
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

/// Sends a signal to this thread, with its original siginfo.
pub fn send_to_oneself(signal: i32, info: &libc::siginfo_t) {
    let (process, thread, info) = (sys::getpid(), sys::gettid(), &raw const *info);
    // SAFETY: the kernel only reads `info`, which outlives the call.
    unsafe { syscall!(SYS_rt_tgsigqueueinfo, process, thread, signal, info) };
}

/// Sends a signal to the process, with its original siginfo: a worker has received it, and no sender can have
/// addressed a worker.
pub fn send_to_process(signal: i32, info: &libc::siginfo_t) {
    let process = sys::getpid();
    // SAFETY: the kernel only reads `info`, which outlives the call.
    unsafe {
        // The kernel lets only the main thread queue a siginfo that came from kill.
        if syscall!(SYS_rt_sigqueueinfo, process, signal, &raw const *info) < 0 {
            syscall!(SYS_kill, process, signal);
        }
    }
}
