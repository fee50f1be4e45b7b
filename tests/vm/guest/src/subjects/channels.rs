//! Choice of channels, and limits of what can be in flight.

use super::*;
use crate::faults::expect_even_bytes;

/// Real machines have one channel in each PCI function, and eight functions for each socket.
pub fn channel_of_every_function_is_held() -> Outcome {
    let bench = Bench::new()?;
    let device = Device::open()?;
    let mut places = bench.find_channels(&device)?;
    places.sort();
    places.dedup();
    ensure_eq!(places.len(), bench.count(), "channels that carry");
    Ok(())
}

/// Pages of one node are copied by channels of that node, wherever the caller runs.
pub fn channel_near_the_pages_is_taken() -> Outcome {
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
            let mut pieces = Piece::new(&dst, 0, &src, 0, LEN).spread(16);
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

pub fn channel_named_takes_the_piece() -> Outcome {
    let pair = Pair::new(2 * PAGE)?;
    let words = pair.device.all_words()?;
    for channel in 0..pair.channels {
        pair.src.fill(channel.into());
        let mut piece = [pair.whole().on(channel)];
        let request = pair.device.carry(&mut piece)?;
        ensure_eq!(piece[0].channel, channel, "channel");
        // On a busy host a submission may take too long to trust a word.
        if request.channels != 0 {
            ensure_eq!(request.channels, 1 << channel, "channels at work");
            ensure_eq!(words[channel as usize].of(request.slot), request.id, "word");
        }
        pair.dst.expect(channel.into())?;
    }
    Ok(())
}

/// The pieces of a request are spread over all channels, of several nodes over those of the pages;
/// a repeated request gets the same ones, for which its pages are mapped.
pub fn channel_any_spreads_and_follows_the_place() -> Outcome {
    let pair = Pair::new(32 * PAGE)?;
    let near = pair.channels as usize / Bench::new()?.bytes_by_node()?.len();
    let carry = |at: usize, count: usize| -> Outcome<Vec<u32>> {
        let mut pieces = pair.part(at * PAGE, count * PAGE).spread(count);
        pair.device.carry(&mut pieces)?;
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

pub fn channel_bytes_are_spread_evenly() -> Outcome {
    expect_even_bytes(|| {
        let pair = Pair::new(256 * PAGE)?;
        for _ in 0..4 {
            pair.device.carry(&mut pair.whole().spread(MAX_PIECES))?;
        }
        Ok(())
    })
}

pub fn channel_slots_full_is_eagain() -> Outcome {
    let bench = Bench::new()?;
    // A channel that is busy for seconds is not silent.
    let _parameter = Parameter::set("adma", "timeout_ms", 20_000)?;
    let pair = Pair::new((MAX_PIECES + SLOTS) * PAGE)?;
    let device = &pair.device;
    bench.slow_down()?;
    // One channel works in order: behind a long request nothing is over before all is
    // submitted.
    let long = pair.part(0, MAX_PIECES * PAGE);
    let mut under_way = vec![device.start(&mut long.split(MAX_PIECES, 1))?];
    for i in 1..SLOTS {
        let mut piece = [pair.part((MAX_PIECES + i) * PAGE, PAGE).on(0)];
        under_way.push(device.start(&mut piece).context(format_args!("request {i}"))?);
    }
    let one_more = pair.part(MAX_PIECES * PAGE, PAGE);
    let Submitted { result, out } = device.submit(&mut [one_more]);
    ensure_eq!(device.wait(under_way[0].id, Duration::ZERO), Err(EAGAIN), "the first request");
    ensure_eq!((result, out.accepted), (Err(EAGAIN), 0), "request {}", SLOTS + 1);
    let mut slots: Vec<u32> = under_way.iter().map(|request| request.slot).collect();
    slots.sort();
    ensure_eq!(slots, (0..SLOTS as u32).collect::<Vec<_>>(), "slots of requests under way");
    bench.clear()?;
    under_way.iter().try_for_each(|request| device.finish(request))?;
    // There is room again.
    device.carry(&mut [one_more])?;
    pair.expect_copied()
}

/// Pieces beyond the limit are refused; those before are copied.
pub fn channel_bytes_of_a_request_are_limited() -> Outcome {
    let device = Device::keeping_nothing()?;
    let most = device.info()?.max_bytes;
    let (dst, src) = (Region::of_small_pages(PAGE)?, Region::of_small_pages(PAGE)?);
    src.fill(1);
    let small = Piece::new(&dst, 0, &src, 0, PAGE);
    let mut pieces = [small, Piece { len: most, ..small }];
    let Submitted { result, out } = device.submit(&mut pieces);
    ensure_eq!((result, out.accepted), (Err(EAGAIN), 1), "a page, and max_bytes");
    device.finish(&out)?;
    Ok(dst.expect(1)?)
}

/// However much is submitted, no more is taken than was promised.
pub fn channel_pages_under_way_are_limited() -> Outcome {
    const LEN: usize = 64 << 10;
    let bench = Bench::new()?;
    let _parameter = Parameter::set("adma", "max_pages", 128)?;
    let device = Device::keeping_nothing()?;
    let most = device.info()?.max_pages;
    let (dst, src) = (Region::of_small_pages((SLOTS + 1) * LEN)?, Region::of_small_pages(LEN)?);
    let mut under_way = Vec::new();
    bench.slow_down()?;
    let refused = loop {
        let piece = Piece::new(&dst, under_way.len() * LEN, &src, 0, LEN);
        let Submitted { result, out } = device.submit(&mut [piece]);
        match result {
            Ok(()) => under_way.push(out),
            Err(errno) => break errno,
        }
        // Finished requests do not count any more; channels finish in any order.
        let is_under_way = |out: &&Submit| device.wait(out.id, Duration::ZERO) == Err(EAGAIN);
        let pages = (2 * under_way.iter().filter(is_under_way).count() * LEN / PAGE) as u64;
        ensure!(pages > 0, "too quick to show anything");
        ensure!(pages <= most, "{pages} pages are under way");
    };
    ensure_eq!(refused, EAGAIN, "beyond max_pages");
    ensure!(!under_way.is_empty(), "nothing was taken");
    bench.clear()?;
    under_way.iter().try_for_each(|request| device.finish(request))?;
    // There is room again.
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)]).map(drop)
}

