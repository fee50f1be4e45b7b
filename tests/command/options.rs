//! Options: each does what its knob does, and overrides it; refusals and their messages.

use super::*;
use serde_json::{Value, json};

fn copying(command: &mut Command) -> &mut Command {
    command.arg(victim("stats_copies")).args(["memcpy", "1000000", "3"])
}

/// Checks that the command fails with one line on standard error, and runs nothing.
fn refused(command: &mut Command) -> String {
    let done = finish(command);
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(125), "{command:?}: {err}");
    assert_eq!((err.lines().count(), text(&done.stdout).as_str()), (1, ""), "{command:?}: {err}");
    assert!(err.starts_with("adma: "), "{command:?}: {err}");
    err
}

#[test]
fn option_does_what_its_knob_does_and_wins_over_it() {
    let min = ("ADMA_MIN_BYTES", "2M", "/min_bytes", json!(512 << 10));
    let channels = ("ADMA_CHANNELS", "5", "/channels", json!(3));
    let backend = ("ADMA_BACKEND", "threads", "/backend", json!("libc"));
    let stats = ("ADMA_STATS", "text", "/paths/engine/calls", json!(3));
    let table = [
        ("-m 512K", &min),
        ("-m512K", &min),
        ("-m=512K", &min),
        ("--min-bytes 512K", &min),
        ("--min-bytes=512K", &min),
        ("-m 4M -m 512K", &min),
        ("-c 3 -m64K", &channels),
        ("-c3 -m64K", &channels),
        ("--channels=3 -m64K", &channels),
        ("-b libc", &backend),
        ("-blibc", &backend),
        ("--backend libc", &backend),
        ("-m64K -c1", &stats),
        ("-qm64K -c1 --stats=json", &stats), // of --quiet and --stats the last one counts
    ];
    for (options, (knob, value, key, expected)) in table {
        let mut command = adma();
        command.env(knob, value).args(["--stats", "json"]).args(options.split(' '));
        let (_, err) = succeed(copying(&mut command));
        let report: Value = serde_json::from_str(&err).unwrap_or_else(|e| panic!("{e}: {err}"));
        assert_eq!(report.pointer(key), Some(expected), "{options}");
    }
}

/// A report is text on standard error, once, also by a command inside another, unless options or the
/// environment say otherwise.
#[test]
fn options_of_the_report_say_what_is_written_and_where() {
    let folder = Folder::new("said");
    let (file, inner) = (format!("{}/report %e", folder.display()), command());
    let inner = inner.to_str().unwrap();
    // ADMA_STATS, options, and what standard error says; nothing: it stays empty.
    let table: [(&str, &[&str], &[&str]); 11] = [
        ("", &[], &["adma: stats_copies (pid ", "large copies"]),
        ("", &[inner], &["adma: stats_copies (pid "]),
        ("json", &[], &["{\"version\""]),
        ("off", &[], &[]),
        ("", &["-q"], &[]),
        ("", &["-q", inner], &[]),
        ("", &["--stats", "json", "--quiet"], &[]),
        ("", &["--stats", "text,json"], &["large copies", "{\"version\""]),
        ("", &["-p"], &["profile:", "suggested:"]),
        ("", &["-pq"], &["profile:", "suggested:"]),
        ("", &["--each", "--stats-file", &file], &[]),
    ];
    for (stats, options, parts) in table {
        let mut command = adma();
        command.env("ADMA_STATS_FILE", "stderr").args(options);
        if !stats.is_empty() {
            command.env("ADMA_STATS", stats);
        }
        let (out, err) = succeed(copying(&mut command));
        assert_eq!(out, "3000000 bytes copied\n");
        assert_eq!(err.is_empty(), parts.is_empty(), "{stats}, {options:?}: {err}");
        assert!(err.matches("adma: ").count() <= 1, "{options:?}: {err}");
        for part in parts {
            assert!(err.contains(part), "{stats}, {options:?}: {part} is missing: {err}");
        }
    }
    let report = fs::read_to_string(folder.join("report stats_copies")).unwrap();
    assert!(report.contains("large copies"), "{report}");
}

