//! Bytes between two address spaces.
//!
//! In order of preference:
//!
//! 1. The kernel helper, where both sides have it: posted buffers are pinned by their owners
//!    and copied by the DMA engine (see `across`). It is tried at connect time as well, and
//!    carries the pieces of messages that are large enough to be offloaded. What it does not
//!    carry goes one of the other ways, piece by piece.
//! 2. Ordinary instructions, where both buffers lie in blocks (see `blocks`).
//! 3. `process_vm_readv` and `process_vm_writev`: one copy, made by the kernel for whoever
//!    calls. The system decides who may (the rules of ptrace), so it is tried at connect
//!    time, for each way, and may be refused later when a process changes its identity.
//!
//! Who may reach whom is the table in `ipc`.
//!
//! 4. None of them: messages are streamed through the region, which is two copies.

use super::across::Across;
use super::blocks::BlockAddress;
use super::consent::{Agreed, Failed, Sign};
use super::endpoint::MessagePiece;
use super::mappings::{Mapping, Mappings};
use super::os::{self, Way};
use super::peer::Peer;
use super::settings::Workers;
use super::tally::{self, Means};
use crate::backend::copy_loop::CopyLoop;
use crate::backend::libc as original;
use crate::os::sys;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How a piece ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Whole,
    /// Either side's buffer is not what was posted.
    Fault,
    /// The system does not let us, or not any more.
    Refused,
    /// The helper, which is the only way here, has not copied this one.
    NotThisTime,
    /// Remote is no such process.
    Gone,
    /// Remote is another program than the one that has agreed.
    Stranger,
}

/// What this process may do to the other's memory.
#[derive(Debug)]
pub struct Transport {
    peer: Peer,
    /// None: it has not agreed to anything.
    agreed: Option<Agreed>,
    /// Neither can do to the other what it could not do anyway.
    equal: bool,
    pull: AtomicBool,
    push: AtomicBool,
    across: Option<Across>,
    /// None: its blocks are not to be mapped.
    mappings: Option<Mappings>,
    workers: Option<Workers>,
}

/// From here on a message in blocks is written past the cache: it would not stay there, and
/// what is overwritten need not be read first. (`bench/run loops`; two halves of 4 MiB take
/// 0.8 of the time so, of 16 MiB 0.5 and of 64 MiB 0.63, but of 256 KiB 1.8.)
const STREAM: usize = 4 << 20;

/// From here on a piece in blocks is worth the help of others, where there are any.
const CARRIED: usize = 256 << 10;

/// The other's end of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub addr: usize,
    /// What the helper knows it by; 0: it does not.
    pub pin: u64,
    /// Where the piece is in it.
    pub offset: usize,
    /// The piece's own place in a block, if our end lies in one as well.
    pub block: Option<BlockAddress>,
    /// How long the whole message is.
    pub message: usize,
}

