//! A table for pipes and files, and JSON for programs: one sample, or one each second.

use super::columns::Layout;
use super::{INTERVAL, Row, Sampler, Wish, metrics};
use crate::say::{self, fail, say};
use adma_shared::messages::Messages;
use adma_shared::worth::{Interval, Saved};
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::sync::atomic::Ordering::Relaxed;

pub fn run(wish: &Wish) -> i32 {
    let mut sampler = Sampler::new();
    loop {
        let rows = sampler.sample(wish);
        if let (Some(pid), true) = (wish.pid, rows.is_empty()) {
            fail(1, format_args!("process {pid} keeps no live statistics, or has ended"));
        }
        let text = match (wish.json, wish.metrics) {
            (true, _) => format!("{}\n", json(&rows)),
            (_, true) => metrics::of(&rows),
            _ => say::in_locale(table(&rows, wish)),
        };
        let mut out = std::io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return 1; // the reader has gone
        }
        if wish.once || wish.metrics {
            if rows.is_empty() && !wish.json && !wish.metrics {
                say("no process keeps live statistics now; programs run by adma do");
            }
            return 0;
        }
        std::thread::sleep(INTERVAL);
    }
}

fn table(rows: &[Row], wish: &Wish) -> String {
    let layout = Layout::new(rows, width(), wish.all);
    let line = |cells: Vec<String>| format!("{}\n", cells.join(" ").trim_end());
    let mut text = line(layout.titles());
    rows.iter().for_each(|row| text += &line(layout.cells(row)));
    text
}

/// Returns the columns of the terminal; a pipe or a file takes all.
fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.ok().map(|size| size.ws_col.into()).filter(|columns| *columns > 0).unwrap_or(1000)
}

/// Returns messages as the report at exit has them; null: none.
fn messages(told: Option<Messages>) -> Value {
    let Some(told) = told else { return Value::Null };
    let mut all = counted("messages", told.directions);
    all.insert("regimes".to_owned(), counted("messages", told.regimes).into());
    all.insert("copied_bytes".to_owned(), by_name(told.copied).into());
    all.into()
}

/// Returns names with the number of `what` and the bytes of each.
fn counted<const N: usize>(what: &str, rows: [(&str, u64, u64); N]) -> Map<String, Value> {
    let row = |(name, count, bytes)| (String::from(name), json!({ what: count, "bytes": bytes }));
    rows.into_iter().map(row).collect()
}

fn by_name<'a>(rows: impl IntoIterator<Item = (&'a str, u64)>) -> Map<String, Value> {
    rows.into_iter().map(|(name, number)| (name.to_owned(), number.into())).collect()
}

fn json(rows: &[Row]) -> Value {
    let process = |row: &Row| {
        let (facts, recorder) = (&row.process.live.facts, row.recorder());
        let channels = crate::live_files::channel_bytes(&row.process.live);
        json!({
            "pid": row.process.pid,
            "program": row.program,
            "command": row.command,
            "user": row.user,
            "state": format!("{:?}", row.process.state),
            "off": row.is_off(),
            "backend": crate::live_files::backend(&row.process.live),
            "channels": channels.len(),
            "min_bytes": facts.min_bytes.load(Relaxed),
            "threshold": facts.threshold.load(Relaxed),
            "seconds": row.process.seconds(),
            "copies": row.copies,
            "bytes": row.bytes,
            "copies_per_second": row.copies_per_second,
            "bytes_per_second": row.bytes_per_second,
            "paths": counted("calls", recorder.counts()),
            "reads": counted("calls", recorder.read_counts()),
            "reads_per_second": row.reads_per_second,
            "fallbacks": by_name(recorder.fallbacks()),
            "caller_bytes": facts.caller_bytes.load(Relaxed),
            "channel_bytes": channels,
            "saved": saved(&row.saved),
            "messages": messages(row.process.messages()),
            "messages_per_second": row.messages_per_second,
        })
    };
    json!({ "processes": rows.iter().map(process).collect::<Vec<Value>>() })
}

/// Returns the time saved as reports write it.
fn saved(saved: &Saved) -> Value {
    match saved.interval {
        Ok(Interval { seconds, low, high, calls }) => {
            json!({ "seconds": seconds, "low": low, "high": high, "calls": calls, "reason": null })
        }
        Err(why) => {
            json!({ "seconds": null, "low": null, "high": null, "reason": why.to_string() })
        }
    }
}
