//! Cost of one copy under the library: system calls, descriptors, pins, bytes by the CPU.
//!
//! Time means nothing on an emulated machine; counts do.

use super::*;
use crate::faults::expect_even_bytes;
use crate::trace;

const COPIES: usize = 12;
/// Number of first copies, which open the file, map the words and the like.
const WARM: usize = 2;

/// Roles with memory as the kernel allocates it, where many pages are contiguous at first, and as
/// it is after a while.
const ROLES: [&str; 2] = ["copies", "scattered"];

struct Row {
    role: &'static str,
    len: usize,
    calls: Vec<Vec<u64>>,
    copies: u64,
    /// Counts of all copies together.
    pieces: u64,
    descriptors: u64,
    extents: u64,
    pins: u64,
    cpu_bytes: u64,
}

/// Measures copies; `share`: the part that the caller copies itself meanwhile.
fn measure(role: &'static str, len: usize, copies: usize, share: &str) -> Outcome<Row> {
    let (said, printed) = (Folder::new("said")?, Folder::new("printed")?);
    let output = printed.path().join("stdout");
    let mut command = shim::victim(role, &[&copies.to_string(), &len.to_string()])?;
    // The emulated engine is slow, and a caller whose share is not fixed would sleep: a call.
    shim::report_into(&mut command, &said).env("ADMA_CPU_SHARE", share);
    let before = Statistics::now()?;
    let calls = trace::calls_between_marks(command.stdout(File::create(&output)?))?;
    let moved = Statistics::now()?.since(&before);
    ensure_eq!(calls.len(), copies, "pairs of marks");
    let report = shim::report_in(&said)?;
    let text = fs::read_to_string(&output)?;
    let Ok(extents) = text.trim().parse() else { fail!("not a number of extents: {text:?}") };
    Ok(Row {
        role,
        len,
        calls,
        copies: report.number("/paths/engine/calls")?,
        pieces: moved.copies,
        descriptors: moved.descriptors,
        extents,
        pins: moved.pins,
        cpu_bytes: report.libc_bytes()? + report.number("/channel_bytes/caller")?,
    })
}

const MASK: i64 = libc::SYS_rt_sigprocmask;

impl Row {
    /// Checks that a warm copy makes these calls only, and those that ask for real-time scheduling:
    /// once a millisecond, so before every traced copy. On a busy host the engine is sometimes so
    /// late that more calls wait for it.
    fn expect_calls(&self, least: &[i64]) -> Outcome {
        const ASKS: [i64; 3] = [libc::SYS_gettid, libc::SYS_prctl, libc::SYS_sched_getscheduler];
        let calls = &self.calls[WARM..];
        let is_least = |calls: &&Vec<u64>| {
            calls
                .iter()
                .map(|&call| call as i64)
                .filter(|call| !ASKS.contains(call))
                .eq(least.to_vec())
        };
        let alone = calls.iter().filter(is_least).count();
        println!("{} bytes: {calls:?}", self.len);
        ensure!(
            4 * alone >= calls.len(),
            "only {alone} of {} copies of {} bytes took {} calls",
            calls.len(),
            self.len,
            least.len()
        );
        Ok(())
    }

    /// Checks for one descriptor per extent, some more per copy, and those of the first copy.
    fn expect_descriptors(&self, found: u64, more: u64, first: u64) -> Outcome {
        let Row { copies, extents, len, .. } = self;
        ensure!(*copies > 0, "nothing was carried");
        let most = (extents + more) * copies + first;
        ensure!(
            found <= most,
            "{found} descriptors for {copies} copies of {len} bytes in {extents} extents, want at \
             most {most}"
        );
        Ok(())
    }
}

fn print(rows: &[Row]) {
    println!(
        "memory       bytes  copies  calls  pieces  descriptors  extents  pins/page/side  CPU bytes"
    );
    for row in rows {
        let per_copy = |count: u64| count as f64 / row.copies.max(1) as f64;
        let warm = row.calls.get(WARM..).unwrap_or_default();
        let calls: usize = warm.iter().map(Vec::len).sum();
        println!(
            "{:9} {:8} {:7} {:6.2} {:7.2} {:12.2} {:8} {:15.3} {:10.0}",
            row.role,
            row.len,
            row.copies,
            calls as f64 / warm.len().max(1) as f64,
            per_copy(row.pieces),
            per_copy(row.descriptors),
            row.extents,
            per_copy(row.pins) / (2 * row.len / PAGE) as f64,
            per_copy(row.cpu_bytes),
        );
    }
}

