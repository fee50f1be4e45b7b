//! adma-bench: gains of the shim, always as a ratio to libc in the same run.
//!
//! The process that the user starts is the driver: it runs each benchmark in a process of its own,
//! under LD_PRELOAD where the benchmark wants the shim, and collects what it prints (see `out`).

mod arms;
mod benches;
mod channels;
mod compare;
mod copies;
mod crowd;
mod driver;
mod evidence;
mod heat;
mod machine;
mod measure;
mod memory;
mod options;
mod out;
mod pieces;
mod programs;
mod rival;
mod spawn;
mod targets;
mod team;
mod turns;

use options::Options;

/// Role of a process of this program.
type Run = fn(&Options);

/// One benchmark: its name, whether the shim is loaded into it, what it is.
pub struct Bench {
    pub name: &'static str,
    pub preload: bool,
    pub about: &'static str,
    pub run: Run,
}

const fn bench(name: &'static str, preload: bool, about: &'static str, run: Run) -> Bench {
    Bench { name, preload, about, run }
}

#[rustfmt::skip]
pub const BENCHES: &[Bench] = &[
    bench("copy", true, "one copy at a time, cold and hot: libc, shim, and the ceiling", benches::copy::run),
    bench("used", true, "whole loops that write, copy and read: steady, after others, by turns", benches::used::run),
    bench("first", false, "the first ten copies of a process, what it reaches later, short processes", benches::first::run),
    bench("fresh", true, "copies into memory never touched, with all CPUs and with one", benches::fresh::run),
    bench("memset", true, "one memset at a time: cold, hot, and of memory never touched", benches::others::memset),
    bench("memcmp", true, "one memcmp at a time: cold, hot, and of ranges that differ", benches::others::memcmp),
    bench("async", true, "copies that go on while the program computes: start, overlap, window", benches::asynchronous::run),
    bench("phases", true, "where the time of a copy goes: start, work, wait; three phases of a receive; CPU time", benches::phases::run),
    bench("cache", true, "a small buffer read by columns after a large copy: what the copy evicted", benches::cache::run),
    bench("scaling", false, "4 KiB to 1 GiB, 1 to 16 CPUs, 1 to 32 threads, with the ceilings", benches::scaling::run),
    bench("load", true, "busy cores and many threads: never below libc", benches::load::run),
    bench("neighbours", true, "processes beside one that copies: how much slower and later are they?", benches::neighbours::run),
    bench("small", false, "1 byte to 4 KiB: nanoseconds per call", benches::small::run),
    bench("start", false, "start-up time of programs that make no large copy", benches::start::run),
    bench("reads", false, "reads of cached files in an unmodified python3: read, np.load and others", benches::reads::run),
    bench("programs", false, "whole runs of real programs: numpy, pandas, redis, PostgreSQL and others", benches::programs::run),
    bench("ipc", false, "messages between processes: adma, pipe, socket, shared memory; one way; by binding", benches::ipc::run),
    bench("ipc-python", false, "messages between two Python processes: adma, socket, pipe, shared memory and others", benches::ipc_python::run),
    bench("mpi", false, "unmodified Open MPI and MPICH: ping-pong, alltoall, allreduce, integer sort", benches::mpi::run),
    bench("knobs", false, "for each knob a case in which its default may be wrong, and what else gains", benches::knobs::run),
    bench("syscall", false, "prices the design rests on: futex, clone, signals, touching", benches::syscall::run),
    bench("pins", false, "the papers' translation cache, by its shape: misses and memory; transfers", benches::pins::run),
];

/// Benchmark that runs only by name: it takes half an hour and fetches packages.
pub const ONLY_BY_NAME: &str = "programs";

/// Names that are not benchmarks but use several.
pub const ACTIONS: &[(&str, &str, Run)] = &[
    ("evidence", "the papers' experiments, kept in a folder, and a page of them", evidence::run),
    ("page", "only the page, from the results that lie in the folder", evidence::page),
];

/// Processes that the benchmarks start.
const ROLES: &[(&str, Run)] = &[
    ("hog", |_| {
        loop {
            std::hint::spin_loop();
        }
    }),
    ("rival", turns::serve),
    ("fresh-rival", benches::fresh::serve),
    ("used-rival", benches::used::serve),
    ("neighbour", benches::neighbours::neighbour),
    ("short", benches::short::child),
    ("ipc-bound", benches::ipc::bound),
    ("first-ten", benches::first::first_ten),
    ("fresh-one", |options| benches::fresh::cells(options, "one")),
    ("scaling-cpus", benches::scaling::child),
    ("vec-clone", programs::vec_clone::run),
    ("knob-work", benches::knobs::work),
    ("small-time", |_| benches::small::time_child()),
];

fn main() {
    let benches = BENCHES.iter().map(|bench| (bench.name, bench.about));
    let names = benches.chain(ACTIONS.iter().map(|(name, about, _)| (*name, *about)));
    let options = Options::from_command_line(&names.collect::<Vec<_>>());
    if let Some(name) = &options.inner {
        return inner(name, &options);
    }
    if let Some([before, after]) = options.compare.as_deref() {
        return compare::run(before, after);
    }
    match ACTIONS.iter().find(|(name, ..)| options.names.iter().any(|given| given == name)) {
        Some((.., run)) => run(&options),
        None => driver::run(&options),
    }
}

fn inner(name: &str, options: &Options) {
    if !options.handler {
        drop_handlers();
    }
    let benches = BENCHES.iter().map(|bench| (bench.name, bench.run));
    match ROLES.iter().copied().chain(benches).find(|(known, _)| *known == name) {
        Some((_, run)) => run(options),
        None => std::process::exit(2),
    }
}

/// Removes Rust's handlers of SIGSEGV and SIGBUS, which detect stack overflows. Most programs have
/// none, and it matters to the shim: faults belong to the handler.
fn drop_handlers() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default action needs nothing of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
