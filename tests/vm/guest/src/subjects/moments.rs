//! The moments at which memory, file or process goes away under a copy.
//!
//! Afterwards nothing is pinned (main looks), and no memory outside the copy was written.

use crate::canary::Canary;
use crate::device::*;
use crate::effort::{PATIENCE, eventually, rounds};
use crate::faults::{Bench, Fault, Kind};
use crate::memory::{PAGE, Region, memory_file};
use crate::modules;
use crate::process::{self, Ended, become_victim, fork, leave};
use crate::random::Random;
use crate::verdict::{Context, Outcome};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

tests! {
    moment_close_under_way_pins_balance
    moment_close_with_words_mapped_pins_balance
    moment_kill_at_random_pins_balance
    moment_kill_while_waiting_ends_at_once
    moment_exec_under_way_pins_balance
    moment_exit_under_way_pins_balance
    moment_fork_under_way_child_sees_no_writes
    moment_fork_while_a_thread_copies_all_are_right
    moment_change_of_destination_waits_for_what_is_under_way
    moment_change_of_source_waits_for_what_is_under_way
    moment_unmap_while_a_thread_copies_nothing_comes_later
    moment_fork_waits_for_what_is_under_way
    moment_first_writes_after_a_fork_are_not_held_up
    moment_unmap_under_way_nobody_else_is_written
    moment_move_under_way_bytes_arrive_at_the_new_place
    moment_discard_under_way_nobody_else_is_written
    moment_truncate_under_way_nobody_else_is_written
    moment_signal_while_waiting_is_eintr
    moment_unload_while_open_is_refused
    moment_open_and_close_in_a_loop_work
}

const LEN: usize = 32 * PAGE;

/// Copies of one buffer into another, in several pieces on all channels.
struct Scene {
    device: Device,
    dst: Region,
    src: Region,
}

impl Scene {
    fn new() -> Outcome<Scene> {
        let (dst, src) = (Region::of_small_pages(LEN)?, Region::of_small_pages(LEN)?);
        Scene::between(dst, src)
    }

    fn between(dst: Region, src: Region) -> Outcome<Scene> {
        dst.fill(1);
        src.fill(2);
        Ok(Scene { device: Device::open()?, dst, src })
    }

    fn pieces(&self) -> Outcome<Vec<Piece>> {
        let channels = self.device.info()?.channels;
        Ok(Piece::new(&self.dst, 0, &self.src, 0, LEN).split(4 * channels as usize, channels))
    }

    fn start(&self) -> Outcome<Submit> {
        self.device.start(&mut self.pieces()?)
    }

    fn end(&self, request: &Submit) -> Outcome {
        ensure_eq!(self.device.end(request)?, 0, "failed pieces");
        Ok(())
    }
}

/// Runs something some times on a quick engine, and twice on a slow one; no page that is free
/// then is written.
fn at_both_speeds(quick: usize, run: impl Fn() -> Outcome) -> Outcome {
    let bench = Bench::new()?;
    for slow in [false, true] {
        if slow {
            bench.slow_down()?;
        }
        for _ in 0..if slow { 2 } else { rounds(quick) } {
            run()?;
            Canary::new(2 * LEN)?.expect_alive()?;
        }
    }
    Ok(())
}

fn moment_close_under_way_pins_balance() -> Outcome {
    at_both_speeds(20, || Scene::new()?.start().map(drop))?;
    let canary = Canary::new(4 * LEN)?;
    sleep(Duration::from_millis(300));
    canary.expect_alive()
}

/// The mapping outlives the file's number; the last to go takes the rest along.
fn moment_close_with_words_mapped_pins_balance() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    for _ in 0..2 {
        let scene = Scene::new()?;
        let words = scene.device.all_words()?;
        scene.start()?;
        drop(scene);
        let canary = Canary::new(2 * LEN)?;
        sleep(Duration::from_millis(50));
        drop(words);
        canary.expect_alive()?;
    }
    Ok(())
}

/// Counts in `begun` how many requests it has started.
fn copy_for_ever(begun: &Region) -> Outcome {
    let scene = Scene::new()?;
    loop {
        let request = scene.start()?;
        begun.set_word(0, begun.word(0) + 1);
        scene.end(&request)?;
    }
}

