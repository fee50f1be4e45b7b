//! Columns of the table of processes, each for people, for programs, for metrics, or for several
//! of them; and the layout on a terminal: columns for which there is room, as wide as their cells.

use super::Row;
use crate::live_files::{self, State};
use crate::report::figures::{Site, saved_value};
use crate::say;
use adma_report::{self as report, Column, Document, Kind, Metric, Section, Table, Value};
use adma_shared::messages::Messages;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

pub const PID: &str = "PID";
pub const COPIES: &str = "COPIES/S";
pub const BYTES: &str = "BYTES/S";
pub const SAVED: &str = "SAVED";
const USER: &str = "USER";
const PROGRAM: &str = "PROGRAM";

/// A column, its rank on a terminal (the lowest is dropped first where there is not room for all),
/// and its value.
pub type Shown = (Column, u8, fn(&Row) -> Value);

/// Rank of columns that a terminal does not show.
const HIDDEN: u8 = 0;

static COLUMNS: [Shown; 33] = [
    (Column::new(PID).key("pid").label("pid"), 10, |row| Value::Count(row.process.pid as u64)),
    (Column::keyed("program").label("program"), HIDDEN, |row| row.program.as_str().into()),
    (Column::keyed("").label("name"), HIDDEN, |row| name_of(&row.command).into()),
    (Column::new(USER).key("user").left(), 9, |row| row.user.as_str().into()),
    (Column::new(PROGRAM).key("command").label("command").left(), 10, |row| {
        row.command.as_str().into()
    }),
    (Column::new(COPIES).key("copies_per_second"), 7, |row| Value::Rate(row.copies_per_second)),
    (Column::new(BYTES).key("bytes_per_second"), 9, |row| Value::ByteRate(row.bytes_per_second)),
    (Column::new("ENGINE"), 8, |row| Value::Part(row.engine)),
    (Column::new("BECAUSE").left(), 4, |row| {
        match row.process.state {
            State::Running if row.is_off() => "OFF",
            State::Running => row.because(),
            State::Elsewhere => "elsewhere",
            _ => "ended",
        }
        .into()
    }),
    (Column::keyed("copies"), HIDDEN, |row| Value::Count(row.copies)),
    (Column::keyed("bytes"), HIDDEN, |row| Value::Bytes(row.bytes)),
    (Column::keyed("paths").metrics(&PATHS), HIDDEN, |row| {
        Value::map(counted("calls", row.recorder().counts()))
    }),
    (Column::keyed("reads").metrics(&READS), HIDDEN, |row| {
        Value::map(counted("calls", row.recorder().counts_apart(0)))
    }),
    (Column::keyed("to_card").metrics(&TO_CARD), HIDDEN, |row| {
        Value::map(counted("calls", row.recorder().counts_apart(1)))
    }),
    (Column::keyed("from_card").metrics(&FROM_CARD), HIDDEN, |row| {
        Value::map(counted("calls", row.recorder().counts_apart(2)))
    }),
    (Column::keyed("fallbacks").metrics(&FALLBACKS), HIDDEN, |row| {
        Value::map(row.recorder().fallbacks().map(|(why, count)| (why, Value::Count(count))))
    }),
    (Column::keyed("messages").metrics(&MESSAGES), HIDDEN, |row| {
        row.process.messages().map(messages).into()
    }),
    (Column::new("FROM").metrics(&THRESHOLD), 5, |row| row.threshold().map(Value::Bytes).into()),
    (Column::keyed("min_bytes"), HIDDEN, |row| {
        Value::Bytes(row.process.live.facts.min_bytes.load(Relaxed))
    }),
    (Column::keyed("threshold"), HIDDEN, |row| {
        Value::Bytes(row.process.live.facts.threshold.load(Relaxed))
    }),
    (Column::keyed("backend"), HIDDEN, |row| live_files::backend(&row.process.live).into()),
    (Column::keyed("channels"), HIDDEN, |row| {
        Value::Count(live_files::channel_bytes(&row.process.live).len() as u64)
    }),
    (Column::keyed("").metrics(&CHANNELS), HIDDEN, |row| {
        let channels = row.process.live.facts.channels.load(Relaxed);
        Value::map([(live_files::backend(&row.process.live), Value::Count(channels.into()))])
    }),
    (Column::keyed("off").metrics(&OFF), HIDDEN, |row| Value::Flag(row.is_off())),
    (Column::keyed("state"), HIDDEN, |row| format!("{:?}", row.process.state).into()),
    (Column::keyed("seconds"), HIDDEN, |row| Value::Seconds(row.process.seconds())),
    (Column::new("CALLER"), 3, |row| row.caller().map(Value::Part).into()),
    (Column::keyed("caller_bytes"), HIDDEN, |row| {
        Value::Bytes(row.process.live.facts.caller_bytes.load(Relaxed))
    }),
    (Column::keyed("channel_bytes"), HIDDEN, |row| {
        let channels = live_files::channel_bytes(&row.process.live);
        Value::List(channels.into_iter().map(Value::Bytes).collect())
    }),
    (Column::new(SAVED), 6, |row| row.seconds_saved().map(Value::Seconds).into()),
    (Column::keyed("saved"), HIDDEN, |row| {
        let reason = row.saved.interval.as_ref().err().map(ToString::to_string);
        saved_value(row.saved.interval.as_ref().map_err(|_| reason.as_deref().unwrap_or_default()))
    }),
    (Column::new("MSGS/S").key("messages_per_second"), 2, |row| {
        Value::Rate(row.messages_per_second)
    }),
    (Column::new("READS/S").key("reads_per_second"), 1, |row| Value::Rate(row.reads_per_second)),
];

