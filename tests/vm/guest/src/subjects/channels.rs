//! Which channel takes what, and how much can be under way.

use crate::device::*;
use crate::faults::{Bench, expect_even_bytes};
use crate::kernel::Parameter;
use crate::memory::{PAGE, Region};
use crate::verdict::{Context, Outcome};
use std::time::{Duration, Instant};

tests! {
    channel_named_takes_the_piece
    channel_any_takes_turns
    channel_bytes_are_spread_evenly
    channel_slots_full_is_eagain
    channel_bytes_under_way_are_limited
    channel_pages_under_way_are_limited
    channel_wait_under_way_is_eagain_or_etimedout
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
        ensure_eq!(request.channels | request.silent, 1 << channel, "channels at work");
        if request.silent == 0 {
            ensure_eq!(words[channel as usize].of(request.slot), request.id, "word");
        }
        dst.expect(channel.into())?;
    }
    Ok(())
}

fn channel_any_takes_turns() -> Outcome {
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let (dst, src) = (Region::of_small_pages(32 * PAGE)?, Region::of_small_pages(32 * PAGE)?);
    let mut taken = vec![0; channels as usize];
    for round in 0..4 {
        let piece = |i| Piece::new(&dst, i * PAGE, &src, i * PAGE, PAGE);
        // One after the other, then together.
        for i in 0..channels as usize {
            let mut one = [piece(i)];
            device.carry(&mut one)?;
            taken[one[0].channel as usize] += 1;
        }
        let mut together: Vec<Piece> = (0..channels as usize).map(piece).collect();
        device.carry(&mut together)?;
        together.iter().for_each(|piece| taken[piece.channel as usize] += 1);
        ensure_eq!(taken, vec![2 * (round + 1); channels as usize], "pieces by channel");
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
    // Nobody shall lose his patience with a channel that is busy for seconds.
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
fn channel_bytes_under_way_are_limited() -> Outcome {
    under_way_is_limited("max_bytes", 256 << 10, |info, bytes| bytes <= info.max_bytes)
}

fn channel_pages_under_way_are_limited() -> Outcome {
    under_way_is_limited("max_pages", 128, |info, bytes| 2 * bytes / PAGE as u64 <= info.max_pages)
}

fn under_way_is_limited(name: &str, limit: u64, is_kept: fn(&Info, u64) -> bool) -> Outcome {
    const LEN: usize = 64 << 10;
    let bench = Bench::new()?;
    let _parameter = Parameter::set("adma", name, limit)?;
    let device = Device::keeping_nothing()?;
    let info = device.info()?;
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
        // What was over meanwhile counts no more; channels come to an end in any order.
        let is_under_way = |out: &&Submit| device.wait(out.id, Duration::ZERO) == Err(EAGAIN);
        let bytes = (under_way.iter().filter(is_under_way).count() * LEN) as u64;
        ensure!(bytes > 0, "too quick to show anything");
        ensure!(is_kept(&info, bytes), "{bytes} bytes are under way: {info:?}");
    };
    ensure_eq!(refused, EAGAIN, "beyond {name}");
    ensure!(!under_way.is_empty(), "nothing was taken");
    bench.clear()?;
    for request in &under_way {
        ensure_eq!(device.end(request)?, 0, "failed pieces");
    }
    // There is room again.
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)]).map(|_| ())
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