fn moment_kill_at_random_pins_balance() -> Outcome {
    let mut random = Random::new(11);
    let canary = Canary::new(4 * LEN)?;
    let begun = Region::shared(PAGE)?;
    let rounds = rounds(1000);
    let mut copying = 0;
    for round in 0..rounds {
        begun.set_word(0, 0);
        let mut child = fork(|| copy_for_ever(&begun))?;
        // Mostly while it copies; now and then before.
        if !random.once_in(8) {
            let copies = || begun.word(0) > 0;
            ensure!(eventually(PATIENCE, copies), "the child of round {round} does not copy");
        }
        sleep(Duration::from_micros(random.below(2000)));
        child.kill(libc::SIGKILL);
        let ended = child.wait_within(PATIENCE);
        ensure_eq!(ended, Some(Ended::Killed(libc::SIGKILL)), "the child of round {round}");
        copying += usize::from(begun.word(0) > 0);
        if round % 8 == 0 {
            // On pages that the child has just given back.
            let fresh = Canary::new(2 * LEN)?;
            sleep(Duration::from_millis(1));
            fresh.expect_alive().context(format_args!("round {round}"))?;
        }
    }
    println!("{copying} of {rounds} children were killed while copying");
    canary.expect_alive()
}

fn moment_kill_while_waiting_ends_at_once() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    for _ in 0..3 {
        let mut child = fork(|| {
            let scene = Scene::new()?;
            let request = scene.start()?;
            scene.device.end(&request)?;
            loop {
                sleep(Duration::from_secs(1));
            }
        })?;
        sleep(Duration::from_millis(30));
        child.kill(libc::SIGKILL);
        let ended = child.wait_within(PATIENCE);
        ensure_eq!(ended, Some(Ended::Killed(libc::SIGKILL)), "the waiting child");
        Canary::new(2 * LEN)?.expect_alive()?;
    }
    Ok(())
}

fn moment_exec_under_way_pins_balance() -> Outcome {
    at_both_speeds(10, || {
        let child = fork(|| {
            let scene = Scene::new()?;
            scene.start()?;
            let failed = become_victim("nothing", &[]);
            drop(scene);
            Err(failed)
        })?;
        child.succeed()
    })
}

fn moment_exit_under_way_pins_balance() -> Outcome {
    at_both_speeds(20, || {
        let child = fork(|| {
            let scene = Scene::new()?;
            scene.start()?;
            leave(0)
        })?;
        child.succeed()
    })
}

/// Pinned pages are the parent's: the child gets copies, and no engine writes into those.
fn moment_fork_under_way_child_sees_no_writes() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    for round in 0..3 {
        let scene = Scene::new()?;
        let request = scene.start()?;
        let child = fork(|| {
            let seen: Vec<u64> = (0..LEN).step_by(8).map(|at| scene.dst.word(at)).collect();
            sleep(Duration::from_millis(200));
            for (i, word) in seen.iter().enumerate() {
                ensure_eq!(scene.dst.word(8 * i), *word, "word {i} of the child");
            }
            Ok(())
        })?;
        // The parent writes to its source as soon as the request is over, and the child's
        // own memory must not care.
        scene.end(&request)?;
        scene.dst.expect(2).context(format_args!("the parent, round {round}"))?;
        child.succeed()?;
    }
    Ok(())
}

fn moment_fork_while_a_thread_copies_all_are_right() -> Outcome {
    let over = AtomicBool::new(false);
    let copies = || -> Outcome {
        let scene = Scene::new()?;
        let mut seed = 100;
        while !over.load(Ordering::Relaxed) {
            seed += 1;
            scene.src.fill(seed);
            // A fork refuses what is just being submitted.
            scene.device.carry_in_turn(&mut scene.pieces()?)?;
            scene.dst.expect(seed).context("a copy during forks")?;
        }
        Ok(())
    };
    let canary = Canary::new(LEN)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(copies);
        let mut outcome = Ok(());
        for _ in 0..rounds(40) {
            outcome = fork(|| canary.expect_alive()).and_then(process::Child::succeed);
            if outcome.is_err() {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        thread.join().expect("no panic").and(outcome)
    })
}

// ---- what changes is waited for -------------------------------------------------------

/// Memory that is mapped twice: the second mapping shows what becomes of it when the first is gone.
fn twice(seed: u64) -> Outcome<(Region, Region)> {
    let file = memory_file(LEN)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let map = || Region::map_file(file.as_raw_fd(), 0, LEN, rights, libc::MAP_SHARED);
    let (here, there) = (map()?, map()?);
    here.fill(seed);
    Ok((here, there))
}

type Change = (&'static str, fn(&Region) -> Outcome);

/// What a program can do to its memory and go on.
const CHANGES: &[Change] = &[
    ("unmap", |region| Ok(region.unmap_part(0, LEN)?)),
    ("unmap a page", |region| Ok(region.unmap_part(LEN - PAGE, PAGE)?)),
    ("replace", |region| Ok(region.replace()?)),
    ("move", |region| region.move_away().map(drop)),
    ("discard", |region| Ok(region.advise(0, LEN, libc::MADV_DONTNEED)?)),
    ("protect", |region| Ok(region.protect(0, LEN, libc::PROT_READ)?)),
];

/// Once its memory is gone from the program's view, no copy writes to it any more.
fn moment_change_of_destination_waits_for_what_is_under_way() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    for (name, change) in CHANGES {
        let (dst, view) = twice(1)?;
        let scene = Scene::between(dst, Region::of_small_pages(LEN)?)?;
        let request = scene.start()?;
        change(&scene.dst)?;
        view.expect(2).context(format_args!("when {name} was over"))?;
        scene.end(&request)?;
    }
    Ok(())
}

