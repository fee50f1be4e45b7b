//! Functions that change what may be done with memory. The kernel tells us when memory is unmapped
//! but not of these, so registrations with the graphics card end before and after them. The
//! program's own calls to register memory are here too: the driver would refuse them where we have
//! registered the same memory.

use crate::backend::gpu::{GPU, NO_DRIVER, driver_function};
use crate::os::lookup::{self, Function};
use crate::os::{huge_pages, sys};
use core::ffi::{c_int, c_void};

type MappingFn = unsafe extern "C" fn(usize, usize, usize, usize) -> c_int;

/// Passes a call of the program on to the next definition after ours. Before start-up, when an
/// allocator's constructor may call, that is the kernel's.
unsafe fn pass_on(function: Function, arguments: [usize; 4]) -> c_int {
    let [start, len, third, fourth] = arguments;
    let original = lookup::found(function);
    if !original.is_null() {
        // SAFETY: the program's own call, passed on.
        return unsafe {
            core::mem::transmute::<*mut c_void, MappingFn>(original)(start, len, third, fourth)
        };
    }
    let number = match function {
        Function::mprotect => libc::SYS_mprotect,
        Function::pkey_mprotect => libc::SYS_pkey_mprotect,
        _ => libc::SYS_madvise,
    };
    // SAFETY: the program's own call, and the address of this thread's errno.
    unsafe {
        match sys::syscall(number, [start, len, third, fourth, 0, 0]) as c_int {
            answer @ 0.. => answer,
            error => {
                *libc::__errno_location() = -error;
                -1
            }
        }
    }
}

/// Like `pass_on`, for a call after which memory is not what it was.
unsafe fn change(function: Function, arguments: [usize; 4]) -> c_int {
    let [start, len, ..] = arguments;
    GPU.memory_changes(start, len);
    // SAFETY: the caller's promise.
    let answer = unsafe { pass_on(function, arguments) };
    GPU.memory_changes(start, len);
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(start: usize, len: usize, protection: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { change(Function::mprotect, [start, len, protection, 0]) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pkey_mprotect(start: usize, len: usize, rights: usize, key: usize) -> c_int {
    GPU.end_for_keys();
    // SAFETY: the program's own call.
    unsafe { change(Function::pkey_mprotect, [start, len, rights, key]) }
}

/// The kernel tells us of advice that takes pages away, but before they go. It does not tell us of
/// guard pages (MADV_GUARD_INSTALL) at all.
#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(start: usize, len: usize, advice: usize) -> c_int {
    const GUARD_INSTALL: i32 = 102;
    let takes_away = [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_REMOVE, GUARD_INSTALL];
    if advice as i32 == libc::MADV_NOHUGEPAGE {
        huge_pages::refuse();
    }
    // SAFETY: the program's own call.
    unsafe {
        match takes_away.contains(&(advice as i32)) {
            true => change(Function::madvise, [start, len, advice, 0]),
            false => pass_on(Function::madvise, [start, len, advice, 0]),
        }
    }
}

macro_rules! registration {
    ($($name:ident: $cname:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(start: usize, len: usize, flags: usize) -> c_int {
            GPU.let_go(start, len);
            match driver_function(Function::$name, $cname) {
                // SAFETY: the program's own call, passed on.
                Some(function) => unsafe {
                    core::mem::transmute::<*mut c_void, MappingFn>(function)(start, len, flags, 0)
                },
                None => NO_DRIVER,
            }
        }
    )* };
}

registration! {
    cuMemHostRegister: c"cuMemHostRegister";
    cuMemHostRegister_v2: c"cuMemHostRegister_v2";
}

/// Whatever the program registers and unregisters itself is not ours.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostUnregister(start: usize) -> c_int {
    GPU.let_go(start, 1);
    match driver_function(Function::cuMemHostUnregister, c"cuMemHostUnregister") {
        // SAFETY: the program's own call, passed on.
        Some(function) => unsafe {
            core::mem::transmute::<*mut c_void, MappingFn>(function)(start, 0, 0, 0)
        },
        None => NO_DRIVER,
    }
}
