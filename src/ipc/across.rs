//! The kernel helper between two processes: each side posts its buffers behind a port, which
//! the other has got over the socket, and the engine copies.
//!
//! The kernel lets the other side reach what is posted and nothing else, and only as it was
//! allowed; and it waits for the end of its transfers before a buffer is ours again. So a
//! peer that lies, or dies in mid-copy, can do no more than a good one.
//!
//! Nothing here is an error: what the helper does not carry goes another way.

use super::claims::Role;
use super::consent::Sign;
use super::os::{Fd, Foreign};
use super::settings::HelperEngine;
use crate::backend::ioat::{There, abi, helper};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A connection by the helper.
pub struct Across {
    helper: HelperEngine,
    /// Our port, which the other side gets.
    port: Fd,
    /// Theirs. The kernel looks at it, whatever it is.
    theirs: Option<Foreign>,
    /// It has failed in a way that will not pass.
    off: AtomicBool,
}

impl Across {
    /// Our half. `None`: there is no helper, or none that can do it.
    pub fn new(bring_up: fn() -> Option<HelperEngine>) -> Option<Self> {
        let helper = bring_up().filter(|helper| helper.engine.reaches_others())?;
        let port = Fd::owned(helper.engine.helper.port().ok()?);
        Some(Self { helper, port, theirs: None, off: AtomicBool::new(false) })
    }

    /// Both halves.
    pub fn with(self, theirs: Foreign) -> Self {
        Self { theirs: Some(theirs), ..self }
    }

    pub fn port(&self) -> i32 {
        self.port.raw()
    }

    /// It has copied.
    pub fn proved(mut self) -> Self {
        self.theirs.iter_mut().for_each(Foreign::note_known);
        self
    }

    pub fn disown(&mut self) {
        self.port.disown();
        self.theirs.iter_mut().for_each(Foreign::disown);
    }

    /// Whether it is worth another try where there is another way.
    pub fn is_on(&self) -> bool {
        !self.off.load(Relaxed)
    }

    /// Copies between a buffer of ours and what the other side has posted; or an errno.
    ///
    /// # Safety
    /// As `Engine::copy` for `ours`.
    pub unsafe fn copy(
        &self,
        role: Role,
        ours: usize,
        pin: u64,
        offset: usize,
        len: usize,
    ) -> Result<(), i32> {
        let port = self.theirs.as_ref().ok_or(libc::EBADF)?.raw();
        let there = There { port, export: pin, offset };
        let HelperEngine { engine, how } = &self.helper;
        // SAFETY: the caller's promise.
        let copied = unsafe { engine.copy_across(role == Role::Writer, ours, there, len, how) };
        if let Err(libc::EBADF | libc::EPERM | libc::ENODEV | libc::ENOTTY | libc::EPROTO) = copied
        {
            self.off.store(true, Relaxed);
        }
        copied
    }

    /// Copies the words of the other's sign both ways; it has posted that for us.
    pub fn probe(&self, pin: u64, word: u64) -> Result<(), i32> {
        let (mut found, mark, len) = (0u64, !word, size_of::<u64>());
        // SAFETY: `found` is ours and nobody looks at it meanwhile; `mark` is only read.
        unsafe {
            self.copy(Role::Reader, &raw mut found as usize, pin, offset_of!(Sign, word), len)?;
            if (&raw const found).read_volatile() != word {
                return Err(libc::EBADMSG);
            }
            self.copy(Role::Writer, &raw const mark as usize, pin, offset_of!(Sign, mark), len)
        }
    }
}

/// A buffer of ours that the other side can reach. When this goes it is taken back, and nobody
/// uses it any more.
pub struct Pinned<'a> {
    pub across: Option<&'a Across>,
    /// What the helper knows it by; 0: it does not.
    pub pin: u64,
}

impl<'a> Pinned<'a> {
    /// Lets the other side read a buffer, or write it, if that can be had.
    pub fn new(across: Option<&'a Across>, roles: &[Role], addr: usize, len: usize) -> Self {
        let flags = roles.iter().fold(0, |flags, role| match role {
            Role::Reader => flags | abi::EXPORT_READ,
            Role::Writer => flags | abi::EXPORT_WRITE,
        });
        let post = |across: &Across| helper::export(across.port.raw(), addr, len, flags).ok();
        Self { across, pin: across.and_then(post).unwrap_or(0) }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if let Some(across) = self.across.filter(|_| self.pin != 0) {
            helper::unexport(across.port.raw(), self.pin);
        }
    }
}
