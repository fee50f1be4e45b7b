//! An empty library to be preloaded: what preloading costs by itself.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = Path::new(&std::env::var("OUT_DIR").expect("cargo sets it")).join("null.so");
    let mut link = cc::Build::new().get_compiler().to_command();
    link.args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o"]).arg(out);
    assert!(link.status().is_ok_and(|status| status.success()), "no library: {link:?}");
}
