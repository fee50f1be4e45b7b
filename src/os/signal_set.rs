//! Sets of signals in the kernel's layout, and the calls that block and list them.

use super::sys::{NoFilter, SysResult, syscall};

/// The two signals that glibc uses itself, for cancellation and setuid. No program can block them, so a mask
/// with both is ours.
pub const OF_THE_C_LIBRARY: u64 = signal_set(32) | signal_set(33);

/// Returns the set of one signal, in the kernel's layout.
pub const fn signal_set(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Returns the pending signals of this thread and of the process, of those that this thread blocks.
pub fn pending(_: NoFilter) -> u64 {
    let mut signals = 0u64;
    // SAFETY: the kernel writes 8 bytes, the size of `signals`.
    unsafe { syscall!(SYS_rt_sigpending, &raw mut signals, 8) };
    signals & !OF_THE_C_LIBRARY
}

/// Blocks a signal for this thread.
pub fn block_signal(signal: i32) {
    change_signal_mask(libc::SIG_BLOCK, signal_set(signal));
}

/// Changes the mask like sigprocmask; returns the signals that were blocked before.
pub fn change_signal_mask(how: i32, signals: u64) -> u64 {
    let mut before = 0;
    signal_mask(how, &signals, &mut before);
    before
}

pub(super) fn signal_mask(how: i32, mask: &u64, before: *mut u64) -> SysResult {
    // SAFETY: `mask` is readable, `before` null or writable, both of the kernel's 8 bytes.
    unsafe { syscall!(SYS_rt_sigprocmask, how, &raw const *mask, before, 8) }
}
