//! Real, unmodified programs: their jobs, their requirements, and the measurement of one run.
//! `benches::programs` compares.

pub mod jobs;
pub mod memory;
pub mod needs;
pub mod run;
pub mod statistics;
pub mod vec_clone;
