//! Asynchronous copies: the cost of starting one, how much of a copy overlaps with computation, and
//! whether many outstanding copies keep all channels busy.

use crate::arms::{describe_shim, real_memcpy, symbol};
use crate::heat::Heat;
use crate::measure::{PAUSE_US, Samples, now, settle, shuffled};
use crate::memory::{Pair, Spot, Walk};
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, figure, median, progress, range, size as short, spread, time};
use crate::turns::{Budget, buffer_size};
use libc::c_void;
use std::hint::black_box;

/// Copies that are outstanding at once, as in the papers.
const WINDOW: usize = 128;

/// The functions of adma.h that are measured.
pub(super) struct Adma {
    copy: unsafe extern "C" fn(*const c_void, *mut c_void, usize) -> i32,
    icopy: unsafe extern "C" fn(*const c_void, *mut c_void, usize) -> i64,
    check: unsafe extern "C" fn(i64) -> i32,
    wait: unsafe extern "C" fn(i64) -> i32,
}

impl Adma {
    /// Finds them in the preloaded library.
    pub(super) fn find() -> Option<Self> {
        // SAFETY: the types that adma.h gives them.
        unsafe {
            Some(Adma {
                copy: symbol(libc::RTLD_DEFAULT, c"adma_copy")?,
                icopy: symbol(libc::RTLD_DEFAULT, c"adma_icopy")?,
                check: symbol(libc::RTLD_DEFAULT, c"adma_check_copy")?,
                wait: symbol(libc::RTLD_DEFAULT, c"adma_wait_copy")?,
            })
        }
    }

    pub(super) fn start(&self, spot: Spot, size: usize) -> i64 {
        // SAFETY: the law of `memory`; every caller waits before it goes on.
        let cookie = unsafe { (self.icopy)(spot.src.cast(), spot.dst.cast(), size) };
        assert!(cookie > 0, "adma_icopy: {cookie}");
        cookie
    }

    /// Returns whether the copy is done; then the cookie is used up.
    pub(super) fn is_done(&self, cookie: i64) -> bool {
        // SAFETY: a cookie of `start`.
        unsafe { (self.check)(black_box(cookie)) != 0 }
    }

    pub(super) fn finish(&self, cookie: i64) {
        // SAFETY: a cookie of `start`.
        assert_eq!(unsafe { (self.wait)(cookie) }, 0);
    }
}

pub fn run(options: &Options) {
    let Some(adma) = Adma::find() else {
        println!("no library with adma_icopy is loaded: nothing to measure");
        return;
    };
    println!("{}\n", describe_shim());
    let pair = Pair::new(buffer_size(options));
    let mut walk = Walk::new(0, pair.len());
    starting(&adma, &pair, &mut walk, options);
    for heat in Heat::BOTH {
        overlap(&adma, &pair, &mut walk, heat, options);
    }
    window(&adma, &pair, &mut walk, options);
}

fn starting(adma: &Adma, pair: &Pair, walk: &mut Walk, options: &Options) {
    progress("async: starting");
    println!("what adma_icopy of 1M takes, and one adma_check_copy");
    let mut table = Table::of("call|median|p10|p90");
    let mut row = |name: &str, key: &str, samples: &Samples| {
        figure(&format!("async.start.{key}.us"), samples.median() / 1e3);
        let quantiles = [0.5, 0.1, 0.9].map(|q| time(samples.quantile(q)));
        table.row([name.to_string()].into_iter().chain(quantiles));
    };
    let [mut awake, mut asleep, mut looks] = [(); 3].map(|()| Samples::default());
    let budget = Budget::new(options.seconds);
    while budget.used() < 1.0 {
        settle(PAUSE_US);
        // The first of a turn finds the workers asleep; for the next they have work to do.
        let mut cookies = Vec::with_capacity(8);
        for turn in 0..8 {
            let spot = walk.step(MIB, pair);
            let begun = now();
            cookies.push(adma.start(spot, MIB));
            let taken = (now() - begun) as f64;
            if turn == 0 { &mut asleep } else { &mut awake }.push(taken);
        }
        let begun = now();
        for _ in 0..100 {
            if adma.is_done(cookies[7]) {
                cookies.pop();
                break;
            }
        }
        if cookies.len() == 8 {
            looks.push((now() - begun) as f64 / 100.0);
        }
        cookies.into_iter().for_each(|cookie| adma.finish(cookie));
    }
    row("adma_icopy, workers at work", "awake", &awake);
    row("adma_icopy, workers asleep", "asleep", &asleep);
    row("adma_check_copy, under way", "check", &looks);
    table.print();
}

/// Computes without touching memory.
pub(super) fn compute(turns: u64) -> u64 {
    (0..turns).fold(1, |sum: u64, turn| black_box(sum.wrapping_mul(31) ^ turn))
}

