//! Where preload.sh and the library lie, and what else is preloaded.

use super::*;

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
        let done = copying(checkout.shim().args(["-m", "64K"]));
        let err = text(&done.stderr);
        assert!(done.status.success() && err.contains("by the engine"), "{name}: {err}");
        let (out, _) = succeed(checkout.shim().arg("--check"));
        assert!(out.contains("CPUs"), "{name}: {out}");
        let (out, _) = succeed(checkout.shim().arg("--build"));
        assert_eq!(out, format!("{}\n", checkout.library().display()));
    }
}

#[test]
fn copy_of_the_library_for_odd_paths_follows_the_library() {
    let checkout = Checkout::named("a b");
    let first = loaded(&mut checkout.shim());
    let copy = Path::new(&first[0]);
    assert_eq!(fs::read(copy).unwrap(), fs::read(checkout.library()).unwrap());
    // Another build: bytes behind the end of an ELF file mean nothing to the loader.
    let mut file = fs::File::options().append(true).open(checkout.library()).unwrap();
    file.write_all(b"another build").unwrap();
    drop(file);
    assert_eq!(loaded(&mut checkout.shim()), first);
    assert_eq!(fs::read(copy).unwrap(), fs::read(checkout.library()).unwrap());
}

#[test]
fn folder_for_the_copy_that_is_not_ours_is_refused() {
    let checkout = Checkout::named("a b");
    let (user, _) = succeed(plain("id").arg("-u"));
    let theirs = checkout.folder.join("theirs");
    fs::create_dir(&theirs).unwrap();
    symlink(&theirs, checkout.folder.join(format!("adma-{}", user.trim()))).unwrap();
    refuses(checkout.shim().arg("true"), 125, "not a folder of our own");
    refuses(checkout.shim().arg("--check"), 125, "not a folder of our own");
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
    let neighbour = victim_with("stats_neighbour", &["-shared", "-fPIC"]);
    let script = r#"echo "$LD_PRELOAD"; echo "$NEIGHBOUR"; cat /proc/self/maps"#;
    for (before, shown) in [("{}", "{}"), ("{}:{}", "{}:{}"), ("{} {}", "{} {}")] {
        let fill = |pattern: &str| pattern.replace("{}", neighbour.to_str().unwrap());
        let mut command = checkout.shim();
        command.args(["sh", "-c", script]).env("LD_PRELOAD", fill(before));
        let (out, err) = succeed(&mut command);
        let ours = checkout.library().canonicalize().unwrap();
        let first = format!("{}:{}\nis here\n", fill(shown), ours.display());
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
}

#[test]
fn shim_within_the_shim_reports_once() {
    let checkout = Checkout::new();
    let done = copying(checkout.shim().arg(checkout.tree.join("preload.sh")));
    let err = text(&done.stderr);
    assert!(done.status.success());
    assert_eq!(err.matches("adma: stats_copies").count(), 1, "{err}");
    let done = copying(checkout.shim().arg("-q").arg(checkout.tree.join("preload.sh")));
    assert_eq!(text(&done.stderr), "");
}
