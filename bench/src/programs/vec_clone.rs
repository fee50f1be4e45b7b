//! The job of a Rust program: it clones a vector. Rust's start-up handles SIGSEGV, so the shim
//! has to be careful of its faults, as in every Rust program.

use crate::measure::now;
use crate::options::{MIB, Options};
use std::hint::black_box;

pub fn run(options: &Options) {
    let count = options.rest.first().and_then(|count| count.parse().ok()).unwrap_or(1);
    let source: Vec<u64> = (0..(64 * MIB / 8) as u64).collect();
    let mut copy = Vec::new();
    let start = now();
    for _ in 0..count {
        copy = black_box(&source).clone();
    }
    println!("work {}", (now() - start) as f64 / 1e9);
    if copy != source {
        eprintln!("the result is wrong");
        std::process::exit(1);
    }
}
