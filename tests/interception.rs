//! Functions that reach the library, the cost of short copies, and that each function keeps its own
//! meaning: return value, units, order of arguments, checks.

mod common;

use common::{
    finish, has, is_x86, library, needs, number, only_report, plain, preloaded, statistics,
    succeed, victim,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Functions that copy.
const COPIES: &str = "memcpy memmove mempcpy __mempcpy bcopy wmemcpy wmemmove wmempcpy \
    __memcpy_chk __memmove_chk __mempcpy_chk";

/// Functions that fill or compare; see tests/oracle.rs.
const OTHERS: &str = "memset __memset_chk bzero wmemset memcmp bcmp wmemcmp";

/// Functions that read files and are given the number of bytes; see tests/reads.rs.
const READS: &str = "read __read pread pread64 __pread64 __read_chk __pread_chk __pread64_chk";

/// Functions whose bytes stand in a list or have to be multiplied first; those that set what a signal
/// does; those that are passed on after workers have left, or a graphics card has let go of memory.
const PASSED_ON: &str = "readv preadv preadv64 preadv2 preadv64v2 fread fread_unlocked __fread_chk \
    __fread_unlocked_chk process_vm_readv process_vm_writev \
    sigaction __sigaction signal ssignal bsd_signal sysv_signal __sysv_signal sigset sigignore \
    siginterrupt _Exit _exit abort capset initgroups pthread_create setegid seteuid setgid setgroups \
    setns setregid setresgid setresuid setreuid setuid unshare cuMemHostRegister \
    cuMemHostRegister_v2 cuMemHostUnregister cudaMemcpy cudaMemcpy_ptds cudaMemcpyAsync \
    cudaMemcpyAsync_ptsz cudaMemcpy2D cudaMemcpy2D_ptds cudaMemcpy2DAsync cudaMemcpy2DAsync_ptsz \
    cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz \
    cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz madvise mprotect mremap pkey_mprotect prctl syscall";

fn is_intercepted(name: &str) -> bool {
    [COPIES, OTHERS].iter().any(|names| names.split(' ').any(|other| other == name))
}

/// Returns the names as the victims know them: those above, and memcpy's older version.
fn called() -> impl Iterator<Item = &'static str> {
    let older = cfg!(target_arch = "x86_64").then_some("memcpy@GLIBC_2.2.5");
    COPIES.split(' ').chain(older)
}

const SIGABRT: i32 = 6;
const THRESHOLD: &str = "65536";
const LARGE: u64 = 300_000;

/// Returns a victim under a fixed threshold, with channels even on a small machine.
fn offloading(name: &str, arguments: &[&str]) -> Command {
    let mut command = preloaded(victim(name));
    command.args(arguments).env("ADMA_MIN_BYTES", THRESHOLD).env("ADMA_CHANNELS", "3");
    command
}

/// Returns names and addresses of the library's exports.
fn exports() -> BTreeMap<String, u64> {
    let (listing, _) = succeed(plain("nm").args(["-D", "--defined-only"]).arg(library()));
    listing
        .lines()
        .map(|line| {
            let mut fields = line.split_whitespace();
            let address = u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
            (fields.nth(1).unwrap().to_owned(), address)
        })
        .collect()
}

#[test]
fn library_exports_what_it_intercepts_and_its_own_interface_only() {
    let exports = exports();
    let exported: BTreeSet<&str> =
        exports.keys().map(String::as_str).filter(|name| !name.starts_with("adma_")).collect();
    let wanted = [COPIES, OTHERS, READS, PASSED_ON].join(" ");
    assert_eq!(exported, wanted.split(' ').collect());
}

/// A library without the note costs a program its shadow stack.
#[test]
fn library_carries_the_note_for_shadow_stacks() {
    needs!(is_x86());
    let (notes, _) = succeed(plain("readelf").arg("-n").arg(library()));
    assert!(notes.contains("SHSTK"), "{notes}");
}

