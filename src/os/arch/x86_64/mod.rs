//! x86-64.

mod entries;
mod loops;

pub(crate) use entries::*;
pub use loops::*;

use crate::os::cpus::Features;
use crate::os::sys;
use core::arch::x86_64::{__cpuid_count, _mm_lfence, _rdtsc};
use core::arch::{asm, global_asm};
use core::num::NonZeroUsize;

/// Makes a system call; the function `$argument` returns its arguments by number.
macro_rules! system_call {
    ($number:expr, $argument:ident) => {{
        let answer;
        // The kernel clobbers rax, rcx and r11 only.
        core::arch::asm!(
            "syscall",
            inlateout("rax") $number => answer,
            in("rdi") $argument(0), in("rsi") $argument(1), in("rdx") $argument(2),
            in("r10") $argument(3), in("r8") $argument(4), in("r9") $argument(5),
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
        answer
    }};
}

pub(crate) use system_call;

/// Clones a thread with libc::SYS_clone. It begins in the function `$begin`, which finds `$number` in
/// a register, see `first_frame`.
macro_rules! clone_thread {
    ($flags:expr, $stack:expr, $tid:expr, $alive:expr, $number:expr, $begin:path) => {{
        let answer;
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jz {begin}",
            inlateout("rax") libc::SYS_clone => answer,
            in("rdi") $flags,
            in("rsi") $stack,
            in("rdx") $tid,
            in("r10") $alive,
            in("r8") 0usize,
            in("r12") $number,
            lateout("rcx") _,
            lateout("r11") _,
            begin = sym $begin,
        );
        answer
    }};
}

pub(crate) use clone_thread;

/// Returns why all is left to libc on this machine; `None`: nothing speaks against us.
pub fn obstacle() -> Option<&'static str> {
    None
}

/// Asks the CPU for its features.
pub fn features() -> Features {
    let mut features = Features::KNOWN;
    // For a leaf beyond its highest, an Intel CPU returns the values of another leaf.
    if __cpuid_count(0, 0).eax >= 7 {
        let (leaf, saved) = (__cpuid_count(7, 0), saved_registers());
        features.set(Features::PROTECTION_KEYS, leaf.ecx >> 4 & 1 == 1);
        features.set(Features::AVX512, saved & 0xe6 == 0xe6 && leaf.ebx >> 16 & 1 == 1);
        features.set(Features::AVX2, saved & 6 == 6 && leaf.ebx >> 5 & 1 == 1);
        features.set(Features::ERMS, leaf.ebx >> 9 & 1 == 1);
    }
    features
}

/// Returns the low half of XCR0: one bit for each set of registers that the kernel saves.
fn saved_registers() -> u32 {
    if __cpuid_count(1, 0).ecx >> 27 & 1 == 0 {
        return 0; // no xgetbv
    }
    let saved: u32;
    // SAFETY: the bit checked above (OSXSAVE) means that the CPU has xgetbv and the kernel has enabled it.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") saved, out("edx") _,
            options(nomem, nostack, preserves_flags));
    }
    saved
}

/// Asks the CPU for the bytes of its last-level cache. `None`: it does not report them.
pub fn last_level_cache() -> Option<NonZeroUsize> {
    let size = |index| {
        let cache = __cpuid_count(4, index);
        let field = |shift: u32, bits: u32| (cache.ebx >> shift & ((1 << bits) - 1)) as usize + 1;
        let bytes = field(22, 10) * field(12, 10) * field(0, 12) * (cache.ecx as usize + 1);
        (cache.eax & 0x1f != 0).then_some(bytes)
    };
    (0..8).map_while(size).last().and_then(NonZeroUsize::new)
}

/// Returns whether programs may read `thread_register`.
pub fn can_read_thread_register() -> bool {
    const HWCAP2_FSGSBASE: u64 = 2;
    sys::auxiliary(libc::AT_HWCAP2).is_some_and(|bits| bits & HWCAP2_FSGSBASE != 0)
}

