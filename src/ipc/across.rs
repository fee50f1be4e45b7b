//! The kernel helper between two processes: each side posts its buffers behind a door, which
//! the other has got over the socket, and the engine copies.
//!
//! The kernel lets the other side reach what is posted and nothing else, and only as it was
//! allowed; and it waits for the end of its transfers before a buffer is ours again. So a
//! peer that lies, or dies in mid-copy, can do no more than a good one.
//!
//! Nothing here is an error: what the helper does not carry goes another way.

use super::os::{Fd, Foreign, Way};
use super::settings::HelperEngine;
use crate::backend::ioat::There;
use crate::backend::ioat::abi;
use crate::backend::ioat::helper;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Our half: a door that can be handed over.
pub struct Offer {
    helper: HelperEngine,
    door: Fd,
}

impl Offer {
    /// `None`: there is no helper, or none that can do it.
    pub fn new(bring_up: fn() -> Option<HelperEngine>) -> Option<Self> {
        let helper = bring_up()?;
        if !helper.engine.reaches_others() {
            return None;
        }
        let door = Fd::owned(helper.engine.helper.port().ok()?);
        Some(Self { helper, door })
    }

    pub fn door(&self) -> i32 {
        self.door.raw()
    }

    pub fn met(self, theirs: Foreign) -> Across {
        Across { offer: self, theirs, off: AtomicBool::new(false) }
    }
}

/// Both halves.
pub struct Across {
    offer: Offer,
    /// The kernel looks at it, whatever it is.
    theirs: Foreign,
    /// It has failed in a way that will not pass.
    off: AtomicBool,
}

impl core::fmt::Debug for Across {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "doors {:?}", self.descriptors())
    }
}

impl Across {
    pub fn descriptors(&self) -> [i32; 2] {
        [self.offer.door.raw(), self.theirs.raw()]
    }

    /// It has copied.
    pub fn proved(mut self) -> Self {
        self.theirs.note_known();
        self
    }

    /// Whether it is worth another try where there is another way.
    pub fn is_on(&self) -> bool {
        !self.off.load(Relaxed)
    }

    /// Lets the other side do this to a buffer of ours; 0: it is not to be had.
    pub fn pin(&self, ways: &[Way], addr: usize, len: usize) -> u64 {
        let flags = ways.iter().fold(0, |flags, way| {
            flags
                | match way {
                    Way::Pull => abi::EXPORT_READ,
                    Way::Push => abi::EXPORT_WRITE,
                }
        });
        helper::export(self.offer.door.raw(), addr, len, flags).unwrap_or(0)
    }

    /// Takes it back. Afterwards nobody uses the buffer.
    pub fn unpin(&self, id: u64) {
        helper::unexport(self.offer.door.raw(), id);
    }

    /// Copies between a buffer of ours and what the other side has posted; or an errno.
    ///
    /// # Safety
    /// As `Engine::copy` for `ours`.
    pub unsafe fn copy(
        &self,
        way: Way,
        ours: usize,
        pin: u64,
        offset: usize,
        len: usize,
    ) -> Result<(), i32> {
        let there = There { port: self.theirs.raw(), export: pin, offset };
        let HelperEngine { engine, how } = &self.offer.helper;
        // SAFETY: the caller's promise.
        let copied = unsafe { engine.copy_across(way == Way::Push, ours, there, len, how) };
        if let Err(libc::EBADF | libc::EPERM | libc::ENODEV | libc::ENOTTY | libc::EPROTO) = copied
        {
            self.off.store(true, Relaxed);
        }
        copied
    }
}

/// A buffer of ours that the other side can reach. When this goes it is taken back, and nobody
/// uses it any more.
pub struct Pinned<'a> {
    across: Option<&'a Across>,
    /// What the helper knows it by; 0: it does not.
    pub pin: u64,
}

impl<'a> Pinned<'a> {
    pub fn new(across: Option<&'a Across>, ways: &[Way], addr: usize, len: usize) -> Self {
        Self { across, pin: across.map_or(0, |across| across.pin(ways, addr, len)) }
    }

    /// What was lent before.
    pub fn known(across: Option<&'a Across>, pin: u64) -> Self {
        Self { across, pin }
    }

    pub fn nothing() -> Self {
        Self { across: None, pin: 0 }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if let Some(across) = self.across.filter(|_| self.pin != 0) {
            across.unpin(self.pin);
        }
    }
}
