//! The originals: the next definitions after ours, resolved once at start-up.
//!
//! Until then, and in case nothing is found, a bootstrap copy serves. It is written in
//! assembly because compilers turn copy loops into calls of memcpy, that is, of us.

use crate::sys::{self, Entry, Op};
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
    entry(bootstrap_process_vm_readv as *const ()),
    entry(bootstrap_process_vm_writev as *const ()),
];

const fn entry(bootstrap: *const ()) -> Entry {
    Entry { min: AtomicUsize::new(0), next: AtomicPtr::new(bootstrap.cast_mut().cast()) }
}

/// libc's own memmove, for all copies of ours. A further interposer between us and libc may
/// use thread-local storage, which workers do not have, or call memcpy, that is, us. Until it
/// is known, `rep movsb`.
static LIBC_MEMMOVE: AtomicPtr<c_void> =
    AtomicPtr::new((bootstrap_memmove as *const ()).cast_mut().cast());

type Memmove = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

/// Looks the originals up. dlsym may allocate: only for start-up, never for the hook.
pub fn resolve() {
    // memcpy of old programs (GLIBC_2.2.5) is memmove, and of new ones nearly always the same
    // code; calling memmove for both keeps overlapping copies right everywhere.
    type Named = (&'static CStr, Op);
    const NAMES: [(Named, Option<Named>); 8] = [
        ((c"memmove", Op::Memmove), Some((c"memcpy", Op::Memcpy))),
        ((c"mempcpy", Op::Mempcpy), None),
        ((c"bcopy", Op::Bcopy), None),
        ((c"wmemmove", Op::Wmemmove), Some((c"wmemcpy", Op::Wmemcpy))),
        ((c"__memmove_chk", Op::MemmoveChk), Some((c"__memcpy_chk", Op::MemcpyChk))),
        ((c"__mempcpy_chk", Op::MempcpyChk), None),
        ((c"process_vm_readv", Op::ProcessVmReadv), None),
        ((c"process_vm_writev", Op::ProcessVmWritev), None),
    ];
    let libc = Libc::find();
    for ((name, op), twin) in NAMES {
        // SAFETY: a terminated name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        set_next(op, found);
        let Some((twin, copying)) = twin else { continue };
        if libc.holds(found as usize) {
            set_next(copying, found);
        } else {
            // Somebody else's, who may call the twin by name: then it must not come back.
            // SAFETY: as above.
            set_next(copying, unsafe { libc::dlsym(libc::RTLD_NEXT, twin.as_ptr()) });
        }
    }
    let found = ENTRIES[Op::Memmove as usize].next.load(Ordering::Relaxed);
    if libc.holds(found as usize) {
        LIBC_MEMMOVE.store(found, Ordering::Release);
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
fn find_beyond_others(libc: &Libc) {
    // SAFETY: terminated names; the library is loaded already, and stays.
    let found = unsafe {
        let handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return;
        }
        libc::dlsym(handle, c"memmove".as_ptr())
    };
    if !libc.holds(found as usize) {
        return;
    }
    LIBC_MEMMOVE.store(found, Ordering::Release);
    let memcpy = &ENTRIES[Op::Memcpy as usize].next;
    if libc.holds(memcpy.load(Ordering::Relaxed) as usize) {
        memcpy.store(found, Ordering::Release);
    }
}

/// Where libc lies; empty when it was not found.
struct Libc(core::ops::Range<usize>);

impl Libc {
    fn find() -> Self {
        let mut libc = Self(0..0);
        // SAFETY: the callback gets `libc` and uses it before this returns.
        unsafe { libc::dl_iterate_phdr(Some(note_if_libc), (&raw mut libc).cast()) };
        libc
    }

    fn holds(&self, address: usize) -> bool {
        self.0.contains(&address)
    }
}

/// For each loaded object: does it hold a function that only libc has?
unsafe extern "C" fn note_if_libc(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    libc: *mut c_void,
) -> i32 {
    // SAFETY: the loader's description of an object, and our own `Libc`.
    let (object, libc, segments) = unsafe {
        let object = &*object;
        let segments = core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        (object, &mut *libc.cast::<Libc>(), segments)
    };
    let loaded = segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD);
    let ends = loaded.map(|segment| {
        let start = object.dlpi_addr + segment.p_vaddr;
        (start as usize, (start + segment.p_memsz) as usize)
    });
    // From the lowest to the highest byte: what lies between belongs to the same object.
    let whole = ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).map_or(0..0, |(a, b)| a..b);
    let found = whole.contains(&(libc::gnu_get_libc_version as *const () as usize));
    if found {
        libc.0 = whole;
    }
    i32::from(found)
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
