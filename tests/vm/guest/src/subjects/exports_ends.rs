//! The moments at which an export, a port, a file or a process goes away under a transfer
//! between two processes.
//!
//! Afterwards nothing is pinned (main looks), and no memory outside the copy was written.

use crate::canary::Canary;
use crate::cgroup::ControlGroup;
use crate::device::*;
use crate::effort::{PATIENCE, eventually, rounds};
use crate::faults::Bench;
use crate::kernel::{Statistics, pins_outstanding, settle};
use crate::memory::{PAGE, Region};
use crate::partner::Order;
use crate::process::{Ended, Gate, fork};
use crate::random::Random;
use crate::scene::{BOTH, Scene};
use crate::verdict::{Context, Outcome};
use std::thread::sleep;
use std::time::Duration;

tests! {
    export_end_taken_back_under_way_waits
    export_end_unmapped_by_its_owner_is_efault
    export_end_unmapped_under_way_nobody_else_is_written
    export_end_owner_forks_later_transfers_are_efault
    export_end_void_export_lets_its_pages_go
    export_end_owner_closes_and_it_is_gone
    export_end_owner_closes_while_exporting_keeps_no_page
    export_end_owner_executes_and_it_is_gone
    export_end_owner_leaves_under_way_pins_balance
    export_end_owner_killed_at_random_pins_balance
    export_end_copier_killed_at_random_owner_gets_its_buffer_back
    export_end_copier_stuck_in_its_own_memory_does_not_hold_the_owner
    export_end_copier_without_processor_does_not_hold_the_owner
}

const LEN: usize = 16 * PAGE;

fn export_end_taken_back_under_way_waits() -> Outcome {
    let bench = Bench::new()?;
    for way in [SUBMIT_PULL, SUBMIT_PUSH] {
        let scene = Scene::private(LEN)?;
        bench.slow_down()?;
        let request = scene.start(way)?;
        let found = scene.partner.order(Order::Unexport(scene.export, 0));
        ensure_eq!(found, Err(EAGAIN), "taking back under way");
        let found = scene.partner.order(Order::Unexport(scene.export, 1));
        ensure_eq!(found, Err(ETIMEDOUT), "taking back under way, for a millisecond");
        scene.expect_refused(ENOENT, "being taken back")?;
        scene.partner.must(Order::Unexport(scene.export, 20_000))?;
        ensure_eq!(scene.device.end(&request)?, 0, "failed pieces");
        ensure_eq!(scene.partner.order(Order::Unexport(scene.export, 0)), Err(ENOENT), "twice");
        scene.expect_refused(ENOENT, "taken back")?;
        match way {
            SUBMIT_PULL => scene.ours.expect(1).context("pulled")?,
            _ => scene.partner.must(Order::Expect(0, 2)).map(|_| ())?,
        }
        bench.clear()?;
    }
    Ok(())
}

fn export_end_unmapped_by_its_owner_is_efault() -> Outcome {
    for order in [Order::Unmap(0), Order::Replace(0, 3)] {
        let scene = Scene::private(LEN)?;
        scene.partner.must(order)?;
        scene.expect_refused(EFAULT, "mapping changed")?;
        scene.ours.expect(2).context("refused, but written")?;
        if order != Order::Unmap(0) {
            scene.partner.must(Order::Expect(0, 3)).context("the memory that took the place")?;
        }
        scene.partner.must(Order::Unexport(scene.export, 0)).context("a void export")?;
        // Exported again, it is the new memory.
        if order != Order::Unmap(0) {
            let export = scene.partner.must(Order::Export(0, 0, LEN, BOTH))?;
            let scene = Scene { export, ..scene };
            scene.carry(SUBMIT_PULL)?;
            scene.ours.expect(3).context("exported again")?;
        }
    }
    Ok(())
}

fn export_end_unmapped_under_way_nobody_else_is_written() -> Outcome {
    let bench = Bench::new()?;
    for order in [Order::Unmap(0), Order::Replace(0, 3)] {
        let scene = Scene::private(LEN)?;
        bench.slow_down()?;
        let request = scene.start(SUBMIT_PUSH)?;
        scene.partner.must(order)?;
        let canary = Canary::new(4 * LEN)?;
        ensure_eq!(scene.device.end(&request)?, 0, "failed pieces");
        canary.expect_alive()?;
        if order != Order::Unmap(0) {
            scene.partner.must(Order::Expect(0, 3)).context("the memory that took the place")?;
        }
        scene.expect_refused(EFAULT, "mapping changed")?;
        bench.clear()?;
    }
    Ok(())
}

