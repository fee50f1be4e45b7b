//! One-copy messages between processes, as C programs see them: linked with the library,
//! with and without it preloaded as well.

mod common;

use common::{
    finish_within, library, link_flags, number, plain, rows, shown, skip_this, statistics, succeed,
    text, victim_with,
};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Returns a program that is linked with the library, with its arguments.
fn ipc(words: &str) -> Command {
    let mut words = words.split_whitespace();
    let flags = link_flags();
    let mut command =
        plain(victim_with(words.next().unwrap(), &flags.each_ref().map(String::as_str)));
    command.args(words);
    command
}

const KEPT_OUT: &str = "processes are kept out of each other's memory";

/// Returns whether a filter does what Yama does to users of Ubuntu, as `is_kept_out` in ipc.h.
fn is_kept_out() -> bool {
    std::env::var_os("KEPT_OUT").is_some()
}

/// Like `ipc`, with the library preloaded, and copies of the program carried.
fn preloaded(words: &str) -> Command {
    let mut command = ipc(words);
    command.env("LD_PRELOAD", library());
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
    command
}

/// Runs without and with the library preloaded.
fn passes(words: &str) {
    for mut command in [ipc(words), preloaded(words)] {
        let Some(done) = shown(&mut command) else { return };
        assert_eq!(text(&done.stderr), "", "{command:?}: nothing is written unasked");
    }
}

/// Runs programs under one knob.
fn pass_under(knob: &str, programs: &[&str]) {
    for words in programs {
        shown(ipc(words).envs([knob.split_once('=').unwrap()]));
    }
}

