//! Link options of the shared library.

fn main() {
    // A program that opens us with dlopen and closes us again must not take the code away
    // from under the workers.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libadma.so.0");
    // What every program pays for at its start (`bench/run start`): the C compiler's start files
    // are not needed, and segments that begin with a page touch fewer of them.
    println!("cargo:rustc-cdylib-link-arg=-nostartfiles");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,separate-loadable-segments");
    link_by_soname();
    // Nothing here returns elsewhere than it was called from: a program with a shadow stack keeps
    // it. Of the other half of CET, indirect branch tracking, the note would be untrue: Rust's
    // standard library is built without landing pads.
    let architecture = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    if architecture == "x86_64" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,shstk");
    }
    // Beside the script that rustc makes for the names it knows of. That takes lld, which is
    // Rust's own linker on x86-64 since 1.90, and elsewhere one of the system's; GNU ld accepts one script
    // only.
    if architecture != "x86_64" {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/include/adma.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
    println!("cargo:rerun-if-changed=include/adma.map");
    println!("cargo:rerun-if-changed=build.rs");
}

/// A program that is linked with the library where cargo leaves it (`-Ltarget/release -ladma`)
/// asks the loader for libadma.so.0. What cargo makes has no number, so a link leads there.
fn link_by_soname() {
    let Some(out) = std::env::var_os("OUT_DIR") else { return };
    // target/release/build/adma-0123/out
    if let Some(folder) = std::path::Path::new(&out).ancestors().nth(3) {
        // It may be there already; where it cannot be made, only such programs miss it.
        let _ = std::os::unix::fs::symlink("libadma.so", folder.join("libadma.so.0"));
    }
}
