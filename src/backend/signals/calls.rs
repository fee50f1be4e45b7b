//! The C library's functions that set a signal's action, for SIGSEGV and SIGBUS.
//!
//! All are written in terms of `sigaction`, with the flags and masks that glibc gives them, and
//! work for any signal, so that only one original has to be found at start-up. Calls of it for
//! other signals are passed on.

use super::{DISPOSITIONS, EVER, RESETHAND, SIGINFO, SignalChain};
use crate::os::lookup::{self, Function};
use crate::os::process;
use crate::os::signal_mask::{self, Action, SignalsHeld};
use crate::os::signal_set::{change_signal_mask, signal_set};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

/// Calls the original sigaction, on which all others are built. Constructors of other libraries may
/// call before our start-up: that is still the moment to look for it.
///
/// # Safety
/// As sigaction.
unsafe fn original(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let arguments = [signal as usize, new as usize, old as usize, 0];
    // SAFETY: libc's sigaction, with arguments that are valid for it, as the caller has ensured.
    let answer = unsafe { lookup::call(lookup::original(Function::sigaction), arguments) };
    answer.map_or_else(|| fail(libc::ENOSYS), |answer| answer as c_int)
}

/// Replaces sigaction(2).
///
/// # Safety
/// As sigaction.
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let Some(chain) = SignalChain::of(signal) else {
        // SAFETY: the program's own call, passed on.
        return unsafe { pass_on_and_note(signal, new, old) };
    };
    if !EVER.load(Ordering::SeqCst) {
        // SAFETY: the program's own call, passed on.
        let answer = unsafe { original(signal, new, old) };
        // Another thread's copy may just have become the first that is shared.
        if EVER.load(Ordering::SeqCst) && process::is_ours() {
            let _held = SignalsHeld::all();
            let _lock = DISPOSITIONS.lock();
            let _ = chain.install(); // else the next copy tries again
        }
        return answer;
    }
    // The program's memory is read before, and written after, the lock: it may be bad.
    // SAFETY: null, or an action that the program lets sigaction read.
    let new = unsafe { new.as_ref() }.copied();
    let mut before = none();
    let answer = set(chain, new.as_ref(), &mut before);
    if answer == 0 && !old.is_null() {
        // SAFETY: not null, so the program lets sigaction write an action there.
        unsafe { old.write(before) };
    }
    answer
}

/// Passes on a call for another signal, and notes whether that has a handler, see `signal_mask`.
unsafe fn pass_on_and_note(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: null, or an action that the program lets sigaction read.
    let handler = unsafe { new.as_ref() }.map(|new| new.sa_sigaction);
    let is_function = handler.is_some_and(|handler| handler > libc::SIG_IGN);
    if is_function {
        signal_mask::note_handler(signal);
    }
    // SAFETY: the program's own call.
    let answer = unsafe { original(signal, new, old) };
    if is_function {
        signal_mask::note_handler(signal);
    } else if handler.is_some() && is_valid(signal) && process::is_ours() {
        signal_mask::look_at_handler(signal); // a child of vfork has a table of its own
    }
    answer
}

/// Implements sigaction for one of our two signals, with memory of our own.
fn set(chain: &SignalChain, new: Option<&libc::sigaction>, old: &mut libc::sigaction) -> c_int {
    let pass_on = |new: Option<&libc::sigaction>, old: *mut libc::sigaction| {
        let new = new.map_or(core::ptr::null(), |new| new);
        // SAFETY: null, or memory of our own.
        unsafe { original(chain.signal, new, old) }
    };
    if !process::is_ours() {
        // A child with a signal table of its own. Its inherited action may be ours.
        let answer = pass_on(new, old);
        if let Some(slot) = chain.slot(old.sa_sigaction) {
            *old = shown(&slot.program());
        }
        return answer;
    }
    let _held = SignalsHeld::all();
    let _lock = DISPOSITIONS.lock();
    let Some(slot) = Action::of(chain.signal).and_then(|now| chain.slot(now.handler)) else {
        return pass_on(new, old);
    };
    let before = slot.program();
    *old = shown(&before);
    let Some(new) = new else { return 0 };
    // The program can have got one of ours only from the kernel: it means the action that ours
    // stands for.
    if new.sa_sigaction == libc::SIG_IGN || chain.slot(new.sa_sigaction).is_some() {
        return pass_on(Some(new), core::ptr::null_mut());
    }
    // glibc adds SA_RESTORER and the kernel clears unknown flags. Store the action as the kernel reports
    // it, with the program's own flags and restorer.
    let wanted = new.sa_flags as u32 as usize;
    let mut noted = Action {
        handler: new.sa_sigaction,
        flags: wanted,
        restorer: before.restorer,
        mask: first_word(&new.sa_mask),
    };
    slot.note(&noted);
    let mut ours = *new;
    ours.sa_sigaction = slot.ours as usize;
    ours.sa_flags = (wanted & !RESETHAND | SIGINFO) as u32 as c_int;
    let answer = pass_on(Some(&ours), core::ptr::null_mut());
    match Action::of(chain.signal) {
        Some(now) if answer == 0 => {
            let own = RESETHAND | SIGINFO;
            noted.flags = now.flags & !own | wanted & own;
            (noted.restorer, noted.mask) = (now.restorer, now.mask);
            slot.note(&noted);
        }
        _ => slot.note(&before),
    }
    answer
}

