//! Processes with and without the shim, which cannot be switched off inside one: they take turns,
//! A B B A, and print a line "what size nanoseconds" for each case.

use crate::measure::Samples;
use crate::out::{median, parse_size, progress, ratio};
use std::collections::BTreeMap;
use std::process::Command;

/// A case, pair by pair.
#[derive(Default)]
pub struct Compared {
    /// Nanoseconds without the shim.
    pub plain: Samples,
    /// How many times faster the process with the shim was.
    pub gain: Samples,
}

impl Compared {
    /// Cells of a table: median, lowest and highest gain.
    pub fn cells(&self) -> [String; 3] {
        [median(&self.gain), ratio(self.gain.quantile(0.0)), ratio(self.gain.quantile(1.0))]
    }
}

/// What and size, and its figures.
pub type Cases = BTreeMap<(String, usize), Compared>;

/// `command(true)` is the process with the shim.
pub fn run(pairs: usize, about: &str, command: impl Fn(bool) -> Command) -> Cases {
    let mut cases = Cases::new();
    for pair in 0..pairs {
        progress(&format!("{about}: pair {} of {pairs}", pair + 1));
        let mut sides: [BTreeMap<_, f64>; 2] = Default::default();
        for turn in 0..2 {
            let with = (pair + turn) % 2;
            let Ok(output) = command(with == 1).output() else { continue };
            let text = String::from_utf8_lossy(&output.stdout);
            sides[with] = text.lines().filter_map(case).collect();
        }
        let [without, with] = sides;
        for (case, plain) in without {
            if let Some(shim) = with.get(&case) {
                let compared = cases.entry(case).or_default();
                compared.plain.push(plain);
                compared.gain.push(plain / shim);
            }
        }
    }
    cases
}

fn case(line: &str) -> Option<((String, usize), f64)> {
    let mut words = line.split(' ');
    let case = (words.next()?.to_string(), parse_size(words.next()?)?);
    Some((case, words.next()?.parse().ok()?))
}
