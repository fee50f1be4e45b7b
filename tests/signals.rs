//! Signals. The library's handler stands in front of the program's for SIGSEGV and SIGBUS, and the
//! program cannot tell: output and end are those of a run without the library. All other signals, and
//! cancellation, may come in the middle of a copy.

mod common;

use common::faults::{
    CPU_SHARES, expect_carried, finish_with_report, offloading, outcome, without_us,
};
use common::traps::{fixed, offloaded, survives, survives_offloaded};
use common::{
    Folder, finish, finish_within, has, library, needs, number, plain, preloaded, rows, shown,
    skip_this, statistics, text, victim,
};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

const SIGSEGV: i32 = 11;

rows! { survives_offloaded:
    signal_handler_copies_during_copy_both_are_right: "trap_signals timer";
    signal_storm_during_copies_all_are_right: "trap_signals storm";
    blocked_signal_with_workers_alive_waits_for_the_program: "trap_signals pending";
    alarm_that_jumps_out_of_a_copy_leaves_no_writer_behind: "trap_signals jump";
    cancelled_thread_during_copy_leaves_no_writer_behind: "trap_signals cancel";
    cancelled_thread_of_a_program_with_handler_leaves_no_writer_behind:
        "trap_signals cancel-handled";
    // The first large copy brings the engine up, and exit a report: both must fit.
    thread_with_small_stack_makes_first_copy_without_overflow: "trap_signals thread";
    handler_on_small_stack_makes_first_copy_without_overflow: "trap_signals handler";
    coroutine_with_small_stack_makes_first_copy_without_overflow: "trap_signals coroutine";
    exit_on_small_stack_reports_without_overflow: "trap_signals exit";
}

#[test]
fn alarm_that_jumps_out_of_a_copy_by_workers_leaves_no_slot_claimed() {
    let mut command = offloading("trap_signals", "0");
    let (done, report) = finish_with_report(fixed(command.arg("jump")));
    assert!(done.status.success(), "{:?}", outcome(&done));
    expect_carried(&report.unwrap(), 1, "share 0");
}

#[test]
fn stopped_and_continued_program_copies_right() {
    let script = "
        \"$0\" threads 16 & victim=$!
        for round in $(seq 20); do
            kill -STOP $victim && sleep 0.002 && kill -CONT $victim && sleep 0.004
        done 2>/dev/null
        wait $victim";
    let mut command = preloaded("sh");
    let processes = statistics(fixed(command.args(["-c", script]).arg(victim("trap_copy"))));
    assert!(offloaded(&processes) > 0, "{processes:?}");
}

/// Returns whether the kernel interrupts a thread's restartable sequence on request.
fn workers_can_be_interrupted() -> bool {
    const INTERRUPT: i64 = 1 << 7; // MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ
    // SAFETY: it only asks which commands there are.
    let commands = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    commands >= 0 && commands & INTERRUPT != 0
}

/// Where a worker cannot be interrupted any more it is waited for.
#[test]
fn stopped_worker_is_not_waited_for_and_writes_nothing_later() {
    for words in ["trap_stopped_worker", "trap_stopped_worker refused"] {
        let argument = words.split_whitespace().nth(1);
        if argument.is_none() && !workers_can_be_interrupted() {
            skip_this("membarrier is refused: a worker that is stopped must be waited for");
            continue;
        }
        if survives(words).is_none() {
            return;
        }
        // A caller that leaves all to its workers has pieces to take back when they are stopped,
        // unless a busy machine gave them none. It can take none back where that is refused.
        let attempts = if argument.is_some() { 1 } else { 30 };
        for stores in ["ordinary", "stream"] {
            let some_were = (0..attempts).any(|_| {
                let mut command = preloaded(victim("trap_stopped_worker"));
                command.args(argument).env("ADMA_STORES", stores);
                let processes = statistics(fixed(&mut command).env("ADMA_CPU_SHARE", "0"));
                processes.iter().map(|process| number(&process["taken_back"])).sum::<u64>() > 0
            });
            assert!(some_were || argument.is_some(), "{stores}: no piece was ever taken back");
        }
    }
}

