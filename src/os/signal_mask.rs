//! Holds signals while a copy is in flight, except those that bad pages raise.

use super::deferred;
use super::holders::{self, Holder};
use super::signal_set::{OF_THE_C_LIBRARY, pending, signal_mask, signal_set};
use super::sys::{self, NoFilter, syscall};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// All 64 signals, the C library's own two included.
const EVERY_SIGNAL: u64 = !0;

/// Signals that a bad page raises.
const FAULTS: u64 = signal_set(libc::SIGSEGV) | signal_set(libc::SIGBUS);

/// Signals that the program has a handler for; all signals before the first look. They are held, because a
/// handler could jump out of a copy on which workers still run. A default action cannot, and it has to be
/// able to end a process that hangs on a page.
static HANDLED: AtomicU64 = AtomicU64::new(!0);
static LOOKED: AtomicBool = AtomicBool::new(false);

/// Notes that the program handles a signal: before the kernel knows, and again afterwards, so that
/// a concurrent look at the kernel's table cannot undo it.
pub fn note_handler(signal: i32) {
    if (1..=64).contains(&signal) {
        HANDLED.fetch_or(signal_set(signal), Ordering::SeqCst);
    }
}

/// Asks the kernel whether a signal still has a handler.
pub fn look_at_handler(signal: i32) {
    let set = signal_set(signal);
    if HANDLED.load(Ordering::Relaxed) & set != 0 && !has_handler(signal) {
        HANDLED.fetch_and(!set, Ordering::SeqCst);
        if has_handler(signal) {
            HANDLED.fetch_or(set, Ordering::SeqCst);
        }
    }
}

/// Looks at all signals: handlers may be set by bare system calls.
#[cold]
pub fn look_at_handlers() {
    for signal in 1..=64 {
        if has_handler(signal) {
            note_handler(signal);
        } else {
            look_at_handler(signal);
        }
    }
    LOOKED.store(true, Ordering::Relaxed);
}

/// Returns the signals that are held while workers share a copy.
pub fn handled() -> u64 {
    if !LOOKED.load(Ordering::Relaxed) {
        look_at_handlers();
    }
    HANDLED.load(Ordering::Relaxed) | OF_THE_C_LIBRARY
}

/// Guard that holds some signals of this thread.
pub struct SignalsHeld {
    before: u64,
    /// Set if SIGSEGV and SIGBUS are not held and may have been deferred.
    but_faults: bool,
    holder: Option<&'static Holder>,
    since: u64,
}

/// Ticks (some milliseconds) after which a shared copy ends early if a signal is pending.
const HOLD_TICKS: u64 = 10_000_000;

impl SignalsHeld {
    /// Holds all signals, for moments in which no handler may run.
    pub fn all() -> Option<Self> {
        Self::these(EVERY_SIGNAL, false)
    }

    /// Holds signals with a handler, and SIGSEGV and SIGBUS, during system calls that workers share.
    pub fn handled() -> Option<Self> {
        Self::these(handled() | FAULTS, false)
    }

    /// Holds signals with a handler while a copy is shared, but not SIGSEGV and SIGBUS: our own handler must
    /// receive those of bad pages, unless the program blocks them. A thread that hangs on a page is
    /// interrupted when a signal is pending for it, see `holders`.
    pub fn while_copying() -> Option<Self> {
        let signals = handled() & !FAULTS;
        let mut held = Self::these(signals, true)?;
        if signals & !held.before & !OF_THE_C_LIBRARY != 0 {
            held.holder = holders::enter(held.before);
            held.since = sys::ticks();
        }
        Some(held)
    }

    pub(super) fn these(signals: u64, but_faults: bool) -> Option<Self> {
        let mut before = 0;
        let answer = signal_mask(libc::SIG_BLOCK, &signals, &mut before);
        // Made only on success, because dropping it sets a mask.
        (answer == 0).then(|| Self { before, but_faults, holder: None, since: 0 })
    }

    /// Returns whether a thread has to watch over this one.
    pub fn is_watched(&self) -> bool {
        self.holder.is_some()
    }

    /// Notes that this thread does not hang. Returns whether the copy is to end because a signal has been
    /// held for too long.
    pub fn must_end(&self) -> bool {
        let Some(holder) = self.holder else { return false };
        holder.progress();
        let is_long = sys::ticks().wrapping_sub(self.since) > HOLD_TICKS;
        // Under a filter pending signals cannot be read, so one is assumed.
        let waits = || NoFilter::look().is_none_or(|allowed| pending(allowed) & !self.before != 0);
        holder.is_interrupted() || is_long && waits()
    }

    fn release(&self) {
        signal_mask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut());
    }

    /// Sends deferred signals again, blocked, so that they arrive together with held ones.
    #[cold]
    fn send_deferred() {
        signal_mask(libc::SIG_BLOCK, &FAULTS, core::ptr::null_mut());
        deferred::send_again(deferred::send_to_oneself);
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // Leave before signals are unblocked: a handler that runs then may never return here.
        if let Some(holder) = self.holder {
            holder.leave();
        }
        if self.but_faults && deferred::is_any() {
            Self::send_deferred();
        }
        self.release();
        // A signal may have been deferred between the check and the release.
        if self.but_faults && deferred::is_any() {
            Self::send_deferred();
            self.release();
        }
    }
}

/// Guard that lets a worker receive SIGSEGV and SIGBUS. At other times the worker blocks all signals, so that
/// those sent to the process reach the program's threads.
pub struct FaultsHeard {
    before: u64,
}

impl FaultsHeard {
    pub fn now() -> Option<Self> {
        let mut before = 0;
        (signal_mask(libc::SIG_UNBLOCK, &FAULTS, &mut before) == 0).then(|| Self { before })
    }
}

impl Drop for FaultsHeard {
    fn drop(&mut self) {
        signal_mask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut());
        if deferred::is_any() {
            deferred::send_again(deferred::send_to_process);
        }
    }
}

/// The kernel's struct sigaction.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    pub handler: usize,
    pub flags: usize,
    pub restorer: usize,
    pub mask: u64,
}

impl Action {
    pub const NONE: Self = Self { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    /// Reads the kernel's action for a signal.
    pub fn of(signal: i32) -> Option<Self> {
        let mut action = Self::NONE;
        // SAFETY: without a new action the kernel only writes the old one, 32 bytes.
        let answer = unsafe { syscall!(SYS_rt_sigaction, signal, 0, &raw mut action, 8) };
        (answer == 0).then_some(action)
    }

    pub fn is_function(&self) -> bool {
        self.handler > libc::SIG_IGN
    }
}

/// Returns whether a signal calls a function; true if the kernel does not report it.
fn has_handler(signal: i32) -> bool {
    Action::of(signal).is_none_or(|action| action.is_function())
}
