//! Slow path of large calls: converts each function's arguments and result for one way to copy, one
//! to fill and one to compare.

use crate::backend::libc as original;
use crate::backend::threads::task::{Task, Work};
use crate::functions::Op;
use crate::runtime::DISPATCHER;
use core::ffi::c_void;

/// Frames for any caller. Hand-written assembly and JITs may call with a stack that is misaligned
/// by 8 bytes: libc's functions do not mind, but compiled code does. The frame is an ordinary one,
/// so that debuggers and unwinders find the caller, whose return address is the fifth argument, for
/// the table of call sites.
pub mod aligned {
    use crate::backend::libc::ENTRIES;
    use crate::functions::{Op, min_offset, next_offset};
    use core::arch::naked_asm;

    macro_rules! aligned {
        ($($name:ident),* $(,)?) => { $(
            #[unsafe(naked)]
            #[unsafe(link_section = ".text.fork")]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc",
                    "mov r8, [rsp]", // the call site, behind the four arguments that there can be
                    "push rbp",
                    ".cfi_def_cfa_offset 16",
                    ".cfi_offset rbp, -16",
                    "mov rbp, rsp",
                    ".cfi_def_cfa_register rbp",
                    "and rsp, -16",
                    "call {slow}",
                    "leave",
                    ".cfi_def_cfa rsp, 8",
                    "ret",
                    ".cfi_endproc",
                    slow = sym super::$name,
                )
            }
        )* };
    }

    aligned! {
        memcpy, memmove, mempcpy, bcopy, wmemcpy, wmemmove, memcpy_chk, memmove_chk, mempcpy_chk,
        memset, memset_chk, bzero, wmemset, memcmp, bcmp, wmemcmp,
    }

    /// Compares the first bytes, which end most comparisons, before there is even a frame. If they
    /// differ, the call goes to libc untimed and uncounted. Touches only the pages where the two
    /// sides begin.
    macro_rules! looking {
        ($($name:ident: $op:ident to $slow:ident),* $(,)?) => { $(
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc",
                    // 0 before start-up, and for a profile: every call is seen.
                    "cmp qword ptr [rip + {entries} + {min}], 0",
                    "je {slow}",
                    "cmp rdx, 4096",
                    "jb {slow}",
                    "mov eax, edi",
                    "mov ecx, esi",
                    "and eax, 4095",
                    "and ecx, 4095",
                    "cmp eax, 4096 - 128",
                    "ja {slow}",
                    "cmp ecx, 4096 - 128",
                    "ja {slow}",
                    "xor ecx, ecx",
                    "2:",
                    "movdqu xmm0, [rdi + rcx]",
                    "movdqu xmm4, [rsi + rcx]",
                    "movdqu xmm1, [rdi + rcx + 16]",
                    "movdqu xmm5, [rsi + rcx + 16]",
                    "movdqu xmm2, [rdi + rcx + 32]",
                    "movdqu xmm6, [rsi + rcx + 32]",
                    "movdqu xmm3, [rdi + rcx + 48]",
                    "movdqu xmm7, [rsi + rcx + 48]",
                    "pcmpeqb xmm0, xmm4",
                    "pcmpeqb xmm1, xmm5",
                    "pcmpeqb xmm2, xmm6",
                    "pcmpeqb xmm3, xmm7",
                    "pand xmm0, xmm1",
                    "pand xmm2, xmm3",
                    "pand xmm0, xmm2",
                    "pmovmskb eax, xmm0",
                    "cmp eax, 0xffff",
                    "jne 3f",
                    "xor ecx, 64",
                    "jnz 2b",
                    "jmp {slow}",
                    "3:",
                    "jmp qword ptr [rip + {entries} + {next}]",
                    ".cfi_endproc",
                    entries = sym ENTRIES,
                    min = const min_offset(Op::$op),
                    next = const next_offset(Op::$op),
                    slow = sym $slow,
                )
            }
        )* };
    }

    looking! {
        looking_memcmp: Memcmp to memcmp,
        looking_bcmp: Bcmp to bcmp,
        looking_wmemcmp: Wmemcmp to wmemcmp,
    }
}

/// Rust entry points of large calls, with their results.
macro_rules! slow {
    ($($name:ident($a:ident, $b:ident, $c:ident, $d:ident, $site:ident) $answer:expr;)*) => { $(
        #[unsafe(link_section = ".text.fork")] // see `entry`
        unsafe extern "C" fn $name(
            $a: usize, $b: usize, $c: usize, $d: usize, $site: usize,
        ) -> usize {
            // SAFETY: the program's own call.
            unsafe { $answer }
        }
    )* };
}

