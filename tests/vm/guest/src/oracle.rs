//! Bytes that say where they belong, in the manner of the kernel's dmatest.
//!
//! A byte tells which side it was laid down on, whether it lies inside the part to be
//! copied, and its position, so that a short, long, misplaced or source-clobbering copy is
//! seen. The position is hashed: what we most fear is a piece that is misplaced by whole pages.
//! tests/programs/pattern.h has this pattern for programs in C.

use crate::device::Piece;
use crate::memory::Region;

const SOURCE: u8 = 0x80;
const DESTINATION: u8 = 0;
const INSIDE: u8 = 0x40;
const POSITION: u8 = 0x3f;

/// Part of a region that is copied, and the bytes that are checked around it.
#[derive(Clone, Copy)]
struct Side<'a> {
    region: &'a Region,
    from: usize,
    len: usize,
    /// The watched part.
    first: usize,
    end: usize,
    kind: u8,
}

impl Side<'_> {
    fn laid_down(&self, at: usize) -> u8 {
        let inside = if self.is_inside(at) { INSIDE } else { 0 };
        let position = (at.wrapping_sub(self.from) as u32).wrapping_mul(0x9e37_79b1) >> 26;
        self.kind | inside | position as u8 & POSITION
    }

    fn is_inside(&self, at: usize) -> bool {
        at.wrapping_sub(self.from) < self.len
    }

    fn lay_down(&self) {
        for at in self.first..self.end {
            self.region.set(at, self.laid_down(at));
        }
    }
}

/// One copy between two regions, checked.
pub struct Watched<'a> {
    dst: Side<'a>,
    src: Side<'a>,
}

impl<'a> Watched<'a> {
    /// Lays down the bytes of both sides, with up to `margin` bytes around them.
    pub fn new(
        dst: &'a Region,
        dst_at: usize,
        src: &'a Region,
        src_at: usize,
        len: usize,
        margin: usize,
    ) -> Watched<'a> {
        let side = |region: &'a Region, from: usize, kind| {
            let end = (from + len + margin).min(region.len());
            Side { region, from, len, first: from.saturating_sub(margin), end, kind }
        };
        let watched =
            Watched { dst: side(dst, dst_at, DESTINATION), src: side(src, src_at, SOURCE) };
        watched.lay_down();
        watched
    }

    pub fn lay_down(&self) {
        self.dst.lay_down();
        self.src.lay_down();
    }

    pub fn piece(&self) -> Piece {
        let Watched { dst, src } = self;
        Piece::new(dst.region, dst.from, src.region, src.from, dst.len)
    }

    /// Checks that all was copied, and nothing else touched.
    pub fn expect_copied(&self) -> Result<(), String> {
        self.expect_copied_but_for(|_| false)
    }

    /// Like `expect_copied`, without looking at the bytes of the destination that `left_out` names by
    /// their position in the copy.
    pub fn expect_copied_but_for(&self, left_out: impl Fn(usize) -> bool) -> Result<(), String> {
        let Watched { dst, src } = self;
        for at in dst.first..dst.end {
            let position = at.wrapping_sub(dst.from);
            let wanted = match dst.is_inside(at) {
                true if left_out(position) => continue,
                true => src.laid_down(src.from + position),
                false => dst.laid_down(at),
            };
            let found = dst.region.get(at);
            if found != wanted {
                let (position, len) = (position as isize, dst.len);
                return Err(format!(
                    "destination, byte {position} of {len}: is {found:#04x}, want {wanted:#04x}; 0x80 \
                     is the source's, 0x40 inside"
                ));
            }
        }
        self.expect_source_untouched()
    }

    /// Checks that nothing was copied.
    pub fn expect_untouched(&self) -> Result<(), String> {
        unchanged(&self.dst, "destination")?;
        self.expect_source_untouched()
    }

    pub fn expect_source_untouched(&self) -> Result<(), String> {
        unchanged(&self.src, "source")
    }

    /// Copies by hand what the engine did not.
    pub fn redo(&self, from: usize, len: usize) {
        let Watched { dst, src } = self;
        dst.region.copy_by_cpu(dst.from + from, src.region, src.from + from, len);
    }
}

fn unchanged(side: &Side<'_>, name: &str) -> Result<(), String> {
    match (side.first..side.end).find(|&at| side.region.get(at) != side.laid_down(at)) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{name} clobbered: byte {} of {} is {:#04x}, was {:#04x}",
            at.wrapping_sub(side.from) as isize,
            side.len,
            side.region.get(at),
            side.laid_down(at)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PAGE;

    const LEN: usize = PAGE + 640;
    const AT: (usize, usize) = (128, 77);

    /// Returns whether the oracle sees that bytes `from..from + len` come from `shift` further on.
    fn sees(from: isize, len: usize, shift: isize) -> bool {
        let dst = Region::anonymous(3 * PAGE).unwrap();
        let src = Region::anonymous(3 * PAGE).unwrap();
        let watched = Watched::new(&dst, AT.0, &src, AT.1, LEN, 64);
        for i in from..from + len as isize {
            let byte = src.get(AT.1.wrapping_add_signed(i + shift));
            dst.set(AT.0.wrapping_add_signed(i), byte);
        }
        watched.expect_copied().is_err()
    }

    #[test]
    fn wrong_copies_are_seen_and_right_ones_pass() {
        assert!(!sees(0, LEN, 0));
        for (from, len, shift) in [
            (0, LEN - 1, 0),
            (1, LEN - 1, 0),
            (0, LEN + 1, 0),
            (-1, LEN + 1, 0),
            (0, LEN, PAGE as isize),
            (0, LEN, -1),
        ] {
            assert!(sees(from, len, shift), "{len} bytes from {from}, shifted by {shift}");
        }
    }

    #[test]
    fn clobbered_sides_are_named() {
        let dst = Region::anonymous(PAGE).unwrap();
        let src = Region::anonymous(PAGE).unwrap();
        let watched = Watched::new(&dst, 64, &src, 64, 128, 64);
        watched.expect_untouched().unwrap();
        src.set(191, !src.get(191));
        watched.redo(0, 128);
        assert!(watched.expect_copied_but_for(|at| at == 127).unwrap_err().contains("source"));
        watched.lay_down();
        dst.set(200, 0xff);
        assert!(watched.expect_untouched().unwrap_err().contains("destination"));
    }
}
