//! Every ADMA_ knob: what its values do, and that a bad one costs one line and nothing else.

mod common;

use adma_shared::knobs::{Form, KNOBS, Knob};
use common::{
    Folder, finish, fixed, number, only_report, plain, preloaded, statistics, succeed, victim,
};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

/// Returns values that each form of knob takes, and values that it refuses.
fn values(form: &Form) -> (Vec<String>, Vec<String>) {
    let split = |text: &str| text.split('|').map(str::to_owned).collect::<Vec<_>>();
    let (good, bad) = match form {
        Form::Word(words) => {
            let (all, last) = (words.join(","), words[words.len() - 1]);
            let loud = if last == "1" { "yes".to_owned() } else { last.to_uppercase() };
            (split(&words.join("|")), format!("{loud}|{last} |{all}|2|-1|on"))
        }
        Form::List(alone, words) => {
            let (all, one) = (words.join(","), words[0]);
            let bad =
                format!("xml|{one},|,{one}|{one} {one}|{alone},{one}|none|{}", one.to_uppercase());
            (split(&format!("{alone}|{}|{all}", words.join("|"))), bad)
        }
        Form::Size { zero } => {
            let good = "auto|1|4095|64K|64k|1M|1m|1G|18446744073709551615";
            let bad =
                "64KB|-1|+1| 1|1.5M|0x10|K|0K|1T|all|99999999999999999999|18446744073709551615G";
            let (good, bad) = match zero {
                true => (format!("{good}|0"), bad.to_owned()),
                false => (good.to_owned(), format!("{bad}|0")),
            };
            (split(&good), bad)
        }
        Form::AutoOr(least, most) | Form::Number(least, most) => {
            let has_auto = matches!(form, Form::AutoOr(..));
            let (below, above) = (*least as i64 - 1, most + 1);
            let odd = if has_auto { "+1" } else { "auto" };
            let bad = format!("{below}|{above}|two|1.0|1 |{odd}|18446744073709551617");
            let good = split(&format!("{least}|{most}"));
            (good.into_iter().chain(has_auto.then(|| "auto".to_owned())).collect(), bad)
        }
        Form::Share => {
            (split("auto|0|0.25|.5|0.999999|1|1.0"), "1.1|-0.1|nan|inf|1e-1|50%|.|0,5|2".to_owned())
        }
        Form::Path => (split("stderr"), String::new()),
        Form::Folder => (split("auto|off|/no/such/folder"), "on|AUTO|here|./here".to_owned()),
        Form::Programs => {
            (split("*|stats_copies|python3*,stats_copie?"), ",|a,,b|sh,|/bin/sh".into())
        }
    };
    (good, split(&bad))
}

/// Returns a program whose output and status are easy to tell from ours.
fn program() -> Command {
    let mut command = preloaded("sh");
    command.args(["-c", "echo one; echo two >&2; exit 7"]);
    command
}

/// Runs it, checks that it is as without us, and returns what else was on stderr.
fn remarks(command: &mut Command) -> Vec<String> {
    let done = finish(command);
    assert_eq!(done.status.code(), Some(7), "{command:?}");
    assert_eq!(done.stdout, b"one\n", "{command:?}");
    let err = String::from_utf8(done.stderr).unwrap();
    let lines: Vec<String> = err.lines().map(str::to_owned).collect();
    assert_eq!(lines.last().map(String::as_str), Some("two"), "{command:?}: {err}");
    lines[..lines.len() - 1].to_vec()
}

/// Returns the named copies under a fixed threshold, with channels even on a small machine.
fn copies(what: &str) -> Command {
    fixed("stats_copies", what)
}

/// Returns the calls by the engine and by libc.
fn calls(json: &Value) -> (u64, u64) {
    let of = |path: &str| number(&json["paths"][path]["calls"]);
    (of("engine"), of("libc"))
}

/// Returns the bytes by the caller, and by all workers.
fn shares(json: &Value) -> (u64, u64) {
    let channels = json["channel_bytes"].as_object().unwrap();
    let workers = channels.iter().filter(|(name, _)| *name != "caller");
    (number(&channels["caller"]), workers.map(|(_, bytes)| number(bytes)).sum())
}

// ---- bad values --------------------------------------------------------------------------

