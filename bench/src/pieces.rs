//! Copy loops for pieces, with the signature of memcpy.
//!
//! The law of this module: memcpy's own contract. The vector loops read and
//! write whole vectors inside the body and leave head and tail to `rep movsb`.

use crate::memory::CopyFn;
use libc::c_void;
use std::arch::asm;
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;

/// The loop with the widest streaming stores that this CPU has.
pub fn widest() -> CopyFn {
    match () {
        () if has!("avx512f") => stream_avx512,
        () if has!("avx") => stream_avx,
        () => stream_sse2,
    }
}

unsafe extern "C" fn movsb(dst: *mut c_void, src: *const c_void, n: usize) -> *mut c_void {
    // SAFETY: the law of the module; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rdi") dst => _, inout("rsi") src => _, inout("rcx") n => _,
            options(nostack, preserves_flags));
    }
    dst
}

/// Four vectors a turn: loads unaligned, stores aligned to the vector.
macro_rules! vector_loop {
    ($name:ident, $feature:literal, $vector:ty, $load:ident, $store:ident) => {
        unsafe extern "C" fn $name(dst: *mut c_void, src: *const c_void, n: usize) -> *mut c_void {
            #[target_feature(enable = $feature)]
            unsafe fn body(dst: *mut u8, src: *const u8, n: usize) {
                const WIDTH: usize = size_of::<$vector>();
                let mut at = 0;
                while at + 4 * WIDTH <= n {
                    // SAFETY: `at + 4 * WIDTH <= n`; `dst` is aligned by the caller.
                    unsafe {
                        let from = src.add(at).cast::<$vector>();
                        let to = dst.add(at).cast::<$vector>();
                        // Not beyond the end: that would cache the next copy's source.
                        let ahead = src.add((at + 1024).min(n - 1));
                        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                        if WIDTH > 16 {
                            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64).cast());
                        }
                        let (a, b) = ($load(from.cast()), $load(from.add(1).cast()));
                        let (c, d) = ($load(from.add(2).cast()), $load(from.add(3).cast()));
                        $store(to.cast(), a);
                        $store(to.add(1).cast(), b);
                        $store(to.add(2).cast(), c);
                        $store(to.add(3).cast(), d);
                    }
                    at += 4 * WIDTH;
                }
                // SAFETY: what is left of the law's n bytes.
                unsafe { movsb(dst.add(at).cast(), src.add(at).cast(), n - at) };
                _mm_sfence();
            }
            let head = dst.cast::<u8>().align_offset(64).min(n);
            // SAFETY: the law of the module; `available` checked the feature.
            unsafe {
                movsb(dst, src, head);
                body(dst.cast::<u8>().add(head), src.cast::<u8>().add(head), n - head);
            }
            dst
        }
    };
}

vector_loop!(stream_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128);
vector_loop!(stream_avx, "avx", __m256i, _mm256_loadu_si256, _mm256_stream_si256);
vector_loop!(stream_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512);
