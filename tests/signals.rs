//! Signals. The library's handler stands in front of the program's for SIGSEGV and SIGBUS, and the
//! program cannot tell: output and end are those of a run without the library. All other signals, and
//! cancellation, may come in the middle of a copy.

mod common;

use common::faults::{
    CPU_SHARES, expect_carried, finish_with_report, offloading, outcome, without_us,
};
use common::traps::{fixed, offloaded, survives, victims};
use common::{
    finish, finish_within, found, library, number, plain, preloaded, scratch, shown, skip,
    statistics, text, victim,
};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

const SIGSEGV: i32 = 11;

victims! { survives_offloaded:
    signal_handler_copies_during_copy_both_are_right: "trap_signal timer";
    signal_storm_during_copies_all_are_right: "trap_signal storm";
    blocked_signal_with_workers_alive_waits_for_the_program: "trap_signal pending";
    cancelled_thread_during_copy_leaves_no_writer_behind: "trap_cancel";
    cancelled_thread_of_a_program_with_handler_leaves_no_writer_behind: "trap_cancel handled";
    errno_survives_copies_of_every_kind: "trap_errno";
    // The first large copy brings the engine up, and exit a report: both must fit.
    thread_with_small_stack_makes_first_copy_without_overflow: "trap_small_stack thread";
    handler_on_small_stack_makes_first_copy_without_overflow: "trap_small_stack handler";
    coroutine_with_small_stack_makes_first_copy_without_overflow: "trap_small_stack coroutine";
    exit_on_small_stack_reports_without_overflow: "trap_small_stack exit";
}

