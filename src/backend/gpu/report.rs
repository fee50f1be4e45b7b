//! The card's part of a report: counts of memory that was registered with it.

use super::Engine;
use crate::backend::engine::Form;
use crate::os::text::write_numbers;
use adma_shared::units::Bytes;
use core::fmt::{Result, Write};

impl Engine {
    pub(super) fn write_report(&self, form: Form, out: &mut dyn Write) -> Result {
        let counts = self.counts.of_registrations();
        if form == Form::Json {
            out.write_str(",\"gpu\":{\"registrations\":{")?;
            write_numbers(out, counts)?;
            return out.write_str("}}");
        }
        let [hits, misses, made, most_bytes, evicted, gone, refused] = counts.map(|count| count.1);
        writeln!(out, "  registered memory {hits} copies hit, {misses} missed;")?;
        writeln!(
            out,
            "                    {made} ranges, {} at most, {refused} refused;",
            Bytes(most_bytes)
        )?;
        writeln!(out, "                    {evicted} evicted, {gone} invalidated by the program")
    }
}
