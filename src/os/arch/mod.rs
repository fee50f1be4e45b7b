//! What depends on the instruction set, under one set of names for each of them: instructions (`mod`),
//! naked functions that the program, the kernel or a worker enters (`entries`), and the copy loops
//! (`loops`).
//!
//! A macro of `entries` is a template of assembly. What a name means, which operands a template takes and
//! what the caller of an unsafe function promises says the comment in `x86_64`; the others' have only what
//! differs there.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