const SIZES: [usize; 3] = [64 << 10, 1 << 20, 4 << 20];

/// One for each extent, and one word for each channel, of the first copy: its pages are present and
/// are pinned without releasing places on the channels.
pub fn count_of_descriptors_is_extents_and_channels() -> Outcome {
    let channels = u64::from(Device::open()?.info()?.channels);
    let measured = SIZES.map(|len| measure(ROLES[1], len, 1, "0"));
    let rows: Vec<Row> = measured.into_iter().collect::<Outcome<_>>()?;
    print(&rows);
    rows.iter().try_for_each(|row| row.expect_descriptors(row.descriptors, channels, 0))
}

pub fn count_of_calls_descriptors_and_pins_is_least() -> Outcome {
    let channels = u64::from(Device::open()?.info()?.channels);
    let measured = ROLES.map(|role| SIZES.map(|len| measure(role, len, COPIES, "0")));
    let rows: Vec<Row> = measured.into_iter().flatten().collect::<Outcome<_>>()?;
    print(&rows);
    for row in &rows {
        let len = row.len;
        ensure!(
            row.copies as usize >= COPIES - WARM,
            "{} of {COPIES} copies by the engine",
            row.copies
        );
        // One call asks whose process it is, one submits, and signals are held meanwhile.
        row.expect_calls(&[libc::SYS_getpid, MASK, libc::SYS_ioctl, MASK])?;
        // A word for each piece's channel, and the data. Where pages lie together a piece may
        // end within an extent and cut it in two: one less than there are channels. The first
        // copy is cut as it is pinned as well: where ranges of the destination end, and after the
        // first pages. Two for each channel are more than that takes.
        let first = (len / RANGE) as u64 + 2 * channels;
        ensure!(
            row.pieces <= channels * row.copies,
            "{} pieces for {} copies of {len} bytes",
            row.pieces,
            row.copies
        );
        row.expect_descriptors(row.descriptors - row.pieces, channels - 1, first)?;
        if row.role == ROLES[1] {
            row.expect_descriptors(row.descriptors, channels, 0)?;
        }
        // Once for each page and side, and not again: they stay pinned. A page more on either
        // side where the buffers do not begin with one.
        let pages = (2 * len / PAGE) as u64;
        ensure!(
            (pages..=pages + 2).contains(&row.pins),
            "{} pins for {} copies of {len} bytes",
            row.pins,
            row.copies
        );
        let by_libc = (COPIES as u64 - row.copies) * len as u64;
        ensure_eq!(row.cpu_bytes, by_libc, "bytes by the CPU, of {len} bytes each");
    }
    Ok(())
}

/// The two calls check that our fault handler is in front of the program's, for both signals.
pub fn count_of_calls_with_a_share_of_the_callers_is_two_more() -> Outcome {
    const LOOK: i64 = libc::SYS_rt_sigaction;
    let row = measure(ROLES[0], 1 << 20, COPIES, "0.25")?;
    print(std::slice::from_ref(&row));
    ensure!(row.cpu_bytes >= row.copies << 18, "{} bytes by the CPU", row.cpu_bytes);
    row.expect_calls(&[libc::SYS_getpid, LOOK, LOOK, MASK, libc::SYS_ioctl, MASK])
}

pub fn count_of_bytes_is_even_over_channels() -> Outcome {
    expect_even_bytes(|| {
        let mut command = shim::victim("copies", &["16", "1048576"])?;
        let report = shim::only_report(command.env("ADMA_CPU_SHARE", "0"))?;
        ensure!(report.engine_bytes()? > 0, "nothing was carried");
        Ok(())
    })
}

/// Kept ranges of one process are not visible to others.
pub fn count_of_lines_is_reported_and_follows_the_knob() -> Outcome {
    let report = |keep: &str| {
        let mut command = shim::victim("copies", &[&COPIES.to_string(), "1048576"])?;
        command.env("ADMA_CPU_SHARE", "0").env("ADMA_KEEP", keep);
        shim::only_report(&mut command)
    };
    let kept = report("auto")?;
    let (hits, cold) = (kept.number("/ioat/lines/hits")?, kept.number("/ioat/lines/misses")?);
    let pinned = kept.number("/ioat/pinned_pages")?;
    println!("{hits} hits, {cold} misses, {pinned} pages pinned");
    ensure!(cold > 0 && hits > 4 * cold, "{hits} hits and {cold} misses");
    for part in ["submission", "engine", "completion"] {
        let nanos = kept.number(&format!("/ioat/costs_ns/{part}"))?;
        println!("{part}: {nanos} ns");
        ensure!(nanos > 0, "no time was spent for {part}");
    }
    let alone = report("0")?;
    ensure_eq!(alone.number("/ioat/lines/hits")?, 0, "hits where nothing is kept");
    let each = alone.number("/ioat/pinned_pages")?;
    ensure!(each > 4 * pinned, "{each} pages pinned where nothing is kept, {pinned} otherwise");
    Ok(())
}

