//! A device that fails: every request ends, names what it did not copy, and nothing is
//! written afterwards.
//!
//! A test that leaves channels in quarantine reloads driver and module.

use super::*;
use crate::faults::Place;

tests! {
    wreck_read_error_names_the_pieces = names_the_pieces(Kind::Read);
    wreck_write_error_names_the_pieces = names_the_pieces(Kind::Write);
    wreck_other_error_names_the_pieces = names_the_pieces(Kind::Other);
    wreck_hang_names_the_pieces = names_the_pieces(Kind::Hang);
}

pub const PIECE: usize = 4 * PAGE;

/// The device under fault injection, a copy over all its channels, and a clean-up at the end.
pub struct Wreck {
    pub bench: Bench,
    pub device: Device,
    pub info: Info,
    /// Places of the module's channels.
    pub places: Vec<Place>,
    dst: Region,
    src: Region,
}

/// Result of a request, after all its promises were checked.
#[derive(Debug)]
pub struct Ending {
    /// Reason why not all pieces were taken.
    pub refused: Option<Errno>,
    /// Pieces that were taken and failed, and all that were taken.
    pub failed: Vec<Piece>,
    pub taken: Vec<Piece>,
    pub time: Duration,
}

impl Ending {
    pub fn expect_good(&self) -> Outcome {
        ensure!(self.failed.is_empty() && self.refused.is_none(), "{self:?}");
        Ok(())
    }
}

/// Runs a test on a fresh device; when its faults are over all channels are used and work again.
pub fn on_wreck(run: impl FnOnce(&Wreck) -> Outcome) -> Outcome {
    on_dying_wreck(|wreck| {
        run(wreck)?;
        wreck.recover()
    })
}

/// Runs a test on a fresh device and leaves a fresh device, whatever happens.
pub fn on_dying_wreck(run: impl FnOnce(&Wreck) -> Outcome) -> Outcome {
    // Messages of the driver about errors are expected.
    kernel::announce("ioat");
    kernel::announce("adma");
    let wreck = Wreck::new()?;
    let outcome = run(&wreck);
    wreck.bench.clear()?;
    let usable = wreck.device.info().map(|info| info.usable == info.channels);
    let Wreck { bench, device, .. } = wreck;
    drop(device);
    if outcome.is_err() || usable.is_ok_and(|usable| !usable) {
        println!("starting driver and module afresh");
        outcome.and(modules::reload())?;
        let again = Device::open()?;
        bench.find_channels(&again).context("after starting afresh")?;
        return Ok(());
    }
    outcome
}

impl Wreck {
    fn new() -> Outcome<Wreck> {
        let bench = Bench::new()?;
        let device = Device::open()?;
        let info = device.info()?;
        let places = bench.find_channels(&device)?;
        let len = PIECE * 2 * info.channels as usize + 2 * PAGE;
        let (dst, src) = (Region::of_small_pages(len)?, Region::of_small_pages(len)?);
        Ok(Wreck { bench, device, info, places, dst, src })
    }

    fn len(&self) -> usize {
        PIECE * 2 * self.info.channels as usize
    }

