//! Cuts one copy into head, body and tail, and the body into pieces.
//!
//! Addresses are numbers here and are never dereferenced.
#![forbid(unsafe_code)]

pub const PAGE: usize = 4096;

/// Returns whether two ranges of `len` bytes share a byte. Ranges that wrap around the end of the
/// address space count as overlapping: no engine should see them.
pub fn overlaps(dst: usize, src: usize, len: usize) -> bool {
    let (Some(dst_end), Some(src_end)) = (dst.checked_add(len), src.checked_add(len)) else {
        return true;
    };
    dst < src_end && src < dst_end
}

/// One piece of a copy, as an offset into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub offset: usize,
    pub len: usize,
}

/// A copy cut into pieces that begin at destination pages, so that no two channels ever write the
/// same page (or cache line). The head belongs to the first piece, the tail to the last: a CPU
/// copies unaligned edges like any other bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    len: usize,
    head: usize,
    piece: usize,
}

impl Cut {
    /// Most pieces of a cut; the queue counts them in 10 bits.
    pub const MOST: usize = (1 << 10) - 1;
    const SMALLEST: usize = 4 * PAGE;
    const LARGEST: usize = 64 * PAGE;
    /// Bytes that one page table maps.
    pub const TABLE: usize = 512 * PAGE;
    /// Bytes of all channels together before the first of them gets another piece.
    const ROUND: usize = 1024 * PAGE;

    /// Makes about four pieces for each of `parties`, so that the slowest party delays the end by a
    /// quarter of its part at most; small enough to share, large enough to stream.
    pub fn new(dst: usize, len: usize, parties: usize) -> Self {
        let even = (len / (4 * parties.max(1))).next_multiple_of(PAGE);
        Self::with_piece(dst, len, even.clamp(Self::SMALLEST, Self::LARGEST))
    }

    /// Cuts a copy into fresh memory: pieces that keep to page tables of their own, as far
    /// as there is one for each of `parties`. A page table covers 2 MiB and has one lock, and
    /// threads that make pages under the same one wait for each other.
    pub fn for_fresh(dst: usize, len: usize, parties: usize) -> Self {
        let even = (len / (parties + 2)).next_power_of_two();
        let piece = even.clamp(Self::LARGEST, Self::TABLE);
        let head = (dst.wrapping_neg() % piece).min(len);
        Self { head, ..Self::with_piece(dst, len, piece) }
    }

    /// Cuts a transfer between processes, whose kernel code walks page tables: pieces that keep to
    /// tables of their own at `place`. A transfer that would have too few gets smaller ones, and
    /// the order of `spread` keeps threads apart.
    pub fn for_tables(place: usize, len: usize, parties: usize) -> Self {
        let even = (len / (4 * parties)).next_power_of_two();
        let least = if len < Self::TABLE { Self::LARGEST / 2 } else { Self::LARGEST };
        let most = (len / Self::MOST + 1).next_power_of_two();
        let piece = even.clamp(least, Self::TABLE).max(most);
        let head = (place.wrapping_neg() % piece).min(len);
        Self { len, head, piece }
    }

    /// Cuts a read of a file into memory that is in use: a piece is a system call, which wants more
    /// bytes than a copy loop does.
    pub fn for_reads(dst: usize, len: usize, parties: usize) -> Self {
        let even = (len / (4 * parties)).next_multiple_of(PAGE);
        Self::with_piece(dst, len, even.clamp(Self::LARGEST / 2, Self::TABLE))
    }

    /// Returns whether pages are better made piece by piece than by faults. Many threads that do it in
    /// small pieces wait for each other more than for the faults.
    pub fn suits_making_pages(&self, parties: usize) -> bool {
        parties <= 4 || self.piece >= Self::TABLE / 2
    }

