//! Inheritance of the program, its results, and programs that do not exist.

use super::*;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;

#[test]
fn arguments_with_blanks_quotes_newlines_and_bytes_arrive_unchanged() {
    let arguments = b"two words||'single'|\"double\"|line\nbreak\n|*|$HOME `id` \\|--quiet|-h|--|--name=value|\xff\xfe| |";
    let arguments = arguments.split(|&byte| byte == b'|');
    let mut command = adma();
    command.args(["sh", "-c", r#"printf '%s\0' "$0" "$@""#, "name"]);
    command.args(arguments.clone().map(OsStr::from_bytes));
    let done = finish(&mut command);
    let mut expected = b"name\0".to_vec();
    for argument in arguments {
        expected.extend_from_slice(argument);
        expected.push(0);
    }
    assert_eq!(done.stdout, expected);
    assert_eq!(text(&done.stderr), "");
}

#[test]
fn program_sees_name_environment_and_folder_of_the_caller() {
    let (out, _) = succeed(adma().args(["head", "-c", "5", "/proc/self/cmdline"]));
    assert_eq!(out, "head\0");
    let mut command = adma();
    command.args(["sh", "-c", "pwd; printf '%s\n' \"$ODD\" \"$ADMA_LOG\""]).current_dir("/usr");
    command.env("ODD", "a  'b'\n*").env("ADMA_LOG", "error");
    let (out, _) = succeed(&mut command);
    assert_eq!(out, "/usr\na  'b'\n*\nerror\n");
}

#[test]
fn signals_and_closed_descriptors_are_inherited_unchanged() {
    // Ignored and blocked signals, and which descriptors are open.
    let show = "grep -E \"^Sig(Blk|Ign)\" /proc/self/status; ls /proc/self/fd; :";
    let prepare = ["true", "trap '' PIPE", "trap '' HUP INT", "exec 0<&-", "exec 7</dev/null"];
    for before in prepare {
        let run = |with: &str| {
            let script = format!("{before}; exec {with} sh -c '{show}'");
            succeed(plain("bash").args(["-c", &script])).0
        };
        let ours = command();
        for options in ["-q", ""] {
            let ours = format!("'{}' {options}", ours.display());
            assert_eq!(run(&ours), run("env"), "{before}: {options}");
        }
    }
}

#[test]
fn stdin_and_stdout_are_the_programs_alone() {
    let bytes: Vec<u8> = (0..300_000u32).map(|i| ((i * 7) ^ (i >> 8)) as u8).collect();
    let mut command = adma();
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

#[test]
fn program_takes_the_process_over_where_nothing_is_collected() {
    let script = "trap 'echo caught; exit 9' TERM; echo $$; while :; do sleep 0.01; done";
    for option in ["--each", "-q"] {
        let mut command = adma();
        command.args([option, "sh", "-c", script]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert_eq!(lines.next(), Some(child.id().to_string()), "not the process that was started");
        succeed(plain("kill").args(["-TERM", &child.id().to_string()]));
        assert_eq!(lines.next(), Some("caught".to_owned()));
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

#[test]
fn end_of_the_program_is_passed_on() {
    for status in [0, 1, 7, 125, 126, 127, 255] {
        let done = finish(adma().args(["sh", "-c", &format!("exit {status}")]));
        assert_eq!((done.status.code(), &*text(&done.stderr)), (Some(status), ""));
    }
    let done = finish(adma().arg(victim("trap_ends")).arg("return"));
    assert_eq!(done.status.code(), Some(7));
    assert!(text(&done.stderr).contains("adma: trap_ends"), "{}", text(&done.stderr));
    for (name, signal) in [("TERM", 15), ("KILL", 9)] {
        let done = finish(adma().args(["sh", "-c", &format!("kill -{name} $$")]));
        assert_eq!(done.status.signal(), Some(signal));
    }
    let script = format!("'{}' sh -c 'kill -TERM $$'; echo $?", command().display());
    assert_eq!(succeed(plain("sh").args(["-c", &script])).0, "143\n");
}

#[test]
fn no_program_shows_the_usage_on_stderr() {
    for arguments in [&[][..], &["-q"], &["--"], &["-m", "64K"]] {
        let done = finish(adma().args(arguments));
        assert_eq!((done.status.code(), &*text(&done.stdout)), (Some(125), ""), "{arguments:?}");
        assert!(text(&done.stderr).starts_with("usage: adma"), "{}", text(&done.stderr));
    }
}

#[test]
fn program_with_the_name_of_a_subcommand_runs_behind_dashes() {
    let place = scratch("names");
    for name in ["check", "report"] {
        executable(&place.join(name), "#!/bin/sh\necho a program \"$@\"\n");
        let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
        for before in [&["--"][..], &["-q"], &["-b", "libc"]] {
            let (out, _) = succeed(adma().args(before).args([name, "x"]).env("PATH", &path));
            assert_eq!(out, "a program x\n", "{before:?} {name}");
        }
    }
}

#[test]
fn script_without_an_interpreter_is_the_shells() {
    let script = scratch("plain").join("script");
    executable(&script, "echo ran by a shell\n");
    assert_eq!(succeed(adma().arg(&script)).0, "ran by a shell\n");
}

#[test]
fn program_that_is_not_there_or_not_executable_has_the_shells_status() {
    let place = scratch("missing");
    fs::write(place.join("data"), "text").unwrap();
    let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
    for (program, status, said) in [
        ("no-such-program", 127, "no-such-program: not found\n"),
        ("/no/such/program", 127, "not found\n"),
        ("", 127, "not found\n"),
        ("tpo", 127, "tpo: not found; did you mean top?\n"),
        ("data", 126, "cannot be executed\n"),
        ("./data", 126, "cannot be executed\n"),
        ("/usr", 126, "cannot be executed\n"),
    ] {
        let done = finish(adma().arg(program).current_dir(&place).env("PATH", &path));
        let err = text(&done.stderr);
        assert_eq!(done.status.code(), Some(status), "{program}: {err}");
        assert!(err.starts_with("adma: ") && err.lines().count() == 1, "{program}: {err}");
        assert!(err.ends_with(said), "{program}: {err}");
    }
    // A file of that name in this folder does not matter: programs are searched in PATH.
    let done = finish(adma().arg("data").current_dir(&place));
    assert_eq!(done.status.code(), Some(127), "{}", text(&done.stderr));
    executable(&place.join("stale"), "#!/no/such/interpreter\n");
    let done = finish(adma().arg(place.join("stale")));
    assert_eq!(done.status.code(), Some(127), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("interpreter"), "{}", text(&done.stderr));
}