fn export_end_owner_forks_later_transfers_are_efault() -> Outcome {
    let scene = Scene::private(LEN)?;
    scene.carry(SUBMIT_PULL)?;
    scene.ours.expect(1)?;
    scene.partner.must(Order::Fork)?;
    scene.expect_refused(EFAULT, "after a fork")?;
    let export = scene.partner.must(Order::Export(0, 0, LEN, BOTH))?;
    let scene = Scene { export, ..scene };
    scene.ours.fill(5);
    scene.carry(SUBMIT_PUSH)?;
    scene.partner.must(Order::Expect(0, 5)).map(|_| ())
}

/// Without ADMA_IOC_UNEXPORT.
fn export_end_void_export_lets_its_pages_go() -> Outcome {
    let before = Statistics::now()?.pinned_pages;
    let scene = Scene::private(LEN)?;
    let exported = Statistics::now()?.pinned_pages;
    ensure_eq!(exported - before, (LEN / PAGE) as u64, "pinned pages");
    scene.partner.must(Order::Unmap(0))?;
    let gone = || Statistics::now().is_ok_and(|now| now.pinned_pages == before);
    ensure!(eventually(PATIENCE, gone), "still pinned: {:?}", Statistics::now()?);
    scene.partner.must(Order::Unexport(scene.export, 0)).map(|_| ())
}

fn export_end_owner_closes_and_it_is_gone() -> Outcome {
    // The last descriptor of a port is ours: the port stays when only the owner's goes.
    let scene = Scene::private(LEN)?;
    scene.partner.must(Order::ClosePort)?;
    scene.carry(SUBMIT_PULL).context("with the owner's descriptor closed")?;
    scene.ours.expect(1)?;
    let scene = Scene::private(LEN)?;
    scene.partner.must(Order::CloseDevice)?;
    scene.expect_refused(ENOENT, "the file is closed")?;
    let found = scene.partner.order(Order::Export(0, 0, LEN, BOTH));
    ensure_eq!(found, Err(ESHUTDOWN), "exporting behind a port that is shut");
    ensure_eq!(scene.partner.order(Order::Unexport(scene.export, 0)), Err(ENOENT), "taking back");
    Ok(())
}

/// The port is still there, and a thread at it: a line that is being made when the file goes
/// must not be kept for a file that is closed.
fn export_end_owner_closes_while_exporting_keeps_no_page() -> Outcome {
    // Each in a line of its own, which no export before has made.
    const LINE: usize = 64 * PAGE;
    const EXPORTS: usize = 256;
    let buffers = Region::of_small_pages(EXPORTS * LINE)?;
    let pinned = pins_outstanding()?;
    let mut random = Random::new(43);
    let mut made = 0;
    for round in 0..rounds(200) {
        let device = Device::open()?;
        let Ok(port) = device.port() else { fail!("no port") };
        let export = |nr| port.export(buffers.address(nr * LINE), PAGE, EXPORT_READ);
        let pause = Duration::from_micros(random.below(2500));
        let (exports, end) = std::thread::scope(|scope| {
            scope.spawn(|| {
                sleep(pause);
                drop(device);
            });
            let refused = (0..EXPORTS).map(|nr| (nr, export(nr))).find(|(_, found)| found.is_err());
            refused.unwrap_or((EXPORTS, Ok(0)))
        });
        ensure!(matches!(end, Ok(_) | Err(ESHUTDOWN)), "round {round}: {exports} exports, {end:?}");
        made += exports;
        settle(pinned).context(format_args!("round {round}, {exports} exports"))?;
    }
    println!("{made} exports");
    Ok(())
}

fn export_end_owner_executes_and_it_is_gone() -> Outcome {
    let scene = Scene::private(LEN)?;
    scene.partner.tell(Order::Exec);
    let gone = || {
        let found = scene.submit_all(SUBMIT_PULL).map(|found| {
            if found.result.is_ok() {
                let _ = scene.device.end(&found.out);
            }
            found.result
        });
        found.is_ok_and(|result| result == Err(ENOENT))
    };
    ensure!(eventually(PATIENCE, gone), "the export outlives exec");
    Ok(())
}

