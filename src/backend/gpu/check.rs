//! `adma check` of a graphics card.

use super::{BUFFER, CHANNELS, Engine, service};
use crate::backend::engine::stretch::Stretch;
use crate::backend::engine::{CopyEngine, CopyOptions, Settings};
use crate::backend::libc as original;
use crate::os::sys;
use core::fmt::{Error, Result as Written, Write};
use core::sync::atomic::Ordering;

impl Engine {
    /// Describes the card, or why there is none, and returns whether there is one. Opening it takes a
    /// while.
    pub(super) fn describe(&self, settings: &Settings, out: &mut dyn Write) -> Result<bool, Error> {
        service::start(settings);
        self.want();
        while !self.is_settled() {
            sys::sleep(1_000_000);
        }
        write!(out, "  GPU         ")?;
        if !self.is_up() {
            writeln!(out, "not used: {}", self.why_not())?;
            return Ok(false);
        }
        let (name, engines) = self.card();
        writeln!(out, "{name}, {engines} copy engines")?;
        let each = BUFFER >> 20;
        write!(out, "              {CHANNELS} channels, ")?;
        match self.buffers.load(Ordering::Relaxed) {
            true => writeln!(out, "bounce buffer {CHANNELS} x {each} MiB")?,
            false => writeln!(out, "without bounce buffers")?,
        }
        self.write_rate(out)?;
        Ok(true)
    }

    /// Measures the card with 64 MiB between warm buffers.
    fn write_rate(&self, out: &mut dyn Write) -> Written {
        const LEN: usize = 64 << 20;
        let buffers = pages(LEN).zip(pages(LEN));
        let Some((dst, src)) = buffers.filter(|&(dst, src)| self.register([(dst, LEN), (src, LEN)]))
        else {
            let why = "two buffers of 64 MiB could not be registered";
            return writeln!(out, "  GPU rate    not measured: {why}");
        };
        let how = CopyOptions { share: Some(0.0), spins: true, spare_cpus: true, channels: None };
        let mut best = u64::MAX;
        for _ in 0..10 {
            let begun = sys::nanoseconds();
            // SAFETY: two mappings of our own, of `LEN` bytes each.
            if unsafe { self.copy(Stretch { dst, src, len: LEN }, &how) }.is_ok() {
                best = best.min(sys::nanoseconds() - begun);
            }
        }
        if best == u64::MAX {
            return writeln!(out, "  GPU rate    none: {}", self.why_not());
        }
        writeln!(out, "  GPU rate    {:.1} GB/s for 64 MiB", LEN as f64 / best as f64)
    }
}

/// Maps memory of our own, written so that no page is the shared zero page.
fn pages(len: usize) -> Option<usize> {
    let at = sys::map(len)? as usize;
    // SAFETY: mapped above, writable for `len` bytes; no other thread has the address.
    unsafe { original::fill(at, 0x5a, len) };
    Some(at)
}
