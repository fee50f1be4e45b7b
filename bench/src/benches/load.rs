//! Load: other cores busy, more threads than cores. At every size, hot or cold, the shim must not
//! be slower than libc.

use crate::arms::{self, Arm};
use crate::crowd::Crowd;
use crate::heat::Heat;
use crate::machine::{self, cpu_count};
use crate::measure::Samples;
use crate::memory::Pair;
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, figure, progress, size as short};
use crate::spawn::{self, Killed};
use crate::turns::{self, Budget, Place, ratios, rounds};
use std::sync::Arc;

/// Least ratio; cells that are not clearly on one side of it are measured for longer.
const WANTED: f64 = 0.97;
const PATIENCE: f64 = 4.0;

/// Back-to-back copies.
const BURST: usize = 4;

#[derive(Clone, Copy)]
enum Scene {
    /// One thread copies beside this number of busy processes.
    Beside(usize),
    /// This number of threads copies at once.
    Crowd(usize),
}

/// The two figures of a cell: the one that counts, and a second one that shows what it hides.
type Figures = [f64; 2];

pub fn run(options: &Options) {
    let cpus = cpu_count();
    let scenes = [
        ("alone", Scene::Beside(0)),
        ("one-hog", Scene::Beside(1)),
        ("hogs", Scene::Beside(cpus)),
        ("1x", Scene::Crowd(cpus)),
        ("2x", Scene::Crowd(2 * cpus)),
        ("4x", Scene::Crowd(4 * cpus)),
    ];
    println!("{}", arms::describe_shim());
    println!(
        "alone, one-hog, hogs ({cpus}): one thread copies beside busy processes: x libc,\n\
         median / mean time. 1x 2x 4x: that many threads per CPU copy at once:\n\
         x libc, throughput / median time. *: measured again, being low at first.\n"
    );
    let sizes = options.sizes(KIB, 64 * MIB);
    let columns = scenes.map(|(name, scene)| column(name, scene, &sizes, options));
    for (index, heat) in Heat::BOTH.into_iter().enumerate() {
        println!("{}", heat.name());
        let head = scenes.iter().map(|(name, _)| *name);
        let mut table = Table::new(["size"].into_iter().chain(head));
        for (row, size) in sizes.iter().enumerate() {
            let cells = columns.iter().map(|column| column[index][row].clone());
            table.row([short(*size)].into_iter().chain(cells));
        }
        table.print();
    }
}

/// Measures all cells of one scene. Returns the table's text for [cold, hot], size by size.
fn column(name: &str, scene: Scene, sizes: &[usize], options: &Options) -> [Vec<String>; 2] {
    let largest = sizes.iter().copied().max().unwrap_or(MIB);
    let mut stage = Stage::new(scene, largest, options);
    let (names, judged) = match scene {
        Scene::Beside(_) => (["time", "mean"], 1),
        Scene::Crowd(_) => (["throughput", "time"], 2),
    };
    Heat::BOTH.map(|heat| {
        let mut column = Vec::new();
        for &size in sizes {
            progress(&format!("load {name} {} {}", heat.name(), short(size)));
            let Some(mut outcome) = stage.measure(size, heat, options.seconds / 3.0) else {
                column.push("-".into());
                continue;
            };
            // The lowest of many cells is low by chance, too: only a cell that is low twice counts.
            let low = outcome[..judged].iter().any(|ratio| *ratio < WANTED);
            if low && let Some(second) = stage.measure(size, heat, options.seconds) {
                outcome = second;
            }
            let mark = if low { "*" } else { "" };
            for (what, ratio) in names.into_iter().zip(outcome) {
                figure(&format!("load.{name}.{}.{}.{what}", heat.name(), short(size)), ratio);
            }
            column.push(format!("{mark}{:.2}/{:.2}", outcome[0], outcome[1]));
        }
        column
    })
}

