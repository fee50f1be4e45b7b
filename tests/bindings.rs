//! The bindings for Python and Rust (bindings/), and the examples of all three languages with each
//! other.

mod common;

use common::{
    Folder, finish, finish_within, library, link_flags, plain, root, skip_this, succeed, text,
    victim_with,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Returns every Python from 3.9 on that this machine has, the oldest first; one of each version.
fn pythons() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = vec!["/usr/bin".into()];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    // Of pyenv, where it is installed.
    let home = |name| std::env::var_os(name).map(PathBuf::from);
    let pyenv = home("PYENV_ROOT").or_else(|| Some(home("HOME")?.join(".pyenv")));
    let installed = pyenv.and_then(|folder| std::fs::read_dir(folder.join("versions")).ok());
    folders.extend(installed.into_iter().flatten().flatten().map(|entry| entry.path().join("bin")));
    let mut found = BTreeMap::new();
    for folder in folders {
        for minor in 9..30 {
            let python = folder.join(format!("python3.{minor}"));
            if found.contains_key(&minor) || !python.exists() {
                continue;
            }
            // A shim of pyenv may stand for a version that is not installed.
            if finish(plain(&python).args(["-c", "import ctypes"])).status.success() {
                found.insert(minor, python);
            }
        }
    }
    let mut found: Vec<_> = found.into_values().collect();
    if std::env::var_os("QUICK").is_some_and(|quick| !quick.is_empty()) {
        found.truncate(1);
    }
    found
}

