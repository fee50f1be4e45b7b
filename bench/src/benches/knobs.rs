//! Every knob earns its line: for each that decides how copies are made, a case in which its
//! default may be wrong, and what another value gains there. One that gains nowhere should go.
//!
//! A sample is a process of its own, because knobs are read at start-up. In each round the default
//! and the other value have one process each, in random order, and the ratio is formed round by
//! round.

use crate::arms::interposed_memcpy;
use crate::channels::{Channel, Game, Peer, Rights};
use crate::copies::{Copies, Target};
use crate::measure::{Rng, Samples, now};
use crate::memory::Area;
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, figure, progress, size as short, time};
use crate::spawn;
use crate::team::cpu_count;
use crate::turns::Budget;
use libc::{c_int, c_void};
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// What a process does, and what one turn of it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// One copy of memory that no cache holds.
    Cold,
    /// The same, and the destination is read.
    Read,
    /// The same, and then eight times the process's own 1 MiB, which fits its cache.
    OwnSet,
    /// A comparison that ends after 100 bytes.
    Differs,
    /// 1 MiB read by other threads, one on every second CPU, while one thread copies.
    Beside,
    /// Half a round trip of a message that is written before and read after.
    Message,
}

impl Work {
    const ALL: [Work; 6] =
        [Work::Cold, Work::Read, Work::OwnSet, Work::Differs, Work::Beside, Work::Message];

    fn about(self) -> &'static str {
        match self {
            Work::Cold => "a cold copy",
            Work::Read => "a cold copy, then its destination is read",
            Work::OwnSet => "a cold copy, then 8 x 1 MiB of one's own",
            Work::Differs => "memcmp that ends after 100 bytes",
            Work::Beside => "others read their memory beside cold copies",
            Work::Message => "a message, written before and read after",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|work| format!("{work:?}") == name)
    }
}

/// Other values, and where they are tried.
struct Case {
    knobs: &'static str,
    work: Work,
    size: usize,
    /// On machines with so many CPUs or more.
    cpus: usize,
}

const fn case(knobs: &'static str, work: Work, size: usize, cpus: usize) -> Case {
    Case { knobs, work, size, cpus }
}

const CASES: &[Case] = &[
    case("ADMA_MIN_BYTES=64K", Work::Cold, 128 * KIB, 2),
    case("ADMA_CHANNELS=2", Work::Beside, 64 * MIB, 8),
    case("ADMA_CPU_SHARE=0", Work::OwnSet, 16 * MIB, 4),
    case("ADMA_STORES=stream", Work::Cold, MIB, 2),
    case("ADMA_STORES=ordinary", Work::Read, 4 * MIB, 2),
    case("ADMA_OPS=memcpy", Work::Differs, MIB, 2),
    case("ADMA_IPC_ENGINE=shm", Work::Message, MIB, 2),
];

pub fn run(options: &Options) {
    let Some(lib) = options.lib.as_deref().filter(|lib| *lib != "none") else {
        println!("skipped: no library\n");
        return;
    };
    let rounds = options.pairs.unwrap_or((options.seconds * 5.0).max(5.0) as usize);
    println!(
        "{rounds} pairs of processes for each line. default: one turn of it with default knobs.\n\
         gain: its time over the time with these knobs; above 1 the default is wrong.\n"
    );
    let mut table = Table::new(["knobs", "size", "default", "gain", "q1-q3", "case"]);
    for &Case { knobs, work, size, .. } in CASES.iter().filter(|case| case.cpus <= cpu_count()) {
        progress(&format!("knobs: {knobs}, {}", work.about()));
        let (mut default, mut gain) = (Samples::default(), Samples::default());
        let mut rng = Rng::new();
        for _ in 0..rounds {
            let mut order = [0, 1];
            rng.shuffle(&mut order);
            let mut times = [f64::NAN; 2];
            for arm in order {
                let set = if arm == 0 { "" } else { knobs };
                times[arm] = sample(lib, set, work, size, options).unwrap_or(f64::NAN);
            }
            if times.iter().all(|time| time.is_finite()) {
                default.push(times[0]);
                gain.push(times[0] / times[1]);
            }
        }
        figure(&format!("knobs.{knobs}.{work:?}.{}", short(size)), gain.median());
        let quartiles = format!("{:.2}-{:.2}", gain.quantile(0.25), gain.quantile(0.75));
        let gain = format!("{:.2}", gain.median());
        let default = time(default.median());
        let size = short(size);
        table.row([knobs, &size, &default, &gain, &quartiles, work.about()]);
    }
    table.print();
}