/// And none reads from it: what is written there afterwards goes nowhere.
fn moment_change_of_source_waits_for_what_is_under_way() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    for (name, change) in CHANGES {
        let (src, view) = twice(2)?;
        let scene = Scene::between(Region::of_small_pages(LEN)?, src)?;
        let request = scene.start()?;
        change(&scene.src)?;
        view.fill(3);
        scene.end(&request)?;
        scene.dst.expect(2).context(format_args!("with {name} under way"))?;
    }
    Ok(())
}

/// Whatever the other thread is at, from pinning to waiting.
fn moment_unmap_while_a_thread_copies_nothing_comes_later() -> Outcome {
    let bench = Bench::new()?;
    let file = memory_file(LEN)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let map = || Region::map_file(file.as_raw_fd(), 0, LEN, rights, libc::MAP_SHARED);
    let (dst, view) = (map()?, map()?);
    let scene = Scene::between(dst, Region::of_small_pages(LEN)?)?;
    bench.arm_all(Fault::always(Kind::Slow).value(1000))?;
    let over = AtomicBool::new(false);
    let copies = || -> Outcome<usize> {
        let channels = scene.device.info()?.channels;
        let whole = Piece::new(&scene.dst, 0, &scene.src, 0, LEN);
        let mut accepted = 0;
        while !over.load(Ordering::Relaxed) {
            let mut pieces = whole.split(2 * channels as usize, channels);
            let Submitted { result, out } = scene.device.submit(&mut pieces);
            ensure!(matches!(result, Ok(()) | Err(EFAULT | EBUSY)), "{result:?}");
            if out.accepted > 0 {
                ensure_eq!(scene.device.end(&out)?, 0, "failed pieces");
                accepted += out.accepted as usize;
            }
        }
        Ok(accepted)
    };
    let unmaps = || -> Outcome {
        let mut random = Random::new(5);
        for round in 0..rounds(200) {
            sleep(Duration::from_micros(random.below(20_000)));
            scene.dst.unmap_part(0, LEN)?;
            view.fill(7);
            sleep(Duration::from_millis(3));
            view.expect(7).context(format_args!("round {round}"))?;
            scene.dst.map_again(file.as_raw_fd())?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(copies);
        let outcome = unmaps();
        over.store(true, Ordering::Relaxed);
        let accepted = thread.join().expect("no panic")?;
        ensure!(accepted > 0, "nothing was copied at all");
        println!("{accepted} pieces were copied meanwhile");
        outcome
    })
}

/// The child gets what the copy makes of the memory, not half of it.
fn moment_fork_waits_for_what_is_under_way() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    for round in 0..3 {
        let scene = Scene::new()?;
        let request = scene.start()?;
        let child = fork(|| scene.dst.expect(2).context("the child's"))?;
        scene.end(&request)?;
        child.succeed().context(format_args!("round {round}"))?;
    }
    Ok(())
}

/// To pin what the child still shares changes the mapping, in the middle of the request that
/// has transfers under way: it must not wait for itself.
fn moment_first_writes_after_a_fork_are_not_held_up() -> Outcome {
    let bench = Bench::new()?;
    for slow in [false, true] {
        let scene = Scene::new()?;
        let done = process::Gate::new()?;
        let child = fork(|| {
            done.pass();
            scene.dst.expect(1).context("the child's")
        })?;
        if slow {
            bench.slow_down()?;
        }
        let begun = Instant::now();
        let request = scene.start()?;
        let submitted = begun.elapsed();
        scene.end(&request)?;
        scene.dst.expect(2).context("the parent's")?;
        done.open();
        child.succeed()?;
        println!("submitted in {submitted:?}, over after {:?}", begun.elapsed());
        ensure!(submitted < Duration::from_secs(2), "submitted in {submitted:?}");
        // From now on it is the parent's alone, and kept.
        bench.clear()?;
        let whole = || [Piece::new(&scene.dst, 0, &scene.src, 0, LEN)];
        scene.device.carry(&mut whole())?;
        let again = scene.device.carry(&mut whole())?;
        ensure_eq!(again.pinned, 0, "pages pinned by the third copy");
    }
    Ok(())
}

