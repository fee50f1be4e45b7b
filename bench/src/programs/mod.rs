//! Real programs that know nothing of us: what they do, what they need, and
//! how one run of one of them is measured. `benches::programs` compares.

pub mod jobs;
pub mod needs;
pub mod run;
pub mod statistics;
pub mod vec_clone;
