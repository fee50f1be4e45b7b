//! Link options of the shared library.

fn main() {
    // A program that opens us with dlopen and closes us again must not take the code away
    // from under the workers.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