const fn counter(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    field: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Counter, help, label, field, skips_zero: false }
}

const fn gauge(name: &'static str, help: &'static str, label: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help, label, field: "", skips_zero: false }
}

const TO_CARD: [Metric; 1] =
    [counter("to_card_bytes_total", "Bytes of large copies to cards.", "path", "bytes")];
const FROM_CARD: [Metric; 1] =
    [counter("from_card_bytes_total", "Bytes of large copies from cards.", "path", "bytes")];
const PATHS: [Metric; 2] = [
    counter("copies_total", "Large copies.", "path", "calls"),
    counter("bytes_total", "Bytes of large copies.", "path", "bytes"),
];
const READS: [Metric; 2] = [
    counter("reads_total", "Large reads of files, which are among the copies.", "path", "calls"),
    counter("read_bytes_total", "Bytes of large reads of files.", "path", "bytes"),
];
const FALLBACKS: [Metric; 1] = [Metric {
    skips_zero: true,
    ..counter("fallbacks_total", "Large copies that libc made, by reason.", "reason", "")
}];
const MESSAGES: [Metric; 1] =
    [counter("messages_total", "Messages between processes.", "direction", "messages")];
const THRESHOLD: [Metric; 1] =
    [gauge("threshold_bytes", "Copies from this size up are carried.", "")];
const CHANNELS: [Metric; 1] = [gauge("channels", "Channels beside the caller.", "backend")];
const OFF: [Metric; 1] = [gauge("off", "Whether it was switched off by adma top.", "")];

/// Not in `COLUMNS`: symbols of all programs are read for it.
const SITES: Column = Column::keyed("sites");

/// Returns one sample of processes, for programs; `sites`: with the code that copies.
pub fn document(rows: &[Row], sites: bool) -> Document {
    let row = |row: &Row| {
        let sites = sites.then(|| Value::List(row.sites().iter().map(Site::value).collect()));
        report::Row::new(COLUMNS.iter().map(|(.., value)| value(row)).chain(sites))
    };
    let columns = COLUMNS.iter().map(|(column, ..)| column.clone());
    let table = Table {
        key: "processes",
        columns: columns.chain(sites.then_some(SITES)).collect(),
        rows: rows.iter().map(row).collect(),
        ..Table::default()
    };
    let sections = vec![Section { tables: vec![table], ..Section::default() }];
    Document { sections, ..Document::default() }
}

