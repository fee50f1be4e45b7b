//! Two buffers of one length and a file of their own, between which most tests copy.

use crate::device::{Device, Errno, Piece, Submit};
use crate::effort::{PATIENCE, eventually};
use crate::kernel::{Statistics, pins_must_wait_for_pages};
use crate::memory::{PAGE, Region};
use crate::process::{Child, fork};
use crate::verdict::{Context, Outcome};
use std::fmt;

pub struct Pair {
    pub device: Device,
    pub channels: u32,
    pub dst: Region,
    pub src: Region,
}

impl Pair {
    /// Makes small pages that are all present: ones in the destination, twos in the source.
    pub fn new(len: usize) -> Outcome<Pair> {
        Pair::between(Region::of_small_pages(len)?, Region::of_small_pages(len)?)
    }

    /// Like `new`, of pages that are not contiguous: a transfer for each.
    pub fn scattered(len: usize) -> Outcome<Pair> {
        Pair::between(Region::of_scattered_pages(len)?, Region::of_scattered_pages(len)?)
    }

    pub fn between(dst: Region, src: Region) -> Outcome<Pair> {
        dst.fill(1);
        src.fill(2);
        let device = Device::open()?;
        let channels = device.info()?.channels;
        Ok(Pair { device, channels, dst, src })
    }

    /// Returns the whole copy, on any channel.
    pub fn whole(&self) -> Piece {
        self.part(0, self.dst.len())
    }

    pub fn part(&self, at: usize, len: usize) -> Piece {
        Piece::new(&self.dst, at, &self.src, at, len)
    }

    /// Returns the whole copy in pieces, in turn on all channels.
    pub fn pieces(&self, parts: usize) -> Vec<Piece> {
        self.whole().split(parts, self.channels)
    }

    pub fn start(&self, parts: usize) -> Outcome<Submit> {
        self.device.start(&mut self.pieces(parts))
    }

    pub fn carry(&self, parts: usize) -> Outcome<Submit> {
        self.device.carry(&mut self.pieces(parts))
    }

    /// Checks that a piece is refused and nothing written.
    pub fn refuse(&self, piece: Piece, errno: Errno, what: impl fmt::Display) -> Outcome {
        self.device.refuse(piece, errno, what)?;
        self.dst.expect(1).context("written, but refused")
    }

    /// Starts a child whose submission waits for a page that never comes: behind the first piece,
    /// on the first channel. Returns when that piece is in flight.
    pub fn stuck_child() -> Outcome<Child> {
        pins_must_wait_for_pages()?;
        let before = Statistics::now()?;
        let child = fork(|| {
            let own = Device::open()?;
            let (to, from) = (Region::of_small_pages(4 * PAGE)?, Region::anonymous(4 * PAGE)?);
            from.set(0, 1);
            let _faults = from.leave_faults_unanswered()?;
            own.submit(&mut Piece::new(&to, 0, &from, 0, 4 * PAGE).split(4, 1));
            fail!("a fault without an answer was passed")
        })?;
        // Both sides of the first piece, and the destination of the second.
        let begun = || Statistics::now().is_ok_and(|now| now.since(&before).pins >= 3);
        ensure!(eventually(PATIENCE, begun), "nothing was begun: no userfaultfd here?");
        Ok(child)
    }

    pub fn expect_copied(&self) -> Outcome {
        self.dst.expect(2).context("what was copied")
    }
}
