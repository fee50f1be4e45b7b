//! Cuts one copy into head, body and tail, and the body into pieces.
//!
//! Addresses are numbers here and are never dereferenced.
#![forbid(unsafe_code)]

pub const PAGE: usize = 4096;

/// Whether two ranges of `len` bytes share a byte. Ranges that wrap around the end of the
/// address space count as overlapping: no engine should see them.
pub fn overlaps(dst: usize, src: usize, len: usize) -> bool {
    let (Some(dst_end), Some(src_end)) = (dst.checked_add(len), src.checked_add(len)) else {
        return true;
    };
    dst < src_end && src < dst_end
}

/// One stretch of a copy, as an offset into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub offset: usize,
    pub len: usize,
}

/// A copy cut into pieces that begin at destination pages, so that no two channels ever
/// write the same page (or cache line). The head rides with the first piece, the tail with
/// the last: a CPU copies an unaligned edge as well as any other byte.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    len: usize,
    head: usize,
    piece: usize,
}

impl Cut {
    /// Most pieces a cut has; the board counts them in 10 bits.
    pub const MOST: usize = (1 << 10) - 1;
    const SMALLEST: usize = 4 * PAGE;
    const LARGEST: usize = 64 * PAGE;

    /// About four pieces for each of `parties`, so that the slowest party is waited for
    /// during a quarter of its part at most; small enough to share, large enough to stream.
    pub fn new(dst: usize, len: usize, parties: usize) -> Self {
        let even = (len / (4 * parties.max(1))).next_multiple_of(PAGE);
        Self::with_piece(dst, len, even.clamp(Self::SMALLEST, Self::LARGEST))
    }

    /// `piece` is a multiple of the page size, grown where there would be too many pieces.
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

    pub fn piece(&self, index: usize) -> Piece {
        let edge = |i: usize| (self.head + i * self.piece).min(self.len);
        let offset = if index == 0 { 0 } else { edge(index) };
        Piece { offset, len: edge(index + 1) - offset }
    }
}

/// A copy for an engine that cannot cross a page on either side, and wants its
/// destination aligned: the CPU takes `head` and `tail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    pub head: usize,
    pub body: usize,
    pub tail: usize,
}

#[cfg_attr(not(test), expect(dead_code, reason = "for engines with page limits: backend ioat"))]
impl Split {
    /// The body begins and ends at a multiple of `align` (a power of two) of the destination.
    pub fn new(dst: usize, len: usize, align: usize) -> Self {
        let head = (dst.wrapping_neg() & (align - 1)).min(len);
        let body = (len - head) & !(align - 1);
        Self { head, body, tail: len - head - body }
    }

    /// The body in stretches that cross no page on either side.
    pub fn segments(&self, dst: usize, src: usize) -> impl Iterator<Item = Piece> + use<> {
        let (mut offset, end) = (self.head, self.head + self.body);
        std::iter::from_fn(move || {
            let room = |at: usize| PAGE - at.wrapping_add(offset) % PAGE;
            let len = (end - offset).min(room(dst)).min(room(src));
            let piece = Piece { offset, len };
            offset += len;
            (len > 0).then_some(piece)
        })
    }
}

/// Joins neighbouring stretches where `adjoin(a, b)` says that `b` follows `a` in memory as
/// the engine sees it, up to `most` bytes each.
#[cfg_attr(not(test), expect(dead_code, reason = "for engines with page limits: backend ioat"))]
pub fn merged<'a>(
    segments: impl Iterator<Item = Piece> + 'a,
    most: usize,
    adjoin: impl Fn(Piece, Piece) -> bool + 'a,
) -> impl Iterator<Item = Piece> + 'a {
    let mut segments = segments.peekable();
    std::iter::from_fn(move || {
        let mut piece = segments.next()?;
        let mut last = piece;
        while let Some(next) =
            segments.next_if(|&next| piece.len + next.len <= most && adjoin(last, next))
        {
            piece.len += next.len;
            last = next;
        }
        Some(piece)
    })
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
    }

    #[test]
    fn overlap_wrapping_range_is_refused() {
        assert!(overlaps(usize::MAX - 10, 4096, 20));
        assert!(overlaps(4096, usize::MAX - 10, 20));
        assert!(overlaps(4096, 1 << 40, usize::MAX));
        assert!(!overlaps(usize::MAX - 10, 4096, 10));
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
        for len in [64 << 10, (64 << 10) + 1, 1 << 20, (16 << 20) - 1, 16 << 20] {
            for parties in [1, 2, 3, 64] {
                for dst in [0x20000, 0x20001, 0x20fff] {
                    check_cut(dst, len, Cut::new(dst, len, parties));
                }
            }
        }
    }

    #[test]
    fn cut_of_enormous_copy_stays_countable() {
        let cut = Cut::with_piece(0x1234, 1 << 45, PAGE);
        check_cut(0x1234, 1 << 45, cut);
        assert!(cut.count() <= Cut::MOST);
        let last = cut.piece(cut.count() - 1);
        assert_eq!(last.offset + last.len, 1 << 45);
    }

    #[test]
    fn split_segments_cross_no_page_on_either_side() {
        let step = if cfg!(miri) { 997 } else { 13 };
        for align in [1, 8, 64] {
            for dst in (0..PAGE).step_by(step) {
                for (src, len) in [(0, 3 * PAGE + 5), (7, 9000), (2048, 4 * PAGE), (4095, 63)] {
                    let (dst, src) = (0x10000 + dst, 0x80000 + src);
                    let split = Split::new(dst, len, align);
                    assert_eq!(split.head + split.body + split.tail, len);
                    assert!(split.body == 0 || (dst + split.head).is_multiple_of(align));
                    assert!(split.head < align && split.tail < align);
                    let mut at = split.head;
                    for piece in split.segments(dst, src) {
                        assert_eq!(piece.offset, at);
                        for side in [dst, src] {
                            let (first, last) = (side + at, side + at + piece.len - 1);
                            assert_eq!(first / PAGE, last / PAGE);
                        }
                        at += piece.len;
                    }
                    assert_eq!(at, split.head + split.body);
                }
            }
        }
    }

    #[test]
    fn split_with_offsets_half_a_page_apart_doubles_the_transfers() {
        // The first paper's example: 4 MiB become 2000 transfers instead of 1000.
        let count = |src: usize| Split::new(0, 4 << 20, 64).segments(0, src).count();
        assert_eq!(count(8 << 20), 1024);
        assert_eq!(count((8 << 20) + 2048), 2048);
    }

    #[test]
    fn merged_joins_neighbours_up_to_the_limit() {
        let split = Split::new(0, 8 * PAGE, 64);
        let all = |most, adjoin: fn(Piece, Piece) -> bool| {
            merged(split.segments(0, 1 << 20), most, adjoin)
                .map(|p| p.len / PAGE)
                .collect::<Vec<_>>()
        };
        assert_eq!(all(usize::MAX, |_, _| true), [8]);
        assert_eq!(all(usize::MAX, |_, _| false), [1; 8]);
        assert_eq!(all(3 * PAGE, |_, _| true), [3, 3, 2]);
        assert_eq!(all(usize::MAX, |_, b| b.offset != 2 * PAGE), [2, 6]);
    }
}
