//! Helpers for the models of the lock-free parts. loom runs a model in every interleaving of its
//! threads: `RUSTFLAGS="--cfg loom" cargo test --release --lib interleavings`.

use crate::backend::mode::Mode;
use crate::backend::threads::queue::Posted;
use crate::plan::Cut;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread::{self, JoinHandle};

/// Explores all interleavings with up to `preemptions` involuntary switches.
pub fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Starts a thread with its own handle on the state that the threads of a model share.
pub fn beside<S: Clone + 'static, R: 'static>(
    shared: &S,
    run: impl FnOnce(S) -> R + 'static,
) -> JoinHandle<R> {
    let shared = shared.clone();
    thread::spawn(move || run(shared))
}

/// Returns a copy of some pieces; `mode` identifies it among the model's copies.
pub fn copy_of(pieces: usize, mode: usize) -> Posted {
    let cut = Cut::with_piece(0, pieces * 4096, 4096);
    Posted { dst: 0, src: 0, cut, mode: Mode::from_bits_truncate(mode) }
}

/// Bytes of a model's copies: how often each piece of each copy was written.
#[derive(Clone)]
pub struct WriteCounts(Arc<Vec<Vec<AtomicUsize>>>);

impl WriteCounts {
    pub fn new(copies: usize, pieces: usize) -> Self {
        let copy = || (0..pieces).map(|_| AtomicUsize::new(0)).collect();
        Self(Arc::new((0..copies).map(|_| copy()).collect()))
    }

    pub fn write(&self, copy: usize, piece: usize) {
        self.0[copy][piece].fetch_add(1, Ordering::Relaxed);
    }

    pub fn times(&self, copy: usize, piece: usize) -> usize {
        self.0[copy][piece].load(Ordering::Relaxed)
    }

    /// Asserts that every byte of a copy was written, once, and can be seen.
    pub fn assert_once(&self, copy: usize) {
        for piece in &self.0[copy] {
            assert_eq!(piece.load(Ordering::Relaxed), 1);
        }
    }
}
