//! When the library is built, and what happens where it cannot be.

use super::*;

#[test]
fn library_that_is_up_to_date_is_not_built() {
    let checkout = Checkout::new();
    succeed(checkout.shim().arg("true"));
    assert_eq!(checkout.builds(), [""; 0]);
}

#[test]
fn library_that_is_missing_is_built_once_and_used() {
    let checkout = Checkout::new();
    fs::remove_dir_all(checkout.tree.join("target")).unwrap();
    let mut command = checkout.shim();
    let (out, err) = succeed(command.args(["echo", "ran"]).current_dir("/usr"));
    assert_eq!(out, "ran\n");
    assert!(err.starts_with("preload.sh: building"), "{err}");
    let here = checkout.tree.canonicalize().unwrap();
    assert_eq!(
        checkout.builds(),
        [format!(
            "{}|build --release --quiet --package adma --package adma-command|",
            here.display()
        )],
        "one release build, in the checkout"
    );
    assert_eq!(loaded(&mut checkout.shim()).len(), 1);
    assert_eq!(checkout.builds().len(), 1, "built again");
}

#[test]
fn library_that_is_stale_is_built_again() {
    let checkout = Checkout::new();
    let touched = [
        "src/lib.rs",
        "src/backend/threads/share.rs",
        "include/adma.map",
        "build.rs",
        "Cargo.toml",
        "Cargo.lock",
    ];
    for (number, file) in touched.iter().enumerate() {
        // Behind the build of the round before, before now: a second build would show.
        std::thread::sleep(Duration::from_millis(20));
        let path = checkout.tree.join(file);
        fs::write(&path, fs::read(&path).unwrap()).unwrap();
        succeed(checkout.shim().arg("true"));
        succeed(checkout.shim().arg("true"));
        assert_eq!(checkout.builds().len(), number + 1, "{file}");
    }
}

#[test]
fn build_that_leaves_the_file_alone_is_not_repeated() {
    let checkout = Checkout::new();
    checkout.cargo("true");
    std::thread::sleep(Duration::from_millis(20));
    let path = checkout.tree.join("src/lib.rs");
    fs::write(&path, fs::read(&path).unwrap()).unwrap();
    succeed(checkout.shim().arg("true"));
    succeed(checkout.shim().arg("true"));
    assert_eq!(checkout.builds().len(), 1);
}

#[test]
fn libraries_preloaded_already_are_not_for_the_compiler() {
    let checkout = Checkout::new();
    checkout.edit_source();
    let neighbour = victim_with("stats_neighbour", &["-shared", "-fPIC"]);
    succeed(checkout.shim().arg("true").env("LD_PRELOAD", &neighbour));
    let builds = checkout.builds();
    assert!(builds.len() == 1 && builds[0].ends_with('|'), "{builds:?}");
}

#[test]
fn build_prints_the_path_alone_on_stdout() {
    let checkout = Checkout::new();
    checkout.edit_source();
    checkout.cargo(&format!("echo noise; {BUILD}"));
    let (out, _) = succeed(checkout.shim().arg("--build"));
    let expected = checkout.library().canonicalize().unwrap();
    assert_eq!(out, format!("{}\n", expected.display()));
    assert_eq!(checkout.builds().len(), 1);
}

#[test]
fn build_that_fails_ends_with_125_and_the_program_does_not_run() {
    let checkout = Checkout::new();
    checkout.edit_source();
    checkout.cargo("echo 'error: no' >&2; exit 101");
    let done = finish(checkout.shim().args(["echo", "ran"]));
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(125), "{err}");
    assert_eq!(text(&done.stdout), "");
    assert!(err.contains("error: no\npreload.sh: the library could not be built"), "{err}");
}

#[test]
fn build_that_brings_no_library_ends_with_125() {
    let checkout = Checkout::new();
    fs::remove_dir_all(checkout.tree.join("target")).unwrap();
    checkout.cargo("true");
    let done = finish(checkout.shim().args(["echo", "ran"]));
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(125), "{err}");
    assert_eq!(text(&done.stdout), "");
    assert!(err.lines().last().unwrap().contains("target/release/libadma.so"), "{err}");
}

#[test]
fn without_cargo_a_missing_library_is_said_in_one_line() {
    let checkout = Checkout::new();
    fs::remove_dir_all(checkout.tree.join("target")).unwrap();
    let mut command = checkout.shim();
    command.env("PATH", checkout.path_without_cargo()).arg("true");
    refuses(&mut command, 125, "no cargo");
}

#[test]
fn without_cargo_a_stale_library_runs() {
    let checkout = Checkout::new();
    checkout.edit_source();
    let mut command = checkout.shim();
    let done = copying(command.env("PATH", checkout.path_without_cargo()));
    let err = text(&done.stderr);
    assert!(done.status.success(), "{err}");
    assert!(err.starts_with("adma: stats_copies"), "{err}");
}

#[test]
fn stale_library_that_may_not_be_replaced_runs() {
    const NAME: &str = "stale_library_that_may_not_be_replaced_runs";
    let (user, _) = succeed(plain("id").arg("-u"));
    if user.trim() != "0" || !Path::new("/usr/bin/setpriv").exists() {
        return skip(NAME, "needs root and setpriv to become another user");
    }
    let checkout = Checkout::new();
    checkout.edit_source();
    checkout.cargo("exit 101");
    let script = checkout.tree.join("preload.sh");
    let mut command = checkout.shim_at(Path::new("setpriv"));
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(&script).args(["echo", "ran"]).current_dir("/").env("RECORD", "/dev/null");
    let done = finish(&mut command);
    if text(&done.stderr).contains("Permission denied") {
        return skip(NAME, "another user cannot reach this checkout");
    }
    assert_eq!(text(&done.stdout), "ran\n", "{}", text(&done.stderr));
    assert_eq!(text(&done.stderr), "");
}
