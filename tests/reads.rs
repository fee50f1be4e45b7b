//! Large reads of files: shared with workers, and always what the kernel and the C library would
//! have answered.

mod common;

use common::{
    Folder, Value, command, finish, found, is_root, library, number, plain, preloaded, reports_in,
    rows, skip_this, statistics, succeed, text, victim,
};
use std::ffi::CStr;
use std::path::Path;
use std::process::Command;

const OPS: &str = "read,pread,readv,preadv,preadv2,read_chk,pread_chk,fread,fread_unlocked,\
                   fread_chk,fread_unlocked_chk";

/// Settings by which everything is shared that can be.
const SHARED: [(&str, &str); 3] =
    [("ADMA_MIN_BYTES", "64K"), ("ADMA_CHANNELS", "2"), ("ADMA_OPS", OPS)];

/// Returns a program of tests/programs and its scene, with a folder for files, without the library.
fn alone(words: &str, folder: &Path) -> Command {
    let (program, scene) = words.split_once(' ').unwrap();
    let mut command = plain(victim(program));
    command.arg(scene).arg(folder);
    command
}

fn reads(words: &str, folder: &Path) -> Command {
    let mut command = alone(words, folder);
    command.env("LD_PRELOAD", library()).envs(SHARED);
    command
}

fn shared(reports: &[Value]) -> u64 {
    reports.iter().map(|report| number(&report["reads"]["engine"]["calls"])).sum()
}

/// Checks for the output of a run without the library, with `at_least` calls shared.
fn matches_libc_in(what: &str, folder: &Path, at_least: u64) {
    let expected = succeed(&mut alone(what, folder)).0;
    assert!(!expected.is_empty());
    let figures = Folder::new("stats");
    let mut command = reads(what, folder);
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", figures.join("%p.json"));
    let told = succeed(&mut command).0;
    for (expected, told) in expected.lines().zip(told.lines()) {
        assert_eq!(told, expected, "{what}");
    }
    assert_eq!(told.lines().count(), expected.lines().count(), "{what}");
    let reports = reports_in(&figures);
    assert!(shared(&reports) >= at_least, "{what}: {reports:?}");
}

fn matches_libc(what: &str, at_least: u64) {
    matches_libc_in(what, &Folder::new("reads"), at_least);
}

rows! { matches_libc:
    reads_in_every_corner_are_the_kernels: "reads corners", 300;
    reads_of_streams_are_libcs: "reads streams", 100;
    // dup, fork and threads: without a claim of the position bytes come twice.
    reads_of_many_with_one_position_get_every_byte_once: "reads_beside shared", 20;
    reads_of_files_that_change_agree_with_the_position: "reads_beside changing", 100;
    reads_whose_descriptor_is_replaced_are_of_one_file: "reads_beside replaced", 20;
    reads_beside_signals_are_whole: "reads_beside signals", 50;
    reads_on_a_small_stack_are_whole: "reads_beside small", 10;
    read_of_a_cancelled_thread_ends_it_and_moves_nothing: "reads_beside cancelled", 0;
    reads_of_children_and_of_threads_with_descriptors_of_their_own_are_the_kernels: "reads_beside children", 20;
    reads_leave_locks_leases_and_access_times_as_the_kernel_does: "reads_beside watched", 20;
    reads_of_more_than_2_gib_end_where_the_kernel_ends_them: "reads huge", 4;
}

/// The filter kills for calls that a reader need not make, in workers too. No report is asked for: it
/// would make such calls.
#[test]
fn reads_under_a_filter_stay_with_libc() {
    let folder = Folder::new("reads");
    let told = succeed(reads("reads_beside filtered", &folder).env("TRAP_WORKERS", "1")).0;
    assert_eq!(told, "read under a filter\n");
}

#[test]
fn as_shipped_reads_are_the_kernels() {
    let folder = Folder::new("reads");
    for what in ["reads corners", "reads streams"] {
        let expected = succeed(&mut alone(what, &folder)).0;
        let told = succeed(alone(what, &folder).env("LD_PRELOAD", library())).0;
        assert_eq!(told, expected, "{what}");
    }
}

/// Without RWF_NOWAIT, but all of it is memory.
#[test]
fn reads_on_tmpfs_are_shared() {
    let folder = Path::new("/dev/shm").join(format!("adma-reads-{}", std::process::id()));
    if std::fs::create_dir(&folder).is_err() {
        return skip_this("no /dev/shm");
    }
    matches_libc_in("reads corners", &Folder(folder), 300);
}

