//! The study of the translation cache runs the kernel module's own code; and an
//! empty library, which `programs` preloads to see what preloading costs.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=src/translate.c");
    println!("cargo:rerun-if-changed=../kmod-c/translate.h");
    cc::Build::new().file("src/translate.c").warnings_into_errors(true).compile("translate");

    let out = Path::new(&std::env::var("OUT_DIR").expect("cargo sets it")).join("null.so");
    let mut link = cc::Build::new().get_compiler().to_command();
    link.args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o"]).arg(out);
    assert!(link.status().is_ok_and(|status| status.success()), "no empty library: {link:?}");
}
