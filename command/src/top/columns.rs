//! Columns of the table: those for which there is room, each as wide as its cells.

use super::Row;
use crate::live_files::State;
use adma_shared::units::{Bytes, Time};
use std::collections::HashMap;

pub struct Column {
    pub title: &'static str,
    /// Rank; the lowest is dropped first where there is not room for all.
    rank: u8,
    is_left: bool,
    cell: fn(&Row) -> String,
}

pub const PID: &str = "PID";
pub const COPIES: &str = "COPIES/S";
pub const BYTES: &str = "BYTES/S";
pub const SAVED: &str = "SAVED";
const USER: &str = "USER";
const PROGRAM: &str = "PROGRAM";

const COLUMNS: [Column; 12] = [
    right(PID, 10, |row| format!("{:>7}", row.process.pid)),
    left(USER, 9, |row| row.user.clone()),
    left(PROGRAM, 10, |row| row.command.clone()),
    right(COPIES, 7, |row| rate(row.copies_per_second)),
    right(BYTES, 9, |row| Bytes(row.bytes_per_second as u64).to_string()),
    right("ENGINE", 8, |row| percent(row.engine)),
    left("BECAUSE", 4, |row| {
        match row.process.state {
            State::Running if row.is_off() => "OFF",
            State::Running => row.because(),
            State::Elsewhere => "elsewhere",
            _ => "ended",
        }
        .to_owned()
    }),
    right("FROM", 5, |row| {
        row.threshold().map_or("-".to_owned(), |bytes| Bytes(bytes).to_string())
    }),
    right("CALLER", 3, |row| row.caller().map_or("-".to_owned(), percent)),
    right(SAVED, 6, |row| row.seconds_saved().map_or("-".to_owned(), signed)),
    right("MSGS/S", 2, |row| rate(row.messages_per_second)),
    right("READS/S", 1, |row| rate(row.reads_per_second)),
];

const fn right(title: &'static str, rank: u8, cell: fn(&Row) -> String) -> Column {
    Column { title, rank, is_left: false, cell }
}

const fn left(title: &'static str, rank: u8, cell: fn(&Row) -> String) -> Column {
    Column { title, rank, is_left: true, cell }
}

/// Columns that are shown, and their widths.
pub struct Layout {
    pub columns: Vec<(&'static Column, usize)>,
    /// Command lines as far as there is room, by process; where two would look alike, without what
    /// they have in common.
    commands: HashMap<i32, String>,
}

/// Least and greatest width of the command line.
const COMMAND: std::ops::RangeInclusive<usize> = 12..=60;

impl Layout {
    /// Chooses columns; `users`: shows whose processes they are too.
    pub fn new(rows: &[Row], room: usize, users: bool) -> Self {
        let width = |column: &Column| {
            let widest = rows.iter().map(|row| (column.cell)(row).chars().count()).max();
            widest.unwrap_or(0).max(column.title.len())
        };
        let mut all: Vec<_> = COLUMNS.iter().map(|column| (column, width(column))).collect();
        all.retain(|(column, _)| users || column.title != USER);
        let program = all.iter().position(|(column, _)| column.title == PROGRAM).unwrap_or(0);
        let wanted = all[program].1.clamp(*COMMAND.start(), *COMMAND.end());
        all[program].1 = *COMMAND.start();
        let needed = |all: &[(&Column, usize)]| all.iter().map(|one| one.1 + 1).sum::<usize>() - 1;
        while needed(&all) > room && all.len() > 2 {
            let least = all.iter().map(|(column, _)| column.rank).min();
            all.retain(|(column, _)| Some(column.rank) != least);
        }
        let rest = room.saturating_sub(needed(&all));
        if let Some(program) = all.iter_mut().find(|(column, _)| column.title == PROGRAM) {
            program.1 = (program.1 + rest).min(wanted);
        }
        let room = all.iter().find(|(column, _)| column.title == PROGRAM).map_or(0, |one| one.1);
        Self { columns: all, commands: commands(rows, room) }
    }

    pub fn titles(&self) -> Vec<String> {
        self.columns.iter().map(|(column, width)| fitted(column.title, column, *width)).collect()
    }

    pub fn cells(&self, row: &Row) -> Vec<String> {
        let cell = |column: &Column| match self.commands.get(&row.process.pid) {
            Some(command) if column.title == PROGRAM => command.clone(),
            _ => (column.cell)(row),
        };
        self.columns.iter().map(|(column, width)| fitted(&cell(column), column, *width)).collect()
    }
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

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

fn signed(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    format!("{sign}{}", Time((seconds.abs() * 1e9) as u64))
}

/// Formats a rate, with a decimal where that is significant.
fn rate(per_second: f64) -> String {
    if per_second < 10_000.0 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}
