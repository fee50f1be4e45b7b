//! The kernel helper between two processes: each side exports its buffers through a port, whose
//! descriptor it has sent to the peer, and the DMA engine copies.
//!
//! The helper lets the peer reach exported buffers only, and only as allowed, and waits for its
//! transfers before a buffer is ours again.
//!
//! Failure is not an error here: such messages are copied another way.

use crate::backend::ioat::{There, abi, helper};
use crate::ipc::claims::Role;
use crate::ipc::copy::proof::Reached;
use crate::ipc::os::Fd;
use crate::ipc::settings::HelperEngine;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Connection through the helper.
pub struct Across {
    helper: HelperEngine,
    /// Our port, which the peer gets.
    port: Fd,
    theirs: Option<Fd>,
    /// Set when a call failed permanently.
    off: AtomicBool,
}

impl Across {
    /// Makes our half. `None`: there is no helper, or none that can copy between processes.
    pub fn new(bring_up: fn() -> Option<HelperEngine>) -> Option<Self> {
        let helper = bring_up().filter(|helper| helper.engine.reaches_others())?;
        let port = Fd::owned(helper.engine.helper.port().ok()?);
        Some(Self { helper, port, theirs: None, off: AtomicBool::new(false) })
    }

    /// Adds the peer's port.
    pub fn with(self, theirs: Fd) -> Self {
        Self { theirs: Some(theirs), ..self }
    }

    pub fn port(&self) -> i32 {
        self.port.raw()
    }

    /// Returns whether the helper is still tried.
    pub fn is_on(&self) -> bool {
        !self.off.load(Relaxed)
    }

    /// Copies between a buffer of ours and one that the peer has exported; or an errno.
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
        // SAFETY: the caller keeps `ours` for `len` bytes; the helper checks the peer's export.
        let copied = unsafe { engine.copy_across(role == Role::Writer, ours, there, len, how) };
        if let Err(libc::EBADF | libc::EPERM | libc::ENODEV | libc::ENOTTY | libc::EPROTO) = copied
        {
            self.off.store(true, Relaxed);
        }
        copied
    }

    /// Tries both directions on the peer's page, which it has exported for that.
    pub fn probe(&self, pin: u64, reached: &Reached) -> Result<(), i32> {
        let (sign_at, mark_at, sign) = reached.trial();
        let (mut found, mark, len) = (0u64, !sign, size_of::<u64>());
        // SAFETY: `found` is ours, and only the helper writes it; `mark` is only read.
        unsafe {
            self.copy(Role::Reader, &raw mut found as usize, pin, sign_at, len)?;
            if (&raw const found).read_volatile() != sign {
                return Err(libc::EBADMSG);
            }
            self.copy(Role::Writer, &raw const mark as usize, pin, mark_at, len)
        }
    }
}

/// An exported buffer of ours. Dropping it revokes the export and waits for its transfers.
pub struct Pinned<'a> {
    pub across: Option<&'a Across>,
    /// Number of the export; 0: none.
    pub pin: u64,
}

impl<'a> Pinned<'a> {
    pub const NONE: Self = Self { across: None, pin: 0 };

    /// Exports a buffer to be read or written by the peer, where that is possible.
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