fn overlap(adma: &Adma, pair: &Pair, walk: &mut Walk, heat: Heat, options: &Options) {
    println!(
        "{}: overlap = (Tcopy + Tcompute - Ttotal) / Tcopy. Tcopy: started and waited for\n\
         at once. Tcompute: 2.5 times that. 1: all of the copy is hidden. waited: the\n\
         time in adma_wait_copy after the computation.",
        heat.name()
    );
    let mut table = Table::of("size|libc|Tcopy|Tcompute|Ttotal|waited|overlap|p10-p90");
    let memcpy = real_memcpy();
    let begun = now();
    compute(1 << 20);
    let per_turn = (now() - begun) as f64 / f64::from(1 << 20);
    for size in options.sizes(256 * KIB, 64 * MIB) {
        progress(&format!("async: overlap {} {}", heat.name(), short(size)));
        let mut times: [Samples; 5] = Default::default();
        let mut part = Samples::default();
        let mut turns = 0;
        let budget = Budget::new(options.seconds);
        while budget.used() < 1.0 || part.len() < 5 {
            let mut took = [0.0; 5];
            for arm in shuffled(4) {
                let spot = match heat {
                    Heat::Hot => pair.spot(0),
                    _ => walk.step(size, pair),
                };
                settle(PAUSE_US);
                let begun = now();
                match arm {
                    // SAFETY: the law of `memory`.
                    0 => unsafe {
                        memcpy(spot.dst.cast(), spot.src.cast(), size);
                    },
                    1 => adma.finish(adma.start(spot, size)),
                    2 => drop(black_box(compute(turns))),
                    _ => {
                        let cookie = adma.start(spot, size);
                        black_box(compute(turns));
                        let computed = now();
                        adma.finish(cookie);
                        took[4] = (now() - computed) as f64;
                    }
                }
                took[arm] = (now() - begun) as f64;
            }
            let [_, copy, computing, total, _] = took;
            if turns > 0 {
                part.push((copy + computing - total) / copy);
                times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
            }
            // From our own time, not libc's: the scatter of a longer computation hides a short copy.
            let copy = if turns > 0 { times[1].median() } else { copy };
            turns = (2.5 * copy / per_turn) as u64;
        }
        let name = if heat == Heat::Hot { "overlap_hot" } else { "overlap" };
        spread(&format!("async.{name}.{}.part", short(size)), &part);
        let mut line = vec![short(size)];
        line.extend(times.iter().map(|times| time(times.median())));
        line.extend([median(&part), range(&part, 0.1)]);
        table.row(line);
    }
    table.print();
}

fn window(adma: &Adma, pair: &Pair, walk: &mut Walk, options: &Options) {
    println!(
        "bandwidth, cold: {WINDOW} copies outstanding, against as many copies by adma_copy\n\
         and by libc, each waited for before the next"
    );
    let mut table = Table::of("size|libc|adma_copy|window|x blocking|x libc");
    let memcpy = real_memcpy();
    for size in options.sizes(64 * KIB, 4 * MIB) {
        progress(&format!("async: window {}", short(size)));
        let mut times: [Samples; 3] = Default::default();
        let [mut blocking, mut libc] = [Samples::default(), Samples::default()];
        let budget = Budget::new(2.0 * options.seconds);
        let mut cookies = Vec::with_capacity(WINDOW);
        let mut turns = 0;
        while budget.used() < 1.0 || libc.len() < 5 {
            let mut took = [0.0; 3];
            for arm in shuffled(3) {
                let spots: Vec<Spot> = (0..WINDOW).map(|_| walk.step(size, pair)).collect();
                settle(PAUSE_US);
                let begun = now();
                // SAFETY: the law of `memory`; copies under way are waited for.
                unsafe {
                    for spot in spots {
                        match arm {
                            0 => drop(memcpy(spot.dst.cast(), spot.src.cast(), size)),
                            1 => drop((adma.copy)(spot.src.cast(), spot.dst.cast(), size)),
                            _ => cookies.push(adma.start(spot, size)),
                        }
                    }
                }
                cookies.drain(..).for_each(|cookie| adma.finish(cookie));
                took[arm] = (now() - begun) as f64;
            }
            turns += 1;
            // The first turns are for learning.
            if turns > 2 {
                blocking.push(took[1] / took[2]);
                libc.push(took[0] / took[2]);
                times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
            }
        }
        let key = |name: &str| format!("async.window.{}.{name}", short(size));
        spread(&key("blocking"), &blocking);
        spread(&key("libc"), &libc);
        let speeds = times.map(|times| (WINDOW * size) as f64 / times.median());
        figure(&key("gbs"), speeds[2]);
        figure(&key("libc_gbs"), speeds[0]);
        let mut line = vec![short(size)];
        line.extend(speeds.map(|speed| format!("{speed:.1} GB/s")));
        line.extend([median(&blocking), median(&libc)]);
        table.row(line);
    }
    table.print();
}
