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
use super::claims::Role;
use super::consent::{Agreed, Failed};
use super::mappings::{Mapping, Mappings};
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
    /// The system does not let us, or not any more; or the helper has not copied this one, and there
    /// is no other way.
    Refused,
    /// There is another program than the one that has agreed.
    Gone,
}

/// How the two processes copy, for as long as the connection lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Neither can do to the other what it could not do anyway. Only an equal copies into our
    /// buffers, for we have to believe it; any other only into a block that was lent to it.
    pub equal: bool,
    /// A reader copies everything itself, but for what it reads into blocks that it has lent.
    pub reader_alone: bool,
    /// Workers copy large messages too, of either process.
    pub shares: bool,
}

/// What this process may do to the other's memory.
pub struct Transport {
    pub peer: Peer,
    /// None: it has not agreed to anything.
    pub agreed: Option<Agreed>,
    pub terms: Terms,
    /// By role: a writer pushes, by `process_vm_writev`, and a reader pulls.
    pub allowed: [AtomicBool; 2],
    pub across: Option<Across>,
    pub mappings: Mappings,
    pub workers: Option<Workers>,
}

/// From here on a message in blocks is written past the cache: it would not stay there, and
/// what is overwritten need not be read first. (`bench/run loops`; two halves of 4 MiB take
/// 0.8 of the time so, of 16 MiB 0.5 and of 64 MiB 0.63, but of 256 KiB 1.8.)
const STREAM: usize = 4 << 20;

/// From here on a piece in blocks is worth the help of others, where there are any.
const CARRIED: usize = 256 << 10;

/// The other's end of a piece, or of a whole message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// A part of a message that somebody has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePiece {
    pub ours: usize,
    pub theirs: Remote,
    pub len: usize,
    /// This side copies all of the message.
    pub alone: bool,
}

impl Transport {
    /// Whether a message can be copied whose other buffer is this.
    pub fn reaches(&self, role: Role, theirs: Remote) -> bool {
        // What a reader gets from who is not its equal it copies itself: a count is no evidence.
        // What it has lent we have mapped to write, and nothing else.
        let trusted = self.terms.equal || role == Role::Reader;
        self.may(role)
            || (trusted && theirs.pin != 0 && self.across.is_some())
            || self.maps(role, theirs)
    }

    fn maps(&self, role: Role, theirs: Remote) -> bool {
        theirs.block.is_some_and(|place| self.view(role, place, 0).is_some())
    }

    /// Whether a piece of this will be copied by a call that may wait for pages of the other.
    pub fn may_hang(&self, role: Role, theirs: Remote) -> bool {
        self.may(role) && !self.maps(role, theirs)
    }

    /// Where a part of the other's block is here.
    fn view(&self, role: Role, place: BlockAddress, len: usize) -> Option<(Arc<Mapping>, usize)> {
        let view = self.mappings.find(place)?;
        let at = view.at(place.offset, len, role == Role::Writer)?;
        Some((view, at))
    }

    /// The program has closed all descriptors, and opened others.
    pub fn disown(&mut self) {
        self.peer.disown();
        self.across.iter_mut().for_each(Across::disown);
    }

    pub fn may(&self, role: Role) -> bool {
        self.allowed[role as usize].load(Relaxed)
    }

    /// The system has taken the right back.
    pub fn forget(&self, role: Role) {
        self.allowed[role as usize].store(false, Relaxed);
    }

    /// Copies one piece.
    ///
    /// # Safety
    /// A part of a buffer that our program has posted and still waits for, and of one that the
    /// other has posted.
    pub unsafe fn copy(&self, role: Role, piece: MessagePiece) -> Outcome {
        let MessagePiece { ours, theirs, len, .. } = piece;
        if let Some(across) = self.across.as_ref().filter(|_| theirs.pin != 0) {
            let may = self.may(role) || theirs.block.is_some();
            // SAFETY: the caller's promise.
            let copy = || unsafe { across.copy(role, ours, theirs.pin, theirs.offset, len) };
            if (across.is_on() || !may) && copy().is_ok() {
                tally::note_copied(Means::Helper, len);
                return Outcome::Whole;
            }
            if !may {
                return Outcome::Refused;
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            if self.copy_in_blocks(role, piece) {
                return Outcome::Whole;
            }
            self.copy_by_calls(role, piece, Means::ProcessVm)
        }
    }

    /// False: they do not both lie in blocks, or the other's cannot be mapped.
    unsafe fn copy_in_blocks(&self, role: Role, piece: MessagePiece) -> bool {
        let MessagePiece { ours, theirs, len, alone, .. } = piece;
        // Whether the CPUs are the two processes' own, for both copy.
        let is_busy = |workers: &Workers| !alone && workers.cpus <= 2;
        let Some(place) = theirs.block else { return false };
        let Some((_view, theirs_here)) = self.view(role, place, len) else { return false };
        let (to, from) = match role {
            Role::Reader => (ours, theirs_here),
            Role::Writer => (theirs_here, ours),
        };
        // SAFETY: both lie in blocks, which nobody can make smaller; the view stays mapped.
        unsafe {
            match self.workers.filter(|workers| len >= CARRIED && !is_busy(workers)) {
                Some(workers) => (workers.copy)(to, from, len),
                None if theirs.message < STREAM => original::copy(to, from, len),
                None => drop(CopyLoop::Stream.copy(to, from, len)),
            }
        }
        tally::note_copied(Means::Mapped, len);
        true
    }

    /// Whether the other is the program that has agreed, and this thread may reach it.
    pub fn shows_sign(&self, role: Role) -> bool {
        self.may(role) && self.agreed.is_some_and(|agreed| agreed.shows_sign(role).is_ok())
    }

    /// The same by `process_vm_readv` or `process_vm_writev`; also for threads that may not
    /// allocate.
    ///
    /// # Safety
    /// As `copy`.
    pub unsafe fn copy_by_calls(&self, role: Role, piece: MessagePiece, means: Means) -> Outcome {
        let MessagePiece { ours, theirs: Remote { addr: theirs, .. }, len, .. } = piece;
        let Some(agreed) = self.agreed.filter(|_| self.may(role)) else { return Outcome::Refused };
        let mut done = 0;
        while done < len {
            // SAFETY: the caller's promise, a part of it.
            match unsafe { agreed.copy(role, ours + done, theirs + done, len - done) } {
                Ok(0) => return Outcome::Fault,
                Ok(bytes) => done += bytes.min(len - done),
                Err(Failed::Stranger) => return Outcome::Gone,
                Err(Failed::System(libc::EINTR | libc::EAGAIN)) => {}
                // Also that there is no such process: its first thread may have left, and then it
                // lives, but its number leads nowhere.
                Err(Failed::System(_)) => return Outcome::Refused,
            }
        }
        tally::note_copied(means, len);
        Outcome::Whole
    }
}

/// Yama's rule for this machine; 0 where there is none.
pub fn yama_scope() -> u8 {
    let mut room = [0; 8];
    let (path, allowed) = (c"/proc/sys/kernel/yama/ptrace_scope", sys::NoFilter::assumed());
    let text = sys::read_file(path, &mut room, allowed.into());
    text.and_then(|text| text.first()).map_or(0, |digit| digit.wrapping_sub(b'0'))
}