fn export_end_owner_leaves_under_way_pins_balance() -> Outcome {
    let bench = Bench::new()?;
    for killed in [false, true] {
        let mut scene = Scene::private(LEN)?;
        bench.slow_down()?;
        let request = scene.start(SUBMIT_PUSH)?;
        if killed {
            scene.partner.kill();
        } else {
            scene.partner.tell(Order::Leave);
        }
        let canary = Canary::new(4 * LEN)?;
        ensure_eq!(scene.device.end(&request)?, 0, "failed pieces");
        sleep(Duration::from_millis(50));
        canary.expect_alive()?;
        // Its memory goes before its files: until then the export is void (EFAULT).
        if !killed {
            scene.partner.wait();
        }
        scene.expect_refused(ENOENT, "the owner is gone")?;
        bench.clear()?;
    }
    Ok(())
}

fn export_end_owner_killed_at_random_pins_balance() -> Outcome {
    let mut random = Random::new(41);
    let canary = Canary::new(4 * LEN)?;
    let (mut whole, rounds) = (0, rounds(300));
    for round in 0..rounds {
        let mut scene = Scene::private(LEN)?;
        let device = &scene.device;
        let way = random.pick(&[SUBMIT_PULL, SUBMIT_PUSH]);
        for _ in 0..random.below(4) {
            let found = scene.submit_all(way)?;
            if found.result.is_ok() && random.once_in(2) {
                ensure_eq!(device.end(&found.out)?, 0, "failed pieces");
                whole += 1;
            }
        }
        ensure_eq!(scene.partner.kill(), Ended::Killed(libc::SIGKILL), "round {round}");
        // What had begun ends; nothing begins any more.
        scene.expect_refused(ENOENT, "the owner is dead")?;
        if round % 8 == 0 {
            let fresh = Canary::new(2 * LEN)?;
            sleep(Duration::from_millis(1));
            fresh.expect_alive().context(format_args!("round {round}"))?;
        }
    }
    println!("{whole} transfers in {rounds} rounds");
    canary.expect_alive()
}

/// We own, the other copies.
fn export_end_copier_killed_at_random_owner_gets_its_buffer_back() -> Outcome {
    let mut random = Random::new(42);
    let device = Device::open()?;
    let Ok(port) = device.port() else { fail!("no port") };
    let buffer = Region::shared(LEN)?;
    buffer.touch();
    let count = Region::shared(PAGE)?;
    let rounds = rounds(500);
    let mut copying = 0;
    for round in 0..rounds {
        count.set_word(0, 0);
        let gate = Gate::new()?;
        let mut copier = fork(|| {
            let own = Device::open()?;
            let ours = Region::of_small_pages(LEN)?;
            gate.pass();
            let export = count.word(8);
            for way in [SUBMIT_PUSH, SUBMIT_PULL].into_iter().cycle() {
                let piece = Piece::new(&ours, 0, &ours, 0, LEN);
                let piece = match way {
                    SUBMIT_PULL => Piece { src: 0, ..piece },
                    _ => Piece { dst: 0, ..piece },
                };
                let found = own.submit_across(&mut piece.split(4, 1), way, port.fd(), export);
                ensure!(found.result.is_ok(), "{found:?}");
                count.set_word(0, count.word(0) + 1);
                if count.word(0) % 2 == 0 {
                    own.end(&found.out)?;
                }
            }
            Ok(())
        })?;
        // After the fork, which would make it void.
        let export = match port.export(buffer.address(0), LEN, BOTH) {
            Ok(export) => export,
            Err(errno) => fail!("round {round}: {errno:?}"),
        };
        count.set_word(8, export);
        gate.open();
        if !random.once_in(8) {
            let copies = || count.word(0) > 0;
            ensure!(eventually(PATIENCE, copies), "the copier of round {round} does not copy");
        }
        sleep(Duration::from_micros(random.below(1500)));
        copier.kill(libc::SIGKILL);
        if random.once_in(2) {
            copier.wait();
        }
        ensure_eq!(port.unexport(export, PATIENCE), Ok(()), "round {round}");
        // No channel writes it from here on.
        buffer.fill(round as u64);
        sleep(Duration::from_micros(300));
        buffer.expect(round as u64).context("written after it was taken back")?;
        ensure_eq!(copier.wait(), Ended::Killed(libc::SIGKILL), "round {round}");
        copying += usize::from(count.word(0) > 0);
    }
    println!("{copying} of {rounds} were killed while copying");
    Ok(())
}

