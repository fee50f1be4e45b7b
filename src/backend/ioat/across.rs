//! Copies between this process and a buffer that another process exports.
//!
//! The engine's law holds here too, but callers are `adma_read` and the like, which must not be
//! left by a jump, so signals need not be held. Nothing is redone here: the caller copies the pieces
//! that the engine has left.

use super::*;

/// Export of another process, and the port to it.
#[derive(Clone, Copy, Debug)]
pub struct There {
    pub port: i32,
    pub export: u64,
    pub offset: usize,
}

impl Engine {
    /// Returns whether the engine can copy between processes, at any address.
    pub fn reaches_others(&self) -> bool {
        self.channels() > 0
            && self.features.load(Relaxed) & abi::FEATURE_EXPORTS != 0
            && self.src_align.load(Relaxed) == 1
    }

    /// Copies all bytes, or returns an errno: then a part may have been copied, and nothing is in flight.
    /// `push`: into the other process.
    ///
    /// # Safety
    /// `ours` is readable or, for a pull, writable for `len` bytes, and no Rust reference
    /// covers the destination.
    pub unsafe fn copy_across(
        &self,
        push: bool,
        ours: usize,
        there: There,
        len: usize,
        how: &CopyOptions,
    ) -> Result<(), i32> {
        let turn = self.turn_for(ours, how);
        let mut at = 0;
        while at < len {
            let part = self.limit.part_of(len - at);
            let there = There { offset: there.offset + at, ..there };
            self.carry_across(push, ours + at, there, part, turn, how)?;
            at += part;
        }
        Ok(())
    }

    fn carry_across(
        &self,
        push: bool,
        ours: usize,
        there: There,
        len: usize,
        turn: Turn,
        how: &CopyOptions,
    ) -> Result<(), i32> {
        let (dst, src) = if push { (there.offset, ours) } else { (ours, there.offset) };
        let cut = Cut::for_channels(abi::MAX_PIECES, dst, len, turn.used);
        let list = self.lists.take().ok_or(libc::EAGAIN)?;
        let mut request = list.fill(cut, dst, src, turn);
        request.flags = if push { abi::SUBMIT_PUSH } else { abi::SUBMIT_PULL };
        request.port = there.port;
        request.export = there.export;
        let errno = self
            .submit(&mut request)
            .map_err(|errno| if errno == 0 { libc::EPROTO } else { errno })?;
        // A fixed share: the caller's share of copies in this process is not learned from these.
        let how = CopyOptions { share: Some(0.0), ..*how };
        let failed = self.wait(&request, len, sys::ticks(), &how);
        match errno {
            0 if failed == 0 => Ok(()),
            0 => Err(libc::EIO),
            errno => Err(errno),
        }
    }
}