#[test]
fn options_end_at_the_program_or_at_two_dashes() {
    let odd = scratch("odd");
    executable(&odd.join("-odd"), "#!/bin/sh\necho odd \"$@\"\n");
    let path = format!("{}:{}", odd.display(), std::env::var("PATH").unwrap());
    for (words, said) in [
        (&["echo", "--quiet", "--version", "-m"][..], "--quiet --version -m\n"),
        (&["-q", "--", "echo", "--", "-q"], "-- -q\n"),
        (&["--", "-odd", "a"], "odd a\n"),
    ] {
        assert_eq!(succeed(adma().args(words).env("PATH", &path)).0, said, "{words:?}");
    }
}

#[test]
fn bad_option_or_value_is_refused_in_one_line_that_says_what_was_meant() {
    let mut table = vec![
        ("--nonsense", "unknown option --nonsense; see adma --help"),
        ("--nonsense=1", "unknown option --nonsense; see adma --help"),
        ("--quie", "unknown option --quie; did you mean --quiet?"),
        ("-x", "unknown option -x;"),
        ("-qx", "unknown option -x;"),
        ("--=x", "unknown option"),
        (
            "-b thread",
            "--backend thread: want auto, dma, ioat, gpu, threads or libc; did you mean threads?",
        ),
        ("-m 64KB", "--min-bytes 64KB: want auto, or bytes with an optional K, M or G suffix"),
        ("-c 0", "--channels 0: want auto, or a number from 1 to 64"),
        ("--stats jso", "did you mean json?"),
        ("-q --html x", "--quiet does not go with --html; see adma --help"),
        ("report --htm", "unknown option --htm; did you mean --html? see adma report --help"),
        ("report", "<FILE>... is missing"),
        ("top --jsno", "did you mean --json?"),
        ("top 0", "0: want a process number"),
        ("check this", "adma -- check"),
    ];
    for option in ["--quiet", "--profile", "--check", "--help", "--version", "--each"] {
        // The value must not be taken for the program.
        table.push((Box::leak(format!("{option}=echo ran").into_boxed_str()), "takes no value"));
    }
    for (words, said) in table {
        let mut command = adma();
        command.args(words.split(' '));
        if !["report", "top", "check"].contains(&words.split(' ').next().unwrap()) {
            command.args(["echo", "ran"]);
        }
        let err = refused(&mut command);
        assert!(err.contains(said), "{words}: {err}");
    }
    for option in ["-m", "--min-bytes", "-c", "-b", "--backend", "--stats", "--stats-file", "-qm"] {
        assert!(refused(adma().arg(option)).contains(" wants a value"), "{option}");
    }
}

#[test]
fn bad_knob_is_said_once_by_the_command_and_nothing_runs() {
    let table = [
        ("ADMA_MIN_BYTES", "64KB", "ADMA_MIN_BYTES=64KB: want auto, or bytes"),
        ("ADMA_LOG", "wran", "ADMA_LOG=wran: want error, warn, info or debug; did you mean warn?"),
        (
            "ADMA_MINBYTES",
            "1",
            "ADMA_MINBYTES: no such knob; did you mean ADMA_MIN_BYTES? see --knobs",
        ),
        ("ADMA_\u{1b}[31m", "1", "ADMA_?[31m: no such knob; see --knobs"),
    ];
    for (name, value, said) in table {
        for words in [&["sh", "-c", "true; true"][..], &["-q", "true"], &["check"]] {
            let err = refused(adma().env(name, value).args(words));
            assert!(err.contains(said), "{words:?}: {err}");
        }
    }
    // An option overrides a bad knob.
    succeed(adma().env("ADMA_MIN_BYTES", "64KB").args(["-m64K", "true"]));
}
