//! Justification of knobs: for each that decides how copies are made, a case in which its default
//! may be wrong, and what another value gains there. One that gains nowhere should go. Cases that
//! need other processes or a graphics card are in bench/NOTES.md.
//!
//! A sample is a process of its own, because knobs are read at start-up. In each round the default
//! and the other value have one process each, in random order, and the ratio is formed round by
//! round.

use crate::arms::interposed_memcpy;
use crate::channels::{Channel, Game, Peer};
use crate::copies::{Copies, Target};
use crate::measure::{Samples, now, shuffled};
use crate::memory::Area;
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, median, progress, range, size as short, spread, time};
use crate::spawn;
use crate::turns::Budget;
use libc::{c_int, c_void};
use std::hint::black_box;

/// Work of a process; one turn of it is timed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// One copy of memory that no cache holds.
    Cold,
    /// One copy into memory never touched.
    Fresh,
    /// A cold copy, and the destination is read.
    Read,
    /// A comparison that ends after 100 bytes.
    Differs,
    /// Half a round trip of a message that is written before and read after.
    Message,
}

/// Knob, work, size, and description of each case.
const CASES: &[(&str, Work, usize, &str)] = &[
    ("ADMA_MIN_BYTES=64K", Work::Cold, 128 * KIB, "a cold copy"),
    ("ADMA_STORES=stream", Work::Cold, MIB, "a cold copy"),
    ("ADMA_STORES=ordinary", Work::Read, 4 * MIB, "a cold copy, then its destination is read"),
    ("ADMA_HUGE_PAGES=0", Work::Fresh, 16 * MIB, "a copy into memory never touched"),
    ("ADMA_OPS=memcpy", Work::Differs, MIB, "memcmp that ends after 100 bytes"),
    ("ADMA_IPC_ENGINE=shm", Work::Message, MIB, "a message, written before and read after"),
];

pub fn run(options: &Options) {
    let Some(lib) = options.library() else { return println!("skipped: no library\n") };
    let rounds = options.pairs.unwrap_or((options.seconds * 5.0).max(5.0) as usize);
    println!(
        "{rounds} pairs of processes for each line. default: one turn of it with default knobs.\n\
         gain: its time over the time with these knobs; above 1 the default is wrong.\n"
    );
    let mut table = Table::of("knobs|size|default|gain|q1-q3|case");
    for (case, &(knobs, work, size, about)) in CASES.iter().enumerate() {
        progress(&format!("knobs: {knobs}, {about}"));
        let (mut default, mut gain) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            let mut times = [f64::NAN; 2];
            for arm in shuffled(2) {
                let set = if arm == 0 { "" } else { knobs };
                times[arm] = sample(lib, set, case, options).unwrap_or(f64::NAN);
            }
            if times.iter().all(|time| time.is_finite()) {
                default.push(times[0]);
                gain.push(times[0] / times[1]);
            }
        }
        spread(&format!("knobs.{knobs}.{work:?}.{}", short(size)), &gain);
        let [size, default] = [short(size), time(default.median())];
        table.row([knobs, &size, &default, &median(&gain), &range(&gain, 0.25), about]);
    }
    table.print();
}

fn sample(lib: &str, knobs: &str, case: usize, options: &Options) -> Option<f64> {
    // Messages are no copies of the program's: both processes open the library by name.
    let by_name = CASES[case].1 == Work::Message;
    let mut command = spawn::itself("knob-work", (!by_name).then_some(lib));
    command.envs(knobs.split_whitespace().filter_map(|knob| knob.split_once('=')));
    command.args(["--lib", lib, "--seconds", &format!("{}", options.seconds / 10.0)]);
    let output = command.args(["--", &case.to_string()]).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// Runs in the process of a sample; prints the nanoseconds of a turn.
pub fn work(options: &Options) {
    let case = options.rest.first().and_then(|case| case.parse::<usize>().ok());
    let Some(&(_, work, size, _)) = case.and_then(|case| CASES.get(case)) else {
        std::process::exit(2)
    };
    let turn: Box<dyn FnMut() -> f64> = match work {
        Work::Cold | Work::Fresh => {
            let target = if work == Work::Fresh { Target::Fresh } else { Target::Old };
            let mut copies = Copies::new(target, size, 512 * MIB);
            Box::new(move || copies.next(interposed_memcpy()))
        }
        Work::Read => {
            let mut copies = Copies::new(Target::Old, size, 512 * MIB);
            Box::new(move || copies.next(interposed_memcpy()) + copies.read_last())
        }
        Work::Differs => differs(size),
        Work::Message => {
            let lib = options.lib.as_deref().unwrap_or_default();
            let mut peer = Peer::start(lib, None);
            Box::new(move || peer.play(Game::Used, Channel::Adma, size, 16))
        }
    };
    println!("{}", median_of(turn, options.seconds));
}

/// Returns the median without the first fifth of the time, in which the library learns.
fn median_of(mut turn: Box<dyn FnMut() -> f64>, seconds: f64) -> f64 {
    let (mut times, budget) = (Samples::default(), Budget::new(seconds));
    while times.len() < 5 || budget.used() < 1.0 {
        let time = turn();
        if budget.used() > 0.2 {
            times.push(time);
        }
    }
    times.median()
}

fn differs(size: usize) -> Box<dyn FnMut() -> f64> {
    type Compare = unsafe extern "C" fn(*const c_void, *const c_void, usize) -> c_int;
    let compare = black_box(libc::memcmp as Compare);
    let (one, other) = (Area::new(size), Area::new(size));
    // SAFETY: inside the area.
    unsafe { other.at(100).write(!one.at(100).read()) };
    Box::new(move || {
        const TIMES: u32 = 1000;
        let start = now();
        for _ in 0..TIMES {
            // SAFETY: both areas have that many bytes.
            black_box(unsafe { compare(one.at(0).cast(), other.at(0).cast(), size) });
        }
        (now() - start) as f64 / f64::from(TIMES)
    })
}
