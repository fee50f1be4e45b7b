//! Copies into fresh memory: huge pages where they are wanted, and no more memory.

mod common;

use common::traps::traced;
use common::{
    Folder, has, is_root, library, needs, plain, preloaded, shown, skip_this, succeed, text, victim,
};
use std::process::Command;

/// Runs the program and returns the number that it prints; `None`: it cannot be shown here.
fn number(command: &mut Command, arguments: &[&str]) -> Option<i64> {
    let done = shown(command.args(arguments))?;
    Some(text(&done.stdout).trim().parse().unwrap())
}

/// Returns whether this system makes huge pages where a program asks for them.
fn on_request() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let on_request = enabled.is_ok_and(|text| text.contains("[madvise]"));
    if !on_request {
        skip_this("the system does not make huge pages on request");
    }
    on_request
}

fn with(cpus: &str) -> Command {
    let mut command = preloaded("taskset");
    command.args(["-c", cpus]).arg(victim("fresh"));
    command
}

#[test]
fn fresh_memory_written_whole_gets_huge_pages() {
    needs!(on_request());
    for cpus in ["0", "0-63"] {
        // All but the ends; a machine short of memory gives some.
        for how in ["huge", "read_into"] {
            assert!(number(&mut with(cpus), &[how]).unwrap() > 0, "{how}, CPUs {cpus}");
            let off = number(with(cpus).env("ADMA_HUGE_PAGES", "0"), &[how]);
            assert_eq!(off, Some(0), "{how}, CPUs {cpus}");
        }
    }
}

#[test]
fn program_that_has_a_say_in_its_pages_keeps_it() {
    needs!(on_request());
    for how in ["asked_for_small", "asked_by_number", "told_small", "told_once", "split"] {
        assert_eq!(number(&mut with("0-63"), &[how]), Some(0), "{how}");
    }
    // What it has marked itself is all huge when written later.
    for how in ["asked_for_huge", "asked_meanwhile"] {
        let [without, huge] = [&mut plain(victim("fresh")), &mut with("0-63")]
            .map(|command| number(command, &[how]).unwrap());
        assert!(huge + 4096 >= without, "{how}: {huge} KiB, without us {without}");
    }
}

/// The file with the setting is replaced, and the kernel's own stays: it would make them.
#[test]
fn system_that_makes_huge_pages_always_or_never_is_not_asked_for_them() {
    needs!(on_request() && has("unshare"));
    if !is_root() {
        return skip_this("takes root");
    }
    for (setting, gets_some) in [
        ("always [madvise] never", true),
        ("always madvise [never]", false),
        ("[always] madvise never", false),
    ] {
        let folder = Folder::new("setting");
        std::fs::write(folder.join("enabled"), setting).unwrap();
        let script =
            "mount --bind $F/enabled /sys/kernel/mm/transparent_hugepage/enabled || exit 77
                      LD_PRELOAD=$L exec $P huge";
        let mut command = plain("unshare");
        command.args(["-m", "sh", "-c", script]);
        command.env("F", &folder).env("P", victim("fresh")).env("L", library());
        let Some(huge) = number(&mut command, &[]) else { return };
        assert_eq!(huge > 0, gets_some, "{setting}: {huge} KiB");
    }
}

/// A program that has used up its descriptors once is not left without huge pages for good.
#[test]
fn fresh_memory_gets_huge_pages_after_a_copy_without_free_descriptors() {
    needs!(on_request());
    assert!(number(&mut with("0-63"), &["exhausted"]).unwrap() > 0);
}

/// `sparse`: an allocator gives memory back and reuses parts of it.
#[test]
fn huge_pages_take_no_more_memory_than_small_ones() {
    for how in ["resident", "sparse"] {
        let Some(without) = number(&mut plain(victim("fresh")), &[how]) else { return };
        for cpus in ["0", "0-63"] {
            let resident = number(&mut with(cpus), &[how]).unwrap();
            assert!(resident < without + 1024, "{how}: {resident} KiB, without us {without}");
        }
    }
}

/// mremap, which realloc calls, needs one mapping, which a mark on a part of it would split.
#[test]
fn mapping_that_was_written_can_be_made_longer() {
    for how in ["grown", "jumped", "beside", "touched", "in_place"] {
        assert_eq!(number(&mut plain(victim("fresh")), &[how]).unwrap_or(0), 0, "{how}");
        for cpus in ["0", "0-63"] {
            let errno = number(&mut with(cpus), &[how]).unwrap_or(0);
            assert_eq!(errno, 0, "{how}, CPUs {cpus}");
        }
    }
}

/// Kernels before 6.1 cannot.
#[test]
fn memory_that_was_written_can_be_collapsed() {
    let Some(without) = number(&mut plain(victim("fresh")), &["collapsed"]) else { return };
    for cpus in ["0", "0-63"] {
        assert_eq!(number(&mut with(cpus), &["collapsed"]), Some(without), "CPUs {cpus}");
    }
}

/// Another thread may have closed the number that a copy takes, and count on it.
#[test]
fn copies_of_a_program_with_threads_take_no_descriptor_number_each() {
    needs!(has("strace") && on_request());
    succeed(plain(victim("fresh")).arg("threaded"));
    let folder = Folder::new("numbers");
    let (mut command, log) = traced("trace=openat", true, &folder);
    succeed(command.arg(victim("fresh")).arg("threaded"));
    let text = std::fs::read_to_string(&log).unwrap();
    let opened = text.lines().filter(|line| line.contains("/proc/self/maps")).count();
    // Counted and looked at; looked at again in the child, and when the number was closed.
    assert!((1..=8).contains(&opened), "{opened} times");
}

#[test]
fn mappings_do_not_grow_without_bound() {
    // Each copy has a mapping, and one that is not to be merged. Asking adds two more, as long as
    // there are fewer than 16,384.
    let few = number(&mut with("0-63"), &["mappings", "100"]).unwrap();
    let many = number(&mut with("0-63"), &["mappings", "16000"]).unwrap();
    assert!((1200..=2410).contains(&few), "{few}");
    assert!(many <= 1200 + 400, "{many}");
}
