//! `adma program`: one report for all its processes, its status and signals, and excluded programs.

use super::*;

fn copies(size: u64, count: u64) -> String {
    format!("{} memcpy {size} {count}", victim("stats_copies").display())
}

#[test]
fn one_report_has_all_processes_and_killed_ones() {
    let folder = in_memory();
    let killed = victim("trap_ends");
    let script = format!(
        "{}; {}; {} kill; {} _exit; exit 5",
        copies(4_000_000, 3),
        copies(2_000_000, 2),
        killed.display(),
        killed.display()
    );
    let done = finish(adma(&folder).args(["sh", "-c", &script]));
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(5), "{err}");
    // The shell prints something as well.
    let report = err.lines().find(|line| line.starts_with("adma: ")).unwrap_or_default();
    assert!(report.starts_with("adma: 4 processes made large copies, within "), "{err}");
    let engine = err.lines().find(|line| line.contains("by the engine")).unwrap();
    assert!(engine.split_whitespace().nth(3) == Some("7"), "{err}");
    for part in ["stats_copies", "trap_ends", "exit 0", "killed", "17.3 MiB"] {
        assert!(err.contains(part), "{part} is missing: {err}");
    }
    let sentences = ["without adma", "no difference to speak of"];
    assert!(sentences.iter().any(|sentence| err.contains(sentence)), "{err}");
    assert_eq!(err.matches("adma: ").count(), 1, "one report: {err}");
    assert!(err.lines().all(|line| line.chars().count() <= 80), "{err}");
    nothing_is_left(&folder);
}

#[test]
fn report_of_one_process_is_as_ever_and_silence_stays_silence() {
    let folder = in_memory();
    let (_, err) =
        succeed(adma(&folder).arg(victim("stats_copies")).args(["memcpy", "1000000", "50"]));
    assert!(err.starts_with("adma: stats_copies (pid "), "{err}");
    for part in ["beside the caller", "channel shares", "p50", "#####", "copied by stats_copies "] {
        assert!(err.contains(part), "{part} is missing: {err}");
    }
    let done = finish(adma(&folder).arg(victim("trap_ends")).arg("kill"));
    assert!(text(&done.stderr).contains("; killed by SIGKILL\n"), "{}", text(&done.stderr));
    let (out, err) = succeed(adma(&folder).args(["echo", "hello"]));
    assert_eq!((out.as_str(), err.as_str()), ("hello\n", ""));
    nothing_is_left(&folder);
}

#[test]
fn report_of_processes_that_send_messages_counts_them() {
    let folder = in_memory();
    let mut sender = Victim::start(adma(&folder).arg(victim("live")).stderr(Stdio::piped()));
    assert_eq!(sender.ask("messages 5"), "sent");
    let json: Value = serde_json::from_str(&top(&folder, &["--once", "--json"])).unwrap();
    let sent = |process: &&Value| process["messages"]["sent"]["messages"] == 5;
    let one = json["processes"].as_array().unwrap().iter().find(sent);
    let pid = one.unwrap_or_else(|| panic!("{json}"))["pid"].to_string();
    let table = top(&folder, &["--once", &pid]);
    let messages = table.lines().nth(1).and_then(|line| line.split_whitespace().rev().nth(1));
    assert!(messages.is_some_and(|rate| rate != "0.0"), "{table}"); // before the reads
    drop(sender.child.stdin.take());
    let done = sender.child.wait_with_output().unwrap();
    let err = text(&done.stderr);
    assert!(err.starts_with("adma: 2 processes sent messages, within "), "{err}");
    assert!(!err.contains("large copies"), "{err}");
    for part in ["  sent                     5      488 KiB", "  received                 5"] {
        assert!(err.contains(part), "{part} is missing: {err}");
    }
    assert!(err.lines().all(|line| line.chars().count() <= 80), "{err}");
    nothing_is_left(&folder);
}

#[test]
fn each_gives_one_report_per_process() {
    let folder = in_memory();
    let script = format!("{}; {}", copies(2_000_000, 3), copies(2_000_000, 2));
    let (_, err) = succeed(adma(&folder).args(["--each", "sh", "-c", &script]));
    assert_eq!(err.matches("adma: stats_copies (pid ").count(), 2, "{err}");
    // One command inside another: the outer one reports.
    let inner = format!("{} {}", common::command().display(), copies(2_000_000, 3));
    let (_, err) = succeed(adma(&folder).args(["sh", "-c", &inner]));
    assert_eq!(err.matches("adma: ").count(), 1, "{err}");
    nothing_is_left(&folder);
}

