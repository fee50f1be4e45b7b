//! Streaming stores for a caller that copies without help.
//!
//! libc streams only copies above three quarters of the last-level cache, hundreds of MiB on a
//! server. Below that, each line of the destination is read before it is overwritten, and evicts
//! another one. Streaming avoids both, and four pages at a time keep more reads in flight than one
//! page does.
//!
//! A bad page faults here, in the program's thread and with nothing held, as it does in libc: the
//! loops, which are written beside those of `copy_loop`, lie outside the range that its `recover` knows.

use super::libc as original;
use super::threads::{Cost, Pieces, Seen};
use crate::backend::copy_loop::CopyLoop;
use crate::os::cpus::{self, Features};
use crate::os::sys;
use crate::plan::PAGE;

/// Bytes of a timed piece: long enough for the clock, and short enough for several in a copy.
const TIMED_PIECE: usize = 64 * PAGE;

/// Copies with the stores that were chosen; returns the measurements of alternating pieces.
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
    /// Copies four pages side by side.
    fn adma_alone_stream_avx512(dst: usize, src: usize, len: usize);
    fn adma_alone_stream_sse2(dst: usize, src: usize, len: usize);
}

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
                // The loop of older CPUs.
                dst[to..to + len].fill(0);
                // SAFETY: as above.
                unsafe { adma_alone_stream_sse2(at, source, len) };
                assert_eq!(dst[to..to + len], src[from..from + len], "{len} {to} {from}");
            }
        }
    }
}
