//! One file for each benchmark.

pub mod asynchronous;
pub mod cache;
pub mod copy;
pub mod first;
pub mod fresh;
pub mod ipc;
pub mod ipc_python;
pub mod knobs;
pub mod load;
pub mod mpi;
pub mod neighbours;
pub mod others;
pub mod phases;
pub mod pins;
pub mod programs;
pub mod reads;
pub mod scaling;
pub mod short;
pub mod small;
pub mod start;
pub mod syscall;
pub mod traces;
pub mod used;
