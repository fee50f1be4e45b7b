//! Functions of the C library for which our workers leave: those that work only in a process with
//! one thread, and those that change the rights of all threads. The C library does not know our
//! threads, so they would keep the old rights.

use crate::os::lookup::{self, Function};
use crate::runtime;
use core::ffi::{c_int, c_void};

macro_rules! passed_on {
    ($($before:ident: $($name:ident)*;)*) => { $($(
        /// Takes as many words as the longest of these functions takes arguments.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(first: usize, second: usize, third: usize) -> c_int {
            runtime::$before();
            // SAFETY: the program's own call, passed on.
            unsafe { pass_on(Function::$name, first, second, third) }
        }
    )*)* };
}

passed_on! {
    before_being_alone: unshare setns;
    before_rights_change: setuid setgid seteuid setegid setreuid setregid setresuid setresgid
        setgroups initgroups capset;
}

unsafe fn pass_on(function: Function, first: usize, second: usize, third: usize) -> c_int {
    type RightsFn = unsafe extern "C" fn(usize, usize, usize) -> c_int;
    let function = lookup::original(function);
    if function.is_null() {
        // SAFETY: the address of this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    }
    // SAFETY: a function of at most these arguments, none of them wider than a word.
    unsafe { core::mem::transmute::<*mut c_void, RightsFn>(function)(first, second, third) }
}
