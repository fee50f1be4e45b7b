//! A graphics card as an engine, beside another one.

use super::copy::STRETCH;
use super::{CHANNELS, Engine, Unavailable, service};
use crate::backend::Refused;
use crate::backend::engine::stretch::Stretch;
use crate::backend::engine::{
    Choice, CopyEngine, CopyOptions, Counts, Form, Hold, Settings, Usable,
};
use crate::os::sys::{NoFilter, NoNewFilter};
use core::fmt::{Arguments, Result as Written, Write};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

impl CopyEngine for Engine {
    fn name(&self) -> &'static str {
        "gpu"
    }

    fn words(&self) -> &'static [&'static str] {
        &["gpu"]
    }

    fn is_beside(&self) -> bool {
        true
    }

    /// Never by default, because that starts a context on the card.
    fn is_wanted(&self, settings: &Settings) -> bool {
        match settings.choice {
            Choice::Any => settings.spare_cpus,
            Choice::Named(name) => name == "gpu",
            Choice::None => false,
        }
    }

    /// Makes the thread that calls the driver. A filter may kill for its system calls.
    fn prepare(&self, settings: &Settings) {
        if NoFilter::look().is_some() {
            service::start(settings);
        }
    }

    /// Opens nothing: the service thread opens the driver when `takes` is called for the first large copy.
    fn start(&self, _settings: &Settings, _allowed: NoNewFilter) -> bool {
        self.is_up()
    }

    fn is_up(&self) -> bool {
        self.is_up()
    }

    fn takes(&self, dst: usize, src: usize, len: usize) -> bool {
        self.takes(dst, src, len)
    }

    unsafe fn copy(&self, copy: Stretch, how: &CopyOptions) -> Result<(), Refused> {
        let copy_stretch = |stretch| {
            // SAFETY: as memcpy, by the caller's contract; a stretch is a part of its ranges.
            unsafe { self.copy_stretch(stretch, how) }
        };
        // SAFETY: memcpy may copy these ranges, by the caller's contract.
        unsafe { copy.one_by_one(&self.counts.caller_bytes, |rest| rest.min(STRETCH), copy_stretch) }
    }

    fn counts(&self) -> Counts<'_> {
        Counts {
            channels: if self.was_up() { CHANNELS } else { 0 },
            channel_bytes: &self.counts.channel_bytes,
            caller_bytes: self.counts.caller_bytes.load(Relaxed),
            faults: 0,
        }
    }

    fn report(&self, form: Form, _nanoseconds_per_tick: f64, out: &mut dyn Write) -> Written {
        self.write_report(form, out)
    }

    fn why_not(&self, say: &dyn Fn(Arguments<'_>)) {
        let why = self.why_not();
        if why != Unavailable::Nothing {
            say(format_args!("GPU not used, or not any more: {why}"));
        }
        if self.was_up() {
            let (counts, count) = (&self.counts, |count: &AtomicU64| count.load(Relaxed));
            let [_, _, made, _, evicted, gone, _] = counts.of_registrations().map(|count| count.1);
            say(format_args!(
                "GPU: {made} registrations, {gone} let go because their memory went, {evicted} \
                 because others came; {} words lost, {} copies taken back",
                count(&counts.lost),
                count(&counts.taken_back),
            ));
        }
    }

    fn check(&self, settings: &Settings, out: &mut dyn Write) -> Result<Usable, core::fmt::Error> {
        let usable = self.is_wanted(settings) && self.describe(settings, out)?;
        Ok(if usable { Usable::Yes } else { Usable::No })
    }

    fn forget(&self) {
        self.forget_after_fork();
    }

    fn memory_changes(&self, start: usize, len: usize) {
        self.memory_changes(start, len);
    }

    fn hold(&self, start: usize, len: usize) -> Option<Hold<'_>> {
        self.hold(start, len)
    }

    fn touches(&self, start: usize, len: usize) -> bool {
        self.touches(start, len)
    }

    fn reaches(&self, start: usize, len: usize) -> bool {
        self.reaches(start, len)
    }

    fn end_for_keys(&self) {
        self.end_for_keys();
    }
}
