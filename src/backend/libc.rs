//! The originals: the next definitions after ours, resolved once at start-up.
//!
//! Until then, and in case nothing is found, a bootstrap copy serves. It is written in
//! assembly because compilers turn copy loops into calls of memcpy, that is, of us.

use crate::sys::{Entry, Op};
use core::arch::{asm, naked_asm};
use core::ffi::{CStr, c_void};
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
];

const fn entry(bootstrap: *const ()) -> Entry {
    Entry { min: AtomicUsize::new(0), next: AtomicPtr::new(bootstrap.cast_mut().cast()) }
}

/// libc's own memmove, for worker threads: a further interposer between us and libc may
/// use thread-local storage, which workers do not have. Until it is known, `rep movsb`.
static LIBC_MEMMOVE: AtomicPtr<c_void> =
    AtomicPtr::new((bootstrap_memmove as *const ()).cast_mut().cast());

type Memmove = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

/// Looks the originals up. dlsym may allocate: only for start-up, never for the hook.
pub fn resolve() {
    // memcpy of old programs (GLIBC_2.2.5) is memmove, and of new ones nearly always the same
    // code; calling memmove for both keeps overlapping copies right everywhere.
    const NAMES: [(&CStr, &[Op]); 6] = [
        (c"memmove", &[Op::Memcpy, Op::Memmove]),
        (c"mempcpy", &[Op::Mempcpy]),
        (c"bcopy", &[Op::Bcopy]),
        (c"wmemmove", &[Op::Wmemcpy, Op::Wmemmove]),
        (c"__memmove_chk", &[Op::MemcpyChk, Op::MemmoveChk]),
        (c"__mempcpy_chk", &[Op::MempcpyChk]),
    ];
    for (name, ops) in NAMES {
        // SAFETY: a terminated name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if !found.is_null() {
            for &op in ops {
                ENTRIES[op as usize].next.store(found, Ordering::Release);
            }
        }
    }
    // Most often what we have found is libc's own. Otherwise workers keep the bootstrap copy.
    let found = ENTRIES[Op::Memmove as usize].next.load(Ordering::Relaxed);
    if is_in_libc(found) {
        LIBC_MEMMOVE.store(found, Ordering::Release);
    }
}

/// Whether a function lies in the same shared object as one that only libc has.
fn is_in_libc(function: *mut c_void) -> bool {
    let known = libc::gnu_get_libc_version as *const () as usize;
    let mut both = Both { addresses: [function as usize, known], found: false };
    // SAFETY: the callback gets `both` and uses it before this returns.
    unsafe { libc::dl_iterate_phdr(Some(holds_both), (&raw mut both).cast()) };
    both.found
}

struct Both {
    addresses: [usize; 2],
    found: bool,
}

/// For each loaded object: does it hold both addresses?
unsafe extern "C" fn holds_both(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    both: *mut c_void,
) -> i32 {
    // SAFETY: the loader's description of an object, and our own `Both`.
    let (object, both, segments) = unsafe {
        let object = &*object;
        let segments = core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        (object, &mut *both.cast::<Both>(), segments)
    };
    let holds = |address: usize| {
        segments.iter().any(|segment| {
            let start = (object.dlpi_addr + segment.p_vaddr) as usize;
            segment.p_type == libc::PT_LOAD
                && (start..start + segment.p_memsz as usize).contains(&address)
        })
    };
    both.found = both.addresses.into_iter().all(holds);
    i32::from(both.found)
}

/// Sets the size in bytes from which `op` comes to our slow path.
pub fn set_min(op: Op, bytes: usize) {
    ENTRIES[op as usize].min.store(bytes.div_ceil(op.unit()), Ordering::Release);
}

/// Copies as the program would have without us; overlapping ranges are fine.
///
/// # Safety
/// As memmove.
pub unsafe fn copy(dst: usize, src: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { call(&ENTRIES[Op::Memmove as usize].next, dst, src, len) }
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

/// The same from a worker thread.
///
/// # Safety
/// As memmove.
pub unsafe fn copy_in_worker(dst: usize, src: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { call(&LIBC_MEMMOVE, dst, src, len) }
}

#[inline(always)]
unsafe fn call(function: &AtomicPtr<c_void>, dst: usize, src: usize, len: usize) {
    // SAFETY: the pointer is only ever a memmove: the bootstrap one or what dlsym found.
    unsafe {
        let function: Memmove = core::mem::transmute(function.load(Ordering::Relaxed));
        function(dst as *mut c_void, src as *const c_void, len);
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
