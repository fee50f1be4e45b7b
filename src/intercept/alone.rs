//! Functions of the C library that dismiss our workers first: those that work only in a process
//! with one thread, those that change the rights of all threads (the C library does not know ours,
//! which would keep the old rights), and the one that makes a thread, at the limit of threads.

use crate::backend::threads::workers::{self, Dismissal};
use crate::ipc;
use crate::os::lookup::{self, Function};
use core::ffi::c_int;

macro_rules! passed_on {
    ($($why:ident: $($name:ident)*;)*) => { $($(
        /// Takes as many words as the longest of these functions takes arguments.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(first: usize, second: usize, third: usize) -> c_int {
            workers::dismiss(Dismissal::$why);
            // SAFETY: the program's own call, passed on.
            let call = || unsafe { pass_on(Function::$name, [first, second, third, 0]) };
            if Dismissal::$why == Dismissal::Alone { without_service_thread(call) } else { call() }
        }
    )*)* };
}

passed_on! {
    Alone: unshare setns;
    RightsChange: setuid setgid seteuid setegid setreuid setregid setresuid setresgid
        setgroups initgroups capset;
}

/// Makes a call while no thread serves connections.
fn without_service_thread(call: impl FnOnce() -> c_int) -> c_int {
    ipc::step_aside();
    let answer = call();
    // SAFETY: the address of this thread's errno.
    let errno = unsafe { &mut *libc::__errno_location() };
    let kept = *errno;
    ipc::step_back();
    *errno = kept;
    answer
}

/// The limit of threads (RLIMIT_NPROC, pids.max) is the program's: workers make room for its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: usize,
    attributes: usize,
    start: usize,
    argument: usize,
) -> c_int {
    let arguments = [thread, attributes, start, argument];
    // SAFETY: the program's own call, passed on.
    let call = || unsafe { pass_on(Function::pthread_create, arguments) };
    match call() {
        libc::EAGAIN if workers::dismiss(Dismissal::ThreadLimit) => call(),
        answer => answer,
    }
}

unsafe fn pass_on(function: Function, arguments: [usize; 4]) -> c_int {
    let mut next = lookup::original(function);
    if next.is_null() {
        // Of a libpthread behind libc, which is never unloaded.
        next = lookup::behind_libc(function);
        lookup::note(function, next);
    }
    // SAFETY: the program's own call; the address of this thread's errno.
    unsafe {
        lookup::call(next, arguments).unwrap_or_else(|| {
            *libc::__errno_location() = libc::ENOSYS;
            -1
        }) as c_int
    }
}
