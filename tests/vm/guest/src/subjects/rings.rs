//! A channel without room for another transfer.
//!
//! ioatdma's ring has 65536 places, so it is hard to fill. The software provider has a configurable
//! number, and can refuse everything, as ioatdma does while it resets a channel.

use super::*;
use crate::process::cpu_time;

/// Limit of a refusal, which takes 5 to 10 ms, and several times as long in emulation.
const SOON: Duration = Duration::from_secs(5);

/// Two sides with half a page between their offsets, in scattered pages: two transfers for
/// each page.
struct Halves {
    dst: Region,
    src: Region,
}

impl Halves {
    const OFFSET: usize = PAGE / 2;

    fn new(len: usize) -> Outcome<Halves> {
        let dst = Region::of_scattered_pages(len)?;
        let src = Region::of_scattered_pages(len + PAGE)?;
        src.fill(9);
        Ok(Halves { dst, src })
    }

    fn whole(&self) -> Piece {
        Piece::new(&self.dst, 0, &self.src, Self::OFFSET, self.dst.len())
    }

    /// Returns all of it in pieces for one channel.
    fn pieces(&self) -> Vec<Piece> {
        self.whole().split(MAX_PIECES, 1)
    }

    /// Returns the first pages of it, in pieces of one transfer.
    fn small_pieces(&self) -> Vec<Piece> {
        let len = MAX_PIECES * Self::OFFSET;
        let part = Piece::new(&self.dst, 0, &self.src, Self::OFFSET, len);
        part.split(MAX_PIECES, 1)
    }

    fn expect_copied(&self) -> Outcome {
        self.dst.expect_same(0, &self.src, Self::OFFSET, self.dst.len())
    }
}

/// Checks that a refusal for want of room comes in good time, mostly asleep. Returns whether it was
/// refused.
fn refused(device: &Device, pieces: &mut [Piece]) -> Outcome<(Submit, bool)> {
    let (begun, busy) = (Instant::now(), cpu_time());
    let Submitted { result, out } = device.submit(pieces);
    let (took, busy) = (begun.elapsed(), cpu_time() - busy);
    if result.is_ok() {
        return Ok((out, false));
    }
    println!("{} pieces accepted, then {result:?}: {took:?}, at work {busy:?}", out.accepted);
    ensure_eq!(result, Err(EBUSY), "a submission to a channel that is full");
    ensure!(took < SOON, "to be refused took {took:?}");
    Ok((out, true))
}

/// Checks that three submissions are refused entirely.
fn refuses(device: &Device, pieces: &[Piece]) -> Outcome {
    for _ in 0..3 {
        let (out, is_refused) = refused(device, &mut pieces.to_vec())?;
        ensure_eq!((out.accepted, is_refused), (0, true), "accepted, and refused");
    }
    Ok(())
}

/// Checks that programs go on, with right bytes, which the role itself verifies.
fn programs_go_on() -> Outcome {
    let begun = Instant::now();
    let report = shim::only_report(&mut shim::victim("copies", &["3", "1048576"])?)?;
    println!(
        "under the library: {} bytes by the engine, {} by libc, in {:?}",
        report.engine_bytes()?,
        report.libc_bytes()?,
        begun.elapsed()
    );
    // The module's counters are in the library's report.
    let copies = report.number("/ioat/module/copies")?;
    ensure!(copies > 0, "the report knows of no copies");
    Ok(())
}

/// Like `programs_go_on`, for a ring that is nearly full: what still finds a place waits until
/// `help` is called.
fn programs_go_on_and_then(help: impl FnOnce() -> Outcome) -> Outcome {
    std::thread::scope(|scope| {
        let program = scope.spawn(programs_go_on);
        sleep(Duration::from_millis(500));
        help()?;
        program.join().expect("no panic")
    })
}

