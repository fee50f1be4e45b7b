//! `adma bench`: with and without adma in turn.

use super::*;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

fn bench(options: &[&str], program: &[&str]) -> Command {
    let mut command = adma();
    command.arg("bench").args(options).arg("--").args(program);
    command
}

/// Status, standard output and standard error.
fn done(options: &[&str], program: &[&str]) -> (Option<i32>, String, String) {
    let done = finish(&mut bench(options, program));
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn bench_of_programs_that_copy_has_times_memory_output_and_a_verdict() {
    let victim = victim("stats_copies");
    let mut programs = vec![vec![victim.to_str().unwrap(), "memcpy", "4000000", "40"]];
    if found("python3") {
        programs.push(vec!["python3", "-c", "a = bytearray(16 << 20); print(len(bytes(a)))"]);
    } else {
        skip_this("python3 is not installed");
    }
    for program in programs {
        let options = ["-n7", "--with", "ADMA_BACKEND=libc", "--json"];
        let (status, out, err) = done(&options, &program);
        assert_eq!((status, err.as_str()), (Some(0), ""), "{out}");
        let json: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&json["rounds"], &json["complete"]), (&7.into(), &true.into()));
        assert_eq!(json["output"], "same", "{json}");
        assert!(json["copies"]["calls"].as_u64() > Some(0), "{json}");
        let arms = json["arms"].as_array().unwrap();
        let names = ["without adma", "with adma", "with ADMA_BACKEND=libc"];
        assert_eq!(arms.len(), names.len());
        for (arm, name) in arms.iter().zip(names) {
            assert_eq!((&arm["name"], &arm["ends"][0]), (&name.into(), &"exit 0".into()));
            let wall = |key: &str| arm["wall"][key].as_f64().unwrap();
            let (q1, median, q3) = (wall("q1"), wall("median"), wall("q3"));
            assert!(0.0 < q1 && q1 <= median && median <= q3 && q3 <= wall("max"), "{arm}");
            assert_eq!(arm["wall"]["runs"].as_array().unwrap().len(), 7);
            assert!(arm["cpu"]["user"].as_f64() >= Some(0.0), "{arm}");
            assert!(arm["peak_bytes"].as_u64() > Some(1 << 20), "{arm}");
        }
        for arm in &arms[1..] {
            let ratio = |key: &str| arm["ratio"][key].as_f64().unwrap();
            assert!(ratio("low") <= ratio("estimate") && ratio("estimate") <= ratio("high"));
            let verdicts = ["faster", "slower", "same", "unknown"];
            assert!(verdicts.contains(&arm["verdict"].as_str().unwrap()), "{arm}");
        }
    }
}

