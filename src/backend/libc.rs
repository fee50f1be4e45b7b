//! The original functions: the next definitions after ours, resolved once at start-up.
//!
//! Until then, and in case nothing is found, a bootstrap copy serves. It is written in
//! assembly because compilers turn copy loops into calls of memcpy, that is, of us.

use crate::functions::{EntryPoint, NEVER, Op, next_offset};
use crate::os::lookup::{self, Function};
use crate::os::{arch, sys};
use core::arch::naked_asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

macro_rules! originals {
    ($($name:ident: ($symbol:ident $($alias:ident)*) $unit:literal $length:tt $kind:ident::$large:ident
        ($($original:tt)*);)*) => {
        /// Thresholds and originals that the exported functions read. Until start-up every call goes to
        /// the slow path: the resolver of an IFUNC may copy before the loader has filled in `next`.
        pub static ENTRIES: [EntryPoint; Op::ALL.len()] = [$(EntryPoint {
            min: AtomicUsize::new(0),
            next: pointer_to(at_first::$name as *const ()),
        }),*];

        /// How originals are found, in the order of `Op`.
        static ORIGINALS: [Original; Op::ALL.len()] =
            [$(Original { symbol: Function::$symbol, way: way!($($original)*) }),*];

        /// Functions that serve as originals until start-up, and afterwards where none is looked up.
        mod at_first {
            use super::{ENTRIES, Op, arch, naked_asm, next_offset};
            $( at_first! { $name $($original)* } )*
        }
    };
}

struct Original {
    symbol: Function,
    way: Way,
}

/// Ways to the original of a function; see the table.
enum Way {
    /// Looked up at start-up.
    Found,
    /// Another function's original, which does the same.
    As(Op),
    /// The function of `at_first`, for good.
    Kept,
}

macro_rules! way {
    (found $bootstrap:ident) => {
        Way::Found
    };
    (as $other:ident) => {
        Way::As(Op::$other)
    };
    (from $other:ident $how:ident) => {
        Way::Kept
    };
    (kept $bootstrap:ident) => {
        Way::Kept
    };
}

macro_rules! at_first {
    ($name:ident found $bootstrap:ident) => { pub(super) use super::$bootstrap as $name; };
    ($name:ident kept $bootstrap:ident) => { pub(super) use super::$bootstrap as $name; };
    ($name:ident as $other:ident) => { pub(super) use self::$other as $name; };
    ($name:ident from $other:ident $how:ident) => {
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                arch::change_arguments!($how),
                arch::jump_to_next!(),
                ".cfi_endproc",
                entries = sym ENTRIES,
                next = const next_offset(Op::$other),
            )
        }
    };
}

adma_shared::intercepted_functions! { originals }

const fn pointer_to(function: *const ()) -> AtomicPtr<c_void> {
    AtomicPtr::new(function.cast_mut().cast())
}

/// libc's own memmove, for all copies of ours. A further interposer between us and libc may use
/// thread-local storage, which workers do not have, or call memcpy, that is, us. Until libc's is
/// known, this is a loop of our own.
static LIBC_MEMMOVE: AtomicPtr<c_void> = pointer_to(bootstrap_memmove as *const ());

/// libc's own memset, for the reasons of `LIBC_MEMMOVE`. With another interposer in front of it,
/// this is a loop of our own.
static LIBC_MEMSET: AtomicPtr<c_void> = pointer_to(bootstrap_memset as *const ());

type Memmove = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

/// Type of reads, with as many arguments as the longest of them takes.
pub type ReadFn = unsafe extern "C" fn(usize, usize, usize, usize, usize) -> isize;

/// Set if no interposer stands between us and libc's reads.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static READS_ARE_LIBCS: AtomicBool = AtomicBool::new(false);

/// Set if __read_chk is no cancellation point, as other reads are.
#[unsafe(link_section = ".data")]
static CHECKED_READ_IS_BARE: AtomicBool = AtomicBool::new(false);

