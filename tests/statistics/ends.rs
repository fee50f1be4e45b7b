//! A process reports its own copies once, however it ends.

use super::*;

/// Returns status, or a negative signal; the output; and the JSON reports.
fn reported(manner: &str) -> (i32, String, Vec<Value>) {
    let folder = Folder::new("reports");
    let mut command = fixed("trap_ends", manner);
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("%p"));
    let (status, said, err) = status_of(&mut command);
    assert_eq!(err, "", "{manner}");
    let read = |name: &String| parsed(&fs::read_to_string(folder.join(name)).unwrap());
    (status, said, folder.names().iter().map(read).collect())
}

fn status_of(command: &mut Command) -> (i32, String, String) {
    let done = finish(command);
    let status = done.status.code().unwrap_or_else(|| -done.status.signal().unwrap());
    (status, text(&done.stdout), text(&done.stderr))
}

/// Manner, status, moments at which it copies, and large copies in its report; 0: some.
const MANNERS: [(&str, i32, &[&str], u64); 16] = [
    ("return", 7, &[], 1),
    ("exit", 7, &[], 1),
    ("exit-in-handler", 7, &[], 2),
    ("exit-while-copying", 7, &[], 0),
    ("atexit", 7, &["on_exit", "atexit", "destructor"], 0),
    ("keys", 7, &["thread-local object", "pthread key", "thread-local object of main"], 4),
    ("thread", 7, &["atexit", "destructor"], 0),
    ("signal", 7, &["atexit"], 0), // exit in a signal handler during a copy
    ("last-thread", 0, &["last thread"], 11), // main has left by pthread_exit
    ("_exit", 7, &[], 1),
    ("_Exit", 7, &[], 1),
    ("_exit-in-handler", 7, &[], 1),
    ("_exit-while-copying", 7, &[], 0),
    ("quick_exit", 7, &["at_quick_exit"], 2),
    ("abort", -6, &[], 1),
    ("abort-and-jump", 7, &[], 2),
];

#[test]
fn process_that_ends_in_any_way_copies_right_and_reports_every_copy_once() {
    for (manner, status, moments, copies) in MANNERS {
        let lines: String = moments.iter().map(|line| format!("{line}\n")).collect();
        let expected = (status, lines.clone(), String::new());
        assert_eq!(status_of(plain(victim("trap_ends")).arg(manner)), expected, "{manner}, plain");
        assert_eq!(status_of(preloaded(victim("trap_ends")).arg(manner)), expected, "{manner}");
        for _ in 0..if copies == 0 { 5 } else { 1 } {
            let (ended, said, reports) = reported(manner);
            assert_eq!((ended, said, reports.len()), (status, lines.clone(), 1), "{manner}");
            check(&reports[0]);
            let engine = &reports[0]["paths"]["engine"];
            let found = (number(&engine["calls"]), number(&engine["bytes"]));
            match copies {
                0 => assert!(found.0 > 0, "{manner}: {engine}"),
                _ => assert_eq!(found, (copies, copies * MIB), "{manner}"),
            }
        }
    }
    // A report before that is impossible.
    assert_eq!(reported("kill"), (-9, String::new(), vec![]));
}

#[test]
fn program_whose_file_was_replaced_reports_under_its_name() {
    let folder = Folder::new("reports");
    let (program, report) = (folder.join("program"), folder.join("report-%e"));
    copy_program(victim("trap_ends"), &program);
    let mut command = preloaded(&program);
    command.arg("replaced").env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "1");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", report);
    assert_eq!(ended(&mut command), (Some(7), String::new(), String::new()));
    let report = parsed(&fs::read_to_string(folder.join("report-program")).unwrap());
    assert_eq!(report["exe"].as_str(), program.to_str());
}

#[test]
fn daemon_reports_its_own_copies_to_the_file() {
    let folder = Folder::new("reports");
    let mut command = fixed("trap_ends", "daemon");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("report"));
    assert_eq!(ended(&mut command), (Some(0), String::new(), String::new()));
    // The child outlives the process that we have waited for.
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
    let folder = Folder::new("reports");
    let mut command = fixed("trap_copy", "forks 2 0 3 0 1");
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
    assert_eq!(folder.names(), names);
    for (name, copies) in expected {
        let json = parsed(&fs::read_to_string(folder.join(&name)).unwrap());
        check(&json);
        assert_eq!(json["pid"].to_string(), name);
        let engine = &json["paths"]["engine"];
        assert_eq!((number(&engine["calls"]), number(&engine["bytes"])), (copies, copies * MIB));
        assert_eq!(json["verify"]["checked"], copies);
        // The child's profile excludes the parent's copies, too.
        let bytes = number(&json["profile"]["functions"]["memcpy"]["bytes"]);
        assert!((copies * MIB..(copies + 1) * MIB).contains(&bytes), "{json}");
        assert_eq!(channel_bytes(&json), copies * MIB, "{json}");
    }
}

#[test]
fn every_program_of_a_pipeline_reports_for_itself() {
    let folder = Folder::new("reports");
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
