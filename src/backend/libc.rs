//! The originals: the next definitions after ours, resolved once at start-up.
//!
//! Until then, and in case nothing is found, a bootstrap copy serves. It is written in
//! assembly because compilers turn copy loops into calls of memcpy, that is, of us.

use crate::functions::{EntryPoint, NEVER, Op};
use crate::os::lookup::{self, Function, Names, find_in_libc, find_next};
use crate::os::sys;
use core::arch::{asm, naked_asm};
use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// What the exported functions read. Until start-up every call goes to the slow path: the
/// resolver of an IFUNC may copy before the loader has filled in `next`.
pub static ENTRIES: [EntryPoint; Op::ALL.len()] = [
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
    entry(bootstrap_memcmp as *const ()),
    entry(bootstrap_memcmp as *const ()),
    entry(bootstrap_wmemcmp as *const ()),
    entry(bootstrap_read as *const ()),
    entry(bootstrap_pread as *const ()),
    entry(bootstrap_readv as *const ()),
    entry(bootstrap_preadv as *const ()),
    entry(bootstrap_preadv2 as *const ()),
    entry(read_chk_by_read as *const ()),
    entry(pread_chk_by_pread as *const ()),
    entry(early_fread as *const ()),
    entry(early_fread_unlocked as *const ()),
    entry(fread_chk_by_fread as *const ()),
    entry(fread_unlocked_chk_by_fread_unlocked as *const ()),
];

const fn entry(bootstrap: *const ()) -> EntryPoint {
    EntryPoint { min: AtomicUsize::new(0), next: AtomicPtr::new(bootstrap.cast_mut().cast()) }
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

// Those that libc does not derive from another, for each of which start-up pays.
const OPS: [(Op, Function); 6] = [
    (Op::Memmove, Function::memmove),
    (Op::Mempcpy, Function::mempcpy),
    (Op::Memset, Function::memset),
    (Op::Wmemset, Function::wmemset),
    (Op::Memcmp, Function::memcmp),
    (Op::Wmemcmp, Function::wmemcmp),
];

/// The originals of reads.
const READS: [(Op, Function); 7] = [
    (Op::Read, Function::read),
    (Op::Pread, Function::pread64), // pread is the same function, as for the next ones
    (Op::Readv, Function::readv),
    (Op::Preadv, Function::preadv64),
    (Op::Preadv2, Function::preadv64v2),
    (Op::Fread, Function::fread),
    (Op::FreadUnlocked, Function::fread_unlocked),
];

/// What reads are called as: as many words as the longest of them takes.
pub type ReadFn = unsafe extern "C" fn(usize, usize, usize, usize, usize) -> isize;

/// See `reads_are_libcs`.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static READS_ARE_LIBCS: AtomicBool = AtomicBool::new(false);

// The others. Unless another library has defined one of the above, they are derived from those, as
// in libc.
macro_rules! others {
    ($($name:literal for $op:ident,)*) => {
        const OTHERS: [Op; [$(Op::$op),*].len()] = [$(Op::$op),*];
        static OTHER_NAMES: Names<{ OTHERS.len() }> = Names::new(concat!($($name, "\0"),*));
    };
}

others! {
    "memcpy" for Memcpy,
    "bcopy" for Bcopy,
    "wmemcpy" for Wmemcpy,
    "wmemmove" for Wmemmove,
    "__memcpy_chk" for MemcpyChk,
    "__memmove_chk" for MemmoveChk,
    "__mempcpy_chk" for MempcpyChk,
    "__memset_chk" for MemsetChk,
    "bzero" for Bzero,
    "bcmp" for Bcmp,
    "process_vm_readv" for ProcessVmReadv,
    "process_vm_writev" for ProcessVmWritev,
    "__read_chk" for ReadChk,
    "__pread64_chk" for PreadChk,
    "__fread_chk" for FreadChk,
    "__fread_unlocked_chk" for FreadUnlockedChk,
}

/// Finds the originals, at start-up.
pub fn resolve() {
    let libc = lookup::resolve();
    let is_libcs = |function: *mut c_void| libc.contains(&(function as usize));
    OPS.into_iter().for_each(|(op, function)| set_next(op, lookup::found(function)));
    READS.into_iter().for_each(|(op, function)| set_next(op, lookup::found(function)));
    let reads_are_libcs = READS.into_iter().all(|(op, _)| is_libcs(next(op)));
    READS_ARE_LIBCS.store(reads_are_libcs, Ordering::Release);
    if OPS.into_iter().all(|(op, _)| is_libcs(next(op))) {
        derive_others();
    } else {
        // Another library's may call another by name: then it must not come back.
        let others = find_next(&OTHER_NAMES).functions;
        OTHERS.into_iter().zip(others).for_each(|(op, found)| set_next(op, found));
    }
    // What we copy ourselves from here on, until the engine is open, is libc's.
    Op::ALL.into_iter().for_each(|op| set_min(op, NEVER));
    if is_libcs(next(Op::Memset)) {
        LIBC_MEMSET.store(next(Op::Memset), Ordering::Release);
    }
    if is_libcs(next(Op::Memmove)) {
        LIBC_MEMMOVE.store(next(Op::Memmove), Ordering::Release);
    } else {
        find_beyond_others();
    }
}

/// Sets those that are not looked up. The two calls that copy between processes stay bare system
/// calls, which is all that libc makes of them, and the checked variants of reads what they are
/// from the beginning.
fn derive_others() {
    // memcpy of old programs (GLIBC_2.2.5) is memmove, and of new ones nearly always the same
    // code; calling memmove for both keeps overlapping copies right everywhere.
    set_next(Op::Memcpy, next(Op::Memmove));
    set_next(Op::Bcmp, next(Op::Memcmp));
    let derived: [(Op, unsafe extern "C" fn()); 8] = [
        (Op::Bcopy, bcopy_by_memmove),
        (Op::Wmemcpy, wmemmove_by_memmove),
        (Op::Wmemmove, wmemmove_by_memmove),
        (Op::Bzero, bzero_by_memset),
        (Op::MemcpyChk, memmove_chk_by_memmove),
        (Op::MemmoveChk, memmove_chk_by_memmove),
        (Op::MempcpyChk, mempcpy_chk_by_mempcpy),
        (Op::MemsetChk, memset_chk_by_memset),
    ];
    derived.into_iter().for_each(|(op, by)| set_next(op, by as *mut c_void));
}

/// For the checked variants: rcx is the room at the destination. What does not fit ends the program.
/// Another C library has no such function, and no program of it calls these variants.
macro_rules! check_room {
    () => {
        ".weak __chk_fail\ncmp rcx, rdx\njae 3f\njmp [rip + __chk_fail@GOTPCREL]\n3:"
    };
}

/// For the checked variants of fread, which take the room at the destination as their second
/// argument: rdx and rcx are size and number of the items.
macro_rules! check_items {
    () => {
        ".weak __chk_fail
        mov r9, rdx
        mov rax, rdx
        mul rcx
        jo 2f
        cmp rsi, rax
        jae 3f
        2: jmp [rip + __chk_fail@GOTPCREL]
        3: mov rsi, r9
        mov rdx, rcx
        mov rcx, r8"
    };
}

/// Brings the arguments into the order of another function, and jumps to that.
macro_rules! derived {
    ($($name:ident: $($before:expr),* => $op:ident;)*) => { $(
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $($before,)*
                "jmp qword ptr [rip + {entries} + {next}]",
                ".cfi_endproc",
                entries = sym ENTRIES,
                next = const Op::$op as usize * size_of::<EntryPoint>() + offset_of!(EntryPoint, next),
            )
        }
    )* };
}