slow! {
    memcpy(dst, src, len, _d, site) copy(Op::Memcpy, dst, src, len, ANY, site);
    memmove(dst, src, len, _d, site) copy(Op::Memmove, dst, src, len, ANY, site);
    mempcpy(dst, src, len, _d, site)
        copy(Op::Mempcpy, dst, src, len, ANY, site).wrapping_add(len);
    bcopy(src, dst, len, _d, site) copy(Op::Bcopy, dst, src, len, ANY, site);
    wmemcpy(dst, src, count, _d, site) copy(Op::Wmemcpy, dst, src, count, ANY, site);
    wmemmove(dst, src, count, _d, site) copy(Op::Wmemmove, dst, src, count, ANY, site);
    memcpy_chk(dst, src, len, room, site) copy(Op::MemcpyChk, dst, src, len, room, site);
    memmove_chk(dst, src, len, room, site) copy(Op::MemmoveChk, dst, src, len, room, site);
    mempcpy_chk(dst, src, len, room, site)
        copy(Op::MempcpyChk, dst, src, len, room, site).wrapping_add(len);
    memset(dst, value, len, _d, site) fill(Op::Memset, dst, value, len, ANY, site);
    memset_chk(dst, value, len, room, site) fill(Op::MemsetChk, dst, value, len, room, site);
    bzero(dst, len, _c, _d, site) fill(Op::Bzero, dst, 0, len, ANY, site);
    wmemset(dst, value, count, _d, site) fill(Op::Wmemset, dst, value, count, ANY, site);
    memcmp(a, b, count, _d, site) compare(Op::Memcmp, a, b, count, site);
    bcmp(a, b, count, _d, site) compare(Op::Bcmp, a, b, count, site);
    wmemcmp(a, b, count, _d, site) compare(Op::Wmemcmp, a, b, count, site);
}

/// Room at the destination for functions that do not check it.
const ANY: usize = usize::MAX;

/// Returns the bytes of `count` units. `None`: they do not fit, so libc ends the program, or exceed
/// the address space, so it fails.
fn bytes(op: Op, count: usize, room: usize) -> Option<usize> {
    count.checked_mul(op.unit()).filter(|&len| len <= room)
}

unsafe fn copy(op: Op, dst: usize, src: usize, count: usize, room: usize, site: usize) -> usize {
    // SAFETY: the program's promise.
    unsafe {
        let Some(len) = bytes(op, count, room) else {
            return pass_on(op, dst, src, count, room);
        };
        DISPATCHER.call(Some(op), site, &Task { work: Work::Copy, dst, src, len });
    }
    dst
}

/// Fills. Wide characters of four equal bytes, such as 0, are filled as bytes.
unsafe fn fill(op: Op, dst: usize, value: usize, count: usize, room: usize, site: usize) -> usize {
    let byte = value as u8;
    let is_byte = op.unit() == 1 || value as u32 == u32::from_ne_bytes([byte; 4]);
    // SAFETY: the program's promise.
    unsafe {
        let Some(len) = bytes(op, count, room).filter(|_| is_byte) else {
            return pass_on(op, dst, value, count, room);
        };
        DISPATCHER.call(Some(op), site, &Task::fill(dst, byte, len));
    }
    dst
}

unsafe fn compare(op: Op, a: usize, b: usize, count: usize, site: usize) -> usize {
    // SAFETY: the program's promise.
    unsafe {
        let Some(len) = bytes(op, count, ANY) else { return pass_on(op, a, b, count, ANY) };
        let task = Task { work: Work::Compare(op), dst: a, src: b, len };
        DISPATCHER.call(Some(op), site, &task) as usize
    }
}

/// Calls the function we stand in front of, with the arguments it was called with.
unsafe fn pass_on(op: Op, dst: usize, src: usize, len: usize, room: usize) -> usize {
    type MemoryFn = unsafe extern "C" fn(usize, usize, usize, usize) -> usize;
    // SAFETY: a function of these arguments, or of the first three of them.
    unsafe {
        let next = core::mem::transmute::<*mut c_void, MemoryFn>(original::next(op));
        next(dst, src, len, room)
    }
}