/// Checks that output and end are those without us, with the engine at work if there was a report.
fn is_the_same(words: &str) {
    let (program, argument) = words.split_once(' ').unwrap_or((words, ""));
    let arguments: &[&str] = if argument.is_empty() { &[] } else { &[argument] };
    let Some(without) = without_us(program, arguments) else { return };
    assert_ne!(outcome(&without).2, "", "the victim says nothing: {:?}", outcome(&without));
    for share in CPU_SHARES {
        let mut command = offloading(program, share);
        command.env("EXPECT_IN_FRONT", "1");
        let (with, report) = finish_with_report(command.args(arguments));
        assert_eq!(outcome(&with), outcome(&without), "{arguments:?}, share {share}");
        if let Some(report) = report {
            expect_carried(&report, 1, &format!("{arguments:?}, share {share}"));
        }
    }
}

rows! { is_the_same:
    action_set_in_any_way_is_read_back_in_every_way: "signal_actions";
    handler_that_is_reset_handles_one_fault: "signal_handlers reset";
    handler_on_small_alternate_stack_gets_fault_on_small_stack:
        "signal_handlers alternate_stack";
    handler_that_copies_over_a_bad_page_is_entered_again: "signal_handlers nested";
    handlers_installed_between_copies_get_their_faults: "signal_handlers between";
    handlers_installed_during_copies_by_other_threads_get_all_faults:
        "signal_handlers meanwhile";
    sent_signal_waits_for_the_end_of_the_copy_and_is_not_lost: "signal_sent sent";
    signal_that_all_threads_block_waits_for_them_during_copies: "signal_sent waited_for";
    page_that_goes_bad_after_a_sent_signal_is_handled_as_well: "sent_and_bad";
    handler_set_by_a_bare_system_call_is_noticed: "signal_bare bare";
    handler_that_calls_what_it_has_replaced_past_us_comes_to_an_end:
        "signal_bare bare_chain";
    crash_reporter_that_sets_back_what_it_has_replaced_past_us_reports_once:
        "signal_bare bare_report";
    ignored_signal_stays_ignored_over_exec: "signal_bare exec_ignored";
    child_of_vfork_sees_its_own_actions_and_changes_none_of_its_parents:
        "signal_bare in_vfork";
    children_of_fork_and_of_a_bare_fork_handle_and_die_as_without_us:
        "signal_bare in_children";
    handler_sees_the_fault_in_libc_and_can_unwind_to_the_program: "signal_handlers unwind";
    sent_signal_with_default_action_ends_the_program: "signal_sent sent_with_default";
    raised_signal_with_default_action_ends_the_program: "signal_sent raised_with_default";
    fault_without_an_address_is_handled_and_kills_as_without_us:
        "signal_handlers impossible_address";
    faults_outside_of_copies_are_the_programs: "signal_handlers elsewhere_handled";
    fatal_sigsegv_is_raised_in_the_calling_thread_in_memcpy: "fatal_fault 11";
    fatal_sigbus_is_raised_in_the_calling_thread_in_memcpy: "fatal_fault 7";
}

