//! aarch64, little-endian, with pages of 4 KiB.

mod entries;
mod loops;

pub(crate) use entries::*;
pub use loops::*;

use crate::os::cpus::Features;
use crate::os::sys;
use core::arch::asm;
use core::num::NonZeroUsize;

macro_rules! system_call {
    ($number:expr, $argument:ident) => {{
        let answer;
        // The kernel clobbers x0 only.
        core::arch::asm!(
            "svc #0",
            in("x8") $number,
            inlateout("x0") $argument(0) => answer,
            in("x1") $argument(1), in("x2") $argument(2), in("x3") $argument(3),
            in("x4") $argument(4), in("x5") $argument(5),
            options(nostack),
        );
        answer
    }};
}

pub(crate) use system_call;

macro_rules! clone_thread {
    ($flags:expr, $stack:expr, $tid:expr, $alive:expr, $number:expr, $begin:path) => {{
        let answer;
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "b {begin}",
            "2:",
            inlateout("x0") $flags => answer,
            in("x1") $stack,
            in("x2") $tid,
            in("x3") 0usize,
            in("x4") $alive,
            in("x5") $number,
            in("x8") libc::SYS_clone,
            begin = sym $begin,
        );
        answer
    }};
}

pub(crate) use clone_thread;

pub fn obstacle() -> Option<&'static str> {
    const HWCAP2_POE: u64 = 1 << 63;
    let is_small = sys::auxiliary(libc::AT_PAGESZ) == Some(4096);
    let has_keys = || sys::auxiliary(libc::AT_HWCAP2).unwrap_or(0) & HWCAP2_POE != 0;
    match is_small {
        false => Some("pages are larger than 4 KiB"),
        // Workers would have to take on the rights of their callers.
        true => has_keys().then_some("the CPU has protection keys"),
    }
}

/// Returns the features: those of x86-64 are missing.
pub fn features() -> Features {
    Features::KNOWN
}

/// Returns the bytes of the last-level cache: programs cannot ask for them.
pub fn last_level_cache() -> Option<NonZeroUsize> {
    None
}

pub fn can_read_thread_register() -> bool {
    true
}

/// Returns the base of the thread's storage.
///
/// # Safety
/// None needed here.
#[inline(always)]
pub unsafe fn thread_register() -> u64 {
    let base: u64;
    // SAFETY: every program may read this register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base
}

/// Reads the virtual counter. It is scaled to between 1 and 2 GHz, because what waits for a number of
/// ticks has x86-64's in mind.
#[inline(always)]
pub fn ticks() -> u64 {
    let (count, frequency): (u64, u64);
    // SAFETY: the kernel lets programs read both registers.
    unsafe {
        asm!("mrs {}, cntvct_el0", "mrs {}, cntfrq_el0", out(reg) count, out(reg) frequency,
            options(nomem, nostack, preserves_flags));
    }
    count << frequency.leading_zeros().saturating_sub((1u64 << 30).leading_zeros())
}

#[inline(always)]
pub fn end_loads() {
    // SAFETY: changes nothing.
    unsafe { asm!("dsb ld", "isb", options(nostack, preserves_flags)) };
}

#[inline(always)]
pub fn spend_cycles(turns: u64) {
    // SAFETY: changes nothing.
    unsafe {
        asm!(
            "2:", ".rept 8", "add {sum}, {sum}, {turns}", ".endr", "subs {turns}, {turns}, #1", "b.ne 2b",
            sum = inout(reg) 0u64 => _, turns = inout(reg) turns => _, options(nomem, nostack),
        );
    }
}

#[inline(always)]
pub fn full_fence() {
    // SAFETY: changes nothing.
    unsafe { asm!("dmb ish", options(nostack, preserves_flags)) };
}

#[inline(always)]
pub fn fetch_to_change(address: usize) {
    // SAFETY: a prefetch changes no memory, and faults at no address.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

#[inline(always)]
pub fn fetch(address: usize) {
    // SAFETY: changes nothing.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Protection-key rights: with keys nothing is shared, see `obstacle`.
///
/// # Safety
/// None needed here.
pub unsafe fn rights() -> u32 {
    0
}

/// See `rights`.
///
/// # Safety
/// None needed here.
pub unsafe fn set_rights(_: u32) {}

pub unsafe fn copy_bytes(to: usize, from: usize, len: usize) {
    // SAFETY: memcpy may copy these ranges, by the caller's promise.
    unsafe {
        asm!("2: cbz {len}, 3f", "ldrb {byte:w}, [{from}], #1", "strb {byte:w}, [{to}], #1",
            "sub {len}, {len}, #1", "b 2b", "3:",
            len = inout(reg) len => _, from = inout(reg) from => _, to = inout(reg) to => _,
            byte = out(reg) _, options(nostack, preserves_flags));
    }
}

pub unsafe fn fill_bytes(dst: usize, value: u8, len: usize) {
    // SAFETY: `dst` is writable for `len`, by the caller's promise.
    unsafe {
        asm!("2: cbz {len}, 3f", "strb {value:w}, [{dst}], #1", "sub {len}, {len}, #1", "b 2b", "3:",
            len = inout(reg) len => _, dst = inout(reg) dst => _, value = in(reg) value as u32,
            options(nostack, preserves_flags));
    }
}

pub unsafe fn count_same(a: usize, b: usize, len: usize) -> usize {
    let mut same = 0;
    // SAFETY: nothing behind the first difference is read.
    unsafe {
        while same < len && ((a + same) as *const u8).read() == ((b + same) as *const u8).read() {
            same += 1;
        }
    }
    same
}

macro_rules! call_memmove {
    ($memmove:path, $dst:expr, $src:expr, $len:expr) => {
        core::arch::asm!("bl {copy}", copy = sym $memmove,
            inout("x0") $dst => _, inout("x1") $src => _, inout("x2") $len => _,
            out("x3") _, out("x4") _, out("x30") _)
    };
}

pub(crate) use call_memmove;

pub unsafe fn call_on_stack(top: usize, function: extern "C" fn()) {
    // SAFETY: the stack pointer is saved in x20, which `function` preserves, and restored from it afterwards.
    unsafe {
        asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {function}",
            "mov sp, x20",
            top = in(reg) top & !15,
            function = in(reg) function,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}

pub fn register_atfork() -> usize {
    let address: usize;
    // SAFETY: reads the symbol's entry in the global offset table: an address, or null, because the symbol is
    // weak.
    unsafe {
        asm!(".weak __register_atfork",
            "adrp {0}, :got:__register_atfork",
            "ldr {0}, [{0}, :got_lo12:__register_atfork]",
            out(reg) address, options(pure, readonly, nostack, preserves_flags));
    }
    address
}

#[repr(C)]
pub struct Ucontext {
    before: [u64; 5],
    pub mask: u64,
    between: [u64; 17],
    registers: [usize; 31],
    pub stack: usize,
    pub instruction: usize,
}

impl Ucontext {
    pub const INSTRUCTION: usize = core::mem::offset_of!(Ucontext, instruction);
}

const _: () = {
    use core::mem::offset_of;
    const MACHINE: usize = offset_of!(libc::ucontext_t, uc_mcontext);
    const PC: usize = MACHINE + offset_of!(libc::mcontext_t, pc);
    assert!(Ucontext::INSTRUCTION == PC);
    assert!(offset_of!(Ucontext, mask) == offset_of!(libc::ucontext_t, uc_sigmask));
};

/// Handlers return to the kernel's own code where the program's action says nothing.
pub fn restorer() -> Option<usize> {
    None
}