/// The copier's control group has a millisecond of each second, and a submission takes many: it is
/// in the middle of one when the owner takes the buffer back. UNEXPORT waits for transfers only, so
/// it returns although the copier has not run meanwhile.
fn export_end_copier_without_processor_does_not_hold_the_owner() -> Outcome {
    const LEN: usize = 32 << 20;
    const ATTEMPTS: usize = 4;
    const WAITING: u64 = 1;
    const SUBMITTING: u64 = 2;
    let group = ControlGroup::new("adma-copier")?;
    let device = Device::open()?;
    let Ok(port) = device.port() else { fail!("no port") };
    let buffer = Region::of_scattered_pages(LEN)?;
    let shared = Region::shared(PAGE)?;
    let begin = Gate::new()?;
    let copier = fork(|| {
        let own = Device::open()?;
        let ours = Region::of_scattered_pages(LEN)?;
        loop {
            shared.set_word(0, WAITING);
            begin.pass();
            shared.set_word(0, SUBMITTING);
            let piece = Piece { src: 0, ..Piece::new(&ours, 0, &ours, 0, LEN) };
            let mut pieces = piece.split(MAX_PIECES, 1);
            let found = own.submit_across(&mut pieces, SUBMIT_PULL, port.fd(), shared.word(8));
            if found.out.accepted > 0 {
                own.end(&found.out)?;
            }
        }
    })?;
    let is = |state| eventually(3 * PATIENCE, || shared.word(0) == state);
    let export = || match port.export(buffer.address(0), LEN, BOTH) {
        Ok(export) => {
            shared.set_word(8, export);
            begin.open();
            Ok(export)
        }
        Err(errno) => fail!("an export: {errno:?}"),
    };
    // The first copy pins the copier's side, with the time that it needs.
    ensure!(is(WAITING), "the copier does not begin");
    let first = export()?;
    ensure!(is(SUBMITTING) && is(WAITING), "the copier does not copy");
    ensure_eq!(port.unexport(first, PATIENCE), Ok(()), "of the first export");
    group.take_in(copier.pid())?;
    for attempt in 1..=ATTEMPTS {
        group.quota("1000 1000000")?;
        let export = export()?;
        ensure!(is(SUBMITTING), "the copier does not go on");
        let before = group.processor("nr_throttled")?;
        let stuck = || group.processor("nr_throttled").is_ok_and(|now| now > before);
        ensure!(eventually(PATIENCE, stuck), "the copier has all the time that it wants");
        let used = group.processor("usage_usec")?;
        let taken_back = port.unexport(export, PATIENCE);
        let has_run = group.processor("usage_usec")? > used;
        let submitting = shared.word(0) == SUBMITTING;
        group.quota("max")?;
        ensure_eq!(taken_back, Ok(()), "with a copier that has no processor");
        println!("attempt {attempt}: the copier has run: {has_run}, is submitting: {submitting}");
        if submitting && !has_run {
            return Ok(());
        }
        ensure!(is(WAITING), "the copier does not end");
    }
    fail!("UNEXPORT did not return before the copier had run")
}

/// Its page fault is not answered: the owner must not wait for that.
fn export_end_copier_stuck_in_its_own_memory_does_not_hold_the_owner() -> Outcome {
    if crate::kernel::has_checkers() {
        skip!("Linux 6.1 cannot wait for such a page when it is pinned for long, and says so");
    }
    let device = Device::open()?;
    let Ok(port) = device.port() else { fail!("no port") };
    let buffer = Region::shared(LEN)?;
    buffer.fill(1);
    let shared = Region::shared(PAGE)?;
    let gate = Gate::new()?;
    let copier = fork(|| {
        let own = Device::open()?;
        let trap = Region::anonymous(LEN)?;
        let Some(_faults) = trap.leave_faults_unanswered()? else {
            shared.set_word(0, 2);
            skip!("no userfaultfd here");
        };
        gate.pass();
        let mut piece = [Piece { src: 0, ..Piece::new(&trap, 0, &trap, 0, LEN) }];
        shared.set_word(0, 1);
        own.submit_across(&mut piece, SUBMIT_PULL, port.fd(), shared.word(8));
        fail!("a fault without an answer was passed")
    })?;
    let Ok(export) = port.export(buffer.address(0), LEN, BOTH) else { fail!("no export") };
    shared.set_word(8, export);
    gate.open();
    ensure!(eventually(PATIENCE, || shared.word(0) > 0), "the copier does not begin");
    if shared.word(0) == 2 {
        return copier.succeed();
    }
    sleep(Duration::from_millis(50));
    ensure_eq!(port.unexport(export, Duration::from_secs(1)), Ok(()), "with a stuck copier");
    copier.kill(libc::SIGKILL);
    Ok(())
}