#[test]
fn short_copy_leaves_after_three_instructions() {
    needs!(is_x86());
    let exports = exports();
    for name in [COPIES, OTHERS, READS].join(" ").split(' ') {
        let address = exports[name];
        let (listing, _) = succeed(
            plain("objdump")
                .args(["-d", "--no-show-raw-insn"])
                .arg(format!("--start-address={address}"))
                .arg(format!("--stop-address={}", address + 32))
                .arg(library()),
        );
        let mnemonics: Vec<_> = listing
            .lines()
            .filter_map(|line| line.split_once(":\t")?.1.split_whitespace().next())
            // binutils before 2.37 write jmpq
            .map(|mnemonic| mnemonic.trim_end_matches('q'))
            .take(3)
            .collect();
        assert_eq!(mnemonics, ["cmp", "jae", "jmp"], "{name}: {listing}");
    }
}

/// Call graph by the disassembly and the relocations.
struct CallGraph {
    /// Functions by address: name, and the addresses of functions and slots it refers to.
    functions: BTreeMap<u64, (String, Vec<u64>)>,
    /// Slots that the dynamic linker fills: with an imported function, or one of ours.
    slots: BTreeMap<u64, Slot>,
}

enum Slot {
    Import(String),
    Own(u64),
}

impl CallGraph {
    fn of_library() -> Self {
        let (code, _) =
            succeed(plain("objdump").args(["-dC", "--no-show-raw-insn"]).arg(library()));
        let (relocations, _) = succeed(plain("objdump").arg("-R").arg(library()));
        let mut functions = BTreeMap::new();
        let mut current = 0;
        for line in code.lines() {
            if let Some((address, name)) = line.split_once(" <")
                && let Some(name) = name.strip_suffix(">:")
            {
                current = hexadecimal(address).unwrap();
                functions.insert(current, (name.to_owned(), Vec::new()));
            } else if let Some((_, instruction)) = line.split_once(":\t")
                && let Some(function) = functions.get_mut(&current)
            {
                function.1.extend(referred_to(instruction));
            }
        }
        let slots = relocations.lines().filter_map(slot).collect();
        Self { functions, slots }
    }

