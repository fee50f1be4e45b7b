//! Where large calls arrive: each function's own arguments and result, around one way to copy, one
//! to fill and one to compare.

use crate::backend::libc::ENTRIES;
use crate::functions::Op;
use crate::runtime;
use core::ffi::c_void;
use core::sync::atomic::Ordering;

/// The same functions for any caller. Hand-written assembly and JITs may call with a stack that is
/// misaligned by 8 bytes: libc's functions do not mind, but compiled code does. The frame is an
/// ordinary one, so that debuggers and unwinders find the caller. Where that goes on is handed over
/// as the fifth argument, for the table of call sites.
pub mod aligned {
    use crate::backend::libc::ENTRIES;
    use crate::functions::{EntryPoint, Op};
    use core::arch::naked_asm;
    use core::mem::offset_of;

    macro_rules! aligned {
        ($($name:ident),* $(,)?) => { $(
            #[unsafe(naked)]
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

    /// Most comparisons end with their first bytes. Those are looked at before there is even a
    /// frame, and where they differ the call is libc's as if we were not there: no time, no count.
    /// No page is touched but those where the two sides begin.
    macro_rules! looking {
        ($($name:ident: $op:ident to $slow:ident),* $(,)?) => { $(
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc",
                    // Before start-up, and for a profile: everything is seen.
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
                    min = const Op::$op as usize * size_of::<EntryPoint>() + offset_of!(EntryPoint, min),
                    next = const Op::$op as usize * size_of::<EntryPoint>() + offset_of!(EntryPoint, next),
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

macro_rules! plain {
    ($($name:ident: $op:ident gives $result:expr),* $(,)?) => { $(
        unsafe extern "C" fn $name(
            dst: usize,
            src: usize,
            len: usize,
            _: usize,
            site: usize,
        ) -> usize {
            // SAFETY: the program's promise to memcpy.
            unsafe { runtime::copy(Op::$op, site, dst, src, len) };
            let result: fn(usize, usize) -> usize = $result;
            result(dst, len)
        }
    )* };
}

plain! {
    memcpy: Memcpy gives |dst, _| dst,
    memmove: Memmove gives |dst, _| dst,
    mempcpy: Mempcpy gives |dst, len| dst.wrapping_add(len),
}

unsafe extern "C" fn bcopy(src: usize, dst: usize, len: usize, _: usize, site: usize) {
    // SAFETY: the program's promise to bcopy.
    unsafe { runtime::copy(Op::Bcopy, site, dst, src, len) };
}

macro_rules! wide {
    ($($name:ident: $op:ident),* $(,)?) => { $(
        unsafe extern "C" fn $name(
            dst: usize,
            src: usize,
            count: usize,
            _: usize,
            site: usize,
        ) -> usize {
            // A count of more bytes than there are addresses is libc's to fail on.
            match count.checked_mul(Op::$op.unit()) {
                // SAFETY: the program's promise.
                Some(len) => unsafe { runtime::copy(Op::$op, site, dst, src, len) },
                None => {
                    // SAFETY: the program's own call, passed on.
                    unsafe { original(Op::$op, dst, src, count, 0) };
                }
            }
            dst
        }
    )* };
}

wide! {
    wmemcpy: Wmemcpy,
    wmemmove: Wmemmove,
}

macro_rules! checked {
    ($($name:ident: $op:ident gives $result:expr),* $(,)?) => { $(
        unsafe extern "C" fn $name(
            dst: usize,
            src: usize,
            len: usize,
            room: usize,
            site: usize,
        ) -> usize {
            if room < len {
                // SAFETY: the program's own call, passed on: libc ends the program.
                return unsafe { original(Op::$op, dst, src, len, room) };
            }
            // SAFETY: the program's promise.
            unsafe { runtime::copy(Op::$op, site, dst, src, len) };
            let result: fn(usize, usize) -> usize = $result;
            result(dst, len)
        }
    )* };
}

checked! {
    memcpy_chk: MemcpyChk gives |dst, _| dst,
    memmove_chk: MemmoveChk gives |dst, _| dst,
    mempcpy_chk: MempcpyChk gives |dst, len| dst.wrapping_add(len),
}

unsafe extern "C" fn memset(dst: usize, value: usize, len: usize, _: usize, site: usize) -> usize {
    // SAFETY: the program's promise to memset.
    unsafe { runtime::fill(Op::Memset, site, dst, value as u8, len) };
    dst
}

unsafe extern "C" fn bzero(dst: usize, len: usize, _: usize, _: usize, site: usize) {
    // SAFETY: the program's promise to bzero.
    unsafe { runtime::fill(Op::Bzero, site, dst, 0, len) };
}

unsafe extern "C" fn memset_chk(
    dst: usize,
    value: usize,
    len: usize,
    room: usize,
    site: usize,
) -> usize {
    if room < len {
        // SAFETY: the program's own call, passed on: libc ends the program.
        return unsafe { original(Op::MemsetChk, dst, value, len, room) };
    }
    // SAFETY: the program's promise.
    unsafe { runtime::fill(Op::MemsetChk, site, dst, value as u8, len) };
    dst
}

/// Characters of four equal bytes, such as 0, are filled as bytes are.
unsafe extern "C" fn wmemset(
    dst: usize,
    value: usize,
    count: usize,
    _: usize,
    site: usize,
) -> usize {
    match (count.checked_mul(Op::Wmemset.unit()), (value as u32).to_ne_bytes()) {
        (Some(len), [a, b, c, d]) if a == b && b == c && c == d => {
            // SAFETY: the program's promise.
            unsafe { runtime::fill(Op::Wmemset, site, dst, a, len) };
            dst
        }
        // SAFETY: the program's own call, passed on.
        _ => unsafe { original(Op::Wmemset, dst, value, count, 0) },
    }
}

macro_rules! compared {
    ($($name:ident: $op:ident),* $(,)?) => { $(
        unsafe extern "C" fn $name(
            a: usize,
            b: usize,
            count: usize,
            _: usize,
            site: usize,
        ) -> isize {
            match count.checked_mul(Op::$op.unit()) {
                // SAFETY: the program's promise.
                Some(len) => unsafe { runtime::compare(Op::$op, site, a, b, len) },
                // SAFETY: the program's own call, passed on.
                None => unsafe { original(Op::$op, a, b, count, 0) as isize },
            }
        }
    )* };
}

compared! {
    memcmp: Memcmp,
    bcmp: Bcmp,
    wmemcmp: Wmemcmp,
}

/// The function we stand in front of, with the arguments it was called with.
unsafe fn original(op: Op, dst: usize, src: usize, len: usize, room: usize) -> usize {
    type MemoryFn = unsafe extern "C" fn(usize, usize, usize, usize) -> usize;
    let next: *mut c_void = ENTRIES[op as usize].next.load(Ordering::Relaxed);
    // SAFETY: a function of these arguments, or of the first three of them.
    unsafe { core::mem::transmute::<*mut c_void, MemoryFn>(next)(dst, src, len, room) }
}