derived! {
    bcopy_by_memmove: "xchg rdi, rsi" => Memmove;
    wmemmove_by_memmove: "shl rdx, 2" => Memmove;
    bzero_by_memset: "mov rdx, rsi", "xor esi, esi" => Memset;
    memmove_chk_by_memmove: check_room!() => Memmove;
    mempcpy_chk_by_mempcpy: check_room!() => Mempcpy;
    memset_chk_by_memset: check_room!() => Memset;
    read_chk_by_read: check_room!() => Read;
    pread_chk_by_pread: "xchg rcx, r8", check_room!(), "mov rcx, r8" => Pread;
    fread_chk_by_fread: check_items!() => Fread;
    fread_unlocked_chk_by_fread_unlocked: check_items!() => FreadUnlocked;
}

fn set_next(op: Op, found: *mut c_void) {
    if !found.is_null() {
        ENTRIES[op as usize].next.store(found, Ordering::Release);
    }
}

/// Finds libc's own memmove where others have one as well.
#[cold]
fn find_beyond_others() {
    static MEMMOVE: Names<1> = Names::new("memmove\0");
    let found = find_in_libc(&MEMMOVE);
    let [memmove] = found.functions;
    if memmove.is_null() {
        return;
    }
    LIBC_MEMMOVE.store(memmove, Ordering::Release);
    let memcpy = &ENTRIES[Op::Memcpy as usize].next;
    if found.libc.contains(&(memcpy.load(Ordering::Relaxed) as usize)) {
        memcpy.store(memmove, Ordering::Release);
    }
}

/// Whether no interposer stands between us and libc's reads. One may know descriptors that the
/// kernel does not, and reads that are shared pass it by.
pub fn reads_are_libcs() -> bool {
    READS_ARE_LIBCS.load(Ordering::Relaxed)
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

/// Compares by the function that `op` stands in front of.
///
/// # Safety
/// As that function; the length is in bytes.
pub unsafe fn compare(op: Op, a: usize, b: usize, len: usize) -> isize {
    type Memcmp = unsafe extern "C" fn(usize, usize, usize) -> i32;
    // SAFETY: the pointer is only ever a function of this kind.
    unsafe {
        let function: Memcmp = core::mem::transmute(next(op));
        function(a, b, len / op.unit()) as isize
    }
}

/// The same before start-up: reads nothing that the loader has to fill in.
///
/// # Safety
/// As memcmp.
pub unsafe fn compare_before_start(op: Op, a: usize, b: usize, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        let same = count_same(a, b, len);
        let at = same - same % op.unit();
        match op.unit() {
            _ if same == len => 0,
            1 => {
                let [a, b] = [a, b].map(|side| isize::from(*((side + at) as *const u8)));
                a - b
            }
            _ => {
                let [a, b] = [a, b].map(|side| ((side + at) as *const i32).read_unaligned());
                if a < b { -1 } else { 1 }
            }
        }
    }
}

