//! Copies into fresh memory, where page faults cost more than the bytes. With all CPUs, and with
//! one, where no worker can help.

use crate::arms::{self, interposed_memcpy, real_memcpy};
use crate::copies::{Copies, Target};
use crate::options::{MIB, Options};
use crate::out::{Table, median, progress, range, ratio, size as short, spread};
use crate::turns::{buffer_size, in_turn};
use crate::{machine, spawn};

/// Back-to-back copies of an arm's turn.
const BURST: usize = 4;

pub fn run(options: &Options) {
    println!("{}; each copy into a new mapping, {BURST} in a row", arms::describe_shim());
    println!("\nall CPUs of this process");
    cells(options, "all");

    println!("one CPU");
    spawn::on_cpus("fresh-one", options, &machine::cpu_numbers()[..1], &[]);
}

/// Measures the cells; called again by the process that has one CPU only.
pub fn cells(options: &Options, cpus: &str) {
    let mut table = Table::of("size|libc GB/s|x libc|q1-q3");
    for size in options.sizes(16 * MIB, 256 * MIB) {
        progress(&format!("fresh: {}, {cpus}", short(size)));
        let mut copies = Copies::new(Target::Fresh, size, buffer_size(options));
        let arms = [real_memcpy(), interposed_memcpy()];
        let turn = |arm: usize| copies.row(arms[arm], BURST) / BURST as f64;
        let (libc, gain) = in_turn(options.seconds, turn);
        spread(&format!("fresh.{cpus}.{}.libc", short(size)), &gain);
        table.row([
            short(size),
            ratio(size as f64 / libc.median()),
            median(&gain),
            range(&gain, 0.25),
        ]);
    }
    table.print();
}
