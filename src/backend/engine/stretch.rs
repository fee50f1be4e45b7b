//! Splits long copies for a DMA engine into stretches: signals are held while a request is in
//! flight, and its length bounds for how long.

use crate::backend::{Refused, libc as original};
use crate::os::process;
use core::sync::atomic::{AtomicU64, Ordering};

/// Part of a copy for one request.
#[derive(Clone, Copy)]
pub struct Stretch {
    pub dst: usize,
    pub src: usize,
    pub len: usize,
}

impl Stretch {
    /// Copies from offset `from` to offset `to` by libc.
    ///
    /// # Safety
    /// As memcpy.
    pub unsafe fn by_libc(self, from: usize, to: usize) {
        if from < to {
            // SAFETY: a part of ranges that memcpy may copy.
            unsafe { original::copy(self.dst + from, self.src + from, to - from) };
        }
    }

    /// Copies the whole stretch by stretch: `next` returns the length of the next one, given the
    /// bytes that are left, and `copy` makes it. A refusal of the first stretch refuses the copy,
    /// and nothing is done. Later ones are copied by libc and counted among the caller's bytes.
    ///
    /// # Safety
    /// As memcpy of the whole.
    pub unsafe fn one_by_one(
        self,
        caller_bytes: &AtomicU64,
        next: impl Fn(usize) -> usize,
        copy: impl Fn(Stretch) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        // A child of vfork may be killed at any moment, and would keep what it had taken.
        if !process::is_ours() {
            return Err(Refused::NotOurs);
        }
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
