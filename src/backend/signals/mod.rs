//! Our handler in front of the program's, for the two signals that report a bad page.
//!
//! The idea is that of the JVM's libjsig and of the Linux kernel's exception tables:
//!
//! ```text
//! SIGSEGV or SIGBUS:
//!     raised inside a copy loop of ours -> the loop ends there, with "bad page" (copy_loop)
//!     anything else                     -> the program's action, as if the kernel had called it
//! ```
//!
//! So a bad page kills no thread while a copy is shared: the worker or caller that meets it marks
//! the piece as failed, and when no thread writes any more the caller copies that part again with
//! libc's memmove. Then the fault comes in the program's thread, in memcpy, as without us.
//!
//! - `install_handlers` is called for every shared copy. It costs two system calls that only read;
//!   a program that has set a handler past us is noticed there.
//! - Ours is installed with the program's own flags and mask, so that the program's handler
//!   finds the stack, the mask and the registers that the kernel would have given it: `handler`
//!   jumps to it. It stands in front of the default action too, so that a core file shows the
//!   fault in the program's thread. It does not stand in front of SIG_IGN, which exec keeps.
//! - `calls` are the C library's functions as the program sees them: it gets back what it set.
//!   Before the first shared copy, and for all other signals, they only pass on, and note which
//!   signals have a handler.
//!
//! Reading what the program has set, and changing it, takes a lock with all signals blocked: no
//! handler can interrupt the holder, which makes these functions async-signal-safe. A child with
//! our memory (vfork) or with a copy of it that knows nothing (a bare fork) has a signal table of
//! its own in the kernel: there the lock is not taken and ours is not changed.

pub mod calls;
mod handler;
#[cfg(test)]
mod tests;

pub use handler::{POOL, WorkerPool};

use super::Refused;
use crate::os::lock::Lock;
use crate::os::signal_mask::{Action, SignalsHeld};
use crate::os::sys::syscall;
use crate::os::{arch, deferred, holders, process};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Value of SA_RESETHAND; libc's is a negative int.
const RESETHAND: usize = 0x8000_0000;
const SIGINFO: usize = libc::SA_SIGINFO as usize;
/// Value of SA_RESTORER, which libc lacks and x86-64 kernels require.
const RESTORER: usize = 0x0400_0000;

/// Sets an action in the kernel and returns the one before.
fn exchange(signal: i32, new: &Action) -> Result<Action, Refused> {
    let mut before = Action::NONE;
    let (new, old) = (&raw const *new, &raw mut before);
    // SAFETY: both live through the call. What is installed is the program's own action, or ours in
    // front of it.
    let answer = unsafe { syscall!(SYS_rt_sigaction, signal, new, old, 8) };
    if answer == 0 { Ok(before) } else { Err(Refused::System) }
}

/// Our handlers for one of the two signals, and the program's behind them.
#[repr(C)]
struct SignalChain {
    slots: [HandlerSlot; SLOTS],
    signal: i32,
    /// Slot that was used last.
    last: AtomicUsize,
}

/// One handler of ours, and the program's action behind it. There are several for a signal, because a
/// program may bypass us (a library opened with RTLD_DEEPBIND, a program that has opened us with dlopen):
/// it may read our handler's address, set a handler of its own, and call or restore the saved address
/// later. The saved address must keep invoking the same handler, so each handler installed behind our
/// back gets its own slot.
#[repr(C)]
struct HandlerSlot {
    /// Function for signals that are not ours: the program's, or `handler::unusual` for special
    /// cases. One word, so the handler never sees half a change.
    next: AtomicUsize,
    /// Our handler.
    ours: unsafe extern "C" fn(),
    /// Actions that the program has set, the last one in use. A child of vfork reads without the
    /// lock, so each change uses another entry.
    entries: [Disposition; 4],
    current: AtomicUsize,
}

const SLOTS: usize = 8;