    fn watched(&self) -> Watched<'_> {
        Watched::new(&self.dst, PAGE, &self.src, PAGE, self.len(), PAGE)
    }

    /// Submits two pieces for every channel, in turn; what fails is copied by hand.
    pub fn attempt(&self) -> Outcome<Ending> {
        let watched = self.watched();
        let count = 2 * self.info.channels as usize;
        let mut pieces = watched.piece().split(count, self.info.channels);
        let begun = Instant::now();
        let Submitted { result, out } = self.device.submit(&mut pieces);
        let accepted = out.accepted as usize;
        ensure!(result.is_ok() == (accepted == count), "{result:?} with {accepted} of {count}");
        let mask = if accepted > 0 { self.device.end(&out)? } else { 0 };
        let time = begun.elapsed();
        ensure_eq!(mask >> accepted, 0, "failed pieces that were not even accepted");
        let is_left = |piece: usize| piece >= accepted || mask & 1 << piece != 0;
        watched.expect_copied_but_for(|at| is_left(at / PIECE)).context("pieces that went well")?;
        for piece in (0..count).filter(|&piece| is_left(piece)) {
            watched.redo(piece * PIECE, PIECE);
        }
        watched.expect_copied().context("with the failed pieces done again")?;
        let failed = (0..accepted).filter(|&piece| is_left(piece)).map(|i| pieces[i]).collect();
        let taken = pieces[..accepted].to_vec();
        let ending = Ending { refused: result.err(), failed, taken, time };
        println!("{accepted} taken, then {result:?}; failed {mask:#x}; {time:?}");
        Ok(ending)
    }

    /// Ends all faults. A channel may be in quarantine for a while; then all of them are used and
    /// work again.
    pub fn recover(&self) -> Outcome {
        self.bench.clear()?;
        let begun = Instant::now();
        loop {
            let ending = self.attempt()?;
            let usable = self.device.info()?.usable;
            let is_used = |channel| ending.taken.iter().any(|piece| piece.channel == channel);
            let all = (0..self.info.channels).all(is_used);
            if ending.refused.is_none() && ending.failed.is_empty() && all {
                println!("all channels are in use again after {:?}", begun.elapsed());
                return Ok(());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "still failing after {PATIENCE:?}, {usable} channels usable: {ending:?}"
            );
            sleep(Duration::from_millis(50));
        }
    }

    /// Injects a fault on the first channel, which makes pieces fail there and nowhere else.
    fn fails_on_first_channel(&self, fault: Fault) -> Outcome<Statistics> {
        let before = Statistics::now()?;
        self.bench.arm(self.places[0], fault)?;
        let struck = self.bench.struck()?;
        let ending = self.attempt()?;
        ensure!(self.bench.struck()? > struck, "the fault did not strike: nothing was shown");
        ensure_eq!(ending.refused, None, "refused");
        ensure!(!ending.failed.is_empty(), "no piece failed");
        let elsewhere = ending.failed.iter().find(|piece| piece.channel != 0);
        ensure!(elsewhere.is_none(), "failed on another channel: {elsewhere:x?}");
        self.recover()?;
        Ok(Statistics::now()?.since(&before))
    }
}

fn names_the_pieces(kind: Kind) -> Outcome {
    on_wreck(|wreck| {
        let moved = wreck.fails_on_first_channel(Fault::once(kind))?;
        let timeouts = if matches!(kind, Kind::Other | Kind::Hang) { moved.timeouts } else { 0 };
        ensure!(moved.errors + timeouts > 0, "nothing was counted: {moved:?}");
        Ok(())
    })
}

/// The first piece of the channel is right, a later one is not, and the word never comes.
pub fn wreck_error_in_the_middle_names_the_pieces() -> Outcome {
    on_wreck(|wreck| {
        for kind in [Kind::Read, Kind::Write] {
            for after in [1, 2] {
                wreck.bench.arm(wreck.places[0], Fault::once(kind).after(after))?;
                let ending = wreck.attempt()?;
                let elsewhere = ending.failed.iter().find(|piece| piece.channel != 0);
                ensure!(elsewhere.is_none(), "failed on another channel: {elsewhere:x?}");
                wreck.recover().context(format_args!("{kind:?} after {after}"))?;
            }
        }
        Ok(())
    })
}

/// A change of memory waits for transfers in flight, but not for ever, and not once for each line
/// that it changes.
pub fn wreck_hang_holds_a_change_of_memory_up_for_seconds_at_most() -> Outcome {
    const LEN: usize = 4 * 64 * PAGE;
    on_wreck(|wreck| {
        let (dst, src) = (Region::of_small_pages(LEN)?, Region::of_small_pages(LEN)?);
        dst.fill(1);
        src.fill(2);
        wreck.bench.arm_all(Fault::once(Kind::Hang))?;
        let count = 4 * wreck.info.channels as usize;
        let mut pieces = Piece::new(&dst, 0, &src, 0, LEN).split(count, wreck.info.channels);
        let request = wreck.device.start(&mut pieces)?;
        let begun = Instant::now();
        dst.unmap_part(0, LEN)?;
        src.unmap_part(0, LEN)?;
        let held_up = begun.elapsed();
        println!("held up for {held_up:?}");
        ensure!(held_up < Duration::from_secs(8), "held up for {held_up:?}");
        ensure!(wreck.device.end(&request)? != 0, "no piece failed");
        Ok(())
    })
}

