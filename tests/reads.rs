//! Large reads of files: shared with workers, and always what the kernel and the C library would
//! have answered.

mod common;

use common::{
    Value, finish, found, is_root, number, plain, preloaded, reports_in, scratch, skip, statistics,
    succeed, text, victim,
};
use std::path::Path;
use std::process::Command;

const OPS: &str = "read,pread,readv,preadv,preadv2,read_chk,pread_chk,fread,fread_unlocked,\
                   fread_chk,fread_unlocked_chk";

/// Everything is shared that can be.
fn reads(what: &str, folder: &Path) -> Command {
    let mut command = preloaded(victim("reads"));
    command.arg(what).arg(folder).env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
    command.env("ADMA_OPS", OPS);
    command
}

fn shared(reports: &[Value]) -> u64 {
    reports.iter().map(|report| number(&report["reads"]["engine"]["calls"])).sum()
}

/// Output is that of a run without the library, with `at_least` calls shared.
fn says_the_same_in(what: &str, folder: &Path, at_least: u64) {
    let expected = succeed(plain(victim("reads")).arg(what).arg(folder)).0;
    assert!(!expected.is_empty());
    let figures = scratch("stats");
    let mut command = reads(what, folder);
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", figures.join("%p.json"));
    let told = succeed(&mut command).0;
    for (expected, told) in expected.lines().zip(told.lines()) {
        assert_eq!(told, expected, "{what}");
    }
    assert_eq!(told.lines().count(), expected.lines().count(), "{what}");
    let reports = reports_in(&figures);
    assert!(shared(&reports) >= at_least, "{what}: {reports:?}");
    std::fs::remove_dir_all(figures).unwrap();
}

macro_rules! the_same {
    ($($name:ident: $what:literal, $at_least:literal;)*) => {
        $(
            #[test]
            fn $name() {
                let folder = scratch("reads");
                says_the_same_in($what, &folder, $at_least);
                std::fs::remove_dir_all(folder).unwrap();
            }
        )*
    };
}

the_same! {
    reads_in_every_corner_are_the_kernels: "corners", 300;
    reads_of_streams_are_libcs: "streams", 100;
    // dup, fork and threads: without a claim of the position bytes come twice.
    reads_of_many_with_one_position_get_every_byte_once: "shared", 20;
    reads_of_files_that_change_agree_with_the_position: "changing", 100;
    reads_beside_signals_are_whole: "signals", 50;
    read_of_a_cancelled_thread_ends_it_and_moves_nothing: "cancelled", 0;
    reads_of_children_and_of_threads_with_descriptors_of_their_own_are_the_kernels: "children", 20;
    // The filter kills for calls that a reader need not make.
    reads_under_a_filter_stay_with_libc: "filtered", 0;
    reads_of_more_than_2_gib_end_where_the_kernel_ends_them: "huge", 3;
}

#[test]
fn as_shipped_reads_are_the_kernels() {
    let folder = scratch("reads");
    for what in ["corners", "streams"] {
        let expected = succeed(plain(victim("reads")).arg(what).arg(&folder)).0;
        let told = succeed(preloaded(victim("reads")).arg(what).arg(&folder)).0;
        assert_eq!(told, expected, "{what}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Without RWF_NOWAIT, but all of it is memory.
#[test]
fn reads_on_tmpfs_are_shared() {
    let folder = Path::new("/dev/shm").join(format!("adma-reads-{}", std::process::id()));
    if std::fs::create_dir(&folder).is_err() {
        return skip("reads_on_tmpfs_are_shared", "no /dev/shm");
    }
    says_the_same_in("corners", &folder, 300);
    std::fs::remove_dir_all(folder).unwrap();
}

/// File systems that can be made here, in a mount namespace that ends with the program.
#[test]
fn reads_on_other_file_systems_are_the_kernels() {
    let name = "reads_on_other_file_systems_are_the_kernels";
    if !is_root() || !found("unshare") {
        return skip(name, "takes root and unshare(1)");
    }
    let loops = "dd if=/dev/zero of=$F/image bs=1M count=400 status=none &&";
    let systems = [
        (
            "true",
            "mount -t overlay overlay -o lowerdir=$F/l,upperdir=$F/u,workdir=$F/w $F/m".into(),
        ),
        ("mkfs.xfs", format!("{loops} mkfs.xfs -q $F/image && mount -o loop $F/image $F/m")),
        ("mkfs.btrfs", format!("{loops} mkfs.btrfs -q $F/image && mount -o loop $F/image $F/m")),
    ];
    for (needs, mount) in systems {
        let folder = scratch("reads");
        ["l", "u", "w", "m"].iter().for_each(|sub| std::fs::create_dir(folder.join(sub)).unwrap());
        if !found(needs) {
            skip(name, &format!("no {needs}"));
            continue;
        }
        let script = format!("F={0}; {mount} || exit 77; exec $P corners $F/m", folder.display());
        let run = |command: &mut Command| {
            let done = finish(command.env("P", victim("reads")));
            (done.status.code(), text(&done.stdout))
        };
        let arguments = ["-m", "sh", "-c", &script];
        let (status, expected) = run(plain("unshare").args(arguments));
        if status == Some(77) {
            skip(name, &format!("cannot mount: {mount}"));
            continue;
        }
        let knobs = [("ADMA_MIN_BYTES", "64K"), ("ADMA_CHANNELS", "2"), ("ADMA_OPS", OPS)];
        let told = run(preloaded("unshare").args(arguments).envs(knobs));
        assert_eq!(told, (Some(0), expected), "{mount}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn fortified_reads_that_do_not_fit_end_the_program() {
    for what in ["read", "pread", "fread"] {
        for mut command in [plain(victim("reads")), preloaded(victim("reads"))] {
            let done = finish(command.args(["overflow", what]).env("ADMA_MIN_BYTES", "64K"));
            let said = text(&done.stderr);
            assert!(said.contains("buffer overflow detected"), "{what}: {done:?}");
        }
    }
}

/// Reads are counted apart, and only those that `ADMA_OPS` names are shared.
#[test]
fn reads_are_a_kind_of_their_own_and_can_be_chosen() {
    let folder = scratch("reads");
    let reports = statistics(reads("corners", &folder).env("ADMA_PROFILE", "1"));
    let (of_reads, all) = (&reports[0]["reads"]["engine"], &reports[0]["paths"]["engine"]);
    assert_eq!((&of_reads["calls"], &of_reads["bytes"]), (&all["calls"], &all["bytes"]));
    assert!(number(&of_reads["bytes"]) > 100 << 20, "{reports:?}");
    let called = |op: &str| number(&reports[0]["profile"]["functions"][op]["calls"]);
    assert!(["read", "pread", "readv", "preadv", "preadv2"].into_iter().all(|op| called(op) > 5));
    let none = statistics(reads("corners", &folder).env("ADMA_OPS", "fread,memcpy"));
    assert!(none.iter().all(|report| number(&report["reads"]["engine"]["calls"]) == 0));
    let text = succeed(reads("corners", &folder).env("ADMA_STATS", "text")).1;
    assert!(text.contains("reads of files"), "{text}");
    std::fs::remove_dir_all(folder).unwrap();
}
