//! The prices that the design rests on: signals, futexes, threads. No shim here.

use crate::measure::{Samples, now, settle};
use crate::options::{KIB, Options};
use crate::out::{Table, progress, spread, time};
use crate::team::futex;
use libc::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;
use std::{mem, ptr};

pub fn run(_: &Options) {
    let mut table = Table::of("call|median|p10|p90");
    let mut row = |name: &str, samples: Samples| {
        spread(&format!("syscall.{}.ns", name.replace(' ', "_")), &samples);
        let quantiles = [0.5, 0.1, 0.9].map(|q| time(samples.quantile(q)));
        table.row([name.to_string()].into_iter().chain(quantiles));
    };
    progress("syscall: signals");
    row("getppid, the cheapest call", each(1000, getppid));
    row("rt_sigaction, asking for one signal", each(1000, ask_sigaction));
    row("rt_sigprocmask, block all and restore", each(1000, mask_pair));
    progress("syscall: futex");
    row("futex wake without a sleeper", each(1000, wake_without_sleeper));
    let (wake, latency) = wake_sleeper(400);
    row("futex wake of a sleeper, for the waker", wake);
    row("futex wake, until the sleeper runs", latency);
    progress("syscall: clone");
    let (made, runs) = raw_threads(200);
    row("clone of a raw thread, for its maker", made);
    row("clone, until the new thread runs", runs);
    table.print();
}

/// Each call timed in groups of 20: the clock is coarse.
fn each(count: usize, call: fn()) -> Samples {
    let group = |_| {
        let start = now();
        (0..20).for_each(|_| call());
        (now() - start) as f64 / 20.0
    };
    (0..count).map(group).collect()
}

fn getppid() {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

fn ask_sigaction() {
    let mut old = [0u64; 4]; // the kernel's struct, 32 bytes
    let none = ptr::null::<c_void>();
    // SAFETY: writes 32 bytes into `old`, changes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, libc::SIGSEGV, none, old.as_mut_ptr(), 8) };
}

fn mask_pair() {
    let (all, mut old) = (!0u64, 0u64);
    let none = ptr::null::<c_void>();
    // SAFETY: the kernel's signal sets are 8 bytes, and ours are alive.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &all, &mut old, 8);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &old, none, 8);
    }
}

fn wake_without_sleeper() {
    static WORD: AtomicU32 = AtomicU32::new(0);
    futex(&WORD, libc::FUTEX_WAKE, 1);
}

/// What waking costs the waker, and how long until the sleeper runs.
fn wake_sleeper(count: usize) -> (Samples, Samples) {
    let shared = Arc::new((AtomicU32::new(0), AtomicU64::new(0)));
    let sleeper = Arc::clone(&shared);
    std::thread::spawn(move || {
        let (word, awake) = &*sleeper;
        let mut seen = 0;
        loop {
            while word.load(Acquire) == seen {
                futex(word, libc::FUTEX_WAIT, seen);
            }
            awake.store(now(), Release);
            seen = word.load(Acquire);
        }
    });
    let (word, awake) = &*shared;
    let (mut cost, mut latency) = (Samples::default(), Samples::default());
    for _ in 0..count {
        settle(300); // it sleeps by now
        awake.store(0, Release);
        let start = now();
        word.fetch_add(1, Release);
        futex(word, libc::FUTEX_WAKE, 1);
        cost.push((now() - start) as f64);
        let woken = wait_for(awake);
        latency.push(woken.saturating_sub(start) as f64);
    }
    (cost, latency)
}

fn wait_for(word: &AtomicU64) -> u64 {
    loop {
        match word.load(Acquire) {
            0 => std::hint::spin_loop(),
            value => return value,
        }
    }
}

/// What a thread without libc's help costs its maker, and when it runs.
fn raw_threads(count: usize) -> (Samples, Samples) {
    static STARTED: AtomicU64 = AtomicU64::new(0);

    /// Runs on the maker's thread-local storage: touches none of it.
    extern "C" fn body(_: *mut c_void) -> i32 {
        STARTED.store(now(), Release);
        0
    }

    const STACK: usize = 64 * KIB;
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    let mut stack: Vec<u128> = vec![0; STACK / 16];
    let top = stack.as_mut_ptr_range().end;
    let (mut made, mut runs) = (Samples::default(), Samples::default());
    for _ in 0..count {
        settle(300); // the one before is gone from the stack
        STARTED.store(0, Release);
        let start = now();
        // SAFETY: the stack is alive and used by one thread at a time; the
        // body touches a static and the clock, and ends by the exit call.
        let tid = unsafe { libc::clone(body, top.cast(), flags, ptr::null_mut()) };
        made.push((now() - start) as f64);
        if tid < 0 {
            break;
        }
        runs.push(wait_for(&STARTED).saturating_sub(start) as f64);
    }
    std::thread::sleep(Duration::from_millis(5));
    mem::forget(stack); // rather leak it than free it under a late thread
    (made, runs)
}
