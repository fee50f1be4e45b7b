//! Channels that go away under the module: unbound from their driver, removed, bound again.
//!
//! Each test leaves all functions bound and driver and module afresh.

use super::*;
use crate::faults::functions;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PCI: &str = "/sys/bus/pci";
const LEN: usize = 16 * PAGE;

/// The first function of the engine by its name, like 0000:00:04.0, and the number of channels left
/// without it.
struct First {
    name: String,
    left: u32,
}

impl First {
    fn new(device: &Device) -> Outcome<First> {
        let all = functions()?;
        let channels = device.info()?.channels;
        let each = channels / all.len() as u32;
        Ok(First { name: all[0].name().to_owned(), left: channels - each })
    }

    fn unbind(&self) -> Outcome {
        modules::unbind(&self.name)
    }

    fn remove(&self) -> Outcome {
        // See `modules::unbind`.
        if Path::new("/sys/bus/dsa").exists() {
            self.unbind()?;
        }
        fs::write(format!("{PCI}/devices/{}/remove", self.name), "1").context("remove")
    }

    /// Binds the function again, if it is not, after a rescan if it was removed; then reloads the
    /// module.
    fn bring_back(&self) -> Outcome {
        if !Path::new(&format!("{PCI}/devices/{}", self.name)).exists() {
            fs::write(format!("{PCI}/rescan"), "1").context("rescan")?;
        }
        if !modules::is_bound(&self.name) {
            modules::bind(&self.name)?;
        }
        modules::load_again()
    }
}

/// Runs a test with the first function; afterwards all of them are back, and work.
fn on_first(run: impl FnOnce(Device, &First) -> Outcome) -> Outcome {
    kernel::announce("ioat|idxd|adma");
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let first = First::new(&device)?;
    let outcome = run(device, &first);
    first.bring_back()?;
    let device = Device::open()?;
    ensure_eq!(device.info()?.usable, channels, "usable channels in the end");
    Bench::new()?.find_channels(&device).context("in the end")?;
    outcome
}

/// Copies over all channels that are left; refused where none is.
fn expect_copies(device: &Device, left: u32) -> Outcome {
    let info = device.info()?;
    ensure_eq!(info.usable, left, "usable channels");
    let (dst, src) = (Region::of_small_pages(LEN)?, Region::of_small_pages(LEN)?);
    for seed in 1..20 {
        src.fill(seed);
        let mut pieces = Piece::new(&dst, 0, &src, 0, LEN).split(8, info.channels);
        if left == 0 {
            ensure_eq!(device.submit(&mut pieces).result, Err(ENODEV), "without a channel");
            continue;
        }
        device.carry(&mut pieces)?;
        dst.expect(seed)?;
    }
    Ok(())
}

pub fn wreck_unbind_idle_copies_go_on() -> Outcome {
    on_first(|device, first| {
        expect_copies(&device, device.info()?.channels)?;
        first.unbind()?;
        expect_copies(&device, first.left)?;
        expect_copies(&Device::open()?, first.left)
    })
}

/// Every piece is copied or named; after unbind nothing is written any more.
pub fn wreck_unbind_in_flight_ends_every_request() -> Outcome {
    on_first(|device, first| {
        let bench = Bench::new()?;
        let pair = Pair::scattered(LEN)?;
        bench.slow_down()?;
        let request = pair.start(16)?;
        first.unbind()?;
        let failed = pair.device.end(&request)?;
        println!("failed pieces: {failed:#x}");
        for piece in (0..16).filter(|piece| failed & 1 << piece == 0) {
            pair.dst.expect_part(piece * PAGE, PAGE, 2).context(format_args!("piece {piece}"))?;
        }
        expect_copies(&device, first.left)
    })
}

/// A program that copies continuously: its bytes are right, and it succeeds.
pub fn wreck_unbind_under_a_program_copies_right() -> Outcome {
    on_first(|device, first| {
        drop(device);
        let before = Statistics::now()?;
        let program = shim::Steady::start()?;
        let copied =
            |more| eventually(PATIENCE, || Statistics::now().is_ok_and(|now| now.copies > more));
        let begun = copied(before.copies + 20);
        first.unbind()?;
        // If channels are left, copies go on.
        let goes_on = first.left == 0 || copied(Statistics::now()?.copies + 20);
        program.end()?;
        ensure!(begun && goes_on, "the engine carried nothing: {begun}, {goes_on}");
        Ok(())
    })
}

