//! The prices that the design rests on: signals, futexes, threads, touching
//! pages, and the kernel's own copy between address spaces. No shim here.

use crate::arms::{Arm, real_memcpy};
use crate::measure::{Samples, now, settle};
use crate::memory::CopyFn;
use crate::options::{KIB, MIB, Options};
use crate::out::{Table, figure, progress, size as short, time};
use crate::team::{cpu_count, futex};
use crate::turns::{Budget, Heat, Place, ratios, rounds};
use libc::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;
use std::{mem, ptr};

pub fn run(options: &Options) {
    let mut table = Table::new(["call", "median", "p10", "p90"]);
    let mut row = |name: &str, samples: Samples| {
        figure(&format!("syscall.{}.ns", name.replace(' ', "_")), samples.median());
        let quantiles = [0.5, 0.1, 0.9].map(|q| time(samples.quantile(q)));
        table.row([name.to_string()].into_iter().chain(quantiles));
    };
    progress("syscall: signals");
    row("getppid, the cheapest call", each(1000, getppid));
    row("rt_sigaction, asking for one signal", each(1000, ask_sigaction));
    row("rt_sigprocmask, block all and restore", each(1000, mask_pair));
    progress("syscall: futex");
    row("futex wake, nobody sleeps", each(1000, wake_nobody));
    let (wake, latency) = wake_sleeper(400);
    row("futex wake of a sleeper, for the waker", wake);
    row("futex wake, until the sleeper runs", latency);
    progress("syscall: clone");
    let (made, runs) = raw_threads(200);
    row("clone of a raw thread, for its maker", made);
    row("clone, until the new thread runs", runs);
    table.print();
    copies(options);
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

fn wake_nobody() {
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

/// Other ways to move or to touch the bytes, against memcpy, cold.
fn copies(options: &Options) {
    let cpus = cpu_count();
    let mut place = Place::new(options, cpus);
    let arm = |name: &str, copy: CopyFn, threads| Arm { name: name.into(), copy, threads };
    let mut arms = vec![
        Arm::libc(),
        arm("vm_readv", kernel_copy, 1),
        arm("touch", touch, 1),
        arm("write", touch_written, 1),
    ];
    if cpus > 1 {
        arms.push(arm("memcpy x2", real_memcpy(), 2));
        arms.push(arm("vm_readv x2", kernel_copy, 2));
    }
    println!(
        "memcpy's time over that of: process_vm_readv to ourselves; copying one line\n\
         of each page; writing one byte of each page; and of two threads (cold)\n"
    );
    let names = arms.iter().skip(1).map(|arm| arm.name.clone());
    let mut table = Table::new(["size".into(), "memcpy".into()].into_iter().chain(names));
    for size in options.sizes.clone().unwrap_or(vec![64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]) {
        progress(&format!("syscall: copies of {}", short(size)));
        let budget = Budget::new(options.seconds / 2.0);
        let times = rounds(&mut place, &arms, size, Heat::Cold, options.burst(size), |times| {
            times[0].next.len() >= 9 && budget.used() >= 1.0
        });
        let base: Samples = times[0].next.iter().copied().collect();
        let mut line = vec![short(size), time(base.median())];
        for (arm, times_of) in arms.iter().zip(&times).skip(1) {
            let ratio = ratios(&times[0].next, &times_of.next).median();
            figure(&format!("syscall.{}.{}", short(size), arm.name.replace(' ', "_")), ratio);
            line.push(format!("{ratio:.2}"));
        }
        table.row(line);
    }
    table.print();
}

unsafe extern "C" fn kernel_copy(dst: *mut c_void, src: *const c_void, n: usize) -> *mut c_void {
    let here = libc::iovec { iov_base: dst, iov_len: n };
    let there = libc::iovec { iov_base: src.cast_mut(), iov_len: n };
    // SAFETY: memcpy's own contract for both sides.
    unsafe { libc::process_vm_readv(libc::getpid(), &here, 1, &there, 1, 0) };
    dst
}

/// The first line of every page, as for a worker whose faults must be ours.
unsafe extern "C" fn touch(dst: *mut c_void, src: *const c_void, n: usize) -> *mut c_void {
    for at in (0..n).step_by(4096) {
        // SAFETY: inside memcpy's own contract; sizes here are whole pages.
        unsafe {
            let line = src.cast::<u8>().add(at).cast::<[u64; 8]>().read_volatile();
            dst.cast::<u8>().add(at).cast::<[u64; 8]>().write_volatile(line);
        }
    }
    dst
}

unsafe extern "C" fn touch_written(dst: *mut c_void, _: *const c_void, n: usize) -> *mut c_void {
    for at in (0..n).step_by(4096) {
        // SAFETY: inside memcpy's own contract.
        unsafe { dst.cast::<u8>().add(at).write_volatile(1) };
    }
    dst
}