#[test]
fn page_is_made_in_one_step_also_of_killed_programs_and_without_a_large_copy() {
    let folder = in_memory();
    let page = folder.join("run.html");
    let ends = victim("trap_ends");
    let both = format!("{} kill; {}", ends.display(), copies(4_000_000, 3));
    let table: [(&[&str], i32, &[&str]); 4] = [
        (&["sh", "-c", &both], 0, &["2 processes", "trap_ends", "stats_copies", "by size"]),
        (&[ends.to_str().unwrap(), "kill"], -libc::SIGKILL, &["trap_ends (process "]),
        (&["sh", "-c", "kill -SEGV $$"], -libc::SIGSEGV, &["No large copies"]),
        (&["true"], 0, &["No large copies"]),
    ];
    for (program, status, parts) in table {
        fs::write(&page, "THE OLD PAGE").unwrap();
        let done = finish(adma(&folder).arg("--html").arg(&page).args(program)).status;
        assert_eq!(done.code().unwrap_or_else(|| -done.signal().unwrap()), status, "{program:?}");
        let made = fs::read_to_string(&page).unwrap();
        assert!(made.starts_with("<!DOCTYPE html>") && made.ends_with("</html>\n"), "{made}");
        for part in parts {
            assert!(made.contains(part), "{program:?}: {part} is missing: {made}");
        }
        assert!(!made.contains("THE OLD PAGE"), "{made}");
        // A run without a large copy has a time, and no process to list.
        assert!(!made.contains("·  ·") && !made.contains("<b>0 s</b>"), "{made}");
    }
    // A page that cannot be written is known before the program has run for hours.
    for first in [&[][..], &["bench"]] {
        let job = ["--html", "/no/such/folder/page", "sh", "-c", "echo ran; exit 3"];
        let done = finish(adma(&folder).args(first).args(job));
        assert_eq!((done.status.code(), text(&done.stdout)), (Some(125), String::new()));
        assert!(text(&done.stderr).contains("/no/such/folder/page: No such file"));
    }
    nothing_is_left(&folder);
}

#[test]
fn file_of_reports_is_that_of_the_last_run() {
    let folder = in_memory();
    let file = folder.join("run.json");
    for _ in 0..2 {
        let script = format!("{}; {}", copies(2_000_000, 3), copies(2_000_000, 2));
        let mut command = adma(&folder);
        command.args(["--stats", "json", "--stats-file"]).arg(&file).args(["sh", "-c", &script]);
        succeed(&mut command);
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 2);
    }
}

#[test]
fn profile_of_a_script_is_one_summed_report() {
    let folder = in_memory();
    let script = format!("{}; {}; {}; true", copies(100, 3), copies(200, 5), copies(2_000_000, 1));
    let (_, err) = succeed(adma(&folder).args(["-pq", "sh", "-c", &script]));
    for once in ["adma: ", "profile:", "suggested:"] {
        assert_eq!(err.matches(once).count(), 1, "{once}: {err}");
    }
    let memcpy = err.lines().find(|line| line.starts_with("  memcpy ")).expect(&err);
    let calls: u64 = memcpy.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(calls >= 9, "{err}");
    nothing_is_left(&folder);
}

#[test]
fn engine_that_is_not_there_is_said_once_for_all_processes() {
    // SAFETY: a terminated name.
    let has_driver = !unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) }.is_null();
    let table = [
        ("gpu", has_driver, "no GPU: no libcuda.so.1 that could be opened; worker threads serve"),
        (
            "dma",
            Path::new("/dev/adma").exists(),
            "no /dev/adma (load the kernel helper, see adma(7)); using threads",
        ),
    ];
    let folder = in_memory();
    for (backend, is_there, said) in table {
        if is_there {
            skip_this(&format!("{backend} is there"));
            continue;
        }
        let script = "/bin/true; /bin/true; exec /bin/true";
        let (_, err) = succeed(adma(&folder).args(["-b", backend, "sh", "-c", script]));
        assert_eq!(err, format!("adma: warning: {said}\n"));
    }
}

