//! The study of the translation cache runs the kernel module's own code.

fn main() {
    println!("cargo:rerun-if-changed=src/translate.c");
    println!("cargo:rerun-if-changed=../kmod-c/translate.h");
    cc::Build::new().file("src/translate.c").warnings_into_errors(true).compile("translate");
}