#[test]
fn bench_reports_as_text_and_page() {
    let page = scratch("bench").join("bench.html");
    let (status, out, err) =
        done(&["-n2", "-w0", "--html", page.to_str().unwrap()], &["true", "<b>"]);
    assert_eq!((status, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("adma: true <b>: 2 rounds of 2 runs in turn\n"), "{out}");
    assert!(out.contains("with adma: not known (") && out.contains("takes 6 rounds"), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("true &#60;b&#62;"), "{page}");
    assert!(!page.contains("<b>\n") && !page.contains("<script"), "{page}");
}

#[test]
fn bench_of_a_program_that_fails_says_how_and_stops() {
    let fails = ["sh", "-c", "echo a reason >&2; exit 3"];
    let (status, out, err) = done(&[], &fails);
    assert_eq!((status, out.as_str()), (Some(1), ""));
    assert!(err.starts_with("adma: the program fails without adma: exit 3; "), "{err}");
    assert!(err.ends_with("\n  a reason\n"), "{err}");
    let (status, out, _) = done(&["-n1", "--ignore-failure"], &fails);
    assert_eq!(status, Some(0), "{out}");
    assert!(out.contains("with adma it ends by exit 3"), "{out}");
    let (status, _, err) = done(&[], &["sh", "-c", "[ -z \"$LD_PRELOAD\" ] || kill -SEGV $$"]);
    assert_eq!(status, Some(1));
    assert!(err.contains("fails with adma: killed by SIGSEGV"), "{err}");
}

#[test]
fn bench_compares_what_the_program_writes_and_how_it_ends() {
    let differs = "OUTPUT DIFFERS with adma";
    // Options, program, status and what is said.
    let table: [(&[&str], &str, i32, &str); 5] = [
        (&[], "echo \"$LD_PRELOAD\"", 1, differs),
        (&[], "echo $$", 0, "output: another in each run, also without adma"),
        (&[], "echo alike", 0, "output: the same in all runs"),
        (&["--discard-output"], "echo \"$LD_PRELOAD\"", 0, "output: not compared"),
        (&["--ignore-failure"], "[ -z \"$LD_PRELOAD\" ]", 1, "with adma it ends by exit 1"),
    ];
    for (options, script, expected, said) in table {
        let (status, out, err) = done(&[&["-n2"], options].concat(), &["sh", "-c", script]);
        assert_eq!(status, Some(expected), "{script}: {out}{err}");
        assert!(out.contains(said), "{script}: {out}");
    }
}

#[test]
fn bench_names_a_round_that_took_far_longer_than_the_others() {
    let log = scratch("outlier").join("log");
    // The seventh run is in the fourth round; which arm comes first there changes.
    let script = "echo >>$LOG; [ $(wc -l <$LOG) = 7 ] && exec sleep 4; exec sleep 0.05";
    let (out, _) = succeed(bench(&["-n8", "-w0"], &["sh", "-c", script]).env("LOG", &log));
    assert!(out.contains("outlier: round 4 with") && out.contains(" took 4."), "{out}");
}

#[test]
fn bench_runs_its_commands_and_reads_its_input_in_order() {
    let log = scratch("order").join("log");
    let (options, input) = (["setup", "prepare", "cleanup"], log.with_extension("input"));
    fs::write(&input, "a line\n").unwrap();
    let mut command = adma();
    command.args(["bench", "-n1", "-w1", "-i"]).arg(&input).env("LOG", &log);
    for option in options {
        command.arg(format!("--{option}")).arg(format!("echo {option} >>$LOG"));
    }
    command.args(["--with", "ADMA_MIN_BYTES=1M ADMA_CHANNELS=2", "sh", "-c"]);
    command.arg("read line; echo $line $ADMA_MIN_BYTES $ADMA_CHANNELS >>$LOG");
    let (out, err) = succeed(&mut command);
    assert_eq!(err, "", "{out}");
    let round = ["prepare", "a line", "prepare", "a line", "prepare", "a line 1M 2"];
    let expected = [&["setup"][..], &round, &round, &["cleanup"]].concat();
    assert_eq!(lines(&log), expected);
    let bad = done(&["--setup", "exit 4", "--cleanup", "echo cleaned"], &["true"]);
    assert_eq!(
        bad,
        (Some(1), "cleaned\n".into(), "adma: the setup command fails: exit 4\n".into())
    );
    // The report has what was measured before.
    let (status, out, err) = done(&["-n1", "--cleanup", "exit 4"], &["true"]);
    assert_eq!((status, err.as_str()), (Some(1), "adma: the cleanup command fails: exit 4\n"));
    assert!(out.starts_with("adma: true: 1 round "), "{out}");
    // A page that cannot be written is found out before anything runs.
    let (status, out, err) = done(&["-n1", "--html", "/no/such/page"], &["true"]);
    assert_eq!(
        (status, out.as_str(), err.as_str()),
        (Some(125), "", "adma: /no/such/page: No such file or directory\n")
    );
    let (status, _, err) = done(&["-i", "/no/such/file"], &["true"]);
    assert_eq!((status, err.contains("/no/such/file: No such file")), (Some(1), true), "{err}");
}

#[test]
fn bench_has_rivals_of_adma_as_further_arms() {
    let log = scratch("rivals").join("log");
    let script = "echo $GLIBC_TUNABLES ${LD_PRELOAD##*/} >>$LOG";
    let other = common::traps::a_library("trap_library", &["-DEMPTY"]);
    let name = other.file_name().unwrap().to_str().unwrap();
    let against =
        ["--against", "hugetlb", "--against", "tuned", "--against", other.to_str().unwrap()];
    let mut command = bench(&[&["-n1", "-w0"][..], &against].concat(), &["sh", "-c", script]);
    command.env("LOG", &log).env("GLIBC_TUNABLES", "glibc.malloc.check=0");
    let (out, err) = succeed(&mut command);
    assert_eq!(err, "", "{out}");
    let mine = "glibc.malloc.check=0";
    let tuned = "glibc.cpu.x86_non_temporal_threshold=0x100000:glibc.malloc.hugetlb=1";
    let expected = [
        mine.to_owned(),
        format!("{mine} libadma.so.0"),
        format!("{mine}:glibc.malloc.hugetlb=1"),
        format!("{mine}:{tuned}"),
        format!("{mine} {name}"),
    ];
    assert_eq!(lines(&log), expected);
    assert!(out.contains("with glibc's hugetlb: not known"), "{out}");
    let (status, _, err) = done(&["--against", "/no/such.so"], &["true"]);
    assert_eq!(status, Some(125));
    assert!(
        err.contains("No such file or directory; want a library, or threshold, hugetlb, tuned"),
        "{err}"
    );
    // The loader would pass over these, and libc be measured under their names.
    for path in ["/", "/dev/null", "/etc/passwd"] {
        let (status, _, err) = done(&["--against", path], &["true"]);
        assert_eq!(status, Some(125), "{path}");
        assert!(err.contains("no shared library for x86-64"), "{err}");
    }
}

#[test]
fn bench_does_not_blame_adma_for_what_a_rival_changes() {
    let rivals = ["-n2", "-w0", "--against", "hugetlb"];
    let (status, out, err) = done(&rivals, &["sh", "-c", "echo $GLIBC_TUNABLES"]);
    assert_eq!((status, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("output: the same with and without adma, another with a rival"), "{out}");
    let fails = "[ -z \"$GLIBC_TUNABLES\" ]";
    let (_, out, _) = done(&[&rivals[..], &["--ignore-failure"]].concat(), &["sh", "-c", fails]);
    assert!(out.contains("with glibc's hugetlb it ends by exit 1"), "{out}");
    let (status, out, _) = done(&rivals, &["sh", "-c", "echo $LD_PRELOAD $GLIBC_TUNABLES"]);
    assert_eq!(status, Some(1), "{out}");
    assert!(out.contains("OUTPUT DIFFERS with adma"), "{out}");
}

#[test]
fn bench_that_is_interrupted_reports_what_was_complete_and_cleans_up() {
    let log = scratch("interrupted").join("log");
    // Two rounds of two runs, then one that waits.
    let script = "echo $$ >>$LOG; [ $(wc -l <$LOG) -lt 5 ] || exec sleep 1000";
    for to_group in [true, false] {
        let _ = fs::remove_file(&log);
        let mut command =
            bench(&["-w0", "--cleanup", "echo cleaned >>$LOG"], &["sh", "-c", script]);
        command.env("LOG", &log).process_group(0);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let limit = Instant::now() + Duration::from_secs(60);
        let is_asleep = || {
            let pid = lines(&log).get(4).cloned().unwrap_or_default();
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
        };
        while !is_asleep() {
            assert!(Instant::now() < limit, "{:?}", lines(&log));
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = child.id() as i32;
        // SAFETY: a signal to a child of ours, or to the group that it leads.
        unsafe { libc::kill(if to_group { -pid } else { pid }, libc::SIGINT) };
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.signal(), Some(libc::SIGINT), "{}", text(&done.stderr));
        let out = text(&done.stdout);
        assert!(out.contains(": 2 rounds of 2 runs in turn, ended early\n"), "{out}");
        assert_eq!(lines(&log)[5..], ["cleaned"]);
    }
}
