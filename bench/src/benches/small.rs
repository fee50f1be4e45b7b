//! Copies below any threshold: the cost of interposition in nanoseconds (tests/interception.rs
//! counts the instructions). One loop runs in processes with and without the shim.

use crate::measure::{Samples, median, now, shuffled};
use crate::options::Options;
use crate::out::{self, Table, figure, progress, size as short, spread};
use crate::spawn;
use crate::turns::ratios;
use std::collections::BTreeMap;
use std::hint::black_box;

const SIZES: [usize; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

pub fn run(options: &Options) {
    println!(
        "ns: median over processes with and without the shim, started in turn.\n\
         against: the library of --against, x libc.\n"
    );
    let mut arms = vec![None, options.library()];
    arms.extend(options.other_library().map(Some));
    let times = times(options, &arms);
    let mut table = Table::of("size|ns libc|shim|more|against");
    for size in SIZES {
        let (Some(plain), Some(shim)) = (times[0].get(&size), times[1].get(&size)) else {
            continue;
        };
        // Pair by pair, because the clock of the CPU drifts.
        let more_ns: Samples = plain.iter().zip(shim).map(|(libc, shim)| shim - libc).collect();
        let key = |what: &str| format!("small.{}.{what}", short(size));
        figure(&key("libc_ns"), median(plain));
        spread(&key("more_ns"), &more_ns);
        spread(&key("libc"), &ratios(plain, shim));
        let mut row = vec![short(size)];
        row.extend([plain, shim].map(|times| format!("{:.2}", median(times))));
        row.push(format!("{:+.2}", more_ns.median()));
        row.push(times.get(2).and_then(|times| times.get(&size)).map_or("-".into(), |rival| {
            let ratio = ratios(plain, rival);
            spread(&key("against"), &ratio);
            out::median(&ratio) + " x"
        }));
        table.row(row);
    }
    table.print();
}

type BySize = BTreeMap<usize, Vec<f64>>;

/// Runs interleaved processes, in random order, with each of the libraries.
fn times(options: &Options, arms: &[Option<&str>]) -> Vec<BySize> {
    let mut results = vec![BySize::new(); arms.len()];
    let rounds = ((options.seconds * 10.0) as usize).max(5);
    for round in 0..rounds {
        progress(&format!("small: round {} of {rounds}", round + 1));
        for arm in shuffled(arms.len()) {
            let Ok(output) = spawn::itself("small-time", arms[arm]).output() else { continue };
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                if let Some((size, ns)) = line.split_once(' ')
                    && let (Ok(size), Ok(ns)) = (size.parse(), ns.parse())
                {
                    results[arm].entry(size).or_default().push(ns);
                }
            }
        }
    }
    results
}

/// Source and destination, whose addresses differ in the low bits: a load that seems to alias a
/// store (4K aliasing) would be measured instead of the call.
#[repr(align(4096))]
struct Room([u8; 4 * 4096]);

const DESTINATION: usize = 2 * 4096 + 2048;

/// Makes ordinary calls, like a compiler for an unknown size.
#[inline(never)]
fn calls(room: &mut Room, size: usize, count: usize) {
    assert!(size <= 4096);
    let src = room.0.as_mut_ptr();
    for _ in 0..count {
        // SAFETY: 4096 bytes at either place are inside the room.
        unsafe {
            let dst = src.add(DESTINATION);
            libc::memcpy(black_box(dst.cast()), src.cast(), black_box(size));
        }
    }
    black_box(room);
}

/// Prints the nanoseconds of one call, size by size. Disturbances make a call slower, never faster:
/// the lowest tenth is the call itself.
pub fn time_child() {
    let mut room = Room([1; 4 * 4096]);
    for size in SIZES {
        let count = 2000;
        calls(&mut room, size, count);
        let time = |_| {
            let start = now();
            calls(&mut room, size, count);
            (now() - start) as f64 / count as f64
        };
        let samples: Samples = (0..100).map(time).collect();
        println!("{size} {}", samples.quantile(0.1));
    }
}
