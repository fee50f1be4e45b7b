//! Two processes and a buffer: a partner exports it, and this process copies.

use crate::device::*;
use crate::memory::Region;
use crate::partner::{Order, Partner};
use crate::verdict::{Context, Outcome};

/// Rights to read and write.
pub const BOTH: u32 = EXPORT_READ | EXPORT_WRITE;

pub struct Scene {
    pub device: Device,
    /// Memory at the addresses of the export in this process; the export itself if shared.
    pub theirs: Region,
    pub ours: Region,
    pub partner: Partner,
    pub export: u64,
}

impl Scene {
    /// Makes a scene: the partner exports this region, full of ones; ours is full of twos.
    pub fn of(theirs: Region) -> Outcome<Scene> {
        theirs.touch();
        let partner = Partner::new(&[&theirs])?;
        partner.must(Order::Fill(0, 1))?;
        let export = partner.must(Order::Export(0, 0, theirs.len(), BOTH))?;
        let ours = Region::of_small_pages(theirs.len())?;
        ours.fill(2);
        Ok(Scene { device: Device::open()?, theirs, ours, partner, export })
    }

    /// Makes a scene with shared memory.
    pub fn shared(len: usize) -> Outcome<Scene> {
        Scene::of(Region::shared(len)?)
    }

    /// Makes a scene with ordinary memory.
    pub fn private(len: usize) -> Outcome<Scene> {
        Scene::of(Region::of_small_pages(len)?)
    }

    /// Returns a piece between an offset of our memory and one of the export.
    pub fn piece(&self, way: u32, ours: usize, theirs: usize, len: usize) -> Piece {
        let (ours, theirs) = (self.ours.address(ours), theirs as u64);
        let (dst, src) = if way == SUBMIT_PULL { (ours, theirs) } else { (theirs, ours) };
        Piece { dst, src, len: len as u64, channel: CHANNEL_ANY, flags: 0 }
    }

    /// Returns the whole buffer in `parts` pieces, in turn on all channels.
    pub fn pieces(&self, way: u32, parts: usize) -> Outcome<Vec<Piece>> {
        let channels = self.device.info()?.channels;
        Ok(self.piece(way, 0, 0, self.ours.len()).split(parts, channels))
    }

    pub fn submit(&self, way: u32, pieces: &mut [Piece]) -> Submitted {
        self.device.submit_across(pieces, way, self.partner.port(), self.export)
    }

    /// Copies these pieces, which must be accepted, and waits for their end.
    pub fn finish(&self, way: u32, pieces: &mut [Piece]) -> Outcome {
        let Submitted { result, out } = self.submit(way, pieces);
        ensure_eq!((result, out.accepted), (Ok(()), out.count), "way {way}");
        self.device.finish(&out)
    }

    /// Submits the whole buffer, with a piece for each channel.
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
        self.device.finish(&self.start(way)?)
    }

    /// Checks that both directions are refused.
    pub fn expect_refused(&self, errno: Errno, why: &str) -> Outcome {
        for way in [SUBMIT_PULL, SUBMIT_PUSH] {
            ensure_eq!(self.submit_all(way)?.result, Err(errno), "way {way}, {why}");
        }
        Ok(())
    }

    /// Checks that a page of any export is refused, and none written.
    pub fn refuse(&self, way: u32, port: i32, export: u64, errno: Errno) -> Outcome {
        let piece = self.piece(way, 0, 0, 4096);
        let Submitted { result, out } = self.device.submit_across(&mut [piece], way, port, export);
        let place = format!("port {port}, export {export:#x}, way {way}");
        ensure_eq!((result, out.id), (Err(errno), 0), "{place}");
        self.expect_untouched().context(place)
    }

    /// Checks that both sides are as they were made, in shared memory.
    pub fn expect_untouched(&self) -> Outcome {
        self.theirs.expect(1).context("the other's memory")?;
        self.ours.expect(2).context("our memory")
    }
}