rows! { passes:
    messages_of_every_size_and_order_arrive_whole: "ipc_messages process_vm";
    stopped_process_is_not_needed_when_both_have_posted: "ipc_stopped stopped";
    both_close_and_no_buffer_is_touched_afterwards: "ipc_stopped both_close";
    process_whose_first_thread_has_left_is_not_taken_for_dead: "ipc_ends first_thread";
    fork_leaves_connections_to_the_parent: "ipc_ends fork";
    child_that_outlives_a_dead_parent_does_not_hide_its_end: "ipc_ends orphan";
    exec_ends_a_connection: "ipc_ends exec";
    close_leaves_eager_messages_and_drops_the_rest: "ipc_ends close";
    listen_accept_connect_by_path_and_by_abstract_name: "ipc_listen listen";
    waiting_process_sleeps: "ipc_waiting quiet";
    threads_share_a_connection: "ipc_threads threads";
    message_longer_than_its_buffer_is_told_and_stays: "ipc_messages unequal";
    full_table_is_eagain_and_a_million_reads_are_refused: "ipc_limits full";
    full_table_of_connections_is_emfile: "ipc_limits table";
    thousand_idle_connections_take_2_descriptors_and_32_kib_each: "ipc_limits cost";
    connections_made_and_closed_leave_nothing_behind: "ipc_ends again";
    numbers_that_the_program_has_given_to_its_own_files_are_left_alone: "ipc_ends all_closed";
    every_kind_of_unix_socket_will_do_and_is_left_as_it_was: "ipc_sockets kinds";
    other_descriptors_are_refused: "ipc_sockets other_sockets";
    accepting_can_be_interrupted: "ipc_listen interrupted";
    client_greeted_by_another_thread_is_accepted_at_once: "ipc_listen beside";
    connection_info_keeps_to_its_room: "ipc_words about";
    of_two_that_listen_at_one_path_one_does: "ipc_listen together";
    client_that_sees_the_socket_file_is_not_refused: "ipc_listen bound";
    memory_that_must_not_be_executed_will_do: "ipc_sockets noexec";
    child_forked_during_greetings_has_none_of_the_sockets: "ipc_sockets forked";
    child_forked_while_connect_waits_has_not_its_socket: "ipc_sockets waiting";
    threads_that_only_wait_never_find_the_table_full: "ipc_threads crowd";
    more_readers_than_places_wait_for_those_before_them: "ipc_threads many_readers";
    cookie_that_is_late_holds_up_the_256th_message_after_it: "ipc_limits late_cookie";
    both_sides_may_write_as_much_as_is_promised_before_they_read: "ipc_limits unread";
    page_that_is_missing_in_a_large_message_is_efault_on_both_sides: "ipc_limits missing";
    limit_of_a_wait_holds_while_the_caller_copies: "ipc_waiting limit";
    limit_of_a_beginning_cancels_no_message: "ipc_waiting within";
    limit_of_a_wait_holds_where_the_other_has_pages_that_do_not_come: "ipc_waiting pages";
    too_few_descriptors_are_emfile: "ipc_limits descriptors";
    cookie_waited_for_twice_or_by_another_connection_is_einval: "ipc_words cookies";
    every_error_that_is_named_has_words: "ipc_words errors";
    parts_versions_and_cookies_of_copies_are_as_the_header_says: "ipc_words calls";
    block_is_freed_once_and_only_as_a_whole: "ipc_blocks freed";
    blocks_freed_and_made_anew_are_never_confused: "ipc_blocks reused";
    block_freed_gives_its_pages_back_while_others_have_it_mapped: "ipc_blocks returned";
    blocks_stay_with_the_parent_after_fork: "ipc_blocks fork";
    blocks_stay_with_the_parent_after_a_bare_fork: "ipc_blocks fork bare";
    blocks_whose_descriptors_were_closed_are_carried_all_the_same: "ipc_blocks closed";
    buffer_with_a_hole_is_efault_when_the_other_is_a_block: "ipc_blocks hole";
    block_whose_descriptor_was_closed_gives_its_pages_back: "ipc_blocks returned closed";
    block_is_made_while_signals_come: "ipc_blocks interrupted";
    block_beyond_a_limit_is_null_and_no_process_killed: "ipc_blocks limited";
    block_that_cannot_be_mapped_for_want_of_a_descriptor_is_carried: "ipc_blocks no_descriptors";
    block_never_becomes_a_standard_stream: "ipc_blocks standard";
    message_that_ends_behind_its_block_is_carried: "ipc_blocks straddling";
    listener_can_be_polled_as_any_other: "ipc_service polled";
    service_thread_is_made_once_whatever_is_called_first: "ipc_service once";
    service_thread_ends_with_the_last_connection: "ipc_service ends";
    service_thread_does_not_keep_a_process_alive: "ipc_service last";
    service_thread_steps_aside_for_unshare: "ipc_service alone";
    process_connected_to_itself_has_blocks: "ipc_blocks alone";
    block_that_is_not_what_it_should_be_is_not_mapped: "ipc_blocks lied_to";
    block_that_loses_its_pages_all_the_time_ends_no_process: "ipc_blocks punched";
    seccomp_refusal_falls_back_to_shared_memory: "ipc_rights refused";
    right_lost_by_one_side_in_mid_connection_messages_go_on: "ipc_rights lost";
    right_lost_by_both_sides_in_mid_connection_messages_go_on: "ipc_rights lost both";
    other_user_namespace_falls_back_to_shared_memory: "ipc_rights namespaces";
    two_user_namespaces_fall_back_to_shared_memory: "ipc_rights namespaces_both";
    other_process_namespace_falls_back_to_shared_memory: "ipc_rights pid_namespace";
    two_process_namespaces_fall_back_to_shared_memory: "ipc_rights pid_namespaces";
    user_without_rights_copies_from_its_own_processes: "ipc_rights nobody";
    process_that_is_not_dumpable_falls_back_to_shared_memory: "ipc_rights dumpable";
    two_that_are_not_dumpable_fall_back_to_shared_memory: "ipc_rights dumpable_both";
    process_that_keeps_tracers_out_is_not_reached_by_root_either: "ipc_rights keeps_out";
    process_with_fewer_capabilities_falls_back_to_shared_memory: "ipc_rights poorer";
    users_that_can_change_back_fall_back_to_shared_memory: "ipc_rights changeable";
    two_users_without_names_are_refused: "ipc_rights nameless";
    user_changed_behind_a_first_thread_that_has_left_is_noticed: "ipc_rights changed_thread";
    two_users_are_refused: "ipc_rights users";
    client_of_another_user_is_refused_and_nothing_is_kept_for_it: "ipc_trust refused";
    server_of_another_user_refuses_a_client_that_cannot_tell: "ipc_trust refused_by_server";
    socket_file_is_its_users_only: "ipc_trust private";
    silent_clients_do_not_block_a_listener_that_must_not: "ipc_silent polled";
    memory_of_a_client_without_proof_is_not_read: "ipc_silent stuck_page";
    memory_of_a_proven_client_that_blocks_holds_up_no_other: "ipc_silent stuck_page proven";
    accepting_without_descriptors_does_not_spin: "ipc_silent emfile";
    process_that_is_not_dumpable_any_more_gets_nothing_more: "ipc_trust not_dumpable";
    blocks_are_mapped_by_the_first_message_that_needs_one: "ipc_trust lazy";
}

