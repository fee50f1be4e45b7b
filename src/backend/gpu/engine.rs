//! A graphics card as an engine, beside another one.

use super::{CHANNELS, Engine, Unavailable, service};
use crate::backend::Refused;
use crate::backend::engine::request::Request;
use crate::backend::engine::{Choice, CopyEngine, CopyOptions, Counts, Form, Settings, Usable};
use crate::os::sys::{NoFilter, NoNewFilter};
use crate::plan::Piece;
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

    /// Its thread opens the driver when `takes` is asked for the first large copy.
    fn start(&self, _settings: &Settings, _allowed: NoNewFilter) -> bool {
        self.is_up()
    }

    fn is_up(&self) -> bool {
        self.is_up()
    }

    fn takes(&self, dst: usize, src: usize, len: usize) -> bool {
        self.takes(dst, src, len)
    }

    unsafe fn copy(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        how: &CopyOptions,
    ) -> Result<(), Refused> {
        // SAFETY: as memcpy, by the caller's contract.
        unsafe { self.copy(dst, src, len, how) }
    }

    fn part_of(&self, len: usize) -> usize {
        len
    }

    unsafe fn begin(
        &self,
        request: &Request,
        dst: usize,
        src: usize,
        len: usize,
        _how: &CopyOptions,
    ) -> Result<Option<Piece>, Refused> {
        // SAFETY: the caller keeps both ranges until the request is over.
        unsafe { self.begin(request, dst, src, len) }.map(|()| Some(Piece { offset: 0, len }))
    }

    fn is_over(&self, request: &Request, nanos: u64) -> bool {
        self.is_over(request, nanos)
    }

    fn left_over(&self, request: &Request, len: usize, copy: &mut dyn FnMut(usize, usize)) {
        self.left_over(request, len, copy);
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

    fn end_for_keys(&self) {
        self.end_for_keys();
    }
}
