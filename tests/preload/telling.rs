//! What it tells: help, version, what the machine offers, the report.

use super::*;
#[path = "../../src/config/knobs.rs"]
mod table;
use table::KNOBS;

#[test]
fn help_goes_to_stdout_in_80_columns_and_names_every_knob() {
    let checkout = Checkout::new();
    let knobs = KNOBS.iter().filter(|knob| !knob.about.is_empty()).map(|knob| knob.name);
    let knobs: Vec<&str> = knobs.collect();
    for option in ["-h", "--help"] {
        let (out, err) = succeed(checkout.shim().arg(option));
        assert_eq!(err, "");
        for name in &knobs {
            assert!(out.contains(&format!("\n  {name} ")), "{name}: {out}");
        }
        for line in out.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

#[test]
fn version_is_the_crates() {
    let checkout = Checkout::new();
    let (out, err) = succeed(checkout.shim().arg("--version"));
    assert_eq!(out, concat!("adma ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(err, "");
}

#[test]
fn check_tells_what_the_machine_offers() {
    let checkout = Checkout::new();
    let (out, err) = succeed(checkout.shim().arg("--check"));
    assert_eq!(err, "");
    for name in ["CPUs", "DMA", "channels", "gain", "kernel", "NUMA", "huge pages", "limits"] {
        let line = format!("\n  {name} ");
        assert!(out.contains(&line), "{name}: {out}");
    }
    assert!(out.starts_with("adma "), "{out}");
    assert!(out.lines().count() <= 14, "a few lines: {out}");
    for line in out.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn check_with_one_cpu_says_what_to_do() {
    if !Path::new("/usr/bin/taskset").exists() {
        return skip("check_with_one_cpu_says_what_to_do", "no taskset");
    }
    let checkout = Checkout::new();
    let mut command = checkout.shim_at(Path::new("taskset"));
    let (out, err) =
        succeed(command.args(["-c", "0"]).arg(checkout.tree.join("preload.sh")).arg("--check"));
    assert_eq!(err, "");
    assert!(out.contains("CPUs        1 for this process"), "{out}");
    assert!(out.contains("1 by affinity"), "{out}");
    assert!(out.contains("channels    0 "), "{out}");
    assert!(out.contains("none: one CPU") && out.contains("taskset"), "{out}");
}

#[test]
fn check_where_threads_are_refused_says_so() {
    const NAME: &str = "check_where_threads_are_refused_says_so";
    // The limit does not hold for root, so root becomes somebody else first; that somebody
    // must be able to read the library.
    let folder = std::env::temp_dir().join(format!("adma-nproc-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.join("libadma.so");
    fs::copy(library(), &copy).unwrap();
    let (user, _) = succeed(plain("id").arg("-u"));
    let mut command = if user.trim() == "0" {
        let mut command = plain("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "prlimit"]);
        command
    } else {
        plain("prlimit")
    };
    command.args(["--nproc=0", "env", "ADMA_CHECK=1", "ADMA_CHANNELS=2"]);
    command.arg(format!("LD_PRELOAD={}", copy.display())).arg("true");
    let done = match command.output() {
        Ok(done) => done,
        Err(error) => {
            let _ = fs::remove_dir_all(&folder);
            return skip(NAME, &format!("setpriv or prlimit: {error}"));
        }
    };
    let _ = fs::remove_dir_all(&folder);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    if !done.status.success() {
        return skip(NAME, err.trim());
    }
    assert!(out.contains("refuses worker threads") && out.contains("RLIMIT_NPROC"), "{out}{err}");
}

#[test]
fn report_is_text_on_stderr_unless_told_otherwise() {
    let checkout = Checkout::new();
    let done = copying(&mut checkout.shim());
    let err = text(&done.stderr);
    assert!(done.status.success());
    assert_eq!(text(&done.stdout), "3000000 bytes copied\n");
    assert!(err.starts_with("adma: stats_copies (pid "), "{err}");
    assert_eq!(err.matches("adma: ").count(), 1, "{err}");
    // What the caller has asked for in the environment stays.
    let json = report_of(checkout.shim().env("ADMA_STATS", "json"));
    assert!(json["paths"]["libc"]["bytes"].is_u64());
    let done = copying(checkout.shim().env("ADMA_STATS", "off"));
    assert_eq!(text(&done.stderr), "");
}

#[test]
fn process_without_a_large_copy_stays_silent() {
    let checkout = Checkout::new();
    for program in [&["true"][..], &["sh", "-c", "true; cat /dev/null; true"], &["ls", "/"]] {
        let (_, err) = succeed(checkout.shim().args(program));
        assert_eq!(err, "", "{program:?}");
    }
}