/// Finds the originals, at start-up.
pub fn resolve() {
    let libc = lookup::resolve();
    let is_libcs = |op: Op| libc.iter().any(|extent| extent.contains(&(next(op) as usize)));
    let take = |op: Op| set_next(op, lookup::found_at_start(ORIGINALS[op as usize].symbol));
    let is_found = |op: &Op| matches!(ORIGINALS[*op as usize].way, Way::Found);
    let found = || Op::all().filter(is_found); // start-up pays for each
    found().for_each(take);
    let reads_are_libcs = found().filter(|op| op.is_kernel_call()).all(is_libcs);
    READS_ARE_LIBCS.store(reads_are_libcs, Ordering::Release);
    // Before glibc 2.34, __read_chk is a bare system call, which ends no cancelled thread.
    let is_before_2_34 = libc[1].contains(&(next(Op::read) as usize));
    CHECKED_READ_IS_BARE.store(is_before_2_34, Ordering::Release);
    if lookup::is_alone() && found().filter(|op| !op.is_kernel_call()).all(is_libcs) {
        // memcpy of GLIBC_2.2.5 is memmove, and later versions share its code on nearly every CPU:
        // memmove for both keeps overlapping copies right.
        for op in Op::all() {
            if let Way::As(other) = ORIGINALS[op as usize].way {
                set_next(op, next(other));
            }
        }
    } else {
        // Another library's function may call one of ours by name: that must not recurse.
        Op::all().filter(|op| !is_found(op)).for_each(take);
    }
    // From here until the engine is open, our own copies go to libc.
    Op::all().for_each(|op| set_min(op, NEVER));
    if is_libcs(Op::memset) {
        LIBC_MEMSET.store(next(Op::memset), Ordering::Release);
    }
    let memmove = match is_libcs(Op::memmove) {
        true => next(Op::memmove),
        false => lookup::in_libc(Function::memmove),
    };
    if !memmove.is_null() {
        LIBC_MEMMOVE.store(memmove, Ordering::Release);
        // A memcpy that is libc's own is called as memmove, see above.
        if is_libcs(Op::memcpy) {
            set_next(Op::memcpy, memmove);
        }
    }
}

fn set_next(op: Op, found: *mut c_void) {
    if !found.is_null() {
        ENTRIES[op as usize].next.store(found, Ordering::Release);
    }
}

/// Returns whether a read can be shared: no interposer stands between us and libc's reads. An
/// interposer may know descriptors that the kernel does not, and shared reads would bypass it.
pub fn is_libcs_read(op: Op) -> bool {
    let is_bare = || matches!(op, Op::read_chk) && CHECKED_READ_IS_BARE.load(Ordering::Relaxed);
    READS_ARE_LIBCS.load(Ordering::Relaxed) && !is_bare()
}

/// Sets the size in bytes from which `op` takes our slow path.
pub fn set_min(op: Op, bytes: usize) {
    ENTRIES[op as usize].min.store(bytes.div_ceil(op.unit()), Ordering::Release);
}

/// Returns the original of `op`.
pub fn next(op: Op) -> *mut c_void {
    ENTRIES[op as usize].next.load(Ordering::Relaxed)
}

/// Copies as libc does; overlapping ranges are fine.
///
/// # Safety
/// As memmove.
#[inline(always)]
pub unsafe fn copy(dst: usize, src: usize, len: usize) {
    // SAFETY: the pointer is only ever a memmove: the bootstrap one or libc's. memmove
    // may copy the ranges.
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
    // SAFETY: the pointer is only ever a memset, which looks at one byte of the value; the caller
    // promises that memset may fill `dst`.
    unsafe {
        let function: Memset = core::mem::transmute(LIBC_MEMSET.load(Ordering::Relaxed));
        function(dst, value & 0xff, len);
    }
}

