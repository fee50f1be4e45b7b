//! The functions that set a signal's action: see `backend::signals`.

use crate::backend::signals::calls;
use crate::os::arch;
use core::arch::naked_asm;

macro_rules! by_sigaction {
    ($($name:ident to $function:ident),* $(,)?) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                concat!(arch::jump!(), " {ours}"),
                ".cfi_endproc",
                ours = sym calls::$function,
            )
        }
    )* };
}

by_sigaction! {
    sigaction to sigaction,
    __sigaction to sigaction,
    signal to signal,
    ssignal to signal,
    bsd_signal to signal,
    sysv_signal to sysv_signal,
    __sysv_signal to sysv_signal,
    sigset to sigset,
    sigignore to sigignore,
    siginterrupt to siginterrupt,
}