/// Converts the kernel's action to the C library's form.
fn shown(action: &Action) -> libc::sigaction {
    let mut shown = none();
    shown.sa_sigaction = action.handler;
    shown.sa_flags = action.flags as u32 as c_int;
    // SAFETY: an address or 0, which is none.
    shown.sa_restorer = unsafe { core::mem::transmute::<usize, Option<_>>(action.restorer) };
    shown.sa_mask = set_of(action.mask);
    shown
}

fn none() -> libc::sigaction {
    // SAFETY: all zeros is the default action.
    unsafe { core::mem::zeroed() }
}

/// Converts a kernel set to the C library's, whose longer rest is unused.
fn set_of(signals: u64) -> libc::sigset_t {
    // SAFETY: all zeros is the empty set, and the first 8 bytes are the kernel's.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        (&raw mut set).cast::<u64>().write(signals);
        set
    }
}

fn first_word(set: &libc::sigset_t) -> u64 {
    // SAFETY: 128 bytes.
    unsafe { (&raw const *set).cast::<u64>().read() }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

const SIG_HOLD: usize = 2;

/// Signals that siginterrupt has said are to interrupt system calls.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// Sets a handler and returns the one before, as the older functions do.
fn exchange(signal: c_int, handler: usize, flags: c_int, mask: u64) -> usize {
    let (mut new, mut old) = (none(), none());
    (new.sa_sigaction, new.sa_flags, new.sa_mask) = (handler, flags, set_of(mask));
    // SAFETY: memory of our own.
    if unsafe { sigaction(signal, &new, &mut old) } == 0 { old.sa_sigaction } else { libc::SIG_ERR }
}

fn is_valid(signal: c_int) -> bool {
    (1..=64).contains(&signal)
}

/// Replaces signal(3), with BSD semantics.
///
/// # Safety
/// As signal.
pub unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    if !is_valid(signal) || handler == libc::SIG_ERR {
        fail(libc::EINVAL);
        return libc::SIG_ERR;
    }
    let own = signal_set(signal);
    let interrupts = INTERRUPTING.load(Ordering::Relaxed) & own != 0;
    exchange(signal, handler, if interrupts { 0 } else { libc::SA_RESTART }, own)
}

/// Replaces sysv_signal(3).
///
/// # Safety
/// As sysv_signal.
pub unsafe extern "C" fn sysv_signal(signal: c_int, handler: usize) -> usize {
    const SA_INTERRUPT: c_int = 0x2000_0000;
    if handler == libc::SIG_ERR {
        fail(libc::EINVAL);
        return libc::SIG_ERR;
    }
    exchange(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER | SA_INTERRUPT, 0)
}

/// Replaces sigset(3).
///
/// # Safety
/// As sigset.
pub unsafe extern "C" fn sigset(signal: c_int, handler: usize) -> usize {
    if !is_valid(signal) {
        fail(libc::EINVAL);
        return libc::SIG_ERR;
    }
    let own = signal_set(signal);
    let mut old = none();
    let hold = handler == SIG_HOLD;
    let handler_before = if hold {
        // SAFETY: memory of our own.
        match unsafe { sigaction(signal, core::ptr::null(), &mut old) } {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    } else {
        exchange(signal, handler, 0, 0)
    };
    if handler_before == libc::SIG_ERR {
        return libc::SIG_ERR;
    }
    let how = if hold { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    let before = change_signal_mask(how, own);
    if before & own != 0 { SIG_HOLD } else { handler_before }
}

/// Replaces sigignore(3).
///
/// # Safety
/// As sigignore.
pub unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    if exchange(signal, libc::SIG_IGN, 0, 0) == libc::SIG_ERR { -1 } else { 0 }
}

/// Replaces siginterrupt(3).
///
/// # Safety
/// As siginterrupt.
pub unsafe extern "C" fn siginterrupt(signal: c_int, interrupt: c_int) -> c_int {
    let mut action = none();
    // SAFETY: memory of our own.
    if unsafe { sigaction(signal, core::ptr::null(), &mut action) } != 0 {
        return -1;
    }
    if interrupt != 0 {
        INTERRUPTING.fetch_or(signal_set(signal), Ordering::Relaxed);
        action.sa_flags &= !libc::SA_RESTART;
    } else {
        INTERRUPTING.fetch_and(!signal_set(signal), Ordering::Relaxed);
        action.sa_flags |= libc::SA_RESTART;
    }
    // SAFETY: memory of our own.
    unsafe { sigaction(signal, &action, core::ptr::null_mut()) }
}
