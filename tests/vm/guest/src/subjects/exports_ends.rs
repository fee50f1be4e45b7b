//! The moments at which an export, a port, a file or a process goes away under a transfer
//! between two processes.
//!
//! Afterwards nothing is pinned (main looks), and no memory outside the copy was written.

use super::*;

tests! {
    export_end_unmapped_by_its_owner_is_efault = unmapped(false);
    export_end_unmapped_under_way_no_other_process_is_written = unmapped(true);
}

const LEN: usize = 16 * PAGE;

pub fn export_end_taken_back_under_way_waits() -> Outcome {
    let bench = Bench::new()?;
    for way in [SUBMIT_PULL, SUBMIT_PUSH] {
        let scene = Scene::private(LEN)?;
        bench.slow_down_one()?;
        // All on one channel: it takes as long however many there are.
        let mut pieces = scene.piece(way, 0, 0, LEN).split(4, 1);
        let Submitted { result, out: request } = scene.submit(way, &mut pieces);
        ensure_eq!(result, Ok(()), "way {way}");
        let found = scene.partner.order(Order::Unexport(scene.export, 0));
        ensure_eq!(found, Err(EAGAIN), "taking back under way");
        let found = scene.partner.order(Order::Unexport(scene.export, 1));
        ensure_eq!(found, Err(ETIMEDOUT), "taking back under way, for a millisecond");
        scene.expect_refused(ENOENT, "being taken back")?;
        scene.partner.must(Order::Unexport(scene.export, 20_000))?;
        scene.device.finish(&request)?;
        ensure_eq!(scene.partner.order(Order::Unexport(scene.export, 0)), Err(ENOENT), "twice");
        scene.expect_refused(ENOENT, "taken back")?;
        match way {
            SUBMIT_PULL => scene.ours.expect(1).context("pulled")?,
            _ => scene.partner.must(Order::Expect(0, 2)).map(drop)?,
        }
        bench.clear()?;
    }
    Ok(())
}

/// A buffer whose mapping changes, also under a push.
fn unmapped(under_way: bool) -> Outcome {
    let bench = Bench::new()?;
    for order in [Order::Unmap(0), Order::Replace(0, 3)] {
        let scene = Scene::private(LEN)?;
        let mut request = None;
        if under_way {
            bench.slow_down()?;
            request = Some(scene.start(SUBMIT_PUSH)?);
        }
        scene.partner.must(order)?;
        let canary = Canary::new(4 * LEN)?;
        request.map_or(Ok(()), |request| scene.device.finish(&request))?;
        canary.expect_alive()?;
        scene.expect_refused(EFAULT, "mapping changed")?;
        bench.clear()?;
        scene.ours.expect(2).context("refused, but written")?;
        scene.partner.must(Order::Unexport(scene.export, 0)).context("a void export")?;
        if order != Order::Unmap(0) {
            scene.partner.must(Order::Expect(0, 3)).context("the memory that took the place")?;
            // Exported again, it is the new memory.
            let export = scene.partner.must(Order::Export(0, 0, LEN, BOTH))?;
            let scene = Scene { export, ..scene };
            scene.carry(SUBMIT_PULL)?;
            scene.ours.expect(3).context("exported again")?;
        }
    }
    Ok(())
}

pub fn export_end_owner_forks_later_transfers_are_efault() -> Outcome {
    let scene = Scene::private(LEN)?;
    scene.carry(SUBMIT_PULL)?;
    scene.ours.expect(1)?;
    scene.partner.must(Order::Fork)?;
    scene.expect_refused(EFAULT, "after a fork")?;
    let export = scene.partner.must(Order::Export(0, 0, LEN, BOTH))?;
    let scene = Scene { export, ..scene };
    scene.ours.fill(5);
    scene.carry(SUBMIT_PUSH)?;
    scene.partner.must(Order::Expect(0, 5)).map(drop)
}

/// Without ADMA_IOC_UNEXPORT.
pub fn export_end_void_export_lets_its_pages_go() -> Outcome {
    let before = Statistics::now()?.pinned_pages;
    let scene = Scene::private(LEN)?;
    let exported = Statistics::now()?.pinned_pages;
    ensure_eq!(exported - before, (LEN / PAGE) as u64, "pinned pages");
    scene.partner.must(Order::Unmap(0))?;
    let gone = || Statistics::now().is_ok_and(|now| now.pinned_pages == before);
    ensure!(eventually(PATIENCE, gone), "still pinned: {:?}", Statistics::now()?);
    scene.partner.must(Order::Unexport(scene.export, 0)).map(drop)
}