/// Returns names with the number of `what` and the bytes of each.
fn counted<const N: usize>(
    what: &'static str,
    rows: [(&'static str, u64, u64); N],
) -> [(&'static str, Value); N] {
    rows.map(|(name, count, bytes)| {
        (name, Value::map([(what, Value::Count(count)), ("bytes", Value::Bytes(bytes))]))
    })
}

/// Returns messages as the report at exit has them.
fn messages(told: Messages) -> Value {
    let copied = told.copied.map(|(name, bytes)| (name, Value::Bytes(bytes)));
    let others = [
        ("regimes", Value::map(counted("messages", told.regimes))),
        ("copied_bytes", Value::map(copied)),
    ];
    Value::map(counted("messages", told.directions).into_iter().chain(others))
}

/// Returns a name that stays when the process is started again: the program and its first argument
/// that is no option, such as its script, without folders.
fn name_of(command: &str) -> String {
    let mut words = command.split(' ').map(|word| word.rsplit('/').next().unwrap_or(word));
    let program = words.next().unwrap_or_default().to_owned();
    match words.find(|word| !word.is_empty() && !word.starts_with('-')) {
        Some(word) => program + " " + word,
        None => program,
    }
}

/// Columns that are shown, and their widths.
pub struct Layout {
    pub columns: Vec<(&'static Shown, usize)>,
    /// Command lines as far as there is room, by process; where two would look alike, without what
    /// they have in common.
    commands: HashMap<i32, String>,
}

/// Least and greatest width of the command line.
const COMMAND: std::ops::RangeInclusive<usize> = 12..=60;

impl Layout {
    /// Chooses columns; `users`: shows whose processes they are too.
    pub fn new(rows: &[Row], room: usize, users: bool) -> Self {
        let width = |shown: &Shown| {
            let widest = rows.iter().map(|row| cell(shown, row).chars().count()).max();
            let least = if shown.0.title == PID { 7 } else { shown.0.title.len() };
            widest.unwrap_or(0).max(least)
        };
        let for_people = COLUMNS.iter().filter(|(column, ..)| !column.title.is_empty());
        let mut all: Vec<_> = for_people.map(|shown| (shown, width(shown))).collect();
        all.retain(|((column, ..), _)| users || column.title != USER);
        let is_program = |one: &(&Shown, usize)| one.0.0.title == PROGRAM;
        let program = all.iter().position(is_program).unwrap_or(0);
        let wanted = all[program].1.clamp(*COMMAND.start(), *COMMAND.end());
        all[program].1 = *COMMAND.start();
        let needed = |all: &[(&Shown, usize)]| all.iter().map(|one| one.1 + 1).sum::<usize>() - 1;
        while needed(&all) > room && all.len() > 2 {
            let least = all.iter().map(|((_, rank, _), _)| *rank).min();
            all.retain(|((_, rank, _), _)| Some(*rank) != least);
        }
        let rest = room.saturating_sub(needed(&all));
        if let Some(program) = all.iter_mut().find(|one| one.0.0.title == PROGRAM) {
            program.1 = (program.1 + rest).min(wanted);
        }
        let room = all.iter().find(|one| is_program(one)).map_or(0, |one| one.1);
        Self { columns: all, commands: commands(rows, room) }
    }

    pub fn titles(&self) -> Vec<String> {
        let title = |(shown, width): &(&Shown, usize)| fitted(&shown.0.title, &shown.0, *width);
        self.columns.iter().map(title).collect()
    }

    pub fn cells(&self, row: &Row) -> Vec<String> {
        let text = |shown: &Shown| match self.commands.get(&row.process.pid) {
            Some(command) if shown.0.title == PROGRAM => command.clone(),
            _ => cell(shown, row),
        };
        self.columns.iter().map(|(one, width)| fitted(&text(one), &one.0, *width)).collect()
    }
}

/// Returns a cell; numbers are in letters of the user's locale.
fn cell((column, _, value): &Shown, row: &Row) -> String {
    let text = value(row).text();
    if column.is_left { text } else { say::in_locale(text) }
}

/// Shortens the command lines that do not fit and begin alike: a third of the room shows the
/// beginning, the rest what follows the part that they share.
fn commands(rows: &[Row], room: usize) -> HashMap<i32, String> {
    let cut = |text: &str, room: usize| text.chars().take(room).collect::<String>();
    let mut alike: HashMap<String, Vec<&Row>> = HashMap::new();
    for row in rows.iter().filter(|row| row.command.chars().count() > room) {
        alike.entry(cut(&row.command, room)).or_default().push(row);
    }
    let mut commands = HashMap::new();
    for group in alike.into_values().filter(|group| group.len() > 1) {
        let first = group[0].command.as_str();
        let shared = |row: &&Row| {
            let pairs = row.command.chars().zip(first.chars());
            pairs.take_while(|(a, b)| a == b).count()
        };
        // From the beginning of a word on.
        let shared = group.iter().map(shared).min().unwrap_or(0);
        let shared = cut(first, shared).rfind([' ', '/']).map_or(0, |at| at + 1);
        for row in group {
            let rest = row.command.get(shared..).unwrap_or_default();
            commands.insert(row.process.pid, format!("{}…{rest}", cut(&row.command, room / 3)));
        }
    }
    commands
}

/// Fits text into its column; only a command line can be too long.
fn fitted(text: &str, column: &Column, width: usize) -> String {
    let text: String = text.chars().take(width).collect();
    if column.is_left { format!("{text:<width$}") } else { format!("{text:>width$}") }
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn name_of_a_process_has_its_script_and_no_options() {
        let table = [
            ("python3 -u /srv/train.py --lr 0.1", "python3 train.py"),
            ("sleep", "sleep"),
            ("", ""),
        ];
        for (command, name) in table {
            assert_eq!(name_of(command), name);
        }
    }
}
