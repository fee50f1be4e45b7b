//! Destinations of reports: files, pipes and standard error, even those that cannot be written.

use super::*;

#[test]
fn formats_get_files_of_their_own_by_names_with_codes() {
    // Formats, name of the file, and the files that are made.
    let table = [
        ("text,json", "all", vec!["all.json", "all.text"]),
        ("json", "one", vec!["one"]),
        ("json", "%e-%p-100%%-%x-%", vec!["stats_copies-PID-100%-%x-%"]),
    ];
    for (formats, name, expected) in table {
        let folder = Folder::new("reports");
        let mut command = fixed("stats_copies", "memcpy 100000 5");
        // A name without a folder is relative to the program's.
        command.env("ADMA_STATS", formats).env("ADMA_STATS_FILE", name).current_dir(&folder.0);
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        assert!(child.wait().unwrap().success());
        let pid = child.id().to_string();
        let expected: Vec<_> = expected.iter().map(|name| name.replace("PID", &pid)).collect();
        assert_eq!(folder.names(), expected);
        for name in expected {
            let report = fs::read_to_string(folder.join(&name)).unwrap();
            match name.ends_with(".text") {
                true => assert!(report.starts_with("adma: stats_copies"), "{report}"),
                false => check(&parsed(&report)),
            }
        }
    }
    let (out, err) =
        succeed(fixed("stats_copies", "memcpy 100000 5").env("ADMA_STATS", "json,text"));
    assert_eq!(out, "500000 bytes copied\n");
    let (first, last) = err.trim_end().rsplit_once('\n').unwrap_or_default();
    assert!(first.starts_with("adma: "), "text comes first: {err}");
    check(&parsed(last));
}

#[test]
fn processes_that_share_a_file_lose_nothing_of_each_other() {
    let folder = Folder::new("reports");
    let file = folder.join("all");
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do \"$@\" >/dev/null & done; wait";
    let mut command = preloaded("sh");
    command.args(["-c", script, "sh"]).arg(victim("stats_copies"));
    command.args(["memcpy", "65536-2000000", "40"]);
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
    command.env("ADMA_STATS", "json,text").env("ADMA_STATS_FILE", &file);
    let (_, err) = succeed(&mut command);
    assert_eq!(err, "");
    let json = fs::read_to_string(folder.join("all.json")).unwrap();
    let processes: BTreeSet<u64> = json
        .lines()
        .map(|line| {
            let json = parsed(line);
            check(&json);
            number(&json["pid"])
        })
        .collect();
    assert_eq!(processes.len(), 12);
    let text = fs::read_to_string(folder.join("all.text")).unwrap();
    let heads = text.lines().filter(|line| line.starts_with("adma: stats_copies (pid "));
    assert_eq!(heads.count(), 12, "{text}");
}

#[test]
fn long_report_is_written_in_one_piece() {
    needs!(has("strace"));
    // Two writes of one report would let another process's report in between.
    let folder = Folder::new("reports");
    let (trace, file) = (folder.join("trace"), folder.join("report"));
    let mut command = plain("strace");
    command.args(["-f", "-e", "trace=write,writev", "-s", "8", "-o"]).arg(&trace);
    command.arg("-E").arg(format!("LD_PRELOAD={}", common::library().display()));
    command.arg(victim("stats_copies"));
    let ranges = [(65, 250), (250, 1000), (1000, 4000), (4000, 16_000), (16_000, 64_000)];
    for (first, last) in ranges.into_iter().chain([(64_000, 256_000), (256_000, 1_000_000)]) {
        let range = format!("{first}-{last}");
        command.args(["memcpy", &range, "150", "overlap", &range, "150"]);
    }
    command.env("ADMA_MIN_BYTES", "64").env("ADMA_CHANNELS", "1").env("ADMA_PROFILE", "1");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", &file);
    let done = finish(&mut command);
    if text(&done.stderr).contains("ptrace") {
        return skip_this("this system does not let us trace");
    }
    assert!(done.status.success(), "{}", text(&done.stderr));
    let report = fs::read_to_string(&file).unwrap();
    check(&parsed(&report));
    assert!(report.len() > 20_000, "too short to tell: {}", report.len());
    let trace = fs::read_to_string(&trace).unwrap();
    let writes: Vec<&str> = trace
        .lines()
        .filter(|line| line.contains("write(") && !line.contains("write(1,"))
        .filter(|line| !line.contains("\"\\0")) // the zeros of a live file
        .collect();
    assert_eq!(writes.len(), 1, "{writes:?}");
}

