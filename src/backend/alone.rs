//! Streaming stores for a caller that copies without help.
//!
//! libc streams only copies above three quarters of the last-level cache, hundreds of MiB on a
//! server. Below that, each line of the destination is read before it is overwritten, and evicts
//! another one. Streaming avoids both, and four pages at a time keep more reads in flight than one
//! page does.
//!
//! A bad page faults here, in the program's thread and with nothing held, as it does in libc: the
//! loops, which are written beside those of `copy_loop`, lie outside the range that its `recover` knows.

use crate::os::arch;

/// Copies with streaming stores.
///
/// # Safety
/// As memcpy of these arguments.
pub unsafe fn copy(dst: usize, src: usize, len: usize) {
    // SAFETY: memcpy may copy these ranges, by the caller's contract.
    unsafe { arch::stream_alone(dst, src, len) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn every_edge_copies_the_bytes_and_no_others() {
        let edges = [0, 1, 63, 64, 65, 4095, 16383, 16384, 16385, 65536, 300_001];
        let src: vec::Vec<u8> = (0..400_000u32).map(|i| (i % 251) as u8 | 1).collect();
        for len in edges {
            for (to, from) in [(0, 0), (1, 0), (0, 7), (63, 64), (100, 4097)] {
                let mut dst = vec![0u8; len + 200];
                let (at, source) = (dst.as_mut_ptr() as usize + to, src.as_ptr() as usize + from);
                // SAFETY: both ranges lie in vectors of this test, and do not overlap.
                unsafe { copy(at, source, len) };
                assert_eq!(dst[to..to + len], src[from..from + len], "{len} {to} {from}");
                assert!(dst[..to].iter().chain(&dst[to + len..]).all(|&byte| byte == 0));
                // The loop of older CPUs.
                #[cfg(target_arch = "x86_64")]
                {
                    dst[to..to + len].fill(0);
                    // SAFETY: both ranges lie in vectors of this test, and do not overlap.
                    unsafe { arch::adma_alone_stream_sse2(at, source, len) };
                    assert_eq!(dst[to..to + len], src[from..from + len], "{len} {to} {from}");
                }
            }
        }
    }
}