impl Transport {
    pub fn new(
        peer: Peer,
        equal: bool,
        agreed: Option<Agreed>,
        [pull, push]: [bool; 2],
        across: Option<Across>,
        mappings: Option<Mappings>,
        workers: Option<Workers>,
    ) -> Self {
        let (pull, push) = (AtomicBool::new(pull), AtomicBool::new(push));
        Self { peer, equal, agreed, pull, push, across, mappings, workers }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Looks whether the other is still our equal, where the kernel would not. False: it was
    /// until now, and what was allowed has ended for good.
    pub fn look_at_peer(&self) -> bool {
        let used = self.may(Way::Pull) || self.may(Way::Push);
        let ended = used && !self.peer.is_still_equal();
        if ended {
            self.forget(Way::Pull);
            self.forget(Way::Push);
        }
        !ended
    }

    pub fn workers(&self) -> Option<Workers> {
        self.workers
    }

    pub fn across(&self) -> Option<&Across> {
        self.across.as_ref()
    }

    /// Whether a message can be copied whose other buffer is `pin` for the helper, or lies in a
    /// block, as ours does.
    pub fn reaches(&self, way: Way, pin: u64, block: Option<BlockAddress>) -> bool {
        // What a reader gets from who is not its equal it copies itself: a count is no evidence.
        let trusted = self.equal || way == Way::Pull;
        self.may(way)
            || (trusted && pin != 0 && self.across.is_some())
            || (trusted && block.is_some_and(|place| self.view(way, place, 0).is_some()))
    }

    /// Whether the other side may copy into our buffers: we would have to believe it.
    pub fn is_equal(&self) -> bool {
        self.equal
    }

    /// Whether a piece of this will be copied by a call that may wait for pages of the other.
    pub fn may_hang(&self, way: Way, theirs: Remote) -> bool {
        self.may(way) && theirs.block.is_none_or(|place| self.view(way, place, 0).is_none())
    }

    /// Whether a block of the other side has come in, or will not.
    pub fn knows(&self, place: BlockAddress) -> bool {
        self.mappings.as_ref().is_none_or(|mappings| mappings.find(place).is_some())
    }

    pub fn mappings(&self) -> Option<&Mappings> {
        self.mappings.as_ref()
    }

    /// Where a part of the other's block is here.
    pub fn view(&self, way: Way, place: BlockAddress, len: usize) -> Option<(Arc<Mapping>, usize)> {
        let view = self.mappings.as_ref()?.find(place)??;
        let at = view.at(place.offset, len, way == Way::Push)?;
        Some((view, at))
    }

    pub fn may(&self, way: Way) -> bool {
        match way {
            Way::Pull => self.pull.load(Relaxed),
            Way::Push => self.push.load(Relaxed),
        }
    }

    /// The system has taken the right back.
    pub fn forget(&self, way: Way) {
        match way {
            Way::Pull => self.pull.store(false, Relaxed),
            Way::Push => self.push.store(false, Relaxed),
        }
    }

    /// Copies one piece.
    ///
    /// # Safety
    /// A part of a buffer that our program has posted and still waits for, and of one that the
    /// other has posted.
    pub unsafe fn copy(&self, way: Way, piece: MessagePiece) -> Outcome {
        let MessagePiece { ours, theirs, len, .. } = piece;
        if let Some(across) = self.across.as_ref().filter(|_| theirs.pin != 0) {
            let Remote { pin, offset, .. } = theirs;
            let may = self.may(way) || theirs.block.is_some();
            let copied = (across.is_on() || !may)
                // SAFETY: the caller's promise.
                .then(|| unsafe { across.copy(way, ours, pin, offset, len) });
            match copied {
                Some(Ok(())) => {
                    tally::note_copied(Means::Helper, len);
                    return Outcome::Whole;
                }
                _ if !may => return Outcome::NotThisTime,
                _ => {}
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            if self.copy_in_blocks(way, ours, theirs, len) {
                return Outcome::Whole;
            }
            self.copy_by_calls(way, piece, Means::ProcessVm)
        }
    }

    /// False: they do not both lie in blocks, or the other's cannot be mapped.
    unsafe fn copy_in_blocks(&self, way: Way, ours: usize, theirs: Remote, len: usize) -> bool {
        let Some(place) = theirs.block else { return false };
        let Some((_view, theirs_here)) = self.view(way, place, len) else { return false };
        let (to, from) = match way {
            Way::Pull => (ours, theirs_here),
            Way::Push => (theirs_here, ours),
        };
        // SAFETY: both lie in blocks, which nobody can make smaller; the view stays mapped.
        unsafe {
            match self.workers.filter(|_| len >= CARRIED) {
                Some(workers) => (workers.copy)(to, from, len),
                None if theirs.message < STREAM => original::copy(to, from, len),
                None => drop(CopyLoop::Stream.copy(to, from, len)),
            }
        }
        tally::note_copied(Means::Mapped, len);
        true
    }

    /// Whether the other is the program that has agreed, and this thread may reach it.
    pub fn shows_sign(&self, way: Way) -> bool {
        let agreed = self.agreed.filter(|_| self.may(way));
        // SAFETY: nothing but the sign.
        agreed.is_some_and(|agreed| unsafe { agreed.copy(way, 0, 0, 0) }.is_ok())
    }

    /// The same by `process_vm_readv` or `process_vm_writev`; also for threads that may not
    /// allocate.
    ///
    /// # Safety
    /// As `copy`.
    pub unsafe fn copy_by_calls(&self, way: Way, piece: MessagePiece, means: Means) -> Outcome {
        let MessagePiece { ours, theirs: Remote { addr: theirs, .. }, len, .. } = piece;
        let Some(agreed) = self.agreed.filter(|_| self.may(way)) else { return Outcome::Refused };
        let mut done = 0;
        while done < len {
            // SAFETY: the caller's promise, a part of it.
            match unsafe { agreed.copy(way, ours + done, theirs + done, len - done) } {
                Ok(0) => return Outcome::Fault,
                Ok(bytes) => done += bytes.min(len - done),
                Err(Failed::Stranger) => return Outcome::Stranger,
                Err(Failed::System(libc::ESRCH)) => return Outcome::Gone,
                Err(Failed::System(libc::EINTR | libc::EAGAIN)) => {}
                Err(Failed::System(_)) => return Outcome::Refused,
            }
        }
        tally::note_copied(means, len);
        Outcome::Whole
    }
}

/// Copies the words of the other's sign both ways by the helper; it has posted that for us.
pub fn probe_across(across: &Across, pin: u64, word: u64) -> os::Result<()> {
    let (mut found, mark, len) = (0u64, !word, size_of::<u64>());
    let place = core::mem::offset_of!(Sign, mark);
    // SAFETY: `found` is ours and nobody looks at it meanwhile; `mark` is only read.
    unsafe {
        across.copy(Way::Pull, &raw mut found as usize, pin, 0, len)?;
        if (&raw const found).read_volatile() != word {
            return Err(libc::EBADMSG);
        }
        across.copy(Way::Push, &raw const mark as usize, pin, place, len)
    }
}

/// Yama's rule for this machine; 0 where there is none.
pub fn yama_scope() -> u8 {
    let mut room = [0; 8];
    let text = sys::read_file(c"/proc/sys/kernel/yama/ptrace_scope", &mut room);
    text.and_then(|text| text.first()).map_or(0, |digit| digit.wrapping_sub(b'0'))
}
