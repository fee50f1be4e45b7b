//! preload.sh, which builds the library and the command and then becomes the command: when it
//! builds, its errors, and where it finds what it has built.
//!
//! Every test has a checkout of its own, with library and command already built and a cargo that
//! compiles nothing first in PATH.

use super::checkout::{BUILD, Checkout};
use super::*;
use std::time::Duration;

/// Returns which of our files a program has loaded, by its own list of mappings.
fn loaded(command: &mut Command) -> Vec<String> {
    let (maps, _) = succeed(command.args(["cat", "/proc/self/maps"]));
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].to_owned()));
    let mut found: Vec<String> = paths.filter(|path| path.contains("libadma")).collect();
    found.dedup();
    found
}

/// Checks for status 125 and that the program does not run; returns the error.
fn refused(command: &mut Command) -> String {
    let done = finish(command);
    let err = text(&done.stderr);
    assert_eq!((done.status.code(), &*text(&done.stdout)), (Some(125), ""), "{command:?}: {err}");
    err
}

#[test]
fn library_that_is_missing_is_built_once_and_used() {
    let checkout = Checkout::new();
    succeed(checkout.shim().arg("true"));
    assert_eq!(checkout.builds(), [""; 0], "up to date");
    fs::remove_dir_all(checkout.tree.join("target")).unwrap();
    let mut command = checkout.shim();
    let (out, err) = succeed(command.args(["echo", "a b", "-q"]).current_dir("/usr"));
    assert_eq!(out, "a b -q\n");
    assert!(err.starts_with("preload.sh: building"), "{err}");
    let here = checkout.tree.canonicalize().unwrap().display().to_string();
    let words = "build --release --quiet --package adma --package adma-command";
    assert_eq!(checkout.builds(), [format!("{here}|{words}|")], "one build, in the checkout");
    assert_eq!(loaded(&mut checkout.shim()).len(), 1);
    assert_eq!(checkout.builds().len(), 1, "built again");
}

#[test]
fn library_that_is_stale_is_built_again_once() {
    let touched =
        "src/lib.rs src/backend/threads/share.rs include/adma.map build.rs Cargo.toml Cargo.lock";
    // The second cargo leaves the file's time as it is.
    for action in [BUILD, "true"] {
        let checkout = Checkout::new();
        checkout.cargo(action);
        for (number, file) in touched.split(' ').enumerate() {
            // After the build of the round before, and before now: a second build would show.
            std::thread::sleep(Duration::from_millis(20));
            let path = checkout.tree.join(file);
            fs::write(&path, fs::read(&path).unwrap()).unwrap();
            succeed(checkout.shim().arg("true"));
            succeed(checkout.shim().arg("true"));
            assert_eq!(checkout.builds().len(), number + 1, "{file}");
        }
    }
}

#[test]
fn build_prints_the_path_alone_on_stdout() {
    let checkout = Checkout::new();
    checkout.edit_source();
    checkout.cargo(&format!("echo noise; {BUILD}"));
    let (out, _) = succeed(checkout.shim().arg("--build"));
    assert_eq!(out, format!("{}\n", checkout.library().canonicalize().unwrap().display()));
    assert_eq!(checkout.builds().len(), 1);
}

