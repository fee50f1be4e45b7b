//! `adma-bench evidence`, from a run of seconds: results are kept, compared and drawn.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn command(words: &[&str], out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adma-bench"));
    let (folder, name) = (out.parent().expect("a folder"), out.file_name().expect("a name"));
    command.args(words).args(["--lib", "none", "--out"]).arg(name).current_dir(folder);
    command.env_remove("LD_PRELOAD");
    // One CPU: no threads that spin for each other, which takes long on a busy machine.
    // SAFETY: sched_setaffinity is async-signal-safe; zeros are an empty set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        command.pre_exec(move || {
            libc::sched_setaffinity(0, size_of_val(&set), &set);
            Ok(())
        });
    }
    command
}

fn bench(words: &[&str], out: &Path) -> Output {
    let output = command(words, out).output().expect("adma-bench starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {told}");
    output
}

/// A folder for results, called as the README calls it, which is also the name of a benchmark.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder.join("evidence")
}

const BRIEF: [&str; 6] = ["--seconds", "0.01", "--sizes", "64K", "--buffers", "64M"];

fn tiny_evidence(out: &Path) -> String {
    let words = [&["evidence", "copy", "small", "--quick"][..], &BRIEF].concat();
    String::from_utf8_lossy(&bench(&words, out).stdout).into_owned()
}

