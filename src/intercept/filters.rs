//! Calls that install a seccomp filter, which is noted: a filter may kill for the call that asks
//! whether there is one. (Chromium's does.) prctl and madvise also show that a program wants small pages.

use crate::backend::libc::pass_to_kernel;
use crate::backend::threads::workers::{self, Dismissal};
use crate::os::lookup::{self, Function};
use crate::os::{arch, huge_pages, process, sys};
use crate::runtime::DISPATCHER;
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Installs a filter by `call`, which answers 0, or a descriptor (SECCOMP_FILTER_FLAG_NEW_LISTENER).
fn install(call: impl FnOnce() -> isize) -> isize {
    // The filter of a child of vfork is its own; that of a child by a bare clone is noted in its memory.
    let is_own = process::is_ours() || !process::shares_our_memory();
    let installing = is_own.then(sys::InstallingFilter::new);
    // It may be a filter for all threads, and need not allow them to leave.
    workers::dismiss(Dismissal::Filter);
    let answer = call();
    // Programs try with bad arguments, to learn whether there are filters at all.
    if answer >= 0
        && let Some(installing) = installing
    {
        installing.keep();
        DISPATCHER.close(); // the filter need not allow what a shared copy calls
    }
    answer
}

/// Arguments that the program has not given are undefined.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(
    option: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_int {
    note_page_size(option, second);
    let arguments = [option, second, third, fourth, fifth];
    // SAFETY: the program's own call, passed on.
    let call = || unsafe {
        lookup::call(lookup::found(Function::prctl), arguments).unwrap_or_else(|| {
            pass_to_kernel(libc::SYS_prctl, [option, second, third, fourth, fifth, 0])
        })
    };
    let answer = if option as i32 == libc::PR_SET_SECCOMP { install(call) } else { call() };
    answer as c_int
}

/// Notes that the program wants small pages: so they stay, also when it has withdrawn that.
fn note_page_size(option: usize, disables: usize) {
    if option as i32 == libc::PR_SET_THP_DISABLE && disables != 0 {
        huge_pages::refuse();
    }
}

/// Compares the number and jumps on: libc's must find its return address and the seventh argument
/// where the caller has put them.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    naked_asm!(
        ".cfi_startproc",
        arch::syscall_entry!(),
        ".cfi_endproc",
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        madvise = const libc::SYS_madvise,
        filter = sym by_kernel,
        next = sym NEXT_SYSCALL,
    )
}

/// libc's `syscall`, once it is looked up.
static NEXT_SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(first_syscall as *mut c_void);

/// Looks up libc's `syscall`, and jumps there with the arguments as they came.
#[unsafe(naked)]
unsafe extern "C" fn first_syscall() {
    naked_asm!(
        ".cfi_startproc",
        arch::find_and_jump!(),
        ".cfi_endproc",
        find = sym find_syscall,
    )
}

extern "C" fn find_syscall() -> *mut c_void {
    let found = lookup::found(Function::syscall);
    if found.is_null() {
        return by_kernel as *mut c_void; // before start-up, or another C library
    }
    NEXT_SYSCALL.store(found, Ordering::Release);
    found
}

unsafe extern "C" fn by_kernel(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let installs = match number {
        libc::SYS_seccomp => a as u32 <= libc::SECCOMP_SET_MODE_FILTER,
        libc::SYS_prctl => a as i32 == libc::PR_SET_SECCOMP,
        _ => false,
    };
    match number {
        libc::SYS_prctl => note_page_size(a, b),
        libc::SYS_madvise => huge_pages::note_advice(c as i32),
        _ => {}
    }
    // SAFETY: the program's own call.
    let call = || unsafe { pass_to_kernel(number, [a, b, c, d, e, f]) };
    if installs { install(call) } else { call() }
}