struct Disposition {
    handler: AtomicUsize,
    flags: AtomicUsize,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

impl Disposition {
    const fn new() -> Self {
        let (handler, flags) = (AtomicUsize::new(libc::SIG_DFL), AtomicUsize::new(0));
        Self { handler, flags, restorer: AtomicUsize::new(0), mask: AtomicU64::new(0) }
    }
}

static SEGV: SignalChain = SignalChain::new(libc::SIGSEGV, handler::ON_SIGSEGV);
static BUS: SignalChain = SignalChain::new(libc::SIGBUS, handler::ON_SIGBUS);

/// Held while the stored actions of the program change: with all signals blocked, and only in the
/// process whose memory this is. The hook only tries it.
static DISPOSITIONS: Lock<()> = Lock::new(());

/// Set when ours is first put in front, or about to be.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, and every fork reads
static EVER: AtomicBool = AtomicBool::new(false);

/// Puts our handler in front of the program's where it is not. Before every shared copy: only
/// then does a bad page end a copy loop. Keeps the hook's law.
pub fn install_handlers() -> Result<(), Refused> {
    for chain in [&SEGV, &BUS] {
        let now = Action::of(chain.signal).ok_or(Refused::System)?;
        if chain.needs_no_change(&now) {
            continue;
        }
        if !process::is_ours() {
            return Err(Refused::NotOurs);
        }
        let _held = SignalsHeld::all().ok_or(Refused::System)?;
        let _lock = DISPOSITIONS.try_lock().ok_or(Refused::Busy)?;
        chain.install()?;
    }
    Ok(())
}

/// Returns whether the program would notice a fault: it handles SIGSEGV or SIGBUS. True if the
/// kernel does not report it.
pub fn program_handles_faults() -> bool {
    [&SEGV, &BUS].into_iter().any(|chain| match Action::of(chain.signal) {
        Some(now) => chain.slot(now.handler).map_or(now, HandlerSlot::program).is_function(),
        None => true,
    })
}

/// Returns whether ours is in front of both now.
pub fn handlers_are_installed() -> bool {
    [&SEGV, &BUS]
        .into_iter()
        .all(|chain| Action::of(chain.signal).is_some_and(|now| chain.slot(now.handler).is_some()))
}

/// Releases the lock in the child of a fork, whose holder is not here.
pub fn forget_after_fork() {
    if EVER.load(Ordering::Relaxed) {
        DISPOSITIONS.renew();
        deferred::forget_after_fork();
        holders::forget_after_fork();
    }
}

impl SignalChain {
    const fn new(signal: i32, ours: [unsafe extern "C" fn(); SLOTS]) -> Self {
        let mut slots = [const { HandlerSlot::new(handler::unusual) }; SLOTS];
        let mut slot = 0;
        while slot < SLOTS {
            slots[slot].ours = ours[slot];
            slot += 1;
        }
        Self { slots, signal, last: AtomicUsize::new(0) }
    }

    fn of(signal: i32) -> Option<&'static Self> {
        [&SEGV, &BUS].into_iter().find(|chain| chain.signal == signal)
    }

    /// Returns the slot of this handler, if it is ours.
    fn slot(&self, handler: usize) -> Option<&HandlerSlot> {
        self.slots.iter().find(|slot| slot.ours as usize == handler)
    }

    fn needs_no_change(&self, now: &Action) -> bool {
        now.handler == libc::SIG_IGN || self.slot(now.handler).is_some()
    }

    /// Installs a handler of ours in front of the program's. Under the lock.
    fn install(&self) -> Result<(), Refused> {
        // Before looking at the current action: see `calls::sigaction`.
        EVER.store(true, Ordering::SeqCst);
        let mut now = Action::of(self.signal).ok_or(Refused::System)?;
        if self.needs_no_change(&now) {
            return Ok(());
        }
        // Repeated only if a thread has set something past us in between.
        for _ in 0..8 {
            let slot = self.slot_for(&now);
            let before = exchange(self.signal, &slot.in_front_of(&now))?;
            if before == now || self.slot(before.handler).is_some() {
                return Ok(());
            }
            if before.handler == libc::SIG_IGN {
                return exchange(self.signal, &before).map(drop);
            }
            now = before;
        }
        Err(Refused::Busy)
    }

    /// Returns the slot that has had this action before, or the least recently used one.
    fn slot_for(&self, action: &Action) -> &HandlerSlot {
        if let Some(slot) = self.slots.iter().find(|slot| slot.matches(action)) {
            return slot;
        }
        let number = (self.last.load(Ordering::Relaxed) + 1) % SLOTS;
        self.last.store(number, Ordering::Relaxed);
        self.slots[number].note(action);
        &self.slots[number]
    }
}

impl HandlerSlot {
    const fn new(ours: unsafe extern "C" fn()) -> Self {
        let (next, current) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { next, ours, entries: [const { Disposition::new() }; 4], current }
    }

    fn matches(&self, action: &Action) -> bool {
        self.next.load(Ordering::Relaxed) != 0 && self.program() == *action
    }

    /// Returns the action that the program has set.
    fn program(&self) -> Action {
        let entry = &self.entries[self.current.load(Ordering::Acquire)];
        Action {
            handler: entry.handler.load(Ordering::Relaxed),
            flags: entry.flags.load(Ordering::Relaxed),
            restorer: entry.restorer.load(Ordering::Relaxed),
            mask: entry.mask.load(Ordering::Relaxed),
        }
    }

    /// Stores the action that the program has set. Under the lock.
    fn note(&self, action: &Action) {
        let next = (self.current.load(Ordering::Relaxed) + 1) % self.entries.len();
        let entry = &self.entries[next];
        entry.handler.store(action.handler, Ordering::Relaxed);
        entry.flags.store(action.flags, Ordering::Relaxed);
        entry.restorer.store(action.restorer, Ordering::Relaxed);
        entry.mask.store(action.mask, Ordering::Relaxed);
        self.current.store(next, Ordering::Release);
        let plain = action.is_function() && action.flags & RESETHAND == 0;
        let unusual = handler::unusual as *const () as usize;
        self.next.store(if plain { action.handler } else { unusual }, Ordering::Release);
    }

    /// Returns our action, with the program's flags and mask. It needs the siginfo, and
    /// SA_RESETHAND must not remove ours: `handler::unusual` implements it.
    fn in_front_of(&self, program: &Action) -> Action {
        let mut action = *program;
        action.handler = self.ours as usize;
        action.flags = action.flags & !RESETHAND | SIGINFO;
        if (action.flags & RESTORER == 0 || action.restorer == 0)
            && let Some(restorer) = arch::restorer()
        {
            action.flags |= RESTORER;
            action.restorer = restorer;
        }
        action
    }
}
