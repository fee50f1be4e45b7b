//! Parts of this folder for loom's models: the claiming protocol, with loom's atomics.

pub mod mode;
pub mod piece_end;
pub mod engine {
    pub mod request;
}
pub mod threads {
    pub mod cookies;
    pub mod queue;
}