/// The folders of results, by name.
fn kept(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("results").flatten();
    let folders = entries.filter(|entry| entry.path().join("figures.csv").exists());
    folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn evidence_of_a_tiny_run_has_every_row_of_the_table_of_claims() {
    let folder = scratch("evidence-tiny");
    tiny_evidence(&folder);
    let page = fs::read_to_string(folder.join("README.md")).expect("a page");
    let claims = fs::read_to_string(folder.join("claims.csv")).expect("claims");
    assert!(claims.lines().count() > 35, "{claims}");
    for line in claims.lines().skip(1) {
        let says = line.split('"').nth(5).expect("three quoted fields");
        assert!(page.replace('\\', "").contains(says), "no row: {line}");
    }
    for paper in ["ADCE", "Open-MX", "miNI", "DAMNICK"] {
        assert!(claims.contains(paper), "{paper}");
    }
    assert!(page.contains("Losses first"));
    let plots: Vec<&str> =
        page.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(plots.contains(&"copy.svg"), "the README shows it: {plots:?}");
    for plot in plots {
        let drawn = fs::read_to_string(folder.join(plot)).expect(plot);
        assert!(drawn.starts_with("<svg") && !drawn.contains("href"), "{plot}");
    }
    assert_eq!(kept(&folder).len(), 1);
}

#[test]
fn older_results_of_the_machine_are_compared_before_they_are_replaced() {
    let folder = scratch("evidence-again");
    tiny_evidence(&folder);
    let [own] = &kept(&folder)[..] else { panic!("one folder: {:?}", kept(&folder)) };
    // As if it had been measured long ago, and libc had been ten times as fast.
    let (old, new) = (folder.join("2-cpus-2001-01-01"), folder.join(own));
    fs::rename(&new, &old).expect("renamed");
    let figures = fs::read_to_string(old.join("figures.csv")).expect("figures");
    let faster = |line: &str| match line.strip_prefix("copy.hot.64K.libc_gbs,") {
        Some(_) => "copy.hot.64K.libc_gbs,100000.0,,".to_string(),
        None => line.to_string(),
    };
    let mut figures: Vec<String> = figures.lines().map(faster).collect();
    figures.push("programs.redis.whole,1.25,,".into());
    let about = fs::read_to_string(old.join("about.json")).expect("about");
    let about = about.replace("\"texts\": {", "\"texts\": { \"programs\": \"redis 1.25\",");
    fs::write(old.join("about.json"), about).expect("written");
    fs::write(old.join("figures.csv"), figures.join("\n")).expect("written");
    let told = tiny_evidence(&folder);
    assert!(told.contains("compared with") && told.contains("copy.hot.64K.libc_gbs"), "{told}");
    assert_eq!(&kept(&folder)[..], std::slice::from_ref(own), "the older ones are gone");
    let figures = fs::read_to_string(new.join("figures.csv")).expect("figures");
    assert!(figures.contains("programs.redis.whole,1.25"), "not run again, and kept: {figures}");
    assert!(!figures.contains(",100000.0"), "measured again");
}

#[test]
fn evidence_that_is_killed_keeps_the_steps_that_were_done() {
    let folder = scratch("evidence-killed");
    let words = "evidence pins programs --quick --jobs rust-clone --pairs 1000000";
    let mut command = command(&words.split(' ').collect::<Vec<_>>(), &folder);
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("adma-bench starts");
    let progress = BufReader::new(child.stderr.take().expect("piped")).lines();
    let second = progress.map_while(Result::ok).any(|line| line.contains("2 of 2: programs"));
    // SAFETY: the group of the child, which has not been waited for.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let _ = child.wait();
    assert!(second, "it ended before its second step");
    let [own] = &kept(&folder)[..] else { panic!("one folder: {:?}", kept(&folder)) };
    let figures = fs::read_to_string(folder.join(own).join("figures.csv")).expect("figures");
    assert!(figures.contains("pins.transfers.aligned,1024"), "{figures}");
    // The next run takes its figures over, and the folder goes.
    bench(&["evidence", "small", "--quick", "--seconds", "0.01"], &folder);
    let [own] = &kept(&folder)[..] else { panic!("one folder: {:?}", kept(&folder)) };
    let figures = fs::read_to_string(folder.join(own).join("figures.csv")).expect("figures");
    assert!(figures.contains("pins.transfers.aligned,1024") && figures.contains("small.1K.libc,"));
    assert!(!own.contains("unfinished"), "{own}");
}

#[test]
fn figures_of_a_benchmark_that_is_killed_lie_in_the_folder() {
    let folder = scratch("killed-figures");
    let words = "copy --seconds 1 --sizes 64K,128K,256K,512K,1M,2M,4M,8M --buffers 64M";
    let mut command = command(&words.split(' ').collect::<Vec<_>>(), &folder);
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("adma-bench starts");
    let figures = || fs::read_to_string(folder.join("figures.csv")).unwrap_or_default();
    let mut ended = None;
    while ended.is_none() && !figures().contains("\ncopy.") {
        std::thread::sleep(std::time::Duration::from_millis(20));
        ended = child.try_wait().expect("its state");
    }
    // SAFETY: the group of the child, which has not been waited for, or has ended.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let _ = child.wait();
    assert!(ended.is_none(), "it ended before a figure was there");
    assert!(figures().contains("\ncopy."), "{}", figures());
}

#[test]
fn another_library_and_tuned_glibc_are_arms() {
    let folder = scratch("against");
    // Any library can be preloaded; libc's own is there wherever this runs.
    let lib = fs::read_to_string("/proc/self/maps").expect("maps");
    let lib =
        lib.lines().find_map(|line| line.split(' ').next_back().filter(|p| p.contains("libc.so")));
    let lib = lib.expect("libc is mapped");
    let words = ["copy", "small", "start", "--against", lib, "--against", "threshold"];
    bench(&[&words[..], &BRIEF].concat(), &folder);
    let figures = fs::read_to_string(folder.join("figures.csv")).expect("figures");
    let loops = ["--jobs", "steady.copy,a_thread_on_each_CPU.copy", "--buffers", "64M"];
    let words = ["used", "fresh", "--against", "tuned", "--seconds", "0.01", "--sizes", "64K"];
    let others = scratch("against-tuned");
    bench(&[&words[..], &loops].concat(), &others);
    let figures = figures + &fs::read_to_string(others.join("figures.csv")).expect("figures");
    for key in [
        "used.steady.copy.64K.tuned_libc,",
        "fresh.all.64K.tuned_libc,",
        "fresh.one.64K.tuned_libc,",
        "copy.cold.64K.against_libc,",
        "copy.cold.64K.threshold_libc,",
        "small.1K.against,",
        "start.true.against,",
    ] {
        assert!(figures.contains(key), "{key} is not among:\n{figures}");
    }
}

#[test]
fn copies_of_real_programs_are_replayed_in_the_translation_cache() {
    let folder = scratch("pins");
    let said = bench(&["pins", "--quick", "--seconds", "0.01"], &folder).stdout;
    let said = String::from_utf8_lossy(&said);
    let figures = fs::read_to_string(folder.join("figures.csv")).expect("figures");
    for program in ["numpy-slices", "redis-1M", "mpi-collectives"] {
        let shapes = figures.matches(&format!("pins.{program}.")).count();
        let is_skipped = said.contains(&format!("{program} skipped: no "));
        assert!(shapes == 36 || is_skipped && shapes == 0, "{program}: {shapes} shapes\n{said}");
    }
}

#[test]
fn page_of_two_machines_shows_both() {
    let folder = scratch("evidence-two");
    for (cpus, value) in [("2", "2.5"), ("16", "8.25")] {
        let own = folder.join(format!("{cpus}-cpus-2026-01-01"));
        fs::create_dir_all(&own).expect("a folder");
        let about = format!(
            "{{\"date\":\"2026-01-01 00:00 UTC\",\"command\":\"x\",\"machine\":{{\"cpus\":\"{cpus}\"}},\"texts\":{{}}}}"
        );
        fs::write(own.join("about.json"), about).expect("about");
        let figures = format!("key,value,low,high\ncopy.cold.4M.row_libc,{value},,\n");
        fs::write(own.join("figures.csv"), figures).expect("figures");
    }
    bench(&["page"], &folder);
    let page = fs::read_to_string(folder.join("README.md")).expect("a page");
    for text in ["2 CPUs, 2026-01-01", "16 CPUs, 2026-01-01", "| 2.50 |", "| 8.25 |"] {
        assert!(page.contains(text), "{text}");
    }
    let [a, b] = ["2", "16"].map(|cpus| folder.join(format!("{cpus}-cpus-2026-01-01")));
    let mut compare = Command::new(env!("CARGO_BIN_EXE_adma-bench"));
    let told = compare.arg("--compare").args([a, b]).output().expect("it starts");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("1 of 1 figures differ"), "{told}");
}