/// Removes addresses and thread ids, which differ from run to run, and the C stack that Python 3.14
/// adds, in which our handler and copies are seen.
fn without_numbers(text: &str) -> String {
    let text = text.split("\n\nCurrent thread's C stack trace").next().unwrap();
    let is_number = |c: char| c.is_ascii_hexdigit() || c == 'x';
    let words = text.split(' ').map(|word| {
        let bare = word.trim_matches(|c| "(),:".contains(c));
        if bare.starts_with(|c: char| c.is_ascii_digit()) && bare.chars().all(is_number) {
            "NUMBER"
        } else {
            word
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Checks a program that reports its own faults. Returns the run with the library.
fn reports_the_same(command: impl Fn(fn(&str) -> Command) -> Command) -> Output {
    let without = finish(&mut command(|program| plain(program)));
    let with = finish(
        command(|program| preloaded(program))
            .env("ADMA_MIN_BYTES", "64K")
            .env("ADMA_CHANNELS", "3"),
    );
    assert_eq!(with.status, without.status, "{:?} {:?}", outcome(&with), outcome(&without));
    assert_eq!(without_numbers(&text(&with.stdout)), without_numbers(&text(&without.stdout)));
    assert_eq!(without_numbers(&text(&with.stderr)), without_numbers(&text(&without.stderr)));
    with
}

#[test]
fn python_faulthandler_keeps_its_report() {
    let script = "
import ctypes, faulthandler
faulthandler.enable()
block = bytearray(8 << 20)
copies = [bytes(block) for _ in range(4)]
faulthandler.disable()
copies = [bytes(block) for _ in range(4)]
faulthandler.enable()
def copy_from_nowhere():
    ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(block)), 4096, 1 << 20)
copy_from_nowhere()
";
    let with = reports_the_same(|run| {
        let mut command = run("python3");
        command.args(["-c", script]);
        command
    });
    assert_eq!(with.status.signal(), Some(SIGSEGV), "{:?}", outcome(&with));
    assert!(text(&with.stderr).contains("in copy_from_nowhere"), "{:?}", outcome(&with));
}

#[test]
fn rust_stack_overflow_keeps_its_report() {
    needs!(has("rustc"));
    let folder = Folder::new("overflow");
    let (source, program) = (folder.join("overflow.rs"), folder.join("overflow"));
    std::fs::write(
        &source,
        "fn dig(depth: u64) -> u64 { std::hint::black_box(depth) + dig(depth + 1) * 2 }
         fn main() {
             let block = vec![1u8; 8 << 20];
             let copies: Vec<_> = (0..4).map(|_| std::hint::black_box(block.clone())).collect();
             println!(\"{} {}\", copies.len(), dig(1));
         }",
    )
    .unwrap();
    let built = plain("rustc").args(["-O", "-o"]).args([&program, &source]).output().unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let with = reports_the_same(|run| run(program.to_str().unwrap()));
    assert!(text(&with.stderr).contains("has overflowed its stack"), "{:?}", outcome(&with));
}

/// Returns the median delay of SIGALRM, in milliseconds, while pages come slowly.
fn late(command: &mut Command) -> Option<i64> {
    Some(text(&shown(command)?.stdout).trim().parse().unwrap())
}

#[test]
fn handler_runs_in_time_while_pages_come_slowly() {
    for what in ["copy", "fill", "compare", "started"] {
        for share in CPU_SHARES {
            // A busy machine may be late by itself, but not every time.
            let mut seen = Vec::new();
            let in_time = (0..5).any(|_| {
                let arguments = [what, "late"];
                let program = victim("slow_pages");
                let Some(without) = late(plain(program).args(arguments)) else { return true };
                let with = late(offloading("slow_pages", share).args(arguments)).unwrap();
                seen.push((without, with));
                with <= without + 20
            });
            assert!(in_time, "{what}, share {share}: late by {seen:?} ms without and with us");
        }
    }
}

/// The process dies of the signal, its handler runs and ends it, or jumps out of the call, after which
/// no worker writes. Without statistics: where a signal ends the program there is no report.
#[test]
fn signal_reaches_a_caller_that_hangs_on_a_page_as_without_us() {
    let table = [
        ("default", "copy fill compare started remote"),
        ("handled", "copy fill compare started"),
        ("directed", "copy fill compare started"),
        ("jumps", "copy fill compare"),
    ];
    for (how, whats) in table {
        for what in whats.split(' ') {
            let arguments = [what, how];
            let Some(without) = without_us("slow_pages", &arguments) else { return };
            for share in CPU_SHARES {
                let with = finish_within(
                    offloading("slow_pages", share).args(arguments),
                    std::time::Duration::from_secs(60),
                );
                assert_eq!(outcome(&with), outcome(&without), "{arguments:?}, share {share}");
            }
        }
    }
}

/// Pieces of workers that hang cannot be taken back then: the workers are interrupted.
#[test]
fn handler_runs_in_a_caller_that_waits_for_hanging_workers_without_membarrier() {
    needs!(has("strace"));
    let Some(without) = without_us("slow_pages", &["copy", "jumps"]) else { return };
    let folder = Folder::new("refused");
    let log = folder.join("calls");
    let preload = format!("LD_PRELOAD={}", library().display());
    let mut command = plain("strace");
    command.args(["-f", "-e", "trace=membarrier", "-e", "inject=membarrier:error=EPERM", "-o"]);
    command.arg(&log).args(["-E", &preload]).arg(victim("slow_pages")).args(["copy", "jumps"]);
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "3").env("ADMA_CPU_SHARE", "0");
    let with = finish_within(&mut command, std::time::Duration::from_secs(120));
    let calls = std::fs::read_to_string(&log).unwrap_or_default();
    if !calls.contains("INJECTED") {
        return skip_this("strace does not trace here");
    }
    assert_eq!(outcome(&with), outcome(&without), "{calls}");
}