rows! { pass_under:
    // Rights decide which side may map a block; messages arrive in any case.
    rights_that_one_side_has_or_loses_are_enough_for_blocks: "BLOCKS=1", &[
        "ipc_rights refused", "ipc_rights lost", "ipc_rights lost both", "ipc_rights namespaces",
        "ipc_rights namespaces_both", "ipc_rights pid_namespace", "ipc_rights nobody",
        "ipc_rights dumpable",
    ];
    // Some are written past the cache.
    messages_between_blocks_of_every_size_and_order_arrive_whole:
        "BLOCKS=1", &["ipc_messages process_vm"];
    waiting_process_sleeps_also_where_it_must_help:
        "ADMA_IPC_ENGINE=shm", &["ipc_waiting quiet", "ipc_waiting quiet beside"];
    process_stopped_in_the_middle_of_a_piece_holds_up_no_call_with_a_limit:
        "ADMA_IPC_TIMEOUT=1", &["ipc_stopped frozen"];
    // Also where every message is streamed, as most are on a system with Yama.
    message_arrives_although_neither_program_calls:
        "ADMA_IPC_ENGINE=auto", &["ipc_service computes"];
    streamed_message_arrives_although_neither_program_calls:
        "ADMA_IPC_ENGINE=shm", &["ipc_service computes"];
    limits_hold_under_a_flood_of_clients: "ADMA_IPC_ENGINE=auto", &["ipc_service flood"];
    client_that_is_silent_for_less_than_a_second_keeps_its_place_in_a_crowd:
        "ADMA_IPC_ENGINE=auto", &["ipc_service crowded"];
    thousand_clients_that_come_at_one_moment_are_all_accepted:
        "ADMA_IPC_ENGINE=auto", &["ipc_service thousand"];
    service_thread_that_is_refused_is_not_missed_by_calls: "ADMA_IPC_ENGINE=shm", &["ipc_service refused"];
    knob_raises_the_size_of_messages_that_are_taken_before_they_are_read:
        "ADMA_IPC_EAGER=128", &["ipc_limits raised"];
    // A listener that does not accept, a silent client, and clients that send garbage.
    greetings_have_a_limit: "ADMA_IPC_TIMEOUT=1",
        &["ipc_silent queue", "ipc_silent socket", "ipc_listen closed_meanwhile"];
    silent_clients_keep_no_other_from_being_accepted:
        "ADMA_IPC_TIMEOUT=12", &["ipc_silent stalled"];
    crowd_of_silent_clients_holds_up_no_other_and_leaves_no_descriptor: "ADMA_IPC_TIMEOUT=2", &[
        "ipc_silent crowd", "ipc_silent closed", "ipc_silent limit", "ipc_listen interrupted silent",
    ];
    // Streamed messages, which need the process: only connections that were rung are looked at.
    look_at_a_cookie_costs_the_same_with_a_thousand_idle_connections:
        "ADMA_IPC_ENGINE=shm", &["ipc_silent idle"];
    child_forked_while_a_socket_is_closed_does_not_hide_the_end:
        "ADMA_IPC_TIMEOUT=3", &["ipc_sockets thread"];
    page_that_is_missing_ends_its_process_where_messages_go_through_shared_memory:
        "ADMA_IPC_ENGINE=shm", &["ipc_limits missing_shared"];
    thread_that_ends_a_message_wakes_its_waiter:
        "ADMA_IPC_ENGINE=auto", &["ipc_progress neighbours", "ipc_progress neighbours write"];
    message_that_no_thread_waits_for_goes_on_whatever_the_others_do: "ADMA_IPC_ENGINE=shm", &[
        "ipc_unattended asked", "ipc_unattended accepting", "ipc_unattended left_by_other",
    ];
    socket_of_a_peer_that_broke_the_protocol_keeps_no_thread_busy:
        "ADMA_IPC_ENGINE=shm", &["ipc_unattended broken"];
    wrong_word_of_a_peer_ends_its_connection_and_holds_up_no_other:
        "ADMA_IPC_ENGINE=shm", &["ipc_unattended overcounted"];
    thread_that_reads_beside_an_event_loop_is_woken:
        "ADMA_IPC_ENGINE=auto", &["ipc_unattended beside_event_loop"];
    right_lost_while_no_thread_is_in_a_call_messages_go_on:
        "ADMA_IPC_ENGINE=auto", &["ipc_unattended lost_by_us", "ipc_unattended lost_by_peer"];
    messages_of_threads_and_of_other_lengths_arrive_in_chunks:
        "ADMA_IPC_ENGINE=shm", &["ipc_threads threads", "ipc_messages unequal"];
}

