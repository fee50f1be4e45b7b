//! A device that fails while a process or file goes away.

use super::wreck::{PIECE, Wreck, on_wreck};
use super::*;
use std::process::Command;

tests! {
    wreck_end_kill_with_hanging_channel_ends = on_wreck(|wreck| {
        killed(wreck, Fault::once(Kind::Hang))?;
        Canary::new(32 * PIECE)?.expect_alive()
    });
    wreck_end_kill_with_stalled_channel_no_other_process_is_written = on_wreck(|wreck| {
        killed(wreck, Fault::once(Kind::Stall).value(STALL.as_millis() as u32))?;
        let canary = Canary::new(64 * PIECE)?;
        sleep(STALL + Duration::from_millis(500));
        canary.expect_alive().context("after the stall")
    });
}

const STALL: Duration = Duration::from_millis(1500);

pub fn wreck_end_close_with_hanging_channel_pins_balance() -> Outcome {
    on_wreck(|wreck| {
        let pair = Pair::new(8 * PIECE)?;
        wreck.bench.arm_all(Fault::once(Kind::Hang))?;
        pair.start(pair.channels as usize)?;
        drop(pair);
        let canary = Canary::new(32 * PIECE)?;
        sleep(Duration::from_millis(500));
        canary.expect_alive()
    })
}

/// Kills a child that copies and waits, while channels have `fault`.
fn killed(wreck: &Wreck, fault: Fault) -> Outcome {
    wreck.bench.arm_all(fault)?;
    let mut child = fork(|| {
        let pair = Pair::new(8 * PIECE)?;
        let request = pair.start(8)?;
        pair.device.end(&request)?;
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

/// The library copies what the engine does not.
pub fn wreck_end_program_with_failing_channels_copies_right() -> Outcome {
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
            wreck.recover()?;
        }
        Ok(())
    })
}

pub fn wreck_end_reload_works() -> Outcome {
    for _ in 0..3 {
        modules::reload()?;
        on_wreck(|wreck| wreck.attempt()?.expect_good())?;
    }
    Ok(())
}

/// The self-test for owners of the hardware: a line for each channel.
pub fn wreck_end_selftest_shows_behaviour_after_an_error() -> Outcome {
    on_wreck(|_| Ok(()))?;
    kernel::announce("ioat");
    let channels = Device::open()?.info()?.channels as usize;
    modules::take_out()?;
    modules::load_with(c"selftest=1")?;
    let said = shim::finish(&mut Command::new("dmesg"))?;
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
