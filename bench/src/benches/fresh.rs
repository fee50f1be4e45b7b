//! Copies into memory that was never touched: page faults cost more than the
//! bytes. With all CPUs, and with one, where no worker can help.

use crate::arms;
use crate::copies::{Copies, Target, in_turn};
use crate::options::{MIB, Options};
use crate::out::{Table, progress, size as short, spread};
use crate::turns::buffer_size;
use crate::{spawn, team};

/// Copies in a row whenever an arm has its turn.
const BURST: usize = 4;

pub fn run(options: &Options) {
    println!("{}; each copy into a new mapping, {BURST} in a row", arms::describe_shim());
    println!("\nall CPUs of this process");
    cells(options, "all");

    println!("one CPU");
    let mut child = spawn::itself("fresh-one", options.library());
    spawn::on_cpus(&mut child, &team::cpu_numbers()[..1]);
    // Our own role is among what was given; the last one counts.
    if let Err(error) = child.args(&options.given).args(["--inner", "fresh-one"]).status() {
        println!("skipped: {error}");
    }
}

/// The same in a process that has one CPU only.
pub fn one(options: &Options) {
    cells(options, "one");
}

fn cells(options: &Options, cpus: &str) {
    let mut table = Table::of("size|libc GB/s|x libc|q1-q3");
    for size in options.sizes(16 * MIB, 256 * MIB) {
        progress(&format!("fresh: {}, {cpus}", short(size)));
        let mut copies = Copies::new(Target::Fresh, size, buffer_size(options));
        let row = |copies: &mut Copies, copy| copies.row(copy, BURST) / BURST as f64;
        let (libc, gain) = in_turn(&mut copies, options.seconds, row);
        spread(&format!("fresh.{cpus}.{}.libc", short(size)), &gain);
        table.row([
            short(size),
            format!("{:.2}", size as f64 / libc.median()),
            format!("{:.2}", gain.median()),
            format!("{:.2}-{:.2}", gain.quantile(0.25), gain.quantile(0.75)),
        ]);
    }
    table.print();
}