/// A peer posts an address and executes another program, or leaves its pid to one, which is neither
/// read nor written.
#[test]
fn program_that_has_not_agreed_is_not_reached_into() {
    let victim = victim_with("ipc_victim", &["-static"]);
    let victim = victim.to_str().unwrap();
    let deputy = "set_user_id_same capability_same exec exec_same reused raced";
    let table = [("ipc_deputy", deputy), ("ipc_trust", "changed changed_block changed_claims")];
    for (program, scenes) in table {
        for scene in scenes.split(' ') {
            // A busy machine may need longer to connect a hundred times.
            let limit = if scene == "raced" { "20" } else { "2" };
            // Workers copy, too.
            for knob in [None, Some(("ADMA_CHANNELS", "3"))] {
                let mut command = ipc(&format!("{program} {scene}"));
                shown(command.arg(victim).envs(knob).env("ADMA_IPC_TIMEOUT", limit));
            }
        }
    }
}

/// Two processes, many threads, blocks that come and go. A seed that fails is in the message.
#[test]
fn blocks_made_freed_and_sent_at_random_lose_no_byte() {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() % 1_000_000;
    for seed in [1, now, now + 1] {
        let words = format!("ipc_mixed {seed}");
        succeed(&mut ipc(&words));
        succeed(&mut preloaded(&words));
    }
}

#[test]
fn figures_are_reported_where_they_are_counted() {
    statistics(&mut ipc("ipc_words counted"));
}

fn is_quick() -> bool {
    std::env::var("QUICK").is_ok_and(|quick| !quick.is_empty())
}

#[test]
fn program_without_a_heap_goes_on_waiting() {
    for knob in ["ADMA_IPC_ENGINE=shm", "ADMA_IPC_ENGINE=auto"] {
        pass_under(knob, &["ipc_limits no_heap"]);
    }
}

/// Over every engine, for what needs both sides and for what does not.
#[test]
fn waiting_thread_makes_all_connections_of_the_process_go_on() {
    let scenes = ["ring", "ring write_first", "asleep", "handed_on", "cancelled"];
    for words in scenes.map(|scene| format!("ipc_progress {scene}")) {
        for knob in ["ADMA_IPC_ENGINE=shm", "ADMA_IPC_ENGINE=auto"] {
            pass_under(knob, &[&words]);
        }
    }
}

/// Every knob that changes how messages are copied.
#[test]
fn every_engine_carries_every_size() {
    let cases = [("ADMA_IPC_ENGINE", "shm"), ("ADMA_BACKEND", "threads"), ("ADMA_CHANNELS", "3")];
    for (knob, value) in cases {
        let engine = if value == "shm" { "shared" } else { "process_vm" };
        let mut command = ipc(&format!("ipc_messages {engine} 4000000"));
        succeed(command.env(knob, value));
        succeed(command.env("BLOCKS", "1"));
    }
}

/// By both processes, and by workers of both.
#[test]
fn large_messages_between_any_memory_are_copied_by_workers_too() {
    if is_kept_out() {
        return skip_this(KEPT_OUT);
    }
    let copied = |report: &Value, means: &str| number(&report["messages"]["copied_bytes"][means]);
    let mut by_workers = 0;
    for _ in 0..20 {
        let mut command = ipc("ipc_messages process_vm 20000000");
        let reports = statistics(command.env("ADMA_CHANNELS", "2"));
        by_workers +=
            reports.iter().map(|report| copied(report, "process_vm_workers")).sum::<u64>();
        if by_workers > 0 {
            return;
        }
    }
    panic!("no worker has copied a byte");
}

#[test]
fn peer_killed_at_random_moments_is_noticed_every_time() {
    let rounds = if is_quick() { 500 } else { 10_000 };
    let play = |engine: &str, blocks: bool, workers: bool| {
        let mut command = ipc(&format!("ipc_killed {rounds}"));
        command.env("ADMA_IPC_ENGINE", engine);
        if workers {
            command.env("ADMA_CHANNELS", "2");
        }
        if blocks {
            command.env("BLOCKS", "1");
        }
        let done = finish_within(&mut command, Duration::from_secs(600));
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{engine}, {blocks}: {}\n{err}", done.status);
    };
    // All at once: they mostly wait for the killer.
    std::thread::scope(|scope| {
        for (engine, blocks) in [("auto", false), ("auto", true), ("shm", false)] {
            scope.spawn(move || play(engine, blocks, false));
        }
        scope.spawn(move || play("auto", false, true));
    });
}

