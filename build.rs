//! Link options of the shared library.

fn main() {
    // A program that opens us with dlopen and closes us again must not take the code away
    // from under the workers.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libadma.so");
    // Beside the script that rustc makes for the names it knows of. That takes lld, which is
    // Rust's own linker on x86-64 since 1.90; GNU ld accepts one script only.
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/include/adma.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
    println!("cargo:rerun-if-changed=include/adma.map");
    println!("cargo:rerun-if-changed=build.rs");
}
