//! `preload.sh --check`: what this machine offers, and what to do about what is missing.

use crate::backend::kernel::Kernel;
use crate::backend::{crew, libc as original, manner::Faults, threads};
use crate::config::Config;
use crate::{cpus, sys};
use core::ffi::c_void;
use std::fmt::Write;

/// Prints to standard output and ends the process: the program of this run is only a host.
pub fn run(config: &Config) -> ! {
    let mut out = String::new();
    let _ = describe(config, &mut out); // a `String` takes everything
    let failed = sys::write_all(libc::STDOUT_FILENO, out.as_bytes());
    // SAFETY: ends the process.
    unsafe { libc::_exit(i32::from(failed != 0)) }
}

fn describe(config: &Config, out: &mut dyn Write) -> std::fmt::Result {
    let limits = cpus::Limits::now();
    let (cpus, affinity) = (limits.cpus(), limits.affinity);
    // SAFETY: asks for a number.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    writeln!(out, "adma {}", env!("CARGO_PKG_VERSION"))?;
    write!(out, "  CPUs        {cpus} for this process: {online} online, {affinity} by affinity")?;
    match limits.quota {
        Some(quota) => writeln!(out, ", {quota:.1} by cgroup quota")?,
        None => writeln!(out, ", no cgroup quota")?,
    }
    helper(out)?;
    let workers = config.channels.unwrap_or(cpus - 1).min(crew::MOST_WORKERS);
    writeln!(out, "  channels    {workers} software (worker threads beside the caller)")?;
    let features = cpus::features();
    write!(out, "  CPU         ")?;
    write!(out, "{} MiB last level cache", cpus::last_level_cache() >> 20)?;
    for (has, name) in [(features.protection_keys, "protection keys"), (features.umwait, "umwait")]
    {
        write!(out, ", {}{name}", if has { "" } else { "no " })?;
    }
    writeln!(out)?;
    if workers == 0 {
        writeln!(
            out,
            "  gain        none: one CPU. libc keeps all copies. Widen the affinity mask"
        )?;
        return writeln!(out, "              (taskset) or the cgroup's CPU quota to change that.");
    }
    gain(workers, out)
}

/// Loaded or not, permitted or not.
fn helper(out: &mut dyn Write) -> std::fmt::Result {
    write!(out, "  I/OAT       ")?;
    // SAFETY: a terminated path.
    let access = |mode| unsafe { libc::access(c"/dev/adma".as_ptr(), mode) } == 0;
    if !access(libc::F_OK) {
        writeln!(out, "helper not loaded (no /dev/adma); worker threads serve instead")
    } else if access(libc::R_OK | libc::W_OK) {
        writeln!(out, "helper loaded; this build has no I/OAT backend yet and does not use it")
    } else {
        writeln!(out, "helper loaded, but no permission for /dev/adma: join its group")
    }
}

/// Both ways in turn over the same two buffers, the median of each.
fn gain(workers: usize, out: &mut dyn Write) -> std::fmt::Result {
    const LEN: usize = 16 << 20;
    const ROUNDS: usize = 15;
    let Some((dst, src)) = pages(LEN).zip(pages(LEN)) else {
        return writeln!(out, "  gain        not measured: no memory for two buffers of 16 MiB");
    };
    crew::start(workers);
    let how = threads::How {
        workers,
        kernel: Kernel::Libc,
        wait: threads::Wait::Auto,
        share: None,
        faults: Faults::Strict,
    };
    let (mut alone, mut shared) = ([0u64; ROUNDS], [0u64; ROUNDS]);
    let mut refused = None;
    for round in 0..ROUNDS + 2 {
        let begun = sys::ticks();
        // SAFETY: two mappings of our own, of `LEN` bytes each.
        unsafe { original::copy(dst, src, LEN) };
        let middle = sys::ticks();
        // SAFETY: as above.
        refused = unsafe { threads::copy(dst, src, LEN, &how) }.err().or(refused);
        let end = sys::ticks();
        if let Some(round) = round.checked_sub(2) {
            (alone[round], shared[round]) = (middle - begun, end - middle);
        }
    }
    if let Some(refused) = refused {
        return writeln!(
            out,
            "  gain        none: the system refuses worker threads ({refused:?}). Look at \
             RLIMIT_NPROC,\n              the pids cgroup, and seccomp filters."
        );
    }
    alone.sort_unstable();
    shared.sort_unstable();
    let ratio = alone[ROUNDS / 2] as f64 / shared[ROUNDS / 2] as f64;
    writeln!(out, "  gain        a 16 MiB copy runs at {ratio:.2} x libc")?;
    if ratio < 1.2 {
        writeln!(
            out,
            "              Little: are the other CPUs busy? Copies then stay with libc."
        )?;
    }
    Ok(())
}

fn pages(len: usize) -> Option<usize> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), len, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: ours, writable; written so that no page is the shared zero page.
    unsafe { libc::memset(at.cast::<c_void>(), 0x5a, len) };
    Some(at as usize)
}