/// A seed that fails is in the message. (By hand, without a limit: ipc_fuzz greeting 1000000 1 0.)
#[test]
fn peer_that_sends_and_writes_random_bytes_does_no_harm() {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() % 1_000_000;
    let (greetings, messages) = if is_quick() { ("3000", "500") } else { ("30000", "5000") };
    for (what, rounds) in [("greeting", greetings), ("region", messages)] {
        let mut command = ipc(&format!("ipc_fuzz {what} {rounds} {now}"));
        let done = finish_within(command.env("ADMA_IPC_TIMEOUT", "1"), Duration::from_secs(600));
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{command:?}: {}\n{err}", done.status);
    }
}

#[test]
fn log_info_names_the_engine_and_why() {
    if is_kept_out() {
        return skip_this(KEPT_OUT);
    }
    let cases = [
        ("ipc_ends close", "process_vm, one copy, both processes copy"),
        ("ipc_rights refused", "shared memory, two copies; process_vm: "),
        ("ipc_rights pid_namespaces", "cannot be seen from this namespace"),
        ("ipc_rights dumpable", "does not let itself be reached"),
    ];
    for (words, why) in cases {
        let Some(done) = shown(ipc(words).env("ADMA_LOG", "info")) else { continue };
        let err = text(&done.stderr);
        let lines: Vec<&str> = err.lines().filter(|line| line.contains("connection:")).collect();
        assert_eq!(lines.len(), 2, "one line for each side: {err}");
        let says = |line: &&str| line.starts_with("adma: connection: ") && line.contains(why);
        assert!(lines.iter().all(says), "{words}: {err}");
    }
}

#[test]
fn helper_that_is_wanted_and_not_there_is_named() {
    if std::path::Path::new("/dev/adma").exists() {
        return skip_this("/dev/adma is there");
    }
    let mut command = ipc("ipc_ends close");
    let (_, err) = succeed(command.envs([("ADMA_LOG", "info"), ("ADMA_IPC_ENGINE", "helper")]));
    assert!(err.contains("shared memory") && err.contains("the kernel helper"), "{err}");
}

/// Messages in the report at exit: every number is known.
#[test]
fn report_counts_messages_by_direction_regime_and_means() {
    if is_kept_out() {
        return skip_this(KEPT_OUT);
    }
    const DIRECT: u64 = 80_000 + (4 << 20);
    for (engine, direct) in [("auto", "process_vm"), ("auto", "mapped"), ("shm", "none")] {
        let mut command = ipc("ipc_words six");
        if direct == "mapped" {
            command.env("BLOCKS", "1");
        }
        let reports = statistics(command.env("ADMA_IPC_ENGINE", engine));
        let talks = |report: &&Value| report["messages"].is_object();
        assert_eq!(reports.iter().filter(talks).count(), 2, "{reports:?}");
        let mut copied = 0;
        for report in reports.iter().filter(talks) {
            let messages = &report["messages"];
            let two = |part: &Value| (number(&part["messages"]), number(&part["bytes"]));
            let mut ways = ["sent", "received"].map(|way| two(&messages[way]));
            ways.sort();
            assert_eq!(ways, [(0, 0), (6, 300 + DIRECT)], "{messages}");
            let regime = |name: &str| two(&messages["regimes"][name]);
            assert_eq!(regime("eager"), (3, 300), "{messages}");
            let (one, both, chunks) = (regime("one_copy"), regime("two_ended"), regime("chunks"));
            let means = |name: &str| number(&messages["copied_bytes"][name]);
            let all = &messages["copied_bytes"];
            let other = if direct == "mapped" { "process_vm" } else { "mapped" };
            assert_eq!(means(other), 0, "{all}");
            if engine != "shm" {
                copied += means(direct);
            }
            if direct == "process_vm" {
                copied += means("process_vm_workers");
            }
            if engine == "shm" {
                assert_eq!((one, both, chunks), ((0, 0), (0, 0), (3, DIRECT)), "{messages}");
                assert_eq!(means("shared_memory"), 300 + DIRECT, "{messages}");
            } else {
                assert_eq!((one.0 + both.0, one.1 + both.1), (3, DIRECT), "{messages}");
                assert_eq!(chunks, (0, 0), "{messages}");
                assert_eq!(means("shared_memory"), 300, "{messages}");
            }
        }
        assert_eq!(copied, if engine == "shm" { 0 } else { DIRECT }, "every byte once");
    }
    let (_, err) = succeed(ipc("ipc_words six").env("ADMA_STATS", "text"));
    assert!(err.contains("messages") && err.contains("copied here by"), "{err}");
}
