//! Right bytes, whatever the shape of the copy and however many threads make one.

use super::*;

const LENGTHS: [usize; 12] =
    [1, 63, 64, 65, 127, 4095, 4096, 65_536, 65_537, 300_000, 1 << 20, 3_000_001];
const OFFSETS: [(usize, usize); 6] = [(0, 0), (1, 0), (0, 63), (63, 1), (64, 2048), (4095, 17)];

#[test]
fn copies_of_every_shape_are_right_with_every_channel_count_share_and_wait() {
    let engine = engine(Kernel::new(4));
    let mut round = 0;
    for len in LENGTHS {
        for offsets in OFFSETS {
            for share in [None, Some(0.0), Some(0.5), Some(1.0)] {
                round += 1;
                let channels = [None, Some(1), Some(3), Some(64)][round % 4];
                let how = Options { channels, share, spins: round % 5 == 0 };
                assert_eq!(copy_at(&engine, offsets, len, &how), Ok(()));
            }
        }
    }
    assert_eq!(count(&engine.counts.redone), 0);
}

#[test]
fn copies_that_end_late_are_waited_for_in_every_way() {
    let kernel = Kernel::new(3);
    let engine = engine(kernel);
    for spins in [false, true] {
        for share in [None, Some(0.25)] {
            kernel.make([Trouble { late: LATE, ..Trouble::default() }; 2]);
            let how = Options { spins, share, ..HOW };
            assert_eq!(copy_at(&engine, (9, 3), 200_000, &how), Ok(()));
            assert_eq!(copy_at(&engine, (9, 3), 200_000, &how), Ok(()));
        }
    }
}

#[test]
fn many_threads_at_once_copy_right() {
    let kernel = Kernel::new(4);
    let engine = engine(kernel);
    kernel.make((0..200).map(|i| Trouble {
        late: Duration::from_micros(i % 7 * 100),
        failed: u64::from(i % 5 == 0),
        ..Trouble::default()
    }));
    std::thread::scope(|scope| {
        for number in 0..6usize {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..40 {
                    let len = 70_000 + round * 4999 + number;
                    let source: Vec<u8> = (0..len).map(|i| (i * 7 + number) as u8).collect();
                    let mut target = vec![0u8; len];
                    let (dst, src) = (target.as_mut_ptr() as usize, source.as_ptr() as usize);
                    // SAFETY: the vectors' own memory.
                    assert_eq!(unsafe { engine.copy(dst, src, len, &HOW) }, Ok(()));
                    assert!(source == target);
                }
            });
        }
    });
    assert_eq!(kernel.under_way(), 0);
}