/// Compares by the original of `op`.
///
/// # Safety
/// As that function; the length is in bytes.
pub unsafe fn compare(op: Op, a: usize, b: usize, len: usize) -> isize {
    type Memcmp = unsafe extern "C" fn(usize, usize, usize) -> i32;
    // SAFETY: the pointer is only ever a comparison with these arguments; the caller promises what
    // that function demands.
    unsafe {
        let function: Memcmp = core::mem::transmute(next(op));
        function(a, b, len / op.unit()) as isize
    }
}

/// Compares before start-up: reads nothing that the loader has to fill in.
///
/// # Safety
/// As memcmp.
pub unsafe fn compare_before_start(op: Op, a: usize, b: usize, len: usize) -> isize {
    // SAFETY: both sides can be read up to the first difference, as memcmp demands.
    unsafe {
        let same = arch::count_same(a, b, len);
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

pub use arch::count_same;

/// Fills before start-up.
///
/// # Safety
/// As memset.
pub unsafe fn fill_before_start(dst: usize, value: usize, len: usize) {
    // SAFETY: `dst` is writable for `len`, as memset demands.
    unsafe { arch::fill_bytes(dst, value as u8, len) };
}

/// Copies before start-up: reads nothing that the loader has to fill in.
///
/// # Safety
/// As memmove.
pub unsafe fn copy_before_start(dst: usize, src: usize, len: usize) {
    // SAFETY: the caller promises that memmove may copy these ranges, and `bootstrap_memmove` is a memmove.
    unsafe { arch::call_memmove!(bootstrap_memmove, dst, src, len) };
}

/// Assembly functions that end with a return, or with a jump to another.
macro_rules! bootstrap {
    ($($name:ident: $($line:expr),* $(=> $body:ident)?;)*) => { $(
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $($line,)*
                $(concat!(arch::jump!(), " {", stringify!($body), "}"),)?
                ".cfi_endproc",
                $($body = sym $body,)?
            )
        }
    )* };
}

arch::bootstrap_functions!(bootstrap);

unsafe extern "C" fn bootstrap_memcmp(a: usize, b: usize, len: usize) -> i32 {
    // SAFETY: the program has called memcmp with these arguments.
    unsafe { compare_before_start(Op::memcmp, a, b, len) as i32 }
}

unsafe extern "C" fn bootstrap_wmemcmp(a: usize, b: usize, count: usize) -> i32 {
    // SAFETY: the program has called wmemcmp with these arguments.
    unsafe { compare_before_start(Op::wmemcmp, a, b, count * Op::wmemcmp.unit()) as i32 }
}

/// Passes a call of the program on to the kernel. On an error it returns -1 and sets errno, as libc does.
///
/// # Safety
/// The program has made this call, with these arguments.
pub unsafe fn pass_to_kernel(number: i64, arguments: [usize; 6]) -> isize {
    // SAFETY: the program's own arguments, and the address of this thread's errno.
    unsafe {
        let answer = sys::syscall(number, arguments);
        if answer >= 0 {
            return answer;
        }
        *libc::__errno_location() = -answer as i32;
        -1
    }
}

macro_rules! system_call {
    ($($name:ident: $number:ident),* $(,)?) => { $(
        unsafe extern "C" fn $name(
            a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
        ) -> isize {
            // SAFETY: the program has made this call, with these arguments.
            unsafe { pass_to_kernel(libc::$number, [a, b, c, d, e, f]) }
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

macro_rules! found_at_once {
    ($($name:ident: $function:ident;)*) => { $(
        /// Serves constructors of other libraries, which may read before our start-up.
        unsafe extern "C" fn $name(to: usize, size: usize, count: usize, stream: usize) -> isize {
            let found = lookup::original(Function::$function);
            // SAFETY: the original of a function that the program has called with these arguments.
            unsafe { lookup::call(found, [to, size, count, stream]) }.unwrap_or(0)
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
        for op in [Op::memcmp, Op::bcmp, Op::wmemcmp] {
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
        // SAFETY: a mempcpy by construction.
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
