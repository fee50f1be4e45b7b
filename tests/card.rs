//! Copies between memory and a graphics card, with a fake of CUDA's libraries (tests/programs/
//! fake_cudart.c) whose streams run apart and which keeps the rules of the real ones.

mod common;

use common::{
    finish, number, only_report, plain, preloaded, rows, shown, skip_this, succeed, text,
    victim_with,
};
use std::path::PathBuf;
use std::process::Command;

/// Returns a folder in which the loader finds the fake.
fn fake() -> PathBuf {
    let library = victim_with("fake_cudart", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    let folder = library.with_file_name("fake-cudart");
    std::fs::create_dir_all(&folder).unwrap();
    let fresh = folder.join(format!("{}.{:?}", std::process::id(), std::thread::current().id()));
    std::fs::copy(&library, &fresh).unwrap();
    std::fs::rename(&fresh, folder.join("libcuda.so.1")).unwrap();
    folder
}

/// Returns card_copies.c, linked with the fake.
fn program() -> PathBuf {
    let folder = format!("-L{}", fake().display());
    victim_with("card_copies", &[&folder, "-l:libcuda.so.1"])
}

fn with_card(mut command: Command, words: &str) -> Command {
    command.args(words.split_whitespace()).env("LD_LIBRARY_PATH", fake());
    command.env("ADMA_CHANNELS", "2").env("ADMA_MIN_BYTES", "64K").env("ADMA_OPS", "cuda");
    command
}

/// Returns how many MiB went the driver's own way, and how many by pinned memory.
fn ways(out: &str) -> (u64, u64) {
    let mut words = out.split_whitespace().map(|word| word.parse().unwrap());
    (words.next().unwrap(), words.next().unwrap())
}

/// Runs a scene, in which every copy can be staged.
fn is_staged(words: &str) {
    if let Some(done) = shown(&mut with_card(preloaded(program()), words)) {
        let (pageable, pinned) = ways(&text(&done.stdout));
        assert!(pageable == 0 && pinned > 0, "{done:?}");
    }
}

rows! { is_staged:
    copies_of_one_thread_are_right_and_their_source_may_change: "one";
    copies_of_many_threads_and_streams_are_right: "many";
    copies_keep_their_place_on_the_stream: "order";
    copies_after_a_reset_of_the_card_are_right: "reset";
    copies_of_a_child_are_passed_on_and_the_parent_goes_on: "forked";
    pinned_memory_that_is_not_used_is_given_back: "idle";
    copies_interrupted_by_signals_are_right: "interrupted";
}

/// Memory that ADMA_GOAL=cpu has registered is pinned for the driver, and not for the program.
#[test]
fn copies_of_memory_that_we_have_registered_keep_the_rules() {
    let mut command = with_card(preloaded(program()), "registered");
    let done = finish(command.env("ADMA_GOAL", "cpu"));
    match done.status.code() {
        Some(77) => skip_this("memory cannot be registered: no userfaultfd"),
        code => assert_eq!(code, Some(0), "{done:?}"),
    }
}

/// Returns the files of the driver and of CUDA's runtime; `None`: there is no card. The runtime's is named
/// by `ADMA_TEST_CUDART`, or found by the loader.
fn real() -> Option<[String; 2]> {
    if !std::path::Path::new("/dev/nvidia0").exists() {
        return None;
    }
    let known = Command::new("ldconfig").arg("-p").output().ok()?;
    let find = |name: &str| {
        let known = text(&known.stdout);
        let line = known.lines().find(|line| line.contains(name))?;
        Some(line.split_once("=> ")?.1.to_string())
    };
    let runtime = std::env::var("ADMA_TEST_CUDART").ok().or_else(|| find("libcudart.so."))?;
    Some([find("libcuda.so.1")?, runtime])
}

/// The same scenes with a card, its driver and CUDA's runtime, where there are such.
#[test]
fn every_scene_is_right_with_a_real_card() {
    let Some([driver, runtime]) = real() else {
        return skip_this("no card of NVIDIA's, or no libcudart (see ADMA_TEST_CUDART)");
    };
    let folder = std::path::Path::new(&runtime).parent().unwrap().display();
    let shim = format!("{}/tests/programs/real_cudart.c", env!("CARGO_MANIFEST_DIR"));
    let path = format!("-Wl,-rpath,{folder}");
    let program = victim_with("card_copies", &[&shim, &runtime, &driver, &path]);
    for scene in ["one", "many", "order", "passed", "reset", "forked", "interrupted"] {
        let run = |mut command: Command| {
            command.arg(scene).env("ADMA_MIN_BYTES", "64K");
            command
        };
        let (plainly, _) = succeed(&mut run(plain(&program)));
        let (out, _) = succeed(&mut run(preloaded(&program)));
        assert_eq!(out, plainly, "{scene}");
        let report = only_report(&mut run(preloaded(&program)));
        assert!(number(&report["to_card"]["engine"]["calls"]) > 0, "{scene}");
    }
}

#[test]
fn every_scene_is_right_without_the_library() {
    for scene in ["one", "many", "order", "passed", "errors", "reset", "forked", "interrupted"] {
        let (out, _) = succeed(&mut with_card(plain(program()), scene));
        assert!(ways(&out).0 > 0, "{scene}: {out}");
    }
}

/// Pinned and managed memory, other cards and contexts, captured streams, rows with gaps.
#[test]
fn copies_that_might_differ_are_passed_on() {
    let (plainly, _) = succeed(&mut with_card(plain(program()), "passed"));
    let (out, _) = succeed(&mut with_card(preloaded(program()), "passed"));
    let [(errors, plainly), (same, out)] =
        [&plainly, &out].map(|out| out.split_once('\n').unwrap());
    assert_eq!((errors, same), ("900 900 1 1", "900 900 1 1"));
    // All but the last one, of 24 MiB.
    assert_eq!(ways(out).0 + 24, ways(plainly).0, "{out} {plainly}");
}

#[test]
fn errors_are_those_of_the_program_s_own_call() {
    let (out, _) = succeed(&mut with_card(preloaded(program()), "errors"));
    let (pageable, pinned) = ways(&out);
    assert!(pageable > 0 && pinned > 0, "{out}");
}

#[test]
fn copies_below_the_threshold_or_switched_off_are_passed_on() {
    for (knob, value) in
        [("ADMA_MIN_BYTES", "1G"), ("ADMA_OPS", "memcpy"), ("ADMA_BACKEND", "libc")]
    {
        let mut command = with_card(preloaded(program()), "one");
        let (out, _) = succeed(command.env(knob, value));
        assert_eq!(ways(&out).1, 0, "{knob}={value}: {out}");
    }
    let mut command = with_card(preloaded(program()), "one");
    let (out, _) = succeed(&mut command);
    assert_eq!(ways(&out).0, 0, "{out}");
}

/// Few copies of a program do not pay for pinning memory.
#[test]
fn first_copies_of_a_program_are_passed_on() {
    let mut command = with_card(preloaded(program()), "order");
    let (out, _) = succeed(command.env_remove("ADMA_MIN_BYTES"));
    let (pageable, pinned) = ways(&out);
    assert!(pageable >= 96 && pinned > 0, "{out}");
}

#[test]
fn copies_are_a_kind_of_their_own_in_reports() {
    let mut command = with_card(preloaded(program()), "one");
    let report = only_report(&mut command);
    for kind in ["to_card", "from_card"] {
        let engine = &report[kind]["engine"];
        assert_eq!(number(&engine["calls"]), 24, "{kind}: {engine:?}");
        assert!(number(&engine["bytes"]) > 24 << 16, "{kind}: {engine:?}");
    }
}

/// A module whose libraries are visible to it alone.
#[test]
fn original_of_a_module_with_libraries_of_its_own_is_found() {
    let folder = format!("-L{}", fake().display());
    let flags = ["-shared", "-fPIC", "-DMODULE", &folder, "-l:libcuda.so.1"];
    let module = victim_with("card_copies", &flags);
    let opens = victim_with("opens_module", &[]);
    let mut command = with_card(preloaded(opens), "");
    let (out, _) = succeed(command.arg(&module).arg("one"));
    assert_eq!(ways(&out).0, 0, "{out}");
    let (out, _) =
        succeed(with_card(plain(victim_with("opens_module", &[])), "").arg(&module).arg("one"));
    assert_eq!(ways(&out).1, 0, "{out}");
}
