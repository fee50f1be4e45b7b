//! A device that fails while process or file goes away.

use super::wreck::{PIECE, Wreck, on_wreck};
use crate::canary::Canary;
use crate::device::*;
use crate::effort::PATIENCE;
use crate::faults::{Fault, Kind};
use crate::kernel;
use crate::memory::Region;
use crate::modules;
use crate::process::{Ended, fork};
use crate::shim;
use crate::verdict::{Context, Outcome};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

tests! {
    wreck_end_close_with_hanging_channel_pins_balance
    wreck_end_kill_with_hanging_channel_ends
    wreck_end_kill_with_stalled_channel_nobody_else_is_written
    wreck_end_program_with_failing_channels_copies_right
    wreck_end_reload_works
    wreck_end_selftest_tells_what_follows_an_error
}

const STALL: Duration = Duration::from_millis(1500);

/// Starts a copy on every channel and leaves it alone.
fn start_on_all(device: &Device, channels: u32, len: usize) -> Outcome<(Region, Region)> {
    let (dst, src) = (Region::of_small_pages(len)?, Region::of_small_pages(len)?);
    device.start(&mut Piece::new(&dst, 0, &src, 0, len).split(channels as usize, channels))?;
    Ok((dst, src))
}

fn wreck_end_close_with_hanging_channel_pins_balance() -> Outcome {
    on_wreck(|wreck| {
        let device = Device::open()?;
        wreck.bench.arm_all(Fault::once(Kind::Hang))?;
        let memory = start_on_all(&device, wreck.info.channels, 8 * PIECE)?;
        drop((device, memory));
        let canary = Canary::new(32 * PIECE)?;
        sleep(Duration::from_millis(500));
        canary.expect_alive()?;
        wreck.bench.clear()?;
        wreck.expect_recovery()
    })
}

/// A child that copies and waits; killed while channels have `fault`.
fn killed(wreck: &Wreck, fault: Fault) -> Outcome {
    wreck.bench.arm_all(fault)?;
    let mut child = fork(|| {
        let device = Device::open()?;
        let (dst, src) = (Region::of_small_pages(8 * PIECE)?, Region::of_small_pages(8 * PIECE)?);
        let mut pieces = Piece::new(&dst, 0, &src, 0, 8 * PIECE).split(8, wreck.info.channels);
        let request = device.start(&mut pieces)?;
        device.end(&request)?;
        loop {
            sleep(Duration::from_secs(1));
        }
    })?;
    sleep(Duration::from_millis(60));
    child.kill(libc::SIGKILL);
    let ended = child.wait_within(PATIENCE);
    ensure_eq!(ended, Some(Ended::Killed(libc::SIGKILL)), "the killed child");
    Ok(())
}

fn wreck_end_kill_with_hanging_channel_ends() -> Outcome {
    on_wreck(|wreck| {
        killed(wreck, Fault::once(Kind::Hang))?;
        Canary::new(32 * PIECE)?.expect_alive()?;
        wreck.bench.clear()?;
        wreck.expect_recovery()
    })
}

fn wreck_end_kill_with_stalled_channel_nobody_else_is_written() -> Outcome {
    on_wreck(|wreck| {
        killed(wreck, Fault::once(Kind::Stall).value(STALL.as_millis() as u32))?;
        let canary = Canary::new(64 * PIECE)?;
        sleep(STALL + Duration::from_millis(500));
        canary.expect_alive().context("after the stall")?;
        wreck.bench.clear()?;
        wreck.expect_recovery()
    })
}

/// What the engine does not do, the library does.
fn wreck_end_program_with_failing_channels_copies_right() -> Outcome {
    on_wreck(|wreck| {
        for fault in [
            Fault::once(Kind::Read).after(3),
            Fault::once(Kind::Write).after(5),
            Fault::once(Kind::Hang).after(2),
            Fault::once(Kind::Stall).value(400).after(4),
            Fault::always(Kind::Slow).value(2000),
            Fault::always(Kind::Lost),
        ] {
            wreck.bench.arm_all(fault)?;
            let report = shim::only_report(&mut shim::victim("copies", &["6", "262144"])?);
            let report = report.context(format_args!("{fault:?}"))?;
            println!("{fault:?}: {} bytes by the engine", report.engine_bytes()?);
            wreck.bench.clear()?;
            wreck.expect_recovery()?;
        }
        Ok(())
    })
}

fn wreck_end_reload_works() -> Outcome {
    for _ in 0..3 {
        crate::modules::reload()?;
        on_wreck(|wreck| wreck.attempt()?.expect_good())?;
    }
    Ok(())
}

/// What a person with the hardware is asked to run: a line for each channel.
fn wreck_end_selftest_tells_what_follows_an_error() -> Outcome {
    on_wreck(|_| Ok(()))?;
    kernel::announce("ioat");
    let channels = Device::open()?.info()?.channels as usize;
    modules::take_out()?;
    modules::load_with(c"selftest=1")?;
    let said = Command::new("dmesg").output()?;
    let said = String::from_utf8_lossy(&said.stdout);
    let wanted = "before the error: good, error: came, carried out after the error: no";
    let found: Vec<_> = said.lines().filter(|line| line.contains("adma: selftest of")).collect();
    println!("{}", found.join("\n"));
    let usable = Device::open()?.info()?.usable as usize;
    modules::reload()?;
    ensure_eq!(found.iter().filter(|line| line.contains(wanted)).count(), channels, "as wanted");
    ensure_eq!(usable, channels, "usable channels after the self-test");
    Ok(())
}