pub fn wreck_short_stall_is_waited_out() -> Outcome {
    on_wreck(|wreck| {
        wreck.bench.arm_all(Fault::once(Kind::Stall).value(40))?;
        let ending = wreck.attempt()?;
        ending.expect_good()?;
        ensure!(ending.time >= Duration::from_millis(40), "it took only {:?}", ending.time);
        Ok(())
    })
}

/// A channel that goes on after it was believed dead.
pub fn wreck_long_stall_writes_nothing_afterwards() -> Outcome {
    const STALL: Duration = Duration::from_millis(2500);
    on_wreck(|wreck| {
        for after in [0, 1] {
            let fault = Fault::once(Kind::Stall).value(STALL.as_millis() as u32).after(after);
            wreck.bench.arm(wreck.places[0], fault)?;
            let begun = Instant::now();
            let ending = wreck.attempt()?;
            // The request is over: the memory is the program's again.
            wreck.dst.fill(4);
            while begun.elapsed() < STALL + Duration::from_millis(500) {
                wreck.dst.expect(4).context(format_args!(
                    "written {:?} after the start, when the request was over after {:?}",
                    begun.elapsed(),
                    ending.time
                ))?;
                sleep(Duration::from_millis(20));
            }
            wreck.recover()?;
        }
        Ok(())
    })
}

pub fn wreck_slow_channel_copies_right() -> Outcome {
    on_wreck(|wreck| {
        wreck.bench.arm(wreck.places[0], Fault::always(Kind::Slow).value(20_000))?;
        for _ in 0..3 {
            wreck.attempt()?.expect_good()?;
        }
        Ok(())
    })
}

/// The words come without interrupts, and ADMA_IOC_WAIT returns as well.
pub fn wreck_lost_interrupts_copies_right() -> Outcome {
    on_wreck(|wreck| {
        wreck.bench.arm_all(Fault::always(Kind::Lost))?;
        let words = wreck.device.all_words()?;
        for round in 0..3 {
            let watched = wreck.watched();
            let mut pieces = watched.piece().split(4, wreck.info.channels);
            let request = wreck.device.start(&mut pieces)?;
            if wait_by_words(&words, &request)? {
                watched.expect_copied().context(format_args!("round {round}, by words"))?;
            }
            let begun = Instant::now();
            ensure_eq!(wreck.device.end(&request)?, 0, "failed pieces, round {round}");
            println!("the wait after the words was {:?}", begun.elapsed());
            watched.expect_copied().context(format_args!("round {round}"))?;
            wreck.attempt()?.expect_good()?;
        }
        Ok(())
    })
}

pub fn wreck_failed_request_keeps_its_slot_until_asked_for() -> Outcome {
    on_wreck(|wreck| {
        wreck.bench.arm(wreck.places[0], Fault::once(Kind::Read))?;
        let bad = wreck.device.start(&mut [wreck.watched().piece().on(0)])?;
        ensure_eq!(wreck.device.end(&bad)?, 1, "failed pieces");
        ensure_eq!(wreck.device.end(&bad)?, 0, "failed pieces, asked for a second time");

        // Not while the channel is in quarantine: another one would take the piece.
        wreck.recover()?;
        wreck.bench.arm(wreck.places[0], Fault::once(Kind::Read))?;
        let mut piece = [wreck.watched().piece().on(0)];
        let bad = wreck.device.start(&mut piece)?;
        ensure_eq!(piece[0].channel, 0, "channel of the piece that shall fail");
        let (dst, src) = (Region::of_small_pages(PAGE)?, Region::of_small_pages(PAGE)?);
        let other = wreck.info.channels - 1;
        for round in 0..2 * SLOTS {
            let mut piece = [Piece::new(&dst, 0, &src, 0, PAGE).on(other)];
            let out = wreck.device.start(&mut piece).context(format_args!("round {round}"))?;
            ensure!(out.slot != bad.slot, "the slot of a failed request is given away");
            wreck.device.end(&out)?;
        }
        ensure_eq!(wreck.device.end(&bad)?, 1, "failed pieces, asked for late");
        Ok(())
    })
}

