//! The library's handler stands in front of the program's for SIGSEGV and SIGBUS, and the
//! program cannot tell: it sees, sets and gets back its own, and its handler runs as if the
//! kernel had called it.
//!
//! What a victim prints and how it ends is compared with a run without the library.

mod common;

use common::faults::{CPU_SHARES, finish_with_report, offloading, outcome, without_us};
use common::{
    finish, finish_within, found, library, plain, preloaded, scratch, skip, text, victim,
};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

const SIGSEGV: i32 = 11;

/// Output and end are those without us, with the engine at work where there was an exit to report.
fn is_the_same(test: &str, program: &str, arguments: &[&str]) {
    let Some(without) = without_us(test, program, arguments) else { return };
    assert_ne!(outcome(&without).2, "", "the victim says nothing: {:?}", outcome(&without));
    assert_ne!(without.status.code(), Some(1), "without the library: {:?}", outcome(&without));
    for share in CPU_SHARES {
        let mut command = offloading(program, share);
        command.env("EXPECT_IN_FRONT", "1");
        let (with, report) = finish_with_report(command.args(arguments));
        assert_eq!(outcome(&with), outcome(&without), "{arguments:?}, share {share}");
        if let Some(report) = report {
            // One caller at a time: a copy that was left with something under way makes the
            // engine busy for good.
            let carried = report["paths"]["engine"]["calls"].as_u64().unwrap();
            assert!(carried > 0, "{arguments:?}, share {share}: {report}");
            assert_eq!(report["fallbacks"]["busy"], 0, "{arguments:?}, share {share}: {report}");
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
    handler_that_jumps_many_times_leaves_the_engine_at_work: "signal_handlers" "jumps";
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
    cancelled_copies_of_a_program_with_handler_leave_no_worker_writing: "signal_handlers" "cancelled";
    filter_that_kills_for_copies_by_the_kernel_is_not_met_by_a_program_with_handler:
        "signal_handlers" "filtered";
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

/// By how many milliseconds SIGALRM comes late while pages come slowly, the median of several.
fn late(test: &str, command: &mut Command) -> Option<i64> {
    let done = finish(command);
    if done.status.code() == Some(77) {
        skip(test, text(&done.stderr).trim());
        return None;
    }
    assert!(done.status.success(), "{:?}", outcome(&done));
    Some(text(&done.stdout).trim().parse().unwrap())
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

/// Not with the statistics: where a signal ends the program there is no report.
fn ends_on_hanging_pages_as_without_us(test: &str, hows: &[&str], whats: &[&str]) {
    for arguments in whats.iter().flat_map(|&what| hows.iter().map(move |&how| [what, how])) {
        let Some(without) = without_us(test, "slow_pages", &arguments) else { return };
        assert_ne!(without.status.code(), Some(1), "without the library: {:?}", outcome(&without));
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

/// Workers that hang cannot be taken back from then: they are interrupted.
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
