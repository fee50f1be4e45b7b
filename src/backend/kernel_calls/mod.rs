//! System calls that copy, cut into pieces for caller and workers: transfers between processes, and
//! reads of files that are in the page cache. The pool of workers is `threads`.

mod kernel_work;
pub mod reads;
pub mod remote;
pub mod segments;
pub mod streams;
mod table_threads;
