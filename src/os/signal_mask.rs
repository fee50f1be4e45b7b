//! Which signals come to a thread: holding them while a copy is under way, and letting those of
//! bad pages through.

use super::put_off;
use super::sys::{SysResult, syscall};

/// All 64 signals, the C library's own two included.
const EVERY_SIGNAL: u64 = !0;

/// What a bad page raises.
const FAULTS: u64 = signal_set(libc::SIGSEGV) | signal_set(libc::SIGBUS);

/// While this lives, some signals do not come to this thread.
pub struct SignalsHeld {
    before: u64,
    /// SIGSEGV and SIGBUS still come.
    but_faults: bool,
}

impl SignalsHeld {
    /// Holds all of them: no handler can jump out of a copy that workers still carry on.
    pub fn all() -> Option<Self> {
        Self::these(EVERY_SIGNAL, false)
    }

    /// The same while a copy is shared: our own handler must hear of bad pages, as far as the
    /// program itself would.
    pub fn all_but_faults() -> Option<Self> {
        Self::these(EVERY_SIGNAL & !FAULTS, true)
    }

    pub(super) fn these(signals: u64, but_faults: bool) -> Option<Self> {
        let mut before = 0;
        let answer = signal_mask(libc::SIG_BLOCK, &signals, &mut before);
        // Made only then, because dropping it sets a mask.
        (answer == 0).then(|| Self { before, but_faults })
    }

    fn release(&self) {
        signal_mask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut());
    }

    /// What was put off comes together with what was held.
    #[cold]
    fn hold_what_was_put_off() {
        signal_mask(libc::SIG_BLOCK, &FAULTS, core::ptr::null_mut());
        put_off::send_again();
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // Before the first handler runs, which may never come back here.
        if self.but_faults && put_off::is_any() {
            Self::hold_what_was_put_off();
        }
        self.release();
        // One may have come in between.
        if self.but_faults && put_off::is_any() {
            Self::hold_what_was_put_off();
            self.release();
        }
    }
}

/// While this lives, a worker hears of bad pages. At other times it blocks these two signals as
/// all others, so that one sent to the process is left to the program's threads.
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
        if put_off::is_any() {
            put_off::send_again();
        }
    }
}

/// The set of one signal, as the kernel has it.
pub const fn signal_set(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Blocks a signal for this thread.
pub fn block_signal(signal: i32) {
    change_signal_mask(libc::SIG_BLOCK, signal_set(signal));
}

/// As sigprocmask; answers the signals that were blocked before.
pub fn change_signal_mask(how: i32, signals: u64) -> u64 {
    let mut before = 0;
    signal_mask(how, &signals, &mut before);
    before
}

fn signal_mask(how: i32, mask: &u64, before: *mut u64) -> SysResult {
    // SAFETY: `mask` is readable, `before` null or writable, both of the kernel's 8 bytes.
    unsafe {
        let (mask, before) = (&raw const *mask as usize, before as usize);
        syscall(libc::SYS_rt_sigprocmask, [how as usize, mask, before, 8, 0, 0])
    }
}

/// Whether a signal has its default action, as far as the kernel knows.
pub fn has_default_action(signal: i32) -> bool {
    // The kernel's struct sigaction: handler, flags, restorer, mask.
    let mut action = [usize::MAX, 0, 0, 0];
    // SAFETY: a null new action only reads the old one, into 32 writable bytes.
    unsafe {
        let at = &raw mut action as usize;
        syscall(libc::SYS_rt_sigaction, [signal as usize, 0, at, 8, 0, 0]);
    }
    action[0] == libc::SIG_DFL
}
