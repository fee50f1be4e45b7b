//! The originals: the next definitions after ours, resolved once at start-up.
//!
//! Until then, and in case nothing is found, a bootstrap copy serves. It is written in
//! assembly because compilers turn copy loops into calls of memcpy, that is, of us.

use crate::os::lookup::{Found, Name, find_next};
use crate::os::sys::{self, Entry, NEVER, Op};
use core::arch::{asm, naked_asm};
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// What the exported functions read. Until start-up every call goes to the slow path: the
/// resolver of an IFUNC may copy before the loader has filled in `next`.
pub static ENTRIES: [Entry; Op::ALL.len()] = [
    entry(bootstrap_memmove as *const ()),
    entry(bootstrap_memmove as *const ()),
    entry(bootstrap_mempcpy as *const ()),
    entry(bootstrap_bcopy as *const ()),
    entry(bootstrap_wmemmove as *const ()),
    entry(bootstrap_wmemmove as *const ()),
    entry(bootstrap_memmove_chk as *const ()),
    entry(bootstrap_memmove_chk as *const ()),
    entry(bootstrap_mempcpy_chk as *const ()),
    entry(bootstrap_process_vm_readv as *const ()),
    entry(bootstrap_process_vm_writev as *const ()),
    entry(bootstrap_memset as *const ()),
    entry(bootstrap_memset_chk as *const ()),
    entry(bootstrap_bzero as *const ()),
    entry(bootstrap_wmemset as *const ()),
];

const fn entry(bootstrap: *const ()) -> Entry {
    Entry { min: AtomicUsize::new(0), next: AtomicPtr::new(bootstrap.cast_mut().cast()) }
}

/// libc's own memmove, for all copies of ours. A further interposer between us and libc may
/// use thread-local storage, which workers do not have, or call memcpy, that is, us. Until it
/// is known, `rep movsb`.
static LIBC_MEMMOVE: AtomicPtr<c_void> =
    AtomicPtr::new((bootstrap_memmove as *const ()).cast_mut().cast());

/// libc's own memset, for the same reasons. Where somebody else's stands before it, `rep stosb`.
static LIBC_MEMSET: AtomicPtr<c_void> =
    AtomicPtr::new((bootstrap_memset as *const ()).cast_mut().cast());

type Memmove = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

/// Looks the originals up. That may allocate: only for start-up, never for the hook.
pub fn resolve() {
    // memcpy of old programs (GLIBC_2.2.5) is memmove, and of new ones nearly always the same
    // code; calling memmove for both keeps overlapping copies right everywhere.
    static NAMES: [Name; 12] = [
        Name::new(c"memmove"),
        Name::new(c"mempcpy"),
        Name::new(c"bcopy"),
        Name::new(c"wmemmove"),
        Name::new(c"__memmove_chk"),
        Name::new(c"__mempcpy_chk"),
        Name::new(c"process_vm_readv"),
        Name::new(c"process_vm_writev"),
        Name::new(c"memset"),
        Name::new(c"__memset_chk"),
        Name::new(c"bzero"),
        Name::new(c"wmemset"),
    ];
    static TWINS: [Name; 3] =
        [Name::new(c"memcpy"), Name::new(c"wmemcpy"), Name::new(c"__memcpy_chk")];
    let Found { functions, libc } = find_next(&NAMES);
    let is_libcs = |function: *mut c_void| libc.contains(&(function as usize));
    let [memmove, mempcpy, bcopy, wmemmove, memmove_chk, mempcpy_chk, ..] = functions;
    let [.., readv, writev, memset, memset_chk, bzero, wmemset] = functions;
    set_next(Op::ProcessVmReadv, readv);
    set_next(Op::ProcessVmWritev, writev);
    set_next(Op::Memset, memset);
    set_next(Op::MemsetChk, memset_chk);
    set_next(Op::Bzero, bzero);
    set_next(Op::Wmemset, wmemset);
    set_next(Op::Mempcpy, mempcpy);
    set_next(Op::Bcopy, bcopy);
    set_next(Op::MempcpyChk, mempcpy_chk);
    set_next(Op::Memmove, memmove);
    set_next(Op::Wmemmove, wmemmove);
    set_next(Op::MemmoveChk, memmove_chk);
    let [mut memcpy, mut wmemcpy, mut memcpy_chk] = [memmove, wmemmove, memmove_chk];
    if ![memmove, wmemmove, memmove_chk].into_iter().all(is_libcs) {
        // Somebody else's may call its twin by name: then it must not come back.
        [memcpy, wmemcpy, memcpy_chk] = find_next(&TWINS).functions;
    }
    set_next(Op::Memcpy, memcpy);
    set_next(Op::Wmemcpy, wmemcpy);
    set_next(Op::MemcpyChk, memcpy_chk);
    // What we copy ourselves from here on, until the engine is open, is libc's.
    Op::ALL.into_iter().for_each(|op| set_min(op, NEVER));
    if is_libcs(memset) {
        LIBC_MEMSET.store(memset, Ordering::Release);
    }
    if is_libcs(memmove) {
        LIBC_MEMMOVE.store(memmove, Ordering::Release);
    } else {
        find_beyond_others(&libc);
    }
}

