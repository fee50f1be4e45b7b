//! Memory that both processes of a connection reach: `region`, and blocks of `adma_alloc`.

pub mod blocks;
pub mod region;