/// Makes a command find the library, and Python the package, as if both were installed.
fn with_library(mut command: Command) -> Command {
    command.env("LD_LIBRARY_PATH", library().parent().unwrap());
    command.env("PYTHONPATH", root().join("bindings/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Runs cargo on the crate, which is not in our workspace, with packages fetched for ours.
fn crate_command(verb: &str) -> Command {
    cargo(verb, "bindings/rust/Cargo.toml")
}

fn cargo(verb: &str, manifest: &str) -> Command {
    let mut command = plain(env!("CARGO"));
    command.args([verb, "--quiet", "--offline", "--locked", "--manifest-path"]);
    command.arg(root().join(manifest));
    if verb != "fetch" {
        command.arg("--target-dir").arg(crate_target());
    }
    command
}

fn crate_target() -> PathBuf {
    library().ancestors().nth(2).unwrap().join("bindings")
}

#[test]
fn python_keeps_its_promises_in_every_version() {
    let pythons = pythons();
    if pythons.is_empty() {
        return skip_this("no Python from 3.9 on");
    }
    let place = Folder::new("python");
    let mut with_numpy = 0;
    for (number, python) in pythons.iter().enumerate() {
        let ways: &[bool] = if number == 0 { &[false, true] } else { &[false] };
        for &preloaded in ways {
            let mut command = with_library(plain(python));
            command.args(["-W", "error"]).arg(root().join("tests/programs/bindings.py"));
            command.arg(&place).env("LIBRARY", library().with_extension("so.0"));
            command.envs([("ADMA_STATS", "json"), ("ADMA_STATS_FILE", "/dev/null")]);
            command.envs([("ADMA_MIN_BYTES", "1M"), ("ADMA_CHANNELS", "1")]);
            if preloaded {
                command.env("LD_PRELOAD", library());
            }
            let (out, err) = succeed(&mut command);
            assert!(err.contains("\nOK"), "{python:?}: {err}");
            with_numpy += usize::from(!out.contains("without numpy"));
        }
    }
    println!("{pythons:?}");
    if with_numpy == 0 {
        skip_this("no Python here has numpy");
    }
}

#[test]
fn crate_keeps_its_promises_loaded_and_preloaded() {
    let mut build = crate_command("test");
    succeed(build.args(["--no-run", "--tests"]));
    for preloaded in [false, true] {
        let mut command = crate_command("test");
        // Only what cargo runs is preloaded, not cargo.
        let run = if preloaded {
            format!("env LD_PRELOAD={}", library().display())
        } else {
            "env".into()
        };
        command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", run).arg("--tests");
        succeed(&mut with_library(command));
    }
}

/// The upload of `cargo publish` contains everything that it needs.
#[test]
fn crate_can_be_packaged() {
    let mut command = crate_command("package");
    let (files, _) = succeed(command.args(["--allow-dirty", "--list"]));
    for name in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "src/lib.rs", "examples/server.rs"] {
        assert!(files.lines().any(|file| file == name), "{name}: {files}");
    }
    succeed(crate_command("package").args(["--allow-dirty", "--no-verify"]));
}

/// The examples of one language.
struct Language {
    name: &'static str,
    server: Vec<PathBuf>,
    client: Vec<PathBuf>,
}

/// Compiles an example in C.
fn built(place: &Path, name: &str, source: &Path) -> PathBuf {
    let built = place.join(name);
    let mut command = plain("cc");
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&built).arg("-I");
    succeed(command.arg(root().join("include")).arg(source).args(link_flags()));
    built
}

fn languages(place: &Path) -> Vec<Language> {
    let [server, client] = ["server", "client"]
        .map(|name| vec![built(place, name, &root().join(format!("include/example_{name}.c")))]);
    let mut languages = vec![Language { name: "C", server, client }];
    succeed(crate_command("build").arg("--examples"));
    let [server, client] =
        ["server", "client"].map(|name| vec![crate_target().join("debug/examples").join(name)]);
    languages.push(Language { name: "Rust", server, client });
    if let Some(python) = pythons().pop() {
        let [server, client] = ["server", "client"].map(|name| {
            vec![python.clone(), root().join(format!("bindings/python/examples/{name}.py"))]
        });
        languages.push(Language { name: "Python", server, client });
    }
    languages
}

/// By one engine and by streaming, several clients at once.
#[test]
fn examples_of_every_language_serve_those_of_every_other() {
    let place = Folder::new("examples");
    let languages = languages(&place);
    for (serving, engine) in languages.iter().flat_map(|one| [(one, "auto"), (one, "shm")]) {
        let path = place.join(format!("{}-{engine}", serving.name));
        let start = |program: &[PathBuf], more: &[&str]| {
            let mut command = plain(&program[0]);
            command.args(&program[1..]).arg(&path).args(more).env("ADMA_IPC_ENGINE", engine);
            with_library(command)
        };
        let mut server = start(&serving.server, &[]).stdout(Stdio::null()).spawn().unwrap();
        while !path.exists() {
            assert!(server.try_wait().unwrap().is_none(), "{} server", serving.name);
            std::thread::sleep(Duration::from_millis(5));
        }
        let talk = |client: &Language, more: &[&str]| {
            let (said, _) = succeed(&mut start(&client.client, more));
            let names = format!("{} client of {} server: {said}", client.name, serving.name);
            assert!(said.contains("8388608 bytes and back"), "{names}");
            assert!(engine == "shm" || said.contains("proven"), "{names}");
        };
        std::thread::scope(|scope| {
            let talk = &talk;
            for client in languages.iter().chain(&languages) {
                scope.spawn(move || talk(client, &[]));
            }
        });
        talk(serving, &["end"]);
        assert!(server.wait().unwrap().success(), "{} server", serving.name);
    }
}

/// By every language, and in C by an edge triggered loop as well; proven and streamed.
#[test]
fn example_servers_serve_200_clients_at_once() {
    let place = Folder::new("crowd");
    let mut languages = languages(&place);
    let level = std::fs::read_to_string(root().join("include/example_server.c")).unwrap();
    let edge = place.join("edge.c");
    std::fs::write(&edge, level.replace(".events = EPOLLIN,", ".events = EPOLLIN | EPOLLET,"))
        .unwrap();
    assert_ne!(std::fs::read_to_string(&edge).unwrap(), level);
    let server = vec![built(&place, "edge", &edge)];
    languages.push(Language { name: "C, edge triggered,", server, client: Vec::new() });
    for (number, serving) in languages.iter().enumerate() {
        let engine = if number == 0 { "shm" } else { "auto" };
        serves(serving.name, &serving.server, &[], engine, 200);
    }
}

/// Has a server serve so many clients at once, and end.
fn serves(name: &str, program: &[PathBuf], more: &[&str], engine: &str, clients: u32) {
    let place = Folder::new("served");
    let path = place.join("socket");
    let mut server = plain("sh");
    // Clients that greet have more descriptors than those that have.
    server.args(["-c", "ulimit -n 4096; exec \"$@\"", "sh"]).args(program).arg(&path).args(more);
    server.env("ADMA_IPC_ENGINE", engine).stdout(Stdio::null());
    let mut server = with_library(server).spawn().unwrap();
    while !path.exists() {
        assert!(server.try_wait().unwrap().is_none(), "{name} server");
        std::thread::sleep(Duration::from_millis(5));
    }
    let flags = link_flags();
    let mut crowd = plain(victim_with("ipc_crowd", &flags.each_ref().map(String::as_str)));
    crowd.arg(&path).args([&clients.to_string(), "4", "end"]).env("ADMA_IPC_ENGINE", engine);
    let done = finish_within(&mut crowd, Duration::from_secs(200));
    let said = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{name} server, {engine}: {said}");
    assert!(server.wait().unwrap().success(), "{name} server");
}

#[test]
fn tokio_server_serves_40_clients_by_event_descriptors_and_by_futures() {
    let mut build = cargo("build", "tests/tokio/Cargo.toml");
    if !finish(&mut build).status.success() {
        let fetched = finish(&mut cargo("fetch", "tests/tokio/Cargo.toml"));
        assert!(!fetched.status.success(), "{build:?}");
        return skip_this(
            "tokio is not fetched: cargo fetch --manifest-path tests/tokio/Cargo.toml",
        );
    }
    let program = [crate_target().join("debug/adma-tokio-server")];
    for (way, engine) in [("events", "auto"), ("events", "shm"), ("futures", "auto")] {
        serves(way, &program, &[way], engine, 40);
    }
}
