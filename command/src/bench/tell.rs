//! The document of the result, for text, JSON and page.

use super::Measured;
use super::compare::{Output, Ratio, Spread, Verdict};
use adma_report::units::{bytes, cut, percent, timed};
use adma_report::{Column, Document, Row, Section, Shade, Table, Value};

fn interval(Ratio { interval, .. }: Ratio) -> String {
    interval.map_or(String::new(), |(low, high)| format!(" ({low:.2} to {high:.2})"))
}

/// Returns the conclusion about an arm.
fn words(result: &Measured, arm: usize) -> String {
    let ratio = result.ratio(arm);
    match result.verdict(arm) {
        Verdict::Faster => format!("{:.2} x as fast{}", ratio.estimate, interval(ratio)),
        Verdict::Slower => {
            format!("slower: leave it off; {:.2} x as fast{}", ratio.estimate, interval(ratio))
        }
        Verdict::Same => format!("no difference seen{}", interval(ratio)),
        Verdict::Unknown => match ratio.interval {
            Some((low, high)) => format!("not known ({low:.2} to {high:.2}): a busy machine?"),
            None => format!("not known ({:.2} x): an interval takes 6 rounds", ratio.estimate),
        },
    }
}

fn subject(result: &Measured) -> String {
    let (rounds, arms) = (result.rounds.len(), result.arms.len());
    let plural = if rounds == 1 { "" } else { "s" };
    let early = if result.is_complete { "" } else { ", ended early" };
    format!("{rounds} round{plural} of {arms} runs in turn{early}")
}

/// Returns further notes, a sentence each.
fn notes(result: &Measured) -> Vec<String> {
    let mut notes = Vec::new();
    notes.push(match result.output() {
        Output::Same => "output: the same in all runs".to_owned(),
        Output::Varies => "output: another in each run, also without adma".to_owned(),
        Output::Differs => "OUTPUT DIFFERS with adma: please report that".to_owned(),
        Output::RivalDiffers => {
            "output: the same with and without adma, another with a rival".to_owned()
        }
        Output::NotCompared => "output: not compared".to_owned(),
    });
    for (at, arm) in result.arms.iter().enumerate() {
        let ends: Vec<String> = result.ends(at).iter().map(ToString::to_string).collect();
        if ends != ["exit 0"] {
            notes.push(format!("{} it ends by {}", arm.name, ends.join(", ")));
        }
        for (round, seconds) in result.outliers(at).into_iter().take(3) {
            notes.push(format!(
                "outlier: round {} {} took {}",
                round + 1,
                arm.name,
                timed(seconds)
            ));
        }
    }
    match result.copies {
        Some((0, ..)) => notes.push("nothing to carry: no large copy was made".to_owned()),
        Some((calls, sum, carried)) => notes.push(format!(
            "{calls} large copies, {} in all, {} by the engine",
            bytes(sum),
            percent(carried, sum)
        )),
        None => {}
    }
    notes
}

/// Columns of an arm: for people, then for programs.
const COLUMNS: [Column; 12] = [
    Column::new("run").key("name").cut(26),
    Column::new("wall"),
    Column::new("quartiles").left(),
    Column::new("CPU"),
    Column::new("peak").key("peak_bytes"),
    Column::keyed("wall"),
    Column::keyed("cpu"),
    Column::keyed("ends"),
    Column::keyed("outliers"),
    Column::keyed("ratio"),
    Column::keyed("verdict"),
    Column::keyed("words"),
];

/// Least widths of the columns for people.
const WIDTHS: [usize; 5] = [26, 8, 20, 7, 8];

/// Returns the row of an arm, in the order of `COLUMNS`.
fn row(result: &Measured, arm: usize) -> Row {
    let Spread { median, quartiles: (low, high), least, most } = result.spread(arm);
    let (user, system) = result.cpu(arm);
    let Ratio { estimate, interval } = result.ratio(arm);
    let seconds = |names: &[(&str, f64)]| {
        Value::map(names.iter().map(|(name, seconds)| (*name, Value::Timed(*seconds))))
    };
    let wall = [("median", median), ("q1", low), ("q3", high), ("min", least), ("max", most)];
    let mut wall = seconds(&wall);
    if let Value::Map(wall) = &mut wall {
        let runs = result.wall(arm).into_iter().map(Value::Timed).collect();
        wall.insert("runs".to_owned(), Value::List(runs));
    }
    let ends = result.ends(arm).iter().map(|end| end.to_string().into()).collect();
    let outlier = |(round, seconds): (usize, f64)| {
        let entries =
            [("round", Value::Count(round as u64 + 1)), ("seconds", Value::Timed(seconds))];
        Value::map(entries)
    };
    let ratio = Value::map([
        ("estimate", Value::Ratio(estimate)),
        ("low", interval.map(|interval| Value::Ratio(interval.0)).into()),
        ("high", interval.map(|interval| Value::Ratio(interval.1)).into()),
    ]);
    // The first arm is what the others are compared with.
    let compared = |value: Value| if arm > 0 { value } else { Value::None };
    let cells = [
        result.arms[arm].name.as_str().into(),
        Value::Timed(median),
        format!("{} to {}", timed(low), timed(high)).into(),
        Value::Timed(user + system),
        Value::Bytes(result.peak(arm)),
        wall,
        seconds(&[("user", user), ("system", system)]),
        Value::List(ends),
        Value::List(result.outliers(arm).into_iter().map(outlier).collect()),
        compared(ratio),
        compared(format!("{:?}", result.verdict(arm)).to_lowercase().into()),
        compared(words(result, arm).into()),
    ];
    Row::new(cells).bar(median, if arm == 0 { Shade::Libc } else { Shade::Engine })
}

pub fn document(result: &Measured) -> Document {
    let arms = result.arms.len();
    let verdict =
        |arm: usize| format!("{}: {}", cut(&result.arms[arm].name, 40), words(result, arm));
    let table = Table {
        key: "arms",
        caption: "Wall time (median), CPU time and memory".to_owned(),
        columns: COLUMNS.to_vec(),
        rows: (0..arms).map(|arm| row(result, arm)).collect(),
    };
    let copies = result.copies.map(|(calls, bytes, carried)| {
        Value::map([
            ("calls", Value::Count(calls)),
            ("bytes", Value::Bytes(bytes)),
            ("engine_bytes", Value::Bytes(carried)),
        ])
    });
    let name = result.words.join(" ");
    Document {
        verdicts: (1..arms).map(verdict).collect(),
        about: vec![name.clone(), subject(result)],
        name,
        sections: vec![Section { tables: vec![table.with_widths(&WIDTHS)], ..Section::default() }],
        notes: notes(result),
        facts: vec![
            ("version", env!("CARGO_PKG_VERSION").into()),
            (
                "command",
                Value::List(result.words.iter().map(|word| word.as_str().into()).collect()),
            ),
            ("rounds", Value::Count(result.rounds.len() as u64)),
            ("complete", Value::Flag(result.is_complete)),
            ("output", format!("{:?}", result.output()).to_lowercase().into()),
            ("copies", copies.into()),
        ],
        ..Document::default()
    }
}
