//! Costs that the design rests on: signals, futexes, threads. Without the shim.

use crate::measure::{PAUSE_US, Samples, now, settle};
use crate::options::Options;
use crate::out::{Table, spread, time};
use crate::team::{WAIT, WAKE, futex};
use libc::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

pub fn run(_: &Options) {
    let mut table = Table::of("call|median|p10|p90");
    let mut row = |name: &str, samples: Samples| {
        spread(&format!("syscall.{}.ns", name.replace(' ', "_")), &samples);
        let quantiles = [0.5, 0.1, 0.9].map(|q| time(samples.quantile(q)));
        table.row([name.to_string()].into_iter().chain(quantiles));
    };
    static WORD: AtomicU32 = AtomicU32::new(0);
    let (all, mut old, none) = (!0u64, [0u64; 4], ptr::null::<c_void>());
    // SAFETY: no arguments; sets and structs of the kernel's sizes that are alive.
    unsafe {
        row("getppid, the cheapest call", each(|| libc::syscall(libc::SYS_getppid)));
        let ask =
            || libc::syscall(libc::SYS_rt_sigaction, libc::SIGSEGV, none, old.as_mut_ptr(), 8);
        row("rt_sigaction, asking for one signal", each(ask));
        let block = || {
            let (set, mask) = (libc::SIG_SETMASK, old.as_mut_ptr());
            libc::syscall(libc::SYS_rt_sigprocmask, set, &all, mask, 8);
            libc::syscall(libc::SYS_rt_sigprocmask, set, mask, none, 8)
        };
        row("rt_sigprocmask, block all and restore", each(block));
    }
    row("futex wake without a sleeper", each(|| futex(&WORD, WAKE, 1)));
    let (wake, latency) = wake_sleeper(400);
    row("futex wake of a sleeper, for the waker", wake);
    row("futex wake, until the sleeper runs", latency);
    let thread = |_| {
        let start = now();
        let runs = std::thread::spawn(now).join().unwrap_or(start);
        runs.saturating_sub(start) as f64
    };
    row("a new thread, until it runs", (0..200).map(thread).collect());
    table.print();
}

/// Times calls in groups of 20, because the clock is coarse.
fn each<T>(mut call: impl FnMut() -> T) -> Samples {
    let group = |_| {
        let start = now();
        (0..20).for_each(|_| drop(call()));
        (now() - start) as f64 / 20.0
    };
    (0..1000).map(group).collect()
}

/// Returns the cost of waking for the waker, and the time until the sleeper runs.
fn wake_sleeper(count: usize) -> (Samples, Samples) {
    let shared = Arc::new((AtomicU32::new(0), AtomicU64::new(0)));
    let sleeper = Arc::clone(&shared);
    std::thread::spawn(move || {
        let (word, awake) = &*sleeper;
        let mut seen = 0;
        loop {
            while word.load(Acquire) == seen {
                futex(word, WAIT, seen);
            }
            awake.store(now(), Release);
            seen = word.load(Acquire);
        }
    });
    let (word, awake) = &*shared;
    let (mut cost, mut latency) = (Samples::default(), Samples::default());
    for _ in 0..count {
        settle(PAUSE_US); // it sleeps by now
        awake.store(0, Release);
        let start = now();
        word.fetch_add(1, Release);
        futex(word, WAKE, 1);
        cost.push((now() - start) as f64);
        while awake.load(Acquire) == 0 {
            std::hint::spin_loop();
        }
        latency.push(awake.load(Acquire).saturating_sub(start) as f64);
    }
    (cost, latency)
}
