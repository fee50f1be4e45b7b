//! The kernel helper's channels as an engine.

use super::Engine;
use crate::backend::Refused;
use crate::backend::engine::stretch::Stretch;
use crate::backend::engine::{
    Choice, CopyEngine, CopyOptions, Counts, Form, Requests, Settings, Usable,
};
use crate::backend::threads::workers;
use crate::os::sys::{self, NoNewFilter};
use crate::os::text::meaning;
use core::fmt::{Arguments, Result as Written, Write};
use core::sync::atomic::Ordering::Relaxed;

impl CopyEngine for Engine {
    fn name(&self) -> &'static str {
        "ioat"
    }

    /// `ioat` is the name from the time before DSA.
    fn words(&self) -> &'static [&'static str] {
        &["dma", "ioat"]
    }

    fn is_wanted(&self, settings: &Settings) -> bool {
        matches!(settings.choice, Choice::Any | Choice::Named("dma"))
    }

    fn start(&self, settings: &Settings, allowed: NoNewFilter) -> bool {
        let started = self.open(allowed);
        if started {
            settings.keep.inspect(|&bytes| self.keep(bytes));
            workers::start(1); // for callers that wait for a word and never ask
        }
        started
    }

    /// Opens nothing: the first large copy does.
    fn remedy(&self) -> Option<&'static str> {
        match -sys::may_read(super::helper::PATH) as i32 {
            0 => None,
            libc::EACCES => Some("no permission for /dev/adma (join the group adma)"),
            _ => Some("no /dev/adma (load the kernel helper, see adma(7))"),
        }
    }

    fn takes(&self, dst: usize, src: usize, _len: usize) -> bool {
        self.suits(dst, src)
    }

    unsafe fn copy(&self, copy: Stretch, how: &CopyOptions) -> Result<(), Refused> {
        let turn = self.turn_for(copy.dst, how);
        let copy_stretch = |stretch| {
            // SAFETY: as memcpy, by the caller's contract; a stretch is a part of its ranges.
            unsafe { self.copy_stretch(stretch, turn, how) }
        };
        // SAFETY: memcpy may copy these ranges, by the caller's contract.
        unsafe { copy.one_by_one(&self.counts.caller_bytes, |rest| self.part_of(rest), copy_stretch) }
    }

    fn counts(&self) -> Counts<'_> {
        Counts {
            channels: self.channels(),
            channel_bytes: &self.counts.channel_bytes,
            caller_bytes: self.counts.caller_bytes.load(Relaxed),
            faults: self.counts.faults.load(Relaxed),
        }
    }

    fn report(&self, form: Form, nanoseconds_per_tick: f64, out: &mut dyn Write) -> Written {
        self.write_report(form, nanoseconds_per_tick, out)
    }

    /// Does not report a missing helper, which is as common as missing hardware.
    fn why_not(&self, say: &dyn Fn(Arguments<'_>)) {
        let errno = self.why_not();
        if errno != 0 && errno != libc::ENOENT {
            say(format_args!("/dev/adma not used: {} (errno {errno})", meaning(errno)));
        }
    }

    fn check(&self, settings: &Settings, out: &mut dyn Write) -> Result<Usable, core::fmt::Error> {
        let is_wanted = self.is_wanted(settings);
        let opened = is_wanted && NoNewFilter::look().is_some_and(|allowed| self.open(allowed));
        self.describe(is_wanted, out)?;
        super::queues::write_unusable(out)?;
        Ok(if opened { Usable::Yes } else { Usable::No })
    }

    fn before_fork(&self) {
        self.let_go();
    }

    fn after_fork(&self) {
        self.keep_again();
    }

    fn forget(&self) {
        self.forget_after_fork();
    }
}
