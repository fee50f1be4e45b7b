//! Performs a call the way that was decided.

use super::Dispatcher;
use super::completion::Completion;
use super::decide::{Decision, preemptions};
use super::engine::EngineKind;
use super::look;
use super::operation::Operation;
use crate::backend::engine::stretch::Stretch;
use crate::backend::threads::{self, Seen, workers};
use crate::backend::{Refused, alone};
use crate::learn::Way;
use crate::os::huge_pages::Region;
use crate::os::sys;
use crate::stats::{Fallback, Path};

impl Dispatcher {
    /// Performs what is left of the call, the way that was decided.
    pub(super) unsafe fn perform(
        &self,
        decision: &Decision,
        operation: &impl Operation,
    ) -> Completion {
        let Decision { config, done, mut by, copy_loop, .. } = *decision;
        let fresh = decision.makes_pages();
        let (mut from, mut first, mut sample) = (done, [0; 2], None);
        if decision.first > 0 {
            first[0] = sys::ticks();
            if matches!(by, Ok(EngineKind::Threads(_))) && !decision.back_to_back {
                workers::QUEUE.wake_sleepers(1); // a shared copy will come soon
            }
            let mut begun = 0;
            for len in [decision.first - decision.timed, decision.timed] {
                begun = sys::ticks();
                if len > 0 && by.is_ok() {
                    // SAFETY: the program has called the operation's function on ranges that include this part.
                    match unsafe { operation.begin(from, len) } {
                        Ok(()) => from += len,
                        Err(why) => by = Err(why),
                    }
                }
            }
            first[1] = sys::ticks();
            sample = decision
                .cpu
                .filter(|before| preemptions() == Some(before.preemptions))
                .map(|_| first[1].wrapping_sub(begun));
        }
        let region =
            |dst: usize| Region::new(dst + from, operation.len() - from, sys::NoFilter::look()?);
        // Marking locks all mappings, which many threads that make pages wait for.
        let may_mark = fresh && config.huge_pages && decision.by != Err(Fallback::Busy);
        let written = operation.written().filter(|_| may_mark);
        let wanted = written.map(|dst| (dst, decision.learner.marks(operation.len()).are_wanted()));
        let region = wanted.filter(|&(_, wanted)| wanted).and_then(|(dst, _)| region(dst));
        // Not known if huge pages were wanted and refused.
        let huge = wanted.map(|(_, wanted)| wanted).filter(|&wanted| wanted == region.is_some());
        let rest = operation.as_copy().map(|(dst, src)| (dst + from, src + from));
        let (share, len) = (config.cpu_share, operation.len() - from);
        // SAFETY: the program has called the operation's function on ranges that include this rest.
        let carried = by.and_then(|engine| unsafe {
            match (engine, rest) {
                (EngineKind::Threads(workers), _) => {
                    let huge = region;
                    operation.share(
                        from,
                        &threads::ShareOptions { workers, copy_loop, share, fresh, huge },
                    )
                }
                (EngineKind::Other(other) | EngineKind::Beside(other), Some((dst, src))) => {
                    region.inspect(|region| region.make_pages(dst, len));
                    let stretch = Stretch { dst, src, len };
                    let copied = other.copy(stretch, &self.copy_options(config));
                    copied.map(|()| (0, Seen::default()))
                }
                (_, None) => Err(Refused::Busy), // was decided otherwise
            }
            .map_err(|refused| self.refused(refused))
        });
        match carried {
            Ok((answer, seen)) => {
                Completion { path: Path::Engine, fallback: None, answer, first, sample, huge, seen }
            }
            Err(why) => {
                // SAFETY: the rest of the program's ranges; after a refusal no thread or engine works on them.
                let (streamed, answer) = unsafe { by_caller(decision, operation, from, region) };
                let path = if streamed { Path::Engine } else { Path::Libc(why) };
                let seen = Seen::default();
                Completion { path, fallback: Some(why), answer, first, sample, huge, seen }
            }
        }
    }
}

/// Does the rest without help; returns whether it was streamed, and the answer.
///
/// # Safety
/// The program has called the operation's function with these arguments.
unsafe fn by_caller(
    decision: &Decision,
    operation: &impl Operation,
    from: usize,
    huge: Option<Region>,
) -> (bool, isize) {
    // SAFETY: the program has called the operation's function on these ranges; those of a look do not overlap.
    unsafe {
        match (decision.way, operation.as_copy(), decision.look, operation.as_task()) {
            (Some(Way::Alone), Some((dst, src)), ..) => {
                let len = operation.len() - from;
                alone::copy(dst + from, src + from, len);
                threads::note_caller_bytes(len);
                (true, 0)
            }
            (_, _, Some(look), Some(task)) if from == 0 && decision.fresh.is_none() => {
                look::finish(task, look);
                (false, 0)
            }
            _ => (false, operation.by_libc(from, decision.makes_pages(), huge)),
        }
    }
}