#[test]
fn bad_value_costs_one_line_with_knob_value_wish_and_default() {
    for Knob { name, default, form, .. } in &KNOBS {
        for value in values(form).1.iter().map(String::as_str).chain([""]) {
            let lines = remarks(program().env(name, value));
            assert_eq!(lines.len(), 1, "{name}={value}: {lines:?}");
            let start = format!("adma: {name}={value}: want ");
            let end = format!("; using {default}");
            assert!(lines[0].starts_with(&start) && lines[0].ends_with(&end), "{}", lines[0]);
            assert!(lines[0].len() > start.len() + end.len(), "wants nothing: {}", lines[0]);
        }
    }
}

#[test]
fn bad_value_of_any_bytes_stays_one_readable_line() {
    let values: [&[u8]; 6] =
        [b"\xff\xfe", b"a\nb\nadma: c", b"\x1b[31mred", b"\xe2\x82", b"\t\r", b"\x7f"];
    // These take any text as a name.
    let names = ["ADMA_STATS_FILE", "ADMA_ONLY", "ADMA_NOT"];
    for Knob { name, .. } in KNOBS.iter().filter(|knob| !names.contains(&knob.name)) {
        for value in values {
            let lines = remarks(program().env(name, OsStr::from_bytes(value)));
            assert_eq!(lines.len(), 1, "{name}: {lines:?}");
            assert!(lines[0].contains(name) && lines[0].contains("want"), "{}", lines[0]);
            assert!(!lines[0].contains(char::is_control), "{:?}", lines[0]);
        }
    }
    let lines = remarks(program().env("ADMA_STATS_FILE", OsStr::from_bytes(b"\xff")));
    assert!(lines.len() <= 1, "{lines:?}");
    let lines = remarks(program().env("ADMA_STATS_FILE", "x".repeat(5000)));
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn unknown_name_costs_one_line_and_similar_names_of_others_none() {
    // The last one is a former knob.
    for name in
        ["ADMA_MINBYTES", "ADMA_", "ADMA_min_bytes", "ADMA_MIN_BYTES_", "ADMA_KNOB\n2", "ADMA_WAIT"]
    {
        let lines = remarks(program().env(name, "64K"));
        assert_eq!(lines.len(), 1, "{name}: {lines:?}");
        let shown = name.replace('\n', "\\n");
        assert!(lines[0].starts_with(&format!("adma: {shown}: no such knob")), "{}", lines[0]);
    }
    let lines = remarks(program().env("ADMA_LOG", "loud").env("ADMA_VERIFY", "often"));
    assert_eq!(lines.len(), 2, "two bad values: {lines:?}");
    for name in ["ADMA", "ADMAX_LOG", "adma_log", "XADMA_LOG"] {
        assert_eq!(remarks(program().env(name, "1")), [""; 0], "{name}");
    }
}

#[test]
fn log_error_silences_every_remark() {
    let mut command = program();
    KNOBS.iter().for_each(|knob| _ = command.env(knob.name, ""));
    command.env("ADMA_NONSENSE", "1").env("ADMA_BACKEND", "ioat").env("ADMA_LOG", "error");
    assert_eq!(remarks(&mut command), [""; 0]);
}

#[test]
fn bad_value_leaves_the_default_in_force() {
    let json = only_report(copies("memcpy 1000000 8").env("ADMA_MIN_BYTES", "64KB"));
    assert_eq!(json["min_bytes"], "auto");
    let json = only_report(copies("memcpy 1000000 8").env("ADMA_VERIFY", "often"));
    assert_eq!(json["verify"]["checked"], 0);
    let (_, err) = succeed(copies("memcpy 1000000 8").env("ADMA_STATS", "xml"));
    assert_eq!(err.lines().count(), 1, "{err}");
}

// ---- good values -------------------------------------------------------------------------

#[test]
fn every_good_value_copies_the_right_bytes() {
    let work = "memcpy 1000003 20 memmove 3000000 4 overlap 200000 3 mempcpy 65536 20 \
                bcopy 70001 5 wmemcpy 400000 5 wmemmove 90000 5 memcpy 7 50";
    let expected = succeed(plain(victim("stats_copies")).args(work.split_whitespace())).0;
    for Knob { name, form, .. } in &KNOBS {
        for value in values(form).0 {
            if (*name, &*value) == ("ADMA_CHECK", "1") {
                continue; // describes the machine, and runs nothing
            }
            let (out, err) = succeed(copies(work).env(name, &value));
            assert_eq!(out, expected, "{name}={value}");
            assert!(!err.contains("want"), "{name}={value}: {err}");
        }
    }
}

#[test]
fn min_bytes_beyond_every_copy_leaves_all_to_libc_uncounted() {
    for min in ["1G", "18446744073709551615"] {
        let reports = statistics(copies("memcpy 5000000 5").env("ADMA_MIN_BYTES", min));
        assert_eq!(reports.len(), 0, "nothing was counted, nothing is reported");
    }
}

#[test]
fn channels_bounds_the_workers() {
    for channels in [1usize, 3, 12] {
        let mut command = copies("memcpy 4000000 60");
        command.env("ADMA_BACKEND", "threads").env("ADMA_CHANNELS", channels.to_string());
        let json = only_report(&mut command);
        assert_eq!(json["channels"], channels);
        let names: Vec<&String> = json["channel_bytes"].as_object().unwrap().keys().collect();
        assert!(names.len() <= channels + 1, "{names:?}");
        assert_eq!(calls(&json), (60, 0));
        let (caller, workers) = shares(&json);
        assert_eq!(caller + workers, 60 * 4_000_000, "a channel that is not named has copied");
    }
}

#[test]
fn cpu_share_is_what_the_caller_does_at_least() {
    // Sizes also that a short floating-point number cannot hold.
    for size in [65_536u64, 1_000_001, 16_777_217, 20_000_001, 70_000_003] {
        let mut command = copies(&format!("memcpy {size} 3"));
        let json = only_report(command.env("ADMA_CPU_SHARE", "1"));
        assert_eq!(calls(&json), (3, 0));
        assert_eq!(shares(&json), (3 * size, 0), "{size}");
    }
    // With a half, at least that half is the caller's.
    let json = only_report(copies("memcpy 4000000 30").env("ADMA_CPU_SHARE", "0.5"));
    let (caller, workers) = shares(&json);
    assert_eq!(caller + workers, 30 * 4_000_000);
    assert!(caller >= workers, "caller {caller}, workers {workers}");
}

#[test]
fn cpu_share_of_zero_leaves_the_workers_more_than_a_fixed_share_could() {
    // A worker that gets no CPU for a while is not waited for. On a busy machine the caller copied
    // a half in the best of fifteen runs, so the limit is what a share of three quarters would keep
    // for it in every run.
    let mut seen = Vec::new();
    for _ in 0..40 {
        let json = only_report(copies("memcpy 8000000 20").env("ADMA_CPU_SHARE", "0"));
        let (caller, workers) = shares(&json);
        assert_eq!(caller + workers, 20 * 8_000_000);
        seen.push((caller, workers));
        if workers > caller / 3 {
            return;
        }
    }
    panic!("caller and workers: {seen:?}");
}

#[test]
fn verify_compares_every_nth_carried_copy() {
    for (every, checked) in [("1", 20), ("3", 6), ("20", 1), ("21", 0), ("0", 0)] {
        let mut command = copies("memcpy 100000-2000000 20 overlap 100000 5 memcpy 100 5");
        let json = only_report(command.env("ADMA_VERIFY", every));
        assert_eq!(calls(&json), (20, 5));
        assert_eq!(json["verify"]["checked"], checked, "every {every}");
        assert_eq!(json["verify"]["mismatched"], 0);
    }
}

#[test]
fn backend_libc_carries_nothing_and_says_why() {
    let json = only_report(copies("memcpy 1000000 6").env("ADMA_BACKEND", "libc"));
    assert_eq!(calls(&json), (0, 6));
    assert_eq!(json["fallbacks"]["off"], 6);
    assert_eq!(json["backend"], "libc");
    assert_eq!(json["paths"]["libc"]["bytes"], 6_000_000);
}

#[test]
fn log_info_says_one_line_at_exit_on_stderr_only() {
    for level in ["info", "debug"] {
        let mut command = copies("memcpy 1000000 5");
        let (out, err) = succeed(command.env("ADMA_BACKEND", "threads").env("ADMA_LOG", level));
        assert_eq!(out, "5000000 bytes copied\n");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.starts_with("adma: ") && err.contains("2 channels"), "{err}");
        assert!(!err.contains("Some("), "not for people: {err}");
        let (out, err) = succeed(preloaded("true").env("ADMA_LOG", level));
        assert_eq!((out.as_str(), err.lines().count()), ("", 1), "{err}");
    }
    let (_, err) = succeed(&mut copies("memcpy 1000000 5"));
    assert_eq!(err, "");
}

#[test]
fn stats_are_off_until_asked_for() {
    let folder = Folder::new("off");
    let (_, err) =
        succeed(copies("memcpy 1000000 5").env("ADMA_STATS_FILE", folder.join("report")));
    assert_eq!((&*err, folder.names().len()), ("", 0));
}