/// Returns the FS base.
///
/// # Safety
/// `can_read_thread_register`.
#[inline(always)]
pub unsafe fn thread_register() -> u64 {
    let base: u64;
    // SAFETY: the kernel lets programs read this register, by the caller's promise.
    unsafe { asm!("rdfsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base
}

/// Reads the time stamp counter.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 has it; user space may read it unless prctl(PR_SET_TSC) forbids,
    // which also breaks glibc's own clock.
    unsafe { _rdtsc() }
}

/// Waits until earlier loads have ended, so that a clock is not read before.
#[inline(always)]
pub fn end_loads() {
    // SAFETY: every x86-64 has the barrier.
    unsafe { _mm_lfence() };
}

/// Takes eight cycles for each of `turns`, on any core: additions that wait for each other. Not of constants,
/// which some cores add while they rename registers.
#[inline(always)]
pub fn spend_cycles(turns: u64) {
    // SAFETY: changes nothing.
    unsafe {
        asm!(
            "2:", ".rept 8", "add {sum}, {turns}", ".endr", "sub {turns}, 1", "jnz 2b",
            sum = inout(reg) 0u64 => _, turns = inout(reg) turns => _, options(nomem, nostack),
        );
    }
}

/// Orders earlier stores before later loads (store-load barrier).
#[inline(always)]
pub fn full_fence() {
    // A locked instruction does what mfence does, in half the time.
    // SAFETY: changes nothing.
    unsafe { asm!("lock or dword ptr [rsp], 0") };
}

/// Prefetches a line that will be changed, and its address translation.
#[inline(always)]
pub fn fetch_to_change(address: usize) {
    // SAFETY: a prefetch changes no memory, and faults at no address.
    unsafe { asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Prefetches a line that will be read.
#[inline(always)]
pub fn fetch(address: usize) {
    // SAFETY: changes nothing.
    unsafe { asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Reads the protection-key rights of this thread.
///
/// # Safety
/// The CPU has protection keys.
#[inline(always)]
pub unsafe fn rights() -> u32 {
    let rights;
    // SAFETY: the CPU has the instruction, by the caller's promise; it touches no memory.
    unsafe {
        asm!("rdpkru", out("eax") rights, in("ecx") 0, out("edx") _,
            options(nomem, nostack, preserves_flags));
    }
    rights
}

/// Sets the protection-key rights of this thread.
///
/// # Safety
/// The CPU has protection keys, and with these rights this thread reaches its stack and our data.
#[inline(always)]
pub unsafe fn set_rights(rights: u32) {
    // SAFETY: what the caller promises.
    unsafe {
        asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0,
            options(nostack, preserves_flags));
    }
}

/// Copies without calling memcpy, that is, us.
///
/// # Safety
/// As memcpy.
#[inline(always)]
pub unsafe fn copy_bytes(to: usize, from: usize, len: usize) {
    // SAFETY: memcpy may copy these ranges, by the caller's promise.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
             options(nostack, preserves_flags));
    }
}

/// Fills without calling memset, that is, us.
///
/// # Safety
/// As memset.
#[inline(always)]
pub unsafe fn fill_bytes(dst: usize, value: u8, len: usize) {
    // SAFETY: `dst` is writable for `len`, by the caller's promise.
    unsafe {
        asm!("rep stosb", inout("rdi") dst => _, inout("rcx") len => _, in("al") value,
            options(nostack, preserves_flags));
    }
}

/// Counts the equal bytes before the first difference, and reads nothing behind it.
///
/// # Safety
/// Both sides can be read up to the first difference.
#[inline(always)]
pub unsafe fn count_same(a: usize, b: usize, len: usize) -> usize {
    let end: usize;
    // SAFETY: both sides can be read up to the first difference.
    unsafe {
        asm!("cmp rcx, rcx", "repe cmpsb", "je 2f", "dec rsi", "2:",
            inout("rsi") a => end, inout("rdi") b => _, inout("rcx") len => _,
            options(nostack, readonly));
    }
    end - a
}

/// Calls `bootstrap_memmove`, of which it is known which registers change.
macro_rules! call_memmove {
    ($memmove:path, $dst:expr, $src:expr, $len:expr) => {
        core::arch::asm!("call {copy}", copy = sym $memmove,
            inout("rdi") $dst => _, inout("rsi") $src => _, in("rdx") $len,
            out("rax") _, out("rcx") _, out("r8") _)
    };
}

pub(crate) use call_memmove;

/// Calls a function on another stack, whose upper end is given.
///
/// # Safety
/// `top` is the upper end of a stack that is large enough for `function` and not in use.
pub unsafe fn call_on_stack(top: usize, function: extern "C" fn()) {
    // SAFETY: the stack pointer is saved in r12, which `function` preserves, and restored from it afterwards.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) top & !15,
            function = in(reg) function,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Returns the address of the C library's __register_atfork, a weak symbol; 0: it is not defined.
pub fn register_atfork() -> usize {
    let address: usize;
    // SAFETY: reads the symbol's entry in the global offset table: an address, or null, because the symbol is
    // weak.
    unsafe {
        asm!(".weak __register_atfork",
            "mov {}, qword ptr [rip + __register_atfork@GOTPCREL]",
            out(reg) address, options(pure, readonly, nostack, preserves_flags));
    }
    address
}

/// Part of the kernel's ucontext that is used here.
#[repr(C)]
pub struct Ucontext {
    before: [u64; 5],
    /// r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx
    registers: [usize; 15],
    /// The stack pointer
    pub stack: usize,
    /// The instruction pointer
    pub instruction: usize,
    between: [u64; 15],
    pub mask: u64,
}

impl Ucontext {
    /// Returns the offset of a register, for `entries`.
    pub const fn offset_of(number: usize) -> usize {
        core::mem::offset_of!(Ucontext, registers) + 8 * number
    }

    pub const INSTRUCTION: usize = core::mem::offset_of!(Ucontext, instruction);
}

const _: () = assert!(Ucontext::INSTRUCTION == 168 && core::mem::offset_of!(Ucontext, mask) == 296);

/// Returns where handlers return to if the program's action says nothing, which this kernel demands:
/// unwinders and debuggers recognise such a frame by these bytes, if no unwind table covers them. They look
/// one byte before a return address, which is what the nop is for.
pub fn restorer() -> Option<usize> {
    unsafe extern "C" {
        static adma_restorer: u8;
    }
    Some(&raw const adma_restorer as usize)
}

global_asm!(
    ".pushsection .text.adma_restorer,\"ax\",@progbits",
    ".p2align 4",
    "nop",
    ".globl adma_restorer",
    ".hidden adma_restorer",
    ".type adma_restorer, @function",
    "adma_restorer:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00", // mov rax, SYS_rt_sigreturn
    ".byte 0x0f, 0x05",                               // syscall
    ".size adma_restorer, . - adma_restorer",
    ".popsection",
);
