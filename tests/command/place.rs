//! Where the command finds its library, and what both report about the machine.

use super::*;

#[test]
fn library_is_found_in_every_layout_of_an_installation() {
    let layouts = [
        ("bin/adma", "lib/x86_64-linux-gnu/libadma.so.0"),
        ("bin/adma", "lib/libadma.so.0"),
        ("bin/adma", "lib64/libadma.so.0"),
        ("bin/adma", "lib/libadma.so"),
        ("target/release/adma", "target/release/libadma.so"),
        ("lib/adma/adma", "lib/libadma.so.0"),
    ];
    for (binary, lib) in layouts {
        let place = scratch("layout").canonicalize().unwrap();
        for (from, to) in [(command(), place.join(binary)), (library(), place.join(lib))] {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            copy_program(from, to);
        }
        let expected = format!("{}\n", place.join(lib).display());
        let (out, err) = succeed(plain(place.join(binary)).arg("--libpath").current_dir("/"));
        assert_eq!((out, err), (expected.clone(), String::new()), "{binary}");
        // By a link from somewhere else, and by its name in PATH.
        let away = place.join("away");
        fs::create_dir(&away).unwrap();
        symlink(place.join(binary), away.join("adma")).unwrap();
        let (out, _) = succeed(plain(away.join("adma")).arg("--libpath"));
        assert_eq!(out, expected, "{binary} by a link");
        let path = format!("{}:{}", away.display(), std::env::var("PATH").unwrap());
        let mut named = plain("sh");
        named.args(["-c", "adma sh -c 'echo $LD_PRELOAD'"]).env("PATH", path);
        assert_eq!(succeed(&mut named).0, expected, "{binary} by PATH");
        fs::remove_dir_all(&place).unwrap();
    }
}

#[test]
fn command_without_its_library_says_so_and_runs_nothing() {
    let place = scratch("alone");
    copy_program(command(), place.join("adma"));
    for arguments in [&["echo", "ran"][..], &["--libpath"], &["check"]] {
        let done = finish(plain(place.join("adma")).args(arguments));
        assert_eq!(done.status.code(), Some(125), "{arguments:?}");
        assert_eq!(text(&done.stdout), "", "{arguments:?}");
        let err = text(&done.stderr);
        assert!(err.starts_with("adma: no libadma.so") && err.lines().count() == 1, "{err}");
    }
}

#[test]
fn library_that_cannot_be_loaded_does_not_check_for_ever() {
    let place = scratch("broken");
    copy_program(command(), place.join("adma"));
    fs::write(place.join("libadma.so"), "no library").unwrap();
    for arguments in [&["check"][..], &["check", "--moments=limit"]] {
        let done = finish(plain(place.join("adma")).args(arguments));
        assert_eq!(done.status.code(), Some(125), "{arguments:?}");
        assert!(text(&done.stderr).ends_with("adma: the library could not be loaded\n"));
    }
}

#[test]
fn check_lists_engines_in_words_and_json() {
    for spelling in ["check", "--check"] {
        let (out, err) = succeed(adma().arg(spelling));
        assert_eq!(err, "");
        for name in ["CPUs", "DMA", "channels", "gain", "kernel", "NUMA", "huge pages", "limits"] {
            assert!(out.contains(&format!("\n  {name} ")), "{name}: {out}");
        }
        assert!(out.starts_with("adma ") && out.lines().count() <= 14, "a few lines: {out}");
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    }
    let (out, _) = succeed(adma().args(["check", "--json"]).env("ADMA_CHANNELS", "1"));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    for key in
        ["version", "cpus", "dma", "channels", "gain", "kernel", "numa", "huge_pages", "limits"]
    {
        assert!(json[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {json}");
    }
    let gain = json["gain"].as_str().unwrap();
    assert!(gain.contains("one CPU") || json["gain_ratio"].is_f64());
    assert!(!gain.contains(" x libc "), "two sentences in one: {gain}");
}

#[test]
fn check_with_one_cpu_says_what_to_do() {
    needs!(has("taskset"));
    let (out, err) = succeed(plain("taskset").args(["-c", "0"]).arg(command()).arg("--check"));
    assert_eq!(err, "");
    for said in [
        "CPUs        1 for this process",
        "1 by affinity",
        "channels    0 ",
        "none: one CPU",
        "taskset",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
}

#[test]
fn check_where_threads_are_refused_says_so() {
    // The limit does not apply to root, so root becomes another user first, which must be able to
    // read the library.
    let folder = std::env::temp_dir().join(format!("adma-nproc-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let copy = folder.join("libadma.so");
    fs::copy(library(), &copy).unwrap();
    let mut command = if is_root() {
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
            return skip_this(&format!("setpriv or prlimit: {error}"));
        }
    };
    let _ = fs::remove_dir_all(&folder);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    if !done.status.success() {
        return skip_this(err.trim());
    }
    assert!(out.contains("refuses worker threads") && out.contains("RLIMIT_NPROC"), "{out}{err}");
}
