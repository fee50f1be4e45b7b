//! `adma check`: reports what this machine offers, and what to do about what is missing.

use crate::backend::copy_loop::CopyLoop;
use crate::backend::gpu::{self, GPU};
use crate::backend::ioat::{helper, queues};
use crate::backend::threads::task::{Task, Work};
use crate::backend::threads::workers;
use crate::backend::{Refused, ioat, libc as original, threads};
use crate::config::{Backend, Config};
use crate::os::cpus::{self, Features};
use crate::os::lookup::rare;
use crate::os::{sys, text};
use alloc::string::String;
use core::ffi::{CStr, c_char, c_void};
use core::fmt::Write;
use core::sync::atomic::Ordering;

/// Prints to standard output and ends the process: the program of this run is only a host.
pub fn run(config: &Config, ioat: &ioat::Engine) -> ! {
    let mut out = String::new();
    let _ = describe(config, ioat, &mut out); // a `String` takes everything
    let failed = text::write_all(libc::STDOUT_FILENO, out.as_bytes());
    // SAFETY: ends the process.
    unsafe { libc::_exit(i32::from(failed != 0)) }
}

fn describe(config: &Config, ioat: &ioat::Engine, out: &mut dyn Write) -> core::fmt::Result {
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
    let workers = config.channels.unwrap_or(cpus - 1).min(workers::MOST_WORKERS);
    let is_wanted = matches!(config.backend, Backend::Auto | Backend::Dma);
    let has_helper =
        is_wanted && sys::NoNewFilter::look().is_some_and(|allowed| ioat.start(allowed));
    helper(is_wanted, ioat, out)?;
    queues::write_unusable(out)?;
    if has_helper {
        writeln!(out, "  channels    {} DMA", ioat.channels())?;
    } else {
        writeln!(out, "  channels    {workers} software (worker threads beside the caller)")?;
    }
    let has_card = card(config, out)?;
    let keys = if cpus::features().contains(Features::PROTECTION_KEYS) { "" } else { "no " };
    let cache = cpus::last_level_cache() >> 20;
    writeln!(out, "  CPU         {cache} MiB last level cache, {keys}protection keys")?;
    if has_card {
        rate(out)?;
    }
    if has_helper {
        let how = ioat::Options { channels: config.channels, share: None, spins: false };
        // SAFETY: `gain` hands over memory of its own.
        return gain(out, "DMA copies", |dst, src, len| unsafe { ioat.copy(dst, src, len, &how) });
    }
    if workers == 0 {
        writeln!(
            out,
            "  gain        none: one CPU. libc keeps all copies. Widen the affinity mask"
        )?;
        return writeln!(out, "              (taskset) or the cgroup's CPU quota to change that.");
    }
    workers::start(workers);
    let how = threads::Options {
        workers,
        pieces: threads::Pieces::All(CopyLoop::Ordinary),
        share: None,
        fresh: false,
        huge: None,
    };
    // SAFETY: as above.
    gain(out, "worker threads", |dst, src, len| unsafe {
        threads::share(&Task { work: Work::Copy, dst, src, len }, &how).map(|_| ())
    })
}

/// Reports whether the helper is loaded and permitted, and what to do about it.
fn helper(is_wanted: bool, ioat: &ioat::Engine, out: &mut dyn Write) -> core::fmt::Result {
    write!(out, "  DMA         ")?;
    if !is_wanted {
        return writeln!(out, "not asked: ADMA_BACKEND says so");
    }
    match ioat.why_not() {
        0 => {
            let (held, usable) = (ioat.channels(), ioat.usable());
            writeln!(out, "helper loaded, {usable} of {held} channels usable")?;
            let mut room = [0; queues::ROOM];
            let held = sys::NoNewFilter::look().map(|allowed| queues::held(&mut room, allowed));
            for (driver, count, first, last) in queues::drivers(held.unwrap_or_default()) {
                writeln!(out, "              {count} of {driver}: {first} to {last}")?;
            }
            Ok(())
        }
        libc::ENOENT => writeln!(
            out,
            "helper not loaded (no /dev/adma); worker threads serve instead.\n              \
             With such hardware: package adma-dkms, see adma(7)."
        ),
        libc::EACCES => {
            let mut room = [0; 1024];
            let group = group_of_helper(&mut room).unwrap_or("of /dev/adma");
            writeln!(out, "helper loaded, but no permission for /dev/adma: join the group")?;
            writeln!(out, "              {group} (usermod -a -G {group} USER), and log in again.")
        }
        libc::ENODEV => {
            writeln!(out, "helper loaded, but no channel is usable: see the kernel's log")
        }
        libc::ENOTTY => writeln!(out, "/dev/adma is not the helper; worker threads serve instead"),
        libc::EPROTO => {
            writeln!(out, "helper loaded, but of another version: build and load it again")
        }
        errno => {
            let why = text::meaning(errno);
            writeln!(out, "/dev/adma cannot be used:\n              {why} (errno {errno})")
        }
    }
}