/// File systems that can be made here, in namespaces that end with the program. Those without
/// RWF_NOWAIT (overlayfs, FUSE) are left to libc.
#[test]
fn reads_on_other_file_systems_are_the_kernels() {
    if !is_root() || !found("unshare") {
        return skip_this("takes root and unshare(1)");
    }
    let image = "truncate -s 400M $F/image &&";
    let on_loop = "-q $F/image >&2 && mount -o loop $F/image $F/m";
    let overlay = "mount -t overlay overlay -o lowerdir=$F/l,upperdir=$F/u,workdir=$F/w $F/m";
    let systems = [
        ("mount", overlay.into(), false),
        ("mkfs.xfs", format!("{image} mkfs.xfs {on_loop}"), true),
        ("mkfs.btrfs", format!("{image} mkfs.btrfs {on_loop}"), true),
        ("fuse2fs", format!("{image} mkfs.ext2 -q $F/image && fuse2fs $F/image $F/m"), false),
    ];
    for (needs, mount, is_shared) in systems {
        if !found(needs) {
            skip_this(&format!("no {needs}"));
            continue;
        }
        if needs == "fuse2fs" && !Path::new("/dev/fuse").exists() {
            skip_this("no /dev/fuse");
            continue;
        }
        let script = format!("{mount} || exit 77; LD_PRELOAD=$L exec $P corners $F/m");
        let run = |library: &Path| {
            let folder = Folder::new("reads");
            for sub in ["l", "u", "w", "m", "stats"] {
                std::fs::create_dir(folder.join(sub)).unwrap();
            }
            // A server of FUSE is killed with the namespace of processes.
            let mut command = plain("unshare");
            command
                .args(["-mpf", "--mount-proc", "--kill-child", "sh", "-c", &script])
                .envs(SHARED);
            command.env("F", &folder).env("P", victim("reads")).env("L", library);
            command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("stats/%p.json"));
            let done = finish(&mut command);
            let calls = shared(&reports_in(&folder.join("stats")));
            // One answer contains the folder.
            let said = text(&done.stdout).replace(&folder.display().to_string(), "FOLDER");
            (done.status.code(), said, calls)
        };
        let (status, expected, _) = run(Path::new(""));
        if status == Some(77) {
            skip_this(&format!("cannot mount: {mount}"));
            continue;
        }
        let (status, said, calls) = run(&library());
        assert_eq!((status, said), (Some(0), expected), "{mount}");
        // Reads of a memfd always are.
        assert_eq!(calls > 100, is_shared, "{mount}: {calls}");
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

/// Reads are counted apart in every form of the statistics.
#[test]
fn reads_are_a_kind_of_their_own() {
    let folder = Folder::new("reads");
    let reports = statistics(reads("reads corners", &folder).env("ADMA_PROFILE", "1"));
    let (of_reads, all) = (&reports[0]["reads"]["engine"], &reports[0]["paths"]["engine"]);
    assert_eq!((&of_reads["calls"], &of_reads["bytes"]), (&all["calls"], &all["bytes"]));
    assert!(number(&of_reads["bytes"]) > 100 << 20, "{reports:?}");
    let called = |op: &str| number(&reports[0]["profile"]["functions"][op]["calls"]);
    assert!(["read", "pread", "readv", "preadv", "preadv2"].into_iter().all(|op| called(op) > 5));
    let told = succeed(reads("reads corners", &folder).env("ADMA_STATS", "text")).1;
    assert!(told.contains("reads of files"), "{told}");
    let (report, page) = (folder.join("report.json"), folder.join("page.html"));
    std::fs::write(&report, reports[0].to_string()).unwrap();
    let told = succeed(plain(command()).arg("report").arg(&report).arg("--html").arg(&page)).0;
    let line = told.lines().find(|line| line.contains("reads of files")).expect(&told);
    let calls = number(&of_reads["calls"]) + number(&reports[0]["reads"]["libc"]["calls"]);
    assert!(line.contains(&format!(" {calls} ")), "{line}");
    assert!(std::fs::read_to_string(page).unwrap().contains("Reads of files"));
}

/// Returns the second number of glibc's version.
fn glibc_minor() -> u32 {
    // SAFETY: glibc returns a static string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_str().unwrap().strip_prefix("2.").unwrap().parse().unwrap()
}

#[test]
fn reads_that_ops_does_not_name_are_left_to_libc() {
    let folder = Folder::new("reads");
    // Before glibc 2.34, __read_chk is no cancellation point, as shared reads are.
    let bare = if glibc_minor() < 34 { "read_chk" } else { "" };
    // Each function is called two to four times; the first call may find no worker yet.
    for op in OPS.split(',').chain(["memcpy"]) {
        let reports = statistics(reads("reads each", &folder).env("ADMA_OPS", op));
        let calls = shared(&reports);
        let right =
            if ["memcpy", bare].contains(&op) { calls == 0 } else { (1..=4).contains(&calls) };
        assert!(right, "{op}: {reports:?}");
    }
}
