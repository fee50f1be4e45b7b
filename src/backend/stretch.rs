//! Long copies go to a DMA engine one stretch after the other: signals are held while a request is
//! under way, and its length bounds for how long.

use super::{Refused, libc as original};
use core::sync::atomic::{AtomicU64, Ordering};

/// One request's part of a copy.
#[derive(Clone, Copy)]
pub struct Stretch {
    pub dst: usize,
    pub src: usize,
    pub len: usize,
}

impl Stretch {
    /// From offset `from` to offset `to`, by libc.
    ///
    /// # Safety
    /// As memcpy.
    pub unsafe fn by_libc(self, from: usize, to: usize) {
        if from < to {
            // SAFETY: the caller's promise.
            unsafe { original::copy(self.dst + from, self.src + from, to - from) };
        }
    }

    /// Has the whole copied stretch by stretch: `next` says how long the next one is, given the
    /// bytes that are left, and `copy` makes it. A copy that is refused at its first stretch is
    /// refused, and nothing of it is done. After that there is no way back: libc copies the refused
    /// stretch, which is counted among the caller's bytes.
    ///
    /// # Safety
    /// As memcpy of the whole.
    pub unsafe fn one_by_one(
        self,
        caller_bytes: &AtomicU64,
        next: impl Fn(usize) -> usize,
        copy: impl Fn(Stretch) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let mut at = 0;
        while at < self.len {
            let len = next(self.len - at);
            let stretch = Stretch { dst: self.dst + at, src: self.src + at, len };
            match copy(stretch) {
                Ok(()) => {}
                Err(refused) if at == 0 => return Err(refused),
                Err(_) => {
                    caller_bytes.fetch_add(len as u64, Ordering::Relaxed);
                    // SAFETY: part of the caller's ranges.
                    unsafe { stretch.by_libc(0, len) };
                }
            }
            at += len;
        }
        Ok(())
    }
}
