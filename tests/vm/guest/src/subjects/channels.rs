//! Which channel takes what, and how much can be under way.

use crate::device::*;
use crate::effort::{PATIENCE, eventually};
use crate::faults::{Bench, expect_even_bytes};
use crate::kernel::{Parameter, Statistics, has_checkers};
use crate::memory::{PAGE, Region};
use crate::process::fork;
use crate::verdict::{Context, Outcome};
use std::time::{Duration, Instant};

tests! {
    channel_of_every_function_is_held
    channel_near_the_pages_is_taken
    channel_named_takes_the_piece
    channel_any_spreads_and_follows_the_place
    channel_bytes_are_spread_evenly
    channel_slots_full_is_eagain
    channel_bytes_under_way_are_limited =
        || under_way_is_limited("max_bytes", 256 << 10, 1, |info, bytes| bytes <= info.max_bytes);
    // Nor do more files help.
    channel_bytes_of_one_user_are_limited =
        || under_way_is_limited("max_bytes", 256 << 10, 3, |info, bytes| bytes <= info.max_bytes);
    channel_pages_under_way_are_limited = || under_way_is_limited("max_pages", 128, 1, |info, bytes| {
        2 * bytes / PAGE as u64 <= info.max_pages
    });
    channel_bytes_queued_are_limited
    channel_queue_longer_than_the_timeout_is_no_failure
    channel_with_a_stuck_submission_is_not_silent
    channel_wait_under_way_is_eagain_or_etimedout
}

/// Real machines show one channel in each PCI function, and eight functions for each socket.
fn channel_of_every_function_is_held() -> Outcome {
    let bench = Bench::new()?;
    let device = Device::open()?;
    let mut places = bench.find_channels(&device)?;
    places.sort();
    places.dedup();
    ensure_eq!(places.len(), bench.count(), "channels that carry");
    Ok(())
}

/// Pages of one node are copied by channels of that node, wherever the caller runs.
fn channel_near_the_pages_is_taken() -> Outcome {
    const LEN: usize = 64 * PAGE;
    let bench = Bench::new()?;
    let nodes: Vec<i32> = bench.bytes_by_node()?.into_keys().collect();
    if nodes.len() < 2 {
        skip!("the channels are on one node");
    }
    let device = Device::open()?;
    for node in nodes {
        let (dst, src) = (Region::anonymous(LEN)?, Region::anonymous(LEN)?);
        for region in [&dst, &src] {
            region.bind_to_node(node as u32).context("mbind")?;
            region.fill(node as u64);
        }
        let before = bench.bytes_by_node()?;
        for round in 0..3 {
            let mut pieces = Piece::new(&dst, 0, &src, 0, LEN).split(16, 1);
            pieces.iter_mut().for_each(|piece| piece.channel = CHANNEL_ANY);
            device.carry(&mut pieces).context(format_args!("node {node}, round {round}"))?;
        }
        dst.expect(node as u64)?;
        let moved: Vec<(i32, u64)> =
            bench.bytes_by_node()?.into_iter().map(|(n, bytes)| (n, bytes - before[&n])).collect();
        println!("pages on node {node}: bytes by node {moved:?}");
        for (other, bytes) in moved {
            ensure_eq!(bytes > 0, other == node, "bytes of node {node} on {other}: {bytes}");
        }
    }
    Ok(())
}

fn channel_named_takes_the_piece() -> Outcome {
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let (dst, src) = (Region::of_small_pages(2 * PAGE)?, Region::of_small_pages(2 * PAGE)?);
    let words = device.all_words()?;
    for channel in 0..channels {
        src.fill(channel.into());
        let mut piece = [Piece::new(&dst, 0, &src, 0, 2 * PAGE).on(channel)];
        let request = device.carry(&mut piece)?;
        ensure_eq!(piece[0].channel, channel, "channel");
        // On a busy host a submission may take too long to trust a word.
        if request.channels != 0 {
            ensure_eq!(request.channels, 1 << channel, "channels at work");
            ensure_eq!(words[channel as usize].of(request.slot), request.id, "word");
        }
        dst.expect(channel.into())?;
    }
    Ok(())
}

