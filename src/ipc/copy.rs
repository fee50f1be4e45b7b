//! Copies between two address spaces, for proven peers only: `Proven` is the proof, and every
//! function that reaches or exposes memory is a method of it or takes it.
//!
//! In order of preference:
//!
//! 1. The kernel helper, where both sides have it (`across`): posted buffers are pinned by their
//!    owners and copied by the DMA engine.
//! 2. Ordinary instructions, where both buffers lie in blocks (`blocks`).
//! 3. process_vm_readv and process_vm_writev: one copy by the kernel. Tried when the connection is
//!    made; the right may be lost later.
//!
//! With none of them messages are streamed through the region, which is two copies.

pub mod across;
pub mod proof;

use crate::backend::copy_loop::CopyLoop;
use crate::backend::libc as original;
use crate::ipc::claims::Role;
use crate::ipc::copy::across::Across;
use crate::ipc::copy::proof::{Failed, Page, Reached};
use crate::ipc::memory::blocks::{BlockAddress, PeerBlocks};
use crate::ipc::os::{Mapping, ProcFolder};
use crate::ipc::settings::Workers;
use crate::ipc::tally::{self, Means};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Terms by which proven peers cut messages: both sides must agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Set if workers of either process copy large messages too.
    pub shares: bool,
}

/// A peer that may reach our memory, and whose memory we may reach.
pub struct Proven {
    /// Our own page, mapped while the peer may read it.
    pub _page: Page,
    pub reached: Reached,
    /// The peer's folder in /proc, which shows its user and gives access to its blocks.
    pub folder: Option<ProcFolder>,
    pub terms: Terms,
    /// Set while we may call process_vm_readv and process_vm_writev.
    pub calls: AtomicBool,
    /// Set if the peer could do that at first.
    pub peer_calls: bool,
    pub across: Option<Across>,
    /// Blocks of the peer; `None`: a side does without them (ADMA_IPC_ENGINE).
    pub blocks: Option<PeerBlocks>,
    pub workers: Option<Workers>,
}

/// Size from which a message in blocks is written by streaming stores: it would not stay in the
/// cache, and what is overwritten need not be read first. (`bench/run loops`; two halves of 4 MiB
/// take 0.8 of the time so, of 16 MiB 0.5 and of 64 MiB 0.63, but of 256 KiB 1.8.)
const STREAM: usize = 4 << 20;

/// Size from which workers help with a piece in blocks.
const CARRIED: usize = 256 << 10;

/// A claimed part of a message, or all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessagePiece {
    pub ours: usize,
    pub theirs: usize,
    pub len: usize,
    /// Number of the export of the peer's buffer by the helper, and the piece's offset in it; 0: none.
    pub pin: u64,
    pub offset: usize,
    /// Place of the piece in a block of the peer's, if our end lies in one as well.
    pub block: Option<BlockAddress>,
    /// Length of the whole message.
    pub message: usize,
}

impl Proven {
    /// Returns whether the peer has the user that it had when it was proven, as far as can be known: the
    /// kernel asks again for every copy.
    pub fn has_user(&self, uid: u32) -> bool {
        let owner = self.folder.as_ref().and_then(ProcFolder::owner);
        owner.is_none_or(|owner| owner == uid)
    }

    /// Returns whether this piece can be copied.
    pub fn reaches(&self, piece: MessagePiece) -> bool {
        self.may_call() || (piece.pin != 0 && self.across.is_some()) || self.maps(piece)
    }

    fn maps(&self, piece: MessagePiece) -> bool {
        piece.block.is_some_and(|place| self.view(place, 0).is_some())
    }

    /// Returns whether this is copied by a call that may block on the peer's pages.
    pub fn may_hang(&self, piece: MessagePiece) -> bool {
        self.may_call() && !self.maps(piece)
    }

    /// Returns our address of a part of the peer's block.
    fn view(&self, place: BlockAddress, len: usize) -> Option<(Arc<Mapping>, usize)> {
        let view = self.blocks.as_ref()?.find(place.file, self.folder.as_ref()?)?;
        let at = view.at(place.offset, len)?;
        Some((view, at))
    }

    pub fn may_call(&self) -> bool {
        self.calls.load(Relaxed)
    }

    /// Copies one piece.
    ///
    /// # Safety
    /// A part of a buffer that our program has posted and still waits for, and of one that the
    /// other has posted.
    pub unsafe fn copy(&self, role: Role, piece: MessagePiece) -> Result<(), Failed> {
        let MessagePiece { ours, len, pin, offset, .. } = piece;
        if let Some(across) = self.across.as_ref().filter(|_| pin != 0) {
            let may = self.may_call() || piece.block.is_some();
            if across.is_on() || !may {
                // SAFETY: the piece lies in the buffer that our program has posted and waits for.
                match unsafe { across.copy(role, ours, pin, offset, len) } {
                    Ok(()) => {
                        tally::note_copied(Means::Helper, len);
                        return Ok(());
                    }
                    Err(errno) if !may => return Err(Failed::System(errno)), // there is no other way
                    Err(_) => {}
                }
            }
        }
        // SAFETY: the piece lies in buffers that both programs have posted and wait for.
        unsafe {
            if self.copy_in_blocks(role, piece) {
                return Ok(());
            }
            self.copy_by_calls(role, piece, Means::ProcessVm)
        }
    }

    /// Returns false where not both lie in blocks, or the peer's cannot be mapped.
    unsafe fn copy_in_blocks(&self, role: Role, piece: MessagePiece) -> bool {
        let MessagePiece { ours, len, .. } = piece;
        // Whether the CPUs are the two processes' own, for both copy.
        let is_busy = |workers: &Workers| len < piece.message && workers.cpus <= 2;
        let view = piece.block.and_then(|place| self.view(place, len));
        let Some((_view, theirs)) = view else { return false };
        let (to, from) = match role {
            Role::Reader => (ours, theirs),
            Role::Writer => (theirs, ours),
        };
        // SAFETY: both lie in blocks, whose size is sealed; the view stays mapped.
        unsafe {
            match self.workers.filter(|workers| len >= CARRIED && !is_busy(workers)) {
                Some(workers) => (workers.copy)(to, from, len),
                None if piece.message < STREAM => original::copy(to, from, len),
                None => drop(CopyLoop::Stream.copy(to, from, len)),
            }
        }
        tally::note_copied(Means::Mapped, len);
        true
    }

    /// Returns whether the calling thread may reach the peer by calls.
    pub fn shows_sign(&self, role: Role) -> bool {
        self.may_call() && self.reached.probe(role).is_ok()
    }

    /// Copies by `process_vm_readv` or `process_vm_writev`; does not allocate.
    ///
    /// # Safety
    /// As `copy`.
    pub unsafe fn copy_by_calls(
        &self,
        role: Role,
        piece: MessagePiece,
        means: Means,
    ) -> Result<(), Failed> {
        let MessagePiece { ours, theirs, len, .. } = piece;
        if !self.may_call() {
            return Err(Failed::System(libc::EPERM));
        }
        let mut done = 0;
        while done < len {
            // SAFETY: a part of the piece, which lies in buffers that both programs have posted and wait for.
            match unsafe { self.reached.copy(role, ours + done, theirs + done, len - done) } {
                Ok(0) => return Err(Failed::Fault),
                Ok(bytes) => done += bytes.min(len - done),
                Err(Failed::System(libc::EINTR | libc::EAGAIN)) => {}
                // ESRCH is the system's, too: a process whose first thread has left lives, but its number
                // leads nowhere.
                Err(why) => return Err(why),
            }
        }
        tally::note_copied(means, len);
        Ok(())
    }
}
