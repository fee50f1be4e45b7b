//! Threads that hold signals while they copy, and the interruption of one that hangs.
//!
//! A thread in a page fault that does not end (NFS, FUSE, swap, userfaultfd) cannot check for
//! pending signals. Another thread of ours, which touches no memory of the program's, watches all threads
//! that hold signals (`threads::watch`). A thread that has made no progress for some milliseconds is sent
//! SIGBUS or SIGSEGV, which are never held, with the address of `INTERRUPT` as the value. The handler
//! (`signals`) then checks whether a signal is pending, and if so ends the copy loop.

use super::mapped::zeroed;
use super::signal_set::{pending, signal_set};
use super::sync::pause;
use super::sys::{self, NoFilter, syscall};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use zerocopy::FromZeros;

/// A thread that holds signals. The interrupt must not arrive after the thread has unblocked its signals, so
/// the sender sets `state` to `SENDING`, and `leave` waits until it is `HELD` again.
#[repr(align(64))]
#[derive(FromZeros)]
pub struct Holder {
    state: AtomicU32,
    thread: AtomicI32,
    /// Signal by which it can be interrupted; 0: none, the program blocks both.
    signal: AtomicI32,
    /// The program's own mask.
    before: AtomicU64,
    /// Changes with every piece and every holder.
    progress: AtomicU32,
    /// Value of `progress` at the watching worker's last look, and number of looks since it changed.
    seen: AtomicU32,
    looks: AtomicU32,
    /// Set when the signal was sent at least once.
    sent: AtomicBool,
    /// Set when the thread received the interrupt while another signal was pending.
    interrupted: AtomicBool,
}

mod state {
    pub const FREE: u32 = 0;
    pub const TAKEN: u32 = 1;
    pub const HELD: u32 = 2;
    pub const SENDING: u32 = 3;
}

/// Most threads that are watched: more than can copy at the same time.
pub const HOLDERS: usize = 64;
static ALL: [Holder; HOLDERS] = [const { zeroed() }; HOLDERS];

/// Its address is the value that is queued with the interrupt.
static INTERRUPT: u8 = 0;

/// Enters this thread, which has just blocked signals; `before` is the mask that it had.
pub fn enter(before: u64) -> Option<&'static Holder> {
    let holder = ALL.iter().find(|holder| holder.take())?;
    let open = |signal: &i32| before & signal_set(*signal) == 0;
    let signal = [libc::SIGBUS, libc::SIGSEGV].into_iter().find(open).unwrap_or(0);
    holder.thread.store(sys::gettid(), Ordering::Relaxed);
    holder.signal.store(signal, Ordering::Relaxed);
    holder.before.store(before, Ordering::Relaxed);
    holder.sent.store(false, Ordering::Relaxed);
    holder.interrupted.store(false, Ordering::Relaxed);
    holder.progress();
    holder.state.store(state::HELD, Ordering::Release);
    Some(holder)
}

/// Returns whether any thread holds signals.
pub fn is_any() -> bool {
    ALL.iter().any(|holder| holder.state.load(Ordering::Acquire) != state::FREE)
}

/// Clears the entries in the child of a fork, whose only thread copies nothing.
pub fn forget_after_fork() {
    for holder in &ALL {
        holder.state.store(state::FREE, Ordering::Relaxed);
    }
}

/// Returns whether a received signal is an interrupt that we sent.
pub fn is_interrupt(info: &libc::siginfo_t) -> bool {
    // SAFETY: SI_QUEUE means that the signal was queued, so its siginfo holds a value.
    info.si_code == libc::SI_QUEUE && unsafe { info.si_value() }.sival_ptr == interrupt_value()
}

fn interrupt_value() -> *mut libc::c_void {
    (&raw const INTERRUPT).cast_mut().cast()
}