/// How many bytes are the same before the first that differ. Nothing behind those is read.
///
/// # Safety
/// Both sides can be read so far.
pub unsafe fn count_same(a: usize, b: usize, len: usize) -> usize {
    let end: usize;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("cmp rcx, rcx", "repe cmpsb", "je 2f", "dec rsi", "2:",
            inout("rsi") a => end, inout("rdi") b => _, inout("rcx") len => _,
            options(nostack, readonly));
    }
    end - a
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
            ".cfi_startproc",
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
            ".cfi_endproc",
        )
    };
}

macro_rules! move_bytes_checked {
    ($result:literal) => {
        naked_asm!(
            ".cfi_startproc",
            check_room!(),
            $result,
            "jmp {body}",
            ".cfi_endproc",
            body = sym bootstrap_keep_result
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

/// rdi, al and rcx as `rep stosb` wants them, or eax for `rep stosd`; answers the first byte.
macro_rules! fill_bytes {
    ($stos:literal: $($before:literal),*) => {
        naked_asm!(
            ".cfi_startproc",
            $($before,)*
            "mov r8, rdi",
            $stos,
            "mov rax, r8",
            "ret",
            ".cfi_endproc",
        )
    };
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_memset() {
    fill_bytes!("rep stosb": "mov eax, esi", "mov rcx, rdx")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_bzero() {
    fill_bytes!("rep stosb": "xor eax, eax", "mov rcx, rsi")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_wmemset() {
    fill_bytes!("rep stosd": "mov eax, esi", "mov rcx, rdx")
}

#[unsafe(naked)]
unsafe extern "C" fn bootstrap_memset_chk() {
    naked_asm!(
        ".cfi_startproc",
        check_room!(),
        "jmp {body}",
        ".cfi_endproc",
        body = sym bootstrap_memset
    )
}

unsafe extern "C" fn bootstrap_memcmp(a: usize, b: usize, len: usize) -> i32 {
    // SAFETY: the program's own call.
    unsafe { compare_before_start(Op::Memcmp, a, b, len) as i32 }
}

unsafe extern "C" fn bootstrap_wmemcmp(a: usize, b: usize, count: usize) -> i32 {
    // SAFETY: the program's own call.
    unsafe { compare_before_start(Op::Wmemcmp, a, b, count * Op::Wmemcmp.unit()) as i32 }
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
    bootstrap_read: SYS_read,
    bootstrap_pread: SYS_pread64,
    bootstrap_readv: SYS_readv,
    bootstrap_preadv: SYS_preadv,
    bootstrap_preadv2_of_six: SYS_preadv2,
}

/// Passes the flags on where the kernel takes them: behind an offset in two halves, of which with 64
/// bits the first is all.
#[unsafe(naked)]
unsafe extern "C" fn bootstrap_preadv2() {
    naked_asm!(
        ".cfi_startproc",
        "mov r9, r8",
        "jmp {body}",
        ".cfi_endproc",
        body = sym bootstrap_preadv2_of_six
    )
}

macro_rules! found_at_once {
    ($($name:ident: $function:ident;)*) => { $(
        /// Serves constructors of other libraries, which may read before our start-up.
        unsafe extern "C" fn $name(to: usize, size: usize, count: usize, stream: usize) -> isize {
            let found = lookup::original(Function::$function);
            if found.is_null() {
                return 0;
            }
            // SAFETY: a function of these arguments.
            unsafe { core::mem::transmute::<*mut c_void, ReadFn>(found)(to, size, count, stream, 0) }
        }
    )* };
}

found_at_once! {
    early_fread: fread;
    early_fread_unlocked: fread_unlocked;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_comparisons_answer_as_libc() {
        resolve();
        let base: Vec<u8> = (0..600).map(|i| (i * 7) as u8).collect();
        for op in [Op::Memcmp, Op::Bcmp, Op::Wmemcmp] {
            for len in [0, 4, 64, 252] {
                for at in 0..=len {
                    for change in [1, 0x80, 0xff] {
                        let (a, mut b) = (base.clone(), base.clone());
                        b[at] = b[at].wrapping_add(change); // behind the end for the last
                        let (a, b) = (a.as_ptr() as usize, b.as_ptr() as usize);
                        // SAFETY: inside both vectors.
                        unsafe {
                            let ours = compare_before_start(op, a, b, len);
                            assert_eq!(ours.signum(), compare(op, a, b, len).signum(), "{op:?}");
                            assert_eq!(count_same(a, b, len), at.min(len));
                        }
                    }
                }
            }
        }
    }

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
