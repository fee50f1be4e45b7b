//! `adma check`: reports what this machine offers, and what to do about what is missing.

use crate::backend::copy_loop::CopyLoop;
use crate::backend::engine::stretch::Stretch;
use crate::backend::engine::{CopyOptions, Usable};
use crate::backend::threads::task::{Task, Work};
use crate::backend::threads::workers;
use crate::backend::{ENGINES, Refused, libc as original, threads};
use crate::config::Config;
use crate::os::cpus::{self, Features};
use crate::os::lookup::rare;
use crate::os::{arch, sys, text};
use alloc::string::String;
use core::ffi::c_void;
use core::fmt::Write;

/// Prints to standard output and ends the process: the program of this run is only a host.
pub fn run(config: &Config) -> ! {
    let mut out = String::new();
    let _ = describe(config, &mut out); // a `String` takes everything
    let failed = text::write_all(libc::STDOUT_FILENO, out.as_bytes());
    // SAFETY: ends the process.
    unsafe { libc::_exit(i32::from(failed != 0)) }
}

fn describe(config: &Config, out: &mut dyn Write) -> core::fmt::Result {
    let limits = cpus::Limits::now();
    let (cpus, affinity) = (limits.cpus(), limits.affinity);
    // SAFETY: asks for a number.
    let online = unsafe { sysconf().map_or(1, |sysconf| sysconf(libc::_SC_NPROCESSORS_ONLN)) };
    writeln!(out, "adma {}", env!("CARGO_PKG_VERSION"))?;
    write!(out, "  CPUs        {cpus} for this process: {online} online, {affinity} by affinity")?;
    match limits.quota {
        Some(quota) => writeln!(out, ", {quota:.1} by cgroup quota")?,
        None => writeln!(out, ", no cgroup quota")?,
    }
    if let Some(why) = arch::obstacle() {
        return writeln!(out, "  channels    none, all is left to libc: {why}");
    }
    let workers = config.channels.unwrap_or(cpus - 1).min(workers::MOST_WORKERS);
    let settings = config.engine_settings();
    let mut usable = None;
    for &engine in ENGINES.iter().filter(|engine| !engine.is_beside()) {
        if engine.check(&settings, out)? == Usable::Yes {
            usable = usable.or(Some(engine));
        }
    }
    match usable {
        Some(engine) => writeln!(out, "  channels    {} DMA", engine.counts().channels)?,
        None => {
            writeln!(out, "  channels    {workers} software (worker threads beside the caller)")?;
        }
    }
    for engine in ENGINES.iter().filter(|engine| engine.is_beside()) {
        engine.check(&settings, out)?;
    }
    let keys = if cpus::features().contains(Features::PROTECTION_KEYS) { "" } else { "no " };
    let cache = cpus::last_level_cache() >> 20;
    writeln!(out, "  CPU         {cache} MiB last level cache, {keys}protection keys")?;
    if let Some(engine) = usable {
        let how = CopyOptions { channels: config.channels, ..CopyOptions::default() };
        // SAFETY: `gain` hands over memory of its own.
        return gain(out, "DMA copies", |dst, src, len| unsafe {
            engine.copy(Stretch { dst, src, len }, &how)
        });
    }
    if workers == 0 {
        writeln!(
            out,
            "  gain        none: one CPU. libc keeps all copies. Widen the affinity mask"
        )?;
        return writeln!(out, "              (taskset) or the cgroup's CPU quota to change that.");
    }
    workers::start(workers);
    let how = threads::ShareOptions {
        workers,
        copy_loop: CopyLoop::Ordinary,
        share: None,
        fresh: false,
        huge: None,
    };
    // SAFETY: `gain` hands over memory of its own.
    gain(out, "worker threads", |dst, src, len| unsafe {
        threads::share(&Task { work: Work::Copy, dst, src, len }, &how).map(|_| ())
    })
}

rare! {
    fn sysconf(i32) -> isize;
}

/// Measures both ways in turn over two buffers; takes the median of each.
fn gain(
    out: &mut dyn Write,
    engine: &str,
    copy: impl Fn(usize, usize, usize) -> Result<(), Refused>,
) -> core::fmt::Result {
    const LEN: usize = 16 << 20;
    const ROUNDS: usize = 15;
    let Some((dst, src)) = pages(LEN).zip(pages(LEN)) else {
        return writeln!(out, "  gain        not measured: no memory for two buffers of 16 MiB");
    };
    let (mut alone, mut carried) = ([0u64; ROUNDS], [0u64; ROUNDS]);
    let mut refused = None;
    for round in 0..ROUNDS + 2 {
        let begun = sys::ticks();
        // SAFETY: two mappings of our own, of `LEN` bytes each.
        unsafe { original::copy(dst, src, LEN) };
        let middle = sys::ticks();
        refused = copy(dst, src, LEN).err().or(refused);
        let end = sys::ticks();
        if let Some(round) = round.checked_sub(2) {
            (alone[round], carried[round]) = (middle - begun, end - middle);
        }
    }
    write!(out, "  gain        ")?;
    match refused {
        None => {}
        Some(Refused::Busy) => {
            return writeln!(out, "not measured: refused for the moment. Look at RLIMIT_MEMLOCK.");
        }
        Some(Refused::NoChannels) => {
            return writeln!(out, "none: all channels failed, see the kernel's log");
        }
        Some(refused) => {
            writeln!(
                out,
                "none: the system refuses {engine} ({refused:?}). Look at RLIMIT_NPROC,"
            )?;
            return writeln!(out, "              the pids cgroup, and seccomp filters.");
        }
    }
    alone.sort_unstable();
    carried.sort_unstable();
    let ratio = alone[ROUNDS / 2] as f64 / carried[ROUNDS / 2] as f64;
    write!(out, "a 16 MiB copy runs at {ratio:.2} x libc")?;
    if ratio >= 1.2 {
        return writeln!(out);
    }
    writeln!(out, ": little.\n              Are the other CPUs busy? Copies then stay with libc.")
}

fn pages(len: usize) -> Option<usize> {
    let at = sys::map(len)?;
    // SAFETY: ours, writable; written so that no page is the shared zero page.
    unsafe { libc::memset(at.cast::<c_void>(), 0x5a, len) };
    Some(at as usize)
}
