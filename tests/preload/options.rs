//! Options: each does what its knob does, and wins over it.

use super::*;

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
    executable(&odd, "#!/bin/sh\necho odd \"$@\"\n");
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