#[test]
fn children_of_multiprocessing_are_in_the_report() {
    needs!(has("python3"));
    let folder = in_memory();
    let script = "import multiprocessing as m\n\
        def copy(_): return len(bytes(bytearray(8 << 20)))\n\
        if __name__ == '__main__':\n    \
            with m.get_context('fork').Pool(2) as p: p.map(copy, range(8), 1)";
    let (_, err) = succeed(adma(&folder).args(["python3", "-c", script]));
    // The pool kills its workers when it is left.
    let total = err.lines().filter(|line| line.starts_with("  by ")).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[words.iter().position(|word| word.parse::<u64>().is_ok()).unwrap()]
            .parse::<u64>()
            .unwrap()
    });
    assert!(total.sum::<u64>() >= 8, "{err}");
    nothing_is_left(&folder);
}

#[test]
fn signals_sent_to_the_command_reach_the_program() {
    let folder = in_memory();
    for (name, number) in [("TERM", 15), ("INT", 2), ("USR1", 10), ("HUP", 1)] {
        // bash runs a trap between two commands; a signal right before `read` would wait for its end.
        let script =
            format!("trap 'echo caught; exit 7' {name}; echo ready; while sleep 0.01; do :; done");
        let mut victim = Victim::start(adma(&folder).args(["bash", "-c", &script]));
        assert_eq!(victim.answer(), "ready");
        // SAFETY: a signal to a child of ours.
        unsafe { libc::kill(victim.child.id() as i32, number) };
        assert_eq!(victim.answer(), "caught", "{name}");
        assert_eq!(victim.end().code(), Some(7));
    }
    // One that it does not handle kills both.
    let mut victim = Victim::start(adma(&folder).args(["sh", "-c", "echo ready; read line"]));
    assert_eq!(victim.answer(), "ready");
    let stdin = victim.child.stdin.take(); // which waiting would close
    // SAFETY: a child of ours that was not waited for, so its number is not another's.
    unsafe { libc::kill(victim.child.id() as i32, libc::SIGTERM) };
    assert_eq!(victim.child.wait().unwrap().signal(), Some(15));
    drop(stdin);
    nothing_is_left(&folder);
}

/// Returns what the command's parent, which is in another group like a shell, is sent.
fn heard_by_the_parent(folder: &Folder, orders: &str) -> String {
    let script = format!(
        "trap 'echo HEARD TERM' TERM; trap 'echo HEARD USR1' USR1; set -m; \
         {} {} <<<$'{orders}'; echo status $?",
        common::command().display(),
        victim("live").display()
    );
    let mut command = plain("bash");
    command.args(["-c", &script]).env("XDG_RUNTIME_DIR", &folder.0);
    succeed(&mut command).0
}

#[test]
fn signal_of_the_program_to_its_group_does_not_reach_the_commands_parent() {
    let folder = in_memory();
    let heard = heard_by_the_parent(&folder, "signal 15\\nexit 3\\n");
    assert_eq!(heard, "signalled\nstatus 3\n");
    // A signal with a meaning for parents is passed on.
    let heard = heard_by_the_parent(&folder, "tell 10\\nexit 4\\n");
    assert!(heard.contains("HEARD USR1") && heard.contains("status 4"), "{heard}");
}

#[test]
fn program_that_stops_stops_the_command_and_goes_on_with_it() {
    let folder = in_memory();
    let mut stopped = Victim::start(adma(&folder).arg(victim("live")));
    stopped.order("stop");
    let pid = stopped.child.id() as i32;
    let mut status = 0;
    // SAFETY: waits for a child of ours to stop.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) }, pid);
    assert!(libc::WIFSTOPPED(status), "{status:x}");
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    assert_eq!(stopped.answer(), "went on");
    assert!(stopped.end().success());
}

#[test]
fn what_a_killed_command_left_is_removed_by_the_next() {
    let folder = in_memory();
    let mut killed = Victim::start(adma(&folder).arg(victim("live")));
    killed.ask("copy 1048576 2");
    let tree = files(&folder.join("adma")).remove(0);
    let file = files(&tree).remove(0);
    killed.child.kill().unwrap();
    assert_eq!(killed.child.wait().unwrap().signal(), Some(9));
    // The program goes with it.
    let name = file.file_name().unwrap().to_str().unwrap();
    let stat = format!("/proc/{}/stat", name.split('-').next().unwrap());
    let is_gone = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    assert!(eventually(is_gone), "{stat} is still there");
    succeed(adma(&folder).arg("true"));
    nothing_is_left(&folder);
}

