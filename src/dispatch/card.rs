//! Copies between memory of the program and a graphics card, decided about like other large calls.
//! Here "libc" stands for the function of CUDA's libraries that the program has called.

use super::Dispatcher;
use super::engine::EngineKind;
use super::operation::{Kind, Operation};
use crate::backend::Refused;
use crate::backend::card::staging::{self, CARD_FROM, CardCall, CardCopy};
use crate::backend::threads::{Cost, Seen, ShareOptions};
use crate::config::Config;
use crate::functions::CARD;
use crate::os::huge_pages::Region;
use crate::os::sys;
use crate::stats::Fallback;
use core::sync::atomic::Ordering;

impl Dispatcher {
    /// Performs a copy of cudaMemcpy or one of its relatives; the answer is its error code.
    ///
    /// # Safety
    /// The program has made this call, with these arguments.
    pub unsafe fn card(&self, call: &CardCall) -> isize {
        let large = self.config().filter(|config| self.is_large_for_card(config, call.len));
        let copy = large.and_then(|config| Some((config, CardCopy::of(call)?)));
        // SAFETY: the program has made this call; one of these arms makes it, once.
        unsafe {
            match copy {
                Some((config, copy)) if !self.learns(config) || staging::pays(call.len) => {
                    self.dispatch(config, &copy, 0, call.site).1
                }
                Some((_, copy)) => self.time_next(&copy),
                None => call.pass_on(),
            }
        }
    }

    fn is_large_for_card(&self, config: &Config, len: usize) -> bool {
        config.ops >> CARD & 1 == 1
            && len >= self.entry_min(config, CARD_FROM)
            && !self.closed.load(Ordering::Relaxed)
            && matches!(self.ready(config, len), Ok(EngineKind::Threads(_)))
    }

    /// Passes a copy on, and notes what the driver's own way has taken: where staging is known to be
    /// better, that way is not tried again.
    unsafe fn time_next(&self, copy: &CardCopy) -> isize {
        let begun = sys::ticks();
        // SAFETY: the program has made this call, with these arguments.
        let answer = unsafe { copy.call.pass_on() };
        if copy.is_whole(answer) {
            let (bytes, ticks) = (copy.len(), sys::ticks().wrapping_sub(begun));
            let cell = self.learner(copy.kind()).base(copy.call.site, bytes);
            cell.note_look(Cost { bytes, ticks });
        }
        answer
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
        // SAFETY: the program has made this call, with these arguments.
        unsafe { self.stage(how) }
    }

    unsafe fn by_libc(&self, _: usize, _: bool, huge: Option<Region>) -> isize {
        if let Some((region, to)) = huge.zip(self.written()) {
            region.make_pages(to, self.len());
        }
        // SAFETY: the program has made this call, with these arguments.
        unsafe { self.call.pass_on() }
    }

    fn is_whole(&self, answer: isize) -> bool {
        answer == 0
    }
}