/// State of a scene while its cells are measured.
enum Stage {
    Beside { place: Box<Place>, _hogs: Vec<Killed> },
    Crowd { pair: Arc<Pair>, threads: usize },
}

impl Stage {
    fn new(scene: Scene, largest: usize, options: &Options) -> Self {
        match scene {
            Scene::Beside(hogs) => {
                let place = Box::new(Place::new(options, 1));
                Stage::Beside { place, _hogs: spawn::hogs(hogs) }
            }
            Scene::Crowd(threads) => {
                let wanted = (threads * largest).min(machine::available_memory() / 3);
                let pair = Arc::new(Pair::new(turns::buffer_size(options).max(wanted)));
                Stage::Crowd { pair, threads }
            }
        }
    }

    /// Measures a cell; `None` when the memory is too small for this size.
    fn measure(&mut self, size: usize, heat: Heat, seconds: f64) -> Option<Figures> {
        match self {
            Stage::Beside { place, .. } if size <= place.pair.len() => {
                Some(beside(place, size, heat, seconds))
            }
            Stage::Crowd { pair, threads } if size <= pair.len() / *threads / 4096 * 4096 => {
                Some(crowd(Crowd::new(*threads, pair, size, heat), size, 2.0 * seconds))
            }
            _ => None,
        }
    }
}

fn beside(place: &mut Place, size: usize, heat: Heat, seconds: f64) -> Figures {
    let arms = [Arm::libc(), Arm::shim()];
    let counted = |times: &[turns::Times], arm: usize| match heat {
        Heat::Cold | Heat::Read => times[arm].all.clone(),
        Heat::Hot | Heat::Used => times[arm].next.clone(),
    };
    let budget = Budget::new(seconds);
    let mut warm = 0;
    let times = rounds(place, &arms, size, heat, BURST, |times| {
        let (rounds, used) = (times[0].all.len(), budget.used());
        if warm == 0 && rounds >= 10 && used >= 0.3 {
            warm = rounds;
        }
        warm > 0
            && rounds - warm >= 9
            && used >= 1.0
            && (used >= PATIENCE || {
                let (libc, shim) = (counted(times, 0), counted(times, 1));
                clear(&ratios(&libc[warm..], &shim[warm..]))
            })
    });
    let (libc, shim) = (counted(&times, 0), counted(&times, 1));
    let (libc, shim) = (&libc[warm..], &shim[warm..]);
    [ratios(libc, shim).median(), libc.iter().sum::<f64>() / shim.iter().sum::<f64>()]
}

fn crowd(crowd: Crowd, size: usize, seconds: f64) -> Figures {
    let arms = [arms::real_memcpy(), arms::interposed_memcpy()];
    // Long enough for every thread to make some copies in a phase.
    let mut window = 50_000_000;
    for _ in 0..3 {
        let [libc, _] = crowd.pair(arms, size, window);
        window = (4.0 * libc.time).clamp(50e6, 400e6) as u64;
    }
    let budget = Budget::new(seconds);
    let (mut throughput, mut time) = (Samples::default(), Samples::default());
    loop {
        let [libc, shim] = crowd.pair(arms, size, window);
        // On a busy machine a phase can pass without a copy.
        let (through, duration) = (shim.throughput / libc.throughput, libc.time / shim.time);
        if through.is_finite() && duration.is_finite() {
            throughput.push(through);
            time.push(duration);
        }
        let used = budget.used();
        let sure = throughput.len() >= 5 && clear(&throughput) && clear(&time);
        if used >= 1.0 && sure
            || used >= PATIENCE && (throughput.len() >= 5 || used > 3.0 * PATIENCE)
        {
            return [throughput.median(), time.median()];
        }
    }
}

/// Returns whether the median is clearly on one side of `WANTED`.
fn clear(ratios: &Samples) -> bool {
    let (low, high) = ratios.median_interval();
    low >= WANTED || high < WANTED
}
