//! /dev/adma without the hardware: missing, not permitted, or another device. Each run gets a /dev
//! of its own, so the machine's is not touched.

mod common;

use common::{
    Folder, Value, copy_program, finish, library, needs, number, plain, skip_this, text, victim,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// Stand-ins for the helper.
const NOTHING: &str = ":";
const NULL_DEVICE: &str = "mknod /dev/adma c 1 3";
const PLAIN_FILE: &str = "echo words >/dev/adma";
const FOR_A_GROUP: &str = "mknod -m 640 /dev/adma c 1 3; chown 0:4 /dev/adma";

/// A user that is neither root nor in any group.
const UNPRIVILEGED: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Copies the library and a program to where every user can read them.
fn readable() -> Folder {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("adma-helper-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(library(), folder.join("libadma.so")).unwrap();
    copy_program(victim("stats_copies"), folder.join("stats_copies"));
    Folder(folder)
}

/// Returns `words` under the library, with a /dev that holds only what `setup` makes.
fn run(files: &Folder, setup: &str, user: &[&str], knobs: &[&str], words: &[&str]) -> Output {
    let script = format!("mount -t tmpfs none /dev && {{ {setup}; }} && exec \"$@\"");
    let mut command = plain("unshare");
    command.args(["-m", "sh", "-c", &script, "sh"]).args(user).arg("env").args(knobs);
    command.arg(format!("LD_PRELOAD={}/libadma.so", files.0.display())).args(words);
    finish(&mut command)
}

/// Returns whether runs with a /dev of their own can be made here.
fn can_be_shown() -> bool {
    let setup = "mount -t tmpfs none /dev && mknod /dev/adma c 1 3";
    let done = Command::new("unshare").args(["-m", "sh", "-c", setup]).output();
    let shown = done.is_ok_and(|done| done.status.success());
    if !shown {
        skip_this("no mount namespace can be made, or no device in it");
    }
    shown
}

const COPIES: [&str; 3] = ["memcpy", "1000000", "6"];

/// Makes six large copies and returns the report and the messages.
fn copies(setup: &str, user: &[&str], knobs: &[&str]) -> (Value, String) {
    let files = readable();
    let report = files.0.join("report");
    fs::write(&report, "").unwrap();
    fs::set_permissions(&report, fs::Permissions::from_mode(0o666)).unwrap();
    let mut all = vec!["ADMA_MIN_BYTES=64K".to_owned(), "ADMA_CHANNELS=2".to_owned()];
    all.extend(["ADMA_STATS=json".to_owned(), format!("ADMA_STATS_FILE={}", report.display())]);
    all.extend(knobs.iter().map(|&knob| knob.to_owned()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let program = files.0.join("stats_copies");
    let words: Vec<&str> = [program.to_str().unwrap()].into_iter().chain(COPIES).collect();
    let done = run(&files, setup, user, &all, &words);
    assert!(done.status.success(), "{setup}: {done:?}");
    assert_eq!(text(&done.stdout), "6000000 bytes copied\n", "{setup}");
    let report = fs::read_to_string(report).unwrap();
    (serde_json::from_str(&report).unwrap_or_else(|e| panic!("{e}: {report}")), text(&done.stderr))
}

#[test]
fn whatever_is_no_helper_leaves_copies_to_the_threads() {
    needs!(can_be_shown());
    for setup in [NOTHING, NULL_DEVICE, PLAIN_FILE] {
        for backend in ["auto", "dma", "ioat"] {
            let (json, _) = copies(setup, &[], &[&format!("ADMA_BACKEND={backend}")]);
            assert_eq!(json["backend"], "threads", "{setup}, {backend}");
            assert_eq!(number(&json["paths"]["engine"]["calls"]), 6, "{setup}: {json}");
            assert!(json.get("ioat").is_none());
        }
    }
}

/// In the log if it is asked for, and in one line where the helper was.
#[test]
fn helper_that_cannot_be_used_is_reported_with_a_remedy_where_it_is_asked_for() {
    needs!(can_be_shown());
    for (setup, user, is_there, parts) in [
        (NOTHING, &[][..], false, ["no /dev/adma", "adma(7)"]),
        (NULL_DEVICE, &[][..], true, ["", ""]), // another device of that name: the log only
        (FOR_A_GROUP, &UNPRIVILEGED[..], true, ["no permission for /dev/adma", "group adma"]),
    ] {
        let (_, said) = copies(setup, user, &["ADMA_LOG=info"]);
        assert_eq!(said.lines().count(), 1 + usize::from(is_there), "{setup}: {said}");
        assert_eq!(said.contains("/dev/adma not used: "), is_there, "{setup}: {said}");
        for quiet in [&[][..], &["ADMA_BACKEND=dma", "ADMA_LOG=error"]] {
            assert_eq!(copies(setup, user, quiet).1, "", "{setup}: {quiet:?}");
        }
        if setup == NULL_DEVICE {
            continue;
        }
        let (json, said) = copies(setup, user, &["ADMA_BACKEND=dma"]);
        assert_eq!((said.lines().count(), &json["backend"]), (1, &"threads".into()), "{said}");
        assert!(said.starts_with("adma: ADMA_BACKEND=dma: "), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert!(said.ends_with("; using threads\n"), "{said}");
    }
}

#[test]
fn check_shows_the_state_of_the_helper_and_the_remedy() {
    needs!(can_be_shown());
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_suffix(":x:4:"));
    let named = format!("usermod -a -G {}", group.unwrap_or("of /dev/adma"));
    for (setup, user, part) in [
        (NOTHING, &[][..], "not loaded (no /dev/adma)"),
        (NULL_DEVICE, &[][..], "/dev/adma is not the helper"),
        (PLAIN_FILE, &[][..], "/dev/adma is not the helper"),
        (FOR_A_GROUP, &UNPRIVILEGED[..], &named),
    ] {
        let files = readable();
        let knobs = ["ADMA_CHECK=1", "ADMA_CHANNELS=2"];
        let done = run(&files, setup, user, &knobs, &["true"]);
        let said = text(&done.stdout);
        assert!(done.status.success() && done.stderr.is_empty(), "{setup}: {done:?}");
        assert!(said.contains(part), "{setup}: {said}");
        assert!(said.contains("channels    2 software"), "{setup}: {said}");
        assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    }
}