pub fn export_end_owner_closes_and_it_is_gone() -> Outcome {
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
pub fn export_end_owner_closes_while_exporting_keeps_no_page() -> Outcome {
    // Each in a line of its own, which no export before has made.
    const EXPORTS: usize = 256;
    let buffers = Region::of_small_pages(EXPORTS * RANGE)?;
    let pinned = kernel::pins_outstanding()?;
    let mut random = Random::new(43);
    let mut made = 0;
    for round in 0..rounds(200) {
        let device = Device::open()?;
        let port = device.port()?;
        let export = |nr| port.export(buffers.address(nr * RANGE), PAGE, EXPORT_READ);
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
        kernel::settle(pinned).context(format_args!("round {round}, {exports} exports"))?;
    }
    println!("{made} exports");
    Ok(())
}

pub fn export_end_owner_executes_and_it_is_gone() -> Outcome {
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

pub fn export_end_owner_leaves_under_way_pins_balance() -> Outcome {
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
        scene.device.finish(&request)?;
        sleep(Duration::from_millis(50));
        canary.expect_alive()?;
        // Its memory goes away before its files: until then the export is void (EFAULT).
        if !killed {
            scene.partner.wait();
        }
        scene.expect_refused(ENOENT, "the owner is gone")?;
        bench.clear()?;
    }
    Ok(())
}

pub fn export_end_owner_killed_at_random_pins_balance() -> Outcome {
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
                device.finish(&found.out)?;
                whole += 1;
            }
        }
        ensure_eq!(scene.partner.kill(), Ended::Killed(libc::SIGKILL), "round {round}");
        // Transfers in flight end; none begins any more.
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

/// We own the buffer, the other process copies.
pub fn export_end_copier_killed_at_random_owner_gets_its_buffer_back() -> Outcome {
    let mut random = Random::new(42);
    let device = Device::open()?;
    let port = device.port()?;
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
                let whole = Piece::new(&ours, 0, &ours, 0, LEN);
                let piece = match way {
                    SUBMIT_PULL => Piece { src: 0, ..whole },
                    _ => Piece { dst: 0, ..whole },
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
        let export = port.export(buffer.address(0), LEN, BOTH).context(round)?;
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
pub fn export_end_copier_without_processor_does_not_hold_the_owner() -> Outcome {
    const LEN: usize = 32 << 20;
    const ATTEMPTS: usize = 4;
    const WAITING: u64 = 1;
    const SUBMITTING: u64 = 2;
    let group = ControlGroup::new("adma-copier")?;
    let device = Device::open()?;
    let port = device.port()?;
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
    let export = || -> Outcome<u64> {
        let export = port.export(buffer.address(0), LEN, BOTH)?;
        shared.set_word(8, export);
        begin.open();
        Ok(export)
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
pub fn export_end_copier_stuck_in_its_own_memory_does_not_hold_the_owner() -> Outcome {
    pins_must_wait_for_pages()?;
    let device = Device::open()?;
    let port = device.port()?;
    let buffer = Region::shared(LEN)?;
    buffer.fill(1);
    let shared = Region::shared(PAGE)?;
    let gate = Gate::new()?;
    let copier = fork(|| {
        let own = Device::open()?;
        let trap = Region::anonymous(LEN)?;
        let _faults = trap.leave_faults_unanswered()?;
        gate.pass();
        let mut piece = [Piece { src: 0, ..Piece::new(&trap, 0, &trap, 0, LEN) }];
        shared.set_word(0, 1);
        own.submit_across(&mut piece, SUBMIT_PULL, port.fd(), shared.word(8));
        fail!("a fault without an answer was passed")
    })?;
    let export = port.export(buffer.address(0), LEN, BOTH)?;
    shared.set_word(8, export);
    gate.open();
    ensure!(eventually(PATIENCE, || shared.word(0) > 0), "the copier does not begin");
    sleep(Duration::from_millis(50));
    ensure_eq!(port.unexport(export, Duration::from_secs(1)), Ok(()), "with a stuck copier");
    copier.kill(libc::SIGKILL);
    Ok(())
}
