//! adma-bench: what the shim gains, always as a ratio to libc in the same run.
//!
//! The process that the user starts is the driver: it runs each benchmark in
//! a process of its own, under LD_PRELOAD where the benchmark wants the shim,
//! and collects what it prints (see `out`).

mod arms;
mod benches;
mod channels;
mod copies;
mod crowd;
mod driver;
mod machine;
mod measure;
mod memory;
mod mpi;
mod options;
mod out;
mod pieces;
mod programs;
mod spawn;
mod targets;
mod team;
mod trace;
mod translate;
mod turns;

use options::{Options, Role};

/// One benchmark: its name, whether the shim is loaded into it, what it is.
pub struct Bench {
    pub name: &'static str,
    pub preload: bool,
    pub about: &'static str,
    pub run: fn(&Options),
}

pub const BENCHES: &[Bench] = &[
    Bench {
        name: "copy",
        preload: true,
        about: "one copy at a time, cold and hot: libc, shim, and the ceiling",
        run: benches::copy::run,
    },
    Bench {
        name: "first",
        preload: false,
        about: "the first ten copies of a fresh process, what it reaches later, and short processes",
        run: benches::first::run,
    },
    Bench {
        name: "pauses",
        preload: true,
        about: "copies with pauses of 1, 10 and 100 ms between them",
        run: benches::pauses::run,
    },
    Bench {
        name: "fresh",
        preload: true,
        about: "copies into memory never touched, with all CPUs and with one",
        run: benches::fresh::run,
    },
    Bench {
        name: "memset",
        preload: true,
        about: "one memset at a time: cold, hot, and of memory never touched",
        run: benches::others::memset,
    },
    Bench {
        name: "memcmp",
        preload: true,
        about: "one memcmp at a time: cold, hot, and of ranges that differ",
        run: benches::others::memcmp,
    },
    Bench {
        name: "async",
        preload: true,
        about: "copies that go on while the program computes: start, overlap, window",
        run: benches::asynchronous::run,
    },
    Bench {
        name: "load",
        preload: true,
        about: "busy cores and many threads: never below libc",
        run: benches::load::run,
    },
    Bench {
        name: "small",
        preload: false,
        about: "1 byte to 4 KiB: instructions and nanoseconds per call",
        run: benches::small::run,
    },
    Bench {
        name: "start",
        preload: false,
        about: "start-up time, memory, threads and files before the first copy",
        run: benches::start::run,
    },
    Bench {
        name: "numpy",
        preload: false,
        about: "np.copyto in an unmodified python3",
        run: benches::numpy::run,
    },
    Bench {
        name: "reads",
        preload: false,
        about: "reads of cached files in an unmodified python3: read, np.load and others",
        run: benches::numpy::reads,
    },
    Bench {
        name: "programs",
        preload: false,
        about: "whole runs of real programs: numpy, pandas, redis, PostgreSQL and others",
        run: benches::programs::run,
    },
    Bench {
        name: "ipc",
        preload: false,
        about: "messages between processes: adma, pipe, socket, shared memory, Open MPI",
        run: benches::ipc::run,
    },
    Bench {
        name: "mpi",
        preload: false,
        about: "an unmodified Open MPI: ping-pong, alltoall, allreduce, by ranks",
        run: benches::mpi::run,
    },
    Bench {
        name: "loops",
        preload: false,
        about: "ways to copy a piece, on one thread and on several, no shim",
        run: benches::loops::run,
    },
    Bench {
        name: "knobs",
        preload: false,
        about: "for each knob a case in which its default may be wrong, and what else gains",
        run: benches::knobs::run,
    },
    Bench {
        name: "syscall",
        preload: false,
        about: "prices the design rests on: futex, clone, signals, touching",
        run: benches::syscall::run,
    },
    Bench {
        name: "pins",
        preload: false,
        about: "misses of the module's translation cache, by its shape",
        run: benches::pins::run,
    },
];

/// Run only when it is named: it takes half an hour and fetches packages.
pub const ONLY_BY_NAME: &str = "programs";

fn main() {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("adma-bench: {message}; try --help");
            std::process::exit(2);
        }
    };
    match &options.role {
        Role::Help => options::help(),
        Role::Driver => driver::run(&options),
        Role::Inner(name) => inner(name, &options),
    }
}

/// The processes the driver and the benchmarks start.
fn inner(name: &str, options: &Options) {
    if !options.handler {
        drop_handlers();
    }
    match name {
        "hog" => spawn::hog(),
        "short" => benches::short::child(options),
        "first-ten" => benches::first::first_ten(options),
        "fresh-one" => benches::fresh::one(options),
        "vec-clone" => programs::vec_clone::run(options),
        "knob-work" => benches::knobs::work(options),
        "small-time" => benches::small::time_child(),
        "small-count" => benches::small::count_child(options),
        _ => match BENCHES.iter().find(|bench| bench.name == name) {
            Some(bench) => (bench.run)(options),
            None => std::process::exit(2),
        },
    }
}

/// Rust's start-up handles SIGSEGV and SIGBUS, to tell of stack overflows. Most
/// programs do not, and it matters to the shim: faults belong to the handler.
fn drop_handlers() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default action needs nothing of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