fn set_next(op: Op, found: *mut c_void) {
    if !found.is_null() {
        ENTRIES[op as usize].next.store(found, Ordering::Release);
    }
}

/// Finds libc's own memmove where others have one as well.
#[cold]
fn find_beyond_others(libc: &Range<usize>) {
    // SAFETY: terminated names; the library is loaded already, and stays.
    let found = unsafe {
        let handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return;
        }
        libc::dlsym(handle, c"memmove".as_ptr())
    };
    if !libc.contains(&(found as usize)) {
        return;
    }
    LIBC_MEMMOVE.store(found, Ordering::Release);
    let memcpy = &ENTRIES[Op::Memcpy as usize].next;
    if libc.contains(&(memcpy.load(Ordering::Relaxed) as usize)) {
        memcpy.store(found, Ordering::Release);
    }
}

/// Sets the size in bytes from which `op` comes to our slow path.
pub fn set_min(op: Op, bytes: usize) {
    ENTRIES[op as usize].min.store(bytes.div_ceil(op.unit()), Ordering::Release);
}

/// The function that `op` stands in front of.
pub fn next(op: Op) -> *mut c_void {
    ENTRIES[op as usize].next.load(Ordering::Relaxed)
}

/// Copies as libc does; overlapping ranges are fine.
///
/// # Safety
/// As memmove.
#[inline(always)]
pub unsafe fn copy(dst: usize, src: usize, len: usize) {
    // SAFETY: the pointer is only ever a memmove: the bootstrap one or libc's. The ranges are
    // the caller's promise.
    unsafe {
        let function: Memmove = core::mem::transmute(LIBC_MEMMOVE.load(Ordering::Relaxed));
        function(dst as *mut c_void, src as *const c_void, len);
    }
}

/// Fills as libc does, with the lowest byte of `value`.
///
/// # Safety
/// As memset.
#[inline(always)]
pub unsafe fn fill(dst: usize, value: usize, len: usize) {
    type Memset = unsafe extern "C" fn(usize, usize, usize) -> usize;
    // SAFETY: the pointer is only ever a memset, which looks at one byte of the value.
    unsafe {
        let function: Memset = core::mem::transmute(LIBC_MEMSET.load(Ordering::Relaxed));
        function(dst, value & 0xff, len);
    }
}

/// The same before start-up.
///
/// # Safety
/// As memset.
pub unsafe fn fill_before_start(dst: usize, value: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep stosb", inout("rdi") dst => _, inout("rcx") len => _, in("al") value as u8,
            options(nostack, preserves_flags));
    }
}

/// The same before start-up: reads nothing that the loader has to fill in.
///
/// # Safety
/// As memmove.
pub unsafe fn copy_before_start(dst: usize, src: usize, len: usize) {
    // SAFETY: the caller's promise; a memmove by construction.
    unsafe {
        asm!("call {copy}", copy = sym bootstrap_memmove,
            inout("rdi") dst => _, inout("rsi") src => _, in("rdx") len,
            out("rax") _, out("rcx") _, out("r8") _);
    }
}

