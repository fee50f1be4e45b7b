//! The functions that set a signal's action. SIGSEGV and SIGBUS go to `backend::signals`; for all
//! others the entry jumps to the original. No frame is made and no argument touched.

use crate::backend::signals::calls::{self, ORIGINAL};
use core::arch::naked_asm;

macro_rules! entry {
    ($($name:ident),*) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "cmp edi, {segv}",
                "je {ours}",
                "cmp edi, {bus}",
                "je {ours}",
                "jmp qword ptr [rip + {original}]",
                segv = const libc::SIGSEGV,
                bus = const libc::SIGBUS,
                ours = sym calls::sigaction,
                original = sym ORIGINAL,
            )
        }
    )* };
}

entry! { sigaction, __sigaction }

macro_rules! by_sigaction {
    ($($name:ident to $function:ident),* $(,)?) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!("jmp {ours}", ours = sym calls::$function)
        }
    )* };
}

by_sigaction! {
    signal to signal,
    ssignal to signal,
    bsd_signal to signal,
    sysv_signal to sysv_signal,
    __sysv_signal to sysv_signal,
    sigset to sigset,
    sigignore to sigignore,
    siginterrupt to siginterrupt,
}
