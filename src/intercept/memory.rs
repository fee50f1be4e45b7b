//! Functions that change what may be done with memory. The kernel tells us when memory is unmapped
//! but not of these, so registrations with the graphics card end before and after them. The
//! program's own calls to register memory are here too: the driver would refuse them where we have
//! registered the same memory.

use crate::backend::gpu::{GPU, NO_DRIVER, driver_function};
use crate::os::lookup::{self, Name};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

static NAMES: [Name; 3] =
    [Name::new(c"mprotect"), Name::new(c"pkey_mprotect"), Name::new(c"madvise")];
static NEXT: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];

/// Places in the tables.
const MPROTECT: usize = 0;
const PKEY_MPROTECT: usize = 1;
const MADVISE: usize = 2;

type MappingFn = unsafe extern "C" fn(usize, usize, usize, usize) -> c_int;

/// Passes a call of the program on to the next definition after ours. All of them are looked up
/// on the first call, by a walk that allocates nothing: allocators call these functions.
unsafe fn pass_on(which: usize, arguments: [usize; 4]) -> c_int {
    let mut function = NEXT[which].load(Ordering::Relaxed);
    if function.is_null() {
        let found = lookup::find_next(&NAMES).functions;
        NEXT.iter().zip(found).for_each(|(next, found)| next.store(found, Ordering::Relaxed));
        function = found[which];
    }
    if function.is_null() {
        // SAFETY: the address of this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    }
    let [start, len, third, fourth] = arguments;
    // SAFETY: the program's own call, passed on.
    unsafe { core::mem::transmute::<*mut c_void, MappingFn>(function)(start, len, third, fourth) }
}

/// The same for a call after which memory is not what it was.
unsafe fn change(which: usize, arguments: [usize; 4]) -> c_int {
    let [start, len, ..] = arguments;
    GPU.memory_changes(start, len);
    // SAFETY: the caller's promise.
    let answer = unsafe { pass_on(which, arguments) };
    GPU.memory_changes(start, len);
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(start: usize, len: usize, protection: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { change(MPROTECT, [start, len, protection, 0]) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pkey_mprotect(start: usize, len: usize, rights: usize, key: usize) -> c_int {
    GPU.end_for_keys();
    // SAFETY: the program's own call.
    unsafe { change(PKEY_MPROTECT, [start, len, rights, key]) }
}

/// The kernel tells us of advice that takes pages away, but before they go. It does not tell us of
/// guard pages (MADV_GUARD_INSTALL) at all.
#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(start: usize, len: usize, advice: usize) -> c_int {
    const GUARD_INSTALL: i32 = 102;
    let takes_away = [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_REMOVE, GUARD_INSTALL];
    // SAFETY: the program's own call.
    unsafe {
        match takes_away.contains(&(advice as i32)) {
            true => change(MADVISE, [start, len, advice, 0]),
            false => pass_on(MADVISE, [start, len, advice, 0]),
        }
    }
}

macro_rules! registration {
    ($($name:ident: $cname:literal;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(start: usize, len: usize, flags: usize) -> c_int {
            GPU.let_go(start, len);
            match driver_function($cname) {
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
    match driver_function(c"cuMemHostUnregister") {
        // SAFETY: the program's own call, passed on.
        Some(function) => unsafe {
            core::mem::transmute::<*mut c_void, MappingFn>(function)(start, 0, 0, 0)
        },
        None => NO_DRIVER,
    }
}
