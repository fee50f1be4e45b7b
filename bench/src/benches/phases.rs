//! Phases of a copy: start, work and wait of a split-phase copy; a received message in three phases
//! (start of the copy, CPU held by it, first access to the bytes); and the CPU time of all threads.

use super::asynchronous::{Adma, compute};
use crate::arms::{interposed_memcpy, real_memcpy};
use crate::heat::Heat;
use crate::measure::{PAUSE_US, Samples, cpu_time, now, settle, shuffled};
use crate::memory::{CopyFn, Pair, Spot, Walk};
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, figure, median, progress, ratio, size as short, spread};
use crate::turns::{self, Budget, buffer_size};
use std::hint::black_box;
use std::time::Duration;

pub fn run(options: &Options) {
    let pair = Pair::new(buffer_size(options));
    let mut walk = Walk::new(0, pair.len());
    if let Some(adma) = Adma::find() {
        split(&adma, &pair, &mut walk, options);
        for heat in Heat::BOTH {
            receive(&adma, &pair, &mut walk, heat, options);
        }
    } else {
        println!("no library with adma_icopy is loaded: no split-phase copies\n");
    }
    cpu(&pair, &mut walk, options);
}

fn split(adma: &Adma, pair: &Pair, walk: &mut Walk, options: &Options) {
    println!(
        "parts of a cold copy in percent. start: in adma_icopy; work: from there until it is done,\n\
         which can be hidden; wait: in adma_wait_copy of a copy that is done"
    );
    let mut table = Table::of("size|us|start %|work %|wait %");
    for size in options.sizes_or(&[64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]) {
        progress(&format!("phases: {}", short(size)));
        let mut parts: [Samples; 3] = Default::default();
        let budget = Budget::new(options.seconds);
        while budget.used() < 1.0 || parts[0].len() < 5 {
            settle(PAUSE_US);
            let begun = now();
            let cookie = adma.start(walk.step(size, pair), size);
            let started = now();
            while !adma.is_done(cookie) {
                std::hint::spin_loop();
            }
            let done = now();
            let cookie = adma.start(walk.step(size, pair), size);
            settle(2 * (done - begun) / 1000 + 100);
            let waiting = now();
            adma.finish(cookie);
            let times = [started - begun, done - started, now() - waiting];
            parts.iter_mut().zip(times).for_each(|(part, time)| part.push(time as f64));
        }
        let medians = parts.map(|part| part.median());
        let whole: f64 = medians.iter().sum();
        let mut row = vec![short(size), format!("{:.1}", whole / 1e3)];
        for (name, part) in ["start", "work", "wait"].into_iter().zip(medians) {
            let percent = 100.0 * part / whole;
            figure(&format!("phases.split.{}.{name}", short(size)), percent);
            row.push(format!("{percent:.1}"));
        }
        table.row(row);
    }
    table.print();
}

/// Ways of a message from the buffer it arrived in into the program's.
#[derive(Clone, Copy)]
enum Way {
    Call(CopyFn),
    /// Started, and waited for when the program has done other work.
    Split,
}

fn receive(adma: &Adma, pair: &Pair, walk: &mut Walk, heat: Heat, options: &Options) {
    println!(
        "receive overhead, {}, us: start of the copy, CPU held by it, first look at the bytes.\n\
         split: started, then other work, then waited for. saved: part of libc's overhead",
        heat.name()
    );
    let ways = [
        ("libc", Way::Call(real_memcpy())),
        ("threads", Way::Call(interposed_memcpy())),
        ("split", Way::Split),
    ];
    let mut table = Table::of("size|way|start|copy|look|saved|of copy");
    for size in options.sizes_or(&[256 * KIB, MIB, 4 * MIB]) {
        progress(&format!("phases: receive {} {}", heat.name(), short(size)));
        let mut times: [[Samples; 3]; 3] = Default::default();
        let mut steps = 0;
        let budget = Budget::new(options.seconds);
        while budget.used() < 1.0 || times[0][0].len() < 5 {
            for way in shuffled(3) {
                let spot = match heat {
                    Heat::Hot => pair.spot(0),
                    _ => walk.step(size, pair),
                };
                if heat == Heat::Hot {
                    turns::write(spot, size);
                }
                let taken = phases(adma, ways[way].1, spot, size, steps);
                times[way].iter_mut().zip(taken).for_each(|(times, time)| times.push(time));
            }
            // Longer than the copy takes; a step is about a nanosecond.
            steps = (3.0 * times[0][1].median()) as u64;
        }
        let medians = times.map(|way| way.map(|phase| phase.median()));
        let libc: f64 = medians[0].iter().sum();
        for ((name, _), phases) in ways.iter().zip(medians) {
            let saved = 1.0 - phases.iter().sum::<f64>() / libc;
            let touching = 1.0 - phases[1] / medians[0][1];
            let key = |what: &str| {
                format!("phases.receive.{}.{}.{name}.{what}", heat.name(), short(size))
            };
            figure(&key("saved"), saved);
            figure(&key("saved_of_copy"), touching);
            let mut row = vec![short(size), name.to_string()];
            for (what, phase) in ["start_us", "copy_us", "look_us"].into_iter().zip(phases) {
                figure(&key(what), phase / 1e3);
                row.push(format!("{:.1}", phase / 1e3));
            }
            row.extend([saved, touching].map(|part| format!("{:.0} %", part * 100.0)));
            table.row(row);
        }
    }
    table.print();
}