    /// Returns every imported function that can be called from functions whose name contains
    /// `root`, with its caller; but not by way of `not_through`.
    fn imports_within_reach(&self, root: &str, not_through: &[&str]) -> BTreeMap<String, String> {
        let is_root = |entry: &(&u64, &(String, Vec<u64>))| entry.1.0.contains(root);
        let mut reached: Vec<u64> =
            self.functions.iter().filter(is_root).map(|(address, _)| *address).collect();
        assert!(!reached.is_empty(), "no function is called {root}");
        let mut imports = BTreeMap::new();
        let mut next = 0;
        while next < reached.len() {
            let (name, references) = &self.functions[&reached[next]];
            for address in references {
                let function = match self.slots.get(address) {
                    Some(Slot::Import(import)) => {
                        imports.insert(import.clone(), name.clone());
                        continue;
                    }
                    Some(Slot::Own(function)) => function,
                    None => address,
                };
                match self.functions.get(function) {
                    Some((callee, _)) if not_through.iter().any(|part| callee.contains(part)) => {}
                    Some((callee, _)) if callee.ends_with("@plt") => {
                        imports.insert(callee.trim_end_matches("@plt").to_owned(), name.clone());
                    }
                    Some((callee, _)) if is_intercepted(callee) => {
                        imports.insert(callee.clone(), name.clone());
                    }
                    Some(_) if !reached.contains(function) => reached.push(*function),
                    _ => {}
                }
            }
            next += 1;
        }
        imports
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// `call 1234 <name>` and `call *0x56(%rip) # 1234 <name>` both refer to 1234.
fn referred_to(instruction: &str) -> Option<u64> {
    let operands = match instruction.split_once("# ") {
        Some((_, target)) => target,
        None => instruction.split_once(char::is_whitespace)?.1.trim(),
    };
    hexadecimal(operands.split_once(" <")?.0)
}

/// Parses `0000000000074778 R_X86_64_GLOB_DAT  memcpy@@Base`, or for a function of ours
/// `0000000000074760 R_X86_64_RELATIVE  *ABS*+0x24090`.
fn slot(line: &str) -> Option<(u64, Slot)> {
    let mut fields = line.split_whitespace();
    let address = hexadecimal(fields.next()?)?;
    let value = fields.nth(1)?;
    let slot = match value.strip_prefix("*ABS*+0x") {
        Some(own) => Slot::Own(hexadecimal(own)?),
        None => Slot::Import(value.split('@').next()?.to_owned()),
    };
    Some((address, slot))
}

/// Entries of the library. `RARE` is no part of a copy: a panic ends the process; reads of streams by
/// constructors of other libraries find libc's fread by a walk; `adma_check` and its like take the
/// cookies of messages too, which may allocate.
const ENTRIES: [&str; 4] = [
    "adma::api::",
    "adma::intercept::slow::",
    "adma::intercept::remote::",
    "adma::intercept::reads::",
];
const RARE: [&str; 3] = ["panic", "adma::backend::libc::early_", "adma::ipc::"];
const HARMLESS: [&str; 4] =
    ["__chk_fail", "__libc_single_threaded", "clock_gettime", "__errno_location"];

/// Functions of engines, which are called through tables that the call graph does not follow: in a
/// copy, and by workers too.
const ENGINE_COPIES: [&str; 7] = [
    "::Engine>::start",
    "::Engine>::takes",
    "::Engine>::copy",
    "::Engine>::begin",
    "::Engine>::is_over",
    "::Engine>::is_asked_for",
    "::Engine>::left_over",
];

/// Checks that `roots` call only `harmless` functions, except in the start of the engine.
fn expect_calls(roots: &[&str], not_through: &[&str], harmless: &[&str]) {
    let graph = CallGraph::of_library();
    for root in roots {
        let mut imports = graph.imports_within_reach(root, not_through);
        let copies_at_start = |name: &str| ENTRIES.contains(root) && is_intercepted(name);
        imports.retain(|name, _| !harmless.contains(&name.as_str()) && !copies_at_start(name));
        assert!(imports.is_empty(), "from {root}: {imports:?}");
    }
}

/// Compilers turn loops into calls of memcpy. The engine's start may copy a path or two: meanwhile
/// every copy goes to libc, see `first_copy_with_everything_intercepted_starts_the_engine`.
#[test]
fn way_of_a_copy_never_comes_back_to_memcpy() {
    needs!(is_x86());
    let not_through = [RARE[0], RARE[1], RARE[2], "adma::dispatch::Dispatcher>::start"];
    let graph = CallGraph::of_library();
    let roots = ENTRIES.into_iter().chain(ENGINE_COPIES.into_iter().skip(1));
    for root in roots.chain(["adma::backend::libc::bootstrap_"]) {
        let mut imports = graph.imports_within_reach(root, &not_through);
        imports.retain(|name, _| is_intercepted(name));
        assert!(imports.is_empty(), "from {root}: {imports:?}");
    }
}

/// The program may hold its allocator's lock, or be inside a signal handler: no allocation, no
/// dlsym, no blocking lock, also when the engine is started. errno is used by reads only, which
/// return it like the kernel.
#[test]
fn way_of_a_copy_needs_next_to_nothing_of_libc() {
    needs!(is_x86());
    let (copies, reads) = ENTRIES.split_at(3);
    expect_calls(copies, &RARE, &HARMLESS[..3]);
    expect_calls(reads, &RARE, &HARMLESS);
    expect_calls(&ENGINE_COPIES, &RARE, &HARMLESS[..3]);
}

/// A worker has no thread-local storage of its own, which any function of libc may use; the copy
/// itself goes through a pointer. All roots but the first are called through pointers as well.
#[test]
fn worker_calls_nothing_of_libc() {
    needs!(is_x86());
    let roots = [
        "adma::backend::threads::worker::work",
        "adma::backend::asynchronous::end::attend",
        "adma::runtime::note_end",
        "adma::backend::kernel_calls::remote::Transfer::share::{{closure}}",
        "adma::backend::kernel_calls::reads::FileRead::share_cached::{{closure}}",
        "adma::backend::threads::parallel::run::{{closure}}",
        "adma::ipc::link::Link>::copy_with_workers::{{closure}}",
    ];
    expect_calls(&roots, &RARE[..1], &HARMLESS[1..2]);
    expect_calls(&ENGINE_COPIES[4..], &RARE[..1], &HARMLESS[1..2]);
}

/// Every program pays for the pages that start-up touches: its functions lie together, and beside
/// the entries, so that one or two page faults bring them all.
#[test]
fn code_that_every_program_runs_lies_together() {
    let functions = CallGraph::of_library().functions;
    let address = |wanted: &str| {
        let found = functions.iter().find(|(_, (name, _))| name == wanted);
        *found.unwrap_or_else(|| panic!("no function is called {wanted}")).0
    };
    let names = ["start", "end"].map(|name| format!("adma::runtime::{name}"));
    let at = [address("memcpy"), address("adma::os::lookup::look_into")];
    let at = [at, names.map(|name| address(&name))].concat();
    let extent = at.iter().max().unwrap() - at.iter().min().unwrap();
    let most = if cfg!(target_arch = "x86_64") { 0x4000 } else { 0x5000 };
    assert!(extent < most, "{extent:#x} bytes apart: {at:x?}");
}

#[test]
fn first_copy_with_everything_intercepted_starts_the_engine() {
    let mut command = offloading("functions", &["calls", "memcpy", "3", "100"]);
    let report = only_report(command.env("ADMA_MIN_BYTES", "1"));
    assert_eq!(report["paths"]["engine"]["calls"], 3, "{report}");
}

/// Returns the instructions that callgrind counts in `count` short calls of a function.
fn instructions(mut valgrind: Command, name: &str, count: &str) -> i64 {
    valgrind
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(victim("functions"))
        .args(["calls", name, count, "32"]);
    let (_, report) = succeed(&mut valgrind);
    let collected = report.lines().find_map(|line| line.split_once("Collected :"));
    collected.unwrap_or_else(|| panic!("{report}")).1.trim().parse().unwrap()
}

#[test]
fn short_copy_costs_at_most_three_instructions_more() {
    needs!(has("valgrind"));
    // Not the old memcpy: glibc gives it its plainest code, we go on to the best memmove.
    for name in COPIES.split(' ') {
        let ten_thousand_calls = |valgrind: fn() -> Command| {
            instructions(valgrind(), name, "11000") - instructions(valgrind(), name, "1000")
        };
        let with = ten_thousand_calls(|| preloaded("valgrind"));
        let without = ten_thousand_calls(|| plain("valgrind"));
        // Start-up differs by a few instructions from run to run. Some of ours are shorter than
        // libc's, which keep a frame.
        let more = (with - without) as f64 / 10_000.0;
        assert!(more < 3.01, "{name}: {more} instructions more per call");
    }
}

/// ADMA_MIN_BYTES means bytes, also for wide characters; ADMA_OPS the functions that it names.
#[test]
fn every_function_from_the_threshold_on_is_carried_and_below_it_is_not() {
    for name in called() {
        let own = name.trim_start_matches('_').split('@').next().unwrap();
        // Threshold, size, and functions. Four bytes less is one unit less for wide functions as well.
        for (min, size, ops) in [
            (65536, 65532, "all"),
            (65536, 65536, "all"),
            (3001, 3000, "all"),
            (3001, 3004, own),
            (1_000_000, 999_996, "all"),
            (1_000_000, 1_000_000, "memmove"),
            (65536, LARGE, "memmove,wmemcpy"),
            (u64::MAX, LARGE, "all"),
        ] {
            let words = ["calls", name, "7", &size.to_string()];
            let mut command = offloading("functions", &words);
            let reports =
                statistics(command.env("ADMA_MIN_BYTES", min.to_string()).env("ADMA_OPS", ops));
            let sum =
                |key: &str| reports.iter().map(|report| number(report.pointer(key).unwrap())).sum();
            let found: [u64; 3] = ["engine/calls", "engine/bytes", "libc/calls"]
                .map(|key| sum(&format!("/paths/{key}")));
            let named = ops == "all" || ops.split(',').any(|op| op == own);
            let wanted = if size >= min && named { [7, 7 * size, 0] } else { [0; 3] };
            assert_eq!(found, wanted, "{name} of {size} from {min} on, {ops}: {reports:?}");
        }
    }
}

/// Returns the abort of a checked copy, as the parent sees it: signal and message.
fn abort(command: &mut Command) -> (Option<i32>, String) {
    let done = finish(command);
    (done.status.signal(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn checked_copy_with_too_little_room_aborts_as_without_us() {
    for name in ["__memcpy_chk", "__memmove_chk", "__mempcpy_chk"] {
        for (size, room) in [("100", "99"), ("100", "0"), ("300000", "299999"), ("300000", "64")] {
            let words = ["checked", name, size, room];
            let without = abort(plain(victim("functions")).args(words));
            assert_eq!(without.0, Some(SIGABRT), "{name}: {without:?}");
            assert!(without.1.contains("buffer overflow detected"), "{name}: {without:?}");
            let with = abort(&mut offloading("functions", &words));
            assert_eq!(with, without, "{name} of {size} bytes into {room}");
            // Enough room, and the value that compilers pass when it is unknown.
            for room in [size, "0xffffffffffffffff"] {
                succeed(&mut offloading("functions", &["checked", name, size, room]));
            }
        }
    }
}

/// Wide characters overlap as others do only at whole distances.
#[test]
fn overlapping_copy_either_way_keeps_memmoves_result_on_the_cpu() {
    // glibc's memcpy is its memmove on x86-64 alone.
    let copies_overlapping =
        |name: &&str| cfg!(target_arch = "x86_64") || name.contains("move") || *name == "bcopy";
    for name in called().filter(copies_overlapping) {
        for distance in [4, 8, 64, 4096, 40_960, LARGE - 4, LARGE] {
            let arguments = ["overlap", name, &distance.to_string(), &LARGE.to_string()];
            succeed(plain(victim("functions")).args(arguments));
            let report = only_report(&mut offloading("functions", &arguments));
            // Adjacent ranges do not overlap.
            let (overlapping, carried) = if distance < LARGE { (2, 0) } else { (0, 2) };
            let found = (&report["fallbacks"]["overlap"], &report["paths"]["engine"]["calls"]);
            let wanted = (&overlapping.into(), &carried.into());
            assert_eq!(found, wanted, "{name} by {distance}: {report}");
        }
        for distance in [1, 3, 63, 65, 4095, 4097, LARGE - 1] {
            let words = ["overlap", name, &distance.to_string(), &LARGE.to_string()];
            succeed(&mut offloading("functions", &words));
        }
    }
}

#[test]
fn copy_of_nothing_onto_itself_or_of_a_length_that_wraps_is_as_glibcs() {
    for what in ["nothing", "wrap"] {
        succeed(&mut offloading("functions", &[what]));
        succeed(offloading("functions", &[what]).env("ADMA_MIN_BYTES", "1"));
    }
    let reports = statistics(&mut offloading("functions", &["itself"]));
    let engine = |report: &Value| report["paths"]["engine"]["calls"].clone();
    assert!(reports.iter().all(|report| engine(report) == 0), "{reports:?}");
}

#[test]
fn length_beyond_all_memory_dies_as_without_us() {
    let lengths =
        ["0xffffffffffffffff", "0xffffffffffffefff", "0x8000000000000000", "0x400000000000"];
    for name in called() {
        for length in lengths {
            let words = ["beyond", name, length];
            let without = finish(plain(victim("functions")).args(words));
            let with = finish(&mut offloading("functions", &words));
            assert_eq!(with.status, without.status, "{name} of {length}: {with:?}");
        }
    }
}