/// The pieces of a request are spread over all channels, of several nodes over those of the
/// pages; the same request has the same ones again, for which its pages are mapped.
fn channel_any_spreads_and_follows_the_place() -> Outcome {
    let device = Device::open()?;
    let channels = device.info()?.channels as usize;
    let near = channels / Bench::new()?.bytes_by_node()?.len();
    let (dst, src) = (Region::of_small_pages(32 * PAGE)?, Region::of_small_pages(32 * PAGE)?);
    let carry = |at: usize, count: usize| -> Outcome<Vec<u32>> {
        let piece = |i| Piece::new(&dst, (at + i) * PAGE, &src, (at + i) * PAGE, PAGE);
        let mut pieces: Vec<Piece> = (0..count).map(piece).collect();
        device.carry(&mut pieces)?;
        Ok(pieces.iter().map(|piece| piece.channel).collect())
    };
    for at in [0, 1, 7] {
        let first = carry(at, near)?;
        let mut each = first.clone();
        each.sort();
        each.dedup();
        ensure_eq!(each.len(), near, "channels of {near} pieces: {first:?}");
        for _ in 0..3 {
            ensure_eq!(carry(at, near)?, first, "channels of the same pieces");
            ensure_eq!(carry(at, 1)?, first[..1], "channel of the first one alone");
        }
    }
    Ok(())
}

fn channel_bytes_are_spread_evenly() -> Outcome {
    expect_even_bytes(|device| {
        let len = 256 * PAGE;
        let (dst, src) = (Region::of_small_pages(len)?, Region::of_small_pages(len)?);
        for _ in 0..4 {
            let whole = Piece::new(&dst, 0, &src, 0, len);
            let mut pieces = whole.split(MAX_PIECES, 1);
            pieces.iter_mut().for_each(|piece| piece.channel = CHANNEL_ANY);
            device.carry(&mut pieces)?;
        }
        Ok(())
    })
}

fn channel_slots_full_is_eagain() -> Outcome {
    let bench = Bench::new()?;
    // A channel that is busy for seconds is not silent.
    let _parameter = Parameter::set("adma", "timeout_ms", 20_000)?;
    let device = Device::open()?;
    let len = (MAX_PIECES + SLOTS) * PAGE;
    let (dst, src) = (Region::of_small_pages(len)?, Region::of_small_pages(len)?);
    src.fill(1);
    bench.slow_down()?;
    // One channel works in order: behind a long request nothing is over before all is
    // submitted.
    let long = Piece::new(&dst, 0, &src, 0, MAX_PIECES * PAGE);
    let mut under_way = vec![device.start(&mut long.split(MAX_PIECES, 1))?];
    for i in 1..SLOTS {
        let at = (MAX_PIECES + i) * PAGE;
        let mut piece = [Piece::new(&dst, at, &src, at, PAGE).on(0)];
        under_way.push(device.start(&mut piece).context(format_args!("request {i}"))?);
    }
    let one_more = Piece::new(&dst, MAX_PIECES * PAGE, &src, MAX_PIECES * PAGE, PAGE);
    let Submitted { result, out } = device.submit(&mut [one_more]);
    ensure_eq!(device.wait(under_way[0].id, Duration::ZERO), Err(EAGAIN), "the first request");
    ensure_eq!(result, Err(EAGAIN), "request {}", SLOTS + 1);
    ensure_eq!(out.accepted, 0, "accepted");
    let mut slots: Vec<u32> = under_way.iter().map(|request| request.slot).collect();
    slots.sort();
    ensure_eq!(slots, (0..SLOTS as u32).collect::<Vec<_>>(), "slots of requests under way");
    bench.clear()?;
    for request in &under_way {
        ensure_eq!(device.end(request)?, 0, "failed pieces");
    }
    // And there is room again.
    device.carry(&mut [one_more])?;
    dst.expect(1).context("all of them")
}

