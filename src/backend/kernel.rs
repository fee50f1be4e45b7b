//! How a piece is copied: three kernels, and one that never faults.
//!
//! Which one is the default was decided by `bench/run kernels`; see bench/README.md.

use super::libc;
use crate::{cpus, sys};
use ::libc::EFAULT;
use core::arch::{asm, x86_64::*};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// libc's own memmove.
    Libc,
    /// `rep movsb`: microcode chooses.
    Movsb,
    /// Streaming stores: the destination does not enter the cache.
    Stream,
    /// The kernel copies and answers with a short count where a page is bad.
    NoFault { tid: i32 },
}

/// How a piece ended. All kernels but `NoFault` know only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    Whole,
    BadPage,
    /// The system call itself is not to be had.
    Refused,
}

impl Kernel {
    /// Copies one piece.
    ///
    /// # Safety
    /// Ranges do not overlap, no Rust reference covers `dst`; and unless the kernel is
    /// `NoFault`, `dst` is writable and `src` readable, or the process may die of it.
    pub unsafe fn copy(self, dst: usize, src: usize, len: usize) -> Copied {
        // SAFETY: the caller's promise is each kernel's.
        unsafe {
            match self {
                Kernel::Libc => libc::copy_in_worker(dst, src, len),
                Kernel::Movsb => movsb(dst, src, len),
                Kernel::Stream => stream(dst, src, len),
                Kernel::NoFault { tid } => {
                    return match sys::copy_without_fault(tid, dst, src, len) {
                        count if count == len as sys::Answer => Copied::Whole,
                        answer if answer >= 0 || -answer as i32 == EFAULT => Copied::BadPage,
                        _ => Copied::Refused,
                    };
                }
            }
        }
        Copied::Whole
    }
}

unsafe fn movsb(dst: usize, src: usize, len: usize) {
    // SAFETY: as `Kernel::copy`; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") dst => _, inout("rsi") src => _,
            options(nostack, preserves_flags));
    }
}

/// A line of the cache; streaming stores that fill one whole are written out as one.
const LINE: usize = 64;

unsafe fn stream(dst: usize, src: usize, len: usize) {
    let head = (dst.wrapping_neg() % LINE).min(len);
    let body = (len - head) / LINE * LINE;
    // SAFETY: as `Kernel::copy`; the body's destination is aligned to a line by `head`, and
    // the wide variant is called only where the CPU has it.
    unsafe {
        movsb(dst, src, head);
        if cpus::features().avx512 {
            stream_lines_avx512(dst + head, src + head, body);
        } else {
            stream_lines_sse2(dst + head, src + head, body);
        }
        // Streaming stores are weakly ordered; the piece is announced as done after this.
        _mm_sfence();
        movsb(dst + head + body, src + head + body, len - head - body);
    }
}

/// # Safety
/// As `Kernel::copy`; `dst` aligned to a line, `len` a multiple of it; the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn stream_lines_avx512(dst: usize, src: usize, len: usize) {
    for at in (0..len).step_by(LINE) {
        // SAFETY: inside the ranges.
        unsafe {
            let line = _mm512_loadu_si512((src + at) as *const __m512i);
            _mm512_stream_si512((dst + at) as *mut __m512i, line);
        }
    }
}

/// # Safety
/// As `Kernel::copy`; `dst` aligned to a line, `len` a multiple of it.
unsafe fn stream_lines_sse2(dst: usize, src: usize, len: usize) {
    for at in (0..len).step_by(LINE) {
        let (to, from) = ((dst + at) as *mut __m128i, (src + at) as *const __m128i);
        // SAFETY: inside the ranges.
        unsafe {
            let line = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            _mm_stream_si128(to, line[0]);
            _mm_stream_si128(to.add(1), line[1]);
            _mm_stream_si128(to.add(2), line[2]);
            _mm_stream_si128(to.add(3), line[3]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One table for every kernel, against one naive oracle.
    #[test]
    fn kernels_every_edge_match_naive() {
        libc::resolve();
        let source: Vec<u8> = (0..9000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let kernels =
            [Kernel::Libc, Kernel::Movsb, Kernel::Stream, Kernel::NoFault { tid: sys::gettid() }];
        for kernel in kernels {
            for len in [0, 1, 15, 63, 64, 65, 127, 128, 1000, 4096, 8191] {
                for offset in [0, 1, 31, 63, 64] {
                    let mut target = vec![0xee; 9000];
                    let to = target.as_mut_ptr() as usize + offset;
                    let from = source.as_ptr() as usize + offset / 2;
                    // SAFETY: inside both vectors.
                    assert_eq!(unsafe { kernel.copy(to, from, len) }, Copied::Whole);
                    assert_eq!(target[offset..offset + len], source[offset / 2..offset / 2 + len]);
                    assert!(target[..offset].iter().all(|&b| b == 0xee), "{kernel:?} before");
                    assert!(target[offset + len..].iter().all(|&b| b == 0xee), "{kernel:?} after");
                }
            }
        }
    }

    #[test]
    fn both_ways_to_stream_lines_agree() {
        let source: Vec<u8> = (0..4096u32).map(|i| (i * 13) as u8).collect();
        let mut target = vec![0u8; 4096 + LINE];
        let to = (target.as_mut_ptr() as usize).next_multiple_of(LINE);
        let start = to - target.as_ptr() as usize;
        let mut ways: Vec<unsafe fn(usize, usize, usize)> = vec![stream_lines_sse2];
        if cpus::features().avx512 {
            ways.push(stream_lines_avx512);
        }
        for way in ways {
            target.fill(0);
            // SAFETY: aligned, inside both vectors, and the CPU has it.
            unsafe { way(to, source.as_ptr() as usize, 4096) };
            assert_eq!(target[start..start + 4096], source[..]);
        }
    }

    #[test]
    fn no_fault_kernel_tells_a_bad_page_from_a_refusal() {
        let mut target = vec![0u8; 100];
        let kernel = Kernel::NoFault { tid: sys::gettid() };
        // SAFETY: `NoFault` may be handed any address.
        let copied = unsafe { kernel.copy(target.as_mut_ptr() as usize, 16, 100) };
        assert_eq!(copied, Copied::BadPage);
        let nobody = Kernel::NoFault { tid: (1 << 22) - 1 };
        // SAFETY: as above.
        let copied = unsafe { nobody.copy(target.as_mut_ptr() as usize, 16, 100) };
        assert_eq!(copied, Copied::Refused);
    }
}
