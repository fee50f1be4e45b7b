//! What the program inherits, and the status of one that is not there.

use super::*;

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
fn program_takes_the_process_over_where_nothing_is_collected() {
    let mut child = adma();
    child.args(["-q", "sh", "-c", "echo $$; exit 9"]).stdout(Stdio::piped());
    let child = child.spawn().unwrap();
    let number = child.id();
    let done = child.wait_with_output().unwrap();
    assert_eq!(text(&done.stdout), format!("{number}\n"));
    assert_eq!(done.status.code(), Some(9));
    let done = finish(adma().args(["sh", "-c", "kill -KILL $$"]));
    assert_eq!(done.status.signal(), Some(9));
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
    for (program, status) in [("no-such-program", 127), ("data", 126), ("./data", 126), ("", 127)] {
        let done = finish(adma().arg(program).current_dir(&place).env("PATH", &path));
        let err = text(&done.stderr);
        assert_eq!(done.status.code(), Some(status), "{program}: {err}");
        assert!(err.starts_with("adma: ") && err.lines().count() == 1, "{program}: {err}");
    }
    executable(&place.join("stale"), "#!/no/such/interpreter\n");
    let done = finish(adma().arg(place.join("stale")));
    assert_eq!(done.status.code(), Some(127), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("interpreter"), "{}", text(&done.stderr));
}
