//! Compiles programs of `tests/programs` into the command: the moments of `adma check --moments`.

use std::env;
use std::path::Path;
use std::process::Command;

/// Each becomes a function `moment_NAME`, its former `main`.
const PROGRAMS: [&str; 7] = [
    "outlive",
    "signal_handlers",
    "trap_ends",
    "trap_forks",
    "trap_signals",
    "trap_surroundings",
    "trap_workers",
];

fn main() {
    let out = env::var("OUT_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-env-changed=CC");
    for program in PROGRAMS {
        let [object, list] = ["o", "d"].map(|kind| format!("{out}/{program}.{kind}"));
        // The linker that Rust calls is a C compiler, so there is one.
        let mut compiler = Command::new(env::var_os("CC").unwrap_or("cc".into()));
        // As tests/common compiles them: memcpy must stay a call.
        compiler.args(["-O1", "-w", "-fno-builtin", "-fPIE", "-pthread", "-MMD", "-MF", &list]);
        compiler.args([&format!("-Dmain=moment_{program}"), "-c", "-o", &object]);
        compiler.arg(format!("../tests/programs/{program}.c"));
        let done = compiler.status().unwrap_or_else(|why| panic!("{compiler:?}: {why}"));
        assert!(done.success(), "{compiler:?}: {done}");
        println!("cargo:rustc-link-arg={object}");
        for file in
            std::fs::read_to_string(&list).expect("written by the compiler").split_whitespace()
        {
            if Path::new(file).is_file() && !file.starts_with(&out) {
                println!("cargo:rerun-if-changed={file}");
            }
        }
    }
}