/// The submission holds nothing of the channel meanwhile.
pub fn wreck_unbind_while_a_submission_waits_for_a_page_returns() -> Outcome {
    on_first(|device, first| {
        let stuck = Pair::stuck_child()?;
        first.unbind()?;
        expect_copies(&device, first.left)?;
        stuck.kill(libc::SIGKILL);
        Ok(())
    })
}

/// The function is not even there any more; what is opened then, and what was opened before,
/// has no pointer to it.
pub fn wreck_unbind_removed_function_then_open_copies() -> Outcome {
    on_first(|device, first| {
        expect_copies(&device, device.info()?.channels)?;
        first.remove()?;
        expect_copies(&device, first.left)?;
        for _ in 0..8 {
            expect_copies(&Device::open()?, first.left)?;
        }
        Ok(())
    })
}

/// Waits until all channels are in use again, and copies over them. A kernel with checkers takes 20 s to
/// make a driver's rings.
fn expect_all_again(device: &Device) -> Outcome {
    let all = device.info()?.channels;
    let usable = || device.info().is_ok_and(|info| info.usable == all);
    ensure!(eventually(6 * PATIENCE, usable), "{} of {all} usable", device.info()?.usable);
    expect_copies(device, all)?;
    Bench::new()?.find_channels(device).map(drop)
}

/// Without loading the module again, for files that were open before and for new ones.
pub fn wreck_unbind_and_bind_again_brings_the_channels_back() -> Outcome {
    on_first(|device, first| {
        let words = device.all_words()?;
        expect_copies(&device, device.info()?.channels)?;
        for _ in 0..rounds(3) {
            first.unbind()?;
            expect_copies(&device, first.left)?;
            modules::bind(&first.name)?;
            expect_all_again(&device)?;
            expect_all_again(&Device::open()?)?;
        }
        drop(words);
        Ok(())
    })
}

/// The function is another device then, with the same name.
pub fn wreck_unbind_removed_and_found_again_brings_the_channels_back() -> Outcome {
    on_first(|device, first| {
        expect_copies(&device, device.info()?.channels)?;
        first.remove()?;
        expect_copies(&device, first.left)?;
        fs::write(format!("{PCI}/rescan"), "1").context("rescan")?;
        if !modules::is_bound(&first.name) {
            modules::bind(&first.name)?;
        }
        expect_all_again(&device)
    })
}

/// Copies until channels are back after a suspend. Returns whether it was told to give up.
fn until_refused_for_good(back: &AtomicBool) -> Outcome<bool> {
    let pair = Pair::new(PAGE)?;
    while !back.load(Relaxed) {
        let Submitted { result, out } = pair.device.submit(&mut [pair.whole()]);
        // The freezer interrupts who waits.
        while out.accepted > 0 && pair.device.wait(out.id, PATIENCE) == Err(EINTR) {}
        if result == Err(ENODEV) {
            return Ok(true);
        }
        sleep(Duration::from_millis(1));
    }
    Ok(false)
}

/// Channels are given back before the machine sleeps, and taken again afterwards; copies that were in
/// flight are over.
pub fn wreck_unbind_suspend_gives_the_channels_back_and_takes_them_again() -> Outcome {
    const TEST: &str = "/sys/power/pm_test";
    on_first(|device, _| {
        if fs::write(TEST, "freezer").is_err() {
            skip!("this kernel cannot pretend to suspend");
        }
        kernel::announce("PM|suspend|Freezing|Restarting");
        let said = || -> Outcome<usize> {
            let log = shim::finish(&mut std::process::Command::new("dmesg"))?;
            Ok(String::from_utf8_lossy(&log.stdout).matches("channels are given back").count())
        };
        let before = said()?;
        let bench = Bench::new()?;
        let pair = Pair::scattered(LEN)?;
        bench.slow_down()?;
        let request = pair.start(16)?;
        let back = AtomicBool::new(false);
        let refused = std::thread::scope(|scope| {
            let copier = scope.spawn(|| until_refused_for_good(&back));
            let slept = fs::write("/sys/power/state", "freeze").context("suspend");
            eventually(PATIENCE, || device.info().is_ok_and(|info| info.usable > 0));
            back.store(true, Relaxed);
            slept.and(copier.join().expect("no panic"))
        });
        fs::write(TEST, "none")?;
        ensure!(!refused?, "a copier is told that no channel comes back");
        bench.clear()?;
        let failed = pair.device.end(&request)?;
        ensure_eq!(failed, 0, "pieces that had 3 s before the suspend");
        pair.expect_copied()?;
        ensure_eq!(said()? - before, functions()?.len(), "devices given back");
        expect_all_again(&device)
    })
}