pub fn ring_of_the_driver_full_refuses_and_loses_nothing() -> Outcome {
    const PLACES: u64 = 65536;
    let _patience = Parameter::set("adma", "timeout_ms", 60_000)?;
    let _depth = Parameter::set("adma", "depth", 1 << 30)?;
    // Closed when the engine is fast again, because a close waits.
    let devices: Vec<Device> = (0..5).map(|_| Device::open()).collect::<Outcome<_>>()?;
    let (device, others) = (&devices[0], &devices[1..]);
    let bench = Bench::new()?;
    let channel = bench.find_channels(device)?[0];
    let halves = Halves::new(2048 * PAGE)?;
    // Copied once, and pinned for the first file. The other files pin their pieces while the engine
    // is slow: pages that are present take no place of the channel.
    device.carry(&mut halves.pieces())?;
    halves.expect_copied()?;
    halves.dst.fill(0);

    let before = Statistics::now()?;
    // Slower than a submission waits for a place, but fast enough for the driver's timer.
    bench.arm(channel, Fault::always(Kind::Slow).value(50_000))?;
    let mut under_way = Vec::new();
    // 4096 transfers and a word each.
    for _ in 0..PLACES / 4096 - 1 {
        under_way.push((device, device.start(&mut halves.pieces())?));
    }
    // 3584 and a word: a user may not have as many requests on a channel as small ones would need.
    under_way.push((device, device.start(&mut halves.pieces()[..56])?));
    // A transfer for each piece: none is taken in part, so no call has to wait for that.
    let mut slots = others.iter().flat_map(|device| std::iter::repeat_n(device, SLOTS));
    let mut submit = || -> Outcome<bool> {
        let Some(device) = slots.next() else { fail!("the ring does not get full") };
        let (out, is_refused) = refused(device, &mut halves.small_pieces())?;
        if out.accepted > 0 {
            under_way.push((device, out));
        }
        Ok(is_refused)
    };
    while !submit()? {}
    let moved = Statistics::now()?.since(&before);
    println!("{} descriptors, ring full {} times", moved.descriptors, moved.ring_full);
    ensure!(moved.descriptors + 1 >= PLACES, "full with {} descriptors", moved.descriptors);
    ensure!(moved.ring_full > 0, "a full ring was not counted");
    for _ in 0..3 {
        ensure!(submit()?, "a submission to a full ring is taken");
    }
    let first = under_way[0].1;
    ensure_eq!(device.wait(first.id, Duration::ZERO), Err(EAGAIN), "a look at the first request");

    // Fast enough that a place becomes free while a submission waits for it.
    bench.clear()?;
    bench.arm(channel, Fault::always(Kind::Slow).value(1000))?;
    sleep(Duration::from_millis(60));
    let full = Statistics::now()?.ring_full;
    let request = device.start(&mut halves.pieces()[..16]).context("a full ring that moves")?;
    under_way.push((device, request));
    ensure!(Statistics::now()?.ring_full > full, "the ring was not full");

    programs_go_on_and_then(|| bench.clear())?;
    for (device, request) in &under_way {
        device.finish(request)?;
    }
    halves.expect_copied().context("when the ring was full")?;
    // There is room again.
    halves.dst.fill(0);
    device.carry(&mut halves.pieces())?;
    halves.expect_copied().context("afterwards")
}

/// A request with more transfers than the ring has places has to wait for itself.
pub fn ring_of_few_places_takes_long_requests() -> Outcome {
    for places in [1, 2, 3, 16] {
        let _ring = Parameter::set("adma_soft", "ring", places)?;
        let device = Device::open()?;
        let channels = device.info()?.channels;
        let halves = Halves::new(64 * PAGE)?;
        let before = Statistics::now()?;
        for channels in [1, channels] {
            halves.dst.fill(0);
            device.carry(&mut halves.whole().split(4, channels))?;
            halves.expect_copied().context(format_args!("{places} places"))?;
        }
        let moved = Statistics::now()?.since(&before);
        println!("{places} places: full {} times", moved.ring_full);
        ensure!(moved.ring_full > 0, "a ring of {places} places was never full");
        programs_go_on()?;
    }
    Ok(())
}

/// Nine pages in two transfers each, and the word.
const NINE: usize = 9;
const NINE_PLACES: u64 = 2 * NINE as u64 + 1;

/// A request that takes all places of a ring, or all but one, of a paused channel.
struct Nine {
    device: Device,
    halves: Halves,
    before: Statistics,
    first: Submit,
    rest: Parameter,
    _ring: [Parameter; 2],
}

impl Nine {
    fn new(places: u64) -> Outcome<Nine> {
        let _ring = [
            Parameter::set("adma", "timeout_ms", 60_000)?,
            Parameter::set("adma_soft", "ring", places)?,
        ];
        let device = Device::open()?;
        let halves = Halves::new(64 * PAGE)?;
        // Pinned by a first copy, which has more transfers.
        device.carry(&mut halves.pieces())?;
        halves.dst.fill(0);
        let before = Statistics::now()?;
        let rest = Parameter::set("adma_soft", "rest", 1)?;
        let first = device.start(&mut halves.pieces()[..NINE])?;
        Ok(Nine { device, halves, before, first, rest, _ring })
    }
}

