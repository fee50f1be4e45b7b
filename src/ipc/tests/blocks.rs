//! Messages between blocks.

use super::super::settings::Workers;
use super::*;
use core::sync::atomic::AtomicUsize;

/// A block, freed in the end.
struct OwnedBlock(usize, usize);

impl OwnedBlock {
    fn new(len: usize) -> Self {
        let at = adma_alloc(len) as usize;
        assert_ne!(at, 0);
        Self(at, len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: as long as it lives; the other side writes only while a message is read.
        unsafe { core::slice::from_raw_parts_mut(self.0 as *mut u8, self.1) }
    }
}

impl Drop for OwnedBlock {
    fn drop(&mut self) {
        // SAFETY: the messages are over.
        assert_eq!(unsafe { adma_free(self.0 as *mut _) }, 0);
    }
}

#[test]
fn large_pieces_between_blocks_are_carried_where_others_can_help() {
    static CARRIED: AtomicUsize = AtomicUsize::new(0);
    unsafe fn carry(to: usize, from: usize, len: usize) {
        CARRIED.fetch_add(len, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { original::copy(to, from, len) };
    }
    let workers = || Some(Workers { cpus: 4, copy: carry, count: || 0, crowded: || {} });
    let pair = pair_with([Settings { workers, ..DEFAULT }; 2], "workers");
    let (mut from, mut to) = (OwnedBlock::new(9 << 20), OwnedBlock::new(9 << 20));
    from.bytes().copy_from_slice(&bytes(9 << 20, 1));
    let mut carried = |size: usize, to: &mut [u8]| {
        to.fill(UNTOUCHED);
        let before = CARRIED.load(Ordering::Relaxed);
        let counts = send(pair.ends, &from.bytes()[..size], &mut to[..size]);
        assert_eq!(counts, [size as isize; 2]);
        assert!(has_only(to, 0, &from.bytes()[..size]), "{size}");
        CARRIED.load(Ordering::Relaxed) - before
    };
    // Whole messages, or nothing: pieces of 256 KiB are the smallest that are.
    for (size, all) in [(5000, false), (300_000, false), (1 << 20, true), (9 << 20, true)] {
        assert_eq!(carried(size, to.bytes()), if all { size } else { 0 }, "{size}");
    }
    assert_eq!(carried(1 << 20, &mut vec![0; 1 << 20]), 0, "what does not lie in a block");
}