#[test]
fn what_cannot_be_built_ends_with_125_and_the_program_does_not_run() {
    let checkout = Checkout::new();
    checkout.edit_source();
    checkout.cargo("echo 'error: no' >&2; exit 101");
    let err = refused(checkout.shim().args(["echo", "ran"]));
    assert!(err.contains("error: no\npreload.sh: the library could not be built"), "{err}");
    fs::remove_dir_all(checkout.tree.join("target")).unwrap();
    checkout.cargo("true");
    let err = refused(checkout.shim().args(["echo", "ran"]));
    assert!(err.lines().last().unwrap().contains("target/release/libadma.so"), "{err}");
    let mut command = checkout.shim();
    let err = refused(command.env("PATH", checkout.path_without_cargo()).arg("true"));
    assert!(err.starts_with("preload.sh: ") && err.contains("no cargo"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn stale_library_that_cannot_be_built_again_runs() {
    let checkout = Checkout::new();
    checkout.edit_source();
    let without_cargo = checkout.path_without_cargo();
    let (out, err) = succeed(checkout.shim().env("PATH", without_cargo).args(["/bin/echo", "ran"]));
    assert_eq!((&*out, &*err), ("ran\n", ""));
    if !is_root() || !found("setpriv") {
        return skip_this("needs root and setpriv to become another user");
    }
    checkout.cargo("exit 101");
    let mut command = checkout.shim_at(Path::new("setpriv"));
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(checkout.tree.join("preload.sh")).args(["echo", "ran"]).current_dir("/");
    let done = finish(command.env("RECORD", "/dev/null"));
    if text(&done.stderr).contains("Permission denied") {
        return skip_this("another user cannot reach this checkout");
    }
    assert_eq!((&*text(&done.stdout), &*text(&done.stderr)), ("ran\n", ""));
}

#[test]
fn library_is_loaded_from_any_folder_and_through_symlinks() {
    let checkout = Checkout::new();
    let expected = [checkout.library().canonicalize().unwrap().display().to_string()];
    assert_eq!(loaded(checkout.shim().current_dir("/")), expected);

    fs::create_dir(checkout.folder.join("elsewhere")).unwrap();
    let link = checkout.folder.join("elsewhere/adma run");
    symlink("../adma/preload.sh", &link).unwrap();
    let second = checkout.folder.join("second");
    symlink(&link, &second).unwrap();
    assert_eq!(loaded(checkout.shim_at(&link).current_dir("/")), expected);
    assert_eq!(loaded(checkout.shim_at(&second).current_dir("/")), expected);

    // By a relative path, and by its name in PATH.
    let mut relative = checkout.shim_at(Path::new("sh"));
    relative.args(["-c", "exec ./preload.sh \"$@\"", "sh"]).current_dir(&checkout.tree);
    assert_eq!(loaded(&mut relative), expected);
    let script = "PATH=$PATH:\"$0\"; exec preload.sh \"$@\"";
    let mut named = checkout.shim_at(Path::new("sh"));
    named.args(["-c", script]).arg(&checkout.tree).current_dir("/");
    assert_eq!(loaded(&mut named), expected);
}

#[test]
fn checkout_in_a_path_that_ld_preload_cannot_hold_still_works() {
    for name in ["with blank", "with:colon", "with\ttab", "with$LIB", "with : $ORIGIN 'all'\""] {
        let checkout = Checkout::named(name);
        let copy = checkout.folder.canonicalize().unwrap();
        let found = loaded(&mut checkout.shim());
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert!(found[0].starts_with(copy.to_str().unwrap()), "{name}: {found:?}");
        // Another build: bytes behind the end of an ELF file mean nothing to the loader.
        let mut file = fs::File::options().append(true).open(checkout.library()).unwrap();
        file.write_all(b"another build").unwrap();
        drop(file);
        assert_eq!(loaded(&mut checkout.shim()), found);
        assert_eq!(fs::read(&found[0]).unwrap(), fs::read(checkout.library()).unwrap());
        let (out, _) = succeed(checkout.shim().arg("--check"));
        assert!(out.contains("CPUs"), "{name}: {out}");
        let (out, _) = succeed(checkout.shim().arg("--build"));
        assert_eq!(out, format!("{}\n", checkout.library().display()));
    }
}

#[test]
fn folder_for_the_copy_that_is_not_ours_is_refused() {
    let checkout = Checkout::named("a b");
    let (user, _) = succeed(plain("id").arg("-u"));
    let theirs = checkout.folder.join("theirs");
    fs::create_dir(&theirs).unwrap();
    symlink(&theirs, checkout.folder.join(format!("adma-{}", user.trim()))).unwrap();
    for word in ["true", "--check"] {
        let err = refused(checkout.shim().arg(word));
        assert!(err.contains("not a folder of our own") && err.lines().count() == 1, "{err}");
    }
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
}

#[test]
fn library_in_another_target_folder_is_found() {
    let checkout = Checkout::new();
    let elsewhere = checkout.folder.join("built");
    fs::rename(checkout.tree.join("target"), &elsewhere).unwrap();
    let expected = [elsewhere.canonicalize().unwrap().join("release/libadma.so")];
    let expected = expected.map(|path| path.display().to_string());
    assert_eq!(loaded(checkout.shim().env("CARGO_TARGET_DIR", &elsewhere)), expected);
    // cargo runs in the checkout, so that is what a relative folder is relative to.
    let mut relative = checkout.shim();
    relative.env("CARGO_TARGET_DIR", "../built").current_dir("/usr");
    assert_eq!(loaded(&mut relative), expected);
    assert_eq!(checkout.builds(), [""; 0]);
}

#[test]
fn libraries_preloaded_already_are_kept_and_come_first() {
    let checkout = Checkout::new();
    let neighbour = victim_with("trap_library", &["-shared", "-fPIC", "-DNEIGHBOUR"]);
    let script = r#"echo "$LD_PRELOAD"; echo "$NEIGHBOUR"; cat /proc/self/maps"#;
    for before in ["{}", "{}:{}", "{} {}"].map(|set| set.replace("{}", neighbour.to_str().unwrap()))
    {
        let mut command = checkout.shim();
        command.args(["sh", "-c", script]).env("LD_PRELOAD", &before);
        let (out, err) = succeed(&mut command);
        let ours = checkout.library().canonicalize().unwrap();
        let first = format!("{}:{}\nis here\n", before, ours.display());
        assert!(out.starts_with(&first), "{out}");
        assert!(out.contains(&format!("{}\n", neighbour.display())), "{out}");
        assert!(out[first.len()..].contains("libadma.so\n"), "{out}");
        assert_eq!(err, "");
    }
    let mut empty = checkout.shim();
    let (out, err) =
        succeed(empty.args(["sh", "-c", "echo \"$LD_PRELOAD\""]).env("LD_PRELOAD", ""));
    let ours = checkout.library().canonicalize().unwrap();
    assert_eq!((out, err), (format!("{}\n", ours.display()), String::new()));
    checkout.edit_source();
    succeed(checkout.shim().arg("true").env("LD_PRELOAD", &neighbour));
    let builds = checkout.builds();
    assert!(builds.len() == 1 && builds[0].ends_with('|'), "not for the compiler: {builds:?}");
}

#[test]
fn preload_sh_calls_itself_by_its_name_and_lists_every_knob() {
    let checkout = Checkout::new();
    assert!(refused(&mut checkout.shim()).starts_with("usage: preload.sh"));
    let done = finish(checkout.shim().arg("no-such-program"));
    assert_eq!(text(&done.stderr), "preload.sh: no-such-program: not found\n");
    for option in ["-h", "--help"] {
        let (out, err) = succeed(checkout.shim().arg(option));
        assert_eq!(err, "");
        for knob in KNOBS.iter().filter(|knob| !knob.about.is_empty()) {
            assert!(out.contains(&format!("\n  {} ", knob.name)), "{}: {out}", knob.name);
        }
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    }
}