#[test]
fn programs_are_left_out_by_name() {
    let folder = in_memory();
    let script = format!("{}; exec {} exit", copies(2_000_000, 3), victim("trap_ends").display());
    let reports = |knob: &str, list: &str| {
        let mut command = adma(&folder);
        command.args(["--each", "--stats", "json", "sh", "-c", &script]).env(knob, list);
        let done = finish(&mut command);
        let lines = text(&done.stderr);
        let mut names: Vec<String> = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect(line))
            .map(|json| json["exe"].as_str().unwrap().rsplit('/').next().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(reports("ADMA_LOG", "warn"), ["stats_copies", "trap_ends"]);
    assert_eq!(reports("ADMA_ONLY", "stats_c*,python3"), ["stats_copies"]);
    assert_eq!(reports("ADMA_NOT", "stats_copies,sh"), ["trap_ends"]);
    assert_eq!(reports("ADMA_ONLY", "nothing"), [""; 0]);
}

#[test]
fn program_that_is_left_out_starts_no_thread_and_copies_rightly() {
    let mut command = preloaded(victim("live"));
    let mut victim = Victim::start(carrying(&mut command).env("ADMA_ONLY", "another-program"));
    victim.ask("copy 8388608 5");
    let pid = victim.child.id();
    assert_eq!(fs::read_dir(format!("/proc/{pid}/task")).unwrap().count(), 1);
    assert!(victim.end().success());
}

/// Runs a script in a mount namespace where every place of live files has `room` for them. The checkout
/// stays in its place, which may be below one of them.
fn with_room(room: &str, script: &str) -> std::process::Output {
    let checkout = env!("CARGO_MANIFEST_DIR");
    let mounts = format!(
        "mount --bind '{checkout}' /mnt || exit 98
         for place in /dev/shm /run /tmp; do mount -t tmpfs -o size={room} none $place || exit 99; done
         mkdir -p '{checkout}' && mount --move /mnt '{checkout}' || exit 98
         {script}"
    );
    let mut command = plain("unshare");
    carrying(&mut command).env("XDG_RUNTIME_DIR", "/run").args(["-m", "sh", "-c", &mounts]);
    finish(&mut command)
}

#[test]
fn report_where_no_statistics_can_be_kept_is_that_of_each_process() {
    if !common::is_root() {
        return skip_this("takes root and unshare(1)");
    }
    let (adma, program) = (common::command(), copies(2_000_000, 3));
    // No room from the beginning; then room that is gone when the program has begun.
    let fills = "for place in /dev/shm /run /tmp; do cat /dev/zero >$place/full; done 2>/dev/null";
    let full = with_room("64k", &format!("{} {program}", adma.display()));
    let filled = format!("{} --html page.html sh -c '{fills}; {program}'", adma.display());
    let folder = Folder(common::scratch("page")); // not in memory, which is full
    let filled = with_room("8m", &format!("cd {}; {filled}; cat page.html", folder.display()));
    for (done, whence) in [(&full, "full"), (&filled, "filled")] {
        let err = text(&done.stderr);
        assert!(done.status.success(), "{whence}: {err}");
        assert!(err.contains("adma: stats_copies (pid "), "{whence}: {err}");
        assert!(err.contains("  by the engine            3"), "{whence}: {err}");
        assert!(!err.contains("no call of"), "{whence}: {err}");
    }
    let (err, page) = (text(&filled.stderr), text(&filled.stdout));
    assert!(
        err.contains("statistics of 1 process could not be kept (/run/adma: No space"),
        "{err}"
    );
    assert!(page.contains("Not known: statistics are missing"), "{page}");
    assert!(!page.contains("No large copies"), "{page}");
}

#[test]
fn process_that_may_not_write_files_reports_for_itself() {
    if !common::is_root() {
        return skip_this("takes root and unshare(1)");
    }
    let folder = in_memory();
    let readonly = format!("mount -o remount,ro,bind /dev/shm && {}", copies(2_000_000, 3));
    let script = format!("mount --bind /dev/shm /dev/shm && {readonly}");
    let mut command = adma(&folder);
    command.arg("--html").arg("/dev/stdout").args(["unshare", "-m", "sh", "-c", &script]);
    let (page, err) = succeed(&mut command);
    assert!(err.contains("Read-only file system") && err.contains("stats_copies (pid "), "{err}");
    assert!(page.contains("No large copies were recorded") && !page.contains("nothing to help"));
}

#[test]
fn folder_that_cannot_hold_live_files_is_named() {
    let (folder, on_disk) = (in_memory(), Folder(common::scratch("live-on-disk")));
    fs::set_permissions(&*on_disk, fs::Permissions::from_mode(0o700)).unwrap();
    let is_disk = |path: &Path| {
        let kind = std::process::Command::new("stat").args(["-fc", "%T"]).arg(path).output();
        kind.is_ok_and(|kind| text(&kind.stdout).trim() != "tmpfs")
    };
    for (path, why) in [
        (Path::new("/no/such/folder"), "No such file or directory"),
        (&*on_disk, "not a file system in memory"),
    ] {
        if path == &*on_disk && !is_disk(path) {
            skip_this("scratch files are in memory");
            continue;
        }
        let done =
            finish(&mut top_command(&folder, &["--once", "--folder", path.to_str().unwrap()]));
        assert_eq!(done.status.code(), Some(125));
        assert!(text(&done.stderr).contains(why), "{}", text(&done.stderr));
        let mut command = preloaded(victim("stats_copies"));
        let command =
            carrying(&mut command).env("ADMA_LIVE", path).args(["memcpy", "2000000", "3"]);
        let (_, err) = succeed(command);
        let warning = format!(
            "adma: warning: no live statistics in {}: {}\n",
            path.display(),
            match why {
                "not a file system in memory" => "not a file system in memory (tmpfs)",
                other => other,
            }
        );
        assert_eq!(err, warning);
        if path == &*on_disk {
            // The command says so for all processes, and reports as ever.
            let mut command = adma(&folder);
            command.env("ADMA_LIVE", path).arg(victim("stats_copies"));
            let (_, err) = succeed(command.args(["memcpy", "2000000", "3"]));
            assert_eq!(err.matches("no live statistics").count(), 1, "{err}");
            assert!(
                err.starts_with(&warning) && err.contains("  by the engine            3"),
                "{err}"
            );
        }
    }
}

/// Interpreters of each version that is at hand, with and without a shared library.
#[test]
fn lines_of_python_scripts_are_named_in_report_page_and_json() {
    let folder = in_memory();
    let script = script_that_copies(&folder, 0.8);
    let versions = (9..=14).map(|minor| format!("python3.{minor}"));
    let mut found = 0;
    for python in ["/usr/bin/python3".to_owned(), "python3".to_owned()].into_iter().chain(versions)
    {
        // A name in PATH may be that of a launcher without a version to launch.
        let probe = "import sys; print(sys.implementation.name, sys.version_info[:2] >= (3, 9))";
        let runs = Command::new(&python).args(["-c", probe]).output();
        if !runs.is_ok_and(|done| text(&done.stdout).trim() == "cpython True") {
            continue;
        }
        found += 1;
        let [page, json] = ["page.html", "run.json"].map(|name| folder.join(name));
        let mut command = adma(&folder);
        command.arg("--html").arg(&page).arg("--json").arg(&json).arg(&python).arg(&script);
        let (_, err) = succeed(&mut command);
        let [page, json] = [page, json].map(|path| fs::read_to_string(path).unwrap());
        for told in [&err, &page, &json] {
            assert!(told.contains("train.py:4 load_batch, "), "{python}: {told}");
        }
        let json = parsed(&json);
        let sites = json["sites"].as_array().unwrap();
        let of_sites: u64 = sites.iter().map(|site| number(&site["bytes"])).sum();
        assert_eq!(of_sites, number(&json["bytes"]), "{json}");
        assert_eq!(number(&json["processes"][0]["bytes"]), of_sites, "{json}");
        assert_eq!(json["end"], "exit 0");
    }
    needs!(found > 0 || has("python3"));
    nothing_is_left(&folder);
}
