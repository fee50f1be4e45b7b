//! A table for pipes and files, and JSON for programs: one sample, or one each second.

use super::{INTERVAL, Row, Sampler, Wish};
use crate::live::State;
use crate::say::{fail, say};
use crate::stats::live::Flow;
use crate::stats::messages::Messages;
use crate::stats::units::{Bytes, Time};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::Ordering::Relaxed;

pub fn run(wish: &Wish) -> i32 {
    let mut sampler = Sampler::new();
    loop {
        let rows = sampler.sample(wish.pid);
        if let (Some(pid), true) = (wish.pid, rows.is_empty()) {
            fail(1, format_args!("process {pid} keeps no live statistics, or has ended"));
        }
        let text = if wish.json { format!("{}\n", json(&rows)) } else { table(&rows) };
        let mut out = std::io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return 1; // nobody reads any more
        }
        if wish.once {
            if rows.is_empty() && !wish.json {
                say("no process keeps live statistics now; programs run by adma do");
            }
            return 0;
        }
        std::thread::sleep(INTERVAL);
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = format!("{}\n", HEAD);
    for row in rows {
        let _ = writeln!(text, "{}", columns(row).join(" ")); // a `String` takes everything
    }
    text
}

/// 80 columns, as many as a terminal has.
pub const HEAD: &str =
    "    PID PROGRAM      COPIES/S  BYTES/S ENGINE BECAUSE     CALLER    SAVED MSGS/S";
/// The widths of the columns under that; positive ones are flush right.
pub const WIDTHS: [i32; COLUMNS] = [7, -12, 8, 8, 6, -11, 6, 8, 6];
pub const COLUMNS: usize = 9;

/// What the table tells of a process, each column as wide as `HEAD` has it.
pub fn columns(row: &Row) -> [String; COLUMNS] {
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let saved = |seconds: f64| {
        let sign = if seconds < 0.0 { "-" } else { "" };
        format!("{sign}{}", Time((seconds.abs() * 1e9) as u64))
    };
    let state = match row.process.state {
        State::Running if row.is_off() => "OFF",
        State::Running => row.because(),
        State::Elsewhere => "elsewhere",
        _ => "ended",
    };
    let cells = [
        row.process.pid.to_string(),
        row.program.chars().take(12).collect(),
        rate(row.copies_per_second, 7),
        Bytes(row.bytes_per_second as u64).to_string(),
        percent(row.engine),
        state.to_owned(),
        row.caller().map_or("-".to_owned(), percent),
        row.saved.map_or("-".to_owned(), saved),
        rate(row.messages_per_second, 5),
    ];
    let mut widths = WIDTHS.into_iter();
    cells.map(|cell| match widths.next().unwrap_or(0) {
        width @ 0.. => format!("{cell:>0$}", width as usize),
        width => format!("{cell:<0$}", -width as usize),
    })
}

/// With a digit behind the point, where there is room for it.
fn rate(per_second: f64, room: usize) -> String {
    let text = format!("{per_second:.1}");
    if text.len() <= room { text } else { format!("{per_second:.0}") }
}

/// As the report at exit has it; null: none.
fn messages(told: Option<Messages>) -> Value {
    let Some(told) = told else { return Value::Null };
    let counted = |rows: &[(&str, u64, u64)]| -> Map<String, Value> {
        let row = |&(name, messages, bytes): &(&str, u64, u64)| {
            (name.to_owned(), json!({ "messages": messages, "bytes": bytes }))
        };
        rows.iter().map(row).collect()
    };
    let mut all = counted(&told.directions);
    let copied: Map<String, Value> =
        told.copied.iter().map(|&(name, bytes)| (name.to_owned(), bytes.into())).collect();
    all.insert("regimes".to_owned(), counted(&told.regimes).into());
    all.insert("copied_bytes".to_owned(), copied.into());
    all.into()
}

fn json(rows: &[Row]) -> Value {
    let process = |row: &Row| {
        let (facts, recorder) = (&row.process.live.facts, row.recorder());
        let channels = row.process.channel_bytes();
        let path = |flow: &Flow, bytes: u64| json!({ "calls": flow.sizes.count(), "bytes": bytes });
        let fallbacks: Map<String, Value> =
            recorder.fallbacks().map(|(why, count)| (why.to_owned(), count.into())).collect();
        let counted = |(name, calls, bytes): (&str, u64, u64)| {
            (name.to_owned(), json!({ "calls": calls, "bytes": bytes }))
        };
        let reads: Map<String, Value> = recorder.read_counts().map(counted).into_iter().collect();
        json!({
            "pid": row.process.pid,
            "program": row.program,
            "state": format!("{:?}", row.process.state),
            "off": row.is_off(),
            "backend": row.process.backend(),
            "channels": channels.len(),
            "min_bytes": facts.min_bytes.load(Relaxed),
            "threshold": facts.threshold.load(Relaxed),
            "seconds": row.process.seconds(),
            "copies": row.copies,
            "bytes": row.bytes,
            "copies_per_second": row.copies_per_second,
            "bytes_per_second": row.bytes_per_second,
            "paths": {
                "engine": path(&recorder.engine, recorder.engine_bytes()),
                "libc": path(&recorder.libc, recorder.libc_bytes()),
            },
            "reads": reads,
            "fallbacks": fallbacks,
            "caller_bytes": facts.caller_bytes.load(Relaxed),
            "channel_bytes": channels,
            "saved": row.saved,
            "messages": messages(row.process.messages()),
            "messages_per_second": row.messages_per_second,
        })
    };
    json!({ "processes": rows.iter().map(process).collect::<Vec<Value>>() })
}