/// However much is asked for, no more is taken than was promised.
fn under_way_is_limited(
    name: &str,
    limit: u64,
    files: usize,
    is_kept: fn(&Info, u64) -> bool,
) -> Outcome {
    const LEN: usize = 64 << 10;
    let bench = Bench::new()?;
    let _parameter = Parameter::set("adma", name, limit)?;
    let devices: Vec<Device> =
        (0..files).map(|_| Device::keeping_nothing()).collect::<Outcome<_>>()?;
    let info = devices[0].info()?;
    let (dst, src) = (Region::of_small_pages((SLOTS + 1) * LEN)?, Region::of_small_pages(LEN)?);
    let mut under_way = Vec::new();
    bench.slow_down()?;
    let refused = loop {
        let piece = Piece::new(&dst, under_way.len() * LEN, &src, 0, LEN);
        let device = &devices[under_way.len() % files];
        let Submitted { result, out } = device.submit(&mut [piece]);
        match result {
            Ok(()) => under_way.push((device, out)),
            Err(errno) => break errno,
        }
        // What was over meanwhile counts no more; channels come to an end in any order.
        let is_under_way =
            |(device, out): &&(&Device, Submit)| device.wait(out.id, Duration::ZERO) == Err(EAGAIN);
        let bytes = (under_way.iter().filter(is_under_way).count() * LEN) as u64;
        ensure!(bytes > 0, "too quick to show anything");
        ensure!(is_kept(&info, bytes), "{bytes} bytes are under way: {info:?}");
    };
    ensure_eq!(refused, EAGAIN, "beyond {name}");
    ensure!(!under_way.is_empty(), "nothing was taken");
    bench.clear()?;
    for (device, request) in &under_way {
        ensure_eq!(device.end(request)?, 0, "failed pieces");
    }
    // There is room again.
    devices[0].carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)]).map(|_| ())
}

/// A bound for how long a copy waits behind those of others.
fn channel_bytes_queued_are_limited() -> Outcome {
    const DEPTH: usize = 16 * PAGE;
    let bench = Bench::new()?;
    let _depth = Parameter::set("adma", "depth", DEPTH as u64)?;
    let device = Device::open()?;
    let len = MAX_PIECES * PAGE;
    let (dst, src) = (Region::of_scattered_pages(len)?, Region::of_scattered_pages(len)?);
    let mut pieces = Piece::new(&dst, 0, &src, 0, len).split(MAX_PIECES, 1);
    // Pinned, so that to submit them takes no time.
    device.carry(&mut pieces)?;
    src.fill(1);
    bench.slow_down_one()?;
    let Submitted { result, out } = device.submit(&mut pieces);
    ensure_eq!(result, Err(EBUSY), "{MAX_PIECES} pages for a queue of 16");
    let queued = out.accepted as usize * PAGE;
    // What was over meanwhile is not queued any more.
    ensure!((DEPTH..2 * DEPTH).contains(&queued), "{queued} bytes were queued");
    ensure_eq!(device.end(&out)?, 0, "failed pieces");
    dst.expect_part(0, queued, 1)?;
    bench.clear()?;
    // More than fits, on a channel that moves: it waits for room.
    device.carry(&mut pieces)?;
    dst.expect(1).context("all of it")
}

