//! Operating system and processor without the C library's wrappers, which may allocate, set errno
//! or use thread-local storage.

pub mod arch;
pub mod brief_file;
pub mod cpus;
pub mod deferred;
pub mod file;
pub mod folder;
pub mod holders;
pub mod huge_pages;
pub mod lock;
pub mod lookup;
pub mod mapped;
pub mod mappings;
pub mod memory_policy;
pub mod once;
pub mod process;
pub mod real_time;
pub mod remap;
pub mod signal_mask;
pub mod signal_set;
pub mod standard_error;
pub mod sync;
pub mod sys;
pub mod text;
pub mod thread;
