//! Answers that come late: after the module has given up on them, or should be gone.
//!
//! Only idxd makes such completions, so these run with `--provider dsa`. A queue that is slow for a
//! second is no exotic fault: its engines may be shared with queues that block on page faults.

use super::*;
use std::ffi::CStr;

/// The module gives up after this long.
const TIMEOUT: &CStr = c"timeout_ms=100";
const TIMEOUT_MS: u64 = 100;

/// Returns the bench; skipped where all answers come in time.
fn bench() -> Outcome<Bench> {
    if !is_dsa() {
        skip!("the driver answers nothing late; try --provider dsa");
    }
    kernel::announce("adma");
    Bench::new()
}

/// Makes every answer late by so many milliseconds.
fn late(ms: u32) -> Fault {
    Fault::always(Kind::Late).value(ms)
}

fn usable() -> u32 {
    Device::open().and_then(|device| device.info()).map_or(0, |info| info.usable)
}

/// Checks that all channels come back and carry copies, each of them.
fn expect_all_work(channels: usize) -> Outcome {
    ensure!(
        eventually(PATIENCE, || usable() as usize == channels),
        "{} of {channels} usable",
        usable()
    );
    let pair = Pair::scattered(16 * PAGE)?;
    for _ in 0..8 {
        for channel in 0..channels as u32 {
            pair.device.carry(&mut [pair.whole().on(channel)]).context(channel)?;
        }
    }
    pair.expect_copied()
}

/// Checks that the kernel has not called what is gone, and loads the module as it was.
fn expect_alive() -> Outcome {
    let said = shim::finish(&mut std::process::Command::new("dmesg"))?;
    let said = String::from_utf8_lossy(&said.stdout);
    let bad = said.lines().find(|line| line.contains("BUG:") || line.contains("Oops"));
    ensure!(bad.is_none(), "{}", bad.unwrap_or_default());
    modules::load_again()
}

/// Unloads the module, which must be refused at first.
fn expect_held() -> Outcome {
    ensure!(matches!(modules::unload(), Err(EAGAIN | EBUSY)), "unloaded with answers to come");
    modules::take_out()
}

/// The answers of all queues come after the load has given up on them.
pub fn late_answer_to_the_first_probe_finds_the_module() -> Outcome {
    let bench = bench()?;
    modules::take_out()?;
    bench.arm_all(late(900))?;
    modules::load_with(TIMEOUT)?;
    ensure_eq!(usable(), 0, "usable channels before they have answered");
    bench.clear()?;
    expect_held()?;
    sleep(Duration::from_millis(1000));
    modules::load()?;
    expect_all_work(bench.count())?;
    expect_alive()
}

/// The place of a channel whose answers are to come is not given to the next one.
pub fn late_answer_to_the_first_probe_leaves_other_channels_alone() -> Outcome {
    let bench = bench()?;
    modules::take_out()?;
    let first = bench.places().next().expect("a queue");
    bench.arm(first, Fault { times: 2, ..late(600) })?;
    modules::load_with(TIMEOUT)?;
    let outcome = expect_all_work(bench.count());
    modules::take_out()?;
    modules::load()?;
    outcome
}

/// A program is killed while its queues are slow; the watch has probed them meanwhile.
pub fn late_answer_after_a_kill_finds_the_module() -> Outcome {
    const LATE: u64 = 1500;
    let bench = bench()?;
    let patience = Parameter::set("adma", "timeout_ms", TIMEOUT_MS)?;
    let submitted = Gate::new()?;
    let mut child = fork(|| {
        let pair = Pair::scattered(16 * PAGE)?;
        pair.carry(4)?;
        bench.arm_all(late(LATE as u32))?;
        pair.start(pair.channels as usize)?;
        submitted.open();
        loop {
            sleep(Duration::from_secs(1));
        }
    })?;
    submitted.pass();
    ensure!(eventually(PATIENCE, || usable() == 0), "the queues are not given up");
    // The last probe is sent about when the requests are answered.
    sleep(Duration::from_millis(LATE - 5 * TIMEOUT_MS));
    child.kill(libc::SIGKILL);
    ensure_eq!(child.wait_within(PATIENCE), Some(Ended::Killed(libc::SIGKILL)), "the child");
    drop(patience);
    modules::take_out()?;
    sleep(Duration::from_millis(LATE + 200));
    bench.clear()?;
    modules::load()?;
    expect_alive()?;
    expect_all_work(bench.count())
}

/// Queues rest after errors, and are probed again while the module is being unloaded.
pub fn late_answer_to_a_probe_during_unload_finds_the_module() -> Outcome {
    const LATE: u64 = 900;
    const REST_MS: u64 = 1000;
    let bench = bench()?;
    for before_the_probe in [300, 200, 150, 100, 50, 0] {
        modules::take_out()?;
        bench.clear()?;
        modules::load_with(TIMEOUT)?;
        let pair = Pair::scattered(16 * PAGE)?;
        bench.arm_all(Fault::always(Kind::Write))?;
        let request = pair.start(pair.channels as usize)?;
        pair.device.end(&request)?;
        drop(pair);
        ensure!(eventually(PATIENCE, || usable() == 0), "queues that fail are in use");
        // They are being probed, which holds the module until they have answered.
        sleep(Duration::from_millis(20));
        let unused = || fs::read_to_string("/sys/module/adma/refcnt").is_ok_and(|n| n == "0\n");
        ensure!(eventually(PATIENCE, unused), "the module is held by queues that rest");
        let rests = Instant::now();
        bench.clear()?;
        bench.arm_all(late(LATE as u32))?;
        let until = Duration::from_millis(REST_MS - before_the_probe);
        sleep(until.saturating_sub(rests.elapsed()));
        let first = modules::unload();
        println!("{before_the_probe} ms before the probe: {first:?}");
        modules::take_out()?;
        sleep(Duration::from_millis(LATE + 200));
    }
    bench.clear()?;
    modules::load()?;
    expect_alive()?;
    expect_all_work(bench.count())
}

/// Eight open files of a process wait together, and not at all once the queue is known to be silent.
pub fn late_silent_queue_delays_exit_once_and_not_for_each_file() -> Outcome {
    const FILES: usize = 8;
    const LIMIT: Duration = Duration::from_secs(6);
    let bench = bench()?;
    let submitted = Gate::new()?;
    // Not for ever: idxd uses freed memory when a queue with unanswered descriptors is disabled.
    bench.arm_all(late(12_000))?;
    let mut child = fork(|| {
        let pairs = (0..FILES).map(|_| Pair::scattered(PAGE)).collect::<Outcome<Vec<_>>>()?;
        for pair in &pairs {
            pair.device.start(&mut [pair.whole().on(0)])?;
        }
        submitted.open();
        loop {
            sleep(Duration::from_secs(1));
        }
    })?;
    submitted.pass();
    let begun = Instant::now();
    child.kill(libc::SIGKILL);
    let ended = child.wait_within(Duration::from_secs(120));
    let took = begun.elapsed();
    println!("{FILES} files: gone {took:?} after the kill");
    drop(bench);
    modules::load_again()?;
    ensure_eq!(ended, Some(Ended::Killed(libc::SIGKILL)), "the child");
    ensure!(took < LIMIT, "{FILES} files: it took {took:?}");
    Ok(())
}
