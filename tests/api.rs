//! The explicit interface, include/adma.h: every promise, with the library linked, preloaded
//! and both, on workers and without.

mod common;

use common::traps::{fixed, offloaded};
use common::{
    Folder, executable, finish, has, library, link_flags, needs, plain, root, rows, shown,
    statistics, succeed, victim_with,
};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// Ways in which a program gets the library.
#[derive(Clone, Copy, Debug)]
enum Way {
    Linked,
    Preloaded,
    Both,
    Opened,
}

fn folder() -> String {
    library().parent().unwrap().display().to_string()
}

fn include() -> String {
    format!("-I{}", root().join("include").display())
}

fn program(way: Way) -> PathBuf {
    match way {
        Way::Linked | Way::Both => {
            let [search, library, tags, rpath] = link_flags();
            victim_with("api", &[&include(), &search, &library, &tags, &rpath])
        }
        Way::Preloaded | Way::Opened => victim_with("api", &[include().as_str(), "-DLOOKED_UP"]),
    }
}

fn api(way: Way, subject: &str) -> Command {
    let mut command = plain(program(way));
    command.arg(subject);
    match way {
        Way::Linked => &mut command,
        Way::Preloaded | Way::Both => command.env("LD_PRELOAD", library()),
        Way::Opened => command.env("LIBRARY", library()),
    };
    command
}

/// Runs a program in all ways, with every kind of engine; under `tests/run --quick` only linked.
fn shown_everywhere(subject: &str) {
    if std::env::var_os("QUICK").is_some_and(|quick| !quick.is_empty()) {
        shown(&mut api(Way::Linked, subject));
        return;
    }
    for way in [Way::Linked, Way::Preloaded, Way::Both, Way::Opened] {
        shown(&mut api(way, subject));
    }
    for channels in ["1", "3"] {
        shown(api(Way::Linked, subject).env("ADMA_CHANNELS", channels));
    }
    shown(api(Way::Linked, subject).env("ADMA_BACKEND", "libc"));
    let mut alone = plain("taskset");
    alone.args(["-c", "0"]).arg(program(Way::Linked)).arg(subject);
    shown(&mut alone);
}

rows! { shown_everywhere:
    every_call_copies_every_size_and_offset_right: "oracle";
    overlapping_ranges_keep_memmoves_meaning: "overlap";
    stale_double_and_foreign_cookies_are_einval: "cookies";
    full_table_is_eagain_and_recovers: "full";
    thousand_copies_outstanding_end_right: "thousand";
    one_of_many_threads_is_told_of_an_end: "threads";
    fork_leaves_cookies_and_copies_to_the_parent: "fork";
    signal_handler_checks_starts_and_waits: "signals";
    exit_with_copies_under_way_ends_at_once: "exit";
    word_is_written_after_the_bytes: "notif";
    poll_descriptor_tells_every_end_to_epoll: "poll";
    bad_pages_fault_as_promised: "faults";
    errno_is_left_alone: "errno";
    without_threads_everything_is_done_by_the_caller: "refused";
    worker_that_was_idle_comes_again: "idle";
}

#[test]
fn every_kind_of_store_signals_the_end() {
    for stores in ["ordinary", "stream"] {
        shown(api(Way::Linked, "notif").env("ADMA_STORES", stores));
    }
}

#[test]
fn check_copy_makes_no_system_call() {
    let folder = Folder::new("strace");
    let log = folder.join("log");
    let mut command = plain("strace");
    command.arg("-o").arg(&log).arg(program(Way::Linked)).arg("looking");
    command.env("ADMA_CHANNELS", "1");
    // On a busy machine the copy may be over before the program gets a CPU to look.
    let looked = (0..50).any(|_| {
        let (out, _) = succeed(&mut command);
        let text = std::fs::read_to_string(&log).unwrap();
        let calls: Vec<_> =
            text.lines().map(|line| line.split('(').next().unwrap().to_owned()).collect();
        let first = calls.iter().position(|call| call == "getppid").expect("the first mark");
        assert_eq!(calls.get(first + 1).map(String::as_str), Some("getppid"), "after {out}");
        out.split_whitespace().next().unwrap().parse::<u64>().unwrap() > 10
    });
    assert!(looked, "every copy was over at once");
}

