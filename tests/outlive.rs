//! Calls that are left by a jump, or are under way when another thread forks, maps memory or installs a
//! filter: nothing that a call has set up for itself outlives it.

mod common;

use common::traps::survives_unreported;
use common::{plain, preloaded, shown, succeed, victim};

/// Runs a scene of `outlive` without the library, on one CPU and on all.
fn survives(scene: &[&str]) {
    if shown(plain(victim("outlive")).args(scene)).is_none() {
        return;
    }
    for cpus in ["0", "0-63"] {
        let mut command = preloaded("taskset");
        succeed(command.args(["-c", cpus]).arg(victim("outlive")).args(scene));
    }
}

#[test]
fn jump_out_of_calls_into_fresh_memory_leaves_no_descriptor() {
    survives(&["files", "1"]);
    survives(&["files", "2"]);
}

#[test]
fn memory_of_a_fill_that_was_jumped_out_of_stays_small() {
    survives(&["marks"]);
}

#[test]
fn child_of_a_fork_beside_a_fill_keeps_small_pages() {
    survives(&["child"]);
}

#[test]
fn memory_mapped_across_the_end_of_a_mapping_that_is_filled_can_be_moved() {
    survives(&["remap"]);
}

#[test]
fn jump_out_of_the_first_copies_of_a_filtered_process_leaves_nothing_taken() {
    survives_unreported("outlive filtered");
}

#[test]
fn jump_out_of_a_large_fread_leaves_cancellation_enabled() {
    survives(&["stream"]);
}

#[test]
fn thread_cancelled_in_a_large_fread_leaves_the_stream_unlocked() {
    survives(&["cancelled"]);
}

#[test]
fn filter_for_all_threads_that_forbids_exit_does_not_end_the_program() {
    survives_unreported("outlive leaving kill");
    survives_unreported("outlive leaving errno");
    survives_unreported("outlive leaving unseen");
}

#[test]
fn filter_that_kills_for_a_call_of_shared_copies_leaves_them_to_libc() {
    survives_unreported("outlive masking");
}

/// Files of src/ with state that the child of a fork keeps, and why.
const KEPT_BY_A_CHILD: [(&str, &str); 23] = [
    ("backend/asynchronous/end.rs", "functions, set at start-up"),
    ("backend/asynchronous/per_process.rs", "its page is wiped by the kernel"),
    ("backend/card/staging/originals.rs", "functions"),
    ("backend/copy_loop.rs", "the choice of a loop, a fact of the machine"),
    ("backend/kernel_calls/reads.rs", "a hint"),
    ("backend/libc.rs", "functions, and thresholds that a child keeps"),
    ("backend/signals/calls.rs", "handlers, which a child inherits"),
    ("backend/threads/share.rs", "counts, reset by threads::forget_after_fork"),
    ("backend/threads/worker.rs", "a function, set at start-up"),
    ("dispatch/engine.rs", "ticks, reset by Dispatcher::forget_after_fork"),
    ("intercept/filters.rs", "a function"),
    ("ipc/os.rs", "reset by handles::forget_after_fork"),
    ("ipc/settings.rs", "set at start-up"),
    ("ipc/tally.rs", "a function, set at start-up"),
    ("os/lookup.rs", "functions"),
    ("os/memory_policy.rs", "a fact of the machine"),
    ("os/process.rs", "claim_memory"),
    ("dispatch/look.rs", "the speed of the machine"),
    ("os/signal_mask.rs", "handlers, which a child inherits"),
    ("os/sys.rs", "filters, which a child inherits"),
    ("stats/modules.rs", "a function"),
    ("stats/report.rs", "reset by runtime.rs"),
    ("backend/signals/handler.rs", "a table of addresses"),
];