/// Returns whether the copy is to end because a signal is pending. Called by the handler of an interrupt;
/// `mask` is the signal mask of the interrupted thread.
pub fn note_interrupt(mask: u64) -> bool {
    let thread = sys::gettid();
    let is_ours = |holder: &&Holder| {
        holder.state.load(Ordering::Relaxed) >= state::HELD
            && holder.thread.load(Ordering::Relaxed) == thread
    };
    let Some(holder) = ALL.iter().find(is_ours) else { return false };
    let pending = NoFilter::look().map_or(0, pending);
    let waits = pending & mask & !holder.before.load(Ordering::Relaxed) != 0;
    if waits {
        holder.interrupted.store(true, Ordering::Relaxed);
    }
    waits
}

/// Sends a thread the signal that ends its copy loop.
pub fn interrupt(thread: i32, signal: i32) {
    // struct siginfo: signal, errno, code, then at 16 pid and user, and the value at 24.
    let mut info = [0u64; 16];
    info[0] = signal as u64;
    info[1] = u64::from(libc::SI_QUEUE as u32);
    info[2] = sys::getpid() as u64;
    info[3] = interrupt_value() as u64;
    // SAFETY: the kernel only reads `info`, which has the size of a siginfo, 128 bytes.
    unsafe { syscall!(SYS_rt_tgsigqueueinfo, sys::getpid(), thread, signal, &raw const info) };
}

/// Looks without progress after which a thread is interrupted even if no signal is seen pending: a signal
/// that was sent to one thread is not visible to others.
const BLIND_LOOKS: u32 = 4;

/// Interrupts threads that have made no progress since the last look. False: no thread holds signals.
/// `may_send` returns whether our handler would receive the signal and the call is allowed. Called only by
/// the watching worker.
pub fn look(may_send: fn() -> bool) -> bool {
    let (mut any, mut waiting) = (false, None);
    for holder in &ALL {
        if holder.state.load(Ordering::Acquire) != state::HELD {
            continue;
        }
        any = true;
        let progress = holder.progress.load(Ordering::Relaxed);
        let looks = match holder.seen.swap(progress, Ordering::Relaxed) == progress {
            true => holder.looks.load(Ordering::Relaxed).wrapping_add(1),
            false => 0,
        };
        holder.looks.store(looks, Ordering::Relaxed);
        if looks == 0 {
            continue;
        }
        let ask = || NoFilter::look().map_or(0, pending);
        let waiting = *waiting.get_or_insert_with(ask);
        let is_seen = waiting & !holder.before.load(Ordering::Relaxed) != 0;
        if (is_seen || looks.is_multiple_of(BLIND_LOOKS)) && may_send() {
            holder.interrupt();
        }
    }
    any
}

impl Holder {
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn take(&self) -> bool {
        self.state.load(Ordering::Relaxed) == state::FREE && self.change(state::FREE, state::TAKEN)
    }

    pub fn progress(&self) {
        let last = self.progress.load(Ordering::Relaxed);
        self.progress.store(last.wrapping_add(1), Ordering::Relaxed);
    }

    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn interrupt(&self) {
        if !self.change(state::HELD, state::SENDING) {
            return;
        }
        // The entry may belong to another thread by now; that thread cannot leave before the signal has been
        // sent.
        let signal = self.signal.load(Ordering::Relaxed);
        if signal != 0 {
            self.sent.store(true, Ordering::Relaxed);
            interrupt(self.thread.load(Ordering::Relaxed), signal);
        }
        self.state.store(state::HELD, Ordering::Release);
    }

    /// Removes the thread, before its signals are unblocked.
    pub fn leave(&self) {
        for turn in 0u32.. {
            if self.change(state::HELD, state::TAKEN) {
                break;
            }
            // The sender may have been preempted.
            if turn < 100 { pause() } else { sys::sleep(50_000) }
        }
        let sent = self.sent.load(Ordering::Relaxed);
        self.state.store(state::FREE, Ordering::Release);
        if sent {
            sys::yield_now(); // what was sent arrives with the return from this call
        }
    }
}