fn moment_unmap_under_way_nobody_else_is_written() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    for _ in 0..3 {
        let scene = Scene::new()?;
        let request = scene.start()?;
        scene.dst.unmap_part(0, LEN)?;
        scene.src.unmap_part(0, LEN)?;
        let canary = Canary::new(4 * LEN)?;
        scene.end(&request)?;
        canary.expect_alive()?;
    }
    // Other memory at the same addresses is other memory.
    let scene = Scene::new()?;
    let request = scene.start()?;
    scene.dst.replace()?;
    scene.dst.fill(3);
    scene.end(&request)?;
    scene.dst.expect(3).context("the memory that took the place")?;
    // And the next copy goes to where the addresses lead now.
    let request = scene.start()?;
    scene.end(&request)?;
    scene.dst.expect(2).context("the next copy")
}

fn moment_move_under_way_bytes_arrive_at_the_new_place() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    let scene = Scene::new()?;
    let request = scene.start()?;
    let moved = scene.dst.move_away()?;
    let source = scene.src.move_away()?;
    let canary = Canary::new(4 * LEN)?;
    scene.end(&request)?;
    moved.expect(2).context("the moved destination")?;
    source.expect(2).context("the moved source")?;
    canary.expect_alive()
}

fn moment_discard_under_way_nobody_else_is_written() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    for advice in [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_PAGEOUT] {
        let scene = Scene::new()?;
        let request = scene.start()?;
        scene.dst.advise(0, LEN, advice)?;
        scene.src.advise(0, LEN, advice)?;
        let canary = Canary::new(4 * LEN)?;
        scene.end(&request)?;
        canary.expect_alive().context(format_args!("advice {advice}"))?;
        if advice == libc::MADV_DONTNEED {
            scene.dst.expect_zero(0, LEN).context("after MADV_DONTNEED")?;
        }
    }
    Ok(())
}

fn moment_truncate_under_way_nobody_else_is_written() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        let (to, from) = (memory_file(LEN)?, memory_file(LEN)?);
        let scene = Scene::between(
            Region::map_file(to.as_raw_fd(), 0, LEN, rights, flags)?,
            Region::map_file(from.as_raw_fd(), 0, LEN, rights, flags)?,
        )?;
        let request = scene.start()?;
        to.set_len(0)?;
        from.set_len(0)?;
        let canary = Canary::new(4 * LEN)?;
        scene.end(&request)?;
        canary.expect_alive()?;
        // A file that has grown again is empty.
        to.set_len(LEN as u64)?;
        scene.dst.expect_zero(0, LEN).context("the file that was truncated")?;
    }
    Ok(())
}

fn moment_signal_while_waiting_is_eintr() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    let scene = Scene::new()?;
    process::on_signal(libc::SIGUSR1, process::nothing as *const () as usize);
    // Before the request, for which a fork would wait.
    let started = process::Gate::new()?;
    let sender = fork(|| {
        started.pass();
        sleep(Duration::from_millis(15));
        process::signal_parent(libc::SIGUSR1);
        Ok(())
    })?;
    let request = scene.start()?;
    started.open();
    let found = scene.device.wait(request.id, PATIENCE);
    sender.succeed()?;
    ensure_eq!(found, Err(EINTR), "a wait with a signal");
    scene.end(&request)?;
    scene.dst.expect(2).context("after the signal")
}

fn moment_unload_while_open_is_refused() -> Outcome {
    let scene = Scene::new()?;
    let found = modules::unload();
    ensure!(matches!(found, Err(EAGAIN | EBUSY)), "unloading while a file is open: {found:?}");
    let request = scene.start()?;
    scene.end(&request)?;
    // A page of words alone holds it as well.
    let words = scene.device.words(0)?;
    drop(scene);
    let found = modules::unload();
    ensure!(matches!(found, Err(EAGAIN | EBUSY)), "unloading while words are mapped: {found:?}");
    drop(words);
    // Free again once the works of the closed file are done.
    let gone = eventually(PATIENCE, || modules::unload().is_ok());
    ensure!(gone, "the module cannot be unloaded though no file is open");
    modules::load()?;
    Scene::new()?.start().map(|_| ())
}

fn moment_open_and_close_in_a_loop_work() -> Outcome {
    for _ in 0..rounds(200) {
        let device = Device::open()?;
        device.info()?;
    }
    let many: Outcome<Vec<Device>> = (0..64).map(|_| Device::open()).collect();
    for device in many? {
        let (dst, src) = (Region::of_small_pages(PAGE)?, Region::of_small_pages(PAGE)?);
        src.fill(9);
        device.carry(&mut [Piece::new(&dst, 0, &src, 0, PAGE)])?;
        dst.expect(9)?;
    }
    Ok(())
}