/// The heart of all bootstrap copies: rdi, rsi, rdx as memmove; rax is kept.
macro_rules! move_bytes {
    ($($before:literal),*) => {
        naked_asm!(
            $($before,)*
            "mov rcx, rdx",
            "mov r8, rdi",
            "sub r8, rsi",
            "cmp r8, rdx", // destination inside the source: from the end
            "jb 2f",
            "rep movsb",
            "ret",
            "2:",
            "lea rdi, [rdi + rdx - 1]",
            "lea rsi, [rsi + rdx - 1]",
            "std",
            "rep movsb",
            "cld",
            "ret",
        )
    };
}

/// For the checked variants: rcx is the room at the destination.
macro_rules! move_bytes_checked {
    ($result:literal) => {
        naked_asm!(
            "cmp rcx, rdx",
            "jb 3f",
            $result,
            "jmp {body}",
            "3: jmp [rip + __chk_fail@GOTPCREL]",
            body = sym bootstrap_keep_result,
        )
    };
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_keep_result() {
    move_bytes!()
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_memmove() {
    move_bytes!("mov rax, rdi")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_mempcpy() {
    move_bytes!("lea rax, [rdi + rdx]")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_bcopy() {
    move_bytes!("xchg rdi, rsi")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_wmemmove() {
    move_bytes!("mov rax, rdi", "shl rdx, 2")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_memmove_chk() {
    move_bytes_checked!("mov rax, rdi")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_mempcpy_chk() {
    move_bytes_checked!("lea rax, [rdi + rdx]")
}

/// rdi, al and rcx as `rep stosb` wants them; answers the first byte.
macro_rules! fill_bytes {
    ($($before:literal),*) => {
        naked_asm!($($before,)* "mov r8, rdi", "rep stosb", "mov rax, r8", "ret")
    };
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_memset() {
    fill_bytes!("mov eax, esi", "mov rcx, rdx")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_bzero() {
    fill_bytes!("xor eax, eax", "mov rcx, rsi")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_wmemset() {
    naked_asm!("mov eax, esi", "mov rcx, rdx", "mov r8, rdi", "rep stosd", "mov rax, r8", "ret")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_memset_chk() {
    naked_asm!(
        "cmp rcx, rdx",
        "jb 3f",
        "jmp {body}",
        "3: jmp [rip + __chk_fail@GOTPCREL]",
        body = sym bootstrap_memset,
    )
}

macro_rules! system_call {
    ($($name:ident: $number:ident),* $(,)?) => { $(
        unsafe extern "C" fn $name(
            first: usize,
            second: usize,
            third: usize,
            fourth: usize,
            fifth: usize,
            sixth: usize,
        ) -> isize {
            // SAFETY: the program's own call, and the address of this thread's errno.
            unsafe {
                let arguments = [first, second, third, fourth, fifth, sixth];
                let answer = sys::syscall(libc::$number, arguments);
                if answer >= 0 {
                    return answer;
                }
                *libc::__errno_location() = -answer as i32;
                -1
            }
        }
    )* };
}

system_call! {
    bootstrap_process_vm_readv: SYS_process_vm_readv,
    bootstrap_process_vm_writev: SYS_process_vm_writev,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_every_distance_matches_naive() {
        // SAFETY: a memmove by construction.
        let memmove: Memmove = unsafe { core::mem::transmute(bootstrap_memmove as *const ()) };
        // SAFETY: the same with the end as result.
        let mempcpy: Memmove = unsafe { core::mem::transmute(bootstrap_mempcpy as *const ()) };
        for len in [0usize, 1, 7, 64, 300] {
            for shift in 0..2 * len.min(80) + 2 {
                let mut bytes: Vec<u8> = (0..1000).map(|i| i as u8).collect();
                let (dst, src) = (200 + shift - len.min(80), 200);
                let expected: Vec<u8> = bytes[src..src + len].to_vec();
                let base = bytes.as_mut_ptr();
                // SAFETY: both ranges lie inside `bytes`.
                unsafe {
                    let (to, from) = (base.add(dst).cast(), base.add(src).cast());
                    assert_eq!(memmove(to, from, len), to);
                    assert_eq!(mempcpy(to, to, len), to.byte_add(len));
                }
                assert_eq!(bytes[dst..dst + len], expected, "{len} {shift}");
            }
        }
    }
}
