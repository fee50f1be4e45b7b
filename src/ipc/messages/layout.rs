//! Cuts a message into pieces; both sides compute the same cut.
#![forbid(unsafe_code)]

use crate::ipc::OFFLOAD;
use crate::ipc::claims::MOST_PIECES;
use crate::ipc::copy::Terms;
use crate::plan::{self, PAGE};

/// Size from which workers copy, too, unless a block or the helper is better: waking one takes some
/// microseconds, and many more pass until it runs.
pub const SHARED_FROM: usize = 3 << 20;

/// Size below which pieces are short and `spread` keeps threads apart. (Sixteen CPUs, 16 MiB: 260
/// us; 460 in pieces of 2 MiB.)
pub const SPREAD_BELOW: usize = 32 << 20;

/// The pieces of one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The bytes of the message.
    pub count: usize,
    /// The length of the first piece, and of all others but the last.
    first: usize,
    piece: usize,
    /// Pieces that lie in one page table.
    per_table: usize,
}

impl Layout {
    /// Cuts `count` bytes that lie at `source` in the writer; both buffers in `blocks` or not.
    pub fn new(count: usize, Terms { shares }: Terms, blocks: bool, source: usize) -> Self {
        let piece = match (blocks, shares) {
            // Workers of either side, all of them for each piece.
            (true, true) => piece_size(count, (count / 8).min(most_helped(count))),
            (false, true) if count >= SHARED_FROM => return Self::by_tables(count, source),
            _ => piece_size(count, count / 64),
        };
        Self { count, first: piece, piece, per_table: 1 }
    }

    /// Pieces that keep to page tables in the writer, for whose locks the reader's threads wait;
    /// and mostly in the reader, for they are as long. (Eight threads moved 63 GB/s in pieces of
    /// 2 MiB, 31 in 512 KiB.) A message that would have too few has shorter ones, and then it is
    /// the order that keeps threads apart, see `spread`.
    fn by_tables(count: usize, source: usize) -> Self {
        const TABLE: usize = 2 << 20;
        const SHORT: usize = 256 << 10;
        let most = count.div_ceil(MOST_PIECES - 1).next_multiple_of(TABLE);
        let piece = if count < SPREAD_BELOW { SHORT } else { most };
        let head = source.wrapping_neg() % piece;
        let first = if head < piece / 4 { head + piece } else { head };
        let per_table = (TABLE / piece).max(1);
        Self { count, first: first.min(count), piece, per_table }
    }

    /// Returns the piece that is claimed as number `index`: the first of every page table, then the
    /// second of every one, and so on. So threads that pull from the front and threads that push from
    /// the back, and lock page tables of the other process, work in different tables. (Four threads, 4 MiB:
    /// 116 us; 256 us in order of addresses.)
    fn spread(&self, index: usize) -> usize {
        plan::spread(index, self.pieces(), self.per_table)
    }

    /// Returns the number of pieces; with one, one side copies all of it.
    pub fn pieces(&self) -> usize {
        1 + (self.count - self.first.min(self.count)).div_ceil(self.piece.max(1))
    }

    /// Returns offset and length of a piece.
    pub fn piece(&self, index: usize) -> (usize, usize) {
        let index = self.spread(index);
        let edge = |index: usize| match index {
            0 => 0,
            _ => (self.first + (index - 1) * self.piece).min(self.count),
        };
        (edge(index), edge(index + 1) - edge(index))
    }
}

/// Returns the size of pieces that two threads share.
///
/// Two pieces while they are short: each costs a system call, and halves end at about the same time.
/// Then four, and more of at most 512 KiB or `largest`: a slow thread takes fewer, and neither waits
/// long for the other's last one. (Measured with two
/// CPUs: 256 KiB as two pieces takes 0.88 of the time of four, 16 MiB in pieces of 512 KiB 0.93
/// of 128 KiB and 0.96 of 1 MiB, 64 MiB in pieces of 1 MiB 0.88 of 128 KiB.)
fn piece_size(count: usize, largest: usize) -> usize {
    const HALVES: usize = 512 << 10;
    const LARGEST: usize = 512 << 10;
    let piece = match count {
        _ if count < OFFLOAD => return count.max(1),
        ..=HALVES => count.div_ceil(2),
        _ => (count / 4).min(LARGEST.max(largest)),
    };
    piece.max(count.div_ceil(MOST_PIECES)).next_multiple_of(PAGE)
}

/// Returns the largest piece that all workers of a side help with: the larger, the fewer calls, but a
/// caller with a time limit copies one at a time. (Sixteen CPUs, against
/// pieces of 512 KiB or a 64th: 16 MiB in eighths took 0.72 to 0.76 of the time, 64 MiB 0.58 to 0.63,
/// and written before and read after 0.97 to 0.99; quarters of 16 MiB 0.82 to 0.85, but 1.17 then.)
fn most_helped(count: usize) -> usize {
    (16 << 20).max((count / 64).next_multiple_of(PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Terms = Terms { shares: false };
    const SHARED: Terms = Terms { shares: true };

    const CASES: [(Terms, bool, usize); 5] = [
        (TWO, false, 0),
        (SHARED, true, 0),
        (SHARED, false, 0),
        (SHARED, false, 4096),
        (SHARED, false, 0x7fff_1234_5678),
    ];

    #[test]
    fn pieces_cover_every_message_and_are_never_too_many() {
        for (terms, blocks, source) in CASES {
            for shift in 0..47 {
                for count in [1usize << shift, (1 << shift) + 1, (1 << shift) * 2 - 1] {
                    let layout = Layout::new(count, terms, blocks, source);
                    let pieces = layout.pieces();
                    assert!((1..=MOST_PIECES).contains(&pieces), "{count} {pieces}");
                    assert!(count >= OFFLOAD || pieces == 1, "{count}");
                    let mut all: Vec<_> = (0..pieces).map(|index| layout.piece(index)).collect();
                    all.sort();
                    let mut end = 0;
                    for (at, len) in all {
                        assert_eq!(at, end, "{count}");
                        assert!(len > 0, "{count} {at}");
                        end = at + len;
                    }
                    assert_eq!(end, count);
                }
            }
        }
    }

    #[test]
    fn pieces_for_workers_begin_at_page_tables_of_the_writer() {
        for source in [0usize, 8, 4096, (1 << 20) + 4096, (2 << 20) - 4096, 0x7f12_3456_7890] {
            for (count, cut) in [(4 << 20, 256 << 10), (31 << 20, 256 << 10), (65 << 20, 2 << 20)] {
                let layout = Layout::new(count, SHARED, false, source);
                for index in 1..layout.pieces() {
                    let (at, _) = layout.piece(index);
                    assert!((source + at).is_multiple_of(cut), "{source} {count} {index}");
                }
                assert!(layout.piece(0).1 <= cut + cut / 4, "{source} {count}");
            }
        }
    }
}