/// ioatdma does not complete the transfer at the head of a chain that it aborts. It does so when
/// its ring has wrapped around and a transfer longer than the engine's capacity covers the old
/// place: by then the request is long gone.
pub fn wreck_lost_answer_that_comes_after_all_does_no_harm() -> Outcome {
    const RING: u64 = 65536;
    if std::env::var("GUEST_CAPACITY").as_deref() != Ok("12") {
        skip!("the driver cuts no transfer here; try --capacity 12");
    }
    on_wreck(|wreck| {
        let huge = || Region::of_kind(PageKind::Huge, HUGE);
        let (dst, src) = (huge()?, huge()?);
        src.fill(1);
        // Not on the way: the others stay as they are.
        wreck.fails_on_first_channel(Fault::once(Kind::Hang))?;
        let place = wreck.places[0];
        let begun = wreck.bench.counters(place)?.descriptors;
        let mut round = 0;
        while u64::from(wreck.bench.counters(place)?.descriptors - begun) < RING + RING / 8 {
            dst.set_word(0, 0);
            wreck.device.carry(&mut [Piece::new(&dst, 0, &src, 0, HUGE).on(0)])?;
            round += 1;
        }
        println!("{round} copies of {HUGE} bytes");
        Ok(dst.expect(1)?)
    })
}

/// The others are still found, even those after it.
pub fn wreck_channel_that_fails_its_test_is_skipped() -> Outcome {
    kernel::announce("ioat");
    kernel::announce("adma");
    let bench = Bench::new()?;
    let device = Device::open()?;
    let (channels, place) = (device.info()?.channels, bench.find_channels(&device)?[0]);
    drop(device);
    if channels < 2 {
        skip!("there is only one channel");
    }
    // The driver opens it, and then it copies nothing.
    bench.arm(place, Fault::always(Kind::Read))?;
    let found = modules::load_again().and_then(|()| Device::open()?.info());
    bench.clear()?;
    modules::reload()?;
    ensure_eq!(found?.channels, channels - 1, "channels without the bad one");
    Ok(())
}

pub fn wreck_dead_channel_is_left_out() -> Outcome {
    on_dying_wreck(|wreck| {
        if wreck.info.channels < 2 {
            skip!("there is only one channel");
        }
        let before = Statistics::now()?;
        wreck.bench.arm(wreck.places[0], Fault::always(Kind::Dead))?;
        let begun = Instant::now();
        while Statistics::now()?.since(&before).quarantined == 0 {
            wreck.attempt()?;
            ensure!(begun.elapsed() < 2 * PATIENCE, "a dead channel is still in use");
        }
        println!("put aside after {:?}", begun.elapsed());
        ensure_eq!(wreck.device.info()?.usable, wreck.info.channels - 1, "usable channels");
        // Now others do its work, even what was submitted for it.
        for _ in 0..3 {
            let ending = wreck.attempt()?;
            ending.expect_good()?;
            ensure!(ending.taken.iter().all(|piece| piece.channel != 0), "{:?}", ending.taken);
        }
        Ok(())
    })
}

pub fn wreck_all_channels_dead_is_enodev() -> Outcome {
    on_dying_wreck(|wreck| {
        let before = Statistics::now()?;
        wreck.bench.arm_all(Fault::always(Kind::Dead))?;
        let begun = Instant::now();
        loop {
            let ending = wreck.attempt()?;
            if ending.refused == Some(ENODEV) {
                break;
            }
            ensure!(
                begun.elapsed() < 3 * PATIENCE,
                "no ENODEV: {ending:?}, {:?}",
                Statistics::now()?.since(&before)
            );
            sleep(Duration::from_millis(200));
        }
        println!("ENODEV after {:?}", begun.elapsed());
        ensure_eq!(wreck.device.info()?.usable, 0, "usable channels");
        let ending = wreck.attempt()?;
        ensure_eq!((ending.refused, ending.taken.len()), (Some(ENODEV), 0), "refused, taken");
        // Programs copy without it, and with right bytes.
        let report = shim::only_report(&mut shim::victim("copies", &["6", "262144"])?)?;
        ensure_eq!(report.engine_bytes()?, 0, "bytes by an engine without channels");
        Ok(())
    })
}