    /// Makes one piece for each of `channels` and 4 MiB, in at most `most` pieces: a piece that
    /// ends within contiguous pages costs one more transfer. In a long copy each channel gets its
    /// first piece before all pages are pinned.
    pub fn for_channels(most: usize, dst: usize, len: usize, channels: usize) -> Self {
        let even = len.min(Self::ROUND).div_ceil(channels.max(1));
        let least = len.div_ceil(most).max(Self::SMALLEST);
        Self::with_piece(dst, len, even.max(least).next_multiple_of(PAGE))
    }

    /// Makes pieces of `piece` bytes, a multiple of the page size that grows where they would be too many.
    pub fn with_piece(dst: usize, len: usize, piece: usize) -> Self {
        let head = (dst.wrapping_neg() % PAGE).min(len);
        let least = (len / Self::MOST + 1).next_multiple_of(PAGE);
        Self { len, head, piece: piece.max(least) }
    }

    pub fn from_parts(len: usize, head: usize, piece: usize) -> Self {
        Self { len, head, piece }
    }

    pub fn parts(&self) -> (usize, usize, usize) {
        (self.len, self.head, self.piece)
    }

    pub fn count(&self) -> usize {
        (self.len - self.head).div_ceil(self.piece).max(1)
    }

    /// Returns the piece that is claimed as number `index`: the first one of every page table, then
    /// the second one of every table, and so on.
    pub fn spread(&self, index: usize) -> Piece {
        self.piece(spread(index, self.count(), (Self::TABLE / self.piece).max(1)))
    }

    pub fn piece(&self, index: usize) -> Piece {
        let edge = |i: usize| (self.head + i * self.piece).min(self.len);
        let offset = if index == 0 { 0 } else { edge(index) };
        Piece { offset, len: edge(index + 1) - offset }
    }
}

/// Interleaves groups of `each` neighbours among `pieces`: the first ones of all groups come first,
/// then the second ones. Returns the piece at position `index`.
pub fn spread(mut index: usize, pieces: usize, each: usize) -> usize {
    for part in 0..each {
        let groups = pieces.saturating_sub(part).div_ceil(each);
        if index < groups {
            return index * each + part;
        }
        index -= groups;
    }
    index
}

/// A copy for an engine that wants its destination aligned: the CPU takes `head` and `tail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    pub head: usize,
    pub body: usize,
    pub tail: usize,
}

