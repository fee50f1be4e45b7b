//! A copy and what happens to its thread meanwhile: signals, cancellation, errno, a small stack.

mod common;

use common::traps::{fixed, offloaded, survives, victims};
use common::{preloaded, statistics, victim};

victims! { survives_offloaded:
    signal_handler_copies_during_copy_both_are_right: "trap_signal" "timer";
    signal_storm_during_copies_all_are_right: "trap_signal" "storm";
    signal_handler_jumps_out_of_copy_later_copies_are_offloaded: "trap_signal_jump";
    blocked_signal_with_workers_alive_waits_for_the_program: "trap_signal_pending";
    cancelled_thread_during_copy_leaves_no_writer_behind: "trap_cancel";
}

#[test]
fn stopped_and_continued_program_copies_right() {
    let script = "
        \"$0\" 16 & victim=$!
        for round in $(seq 20); do
            kill -STOP $victim && sleep 0.002 && kill -CONT $victim && sleep 0.004
        done 2>/dev/null
        wait $victim";
    let mut command = preloaded("sh");
    let processes = statistics(fixed(command.args(["-c", script]).arg(victim("trap_threads"))));
    assert!(offloaded(&processes) > 0, "{processes:?}");
}

victims! { survives_offloaded:
    errno_survives_copies_of_every_kind: "trap_errno";
}

#[test]
fn stopped_worker_is_not_waited_for_and_writes_nothing_later() {
    stopped_worker("stopped_worker_is_not_waited_for_and_writes_nothing_later", &[]);
}

#[test]
fn stopped_worker_that_cannot_be_interrupted_any_more_is_waited_for() {
    let name = "stopped_worker_that_cannot_be_interrupted_any_more_is_waited_for";
    stopped_worker(name, &["refused"]);
}

fn stopped_worker(name: &str, args: &[&str]) {
    let program = victim("trap_stopped_worker");
    if survives(name, &program, args).is_none() {
        return;
    }
    // Whatever the caller leaves to the workers they have when they are stopped. On a busy machine
    // they may have had nothing.
    let taken_back = |process: &serde_json::Value| process["taken_back"].as_u64().unwrap();
    let some_were = (0..30).any(|_| {
        let mut command = preloaded(&program);
        let processes = statistics(fixed(command.args(args)).env("ADMA_CPU_SHARE", "0"));
        processes.iter().map(taken_back).sum::<u64>() > 0
    });
    assert!(some_were, "no piece was ever taken back");
}

// The first large copy brings the engine up, and exit a report: both must fit.

victims! { survives_offloaded:
    thread_with_small_stack_makes_first_copy_without_overflow: "trap_small_stack" "thread";
    handler_on_small_stack_makes_first_copy_without_overflow: "trap_small_stack" "handler";
    coroutine_with_small_stack_makes_first_copy_without_overflow: "trap_small_stack" "coroutine";
    exit_on_small_stack_reports_without_overflow: "trap_small_stack" "exit";
}
