//! Compares two folders of results: figures that differ by more than noise.
//!
//! A figure with intervals has changed where the two do not meet and the medians differ by
//! `SURE`; one without has to differ by `UNSURE`.

use crate::driver::Results;
use crate::out::{Figure, Figures, Table, ratio};
use std::path::Path;

const SURE: f64 = 1.05;
const UNSURE: f64 = 1.20;

/// Key, and the figure before and after.
type Change<'a> = (&'a str, f64, f64);

pub fn run(before: &Path, after: &Path) {
    let read = |folder: &Path| {
        Results::read(folder).unwrap_or_else(|error| {
            eprintln!("adma-bench: {}: {error}", folder.display());
            std::process::exit(1)
        })
    };
    println!("{}", report(&read(before), &read(after)));
}

/// Returns a text with the changes, and the number of unchanged figures.
pub fn report(before: &Results, after: &Results) -> String {
    let changes = changes(&before.figures, &after.figures);
    let common = after.figures.keys().filter(|key| before.figures.contains_key(*key)).count();
    let mut table = Table::new(["figure", &before.date, &after.date, "x"]);
    for &(key, old, new) in &changes {
        let [before, after] = [old, new].map(|value| format!("{value:.3}"));
        table.row([key, &before, &after, &ratio(new / old)]);
    }
    let gone = before.figures.keys().filter(|key| !after.figures.contains_key(*key)).count();
    let new = after.figures.len() - common;
    let mut text = if changes.is_empty() { String::new() } else { table.text() };
    text += &format!(
        "{} of {common} figures differ by more than noise; {gone} are gone, {new} are new\n",
        changes.len()
    );
    text
}

/// Returns the changes, largest first.
fn changes<'a>(before: &Figures, after: &'a Figures) -> Vec<Change<'a>> {
    let change = |(key, new): (&'a String, &Figure)| {
        let old = before.get(key)?;
        differ(old, new).then_some((key.as_str(), old.value, new.value))
    };
    let mut changes: Vec<Change> = after.iter().filter_map(change).collect();
    changes.sort_by(|a, b| far(b.1, b.2).total_cmp(&far(a.1, a.2)));
    changes
}

/// Returns the factor between two figures, whichever is larger.
fn far(one: f64, other: f64) -> f64 {
    let ratio = (one / other).abs();
    if one == other { 1.0 } else { ratio.max(1.0 / ratio) }
}

fn differ(old: &Figure, new: &Figure) -> bool {
    match (old.interval, new.interval) {
        (Some(a), Some(b)) => (a.1 < b.0 || b.1 < a.0) && far(old.value, new.value) >= SURE,
        _ => far(old.value, new.value) >= UNSURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Given<'a> = (&'a str, f64, Option<(f64, f64)>);

    fn figures(list: &[Given]) -> Figures {
        let figure =
            |&(key, value, interval): &Given| (key.to_string(), Figure { value, interval });
        list.iter().map(figure).collect()
    }

    #[test]
    fn only_what_exceeds_the_noise_is_a_change() {
        let before = figures(&[
            ("meet", 1.0, Some((0.8, 1.2))),
            ("apart", 2.0, Some((1.9, 2.1))),
            ("apart but near", 1.0, Some((0.999, 1.001))),
            ("no interval, near", 1.0, None),
            ("no interval, far", 1.0, None),
            ("gone", 1.0, None),
        ]);
        let after = figures(&[
            ("meet", 1.3, Some((1.1, 1.5))),
            ("apart", 3.0, Some((2.9, 3.1))),
            ("apart but near", 1.02, Some((1.019, 1.021))),
            ("no interval, near", 1.1, None),
            ("no interval, far", 0.5, None),
            ("new", 1.0, None),
        ]);
        let keys: Vec<_> = changes(&before, &after).iter().map(|change| change.0).collect();
        assert_eq!(keys, ["no interval, far", "apart"]);
        let results = |figures| Results { figures, ..Results::default() };
        let text = report(&results(before), &results(after));
        assert!(
            text.ends_with("2 of 5 figures differ by more than noise; 1 are gone, 1 are new\n")
        );
    }
}
