//! However a process ends, it reports its own copies once.

use super::*;

/// Status and JSON reports of a process that ended in this manner.
fn ended(manner: &str) -> (std::process::ExitStatus, Vec<Value>) {
    let folder = Folder::new();
    let mut command = fixed("stats_ends", manner);
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("%p"));
    let done = finish(&mut command);
    assert_eq!(text(&done.stderr), "", "{manner}");
    let read = |name: &String| parsed(&fs::read_to_string(folder.join(name)).unwrap());
    (done.status, folder.names().iter().map(read).collect())
}

/// By exit or without exit handlers; two copies where the handler of the end makes one more.
#[test]
fn process_that_ends_in_any_way_reports_every_copy_once() {
    for (manner, code, signal, copies) in [
        ("return", Some(7), None, 1),
        ("exit", Some(7), None, 1),
        ("exit-in-thread", Some(7), None, 1),
        ("exit-in-handler", Some(7), None, 2),
        ("last-thread", Some(0), None, 2), // the main thread has left
        ("_exit", Some(7), None, 1),
        ("_Exit", Some(7), None, 1),
        ("_exit-in-handler", Some(7), None, 1),
        ("quick_exit", Some(7), None, 1),
        ("abort", None, Some(6), 1),
        ("abort-and-jump", Some(7), None, 2),
    ] {
        let (ended, reports) = ended(manner);
        assert_eq!((ended.code(), ended.signal()), (code, signal), "{manner}");
        assert_eq!(reports.len(), 1, "{manner}");
        check(&reports[0]);
        let engine = &reports[0]["paths"]["engine"];
        let found = (number(&engine["calls"]), number(&engine["bytes"]));
        assert_eq!(found, (copies, copies * MIB), "{manner}");
    }
    let (killed, reports) = ended("kill");
    assert_eq!((killed.signal(), reports.len()), (Some(9), 0), "nothing can be done before that");
}

#[test]
fn process_that_ends_while_threads_copy_reports_once() {
    for manner in ["exit-while-copying", "_exit-while-copying"] {
        for _ in 0..5 {
            let (ended, reports) = ended(manner);
            assert_eq!((ended.code(), reports.len()), (Some(7), 1), "{manner}");
            let calls = |path: &str| number(&reports[0]["paths"][path]["calls"]);
            assert!(calls("engine") + calls("libc") > 0, "{manner}");
        }
    }
}

#[test]
fn program_whose_file_was_replaced_reports_under_its_name() {
    let folder = Folder::new();
    let (program, report) = (folder.join("program"), folder.join("report-%e"));
    copy_program(victim("stats_ends"), &program);
    let mut command = preloaded(&program);
    command.arg("replaced").env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "1");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", report);
    let done = finish(&mut command);
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(7), String::new()));
    let report = parsed(&fs::read_to_string(folder.join("report-program")).unwrap());
    assert_eq!(report["exe"].as_str(), program.to_str());
}

#[test]
fn daemon_reports_its_own_copies_to_the_file() {
    let folder = Folder::new();
    let mut command = fixed("stats_ends", "daemon");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("report"));
    let done = finish(&mut command);
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(0), String::new()));
    // It goes on after the process that we have waited for.
    let report = (0..6000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let text = fs::read_to_string(folder.join("report")).ok()?;
        text.ends_with('\n').then(|| parsed(&text))
    });
    let json = report.expect("the daemon has not reported");
    check(&json);
    assert_eq!(json["paths"]["engine"]["calls"], 3, "the first copy was the parent's");
}

#[test]
fn forked_children_report_their_own_copies_and_only_if_they_made_any() {
    let folder = Folder::new();
    let mut command = fixed("stats_forks", "2 0 3 0 1");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("%p"));
    let (out, err) = succeed(command.env("ADMA_VERIFY", "1").env("ADMA_PROFILE", "1"));
    assert_eq!(err, "");
    let mut expected = BTreeMap::new();
    for line in out.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let copies = words.get(2).map_or(5, |copies| copies.parse().unwrap());
        if copies > 0 {
            expected.insert(words[1].to_owned(), copies);
        }
    }
    assert_eq!(expected.len(), 4);
    let names: Vec<String> = expected.keys().cloned().collect();
    let mut found = folder.names();
    found.sort();
    assert_eq!(found, names);
    for (name, copies) in expected {
        let json = parsed(&fs::read_to_string(folder.join(&name)).unwrap());
        check(&json);
        assert_eq!(json["pid"].to_string(), name);
        let engine = &json["paths"]["engine"];
        assert_eq!((number(&engine["calls"]), number(&engine["bytes"])), (copies, copies * MIB));
        assert_eq!(json["verify"]["checked"], copies);
        // Of the child's profile too, the parent's copies are no part.
        let bytes = number(&json["profile"]["functions"]["memcpy"]["bytes"]);
        assert!((copies * MIB..(copies + 1) * MIB).contains(&bytes), "{json}");
        assert_eq!(channel_bytes(&json), copies * MIB, "{json}");
    }
}

#[test]
fn every_program_of_a_pipeline_reports_for_itself() {
    let folder = Folder::new();
    let mut command = preloaded("sh");
    command.args(["-c", "\"$0\" memcpy 100000 3; true | cat; exec \"$0\" memcpy 200000 4"]);
    command.arg(victim("stats_copies")).env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("%e.%p"));
    succeed(&mut command);
    let mut bytes: Vec<u64> = folder
        .names()
        .iter()
        .map(|name| {
            assert!(name.starts_with("stats_copies."), "{name}");
            let json = parsed(&fs::read_to_string(folder.join(name)).unwrap());
            check(&json);
            number(&json["paths"]["engine"]["bytes"])
        })
        .collect();
    bytes.sort_unstable();
    assert_eq!(bytes, [300_000, 800_000]);
}
