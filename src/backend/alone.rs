//! Streaming stores for a caller that copies without help.
//!
//! libc streams only copies above three quarters of the last-level cache, hundreds of MiB on a
//! server. Below that, each line of the destination is read before it is overwritten, and pushes
//! another one out. Streaming spares both, and four pages at a time keep more reads in flight than
//! one page does.
//!
//! A bad page faults here, in the program's thread and with nothing held, as it does in libc: the
//! loops lie outside the range that `copy_loop::recover` knows.

use super::libc as original;
use super::threads::{Cost, Pieces, Seen};
use crate::backend::copy_loop::CopyLoop;
use crate::os::cpus::{self, Features};
use crate::os::sys;
use crate::plan::PAGE;
use core::arch::global_asm;

/// Pages that are copied side by side.
const SIDE_BY_SIDE: usize = 4;

/// A piece that is timed: long enough for the clock, and short enough for several in a copy.
const TIMED_PIECE: usize = 16 * SIDE_BY_SIDE * PAGE;

/// Copies with the stores that were chosen; returns what pieces made by turns have shown.
///
/// # Safety
/// As memcpy of these arguments.
pub unsafe fn copy(dst: usize, src: usize, len: usize, pieces: Pieces) -> Seen {
    let mut seen = Seen::default();
    match pieces {
        // SAFETY: the caller's promise.
        Pieces::All(CopyLoop::Ordinary) => unsafe { original::copy(dst, src, len) },
        // SAFETY: the caller's promise.
        Pieces::All(CopyLoop::Stream) => unsafe { stream(dst, src, len) },
        Pieces::Alternate => {
            let (mut at, mut now) = (0, sys::ticks());
            while at < len {
                let bytes = TIMED_PIECE.min(len - at);
                let streams = at / TIMED_PIECE % 2 == 1;
                // SAFETY: part of the caller's ranges.
                let cost = unsafe {
                    if streams {
                        stream(dst + at, src + at, bytes);
                        &mut seen.streamed
                    } else {
                        original::copy(dst + at, src + at, bytes);
                        &mut seen.ordinary
                    }
                };
                let then = core::mem::replace(&mut now, sys::ticks());
                *cost = Cost { bytes: cost.bytes + bytes, ticks: cost.ticks + (now - then) };
                at += bytes;
            }
        }
    }
    seen
}

/// # Safety
/// As memcpy of these arguments.
unsafe fn stream(dst: usize, src: usize, len: usize) {
    // SAFETY: the caller's promise; the CPU has the instructions.
    unsafe {
        match cpus::features().contains(Features::AVX512) {
            true => adma_alone_stream_avx512(dst, src, len),
            false => adma_alone_stream_sse2(dst, src, len),
        }
    }
}

unsafe extern "C" {
    fn adma_alone_stream_avx512(dst: usize, src: usize, len: usize);
    fn adma_alone_stream_sse2(dst: usize, src: usize, len: usize);
}

// Registers: rdi next byte to write, r9 source minus destination, r10 the end. Nothing lies on the
// stack, so one unwind entry holds for all of a function.
global_asm!(
    // One line of the cache, `at` bytes further on. Registers from 16 up leave no dirty upper
    // halves behind.
    ".macro adma_alone_line_avx512 at",
    "vmovdqu64 zmm16, [rdi + r9 + \\at]",
    "vmovntdq [rdi + \\at], zmm16",
    ".endm",
    ".macro adma_alone_line_sse2 at",
    "movdqu xmm0, [rdi + r9 + \\at]",
    "movdqu xmm1, [rdi + r9 + \\at + 16]",
    "movdqu xmm2, [rdi + r9 + \\at + 32]",
    "movdqu xmm3, [rdi + r9 + \\at + 48]",
    "movntdq [rdi + \\at], xmm0",
    "movntdq [rdi + \\at + 16], xmm1",
    "movntdq [rdi + \\at + 32], xmm2",
    "movntdq [rdi + \\at + 48], xmm3",
    ".endm",
    ".macro adma_alone name, line",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    ".p2align 6",
    "\\name:",
    ".cfi_startproc",
    "mov r9, rsi",
    "sub r9, rdi",
    "lea r10, [rdi + rdx]",
    // Bytes up to the next line of the cache, or to the end.
    "mov rcx, rdi",
    "neg rcx",
    "and ecx, 63",
    "cmp rcx, rdx",
    "cmova rcx, rdx",
    "rep movsb",
    // Four pages side by side.
    "2:",
    "mov rax, r10",
    "sub rax, rdi",
    "cmp rax, 16384",
    "jb 4f",
    "lea rcx, [rdi + 4096]",
    ".p2align 5",
    "3:",
    "\\line 0",
    "\\line 4096",
    "\\line 8192",
    "\\line 12288",
    "add rdi, 64",
    "cmp rdi, rcx",
    "jb 3b",
    "add rdi, 12288",
    "jmp 2b",
    // Lines that are left, then bytes.
    "4:",
    "cmp rax, 64",
    "jb 5f",
    "\\line 0",
    "add rdi, 64",
    "sub rax, 64",
    "jmp 4b",
    "5:",
    "lea rsi, [rdi + r9]",
    "mov rcx, rax",
    "rep movsb",
    "sfence",
    "ret",
    ".cfi_endproc",
    ".size \\name, . - \\name",
    ".endm",
    ".pushsection .text.adma_alone,\"ax\",@progbits",
    "adma_alone adma_alone_stream_avx512, adma_alone_line_avx512",
    "adma_alone adma_alone_stream_sse2, adma_alone_line_sse2",
    ".popsection",
);

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn every_way_and_edge_copies_the_bytes_and_no_others() {
        let edges = [0, 1, 63, 64, 65, 4095, 16383, 16384, 16385, 65536, 300_001];
        let ways =
            [Pieces::All(CopyLoop::Ordinary), Pieces::All(CopyLoop::Stream), Pieces::Alternate];
        let src: vec::Vec<u8> = (0..400_000u32).map(|i| (i % 251) as u8 | 1).collect();
        for (len, way) in edges.into_iter().flat_map(|len| ways.map(|way| (len, way))) {
            for (to, from) in [(0, 0), (1, 0), (0, 7), (63, 64), (100, 4097)] {
                let mut dst = vec![0u8; len + 200];
                let (at, source) = (dst.as_mut_ptr() as usize + to, src.as_ptr() as usize + from);
                // SAFETY: both ranges are ours, and apart.
                let seen = unsafe { copy(at, source, len, way) };
                assert_eq!(dst[to..to + len], src[from..from + len], "{len} {way:?} {to} {from}");
                assert!(dst[..to].iter().chain(&dst[to + len..]).all(|&byte| byte == 0));
                if way == Pieces::Alternate {
                    assert_eq!(seen.ordinary.bytes + seen.streamed.bytes, len);
                }
            }
        }
    }

    #[test]
    fn both_loops_copy_the_bytes() {
        let src: vec::Vec<u8> = (0..50_000u32).map(|i| (i % 253) as u8).collect();
        let run = |copy: unsafe extern "C" fn(usize, usize, usize)| {
            let mut dst = vec![0u8; 50_000];
            // SAFETY: both ranges are ours, and apart; the CPU has the instructions.
            unsafe { copy(dst.as_mut_ptr() as usize, src.as_ptr() as usize, 50_000) };
            assert!(dst == src);
        };
        run(adma_alone_stream_sse2);
        if cpus::features().contains(Features::AVX512) {
            run(adma_alone_stream_avx512);
        }
    }
}
