//! The study of the translation cache runs a cache in C on the copies that one small library
//! records; `programs` preloads another, which is empty.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=src/translate.c");
    println!("cargo:rerun-if-changed=src/translate.h");
    cc::Build::new().file("src/translate.c").warnings_into_errors(true).compile("translate");

    println!("cargo:rerun-if-changed=src/recorder.c");
    library("null.so", "/dev/null", &["-nostdlib"]);
    library("recorder.so", "src/recorder.c", &["-fPIC", "-Wall", "-Werror"]);
}

/// A library to be preloaded, in the folder that `include_bytes!` takes it from.
fn library(name: &str, source: &str, options: &[&str]) {
    let out = Path::new(&std::env::var("OUT_DIR").expect("cargo sets it")).join(name);
    let mut link = cc::Build::new().get_compiler().to_command();
    link.args(["-shared", "-O1"]).args(options).args(["-x", "c", source, "-o"]).arg(out);
    assert!(link.status().is_ok_and(|status| status.success()), "no library: {link:?}");
}