pub fn ring_that_stays_full_is_ebusy() -> Outcome {
    let Nine { device, halves, before, first, rest, _ring } = Nine::new(NINE_PLACES)?;
    ensure_eq!(Statistics::now()?.since(&before).ring_full, 0, "times full");
    refuses(&device, &halves.pieces()[NINE..])?;
    ensure_eq!(Statistics::now()?.since(&before).ring_full, 3, "times full");
    programs_go_on_and_then(|| {
        drop(rest);
        Ok(())
    })?;
    device.finish(&first)?;
    device.carry(&mut halves.pieces()[NINE..])?;
    halves.expect_copied()
}

/// Without a word, ADMA_IOC_WAIT reports the end.
pub fn ring_without_a_place_for_the_word_still_signals_the_end() -> Outcome {
    let Nine { device, halves, before, first, rest, _ring } = Nine::new(NINE_PLACES + 1)?;
    let at = NINE * PAGE;
    let half = Piece::new(&halves.dst, at, &halves.src, at + Halves::OFFSET, PAGE / 2).on(0);
    let second = device.start(&mut [half])?;
    ensure_eq!(second.channels, 0, "channels that promise a word");
    ensure_eq!(Statistics::now()?.since(&before).ring_full, 1, "times full");
    ensure_eq!(device.wait(second.id, Duration::ZERO), Err(EAGAIN), "a look");
    drop(rest);
    ensure_eq!(device.end(&second)?, 0, "failed pieces of the second request");
    ensure_eq!(device.end(&first)?, 0, "failed pieces of the first request");
    device.carry(&mut halves.pieces()[NINE..])?;
    halves.expect_copied()
}

/// Mask of all channels, for the provider's parameter `closed`.
const ALL: u64 = 0xff;

/// Copies on the first channel until that is in quarantine.
fn expect_put_aside(device: &Device, halves: &Halves, left: u32) -> Outcome {
    let before = Statistics::now()?;
    let put_aside = eventually(PATIENCE, || {
        let Submitted { out, .. } = device.submit(&mut halves.pieces()[..1]);
        let ended = out.accepted == 0 || device.end(&out).is_ok();
        ended && device.info().is_ok_and(|info| info.usable == left)
    });
    ensure!(put_aside, "usable channels: {:?}", device.info()?.usable);
    let counted = || Statistics::now().is_ok_and(|now| now.since(&before).quarantined > 0);
    ensure!(eventually(PATIENCE, counted), "nothing is counted");
    Ok(())
}

/// A channel that takes transfers again passes its test after quarantine, and is used.
fn expect_taken_back(device: &Device) -> Outcome {
    let back = || device.info().is_ok_and(|info| info.usable == info.channels);
    ensure!(eventually(PATIENCE, back), "usable channels: {:?}", device.info()?.usable);
    Ok(())
}

pub fn ring_that_takes_nothing_is_ebusy_and_the_channel_put_aside() -> Outcome {
    let device = Device::open()?;
    let halves = Halves::new(64 * PAGE)?;
    let closed = Parameter::set("adma_soft", "closed", ALL)?;
    let before = Statistics::now()?;
    refuses(&device, &halves.pieces())?;
    ensure!(Statistics::now()?.since(&before).ring_full > 0, "no ring was full");
    programs_go_on()?;
    drop(closed);
    expect_taken_back(&device)?;
    device.carry(&mut halves.pieces())?;
    halves.expect_copied()
}

/// A device that is down (AER), one of several: its pieces go to the others at once.
pub fn ring_of_one_channel_that_takes_nothing_others_take_over() -> Outcome {
    let device = Device::open()?;
    let channels = device.info()?.channels;
    if channels < 2 {
        skip!("there is one channel");
    }
    let halves = Halves::new(64 * PAGE)?;
    let closed = Parameter::set("adma_soft", "closed", 1)?;
    expect_put_aside(&device, &halves, channels - 1)?;
    let before = Statistics::now()?;
    device.carry(&mut halves.pieces())?;
    halves.expect_copied()?;
    ensure_eq!(Statistics::now()?.since(&before).ring_full, 0, "times full");
    drop(closed);
    expect_taken_back(&device)
}
