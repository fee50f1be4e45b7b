//! A device that fails during transfers between two processes.

use super::wreck::{PIECE, on_wreck};
use super::*;

const LEN: usize = 8 * PIECE;

/// Pushes two pieces or more for every channel into the partner's memory.
fn push(scene: &Scene) -> Outcome<Submit> {
    let Submitted { result, out } = scene.submit(SUBMIT_PUSH, &mut scene.pieces(SUBMIT_PUSH, 8)?);
    ensure_eq!(result, Ok(()), "a push on a failing device");
    Ok(out)
}

pub fn wreck_export_errors_name_the_pieces() -> Outcome {
    on_wreck(|wreck| {
        for fault in [
            Fault::once(Kind::Read),
            Fault::once(Kind::Write).after(1),
            Fault::once(Kind::Other),
            Fault::once(Kind::Hang),
        ] {
            let scene = Scene::private(LEN)?;
            wreck.bench.arm(wreck.places[0], fault)?;
            let out = push(&scene)?;
            let failed = scene.device.end(&out)?;
            println!("{fault:?}: failed {failed:#x}");
            ensure!(failed != 0 && failed >> out.accepted == 0, "{fault:?}: failed {failed:#x}");
            // Done again, and right.
            wreck.recover()?;
            scene.device.finish(&push(&scene)?).context(format_args!("after {fault:?}"))?;
            scene.partner.must(Order::Expect(0, 2)).context(format_args!("{fault:?}"))?;
            scene.partner.must(Order::Unexport(scene.export, 1000))?;
        }
        Ok(())
    })
}

pub fn wreck_export_hang_is_waited_for_by_the_owner() -> Outcome {
    on_wreck(|wreck| {
        let scene = Scene::private(LEN)?;
        wreck.bench.arm_all(Fault::once(Kind::Hang))?;
        let out = push(&scene)?;
        let found = scene.partner.order(Order::Unexport(scene.export, 20));
        ensure_eq!(found, Err(ETIMEDOUT), "taking back while a channel hangs");
        scene.partner.must(Order::Unexport(scene.export, 20_000))?;
        scene.partner.must(Order::Fill(0, 7))?;
        ensure!(scene.device.end(&out)? != 0, "hanging pieces succeed");
        sleep(Duration::from_millis(300));
        scene.partner.must(Order::Expect(0, 7)).map(drop).context("written after it was taken back")
    })
}

pub fn wreck_export_copier_killed_under_a_hang_owner_gets_its_buffer_back() -> Outcome {
    on_wreck(|wreck| {
        let port = wreck.device.port()?;
        let buffer = Region::shared(LEN)?;
        let shared = Region::shared(PAGE)?;
        buffer.fill(1);
        let (exported, begun) = (Gate::new()?, Gate::new()?);
        wreck.bench.arm_all(Fault::once(Kind::Stall).value(700))?;
        let mut copier = fork(|| {
            let own = Device::open()?;
            let ours = Region::of_small_pages(LEN)?;
            exported.pass();
            let piece = Piece { dst: 0, ..Piece::new(&ours, 0, &ours, 0, LEN) };
            let mut pieces = piece.split(8, wreck.info.channels);
            let found = own.submit_across(&mut pieces, SUBMIT_PUSH, port.fd(), shared.word(0));
            ensure_eq!(found.result, Ok(()), "the copier");
            begun.open();
            loop {
                sleep(Duration::from_secs(1));
            }
        })?;
        let export = port.export(buffer.address(0), LEN, BOTH)?;
        shared.set_word(0, export);
        exported.open();
        begun.pass();
        copier.kill(libc::SIGKILL);
        ensure_eq!(port.unexport(export, PATIENCE), Ok(()), "after the copier's death");
        buffer.fill(9);
        sleep(Duration::from_millis(900));
        buffer.expect(9).context("written after it was taken back")?;
        copier.wait();
        Ok(())
    })
}

pub fn wreck_export_owner_killed_under_a_hang_no_other_process_is_written() -> Outcome {
    on_wreck(|wreck| {
        let mut scene = Scene::private(LEN)?;
        wreck.bench.arm_all(Fault::once(Kind::Stall).value(700))?;
        let out = push(&scene)?;
        scene.partner.kill();
        let canary = Canary::new(8 * LEN)?;
        scene.device.end(&out)?;
        sleep(Duration::from_millis(900));
        canary.expect_alive()
    })
}

/// Messages that the engine does not carry go another way: through shared memory here.
pub fn wreck_export_messages_arrive_though_channels_fail() -> Outcome {
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
                let mut command = shim::host_program("ipc_messages helper 300000")?;
                shim::finish(command.env("ADMA_IPC_ENGINE", engine))
                    .context(format_args!("{fault:?}"))?;
                wreck.recover()?;
            }
        }
        Ok(())
    })
}
