//! What the operating system and the processor give us, without the C library's wrappers:
//! those may allocate, set errno or use thread-local storage.

#[cfg(not(loom))]
pub mod cpus;
#[cfg(not(loom))]
pub mod file;
#[cfg(not(loom))]
pub mod folder;
#[cfg(not(loom))]
pub mod holders;
#[cfg(not(loom))]
pub mod huge_pages;
#[cfg(not(loom))]
pub mod lock;
#[cfg(not(loom))]
pub mod lookup;
#[cfg(not(loom))]
pub mod mapped;
#[cfg(not(loom))]
pub mod memory_policy;
#[cfg(not(loom))]
pub mod once;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod put_off;
#[cfg(not(loom))]
pub mod real_time;
#[cfg(not(loom))]
pub mod signal_mask;
#[cfg(not(loom))]
pub mod standard_error;
pub mod sync;
#[cfg(not(loom))]
pub mod sys;
#[cfg(not(loom))]
pub mod text;
#[cfg(not(loom))]
pub mod thread;
