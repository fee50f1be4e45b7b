//! process_vm_readv and process_vm_writev, by which MPI libraries move large messages: shared
//! with workers, and always the kernel's answer.

mod common;

use common::{
    Folder, Value, has, has_cpus, needs, number, plain, preloaded, root, rows, statistics, succeed,
    victim,
};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a program with everything shared that can be.
fn remote(words: &str) -> Command {
    let mut command = preloaded(victim("remote"));
    command.args(words.split(' ')).env("ADMA_MIN_BYTES", "1").env("ADMA_CHANNELS", "3");
    command.env("ADMA_OPS", "process_vm_readv,process_vm_writev");
    command
}

fn shared(reports: &[Value]) -> u64 {
    reports.iter().map(|report| number(&report["paths"]["engine"]["calls"])).sum()
}

/// Checks that transfers are right, and by the engine: otherwise nothing was shown.
fn engine_transfers_right(words: &str, at_least: u64) {
    succeed(plain(victim("remote")).args(words.split(' ')));
    let reports = statistics(&mut remote(words));
    assert!(shared(&reports) >= at_least, "{words}: {reports:?}");
}

rows! { engine_transfers_right:
    scattered_transfers_are_the_kernels: "random 1 400", 150;
    transfers_of_four_threads_at_once_are_the_kernels: "threads 20 80", 10;
    transfers_in_the_child_of_a_fork_are_the_kernels: "forked 30 100", 30;
    // Lists that would not fit on every stack.
    transfers_of_more_than_64_segments_are_shared_and_the_kernels: "long 3 60", 50;
    // A filter that kills for calls that a program need not make for transfers.
    transfers_under_a_filter_are_the_kernels: "filtered 40 60", 20;
    // More channels than one transfer of this size gains by.
    workers_that_are_awake_are_not_made_again: "in_a_row", 1;
    refused_and_cut_off_transfers_are_answered_as_the_kernel_does: "errors", 0;
}

/// A job with as many ranks as CPUs has none left for helping one of them.
#[test]
fn rank_of_many_takes_no_cpu_of_the_others() {
    let with_ranks = |ranks: &str| {
        let mut command = remote("random 1 60");
        command.env("OMPI_COMM_WORLD_LOCAL_SIZE", ranks).env_remove("ADMA_CHANNELS");
        statistics(&mut command)
    };
    needs!(has_cpus());
    assert!(shared(&with_ranks("1")) > 10);
    let reports = with_ranks("4096");
    let alone: u64 = reports.iter().map(|one| number(&one["fallbacks"]["ranks"])).sum();
    assert!(shared(&reports) == 0 && alone > 10, "{reports:?}");
}

#[test]
fn random_seed_transfers_are_the_kernels() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    engine_transfers_right(&format!("random {seed} 300"), 60);
}

#[test]
fn transfers_with_one_worker_are_the_kernels() {
    let mut command = remote("random 7 60");
    let reports = statistics(command.env("ADMA_CHANNELS", "1"));
    assert!(shared(&reports) > 10, "{reports:?}");
}

#[test]
fn transfers_within_one_process_keep_the_kernels_order() {
    succeed(plain(victim("remote")).arg("itself"));
    let reports = statistics(&mut remote("itself"));
    let overlaps: u64 = reports.iter().map(|r| number(&r["fallbacks"]["overlap"])).sum();
    assert!(overlaps >= 16, "{reports:?}");
}

/// A child may inherit the room for long lists taken, also where no engine was started yet.
#[test]
fn children_of_a_process_without_large_transfers_share_long_lists() {
    let reports = statistics(remote("forked_cold").env("ADMA_MIN_BYTES", "1M"));
    let shares = |report: &&Value| number(&report["paths"]["engine"]["calls"]) > 0;
    // Each child reports, and the parent may.
    assert!(reports.iter().filter(shares).count() >= 8, "{reports:?}");
}

#[test]
fn as_shipped_transfers_are_the_kernels() {
    succeed(preloaded(victim("remote")).args(["random", "50", "200"]));
}

#[test]
fn large_transfer_is_shared_and_a_smaller_one_is_not() {
    let reports = |size: &str, ops: &str| {
        let mut command = preloaded(victim("remote"));
        command.args(["plain", "9", size]).env("ADMA_CHANNELS", "2").env("ADMA_OPS", ops);
        statistics(command.env("ADMA_MIN_BYTES", "1M").env("ADMA_PROFILE", "1"))
    };
    let profiled = |reports: &[Value]| -> u64 {
        let calls = |r: &Value| number(&r["profile"]["functions"]["process_vm_readv"]["calls"]);
        reports.iter().map(calls).sum()
    };
    let at = reports("1048576", "process_vm_readv");
    assert_eq!((shared(&at), profiled(&at)), (9, 9), "{at:?}");
    assert_eq!(at[0]["paths"]["engine"]["bytes"], 9 << 20, "{at:?}");
    let below = reports("1048575", "process_vm_readv");
    assert_eq!((shared(&below), profiled(&below)), (0, 9), "{below:?}");
    let other = reports("4194304", "process_vm_writev,memcpy");
    assert_eq!((shared(&other), profiled(&other)), (0, 0), "{other:?}");
}

/// An unmodified MPI program: what comes back is what was sent, and the engine carried it.
#[test]
fn open_mpi_ping_pong_is_carried_and_right() {
    needs!(has("mpirun mpicc"));
    let folder = Folder::new("mpi");
    let (source, program) = (root().join("tests/programs/mpi_echo.c"), folder.join("echo"));
    succeed(plain("mpicc").args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(source));
    let mut command = plain("mpirun");
    let words = "--allow-run-as-root --oversubscribe -np 2 --mca btl self,vader \
                 --mca btl_vader_single_copy_mechanism cma -x LD_PRELOAD -x ADMA_STATS \
                 -x ADMA_STATS_FILE -x ADMA_ONLY -x ADMA_MIN_BYTES=1M -x ADMA_CHANNELS=2";
    command.args(words.split_whitespace()).arg(&program);
    // Without preloading mpirun itself.
    command.env("LD_PRELOAD", common::library()).env("ADMA_ONLY", "echo");
    let reports = statistics(&mut command);
    assert_eq!(reports.len(), 2, "{reports:?}");
    // Twenty messages each way of 1 to 16 MiB; some may have found the channels busy.
    assert!(shared(&reports) >= 20, "{reports:?}");
}
