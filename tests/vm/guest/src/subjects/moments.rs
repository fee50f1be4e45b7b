//! The moments at which memory, file or process goes away under a copy.
//!
//! Afterwards nothing is pinned (main looks), and no memory outside the copy was written.

use super::*;
use crate::process::{become_victim, leave, nothing, on_signal, signal_parent};
use std::sync::atomic::{AtomicBool, Ordering};

tests! {
    moment_close_under_way_pins_balance = at_both_speeds(20, || start().map(drop)).and_then(|()| {
        let canary = Canary::new(4 * LEN)?;
        sleep(Duration::from_millis(300));
        canary.expect_alive()
    });
    moment_exec_under_way_pins_balance = at_both_speeds(10, || {
        in_child(|| {
            let _started = start()?;
            Err(become_victim("nothing", &[]))
        })
    });
    moment_exit_under_way_pins_balance = at_both_speeds(20, || {
        in_child(|| {
            let _started = start()?;
            leave(0)
        })
    });
    moment_move_under_way_bytes_arrive_at_the_new_place = slowly(|| {
        let mut moved = None;
        no_other_process_is_written(Pair::new(LEN)?, |pair| {
            moved = Some((pair.dst.move_away()?, pair.src.move_away()?));
            Ok(())
        })?;
        let Some((dst, src)) = moved else { fail!("nothing was moved") };
        dst.expect(2).context("the moved destination")?;
        src.expect(2).context("the moved source")
    });
}

const LEN: usize = 32 * PAGE;
/// Pieces of a copy: several for each channel.
const PARTS: usize = 16;

/// Starts a copy.
fn start() -> Outcome<(Pair, Submit)> {
    let pair = Pair::new(LEN)?;
    let request = pair.start(PARTS)?;
    Ok((pair, request))
}

/// Runs something several times on a fast engine, and twice on a slow one; checks that no freed
/// page is written.
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

/// Runs something on a slow engine.
fn slowly(run: impl FnOnce() -> Outcome) -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    run()
}

/// Changes the memory of a copy in flight; checks that reallocated pages are not written.
fn no_other_process_is_written(pair: Pair, change: impl FnOnce(&Pair) -> Outcome) -> Outcome<Pair> {
    let request = pair.start(PARTS)?;
    change(&pair)?;
    let canary = Canary::new(4 * LEN)?;
    pair.device.finish(&request)?;
    canary.expect_alive()?;
    Ok(pair)
}

/// The mapping outlives the descriptor; the last to go releases the rest.
pub fn moment_close_with_words_mapped_pins_balance() -> Outcome {
    slowly(|| {
        for _ in 0..2 {
            let (pair, _) = start()?;
            let words = pair.device.all_words()?;
            drop(pair);
            let canary = Canary::new(2 * LEN)?;
            sleep(Duration::from_millis(50));
            drop(words);
            canary.expect_alive()?;
        }
        Ok(())
    })
}

pub fn moment_kill_at_random_pins_balance() -> Outcome {
    let mut random = Random::new(11);
    let canary = Canary::new(4 * LEN)?;
    let begun = Region::shared(PAGE)?;
    let rounds = rounds(1000);
    let mut copying = 0;
    for round in 0..rounds {
        begun.set_word(0, 0);
        let mut child = fork(|| {
            let pair = Pair::new(LEN)?;
            loop {
                let request = pair.start(PARTS)?;
                begun.set_word(0, begun.word(0) + 1);
                pair.device.finish(&request)?;
            }
        })?;
        // Usually while it copies; now and then before.
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
            // On pages that the child has just freed.
            let fresh = Canary::new(2 * LEN)?;
            sleep(Duration::from_millis(1));
            fresh.expect_alive().context(format_args!("round {round}"))?;
        }
    }
    println!("{copying} of {rounds} children were killed while copying");
    canary.expect_alive()
}

