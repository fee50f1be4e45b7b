//! What loom's models need of this folder: the claiming protocol, with loom's atomics.

mod request;
pub mod threads {
    pub mod cookies;
    pub mod queue;
}