/// Returns the nanoseconds of the three phases of one receive.
fn phases(adma: &Adma, way: Way, spot: Spot, size: usize, steps: u64) -> [f64; 3] {
    settle(PAUSE_US);
    let begun = now();
    let (start, copy) = match way {
        Way::Call(memcpy) => {
            // SAFETY: the law of `memory`.
            unsafe { memcpy(spot.dst.cast(), spot.src.cast(), size) };
            (0, now() - begun)
        }
        Way::Split => {
            let cookie = adma.start(spot, size);
            let start = now() - begun;
            black_box(compute(steps));
            let waiting = now();
            adma.finish(cookie);
            (start, now() - waiting)
        }
    };
    let looking = now();
    turns::read(spot.dst, size);
    [start as f64, copy as f64, (now() - looking) as f64]
}

fn cpu(pair: &Pair, walk: &mut Walk, options: &Options) {
    println!(
        "CPU time of all threads for a cold copy, over libc's, the workers' spinning afterwards\n\
         included; time: x libc, as elsewhere"
    );
    let mut table =
        Table::of("size|libc ms|CPU ns for a KiB, libc|shim|CPU time / libc|time x libc");
    for size in options.sizes_or(&[MIB, 4 * MIB, 16 * MIB, 64 * MIB]) {
        progress(&format!("phases: CPU time {}", short(size)));
        let burst = turns::burst(size);
        let [mut cost, mut gain, mut libc] = [(); 3].map(|()| Samples::default());
        let mut for_a_kib = [(); 2].map(|()| Samples::default());
        let arms = [real_memcpy(), interposed_memcpy()];
        let budget = Budget::new(options.seconds);
        while budget.used() < 1.0 || cost.len() < 5 {
            let (mut used, mut took) = ([0.0; 2], [0.0; 2]);
            for arm in shuffled(2) {
                let (busy, begun) = (cpu_time(), now());
                for _ in 0..burst {
                    let spot = walk.step(size, pair);
                    // SAFETY: the law of `memory`.
                    unsafe { arms[arm](spot.dst.cast(), spot.src.cast(), size) };
                }
                took[arm] = (now() - begun) as f64;
                std::thread::sleep(Duration::from_millis(2));
                used[arm] = (cpu_time() - busy) as f64;
            }
            for (samples, used) in for_a_kib.iter_mut().zip(used) {
                samples.push(used * 1024.0 / (burst * size) as f64);
            }
            cost.push(used[1] / used[0]);
            gain.push(took[0] / took[1]);
            libc.push(took[0] / burst as f64);
        }
        spread(&format!("phases.cpu.{}.ratio", short(size)), &cost);
        for (name, samples) in ["libc_ns_kib", "shim_ns_kib"].into_iter().zip(&for_a_kib) {
            spread(&format!("phases.cpu.{}.{name}", short(size)), samples);
        }
        let [by_libc, by_shim] = for_a_kib.map(|samples| ratio(samples.median()));
        let took = ratio(libc.median() / 1e6);
        table.row([short(size), took, by_libc, by_shim, median(&cost), median(&gain)]);
    }
    table.print();
}