fn sample(lib: &str, knobs: &str, work: Work, size: usize, options: &Options) -> Option<f64> {
    // Messages are no copies of the program's: both processes open the library by name.
    let by_name = work == Work::Message;
    let mut command = spawn::itself("knob-work", (!by_name).then_some(lib));
    command.envs(knobs.split_whitespace().filter_map(|knob| knob.split_once('=')));
    command.args(["--lib", lib, "--seconds", &format!("{}", options.seconds / 10.0)]);
    let output = command.args(["--", &format!("{work:?}"), &size.to_string()]).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// The process of a sample: says how many nanoseconds a turn takes.
pub fn work(options: &Options) {
    let [work, size] = options.rest.as_slice() else { std::process::exit(2) };
    let (Some(work), Ok(size)) = (Work::named(work), size.parse::<usize>()) else {
        std::process::exit(2)
    };
    let turn: Box<dyn FnMut() -> f64> = match work {
        Work::Cold => {
            let mut copies = Copies::new(Target::Old, size, 512 * MIB);
            Box::new(move || copies.next(interposed_memcpy()))
        }
        Work::Read => {
            let mut copies = Copies::new(Target::Old, size, 512 * MIB);
            Box::new(move || copies.next(interposed_memcpy()) + copies.read_last())
        }
        Work::OwnSet => {
            let (mut copies, own) = (Copies::new(Target::Old, size, 512 * MIB), Area::new(MIB));
            Box::new(move || {
                let copied = copies.next(interposed_memcpy());
                let start = now();
                (0..8).for_each(|_| read(&own, 0..own.len()));
                copied + (now() - start) as f64
            })
        }
        Work::Differs => differs(size),
        Work::Beside => return println!("{}", beside(size, options.seconds)),
        Work::Message => {
            let lib = options.lib.as_deref().unwrap_or_default();
            let mut peer = Peer::start(lib, Rights::Usual).expect("usual rights");
            Box::new(move || peer.play(Game::Used, Channel::Adma, size, 16))
        }
    };
    println!("{}", median_of(turn, options.seconds));
}

/// The first fifth of the time is not counted: the library learns.
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

/// Looks at every cache line.
fn read(area: &Area, part: Range<usize>) {
    let mut sum = 0u64;
    for at in part.step_by(64) {
        // SAFETY: inside the area, which was written when it was made.
        sum = sum.wrapping_add(unsafe { area.at(at).cast::<u64>().read() });
    }
    black_box(sum);
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

/// Nanoseconds that threads on half of the CPUs take to read 1 MiB, while one thread copies.
fn beside(size: usize, seconds: f64) -> f64 {
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let others = cpu_count() / 2;
    let mut copies = Copies::new(Target::Old, size, 512 * MIB);
    std::thread::scope(|scope| {
        for _ in 0..others {
            scope.spawn(|| {
                let area = Area::new(256 * MIB);
                for part in (0..256).cycle().take_while(|_| !over.load(Relaxed)) {
                    read(&area, part * MIB..(part + 1) * MIB);
                    done.fetch_add(1, Relaxed);
                }
            });
        }
        // They have to make their memory first.
        while done.load(Relaxed) < 256 * others as u64 {
            std::thread::yield_now();
        }
        let budget = Budget::new(seconds);
        let (mut counted, mut since) = (0, now());
        let mut warm = false;
        while budget.used() < 1.0 {
            copies.next(interposed_memcpy());
            if !warm && budget.used() > 0.2 {
                (warm, counted, since) = (true, done.load(Relaxed), now());
            }
        }
        let read = done.load(Relaxed) - counted;
        let passed = (now() - since) as f64;
        over.store(true, Relaxed);
        passed * others as f64 / read.max(1) as f64
    })
}
