//! Two processes and a buffer: a partner exports it, and this process copies.

use crate::device::*;
use crate::memory::Region;
use crate::partner::{Order, Partner};
use crate::verdict::Outcome;

/// To be read and written.
pub const BOTH: u32 = EXPORT_READ | EXPORT_WRITE;

pub struct Scene {
    pub device: Device,
    /// What is at the addresses of the export in this process: the same memory if it is shared.
    pub theirs: Region,
    pub ours: Region,
    pub partner: Partner,
    pub export: u64,
}

impl Scene {
    /// The partner exports this region as it is.
    pub fn of(theirs: Region) -> Outcome<Scene> {
        let ours = Region::of_small_pages(theirs.len())?;
        let partner = Partner::new(&[&theirs])?;
        let export = partner.must(Order::Export(0, 0, theirs.len(), BOTH))?;
        Ok(Scene { device: Device::open()?, theirs, ours, partner, export })
    }

    /// Memory that both processes see.
    pub fn shared(len: usize) -> Outcome<Scene> {
        let theirs = Region::shared(len)?;
        theirs.touch();
        Scene::of(theirs)
    }

    /// Ordinary memory: full of ones in the partner, ours full of twos.
    pub fn private(len: usize) -> Outcome<Scene> {
        let theirs = Region::of_small_pages(len)?;
        let partner = Partner::new(&[&theirs])?;
        partner.must(Order::Fill(0, 1))?;
        let export = partner.must(Order::Export(0, 0, len, BOTH))?;
        let ours = Region::of_small_pages(len)?;
        ours.fill(2);
        Ok(Scene { device: Device::open()?, theirs, ours, partner, export })
    }

    /// A piece between an offset of our memory and one of the export.
    pub fn piece(&self, way: u32, ours: usize, theirs: usize, len: usize) -> Piece {
        let (ours, theirs) = (self.ours.address(ours), theirs as u64);
        let (dst, src) = if way == SUBMIT_PULL { (ours, theirs) } else { (theirs, ours) };
        Piece { dst, src, len: len as u64, channel: CHANNEL_ANY, flags: 0 }
    }

    /// The whole buffer in `parts` pieces, in turn on all channels.
    pub fn pieces(&self, way: u32, parts: usize) -> Outcome<Vec<Piece>> {
        let channels = self.device.info()?.channels;
        Ok(self.piece(way, 0, 0, self.ours.len()).split(parts, channels))
    }

    pub fn submit(&self, way: u32, pieces: &mut [Piece]) -> Submitted {
        self.device.submit_across(pieces, way, self.partner.port(), self.export)
    }

    /// The whole buffer, with a piece for each channel.
    pub fn submit_all(&self, way: u32) -> Outcome<Submitted> {
        let channels = self.device.info()?.channels as usize;
        Ok(self.submit(way, &mut self.pieces(way, channels)?))
    }

    /// Submits all of it, which must be accepted.
    pub fn start(&self, way: u32) -> Outcome<Submit> {
        let found = self.submit_all(way)?;
        ensure_eq!(found.result, Ok(()), "way {way}");
        Ok(found.out)
    }

    /// Copies all of it and waits for the end.
    pub fn carry(&self, way: u32) -> Outcome {
        let request = self.start(way)?;
        ensure_eq!(self.device.end(&request)?, 0, "failed pieces");
        Ok(())
    }

    /// Neither way is open.
    pub fn expect_refused(&self, errno: Errno, why: &str) -> Outcome {
        for way in [SUBMIT_PULL, SUBMIT_PUSH] {
            ensure_eq!(self.submit_all(way)?.result, Err(errno), "way {way}, {why}");
        }
        Ok(())
    }
}