/// Reports which card there is, if one is wanted, or why none. Opening it takes a while.
fn card(config: &Config, out: &mut dyn Write) -> Result<bool, core::fmt::Error> {
    let Some(settings) = config.gpu() else { return Ok(false) };
    gpu::start(&settings);
    GPU.want();
    while !GPU.is_settled() {
        sys::sleep(1_000_000);
    }
    write!(out, "  GPU         ")?;
    if GPU.is_up() {
        let (name, engines) = GPU.card();
        writeln!(out, "{name}, {engines} copy engines")?;
        let (channels, each) = (gpu::CHANNELS, gpu::BUFFER >> 20);
        write!(out, "              {channels} channels, ")?;
        match GPU.buffers.load(Ordering::Relaxed) {
            true => writeln!(out, "bounce buffer {channels} x {each} MiB")?,
            false => writeln!(out, "without bounce buffers")?,
        }
        return Ok(true);
    }
    writeln!(out, "not used: {}", GPU.why_not())?;
    Ok(false)
}

/// Measures the card with 64 MiB between warm buffers.
fn rate(out: &mut dyn Write) -> core::fmt::Result {
    const LEN: usize = 64 << 20;
    let buffers = pages(LEN).zip(pages(LEN));
    let Some((dst, src)) = buffers.filter(|&(dst, src)| GPU.prepare([(dst, LEN), (src, LEN)]))
    else {
        let why = "two buffers of 64 MiB could not be registered";
        return writeln!(out, "  GPU rate    not measured: {why}");
    };
    let how = gpu::Options { share: Some(0.0), spins: true, spare_cpus: true };
    let mut best = u64::MAX;
    for _ in 0..10 {
        let begun = sys::nanoseconds();
        // SAFETY: two mappings of our own, of `LEN` bytes each.
        if unsafe { GPU.copy(dst, src, LEN, &how) }.is_ok() {
            best = best.min(sys::nanoseconds() - begun);
        }
    }
    if best == u64::MAX {
        return writeln!(out, "  GPU rate    none: {}", GPU.why_not());
    }
    writeln!(out, "  GPU rate    {:.1} GB/s for 64 MiB", LEN as f64 / best as f64)
}

rare! {
    fn sysconf(i32) -> isize;
    fn getgrgid_r(u32, *mut libc::group, *mut c_char, usize, *mut *mut libc::group) -> i32;
}

/// Returns the name of the group that may use the helper.
fn group_of_helper(room: &mut [u8]) -> Option<&str> {
    // SAFETY: all zeros is a valid `stat` and a valid `group`.
    let (mut stat, mut group): (libc::stat, libc::group) = unsafe { core::mem::zeroed() };
    let mut found = core::ptr::null_mut();
    // SAFETY: a terminated path; the results are written where there is room for them.
    unsafe {
        let (path, at) = (helper::PATH.as_ptr() as usize, &raw mut stat as usize);
        if sys::syscall(libc::SYS_stat, [path, at, 0, 0, 0, 0]) != 0 {
            return None;
        }
        let (start, len) = (room.as_mut_ptr().cast(), room.len());
        getgrgid_r()?(stat.st_gid, &mut group, start, len, &mut found);
    }
    if found.is_null() {
        return None;
    }
    // SAFETY: found, so its name is terminated and lies in `room`.
    unsafe { CStr::from_ptr(group.gr_name) }.to_str().ok()
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
