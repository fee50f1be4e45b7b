//! Copies between memory of the program and a graphics card, decided about like other large calls. "libc"
//! stands for the program's own function there.

use super::Dispatcher;
use super::engine::EngineKind;
use super::operation::{Kind, Operation};
use crate::backend::Refused;
use crate::backend::gpu::staging::{self, CARD_FROM, CardCall, CardCopy};
use crate::backend::threads::{Seen, ShareOptions};
use crate::config::Config;
use crate::functions::CARD;
use crate::os::huge_pages::Region;
use crate::stats::Fallback;
use core::sync::atomic::Ordering;

impl Dispatcher {
    /// Performs a copy of cudaMemcpy or one of its relatives; the answer is its error code.
    ///
    /// # Safety
    /// The program's own call.
    pub unsafe fn card(&self, call: &CardCall) -> isize {
        let large = self.config().filter(|config| self.is_large_for_card(config, call.len));
        let copy = large.and_then(|config| Some((config, CardCopy::of(call)?)));
        // SAFETY: the caller's promise.
        unsafe {
            match copy {
                Some((config, copy)) => self.dispatch(config, &copy, 0, call.site).1,
                None => call.pass_on(),
            }
        }
    }

    fn is_large_for_card(&self, config: &Config, len: usize) -> bool {
        config.ops >> CARD & 1 == 1
            && len >= self.entry_min(config, CARD_FROM)
            && !self.closed.load(Ordering::Relaxed)
            && (!self.learns(config) || staging::pays(len))
            && matches!(self.ready(config, len), Ok(EngineKind::Threads(_)))
    }
}

impl Operation for CardCopy<'_> {
    fn kind(&self) -> Kind {
        if self.is_to_card { Kind::ToCard } else { Kind::FromCard }
    }

    fn len(&self) -> usize {
        self.call.len
    }

    fn is_in_any_order(&self) -> bool {
        true
    }

    fn written(&self) -> Option<usize> {
        (!self.is_to_card).then_some(self.host())
    }

    /// Never called: no part is timed, see `is_timed_by_parts`.
    unsafe fn begin(&self, _: usize, _: usize) -> Result<(), Fallback> {
        Err(Fallback::Unsupported)
    }

    unsafe fn share(&self, _: usize, how: &ShareOptions) -> Result<(isize, Seen), Refused> {
        // SAFETY: the program's own call.
        unsafe { self.stage(how) }
    }

    unsafe fn by_libc(&self, _: usize, _: bool, huge: Option<Region>) -> isize {
        if let Some((region, to)) = huge.zip(self.written()) {
            region.make_pages(to, self.len());
        }
        // SAFETY: the program's own call.
        unsafe { self.call.pass_on() }
    }

    fn is_whole(&self, answer: isize) -> bool {
        answer == 0
    }
}
