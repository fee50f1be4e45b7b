//! Functions that change access to memory. The kernel reports unmapping to us but not these, so engines
//! that have noted the memory hear of it before and after them. mremap is here because of huge pages.

use crate::backend::ENGINES;
use crate::backend::libc::pass_to_kernel;
use crate::os::huge_pages;
use crate::os::lookup::{self, Function};
use crate::os::remap::{self, RemapCall};
use core::ffi::c_int;

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
    ENGINES.iter().for_each(|engine| engine.memory_changes(start, len));
    // SAFETY: the program's own call, with its own arguments.
    let answer = unsafe { pass_on(function, arguments) };
    ENGINES.iter().for_each(|engine| engine.memory_changes(start, len));
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(start: usize, len: usize, protection: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { change(Function::mprotect, [start, len, protection, 0]) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pkey_mprotect(start: usize, len: usize, rights: usize, key: usize) -> c_int {
    ENGINES.iter().for_each(|engine| engine.end_for_keys());
    // SAFETY: the program's own call.
    unsafe { change(Function::pkey_mprotect, [start, len, rights, key]) }
}

/// Passes on madvise. The kernel reports advice that removes pages, but before they go, and does
/// not report guard pages (MADV_GUARD_INSTALL) at all.
#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(start: usize, len: usize, advice: usize) -> c_int {
    const GUARD_INSTALL: i32 = 102;
    let takes_away = [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_REMOVE, GUARD_INSTALL];
    huge_pages::note_advice(advice as i32);
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

/// The last argument is undefined where the program has given four.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    start: usize,
    len: usize,
    new: usize,
    flags: usize,
    to: usize,
) -> isize {
    let call = RemapCall { start, len, new, flags };
    // SAFETY: the program's own call, passed on.
    remap::remap(&call, || unsafe {
        lookup::call(lookup::found(Function::mremap), [start, len, new, flags, to])
            .unwrap_or_else(|| pass_to_kernel(libc::SYS_mremap, [start, len, new, flags, to, 0]))
    })
}
