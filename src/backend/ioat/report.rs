//! The kernel helper's part of a report.

use super::{Engine, helper, queues};
use crate::backend::engine::Form;
use crate::backend::may_start;
use crate::os::text::{write_list, write_numbers};
use adma_shared::units::Time;
use core::fmt::{Result, Write};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Requests to the kernel helper, and its own counters.
pub struct HelperCounts<'a> {
    /// Channels, as `queues::held` returns them.
    pub held: &'a str,
    /// System calls to submit, those to wait (where words were missing or late), and all that copies
    /// made; pieces that were refused or failed and that the caller has copied; requests, and the pages
    /// pinned for them.
    pub counts: [(&'static str, u64); 6],
    /// Time of the requests by phase, in nanoseconds.
    pub costs: [(&'static str, u64); 3],
    /// Ranges of 64 pages: found pinned, not found, dropped.
    pub kept: Option<[(&'static str, u64); 4]>,
    /// Counters of the module for all processes since it was loaded.
    pub module: Option<[(&'static str, u64); 2]>,
}

impl HelperCounts<'_> {
    pub fn write(&self, form: Form, out: &mut dyn Write) -> Result {
        match form {
            Form::Json => self.write_json(out),
            Form::Text => self.write_text(out),
        }
    }

    fn write_json(&self, out: &mut dyn Write) -> Result {
        out.write_str(",\"ioat\":{")?;
        write_numbers(out, self.counts)?;
        out.write_str(",\"channels\":{")?;
        write_list(out, queues::channels(self.held), |out, (name, driver)| write!(out, "\"{name}\":\"{driver}\""))?;
        out.write_str("},\"costs_ns\":{")?;
        write_numbers(out, self.costs)?;
        if let Some(kept) = self.kept {
            out.write_str("},\"lines\":{")?;
            write_numbers(out, kept)?;
        }
        if let Some(module) = self.module {
            out.write_str("},\"module\":{")?;
            write_numbers(out, module)?;
        }
        out.write_str("}}")
    }

    fn write_text(&self, out: &mut dyn Write) -> Result {
        let [_, waits, system_calls, redone, requests, pinned] = self.counts.map(|(_, count)| count);
        writeln!(out, "  kernel helper     {system_calls} system calls, {waits} to wait;")?;
        writeln!(out, "                    {redone} pieces done again")?;
        for (driver, count, first, last) in queues::drivers(self.held) {
            writeln!(out, "                    {count} channels of {driver}: {first} to {last}")?;
        }
        if let Some([_, (_, errors)]) = self.module
            && errors > 0
        {
            writeln!(out, "  of all processes  {errors} transfers failed or were too late")?;
        }
        if requests == 0 {
            return Ok(());
        }
        if let Some([(_, hits), (_, misses), (_, evicted), (_, changed)]) = self.kept {
            writeln!(out, "  pin cache         {hits} hits, {misses} misses,")?;
            writeln!(out, "                    {evicted} evicted, {changed} invalidated by the program")?;
        }
        writeln!(out, "  time of a request ({requests} of them, {pinned} pages pinned)")?;
        write!(out, "                   ")?;
        for (name, nanoseconds) in self.costs {
            write!(out, " {name} {}", Time(nanoseconds / requests))?;
        }
        writeln!(out)
    }
}

impl Engine {
    pub(super) fn write_report(&self, form: Form, scale: f64, out: &mut dyn Write) -> Result {
        let (counts, count) = (&self.counts, |count: &AtomicU64| count.load(Relaxed));
        let mut room = [0; queues::ROOM];
        let report = HelperCounts {
            held: may_start().map_or("", |allowed| queues::held(&mut room, allowed)),
            counts: [
                ("submit_calls", count(&counts.submits)),
                ("wait_calls", count(&counts.waits)),
                (
                    "system_calls",
                    count(&counts.submits) + count(&counts.waits) + count(&counts.others),
                ),
                ("redone_pieces", count(&counts.redone)),
                ("requests", count(&counts.requests)),
                ("pinned_pages", count(&counts.pinned_pages)),
            ],
            costs: core::array::from_fn(|i| {
                let nanoseconds = count(&counts.ticks[i]) as f64 * scale;
                (["submission", "engine", "completion"][i], nanoseconds as u64)
            }),
            // These make system calls, for which a seccomp filter that was installed since might kill.
            kept: may_start().ok().and_then(|_| self.kept()),
            module: may_start().ok().and_then(helper::counted),
        };
        report.write(form, out)
    }
}
