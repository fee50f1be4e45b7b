//! Functions that change access to memory. The kernel reports unmapping to us but not these, so
//! registrations with the graphics card are dropped before and after them. The program's own calls
//! to register memory are here too: the driver would refuse them where we have registered the same
//! memory. mremap is here because of huge pages.

use crate::backend::gpu::{GPU, NO_DRIVER, driver_function};
use crate::backend::libc::pass_to_kernel;
use crate::os::huge_pages;
use crate::os::lookup::{self, Function};
use core::ffi::{CStr, c_int};

/// Passes a call of the program on to the next definition after ours. Before start-up, when an
/// allocator's constructor may call, that is the kernel's.
unsafe fn pass_on(function: Function, arguments: [usize; 4]) -> c_int {
    let number = match function {
        Function::mprotect => libc::SYS_mprotect,
        Function::pkey_mprotect => libc::SYS_pkey_mprotect,
        _ => libc::SYS_madvise,
    };
    let [start, len, third, fourth] = arguments;
    // SAFETY: the program's own call, passed on.
    unsafe {
        lookup::call(lookup::found(function), arguments)
            .unwrap_or_else(|| pass_to_kernel(number, [start, len, third, fourth, 0, 0]))
            as c_int
    }
}

/// Like `pass_on`, for a call that changes memory.
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

/// Passes on madvise. The kernel reports advice that removes pages, but before they go, and does
/// not report guard pages (MADV_GUARD_INSTALL) at all.
#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(start: usize, len: usize, advice: usize) -> c_int {
    const GUARD_INSTALL: i32 = 102;
    let takes_away = [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_REMOVE, GUARD_INSTALL];
    match advice as i32 {
        libc::MADV_HUGEPAGE => huge_pages::note_request(),
        libc::MADV_NOHUGEPAGE => huge_pages::refuse(),
        _ => {}
    }
    let arguments = [start, len, advice, 0];
    // SAFETY: the program's own call.
    unsafe {
        match advice as i32 {
            libc::MADV_COLLAPSE => {
                huge_pages::collapse(start, len, || pass_on(Function::madvise, arguments))
            }
            advice if takes_away.contains(&advice) => change(Function::madvise, arguments),
            _ => pass_on(Function::madvise, arguments),
        }
    }
}

/// The last argument is anything where the program has given four.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    start: usize,
    len: usize,
    new: usize,
    flags: usize,
    to: usize,
) -> isize {
    // SAFETY: the program's own call, passed on.
    huge_pages::remap(start, len, || unsafe {
        lookup::call(lookup::found(Function::mremap), [start, len, new, flags, to])
            .unwrap_or_else(|| pass_to_kernel(libc::SYS_mremap, [start, len, new, flags, to, 0]))
    })
}

/// Passes a call on to the driver, once no registration of ours is in its way.
unsafe fn register(which: Function, name: &CStr, start: usize, len: usize, flags: usize) -> c_int {
    GPU.let_go(start, len.max(1));
    let function = driver_function(which, name).unwrap_or(core::ptr::null_mut());
    // SAFETY: the program's own call, passed on.
    let answer = unsafe { lookup::call(function, [start, len, flags, 0]) };
    answer.map_or(NO_DRIVER, |answer| answer as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister(start: usize, len: usize, flags: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { register(Function::cuMemHostRegister, c"cuMemHostRegister", start, len, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister_v2(start: usize, len: usize, flags: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { register(Function::cuMemHostRegister_v2, c"cuMemHostRegister_v2", start, len, flags) }
}

/// Memory that the program registers and unregisters itself is not ours.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostUnregister(start: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { register(Function::cuMemHostUnregister, c"cuMemHostUnregister", start, 0, 0) }
}