/// A channel may be a device of its own, behind an IOMMU of its own: pages are mapped for each that
/// reaches them, and mapping costs more there than copying. A repeated copy uses the same channels.
pub fn count_of_maps_is_zero_from_the_second_copy_on() -> Outcome {
    const LEN: usize = 4 << 20;
    let maps = Probe::function("dma_map_page_attrs")?;
    let pair = Pair::new(LEN)?;
    let mut counts = Vec::new();
    for _ in 0..4 {
        let before = maps.count()?;
        pair.device.carry(&mut pair.whole().spread(7))?;
        counts.push(maps.count()? - before);
    }
    println!("maps of {LEN} bytes in seven pieces: {counts:?}");
    let pages = 2 * LEN / PAGE;
    // A line at the edge of two pieces is mapped for two devices.
    ensure!((1..=pages as u64 + 16 * 64).contains(&counts[0]), "{} maps at first", counts[0]);
    ensure_eq!(counts[1..], [0, 0, 0], "maps of later copies");
    Ok(())
}

/// Work of the calling thread in the kernel for one copy whose pages are pinned, as the library
/// submits it: a piece for each channel.
pub fn count_of_work_for_a_warm_copy_is_small() -> Outcome {
    const LEN: usize = 4 << 20;
    const TIMES: u64 = 16;
    let bench = Bench::new()?;
    let functions = ["_raw_spin_lock", "_raw_spin_lock_irqsave", "_raw_spin_lock_bh", "mutex_lock"];
    let functions = functions.into_iter().chain(["ioat_issue_pending"]).map(Probe::function);
    let functions = functions.collect::<Outcome<Vec<_>>>()?;
    let events = ["kmem/kmalloc", "kmem/kmalloc_node", "kmem/kmem_cache_alloc"];
    let events = events.map(Probe::event).into_iter().collect::<Outcome<Vec<_>>>()?;
    let now = || -> Outcome<Vec<u64>> {
        let allocations = events.iter().flatten().map(Probe::count).sum::<Outcome<u64>>()?;
        let mut counts = vec![allocations, Statistics::now()?.descriptors, bench.interrupts()?];
        for function in &functions {
            counts.push(function.count()?);
        }
        Ok(counts)
    };
    println!(
        "pages  allocations  descriptors  interrupts  spin locks  irqsave  bh  mutexes  doorbells"
    );
    for is_small in [true, false] {
        let pair = match is_small {
            true => Pair::scattered(LEN)?,
            false => {
                let huge = || Region::of_kind(PageKind::Huge, LEN);
                Pair::between(huge()?, huge()?)?
            }
        };
        let words = pair.device.all_words()?;
        for _ in 0..3 {
            pair.carry(4)?;
        }
        // Measuring takes locks and allocations, too.
        let work = || -> Outcome<Vec<u64>> {
            let (first, second) = (now()?, now()?);
            for _ in 0..TIMES {
                wait_by_words(&words, &pair.start(4)?)?;
            }
            let third = now()?;
            let least = |at: usize| (third[at] + first[at]).saturating_sub(2 * second[at]);
            Ok((0..third.len()).map(least).collect())
        };
        // Interrupts in this thread's time may allocate for others: the least of three counts.
        let counts = [work()?, work()?, work()?].into_iter().min_by_key(|counts| counts[0]);
        let counts = counts.unwrap_or_default();
        let each: Vec<f64> = counts.iter().map(|&count| count as f64 / TIMES as f64).collect();
        println!("{} {each:.1?}", if is_small { "4 KiB" } else { "2 MiB" });
        let [allocations, descriptors, _, plain, of_channels, ..] = counts[..] else {
            fail!("counts are missing: {counts:?}")
        };
        // No allocation of its own; the driver and the watch have some now and then.
        ensure!(allocations < 2 * TIMES, "{allocations} allocations for {TIMES} copies");
        if is_small {
            // Locks are taken per batch, not per transfer or completion.
            let locks = plain.max(of_channels);
            ensure!(3 * locks < descriptors, "{locks} locks for {descriptors} descriptors");
        }
        pair.expect_copied()?;
    }
    Ok(())
}