impl Split {
    /// The body begins and ends at a multiple of `align` (a power of two) of the destination.
    pub fn new(dst: usize, len: usize, align: usize) -> Self {
        let head = (dst.wrapping_neg() & (align - 1)).min(len);
        let body = (len - head) & !(align - 1);
        Self { head, body, tail: len - head - body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_every_small_distance_matches_naive() {
        for len in 0..20usize {
            for dst in 100..160usize {
                let src = 130;
                let naive = (0..len).any(|i| (0..len).any(|j| dst + i == src + j));
                assert_eq!(overlaps(dst, src, len), naive, "{dst} {src} {len}");
            }
        }
        // Ranges that wrap around the end of the address space are refused.
        assert!(overlaps(usize::MAX - 10, 4096, 20) && overlaps(4096, usize::MAX - 10, 20));
        assert!(overlaps(4096, 1 << 40, usize::MAX) && !overlaps(usize::MAX - 10, 4096, 10));
    }

    #[test]
    fn cut_for_tables_keeps_to_page_tables_and_covers_each_byte_once() {
        for parties in [2, 3, 16] {
            for place in [0, 1, 4096, (2 << 20) - 1, 0x7f12_3456_7890] {
                for len in [1, 4095, 1 << 20, (16 << 20) + 7, 0x7fff_f000] {
                    let cut = Cut::for_tables(place, len, parties);
                    check_cut(place, len, cut);
                    let inner = (1..cut.count()).map(|i| place + cut.piece(i).offset);
                    let least = if len < Cut::TABLE { Cut::LARGEST / 2 } else { Cut::LARGEST };
                    assert!(inner.into_iter().all(|edge| edge.is_multiple_of(least)));
                    let mut dealt: Vec<_> =
                        (0..cut.count()).map(|i| cut.spread(i).offset).collect();
                    dealt.sort_unstable();
                    assert!(dealt.iter().enumerate().all(|(i, at)| cut.piece(i).offset == *at));
                }
            }
        }
    }

    /// Every byte exactly once, in order, edges at destination pages.
    fn check_cut(dst: usize, len: usize, cut: Cut) {
        let mut at = 0;
        assert!(cut.count() <= Cut::MOST);
        for i in 0..cut.count() {
            let piece = cut.piece(i);
            assert_eq!(piece.offset, at, "{dst:#x} {len} piece {i}");
            assert!(piece.len > 0 || len == 0);
            if i > 0 {
                assert_eq!((dst + piece.offset) % PAGE, 0);
            }
            at += piece.len;
        }
        assert_eq!(at, len);
        let (len, head, piece) = cut.parts();
        assert_eq!(Cut::from_parts(len, head, piece).piece(0), cut.piece(0));
    }

    #[test]
    fn cut_every_offset_and_size_covers_each_byte_once() {
        for offset in (0..PAGE).step_by(if cfg!(miri) { 1021 } else { 61 }).chain([1, PAGE - 1]) {
            for len in (0..6 * PAGE).step_by(if cfg!(miri) { 4093 } else { 7 }) {
                check_cut(0x10000 + offset, len, Cut::with_piece(0x10000 + offset, len, PAGE));
            }
        }
        check_cut(0x1234, 1 << 45, Cut::with_piece(0x1234, 1 << 45, PAGE));
        for len in [64 << 10, (64 << 10) + 1, 1 << 20, (16 << 20) - 1, 16 << 20] {
            for parties in [1, 2, 3, 64] {
                for dst in [0x20000, 0x20001, 0x20fff] {
                    check_cut(dst, len, Cut::new(dst, len, parties));
                    check_cut(dst, len, Cut::for_fresh(dst, len, parties));
                    check_cut(dst, len, Cut::for_reads(dst, len, parties));
                }
            }
        }
    }

    #[test]
    fn cut_for_channels_is_a_piece_for_each_and_no_small_one() {
        for len in [64, 4096, 64 << 10, (1 << 20) + 64, 4 << 20, 16 << 20, 100 << 20] {
            for dst in [0x20000, 0x20040, 0x20fc0] {
                for channels in [1, 2, 4, 8, 32] {
                    let cut = Cut::for_channels(64, dst, len, channels);
                    check_cut(dst, len, cut);
                    let most = if len <= 4 << 20 { channels } else { 64 };
                    assert!(cut.count() <= most, "{} pieces of {len}", cut.count());
                    let large = |i: usize| cut.piece(i).len >= 16 << 10;
                    assert!((0..cut.count() - 1).all(large), "a small piece of {len}");
                }
            }
        }
        assert_eq!(Cut::for_channels(64, 0x20000, 64 << 10, 4).count(), 4);
        assert_eq!(Cut::for_channels(64, 0x20000, 4 << 20, 8).count(), 8);
        assert_eq!(Cut::for_channels(64, 0x20000, 16 << 20, 4).count(), 16);
    }

    #[test]
    fn split_body_is_aligned_and_nothing_is_left_out() {
        for align in [1, 8, 64, PAGE] {
            for dst in (0x10000..0x10000 + PAGE).step_by(if cfg!(miri) { 997 } else { 13 }) {
                for len in [0, 1, 63, 64, 65, 127, 128, 4095, 9000, 3 * PAGE + 5] {
                    let split = Split::new(dst, len, align);
                    assert_eq!(split.head + split.body + split.tail, len);
                    assert!(split.body == 0 || (dst + split.head).is_multiple_of(align));
                    assert!(split.body.is_multiple_of(align));
                    assert!(split.head < align && split.tail < align);
                }
            }
        }
    }
}