/// A bound for how long a copy waits behind those of others.
pub fn channel_bytes_queued_are_limited() -> Outcome {
    const DEPTH: usize = 16 * PAGE;
    let bench = Bench::new()?;
    let _depth = Parameter::set("adma", "depth", DEPTH as u64)?;
    let pair = Pair::scattered(MAX_PIECES * PAGE)?;
    let mut pieces = pair.whole().split(MAX_PIECES, 1);
    // Pinned before, so that submission takes no time.
    pair.device.carry(&mut pieces)?;
    pair.src.fill(3);
    // Slower than a submission waits for room, also where it sleeps for longer than it asked to; fast
    // enough for the driver's timer.
    bench.arm_all(Fault::always(Kind::Slow).value(60_000))?;
    let Submitted { result, out } = pair.device.submit(&mut pieces);
    ensure_eq!(result, Err(EBUSY), "{MAX_PIECES} pages for a queue of 16");
    let queued = out.accepted as usize * PAGE;
    // Finished requests are not queued any more.
    ensure!((DEPTH..2 * DEPTH).contains(&queued), "{queued} bytes were queued");
    pair.device.finish(&out)?;
    pair.dst.expect_part(0, queued, 3)?;
    bench.clear()?;
    // More than fits, on a channel that moves: it waits for room.
    pair.device.carry(&mut pieces)?;
    pair.dst.expect(3).context("all of it")
}

/// A queue is no failure: the channel makes progress, though the last transfer completes long after
/// the timeout.
pub fn channel_queue_longer_than_the_timeout_is_no_failure() -> Outcome {
    // The pieces take three times as long. A busy host may stop the device for hundreds of ms.
    const TIMEOUT: Duration = Duration::from_millis(600);
    let bench = Bench::new()?;
    let _timeout = Parameter::set("adma", "timeout_ms", TIMEOUT.as_millis() as u64)?;
    let pair = Pair::scattered(MAX_PIECES * PAGE)?;
    bench.slow_down_one()?;
    let begun = Instant::now();
    let long = pair.device.start(&mut pair.whole().split(MAX_PIECES, 1))?;
    ensure!(begun.elapsed() < TIMEOUT * 2, "it took {:?} to submit", begun.elapsed());
    pair.device.finish(&long)?;
    println!("it took {:?}", begun.elapsed());
    ensure!(begun.elapsed() > 3 * TIMEOUT, "too quick to show anything");
    ensure_eq!(pair.device.info()?.usable, pair.channels, "usable channels");
    pair.expect_copied()
}

/// A submission that waits for a page holds no place of the channel: words still prove the data of
/// others.
pub fn channel_with_a_stuck_submission_is_not_silent() -> Outcome {
    let pair = Pair::new(PAGE)?;
    let carry = || pair.device.carry(&mut [pair.whole().on(0)]);
    carry()?;
    let stuck = Pair::stuck_child()?;
    sleep(Duration::from_millis(300));
    // On a busy host a submission may take too long to trust a word.
    let mut silent = 0;
    for _ in 0..20 {
        silent += usize::from(carry()?.channels == 0);
    }
    stuck.kill(libc::SIGKILL);
    ensure!(silent < 10, "{silent} of 20 copies had no word because of another's page fault");
    Ok(())
}

pub fn channel_wait_under_way_is_eagain_or_etimedout() -> Outcome {
    const LONG: Duration = Duration::from_nanos(u64::MAX);
    const PIECES: usize = 16;
    let bench = Bench::new()?;
    let pair = Pair::new(PIECES * PAGE)?;
    bench.slow_down()?;
    // Several pieces on one channel: at least as many times 30 ms, also where the host gives little time.
    let request = pair.device.start(&mut pair.whole().split(PIECES, 1))?;
    let wait = |request: &Submit, timeout| pair.device.wait(request.id, timeout);
    let begun = Instant::now();
    ensure_eq!(wait(&request, Duration::ZERO), Err(EAGAIN), "a look");
    let short = Duration::from_millis(10);
    ensure_eq!(wait(&request, short), Err(ETIMEDOUT), "a short wait");
    ensure!(begun.elapsed() >= short, "it waited {:?}", begun.elapsed());
    pair.device.finish(&request)?;
    // A very long wait is a wait, not an overflow.
    ensure_eq!(wait(&request, LONG), Ok(0), "after the end");
    ensure_eq!(wait(&pair.start(1)?, LONG), Ok(0), "a long wait");
    Ok(())
}