/// The kernel sends SIGXFSZ for a write beyond RLIMIT_FSIZE, and a pipe without reader holds its writer up.
#[test]
fn file_that_cannot_be_written_costs_one_line_and_nothing_else() {
    let folder = Folder::new("reports");
    fs::create_dir(folder.join("folder")).unwrap();
    fs::write(folder.join("file"), "").unwrap();
    succeed(plain("mkfifo").arg(folder.join("pipe")));
    let table = [
        (folder.join("no/such/folder"), "return", "No such file"),
        (folder.join("folder"), "return", "Is a directory"),
        (folder.join("file/below"), "return", "Not a directory"),
        (PathBuf::from("/proc/version"), "return", ""), // not for root either
        (PathBuf::from("/dev/full"), "return", "No space left"),
        (folder.join("pipe"), "return", ""),
        (folder.join("report"), "small-file-limit", ""),
    ];
    for (file, manner, reason) in table {
        for format in ["json", "text"] {
            let mut command = fixed("trap_ends", manner);
            command.env("ADMA_STATS", format).env("ADMA_STATS_FILE", &file);
            let (status, out, err) = ended(&mut command);
            assert_eq!((status, &*out, err.lines().count()), (Some(7), "", 1), "{file:?}: {err}");
            assert!(err.starts_with("adma: ADMA_STATS_FILE: "), "{err}");
            assert!(err.contains(file.to_str().unwrap()) && err.contains(reason), "{err}");
        }
    }
}

#[test]
fn stderr_whose_reader_has_gone_does_not_kill_the_program() {
    // The program itself writes nothing and would never see SIGPIPE.
    for format in ["text", "json"] {
        let script = "( sleep 0.1; \"$@\"; echo $? >&3 ) 2>&1 >/dev/null | :";
        let mut command = plain("sh");
        command.args(["-c", &format!("exec 3>&1; {script}"), "sh", "env"]);
        command.arg(format!("LD_PRELOAD={}", common::library().display()));
        command.arg(victim("trap_ends")).arg("return");
        command.env("ADMA_STATS", format).env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
        let (out, _) = succeed(&mut command);
        assert_eq!(out, "7\n", "{format}");
    }
}

#[test]
fn file_the_program_opened_as_its_stderr_holds_only_its_own_bytes() {
    let folder = Folder::new("reports");
    let knobs: [&[(&str, &str)]; 4] = [
        &[("ADMA_STATS", "text,json")],
        &[("ADMA_PROFILE", "1")],
        &[("ADMA_STATS", "json"), ("ADMA_STATS_FILE", "/no/such/folder")],
        &[("ADMA_LOG", "debug")],
    ];
    for manner in ["own-stderr", "own-stderr-by-dup2", "own-stderr-by-freopen"] {
        for knobs in knobs {
            let own = folder.join("own");
            let mut command = fixed("trap_ends", manner);
            let done = finish(command.arg(&own).envs(knobs.iter().copied()));
            assert_eq!(done.status.code(), Some(7), "{manner} {knobs:?}");
            let held = fs::read_to_string(&own).unwrap();
            assert_eq!(held, "a line of the program\n", "{manner} {knobs:?}");
        }
    }
}

#[test]
fn closed_stderr_changes_nothing_of_the_program() {
    // The report still reaches the stderr it started with.
    let done = finish(fixed("trap_ends", "closed-stderr").env("ADMA_STATS", "text"));
    assert_eq!(done.status.code(), Some(7));
    assert!(text(&done.stderr).starts_with("adma: trap_ends"), "{}", text(&done.stderr));
    // Closed from the beginning, and then a file of the program's own gets its number.
    let folder = Folder::new("reports");
    let own = folder.join("own");
    let mut command = preloaded("sh");
    command.args(["-c", "exec \"$@\" 2>&-", "sh"]).arg(victim("trap_ends"));
    command.arg("own-stderr").arg(&own);
    command.env("ADMA_STATS", "text").env("ADMA_MIN_BYTES", "64K").env("ADMA_NONSENSE", "1");
    assert_eq!(finish(&mut command).status.code(), Some(7));
    assert_eq!(fs::read_to_string(&own).unwrap(), "a line of the program\n");
}
