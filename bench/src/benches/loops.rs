//! Which loop should copy the pieces? No shim here: one thread, then several
//! that each copy a part, all against libc on one thread.

use super::copy::thread_counts;
use crate::arms::Arm;
use crate::measure::Samples;
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, figure, progress, size as short};
use crate::team::cpu_count;
use crate::turns::{Budget, Heat, Place, ratios, rounds};

pub fn run(options: &Options) {
    let cpus = cpu_count();
    let mut place = Place::new(options, cpus);
    println!(
        "x libc on one thread, whose GB/s stand beside it. streamNN: non-temporal\n\
         stores of NN bytes; cached32: the same loop with ordinary stores.\n"
    );
    for threads in [1].into_iter().chain(thread_counts(cpus)) {
        for heat in [Heat::Cold, Heat::Read, Heat::Hot] {
            table(&mut place, threads, heat, options);
        }
    }
}

fn table(place: &mut Place, threads: usize, heat: Heat, options: &Options) {
    let heat_text = match heat {
        Heat::Cold => "cold",
        Heat::Hot => "hot",
        Heat::Read => "cold, and the caller reads the destination afterwards",
        Heat::Used => "hot, the source written before and the destination read afterwards",
    };
    println!("{threads} thread{}, {heat_text}", if threads > 1 { "s" } else { "" });
    let mut arms = vec![Arm::libc()];
    arms.extend(Arm::loops(threads));
    if threads == 1 {
        arms.remove(1); // libc, measured already
    }
    let names = arms.iter().skip(1).map(|arm| arm.name.clone());
    let mut table = Table::new(["size".into(), "GB/s".into()].into_iter().chain(names));
    let sizes = options.sizes(16 * KIB, 64 * MIB);
    let sizes = sizes.into_iter().filter(|s| options.sizes.is_some() || s.ilog2() % 2 == 0);
    let most = place.pair.len();
    for size in sizes.filter(|size| *size <= most) {
        progress(&format!("loops {threads} {} {}", heat.name(), short(size)));
        let budget = Budget::new(options.seconds / 2.0);
        let times = rounds(place, &arms, size, heat, options.burst(size), |times| {
            times[0].next.len() >= 9 && budget.used() >= 1.0
        });
        let base: Samples = times[0].next.iter().copied().collect();
        let speed = size as f64 / base.median();
        let mut line = vec![short(size), format!("{speed:.2}")];
        for (arm, times_of) in arms.iter().zip(&times).skip(1) {
            let ratio = ratios(&times[0].next, &times_of.next).median();
            let key = format!("loops.{}.{}.{threads}.{}", heat.name(), short(size), arm.name);
            figure(&key, ratio);
            line.push(format!("{ratio:.2}"));
        }
        table.row(line);
    }
    table.print();
}
