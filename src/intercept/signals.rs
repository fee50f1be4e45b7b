//! The functions that set a signal's action: SIGSEGV and SIGBUS are `signals`' business, for
//! the others the original is jumped to. No frame, no argument touched.

use crate::backend::signals::calls::{self, ORIGINALS, SignalCall};
use core::arch::naked_asm;

macro_rules! entry {
    ($($name:ident: $call:ident to $function:ident),* $(,)?) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "cmp edi, {segv}",
                "je {ours}",
                "cmp edi, {bus}",
                "je {ours}",
                "jmp qword ptr [rip + {originals} + {original}]",
                segv = const libc::SIGSEGV,
                bus = const libc::SIGBUS,
                ours = sym calls::$function,
                originals = sym ORIGINALS,
                original = const SignalCall::$call as usize * size_of::<usize>(),
            )
        }
    )* };
}

entry! {
    sigaction: Sigaction to sigaction,
    __sigaction: Sigaction to sigaction,
    signal: Signal to signal,
    ssignal: Signal to signal,
    bsd_signal: Signal to signal,
    sysv_signal: SysvSignal to sysv_signal,
    __sysv_signal: SysvSignal to sysv_signal,
    sigset: Sigset to sigset,
    sigignore: Sigignore to sigignore,
    siginterrupt: Siginterrupt to siginterrupt,
}
