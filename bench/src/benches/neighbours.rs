//! Processes beside one that copies: how much longer their work takes, and how much later it is done.
//!
//! The program copies 16 MiB in each period, by libc or by the shim in turn: the work is the same, and
//! only the way differs.

use crate::arms::{describe_shim, interposed_memcpy, real_memcpy};
use crate::copies::{Copies, Target};
use crate::machine::cpu_count;
use crate::measure::{Samples, now, shuffled};
use crate::memory::{Area, CopyFn};
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, median, progress, range, spread};
use crate::spawn::{self, Server};
use crate::turns::{self, Budget, buffer_size};
use std::io;
use std::time::Duration;

const SIZE: usize = 16 * MIB;
/// Nanoseconds from the beginning of a copy to that of the next, and of an arm's turn.
const PERIOD: u64 = 10_000_000;
const TURN: u64 = 300_000_000;

/// What a neighbour does: reads memory all the time, or wakes up each millisecond for a little work.
const READER: &str = "readers";
const SLEEPER: &str = "sleepers";
const ROUND: u64 = 1_000_000;
/// Bytes of memory that readers walk through, and of one piece of work.
const MEMORY: usize = 64 * MIB;
const PIECE: usize = 256 * KIB;

pub fn run(options: &Options) {
    let cpus = cpu_count();
    println!(
        "{}; 16 MiB copied every {} ms, by libc and shim in turn",
        describe_shim(),
        PERIOD / 1_000_000
    );
    println!(
        "{READER} ({}) read memory all the time, {SLEEPER} ({cpus}) work a little each millisecond.\n\
         time: of a piece of their work; late: its 99th percentile, from when it was due. Both are\n\
         shim over libc: above 1 the neighbours lose by the shim.\n",
        cpus.div_ceil(2)
    );
    let mut copies = Copies::new(Target::Old, SIZE, buffer_size(options));
    let mut table = Table::of("neighbours|time us|time|q1-q3|late us|late|q1-q3");
    for (kind, count) in [(READER, cpus.div_ceil(2)), (SLEEPER, cpus)] {
        progress(&format!("neighbours: {count} {kind}"));
        let start = |_| Server::start(spawn::itself("neighbour", None).args(["--", kind]));
        let mut others: Vec<Server> = (0..count).filter_map(start).collect();
        if others.len() < count {
            println!("{kind}: skipped, only {} of {count} processes start", others.len());
            continue;
        }
        let [mut base, mut ratio] = [(); 2].map(|()| [Samples::default(), Samples::default()]);
        let budget = Budget::new(2.0 * options.seconds);
        while base[0].len() < 5 || budget.used() < 1.0 {
            let mut seen = [[0.0; 2]; 2];
            for arm in shuffled(2) {
                let copy = [real_memcpy(), interposed_memcpy()][arm];
                let Ok(times) = turn(&mut others, &mut copies, copy) else {
                    return println!("{kind}: a process has ended");
                };
                seen[arm] = times;
            }
            if budget.used() > 0.2 {
                for what in [0, 1] {
                    base[what].push(seen[0][what]);
                    ratio[what].push(seen[1][what] / seen[0][what]);
                }
            }
        }
        let mut row = vec![format!("{count} {kind}")];
        for (what, name) in ["time", "late"].into_iter().enumerate() {
            spread(&format!("neighbours.{kind}.{name}"), &ratio[what]);
            row.push(format!("{:.0}", base[what].median() / 1e3));
            row.extend([median(&ratio[what]), range(&ratio[what], 0.25)]);
        }
        table.row(row);
    }
    table.print();
}

/// Copies for one turn. Returns the nanoseconds of the neighbours' work meanwhile, and when it was done:
/// medians of all of them.
fn turn(others: &mut [Server], copies: &mut Copies, copy: CopyFn) -> io::Result<[f64; 2]> {
    let mut next = now();
    let end = next + TURN;
    others.iter_mut().try_for_each(|other| other.tell(&TURN.to_string()))?;
    while next < end {
        copies.next(copy);
        next += PERIOD;
        std::thread::sleep(Duration::from_nanos(next.saturating_sub(now())));
    }
    let mut times = [Samples::default(), Samples::default()];
    for other in others {
        let answer = other.answer()?;
        let mut numbers = answer.split(' ').flat_map(str::parse);
        for one in &mut times {
            one.push(numbers.next().ok_or(io::ErrorKind::UnexpectedEof)?);
        }
    }
    Ok(times.map(|one| one.median()))
}

/// Runs in a neighbour: works for as long as it is told, then prints the median time of a piece and its delay.
pub fn neighbour(options: &Options) {
    let reads = options.rest.first().is_some_and(|kind| kind == READER);
    let memory = Area::new(if reads { MEMORY } else { PIECE });
    for line in io::stdin().lines().map_while(Result::ok) {
        let Ok(duration) = line.parse::<u64>() else { return };
        let (mut worked, mut late) = (Samples::default(), Samples::default());
        let (mut due, mut at) = (now(), 0);
        let end = due + duration;
        while due < end {
            let start = now();
            turns::read(memory.at(at), PIECE);
            let done = now();
            worked.push((done - start) as f64);
            late.push((done - due) as f64);
            at = (at + PIECE) % memory.len();
            due = if reads { done } else { due + ROUND };
            std::thread::sleep(Duration::from_nanos(due.saturating_sub(now())));
        }
        println!("{} {}", worked.median(), late.quantile(0.99));
    }
}