pub fn moment_kill_while_waiting_ends_at_once() -> Outcome {
    slowly(|| {
        for _ in 0..3 {
            let mut child = fork(|| {
                let (pair, request) = start()?;
                pair.device.end(&request)?;
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
    })
}

pub fn moment_fork_while_a_thread_copies_all_are_right() -> Outcome {
    let over = AtomicBool::new(false);
    let canary = Canary::new(LEN)?;
    in_threads(2, |number| {
        if number == 0 {
            let forks = || (0..rounds(40)).try_for_each(|_| in_child(|| canary.expect_alive()));
            let outcome = forks();
            over.store(true, Ordering::Relaxed);
            return outcome;
        }
        let pair = Pair::new(LEN)?;
        for seed in 100.. {
            pair.src.fill(seed);
            // A fork refuses what is being submitted.
            pair.device.carry_in_turn(&mut pair.pieces(PARTS))?;
            pair.dst.expect(seed).context("a copy during forks")?;
            if over.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    })
}

// ---- what changes is waited for -------------------------------------------------------

/// Maps memory twice: the second mapping shows its contents when the first is gone.
fn twice() -> Outcome<(File, Region, Region)> {
    let file = memory_file(LEN)?;
    let map = || Region::of_file(&file, libc::MAP_SHARED);
    let (here, there) = (map()?, map()?);
    Ok((file, here, there))
}

type Change = (&'static str, fn(&Region) -> Outcome);

/// Changes that a program can make to its memory and go on.
const CHANGES: &[Change] = &[
    ("unmap", |region| Ok(region.unmap_part(0, LEN)?)),
    ("unmap a page", |region| Ok(region.unmap_part(LEN - PAGE, PAGE)?)),
    ("replace", |region| Ok(region.replace()?)),
    ("move", |region| region.move_away().map(drop)),
    ("discard", |region| Ok(region.advise(0, LEN, libc::MADV_DONTNEED)?)),
    ("protect", |region| Ok(region.protect(0, LEN, libc::PROT_READ)?)),
];

/// Once its memory is unmapped, no copy writes to it any more.
pub fn moment_change_of_destination_waits_for_what_is_under_way() -> Outcome {
    slowly(|| {
        for (name, change) in CHANGES {
            let (_, dst, view) = twice()?;
            let pair = Pair::between(dst, Region::of_small_pages(LEN)?)?;
            let request = pair.start(PARTS)?;
            change(&pair.dst)?;
            view.expect(2).context(format_args!("when {name} was over"))?;
            pair.device.finish(&request)?;
        }
        Ok(())
    })
}

/// A copy does not read what is written to its source after the change.
pub fn moment_change_of_source_waits_for_what_is_under_way() -> Outcome {
    slowly(|| {
        for (name, change) in CHANGES {
            let (_, src, view) = twice()?;
            let pair = Pair::between(Region::of_small_pages(LEN)?, src)?;
            let request = pair.start(PARTS)?;
            change(&pair.src)?;
            view.fill(3);
            pair.device.finish(&request)?;
            pair.expect_copied().context(format_args!("with {name} under way"))?;
        }
        Ok(())
    })
}

/// At any phase of the other thread, from pinning to waiting.
pub fn moment_unmap_while_a_thread_copies_nothing_comes_later() -> Outcome {
    let bench = Bench::new()?;
    let (file, dst, view) = twice()?;
    let pair = Pair::between(dst, Region::of_small_pages(LEN)?)?;
    bench.arm_all(Fault::always(Kind::Slow).value(1000))?;
    let over = AtomicBool::new(false);
    let unmaps = || -> Outcome {
        let mut random = Random::new(5);
        for round in 0..rounds(200) {
            sleep(Duration::from_micros(random.below(20_000)));
            pair.dst.unmap_part(0, LEN)?;
            view.fill(7);
            sleep(Duration::from_millis(3));
            view.expect(7).context(format_args!("round {round}"))?;
            pair.dst.map_again(file.as_raw_fd())?;
        }
        Ok(())
    };
    in_threads(2, |number| {
        if number == 0 {
            let outcome = unmaps();
            over.store(true, Ordering::Relaxed);
            return outcome;
        }
        let mut accepted = 0;
        while !over.load(Ordering::Relaxed) {
            let Submitted { result, out } = pair.device.submit(&mut pair.pieces(PARTS / 2));
            ensure!(matches!(result, Ok(()) | Err(EFAULT | EBUSY)), "{result:?}");
            if out.accepted > 0 {
                pair.device.finish(&out)?;
                accepted += out.accepted;
            }
        }
        println!("{accepted} pieces were copied meanwhile");
        ensure!(accepted > 0, "nothing was copied at all");
        Ok(())
    })
}

/// The child gets the memory as the copy leaves it, not half of it. Pinned pages are the parent's:
/// the child gets copies, which no engine writes.
pub fn moment_fork_under_way_child_sees_no_writes() -> Outcome {
    slowly(|| {
        for round in 0..3 {
            let (pair, request) = start()?;
            let child = fork(|| {
                pair.dst.expect(2).context("the child's")?;
                pair.dst.fill(3);
                sleep(Duration::from_millis(200));
                pair.dst.expect(3).context("the child's, written later")
            })?;
            pair.device.finish(&request)?;
            pair.expect_copied().context(format_args!("the parent, round {round}"))?;
            child.succeed()?;
        }
        Ok(())
    })
}

/// Pinning pages that the child still shares changes the mapping, in the middle of a request with
/// transfers in flight: it must not wait for itself.
pub fn moment_first_writes_after_a_fork_are_not_held_up() -> Outcome {
    let bench = Bench::new()?;
    for slow in [false, true] {
        let pair = Pair::new(LEN)?;
        let done = Gate::new()?;
        let child = fork(|| {
            done.pass();
            pair.dst.expect(1).context("the child's")
        })?;
        if slow {
            bench.slow_down()?;
        }
        let begun = Instant::now();
        let request = pair.start(PARTS)?;
        let submitted = begun.elapsed();
        pair.device.finish(&request)?;
        pair.expect_copied().context("the parent's")?;
        done.open();
        child.succeed()?;
        println!("submitted in {submitted:?}, over after {:?}", begun.elapsed());
        ensure!(submitted < Duration::from_secs(2), "submitted in {submitted:?}");
        // From now on it is the parent's alone, and kept.
        bench.clear()?;
        pair.carry(1)?;
        ensure_eq!(pair.carry(1)?.pinned, 0, "pages pinned by the third copy");
    }
    Ok(())
}

pub fn moment_unmap_under_way_no_other_process_is_written() -> Outcome {
    slowly(|| {
        for _ in 0..3 {
            no_other_process_is_written(Pair::new(LEN)?, |pair| {
                pair.dst.unmap_part(0, LEN)?;
                Ok(pair.src.unmap_part(0, LEN)?)
            })?;
        }
        // Other memory at the same addresses is other memory.
        let pair = no_other_process_is_written(Pair::new(LEN)?, |pair| {
            pair.dst.replace()?;
            pair.dst.fill(3);
            Ok(())
        })?;
        pair.dst.expect(3).context("the memory that took the place")?;
        // The next copy goes to the new memory at these addresses.
        pair.carry(PARTS)?;
        pair.expect_copied()
    })
}

pub fn moment_discard_under_way_no_other_process_is_written() -> Outcome {
    slowly(|| {
        for advice in [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_PAGEOUT] {
            let pair = no_other_process_is_written(Pair::new(LEN)?, |pair| {
                pair.dst.advise(0, LEN, advice)?;
                Ok(pair.src.advise(0, LEN, advice)?)
            });
            let pair = pair.context(format_args!("advice {advice}"))?;
            if advice == libc::MADV_DONTNEED {
                pair.dst.expect_zero(0, LEN).context("after MADV_DONTNEED")?;
            }
        }
        Ok(())
    })
}

pub fn moment_truncate_under_way_no_other_process_is_written() -> Outcome {
    slowly(|| {
        for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
            let (to, from) = (memory_file(LEN)?, memory_file(LEN)?);
            let pair = Pair::between(Region::of_file(&to, flags)?, Region::of_file(&from, flags)?)?;
            let pair = no_other_process_is_written(pair, |_| {
                to.set_len(0)?;
                Ok(from.set_len(0)?)
            })?;
            // A truncated file that has grown again is empty.
            to.set_len(LEN as u64)?;
            pair.dst.expect_zero(0, LEN).context("the file that was truncated")?;
        }
        Ok(())
    })
}

pub fn moment_signal_while_waiting_is_eintr() -> Outcome {
    slowly(|| {
        on_signal(libc::SIGUSR1, nothing as *const () as usize);
        // Before the request, for which a fork would wait.
        let started = Gate::new()?;
        let sender = fork(|| {
            started.pass();
            sleep(Duration::from_millis(15));
            signal_parent(libc::SIGUSR1);
            Ok(())
        })?;
        let (pair, request) = start()?;
        started.open();
        let found = pair.device.wait(request.id, PATIENCE);
        sender.succeed()?;
        ensure_eq!(found, Err(EINTR), "a wait with a signal");
        pair.device.finish(&request)?;
        pair.expect_copied()
    })
}

pub fn moment_unload_while_open_is_refused() -> Outcome {
    let pair = Pair::new(LEN)?;
    let expect_busy = |why: &str| -> Outcome {
        let found = modules::unload();
        ensure!(matches!(found, Err(EAGAIN | EBUSY)), "unloading while {why}: {found:?}");
        Ok(())
    };
    expect_busy("a file is open")?;
    pair.carry(PARTS)?;
    // A page of words alone holds it as well.
    let words = pair.device.words(0)?;
    drop(pair);
    expect_busy("words are mapped")?;
    drop(words);
    // Unloadable once the work items of the closed file are done.
    let gone = eventually(PATIENCE, || modules::unload().is_ok());
    ensure!(gone, "the module cannot be unloaded though no file is open");
    modules::load()?;
    start().map(drop)
}

/// A kernel thread has no memory whose pages could be copied.
pub fn moment_open_by_a_kernel_thread_is_einval() -> Outcome {
    modules::load_client()?;
    let found = fs::write("/sys/kernel/debug/adma_client_open", "1");
    let errno = found.as_ref().err().and_then(std::io::Error::raw_os_error);
    ensure_eq!(errno, Some(EINVAL.0), "errno of the open");
    Ok(())
}

pub fn moment_open_and_close_in_a_loop_work() -> Outcome {
    for _ in 0..rounds(200) {
        Device::open()?.info()?;
    }
    let many = (0..64).map(|_| Pair::new(PAGE)).collect::<Outcome<Vec<_>>>()?;
    for pair in many {
        pair.carry(1)?;
        pair.expect_copied()?;
    }
    Ok(())
}
