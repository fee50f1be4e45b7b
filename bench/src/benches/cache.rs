//! Evictions by a large copy: a small buffer is read by columns, after a copy by libc, by the
//! shim's threads (with ADMA_BACKEND=gpu by the card), by streaming stores alone, and after as long
//! a computation or sleep: a CPU in deep sleep loses its own caches.

use super::asynchronous::compute;
use crate::arms::{Arm, describe_shim};
use crate::machine;
use crate::measure::{Samples, now, shuffled};
use crate::memory::{Area, Pair};
use crate::options::{MIB, Options};
use crate::out::{Table, median, progress, size as short, spread};
use crate::team::Team;
use crate::turns::Budget;
use std::hint::black_box;
use std::thread;
use std::time::Duration;

/// A row of the matrix that is read by columns.
const ROW: usize = 4096;
/// What precedes the columns besides copies.
const OTHERS: [&str; 3] = ["", "again", "asleep"];
const SLEEP: Duration = Duration::from_micros(1500);

pub fn run(options: &Options) {
    println!(
        "{}; a copy of 64M; x: time of the columns, over that after computing\n",
        describe_shim()
    );
    let size = options.sizes_or(&[64 * MIB])[0];
    let pair = Pair::new(size);
    let threads = Arm { name: "threads".into(), ..Arm::shim() };
    let kinds = [Arm::libc(), threads, Arm::streaming("streaming", 1)];
    let level2 = machine::cache(2).unwrap_or(MIB);
    let level3 = machine::cache(3).unwrap_or(32 * MIB);
    let mut table = Table::of("buffer|us|again|asleep|libc|threads|streaming");
    for small in [level2 / 4, level2 / 2, (level3 / 4).min(32 * MIB)] {
        let small = small.next_power_of_two() / if small.is_power_of_two() { 1 } else { 2 };
        progress(&format!("cache: {}", short(small)));
        let (base, ratios) = rounds(&pair, size, small, &kinds, options);
        let mut row = vec![short(small), format!("{:.1}", base.median() / 1e3)];
        let copies = kinds.iter().map(|kind| kind.name.as_str());
        let names = OTHERS[1..].iter().copied().chain(copies);
        for (name, ratio) in names.zip(&ratios) {
            spread(&format!("cache.{}.{name}", short(small)), ratio);
            row.push(median(ratio));
        }
        table.row(row);
    }
    table.print();
}

/// Returns the nanoseconds of the columns after computing, and ratios to that: after computing
/// again (the noise), after sleeping, and after each of the copies.
fn rounds(
    pair: &Pair,
    size: usize,
    small: usize,
    kinds: &[Arm],
    options: &Options,
) -> (Samples, Vec<Samples>) {
    let (team, area) = (Team::new(1), Area::new(small));
    let (mut base, mut ratios) = (Samples::default(), vec![Samples::default(); kinds.len() + 2]);
    let budget = Budget::new(2.0 * options.seconds);
    while budget.used() < 1.0 || base.len() < 5 {
        let mut times = vec![0.0; kinds.len() + OTHERS.len()];
        for kind in shuffled(times.len()) {
            for _ in 0..3 {
                columns(&area);
            }
            match kind.checked_sub(OTHERS.len()).map(|kind| &kinds[kind]) {
                // SAFETY: both areas have that size; one thread.
                Some(arm) => unsafe { arm.run(&team, pair.spot(0), size) },
                None if kind == 2 => thread::sleep(SLEEP),
                None => drop(black_box(compute(5_000_000))),
            }
            times[kind] = columns(&area);
        }
        base.push(times[0]);
        ratios.iter_mut().zip(&times[1..]).for_each(|(ratio, time)| ratio.push(time / times[0]));
    }
    (base, ratios)
}

/// Returns the nanoseconds of reading all cache lines, column by column.
fn columns(area: &Area) -> f64 {
    let begun = now();
    let mut sum = 0u64;
    for column in (0..ROW).step_by(64) {
        for row in (column..area.len()).step_by(ROW) {
            // SAFETY: inside the area.
            sum = sum.wrapping_add(unsafe { area.at(row).cast::<u64>().read_volatile() });
        }
    }
    black_box(sum);
    (now() - begun) as f64
}
