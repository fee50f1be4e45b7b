//! From 4 KiB to 1 GiB, on 1 to 16 CPUs, and with 1 to 32 threads that copy at once; with the
//! ceilings: bare threads that each copy a part, and the memory's bandwidth by streaming stores
//! of all CPUs, as STREAM's copy has it.

use crate::arms::{Arm, interposed_memcpy, real_memcpy};
use crate::crowd::Crowd;
use crate::heat::Heat;
use crate::measure::median;
use crate::memory::Pair;
use crate::options::{KIB, MIB, Options};
use crate::out::{self, Table, figure, progress, size as short, spread};
use crate::turns::{Budget, Place, buffer_size, burst, ratios, rounds};
use crate::{machine, spawn};
use std::sync::Arc;

const CPUS: [usize; 5] = [1, 2, 4, 8, 16];
const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const CROWD_SIZES: [usize; 2] = [MIB, 16 * MIB];

pub fn run(options: &Options) {
    let numbers = machine::cpu_numbers();
    println!(
        "cold, in a row, GB/s. threads: one for each CPU, each copies a part with libc's memcpy;\n\
         stream: all CPUs with streaming stores. of it: shim over the better of the two\n"
    );
    for count in CPUS.into_iter().filter(|count| *count <= numbers.len()) {
        spawn::on_cpus("scaling-cpus", options, &numbers[..count], &["copies"]);
    }
    println!("threads that copy at once, all CPUs, each cold memory of its own");
    spawn::on_cpus("scaling-cpus", options, &numbers, &["crowds"]);
}

/// Runs in the process that has some of the CPUs.
pub fn child(options: &Options) {
    match options.rest.first().map(String::as_str) {
        Some("crowds") => crowds(options),
        _ => copies(options),
    }
}

fn copies(options: &Options) {
    let cpus = machine::cpu_count();
    let mut place = Place::new(options, cpus);
    let threads = Arm { name: "threads".into(), ..Arm::ceiling(cpus) };
    let arms = [Arm::libc(), Arm::shim(), threads, Arm::streaming("stream", cpus)];
    println!("{cpus} CPU{}", if cpus > 1 { "s" } else { "" });
    let names = arms.iter().map(|arm| arm.name.clone());
    let head = ["size".to_string()].into_iter().chain(names).chain(["of it".into()]);
    let mut table = Table::new(head);
    for size in options.sizes(4 * KIB, 1024 * MIB) {
        if size > place.pair.len() || options.sizes.is_none() && size.ilog2() % 2 == 1 {
            continue;
        }
        progress(&format!("scaling: {cpus} CPUs, {}", short(size)));
        let burst = burst(size).min((1024 * MIB / size).max(2));
        let budget = Budget::new(options.seconds);
        let times = rounds(&mut place, &arms, size, Heat::Cold, burst, |times| {
            times[0].next.len() >= 3 && budget.used() >= 1.0
        });
        let key = |name: &str| format!("scaling.cpus.{cpus}.{}.{name}", short(size));
        let speed: Vec<f64> = times.iter().map(|times| size as f64 / median(&times.next)).collect();
        let mut row = vec![short(size)];
        for (arm, speed) in arms.iter().zip(&speed) {
            figure(&key(&arm.name), *speed);
            row.push(format!("{speed:.1}"));
        }
        spread(&key("gain"), &ratios(&times[0].next, &times[1].next));
        let ceiling = speed[2..].iter().copied().fold(0.0, f64::max);
        figure(&key("of_ceiling"), speed[1] / ceiling);
        row.push(out::ratio(speed[1] / ceiling));
        table.row(row);
    }
    table.print();
}

fn crowds(options: &Options) {
    let pair = Arc::new(Pair::new(buffer_size(options)));
    let mut table = Table::of("threads|size|libc GB/s|shim GB/s|x libc");
    for threads in THREADS {
        for size in CROWD_SIZES {
            if size > pair.len() / threads / 4096 * 4096 {
                continue;
            }
            progress(&format!("scaling: {threads} threads, {}", short(size)));
            let crowd = Crowd::new(threads, &pair, size, Heat::Cold);
            let (mut libc, mut shim) = (Vec::new(), Vec::new());
            let budget = Budget::new(options.seconds);
            while budget.used() < 1.0 || libc.len() < 4 {
                let both = crowd.pair([real_memcpy(), interposed_memcpy()], size, 50_000_000);
                // The first phases are for learning.
                if budget.used() > 0.2 {
                    libc.push(both[0].throughput);
                    shim.push(both[1].throughput);
                }
            }
            let key = |name: &str| format!("scaling.threads.{threads}.{}.{name}", short(size));
            let gain = ratios(&shim, &libc);
            figure(&key("libc"), median(&libc));
            figure(&key("shim"), median(&shim));
            spread(&key("gain"), &gain);
            table.row([
                threads.to_string(),
                short(size),
                format!("{:.1}", median(&libc)),
                format!("{:.1}", median(&shim)),
                out::median(&gain),
            ]);
        }
    }
    table.print();
}
