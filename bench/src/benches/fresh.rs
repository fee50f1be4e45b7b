//! Copies into fresh memory, where page faults cost more than the bytes. With all CPUs, and with
//! one, where no worker can help.

use crate::arms::{self, interposed_memcpy};
use crate::copies::{Copies, Target};
use crate::options::{MIB, Options};
use crate::out::{Table, median, progress, range, ratio, size as short, spread};
use crate::rival::{self, Rival};
use crate::turns::{buffer_size, in_turn_with};
use crate::{machine, spawn};

/// Back-to-back copies of an arm's turn.
const BURST: usize = 4;

pub fn run(options: &Options) {
    println!(
        "{}; each copy into a new mapping, {BURST} in a row;\n\
         last columns, with --against: into memory of malloc, x libc",
        arms::describe_shim()
    );
    println!("\nall CPUs of this process");
    cells(options, "all");

    println!("one CPU");
    spawn::on_cpus("fresh-one", options, &machine::cpu_numbers()[..1], &[]);
}

/// Measures the cells; called again by the process that has one CPU only.
pub fn cells(options: &Options, cpus: &str) {
    let rivals = Rival::all("fresh-rival", options);
    let names = rivals.iter().map(|rival| rival.name);
    let mut table = Table::new("size|libc GB/s|x libc|q1-q3".split('|').chain(names));
    for size in options.sizes(16 * MIB, 256 * MIB) {
        progress(&format!("fresh: {}, {cpus}", short(size)));
        let mut copies = Copies::new(Target::Fresh, size, buffer_size(options));
        let turn = |copy| copies.row(copy, BURST) / BURST as f64;
        let (libc, gains) = in_turn_with(&rivals, &size.to_string(), options.seconds, turn);
        let key = format!("fresh.{cpus}.{}", short(size));
        spread(&format!("{key}.libc"), &gains[0]);
        let mut row = vec![
            short(size),
            ratio(size as f64 / libc.median()),
            median(&gains[0]),
            range(&gains[0], 0.25),
        ];
        row.extend(rival::cells(&rivals, &key, &gains[1..]));
        table.row(row);
    }
    table.print();
}

/// Makes turns on request, in the process of a `Rival`: into memory of malloc.
pub fn serve(options: &Options) {
    let mut copies: Option<(usize, Copies)> = None;
    rival::serve(|words| {
        let size = words[0].parse().ok()?;
        if copies.as_ref().is_none_or(|(before, _)| *before != size) {
            copies = Some((size, Copies::new(Target::Allocated, size, buffer_size(options))));
        }
        let (_, copies) = copies.as_mut()?;
        Some(vec![copies.row(interposed_memcpy(), BURST) / BURST as f64])
    });
}