/// clone is slowed down, so that other threads look while one of them tries.
#[test]
fn worker_that_cannot_be_made_is_not_relied_on() {
    let folder = Folder::new("strace");
    let log = folder.join("limited");
    let mut command = plain("strace");
    let slowly = ["-f", "-qq", "-e", "trace=clone", "-e", "inject=clone:delay_enter=3000", "-o"];
    command.args(slowly).arg(&log);
    command.arg(program(Way::Linked)).arg("limited").env("ADMA_CHANNELS", "1");
    shown(&mut command);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.lines().any(|line| line.contains("EAGAIN")), "{text}");
}

#[test]
fn asynchronous_copies_are_counted_and_verified() {
    let report = common::only_report(
        api(Way::Linked, "thousand")
            .env("ADMA_CHANNELS", "2")
            .env("ADMA_MIN_BYTES", "16K")
            .env("ADMA_VERIFY", "1"),
    );
    let engine = &report["paths"]["engine"];
    // A thousand, and a thousand more under one cookie.
    assert!(common::number(&engine["calls"]) >= 900, "{report}");
    assert!(common::number(&engine["bytes"]) > 100_000_000, "{report}");
    assert!(common::number(&report["verify"]["checked"]) >= 1800, "{report}");
    assert_eq!(common::number(&report["verify"]["mismatched"]), 0, "{report}");
}

#[test]
fn header_is_clean_c_of_every_standard_and_cxx() {
    let header = root().join("include/adma.h");
    let languages = [("gcc", "-xc", "c99 c11 gnu17"), ("g++", "-xc++", "c++98 c++11 c++20")];
    for (compiler, language, standards) in languages {
        needs!(has(compiler));
        for standard in standards.split(' ') {
            let mut command = plain(compiler);
            command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", language]);
            succeed(command.arg(format!("-std={standard}")).arg(&header));
        }
    }
    let folder = Folder::new("cxx");
    let exe = folder.join("api_cxx");
    let mut gcc = plain("g++");
    gcc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&exe).arg(include());
    gcc.arg(root().join("tests/programs/api_cxx.cc"));
    succeed(gcc.args(link_flags()));
    let (out, _) = succeed(&mut plain(&exe));
    assert!(out.contains("cookie"), "{out}");
}

/// The first one is below the threshold: it must not decide about those after it.
#[test]
fn copies_of_every_size_are_carried_though_a_small_one_is_the_first() {
    let processes = statistics(fixed(&mut api(Way::Linked, "oracle")));
    assert!(offloaded(&processes) > 0, "{processes:?}");
}

/// LD_LIBRARY_PATH does not matter: cargo's has target/debug in it.
#[test]
fn linked_program_loads_the_library_that_was_built() {
    let elsewhere = Folder::new("elsewhere");
    std::fs::write(elsewhere.join("libadma.so.0"), "no library").unwrap();
    let mut command = api(Way::Linked, "oracle");
    command.env("LD_LIBRARY_PATH", &elsewhere).env("LD_DEBUG", "libs");
    let (_, err) = succeed(&mut command);
    let loaded = format!("{}/libadma.so.0", folder());
    let inits = err.lines().filter(|line| line.contains("calling init") && line.contains("adma"));
    let inits: Vec<&str> = inits.collect();
    assert!(inits.len() == 1 && inits[0].ends_with(&loaded), "{inits:?}");
}

/// The lines of README.md that a newcomer types.
#[test]
fn example_compiles_with_the_line_of_the_readme_and_runs() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let line = readme
        .lines()
        .find_map(|line| line.strip_prefix("$ ").filter(|line| line.contains("include/example.c")))
        .expect("the line is in README.md");
    let place = Folder::new("example");
    // Where a newcomer is: in the repository, with the library built into target/release.
    let target = library().ancestors().nth(2).unwrap().to_owned();
    for (name, there) in [("include", root().join("include")), ("target", target)] {
        std::os::unix::fs::symlink(there, place.join(name)).unwrap();
    }
    let (out, _) = succeed(plain("bash").args(["-c", line]).current_dir(&place));
    assert!(out.starts_with("copied 64 MiB"), "{out}");
}

/// Returns everything under `folder`, sorted.
fn files_below(folder: &std::path::Path) -> Vec<String> {
    let (list, _) =
        succeed(plain("find").arg(".").args(["-not", "-type", "d"]).current_dir(folder));
    let mut files: Vec<_> = list.lines().map(|line| line[2..].to_owned()).collect();
    files.sort();
    files
}

