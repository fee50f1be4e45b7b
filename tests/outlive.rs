//! Calls that are left by a jump, or are under way when another thread forks, maps memory or installs a
//! filter: nothing that a call has set up for itself outlives it.

mod common;

use common::traps::survives_unreported;
use common::{plain, preloaded, shown, succeed, victim};

/// Runs a scene of `outlive` without the library, on one CPU and on all.
fn survives(scene: &[&str]) {
    if shown(plain(victim("outlive")).args(scene)).is_none() {
        return;
    }
    for cpus in ["0", "0-63"] {
        let mut command = preloaded("taskset");
        succeed(command.args(["-c", cpus]).arg(victim("outlive")).args(scene));
    }
}

#[test]
fn jump_out_of_calls_into_fresh_memory_leaves_no_descriptor() {
    survives(&["files", "1"]);
    survives(&["files", "2"]);
}

#[test]
fn memory_of_a_fill_that_was_jumped_out_of_stays_small() {
    survives(&["marks"]);
}

#[test]
fn child_of_a_fork_beside_a_fill_keeps_small_pages() {
    survives(&["child"]);
}

#[test]
fn memory_mapped_across_the_end_of_a_mapping_that_is_filled_can_be_moved() {
    survives(&["remap"]);
}

#[test]
fn jump_out_of_the_first_copies_of_a_filtered_process_leaves_nothing_taken() {
    survives_unreported("outlive filtered");
}

#[test]
fn jump_out_of_a_large_fread_leaves_cancellation_enabled() {
    survives(&["stream"]);
}

#[test]
fn thread_cancelled_in_a_large_fread_leaves_the_stream_unlocked() {
    survives(&["cancelled"]);
}

#[test]
fn filter_for_all_threads_that_forbids_exit_does_not_end_the_program() {
    survives_unreported("outlive leaving kill");
    survives_unreported("outlive leaving errno");
    survives_unreported("outlive leaving unseen");
}

#[test]
fn filter_that_kills_for_a_call_of_shared_copies_leaves_them_to_libc() {
    survives_unreported("outlive masking");
}
