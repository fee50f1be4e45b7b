//! A device that fails during transfers between two processes.

use super::traps::victim;
use super::wreck::{PIECE, on_wreck};
use crate::canary::Canary;
use crate::device::*;
use crate::effort::PATIENCE;
use crate::faults::{Fault, Kind};
use crate::memory::Region;
use crate::partner::Order;
use crate::process::fork;
use crate::scene::{BOTH, Scene};
use crate::shim;
use crate::verdict::{Context, Outcome};
use std::thread::sleep;
use std::time::Duration;

tests! {
    wreck_export_errors_name_the_pieces
    wreck_export_hang_is_waited_for_by_the_owner
    wreck_export_copier_killed_under_a_hang_owner_gets_its_buffer_back
    wreck_export_owner_killed_under_a_hang_nobody_else_is_written
    wreck_export_messages_arrive_though_channels_fail
}

const LEN: usize = 8 * PIECE;

/// Two pieces or more for every channel, into the partner's memory.
fn push(scene: &Scene) -> Outcome<Submitted> {
    Ok(scene.submit(SUBMIT_PUSH, &mut scene.pieces(SUBMIT_PUSH, 8)?))
}

fn wreck_export_errors_name_the_pieces() -> Outcome {
    on_wreck(|wreck| {
        for fault in [
            Fault::once(Kind::Read),
            Fault::once(Kind::Write).after(1),
            Fault::once(Kind::Other),
            Fault::once(Kind::Hang),
        ] {
            let scene = Scene::private(LEN)?;
            wreck.bench.arm(wreck.places[0], fault)?;
            let Submitted { result, out } = push(&scene)?;
            ensure_eq!(result, Ok(()), "{fault:?}");
            let failed = scene.device.end(&out)?;
            println!("{fault:?}: failed {failed:#x}");
            ensure!(failed != 0 && failed >> out.accepted == 0, "{fault:?}: failed {failed:#x}");
            wreck.bench.clear()?;
            // Done again, and right.
            wreck.expect_recovery()?;
            let Submitted { result, out } = push(&scene)?;
            ensure_eq!(result, Ok(()), "again after {fault:?}");
            ensure_eq!(scene.device.end(&out)?, 0, "failed pieces after {fault:?}");
            scene.partner.must(Order::Expect(0, 2)).context(format_args!("{fault:?}"))?;
            scene.partner.must(Order::Unexport(scene.export, 1000))?;
        }
        Ok(())
    })
}

fn wreck_export_hang_is_waited_for_by_the_owner() -> Outcome {
    on_wreck(|wreck| {
        let scene = Scene::private(LEN)?;
        wreck.bench.arm_all(Fault::once(Kind::Hang))?;
        let Submitted { result, out } = push(&scene)?;
        ensure_eq!(result, Ok(()), "a request that will hang");
        let found = scene.partner.order(Order::Unexport(scene.export, 20));
        ensure_eq!(found, Err(ETIMEDOUT), "taking back while a channel hangs");
        scene.partner.must(Order::Unexport(scene.export, 20_000))?;
        scene.partner.must(Order::Fill(0, 7))?;
        ensure!(scene.device.end(&out)? != 0, "hanging pieces succeed");
        sleep(Duration::from_millis(300));
        scene.partner.must(Order::Expect(0, 7)).context("written after it was taken back")?;
        wreck.bench.clear()?;
        wreck.expect_recovery()
    })
}

fn wreck_export_copier_killed_under_a_hang_owner_gets_its_buffer_back() -> Outcome {
    on_wreck(|wreck| {
        let Ok(port) = wreck.device.port() else { fail!("no port") };
        let buffer = Region::shared(LEN)?;
        let shared = Region::shared(PIECE)?;
        buffer.fill(1);
        wreck.bench.arm_all(Fault::once(Kind::Stall).value(700))?;
        let mut copier = fork(|| {
            let own = Device::open()?;
            let ours = Region::of_small_pages(LEN)?;
            while shared.word(0) == 0 {
                std::thread::yield_now();
            }
            let piece = Piece { dst: 0, ..Piece::new(&ours, 0, &ours, 0, LEN) };
            let mut pieces = piece.split(8, wreck.info.channels);
            let found = own.submit_across(&mut pieces, SUBMIT_PUSH, port.fd(), shared.word(0));
            ensure_eq!(found.result, Ok(()), "the copier");
            shared.set_word(8, 1);
            loop {
                sleep(Duration::from_secs(1));
            }
        })?;
        let Ok(export) = port.export(buffer.address(0), LEN, BOTH) else { fail!("no export") };
        shared.set_word(0, export);
        let begun = || shared.word(8) == 1;
        ensure!(crate::effort::eventually(PATIENCE, begun), "the copier does not begin");
        copier.kill(libc::SIGKILL);
        ensure_eq!(port.unexport(export, PATIENCE), Ok(()), "after the copier's death");
        buffer.fill(9);
        sleep(Duration::from_millis(900));
        buffer.expect(9).context("written after it was taken back")?;
        copier.wait();
        wreck.bench.clear()?;
        wreck.expect_recovery()
    })
}

fn wreck_export_owner_killed_under_a_hang_nobody_else_is_written() -> Outcome {
    on_wreck(|wreck| {
        let mut scene = Scene::private(LEN)?;
        wreck.bench.arm_all(Fault::once(Kind::Stall).value(700))?;
        let Submitted { result, out } = push(&scene)?;
        ensure_eq!(result, Ok(()), "a request that will stall");
        scene.partner.kill();
        let canary = Canary::new(8 * LEN)?;
        scene.device.end(&out)?;
        sleep(Duration::from_millis(900));
        canary.expect_alive()?;
        wreck.bench.clear()?;
        wreck.expect_recovery()
    })
}

/// What the engine does not carry goes another way: through shared memory here.
fn wreck_export_messages_arrive_though_channels_fail() -> Outcome {
    on_wreck(|wreck| {
        // Behind what the greetings copy, which may all be on one channel.
        for fault in [
            Fault::once(Kind::Read).after(40),
            Fault::once(Kind::Write).after(42),
            Fault::once(Kind::Hang).after(41),
            Fault::always(Kind::Lost),
        ] {
            for engine in ["helper", "auto"] {
                wreck.bench.arm_all(fault)?;
                let mut command = shim::plain(victim("ipc_messages")?);
                command.args(["helper", "300000"]).env("ADMA_IPC_ENGINE", engine);
                let done = command.output()?;
                ensure!(
                    done.status.success(),
                    "{fault:?}, {engine}: {}: {}",
                    done.status,
                    String::from_utf8_lossy(&done.stderr).trim()
                );
                wreck.bench.clear()?;
                wreck.expect_recovery()?;
            }
        }
        Ok(())
    })
}