/// What becomes of something that a call has taken when a handler jumps out of the call by siglongjmp:
/// a slot, a lock, a budget, an open file, a mark on memory. No function of ours runs at a jump, so it
/// must not happen, or must not matter.
enum Jump {
    /// It does not happen: the file holds signals (`SignalsHeld`) while something is taken.
    Held,
    /// It does not happen: signals are held by the callers, in these files.
    HeldIn(&'static [&'static str]),
    /// It does not happen: only threads of ours take it, in which no handler of the program runs.
    OwnThread,
    /// Callers may not jump, by this manual page.
    Forbidden(&'static str),
    /// It does not matter, for this reason.
    Harmless(&'static str),
}
use Jump::{Forbidden, Harmless, Held, HeldIn, OwnThread};

const SHARED: Jump = HeldIn(&[
    "backend/threads/share.rs",
    "backend/threads/parallel.rs",
    "backend/kernel_calls/kernel_work.rs",
]);
const COPIES: Jump =
    HeldIn(&["backend/threads/share.rs", "backend/asynchronous/end.rs", "backend/ioat/mod.rs"]);
const START_UP: Jump = Harmless("at start-up, or in `adma check`, before handlers are there");

/// Files, or folders, in which calls take something, and what a jump leaves of it.
const AFTER_A_JUMP: [(&str, Jump); 48] = [
    ("backend/asynchronous/per_process.rs", Forbidden("adma_copy.3")),
    ("backend/card/staging.rs", Harmless("the driver's own locks stay behind as well")),
    ("backend/card/staging/originals.rs", Harmless("an address, whole when it is there")),
    ("backend/card/staging/ring.rs", Harmless("a ring is lost, as are the driver's own locks")),
    (
        "backend/engine/mod.rs",
        Harmless("memory stays registered; the driver's own locks stay as well"),
    ),
    ("backend/gpu/check.rs", START_UP),
    ("backend/gpu/mod.rs", Held),
    ("backend/gpu/registrations.rs", OwnThread),
    ("backend/gpu/service.rs", OwnThread),
    ("backend/gpu/slots.rs", HeldIn(&["backend/gpu/copy.rs", "backend/gpu/asynchronous.rs"])),
    ("backend/gpu/watch.rs", OwnThread),
    ("backend/gpu/wishes.rs", Harmless("one of 16 wishes, if within three stores: workers copy")),
    ("backend/ioat/asynchronous.rs", Held),
    ("backend/ioat/helper.rs", HeldIn(&["dispatch/engine.rs"])),
    ("backend/ioat/piece_lists.rs", HeldIn(&["backend/ioat/mod.rs"])),
    ("backend/kernel_calls/remote.rs", Held),
    ("backend/kernel_calls/streams.rs", Harmless("the C library unlocks (pthread_cleanup_push)")),
    ("backend/signals/calls.rs", Held),
    ("backend/signals/handler.rs", Held),
    ("backend/signals/mod.rs", Held),
    ("backend/threads/cookies.rs", Forbidden("adma_copy.3")),
    ("backend/threads/queue.rs", SHARED),
    ("backend/threads/watch.rs", OwnThread),
    ("backend/threads/worker.rs", Held),
    ("backend/threads/workers.rs", Harmless("a fact about the system, whole when it is there")),
    ("check.rs", START_UP),
    ("dispatch/callers.rs", Harmless("times: calls are not counted in and out")),
    ("dispatch/engine.rs", Held),
    ("ipc/", Forbidden("adma_read.3")),
    ("learn/cell.rs", Harmless("a key, whole when it is there")),
    ("os/brief_file.rs", Held),
    ("os/cpus.rs", Held),
    ("os/deferred.rs", COPIES),
    ("os/folder.rs", HeldIn(&["stats/file.rs", "runtime.rs"])),
    ("os/holders.rs", COPIES),
    ("os/huge_pages.rs", Held),
    ("os/lock.rs", Harmless("a tool; `try_take` wants a `SignalsHeld`, and `lock` a row here")),
    ("os/mapped.rs", Harmless("address space of one table, which the next call maps again")),
    ("os/mappings.rs", HeldIn(&["os/huge_pages.rs"])),
    ("os/memory_policy.rs", SHARED),
    ("os/once.rs", START_UP),
    ("os/process.rs", Harmless("a page, which the next call makes again")),
    ("os/remap.rs", Held),
    ("os/signal_mask.rs", Harmless("the mask itself: siglongjmp sets the one of sigsetjmp")),
    ("os/sync.rs", Harmless("a tool: who takes a bit has a row")),
    ("os/sys.rs", Harmless("a filter that may be there: copies are libc's from then on")),
    ("runtime.rs", Held),
    ("stats/file.rs", Held),
];

/// Words by which code takes something that it has to give back.
const TAKES: [&str; 15] = [
    ".compare_exchange",
    ".try_take(",
    ".try_lock(",
    ".lock()",
    ".swap(true",
    "take_bit(",
    "impl Drop for",
    "SYS_openat",
    "SYS_dup",
    "SYS_mmap",
    "sys::open(",
    "sys::map(",
    "MADV_HUGEPAGE",
    "setcancelstate",
    "Function::flockfile",
];

/// Whoever takes something in a module and forgets the jump learns of it here.
#[test]
fn module_whose_calls_take_something_says_what_a_jump_leaves_of_it() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    sources(&root.join("src"), &root.join("src"), &mut all);
    let code = |text: &str| -> String {
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect()
    };
    let all: Vec<_> = all.iter().map(|(name, text)| (name, code(text))).collect();
    let takes = |text: &str| TAKES.iter().any(|word| text.contains(word));
    for (name, text) in &all {
        let is_listed = AFTER_A_JUMP.iter().any(|(place, _)| name.starts_with(place));
        assert!(!takes(text) || is_listed, "{name}: what does a handler's jump leave behind?");
    }
    let holds = |file: &str| {
        let found = all.iter().find(|(name, _)| *name == file);
        found.is_some_and(|(_, text)| text.contains("SignalsHeld::"))
    };
    for (place, jump) in &AFTER_A_JUMP {
        let mut there = all.iter().filter(|(name, _)| name.starts_with(place));
        assert!(there.any(|(_, text)| takes(text)), "{place} takes nothing");
        match jump {
            Held => assert!(holds(place), "{place} does not hold signals"),
            HeldIn(files) => files.iter().for_each(|file| {
                assert!(holds(file), "{file} does not hold signals, for {place}");
            }),
            Forbidden(page) => {
                let text = std::fs::read_to_string(root.join("man").join(page)).unwrap();
                let says = ["longjmp", "must not jump"].iter().any(|word| text.contains(word));
                assert!(says, "{page} does not forbid to jump out of {place}");
            }
            OwnThread => {}
            Harmless(why) => assert!(!why.is_empty(), "{place}"),
        }
    }
}