#[test]
fn alarm_that_jumps_out_of_a_copy_leaves_no_worker_writing_and_later_copies_offloaded() {
    let test = "alarm_that_jumps_out_of_a_copy_leaves_no_worker_writing";
    let Some(processes) = survives(test, &victim("trap_signal_jump"), &[]) else { return };
    assert!(offloaded(&processes) > 0, "{processes:?}");
    let (done, report) = finish_with_report(fixed(&mut offloading("trap_signal_jump", "0")));
    assert!(done.status.success(), "{:?}", outcome(&done));
    expect_carried(&report.unwrap(), 1, "share 0");
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

fn stopped_worker(name: &str, args: &[&str]) {
    let program = victim("trap_stopped_worker");
    if survives(name, &program, args).is_none() {
        return;
    }
    // A caller that leaves all to its workers has pieces to take back when they are stopped, unless
    // a busy machine gave them none.
    let some_were = (0..30).any(|_| {
        let mut command = preloaded(&program);
        let processes = statistics(fixed(command.args(args)).env("ADMA_CPU_SHARE", "0"));
        processes.iter().map(|process| number(&process["taken_back"])).sum::<u64>() > 0
    });
    assert!(some_were, "no piece was ever taken back");
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

/// Output and end are those without us, with the engine at work where there was an exit to report.
fn is_the_same(test: &str, program: &str, arguments: &[&str]) {
    let Some(without) = without_us(test, program, arguments) else { return };
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

macro_rules! cases {
    ($($name:ident: $victim:literal $($argument:literal)*;)*) => {
        $(
            #[test]
            fn $name() {
                is_the_same(stringify!($name), $victim, &[$($argument),*]);
            }
        )*
    };
}

cases! {
    action_set_in_any_way_is_read_back_in_every_way: "signal_actions";
    handler_that_is_reset_handles_one_fault: "signal_handlers" "reset";
    handler_on_small_alternate_stack_gets_fault_on_small_stack:
        "signal_handlers" "alternate_stack";
    handler_that_copies_over_a_bad_page_is_entered_again: "signal_handlers" "nested";
    handlers_installed_between_copies_get_their_faults: "signal_handlers" "between";
    handlers_installed_during_copies_by_other_threads_get_all_faults:
        "signal_handlers" "meanwhile";
    sent_signal_waits_for_the_end_of_the_copy_and_is_not_lost: "signal_handlers" "sent";
    signal_that_all_threads_block_waits_for_them_during_copies: "signal_handlers" "waited_for";
    page_that_goes_bad_after_a_sent_signal_is_handled_as_well: "sent_and_bad";
    handler_set_by_a_bare_system_call_is_noticed: "signal_handlers" "bare";
    handler_that_calls_what_it_has_replaced_past_us_comes_to_an_end:
        "signal_handlers" "bare_chain";
    crash_reporter_that_sets_back_what_it_has_replaced_past_us_reports_once:
        "signal_handlers" "bare_report";
    ignored_signal_stays_ignored_over_exec: "signal_handlers" "exec_ignored";
    child_of_vfork_sees_its_own_actions_and_changes_none_of_its_parents:
        "signal_handlers" "in_vfork";
    children_of_fork_and_of_a_bare_fork_handle_and_die_as_without_us:
        "signal_handlers" "in_children";
    handler_sees_the_fault_in_libc_and_can_unwind_to_the_program: "signal_handlers" "unwind";
    sent_signal_with_default_action_ends_the_program: "signal_handlers" "sent_with_default";
    raised_signal_with_default_action_ends_the_program: "signal_handlers" "raised_with_default";
    fault_without_an_address_is_handled_and_kills_as_without_us:
        "signal_handlers" "impossible_address";
    faults_outside_of_copies_are_the_programs: "signal_handlers" "elsewhere_handled";
    fatal_sigsegv_is_raised_in_the_calling_thread_in_memcpy: "fatal_fault" "11";
    fatal_sigbus_is_raised_in_the_calling_thread_in_memcpy: "fatal_fault" "7";
}

/// Addresses and numbers of threads differ from run to run.
fn without_numbers(text: &str) -> String {
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

/// Of a program that reports its own faults. Returns the run with the library.
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
    let test = "rust_stack_overflow_keeps_its_report";
    if !found("rustc") {
        return skip(test, "no rustc");
    }
    let folder = scratch("overflow");
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
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Returns the median delay of SIGALRM, in milliseconds, while pages come slowly.
fn late(test: &str, command: &mut Command) -> Option<i64> {
    Some(text(&shown(test, command)?.stdout).trim().parse().unwrap())
}

#[test]
fn handler_runs_in_time_while_pages_come_slowly() {
    let test = "handler_runs_in_time_while_pages_come_slowly";
    for what in ["copy", "fill", "compare", "started"] {
        for share in CPU_SHARES {
            // A busy machine may be late by itself, but not all the time.
            let mut seen = Vec::new();
            let in_time = (0..5).any(|_| {
                let arguments = [what, "late"];
                let program = victim("slow_pages");
                let Some(without) = late(test, plain(program).args(arguments)) else { return true };
                let with = late(test, offloading("slow_pages", share).args(arguments)).unwrap();
                seen.push((without, with));
                with <= without + 20
            });
            assert!(in_time, "{what}, share {share}: late by {seen:?} ms without and with us");
        }
    }
}

/// Without statistics: where a signal ends the program there is no report.
fn ends_on_hanging_pages_as_without_us(test: &str, hows: &[&str], whats: &[&str]) {
    for arguments in whats.iter().flat_map(|&what| hows.iter().map(move |&how| [what, how])) {
        let Some(without) = without_us(test, "slow_pages", &arguments) else { return };
        for share in CPU_SHARES {
            let with = finish_within(
                offloading("slow_pages", share).args(arguments),
                std::time::Duration::from_secs(60),
            );
            assert_eq!(outcome(&with), outcome(&without), "{arguments:?}, share {share}");
        }
    }
}

#[test]
fn process_that_hangs_on_a_page_dies_of_a_signal_with_default_action() {
    let test = "process_that_hangs_on_a_page_dies_of_a_signal_with_default_action";
    let whats = ["copy", "fill", "compare", "started", "remote"];
    ends_on_hanging_pages_as_without_us(test, &["default"], &whats);
}

#[test]
fn handler_runs_in_a_caller_that_hangs_on_a_page() {
    let test = "handler_runs_in_a_caller_that_hangs_on_a_page";
    let whats = ["copy", "fill", "compare", "started"];
    ends_on_hanging_pages_as_without_us(test, &["handled", "directed"], &whats);
}

#[test]
fn handler_that_jumps_out_of_a_hanging_copy_leaves_no_worker_writing() {
    let test = "handler_that_jumps_out_of_a_hanging_copy_leaves_no_worker_writing";
    ends_on_hanging_pages_as_without_us(test, &["jumps"], &["copy", "fill", "compare"]);
}

/// Pieces of workers that hang cannot be taken back then: the workers are interrupted.
#[test]
fn handler_runs_in_a_caller_that_waits_for_hanging_workers_without_membarrier() {
    let test = "handler_runs_in_a_caller_that_waits_for_hanging_workers_without_membarrier";
    if !found("strace") {
        return skip(test, "no strace");
    }
    let Some(without) = without_us(test, "slow_pages", &["copy", "jumps"]) else { return };
    let log = scratch("refused").join("calls");
    let preload = format!("LD_PRELOAD={}", library().display());
    let mut command = plain("strace");
    command.args(["-f", "-e", "trace=membarrier", "-e", "inject=membarrier:error=EPERM", "-o"]);
    command.arg(&log).args(["-E", &preload]).arg(victim("slow_pages")).args(["copy", "jumps"]);
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "3").env("ADMA_CPU_SHARE", "0");
    let with = finish_within(&mut command, std::time::Duration::from_secs(120));
    let calls = std::fs::read_to_string(&log).unwrap_or_default();
    if !calls.contains("INJECTED") {
        return skip(test, "strace does not trace here");
    }
    assert_eq!(outcome(&with), outcome(&without), "{calls}");
}
