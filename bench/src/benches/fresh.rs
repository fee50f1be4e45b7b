//! Copies into memory that was never touched: page faults cost more than the
//! bytes. With all CPUs, and with one, where nobody can help.

use crate::arms;
use crate::copies::{Copies, Target, in_turn};
use crate::options::{MIB, Options};
use crate::out::{Table, figure, progress, size as short};
use crate::spawn;
use crate::turns::buffer_size;
use std::os::unix::process::CommandExt;

/// Copies in a row whenever an arm has its turn.
const BURST: usize = 4;

pub fn run(options: &Options) {
    println!("{}; each copy into a new mapping, {BURST} in a row", arms::describe_shim());
    println!("\nall CPUs of this process");
    cells(options, "all");

    println!("one CPU");
    let mut child = spawn::itself("fresh-one", options.lib.as_deref().filter(|l| *l != "none"));
    let cpu = first_cpu();
    // SAFETY: sched_setaffinity is async-signal-safe, and the set is ours.
    unsafe {
        child.pre_exec(move || match libc::sched_setaffinity(0, size_of_val(&cpu), &cpu) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
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
    let mut table = Table::new(["size", "libc GB/s", "x libc", "q1-q3"]);
    for size in options.sizes(16 * MIB, 256 * MIB) {
        progress(&format!("fresh: {}, {cpus}", short(size)));
        let mut copies = Copies::new(Target::Fresh, size, buffer_size(options));
        let row = |copies: &mut Copies, copy| copies.row(copy, BURST) / BURST as f64;
        let (libc, gain) = in_turn(&mut copies, options.seconds, row);
        figure(&format!("fresh.{cpus}.{}.libc", short(size)), gain.median());
        table.row([
            short(size),
            format!("{:.2}", size as f64 / libc.median()),
            format!("{:.2}", gain.median()),
            format!("{:.2}-{:.2}", gain.quantile(0.25), gain.quantile(0.75)),
        ]);
    }
    table.print();
}

fn first_cpu() -> libc::cpu_set_t {
    // SAFETY: plain numbers, for which zeros are an empty set.
    let (mut all, mut one): (libc::cpu_set_t, libc::cpu_set_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are ours, and no number exceeds their size.
    unsafe {
        libc::sched_getaffinity(0, size_of_val(&all), &mut all);
        let cpu = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &all));
        libc::CPU_SET(cpu.unwrap_or(0), &mut one);
    }
    one
}
