//! Messages between blocks, and large ones that workers copy too.

use super::super::settings::Workers;
use super::super::tally::{self, Means, MessageCounts};
use super::*;
use crate::backend::threads::workers;

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

#[test]
fn large_messages_between_any_memory_are_copied_by_workers_too() {
    original::resolve();
    workers::settle_in();
    workers::start(3);
    static COUNTS: MessageCounts = MessageCounts::new();
    tally::begin(|_| &COUNTS);
    let by_workers = || COUNTS.told().map_or(0, |all| all.copied[Means::Workers as usize].1);
    let help = || Some(Workers { cpus: 8, copy: original::copy, count: || 3, crowded: || {} });
    let settings = Settings { workers: help, ..DEFAULT };
    // Of both sides, of one, and of the other: the pieces are the same for both.
    for settings in [[settings, settings], [settings, DEFAULT], [DEFAULT, settings]] {
        let pair = pair_with(settings, "workers");
        let (before, begun) = (by_workers(), Instant::now());
        let mut round = 0;
        while by_workers() == before || round < 20 {
            assert!(begun.elapsed() < Duration::from_secs(240), "no worker has copied anything");
            let size = [3 << 20, (4 << 20) + 5, (9 << 20) - 1, 300_001][round % 4];
            let (data, mut got) = (bytes(size + 77, round), vec![UNTOUCHED; size + 200]);
            let (data, to) = (&data[round % 77..][..size], round * 13 % 100);
            let counts = send(pair.ends, data, &mut got[to..to + size]);
            assert_eq!(counts, [size as isize; 2]);
            assert!(has_only(&got, to, data), "{size}");
            round += 1;
        }
    }
}
