//! What reaches the program, what comes back from it, and programs that are not there.

use super::*;

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
