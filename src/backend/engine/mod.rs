//! What engines that copy by themselves have in common, DMA channels and graphics cards.

pub mod request;
pub mod stretch;
pub mod tuning;