#[test]
fn installation_serves_a_program_and_is_taken_away_whole() {
    let place = Folder::new("install");
    let prefix = place.join("opt");
    // Replaces the machine's own, which would write to /etc.
    let (tools, calls) = (place.join("tools"), place.join("calls"));
    std::fs::create_dir(&tools).unwrap();
    let ldconfig = format!("#!/bin/sh\necho refreshed >>{}\n", calls.display());
    executable(&tools.join("ldconfig"), &ldconfig);
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let install = || {
        let mut command = plain(root().join("install.sh"));
        command.env("PREFIX", &prefix).env("PATH", &path);
        command
    };
    succeed(&mut install());
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), "refreshed\n");
    let files = files_below(&prefix);
    let wanted = "bin/adma bin/adma-preload include/adma.h lib/libadma.so lib/libadma.so.0 \
                  lib/pkgconfig/adma.pc share/bash-completion/completions/adma \
                  share/zsh/site-functions/_adma share/man/man1/adma.1 share/man/man3/adma_copy.3 \
                  share/man/man3/adma_icopy_notif.3 share/man/man7/adma.7";
    for name in wanted.split_whitespace() {
        assert!(files.iter().any(|file| file == name), "{name} is not among {files:?}");
    }
    // The example, as a user of the package builds it.
    std::fs::copy(root().join("include/example.c"), place.join("example.c")).unwrap();
    let lib = prefix.join("lib");
    let line = "cc example.c $(pkg-config --cflags --libs adma) -o example && ./example";
    let mut build = plain("bash");
    build.args(["-c", line]).current_dir(&place);
    build.env("PKG_CONFIG_PATH", lib.join("pkgconfig")).env("LD_LIBRARY_PATH", &lib);
    let (out, _) = succeed(&mut build);
    assert!(out.starts_with("copied 64 MiB"), "{out}");
    let script = prefix.join("bin/adma-preload");
    let (out, _) = succeed(plain(&script).arg("--version"));
    assert_eq!(out.trim(), format!("adma {}", env!("CARGO_PKG_VERSION")));
    let (out, _) = succeed(plain(&script).args(["sh", "-c", "echo $LD_PRELOAD"]));
    assert_eq!(out.trim(), lib.join("libadma.so.0").display().to_string());
    let (out, _) = succeed(plain(&script).arg("--help"));
    assert!(out.starts_with("usage: adma-preload "), "{out}");
    let (out, _) = succeed(plain(prefix.join("bin/adma")).arg("--libpath"));
    assert_eq!(out.trim(), lib.join("libadma.so.0").display().to_string());

    // Below DESTDIR, which nothing inside knows of.
    let staged = Folder::new("stage");
    succeed(install().env("DESTDIR", &staged).env("PREFIX", "/usr"));
    assert_eq!(files_below(&staged.join("usr")), files);
    let pc = std::fs::read_to_string(staged.join("usr/lib/pkgconfig/adma.pc")).unwrap();
    assert!(pc.contains("prefix=/usr\n") && !pc.contains("stage"), "{pc}");
    assert_eq!(std::fs::read_to_string(&calls).unwrap(), "refreshed\n", "below DESTDIR");

    // With the library in a place where the command does not look.
    let apart = place.join("apart");
    let (folder, libdir) = (apart.join("opt"), apart.join("libraries"));
    succeed(install().env("PREFIX", &folder).env("LIBDIR", &libdir));
    let (out, _) = succeed(plain(folder.join("bin/adma")).arg("--libpath"));
    assert_eq!(out.trim(), libdir.join("libadma.so.0").display().to_string());
    succeed(install().env("PREFIX", &folder).env("LIBDIR", &libdir).arg("--uninstall"));
    assert_eq!(files_below(&apart), [""; 0]);

    // With a private umask, and in a folder that the loader does not search.
    let open = Folder::new("open");
    let line = format!("umask 077; exec {}", root().join("install.sh").display());
    succeed(plain("bash").args(["-c", &line]).env("DESTDIR", &open).env("PREFIX", "/usr"));
    let mode = std::fs::metadata(open.join("usr/lib")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755, "others can look for the library");
    let done = finish(install().env("PREFIX", "here").current_dir(&place));
    assert_eq!(done.status.code(), Some(1));
    assert!(!place.join("here").exists());

    succeed(install().arg("--uninstall"));
    assert!(files_below(&prefix).is_empty());
}