/// A queue is no failure: the channel moves all the time, though the last of it is answered
/// long after the timeout.
fn channel_queue_longer_than_the_timeout_is_no_failure() -> Outcome {
    // The pieces take three times as long. A busy host may stop the device for hundreds of ms.
    const TIMEOUT: Duration = Duration::from_millis(600);
    let bench = Bench::new()?;
    let _timeout = Parameter::set("adma", "timeout_ms", TIMEOUT.as_millis() as u64)?;
    let device = Device::open()?;
    let len = MAX_PIECES * PAGE;
    let (dst, src) = (Region::of_scattered_pages(len)?, Region::of_scattered_pages(len)?);
    src.fill(1);
    bench.slow_down_one()?;
    let begun = Instant::now();
    let long = device.start(&mut Piece::new(&dst, 0, &src, 0, len).split(MAX_PIECES, 1))?;
    ensure!(begun.elapsed() < TIMEOUT * 2, "it took {:?} to submit", begun.elapsed());
    ensure_eq!(device.end(&long)?, 0, "failed pieces");
    println!("it took {:?}", begun.elapsed());
    ensure!(begun.elapsed() > 3 * TIMEOUT, "too quick to show anything");
    let info = device.info()?;
    ensure_eq!(info.usable, info.channels, "usable channels");
    Ok(dst.expect(1)?)
}

/// A submission that waits for a page holds no place of the channel: the words of others go on
/// to prove their data.
fn channel_with_a_stuck_submission_is_not_silent() -> Outcome {
    if has_checkers() {
        skip!("Linux 6.1 cannot wait for such a page when it is pinned for long, and says so");
    }
    let device = Device::open()?;
    let (dst, src) = (Region::of_small_pages(PAGE)?, Region::of_small_pages(PAGE)?);
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, PAGE).on(0)])?;
    let before = Statistics::now()?;
    let stuck = fork(|| {
        let own = Device::open()?;
        let (to, from) = (Region::of_small_pages(4 * PAGE)?, Region::anonymous(4 * PAGE)?);
        from.set(0, 1);
        let Some(_faults) = from.leave_faults_unanswered()? else {
            skip!("no userfaultfd here");
        };
        own.submit(&mut Piece::new(&to, 0, &from, 0, 4 * PAGE).split(4, 1));
        fail!("a fault without an answer was passed")
    })?;
    // Both sides of the first piece, and the destination of the second.
    let begun = || Statistics::now().is_ok_and(|now| now.since(&before).pins >= 3);
    ensure!(eventually(PATIENCE, begun), "nothing was begun: no userfaultfd here?");
    std::thread::sleep(Duration::from_millis(300));
    // On a busy host a submission may take too long to trust a word.
    let mut silent = 0;
    for _ in 0..20 {
        let request = device.carry(&mut [Piece::new(&dst, 0, &src, 0, PAGE).on(0)])?;
        silent += usize::from(request.channels == 0);
    }
    println!("{silent} of 20 had no word");
    stuck.kill(libc::SIGKILL);
    ensure!(
        silent < 10,
        "{silent} of 20 copies had no word because of another process's page fault"
    );
    Ok(())
}

fn channel_wait_under_way_is_eagain_or_etimedout() -> Outcome {
    let bench = Bench::new()?;
    let device = Device::open()?;
    let (dst, src) = (Region::of_small_pages(4 * PAGE)?, Region::of_small_pages(4 * PAGE)?);
    bench.slow_down()?;
    // Several pieces on one channel: at least as many times 30 ms.
    let mut pieces = Piece::new(&dst, 0, &src, 0, 4 * PAGE).split(4, 1);
    let request = device.start(&mut pieces)?;
    let begun = Instant::now();
    ensure_eq!(device.wait(request.id, Duration::ZERO), Err(EAGAIN), "a look");
    let short = Duration::from_millis(10);
    ensure_eq!(device.wait(request.id, short), Err(ETIMEDOUT), "a short wait");
    ensure!(begun.elapsed() >= short, "it waited {:?}", begun.elapsed());
    ensure_eq!(device.end(&request)?, 0, "failed pieces");
    // A very long wait is a wait, not an overflow.
    ensure_eq!(device.wait(request.id, Duration::from_nanos(u64::MAX)), Ok(0), "after the end");
    let request = device.start(&mut [Piece::new(&dst, 0, &src, 0, PAGE)])?;
    ensure_eq!(device.wait(request.id, Duration::from_nanos(u64::MAX)), Ok(0), "a long wait");
    Ok(())
}
