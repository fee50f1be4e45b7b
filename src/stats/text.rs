//! The text report: what every report has, and what only the library knows.

use super::live::channel_name;
use super::snapshot::Snapshot;
use super::{tables, worth};
use crate::backend::engine::Form;
use core::fmt::{Display, Result, Write};

pub fn write(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> Result {
    let (who, scale) = ((snapshot.program(), snapshot.pid), snapshot.nanoseconds_per_tick);
    tables::heading(out, who, snapshot.backend, snapshot.channels, "")?;
    let saved = worth::saved(snapshot.recorder, scale, snapshot.seconds);
    let sentence = saved.sentence();
    let report = tables::Report {
        recorder: snapshot.recorder,
        messages: snapshot.messages,
        channels: (snapshot.caller_bytes, channel_name(snapshot.backend), snapshot.channel_bytes),
        sentence: sentence.as_ref().map(|sentence| sentence as &dyn Display),
        floor: snapshot.floor as u64,
        threshold: snapshot.threshold.map(|bytes| bytes as u64),
        scale,
        faults: snapshot.faults,
        taken_back: snapshot.taken_back,
        has_profile: snapshot.profile,
        more: &|out| snapshot.engine.map_or(Ok(()), |report| report(Form::Text, out)),
    };
    report.write(out)
}
