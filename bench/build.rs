//! Two libraries to be preloaded: an empty one, and one that records large copies.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=src/recorder.c");
    library("null.so", "/dev/null", &["-nostdlib"]);
    library("recorder.so", "src/recorder.c", &["-fPIC", "-Wall", "-Werror"]);
}

/// A library in the folder that `include_bytes!` takes it from.
fn library(name: &str, source: &str, options: &[&str]) {
    let out = Path::new(&std::env::var("OUT_DIR").expect("cargo sets it")).join(name);
    let mut link = cc::Build::new().get_compiler().to_command();
    link.args(["-shared", "-O1"]).args(options).args(["-x", "c", source, "-o"]).arg(out);
    assert!(link.status().is_ok_and(|status| status.success()), "no library: {link:?}");
}
