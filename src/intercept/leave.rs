//! Functions that end a process without running destructors: a report is written first. Children of
//! a fork usually leave by `_exit`.

use crate::os::lookup::{self, Function};
use crate::os::signal_mask::Action;
use crate::os::sys;
use crate::runtime;
use crate::stats::live::ended;
use core::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.fork")] // see `entry`
extern "C" fn _exit(status: c_int) -> ! {
    runtime::before_leaving(ended::AT_ONCE, Some(status));
    sys::exit_group(status)
}

#[unsafe(no_mangle)]
extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// A handler of the program may jump out of abort: then the process does not end here.
#[unsafe(no_mangle)]
unsafe extern "C" fn abort() -> ! {
    if Action::of(libc::SIGABRT).is_some_and(|action| action.handler == libc::SIG_DFL) {
        runtime::before_leaving(ended::ABORT, None);
    }
    let next = lookup::original(Function::abort);
    if !next.is_null() {
        // SAFETY: the function of that name.
        unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> !>(next)() };
    }
    sys::exit_group(128 + libc::SIGABRT)
}
