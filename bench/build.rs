//! Libraries to be preloaded: an empty one, which shows what preloading costs by itself, and one that
//! writes down where copies are.

use std::path::Path;

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let null = ["-nostdlib", "-x", "c", "/dev/null"];
    // It is itself what the compiler knows as memcpy.
    let trace = ["-O2", "-fPIC", "-fno-builtin", "trace.c"];
    for (library, words) in [("null.so", &null[..]), ("trace.so", &trace)] {
        let mut link = cc::Build::new().get_compiler().to_command();
        link.arg("-shared").args(words).arg("-o").arg(Path::new(&out).join(library));
        assert!(link.status().is_ok_and(|status| status.success()), "no library: {link:?}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=trace.c");
}