/// Returns the Rust files below a folder, as path from there and text, without tests and models.
fn sources(folder: &std::path::Path, from: &std::path::Path, all: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, from, all);
        }
        let name = path.strip_prefix(from).unwrap().display().to_string();
        if name.ends_with(".rs")
            && !["test", "loom", "models", "fake"].iter().any(|part| name.contains(part))
        {
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
            all.push((name, text));
        }
    }
}

/// Whoever adds state to a module and forgets the fork learns of it here.
#[test]
fn module_with_state_of_the_process_resets_it_in_the_child_of_a_fork() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
    let mut all = Vec::new();
    sources(root, root, &mut all);
    assert!(all.len() > 100, "{}", all.len());
    let kinds =
        ["Atomic", "Lock<", "Mapped<", "Once", "Entry", "Queue", "Table", "Refusal", "Engine"];
    let is_state = |line: &str| {
        let line = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(super) ");
        let kind = line.strip_prefix("static ").and_then(|rest| rest.split_once(": "));
        kind.is_some_and(|(_, kind)| {
            let kind = kind.split('=').next().unwrap();
            kinds.iter().any(|word| kind.contains(word)) && !kind.trim().starts_with('&')
        })
    };
    let reason = |name: &str| KEPT_BY_A_CHILD.iter().find(|(file, _)| *file == name);
    for (name, text) in &all {
        let (has_state, forgets) = (text.lines().any(is_state), text.contains("forget_after_fork"));
        let is_listed = reason(name).is_some();
        assert!(
            !has_state || forgets || is_listed,
            "{name} has state that a child of a fork keeps"
        );
        if text.contains("pub fn forget_after_fork(") {
            let module = name.trim_end_matches(".rs").trim_end_matches("/mod");
            let module = module.rsplit('/').next().unwrap();
            let [function, method] =
                [format!("{module}::forget_after_fork"), ".forget_after_fork()".into()];
            let mut others = all.iter().filter(|(other, _)| other != name);
            let is_called = |text: &str| text.contains(&function) || text.contains(&method);
            let is_method = text.contains("forget_after_fork(&self)");
            let called =
                others.any(
                    |(_, other)| {
                        if is_method { is_called(other) } else { other.contains(&function) }
                    },
                );
            assert!(called, "no other module calls that of {name}");
        }
    }
    for (file, _) in KEPT_BY_A_CHILD {
        assert!(all.iter().any(|(name, _)| name == file), "{file} is gone");
    }
}
