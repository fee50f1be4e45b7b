//! preload.sh as its users meet it: what reaches the program, what its options do, when it
//! builds, and what it says when something is missing.
//!
//! Every test has a checkout of its own, with library and command already built and a cargo that
//! compiles nothing first in PATH.

mod common;

use common::{finish, library, plain, root, scratch, skip, succeed, victim, victim_with};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

const SIGTERM: i32 = 15;

/// What a cargo does that finds everything compiled.
const BUILD: &str =
    r#"mkdir -p "$target" && cp "$LIBRARY" "$target/libadma.so" && cp "$COMMAND" "$target/adma""#;

/// A copy of what preload.sh looks at, removed at the end.
struct Checkout {
    /// Also holds the record of the fake cargo.
    folder: PathBuf,
    tree: PathBuf,
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Checkout {
    fn new() -> Self {
        Self::named("adma")
    }

    fn named(name: &str) -> Self {
        let folder = scratch("checkout");
        let tree = folder.join(name);
        fs::create_dir_all(tree.join("target/release")).unwrap();
        fs::create_dir_all(tree.join("include")).unwrap();
        for file in ["preload.sh", "build.rs", "Cargo.toml", "Cargo.lock", "include/adma.map"] {
            fs::copy(root().join(file), tree.join(file)).unwrap();
        }
        copy_folder(&root().join("src"), &tree.join("src"));
        fs::copy(library(), tree.join("target/release/libadma.so")).unwrap();
        fs::copy(common::command(), tree.join("target/release/adma")).unwrap();
        let checkout = Self { folder, tree };
        checkout.cargo(BUILD);
        checkout
    }

    /// Puts a cargo in PATH that records its call and then does `action`.
    fn cargo(&self, action: &str) {
        let path = self.folder.join("bin/cargo");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let script = format!(
            "#!/bin/sh\nprintf '%s|%s|%s\\n' \"$PWD\" \"$*\" \"$LD_PRELOAD\" >>\"$RECORD\"\n\
             target=${{CARGO_TARGET_DIR:-target}}/release\n{action}\n"
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// How cargo was called: folder, arguments and LD_PRELOAD of each call.
    fn builds(&self) -> Vec<String> {
        let record = fs::read_to_string(self.folder.join("record")).unwrap_or_default();
        record.lines().map(str::to_owned).collect()
    }

    fn library(&self) -> PathBuf {
        self.tree.join("target/release/libadma.so")
    }

    /// As if a source had been edited after the library was built.
    fn edit_source(&self) {
        let later = SystemTime::now() + Duration::from_secs(2);
        let source = fs::File::options().append(true).open(self.tree.join("src/lib.rs")).unwrap();
        source.set_modified(later).unwrap();
    }

    /// This checkout's preload.sh.
    fn shim(&self) -> Command {
        self.shim_at(&self.tree.join("preload.sh"))
    }

    fn shim_at(&self, path: &Path) -> Command {
        let mut command = plain(path);
        let rest = std::env::var_os("PATH").unwrap_or_default();
        let first = [self.folder.join("bin")];
        let path = std::env::join_paths(first.into_iter().chain(std::env::split_paths(&rest)));
        command
            .env("PATH", path.unwrap())
            .env("RECORD", self.folder.join("record"))
            .env("LIBRARY", library())
            .env("COMMAND", common::command())
            .env("XDG_RUNTIME_DIR", &self.folder)
            .env_remove("CARGO_TARGET_DIR");
        command
    }

    /// A PATH with what preload.sh needs, and no cargo.
    fn path_without_cargo(&self) -> PathBuf {
        let folder = self.folder.join("tools");
        fs::create_dir_all(&folder).unwrap();
        let tools = [
            "bash", "sh", "env", "cat", "cmp", "cp", "dirname", "find", "head", "id", "mkdir",
            "mv", "readlink", "sed", "touch", "true",
        ];
        for tool in tools {
            let (found, _) = succeed(plain("sh").args(["-c", "command -v \"$1\"", "sh", tool]));
            // A shell may answer with the bare name of what it has built in.
            let found = found.trim_end();
            let found = if found.starts_with('/') { found } else { &format!("/bin/{found}") };
            let _ = symlink(found, folder.join(tool));
        }
        folder
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails for a reason of preload.sh's own: the status, one line on stderr that names `what`,
/// and nothing on stdout.
fn refuses(command: &mut Command, status: i32, what: &str) {
    let done = finish(command);
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(status), "{command:?}: {err}");
    assert_eq!(err.lines().count(), 1, "{command:?}: one line: {err}");
    assert!(err.starts_with("preload.sh: ") && err.contains(what), "{command:?}: {err}");
    assert_eq!(text(&done.stdout), "", "{command:?}");
}

/// What a program that lists its own mappings has loaded of us.
fn loaded(command: &mut Command) -> Vec<String> {
    let (maps, _) = succeed(command.args(["cat", "/proc/self/maps"]));
    let mut found: Vec<String> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| line[at..].to_owned()))
        .filter(|path| path.contains("libadma"))
        .collect();
    found.dedup();
    found
}

/// Runs a victim that makes three copies of 1 MB; returns the JSON report from stderr.
fn report_of(command: &mut Command) -> Value {
    let (out, err) = succeed(command.arg(victim("stats_copies")).args(["memcpy", "1000000", "3"]));
    assert_eq!(out, "3000000 bytes copied\n");
    serde_json::from_str(&err).unwrap_or_else(|e| panic!("{command:?}: {e}: {err}"))
}

fn copying(command: &mut Command) -> Output {
    finish(command.arg(victim("stats_copies")).args(["memcpy", "1000000", "3"]))
}

// ---- what reaches the program ------------------------------------------------------------

#[test]
fn arguments_with_blanks_quotes_newlines_and_bytes_arrive_unchanged() {
    let checkout = Checkout::new();
    let arguments: [&[u8]; 14] = [
        b"two words",
        b"",
        b"'single'",
        b"\"double\"",
        b"line\nbreak\n",
        b"*",
        b"$HOME `id` \\",
        b"--quiet",
        b"-h",
        b"--",
        b"--name=value",
        b"\xff\xfe",
        b" ",
        b"",
    ];
    let mut command = checkout.shim();
    command.args(["sh", "-c", r#"printf '%s\0' "$0" "$@""#, "name"]);
    command.args(arguments.iter().map(|argument| OsStr::from_bytes(argument)));
    let done = finish(&mut command);
    let mut expected = b"name\0".to_vec();
    for argument in arguments {
        expected.extend_from_slice(argument);
        expected.push(0);
    }
    assert_eq!(text(&done.stdout), text(&expected));
    assert_eq!(done.stdout, expected);
    assert_eq!(text(&done.stderr), "");
}

#[test]
fn program_sees_the_name_it_was_called_by() {
    let checkout = Checkout::new();
    let (out, _) = succeed(checkout.shim().args(["head", "-c", "5", "/proc/self/cmdline"]));
    assert_eq!(out, "head\0");
}

#[test]
fn program_sees_the_environment_and_folder_of_the_caller() {
    let checkout = Checkout::new();
    let mut command = checkout.shim();
    command.args(["sh", "-c", "pwd; printf '%s\n' \"$ODD\" \"$ADMA_LOG\""]).current_dir("/usr");
    command.env("ODD", "a  'b'\n*").env("ADMA_LOG", "error");
    let (out, _) = succeed(&mut command);
    assert_eq!(out, "/usr\na  'b'\n*\nerror\n");
}

#[test]
fn exit_status_of_the_program_is_passed_on() {
    let checkout = Checkout::new();
    for status in [0, 1, 7, 125, 126, 127, 255] {
        let done = finish(checkout.shim().args(["sh", "-c", &format!("exit {status}")]));
        assert_eq!(done.status.code(), Some(status));
        assert_eq!(text(&done.stderr), "");
    }
}

#[test]
fn exit_status_after_a_report_is_still_the_programs() {
    let checkout = Checkout::new();
    let done = finish(checkout.shim().arg(victim("stats_ends")).arg("return"));
    assert_eq!(done.status.code(), Some(7));
    assert!(text(&done.stderr).contains("adma: stats_ends"), "{}", text(&done.stderr));
}

#[test]
fn death_by_signal_is_seen_by_the_caller() {
    let checkout = Checkout::new();
    let done = finish(checkout.shim().args(["sh", "-c", "kill -TERM $$"]));
    assert_eq!(done.status.signal(), Some(SIGTERM));
    let script = format!("'{}/preload.sh' sh -c 'kill -TERM $$'; echo $?", checkout.tree.display());
    let mut shell = checkout.shim_at(Path::new("sh"));
    let (out, _) = succeed(shell.args(["-c", &script]));
    assert_eq!(out, "143\n");
}

#[test]
fn program_takes_the_process_over_and_gets_its_signals() {
    let checkout = Checkout::new();
    let script = "trap 'echo caught; exit 9' TERM; echo $$; while :; do sleep 0.01; done";
    let mut command = checkout.shim();
    command.args(["--each", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next(), Some(child.id().to_string()), "not the process that was started");
    succeed(plain("kill").args(["-TERM", &child.id().to_string()]));
    assert_eq!(lines.next(), Some("caught".to_owned()));
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn stdin_and_stdout_are_the_programs_alone() {
    let checkout = Checkout::new();
    let bytes: Vec<u8> = (0..300_000u32).map(|i| ((i * 7) ^ (i >> 8)) as u8).collect();
    let mut command = checkout.shim();
    command.arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let sender = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let done = child.wait_with_output().unwrap();
    sender.join().unwrap();
    assert!(done.status.success());
    assert!(done.stdout == bytes, "{} bytes came back of {}", done.stdout.len(), bytes.len());
    assert_eq!(text(&done.stderr), "");
}

// ---- where it is -------------------------------------------------------------------------

#[test]
fn library_is_loaded_from_any_folder_and_through_symlinks() {
    let checkout = Checkout::new();
    let expected = [checkout.library().canonicalize().unwrap().display().to_string()];
    assert_eq!(loaded(checkout.shim().current_dir("/")), expected);

    fs::create_dir(checkout.folder.join("elsewhere")).unwrap();
    let link = checkout.folder.join("elsewhere/adma run");
    symlink("../adma/preload.sh", &link).unwrap();
    let second = checkout.folder.join("second");
    symlink(&link, &second).unwrap();
    assert_eq!(loaded(checkout.shim_at(&link).current_dir("/")), expected);
    assert_eq!(loaded(checkout.shim_at(&second).current_dir("/")), expected);

    // By a relative path, and by its name in PATH.
    let mut relative = checkout.shim_at(Path::new("sh"));
    relative.args(["-c", "exec ./preload.sh \"$@\"", "sh"]).current_dir(&checkout.tree);
    assert_eq!(loaded(&mut relative), expected);
    let script = "PATH=$PATH:\"$0\"; exec preload.sh \"$@\"";
    let mut named = checkout.shim_at(Path::new("sh"));
    named.args(["-c", script]).arg(&checkout.tree).current_dir("/");
    assert_eq!(loaded(&mut named), expected);
}

#[test]
fn checkout_in_a_path_that_ld_preload_cannot_hold_still_works() {
    for name in ["with blank", "with:colon", "with\ttab", "with$LIB", "with : $ORIGIN 'all'\""] {
        let checkout = Checkout::named(name);
        let copy = checkout.folder.canonicalize().unwrap();
        let found = loaded(&mut checkout.shim());
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert!(found[0].starts_with(copy.to_str().unwrap()), "{name}: {found:?}");
        let done = copying(checkout.shim().args(["-m", "64K"]));
        let err = text(&done.stderr);
        assert!(done.status.success() && err.contains("by the engine"), "{name}: {err}");
        let (out, _) = succeed(checkout.shim().arg("--check"));
        assert!(out.contains("CPUs"), "{name}: {out}");
        let (out, _) = succeed(checkout.shim().arg("--build"));
        assert_eq!(out, format!("{}\n", checkout.library().display()));
    }
}

#[test]
fn copy_of_the_library_for_odd_paths_follows_the_library() {
    let checkout = Checkout::named("a b");
    let first = loaded(&mut checkout.shim());
    let copy = Path::new(&first[0]);
    assert_eq!(fs::read(copy).unwrap(), fs::read(checkout.library()).unwrap());
    // Another build: bytes behind the end of an ELF file mean nothing to the loader.
    let mut file = fs::File::options().append(true).open(checkout.library()).unwrap();
    file.write_all(b"another build").unwrap();
    drop(file);
    assert_eq!(loaded(&mut checkout.shim()), first);
    assert_eq!(fs::read(copy).unwrap(), fs::read(checkout.library()).unwrap());
}

#[test]
fn folder_for_the_copy_that_is_not_ours_is_refused() {
    let checkout = Checkout::named("a b");
    let (user, _) = succeed(plain("id").arg("-u"));
    let theirs = checkout.folder.join("theirs");
    fs::create_dir(&theirs).unwrap();
    symlink(&theirs, checkout.folder.join(format!("adma-{}", user.trim()))).unwrap();
    refuses(checkout.shim().arg("true"), 125, "not a folder of our own");
    refuses(checkout.shim().arg("--check"), 125, "not a folder of our own");
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
}

#[test]
fn library_in_another_target_folder_is_found() {
    let checkout = Checkout::new();
    let elsewhere = checkout.folder.join("built");
    fs::rename(checkout.tree.join("target"), &elsewhere).unwrap();
    let expected = [elsewhere.canonicalize().unwrap().join("release/libadma.so")];
    let expected = expected.map(|path| path.display().to_string());
    assert_eq!(loaded(checkout.shim().env("CARGO_TARGET_DIR", &elsewhere)), expected);
    // cargo runs in the checkout, so that is what a relative folder is relative to.
    let mut relative = checkout.shim();
    relative.env("CARGO_TARGET_DIR", "../built").current_dir("/usr");
    assert_eq!(loaded(&mut relative), expected);
    assert_eq!(checkout.builds(), [""; 0]);
}

#[test]
fn libraries_preloaded_already_are_kept_and_come_first() {
    let checkout = Checkout::new();
    let neighbour = victim_with("stats_neighbour", &["-shared", "-fPIC"]);
    let script = r#"echo "$LD_PRELOAD"; echo "$NEIGHBOUR"; cat /proc/self/maps"#;
    for (before, shown) in [("{}", "{}"), ("{}:{}", "{}:{}"), ("{} {}", "{} {}")] {
        let fill = |pattern: &str| pattern.replace("{}", neighbour.to_str().unwrap());
        let mut command = checkout.shim();
        command.args(["sh", "-c", script]).env("LD_PRELOAD", fill(before));
        let (out, err) = succeed(&mut command);
        let ours = checkout.library().canonicalize().unwrap();
        let first = format!("{}:{}\nis here\n", fill(shown), ours.display());
        assert!(out.starts_with(&first), "{out}");
        assert!(out.contains(&format!("{}\n", neighbour.display())), "{out}");
        assert!(out[first.len()..].contains("libadma.so\n"), "{out}");
        assert_eq!(err, "");
    }
    let mut empty = checkout.shim();
    let (out, err) =
        succeed(empty.args(["sh", "-c", "echo \"$LD_PRELOAD\""]).env("LD_PRELOAD", ""));
    let ours = checkout.library().canonicalize().unwrap();
    assert_eq!((out, err), (format!("{}\n", ours.display()), String::new()));
}

#[test]
fn shim_within_the_shim_reports_once() {
    let checkout = Checkout::new();
    let done = copying(checkout.shim().arg(checkout.tree.join("preload.sh")));
    let err = text(&done.stderr);
    assert!(done.status.success());
    assert_eq!(err.matches("adma: stats_copies").count(), 1, "{err}");
    let done = copying(checkout.shim().arg("-q").arg(checkout.tree.join("preload.sh")));
    assert_eq!(text(&done.stderr), "");
}

// ---- options -----------------------------------------------------------------------------

/// Each option, with a value, in all the ways it can be written.
fn spellings(short: Option<&str>, long: &str, value: &str) -> Vec<Vec<String>> {
    let mut all = vec![vec![long.to_owned(), value.to_owned()], vec![format!("{long}={value}")]];
    all.extend(short.map(|short| vec![short.to_owned(), value.to_owned()]));
    all
}

#[test]
fn option_min_bytes_sets_the_threshold_and_wins_over_the_environment() {
    let checkout = Checkout::new();
    for spelling in spellings(Some("-m"), "--min-bytes", "512K") {
        let mut command = checkout.shim();
        command.env("ADMA_MIN_BYTES", "2M").args(["--stats", "json", "-c", "1"]).args(spelling);
        let json = report_of(&mut command);
        assert_eq!(json["min_bytes"], 512 << 10);
        assert_eq!(json["paths"]["engine"]["calls"], 3);
    }
}

#[test]
fn option_channels_sets_the_channels_and_wins_over_the_environment() {
    let checkout = Checkout::new();
    for spelling in spellings(Some("-c"), "--channels", "3") {
        let mut command = checkout.shim();
        command.env("ADMA_CHANNELS", "5").args(["--stats", "json", "-m", "64K"]).args(spelling);
        assert_eq!(report_of(&mut command)["channels"], 3);
    }
}

#[test]
fn option_backend_sets_the_backend_and_wins_over_the_environment() {
    let checkout = Checkout::new();
    for spelling in spellings(Some("-b"), "--backend", "libc") {
        let mut command = checkout.shim();
        command.env("ADMA_BACKEND", "threads").args(["--stats", "json", "-m", "64K"]);
        let json = report_of(command.args(spelling));
        assert_eq!(json["backend"], "libc");
        assert_eq!(json["paths"]["engine"]["calls"], 0);
        assert_eq!(json["fallbacks"]["off"], 3);
    }
}

#[test]
fn option_stats_chooses_the_formats_and_wins_over_the_environment() {
    let checkout = Checkout::new();
    for spelling in spellings(None, "--stats", "json") {
        let json = report_of(checkout.shim().env("ADMA_STATS", "text").args(spelling));
        assert!(json["pid"].is_u64());
    }
    let done = copying(checkout.shim().args(["--stats", "text,json,hlog"]));
    let err = text(&done.stderr);
    for part in ["large copies", "{\"version\"", "Tag="] {
        assert!(err.contains(part), "{part}: {err}");
    }
}

#[test]
fn option_stats_file_sends_the_report_there_and_wins_over_the_environment() {
    let checkout = Checkout::new();
    let pattern = checkout.folder.join("report %e %p");
    for spelling in spellings(None, "--stats-file", pattern.to_str().unwrap()) {
        let other = checkout.folder.join("other");
        let done = copying(checkout.shim().args(spelling).env("ADMA_STATS_FILE", &other));
        assert_eq!(text(&done.stderr), "");
        assert!(!other.exists());
        let written: Vec<String> = fs::read_dir(&checkout.folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("report"))
            .collect();
        assert_eq!(written.len(), 1, "{written:?}");
        let number = written[0].strip_prefix("report stats_copies ").unwrap();
        assert!(number.parse::<u32>().is_ok(), "{written:?}");
        let path = checkout.folder.join(&written[0]);
        let report = fs::read_to_string(&path).unwrap();
        assert!(report.contains("large copies"), "{report}");
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn option_profile_counts_small_copies_and_wins_over_the_environment() {
    let checkout = Checkout::new();
    for option in ["-p", "--profile"] {
        let mut command = checkout.shim();
        command.env("ADMA_PROFILE", "0").arg(option).arg(victim("stats_copies"));
        let (_, err) = succeed(command.args(["memcpy", "100", "3"]));
        assert!(err.contains("profile:") && err.contains("suggested:"), "{option}: {err}");
    }
}

#[test]
fn option_quiet_leaves_no_report_and_wins_over_the_environment() {
    let checkout = Checkout::new();
    for option in ["-q", "--quiet"] {
        let done = copying(checkout.shim().env("ADMA_STATS", "text").arg(option));
        assert!(done.status.success());
        assert_eq!(text(&done.stderr), "");
        assert_eq!(text(&done.stdout), "3000000 bytes copied\n");
    }
}

#[test]
fn options_given_twice_the_last_one_counts() {
    let checkout = Checkout::new();
    let mut command = checkout.shim();
    command.args(["-q", "--stats=json", "-m", "2M", "-m=64K"]);
    // Short options take no equals sign.
    refuses(command.arg("true"), 125, "-m=64K");
    let mut command = checkout.shim();
    let json = report_of(command.args(["-q", "--stats=json", "-m", "2M", "-m", "64K"]));
    assert_eq!(json["min_bytes"], 65536);
}

#[test]
fn options_end_at_the_program_or_at_two_dashes() {
    let checkout = Checkout::new();
    let (out, _) = succeed(checkout.shim().args(["echo", "--quiet", "--version"]));
    assert_eq!(out, "--quiet --version\n");
    let (out, _) = succeed(checkout.shim().args(["-q", "--", "echo", "--", "-q"]));
    assert_eq!(out, "-- -q\n");
    // A program whose name begins with a dash.
    let odd = checkout.folder.join("bin/-odd");
    fs::write(&odd, "#!/bin/sh\necho odd \"$@\"\n").unwrap();
    fs::set_permissions(&odd, fs::Permissions::from_mode(0o755)).unwrap();
    let (out, _) = succeed(checkout.shim().args(["--", "-odd", "a"]));
    assert_eq!(out, "odd a\n");
}

#[test]
fn option_without_its_value_is_refused() {
    let checkout = Checkout::new();
    let options = ["-m", "--min-bytes", "-c", "--channels", "-b", "--backend", "--stats"];
    for option in options.into_iter().chain(["--stats-file"]) {
        refuses(checkout.shim().arg(option), 125, &format!("{option} wants a value"));
    }
}

#[test]
fn option_that_takes_no_value_refuses_one() {
    let checkout = Checkout::new();
    for option in ["--quiet", "--profile", "--check", "--build", "--help", "--version"] {
        // The value must not be taken for the program.
        refuses(checkout.shim().arg(format!("{option}=echo")).arg("ran"), 125, option);
    }
}

#[test]
fn unknown_option_is_refused_before_anything_runs() {
    let checkout = Checkout::new();
    for option in ["--nonsense", "--nonsense=1", "-x", "-", "--quie", "-qm", "--=x"] {
        let mut command = checkout.shim();
        refuses(command.args([option, "echo", "ran"]), 125, &format!("unknown option {option};"));
    }
}

#[test]
fn bad_value_of_an_option_is_said_once_and_the_program_runs() {
    let checkout = Checkout::new();
    let (out, err) = succeed(checkout.shim().args(["-m", "64KB", "echo", "ran"]));
    assert_eq!(out, "ran\n");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("ADMA_MIN_BYTES=64KB"), "{err}");
}

// ---- programs that are not there ---------------------------------------------------------

#[test]
fn no_program_shows_the_usage_on_stderr() {
    let checkout = Checkout::new();
    for arguments in [&[][..], &["-q"], &["--"], &["-m", "64K"]] {
        let done = finish(checkout.shim().args(arguments));
        assert_eq!(done.status.code(), Some(125), "{arguments:?}");
        assert_eq!(text(&done.stdout), "");
        assert!(text(&done.stderr).starts_with("usage: preload.sh"), "{}", text(&done.stderr));
    }
}

#[test]
fn program_that_does_not_exist_ends_with_127() {
    let checkout = Checkout::new();
    refuses(checkout.shim().arg("no-such-program-here"), 127, "no-such-program-here: not found");
    refuses(checkout.shim().arg("/no/such/program"), 127, "/no/such/program: not found");
    refuses(checkout.shim().arg(""), 127, "not found");
    // A file of that name in this folder does not matter: PATH is where programs are.
    fs::write(checkout.folder.join("notes"), "text").unwrap();
    refuses(checkout.shim().arg("notes").current_dir(&checkout.folder), 127, "notes: not found");
}

#[test]
fn program_that_cannot_be_executed_ends_with_126() {
    let checkout = Checkout::new();
    let file = checkout.folder.join("plain file");
    fs::write(&file, "text").unwrap();
    refuses(checkout.shim().arg(&file), 126, "plain file: cannot be executed");
    refuses(checkout.shim().arg("/usr"), 126, "/usr: cannot be executed");
    fs::write(&file, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let done = finish(checkout.shim().arg(&file));
    // Is it the interpreter that is not found? Shells differ.
    assert!(matches!(done.status.code(), Some(126 | 127)), "{}", text(&done.stderr));
}

// ---- what it tells -----------------------------------------------------------------------

#[test]
fn help_goes_to_stdout_in_80_columns_and_names_every_knob() {
    let checkout = Checkout::new();
    let source = fs::read_to_string(root().join("src/config/knobs.rs")).unwrap();
    let knobs: Vec<&str> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("name: \"")?.strip_suffix("\","))
        .filter(|name| *name != "ADMA_CHECK") // stands behind --check
        .collect();
    assert!(knobs.len() >= 12, "{knobs:?}");
    for option in ["-h", "--help"] {
        let (out, err) = succeed(checkout.shim().arg(option));
        assert_eq!(err, "");
        for name in &knobs {
            assert!(out.contains(&format!("\n  {name} ")), "{name}: {out}");
        }
        for line in out.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

#[test]
fn help_names_every_option_that_is_taken() {
    let checkout = Checkout::new();
    let (help, _) = succeed(checkout.shim().arg("--help"));
    let source = fs::read_to_string(root().join("src/command/src/options.rs")).unwrap();
    let options: Vec<&str> = source
        .split('"')
        .filter(|word| word.starts_with('-') && word[1..].chars().any(char::is_alphabetic))
        .filter(|word| word.chars().all(|c| c == '-' || c.is_ascii_lowercase()))
        .collect();
    assert!(options.len() >= 16, "{options:?}");
    for option in options {
        let named = |line: &str| line.split([' ', ',']).any(|word| word == option);
        assert!(help.lines().any(named), "{option}: {help}");
    }
}

#[test]
fn version_is_the_crates() {
    let checkout = Checkout::new();
    let (out, err) = succeed(checkout.shim().arg("--version"));
    assert_eq!(out, concat!("adma ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(err, "");
}

#[test]
fn check_tells_what_the_machine_offers() {
    let checkout = Checkout::new();
    let (out, err) = succeed(checkout.shim().arg("--check"));
    assert_eq!(err, "");
    for name in ["CPUs", "I/OAT", "channels", "gain"] {
        let line = format!("\n  {name} ");
        assert!(out.contains(&line), "{name}: {out}");
    }
    assert!(out.starts_with("adma "), "{out}");
    assert!(out.lines().count() <= 10, "a few lines: {out}");
    for line in out.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn check_with_one_cpu_says_what_to_do() {
    if !Path::new("/usr/bin/taskset").exists() {
        return skip("check_with_one_cpu_says_what_to_do", "no taskset");
    }
    let checkout = Checkout::new();
    let mut command = checkout.shim_at(Path::new("taskset"));
    let (out, err) =
        succeed(command.args(["-c", "0"]).arg(checkout.tree.join("preload.sh")).arg("--check"));
    assert_eq!(err, "");
    assert!(out.contains("CPUs        1 for this process"), "{out}");
    assert!(out.contains("1 by affinity"), "{out}");
    assert!(out.contains("channels    0 "), "{out}");
    assert!(out.contains("none: one CPU") && out.contains("taskset"), "{out}");
}

#[test]
fn check_where_threads_are_refused_says_so() {
    const NAME: &str = "check_where_threads_are_refused_says_so";
    // The limit does not hold for root, so root becomes somebody else first; that somebody
    // must be able to read the library.
    let folder = std::env::temp_dir().join(format!("adma-nproc-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.join("libadma.so");
    fs::copy(library(), &copy).unwrap();
    let (user, _) = succeed(plain("id").arg("-u"));
    let mut command = if user.trim() == "0" {
        let mut command = plain("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "prlimit"]);
        command
    } else {
        plain("prlimit")
    };
    command.args(["--nproc=0", "env", "ADMA_CHECK=1", "ADMA_CHANNELS=2"]);
    command.arg(format!("LD_PRELOAD={}", copy.display())).arg("true");
    let done = match command.output() {
        Ok(done) => done,
        Err(error) => {
            let _ = fs::remove_dir_all(&folder);
            return skip(NAME, &format!("setpriv or prlimit: {error}"));
        }
    };
    let _ = fs::remove_dir_all(&folder);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    if !done.status.success() {
        return skip(NAME, err.trim());
    }
    assert!(out.contains("refuses worker threads") && out.contains("RLIMIT_NPROC"), "{out}{err}");
}

#[test]
fn report_is_text_on_stderr_unless_told_otherwise() {
    let checkout = Checkout::new();
    let done = copying(&mut checkout.shim());
    let err = text(&done.stderr);
    assert!(done.status.success());
    assert_eq!(text(&done.stdout), "3000000 bytes copied\n");
    assert!(err.starts_with("adma: stats_copies (pid "), "{err}");
    assert_eq!(err.matches("adma: ").count(), 1, "{err}");
    // What the caller has asked for in the environment stays.
    let json = report_of(checkout.shim().env("ADMA_STATS", "json"));
    assert!(json["paths"]["libc"]["bytes"].is_u64());
    let done = copying(checkout.shim().env("ADMA_STATS", "off"));
    assert_eq!(text(&done.stderr), "");
}

#[test]
fn process_without_a_large_copy_stays_silent() {
    let checkout = Checkout::new();
    for program in [&["true"][..], &["sh", "-c", "true; cat /dev/null; true"], &["ls", "/"]] {
        let (_, err) = succeed(checkout.shim().args(program));
        assert_eq!(err, "", "{program:?}");
    }
}

// ---- building ----------------------------------------------------------------------------

#[test]
fn library_that_is_up_to_date_is_not_built() {
    let checkout = Checkout::new();
    succeed(checkout.shim().arg("true"));
    assert_eq!(checkout.builds(), [""; 0]);
}

#[test]
fn library_that_is_missing_is_built_once_and_used() {
    let checkout = Checkout::new();
    fs::remove_dir_all(checkout.tree.join("target")).unwrap();
    let mut command = checkout.shim();
    let (out, err) = succeed(command.args(["echo", "ran"]).current_dir("/usr"));
    assert_eq!(out, "ran\n");
    assert!(err.starts_with("preload.sh: building"), "{err}");
    let here = checkout.tree.canonicalize().unwrap();
    assert_eq!(
        checkout.builds(),
        [format!(
            "{}|build --release --quiet --package adma --package adma-command|",
            here.display()
        )],
        "one release build, in the checkout"
    );
    assert_eq!(loaded(&mut checkout.shim()).len(), 1);
    assert_eq!(checkout.builds().len(), 1, "built again");
}

#[test]
fn library_that_is_stale_is_built_again() {
    let checkout = Checkout::new();
    let touched = [
        "src/lib.rs",
        "src/backend/threads/share.rs",
        "include/adma.map",
        "build.rs",
        "Cargo.toml",
        "Cargo.lock",
    ];
    for (number, file) in touched.iter().enumerate() {
        // Behind the build of the round before, before now: a second build would show.
        std::thread::sleep(Duration::from_millis(20));
        let path = checkout.tree.join(file);
        fs::write(&path, fs::read(&path).unwrap()).unwrap();
        succeed(checkout.shim().arg("true"));
        succeed(checkout.shim().arg("true"));
        assert_eq!(checkout.builds().len(), number + 1, "{file}");
    }
}

#[test]
fn build_that_leaves_the_file_alone_is_not_repeated() {
    let checkout = Checkout::new();
    checkout.cargo("true");
    std::thread::sleep(Duration::from_millis(20));
    let path = checkout.tree.join("src/lib.rs");
    fs::write(&path, fs::read(&path).unwrap()).unwrap();
    succeed(checkout.shim().arg("true"));
    succeed(checkout.shim().arg("true"));
    assert_eq!(checkout.builds().len(), 1);
}

#[test]
fn libraries_preloaded_already_are_not_for_the_compiler() {
    let checkout = Checkout::new();
    checkout.edit_source();
    let neighbour = victim_with("stats_neighbour", &["-shared", "-fPIC"]);
    succeed(checkout.shim().arg("true").env("LD_PRELOAD", &neighbour));
    let builds = checkout.builds();
    assert!(builds.len() == 1 && builds[0].ends_with('|'), "{builds:?}");
}

#[test]
fn build_prints_the_path_alone_on_stdout() {
    let checkout = Checkout::new();
    checkout.edit_source();
    checkout.cargo(&format!("echo noise; {BUILD}"));
    let (out, _) = succeed(checkout.shim().arg("--build"));
    let expected = checkout.library().canonicalize().unwrap();
    assert_eq!(out, format!("{}\n", expected.display()));
    assert_eq!(checkout.builds().len(), 1);
}

#[test]
fn build_that_fails_ends_with_125_and_the_program_does_not_run() {
    let checkout = Checkout::new();
    checkout.edit_source();
    checkout.cargo("echo 'error: no' >&2; exit 101");
    let done = finish(checkout.shim().args(["echo", "ran"]));
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(125), "{err}");
    assert_eq!(text(&done.stdout), "");
    assert!(err.contains("error: no\npreload.sh: the library could not be built"), "{err}");
}

#[test]
fn build_that_brings_no_library_ends_with_125() {
    let checkout = Checkout::new();
    fs::remove_dir_all(checkout.tree.join("target")).unwrap();
    checkout.cargo("true");
    let done = finish(checkout.shim().args(["echo", "ran"]));
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(125), "{err}");
    assert_eq!(text(&done.stdout), "");
    assert!(err.lines().last().unwrap().contains("target/release/libadma.so"), "{err}");
}

#[test]
fn without_cargo_a_missing_library_is_said_in_one_line() {
    let checkout = Checkout::new();
    fs::remove_dir_all(checkout.tree.join("target")).unwrap();
    let mut command = checkout.shim();
    command.env("PATH", checkout.path_without_cargo()).arg("true");
    refuses(&mut command, 125, "no cargo");
}

#[test]
fn without_cargo_a_stale_library_runs() {
    let checkout = Checkout::new();
    checkout.edit_source();
    let mut command = checkout.shim();
    let done = copying(command.env("PATH", checkout.path_without_cargo()));
    let err = text(&done.stderr);
    assert!(done.status.success(), "{err}");
    assert!(err.starts_with("adma: stats_copies"), "{err}");
}

#[test]
fn stale_library_that_may_not_be_replaced_runs() {
    const NAME: &str = "stale_library_that_may_not_be_replaced_runs";
    let (user, _) = succeed(plain("id").arg("-u"));
    if user.trim() != "0" || !Path::new("/usr/bin/setpriv").exists() {
        return skip(NAME, "needs root and setpriv to become another user");
    }
    let checkout = Checkout::new();
    checkout.edit_source();
    checkout.cargo("exit 101");
    let script = checkout.tree.join("preload.sh");
    let mut command = checkout.shim_at(Path::new("setpriv"));
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(&script).args(["echo", "ran"]).current_dir("/").env("RECORD", "/dev/null");
    let done = finish(&mut command);
    if text(&done.stderr).contains("Permission denied") {
        return skip(NAME, "another user cannot reach this checkout");
    }
    assert_eq!(text(&done.stdout), "ran\n", "{}", text(&done.stderr));
    assert_eq!(text(&done.stderr), "");
}
