//! Sleeping and waking between processes, without a system call while no thread sleeps.
//!
//! Each process has one doorbell in the region. A sleeper announces itself, looks once more, and
//! sleeps; a thread that has changed something looks for announcements after that. Either the sleeper
//! sees the change or the changer sees the announcement.
//!
//! ```text
//! sleeper                          other process
//! seen = doorbell.announce(how)        publish
//! look again                       doorbell.answer()  -> wakes
//! sleep while the word is `seen`
//! ```
//!
//! The threads of the sleeper's own process answer as well, when they have done something for its
//! message. Answering wakes all sleepers of that kind; the other process's clears the announcement. A
//! stale one (its sleeper has seen the change in time) costs one idle wake-up.

use crate::os::sync::{AtomicU32, Ordering, Sleepable, Woken, full_fence};

/// Ways to wake a sleeper.
pub mod how {
    /// Futex on the doorbell's own word.
    pub const WORD: u32 = 1;
    /// Byte on the socket, for the service thread.
    pub const BYTE: u32 = 2;
}

#[repr(C)]
pub struct Doorbell {
    word: Sleepable,
    announced: AtomicU32,
}

impl Doorbell {
    /// Announces a sleep, before the last look; returns the word for `sleep`.
    pub fn announce(&self, how: u32) -> u64 {
        let seen = self.word.atomic().load(Ordering::Acquire);
        self.announced.fetch_or(how, Ordering::SeqCst);
        full_fence();
        seen
    }

    /// Returns whether a byte was asked for and not sent yet.
    pub fn wants_byte(&self) -> bool {
        self.announced.load(Ordering::Relaxed) & how::BYTE != 0
    }

    /// Takes an announcement back; look after this, for the peer may have looked before it.
    pub fn withdraw(&self, how: u32) {
        self.announced.fetch_and(!how, Ordering::SeqCst);
    }

    /// Sleeps until rung, at most `nanos`.
    pub fn sleep(&self, seen: u64, nanos: u64) -> Woken {
        self.word.sleep_shared_while(seen, nanos)
    }

    /// Wakes sleepers on the word, after a change; true: a byte is wanted too.
    #[inline]
    pub fn answer(&self) -> bool {
        full_fence();
        self.answer_after_fence()
    }

    /// Like `answer`, after a change and a full fence.
    #[inline]
    pub fn answer_after_fence(&self) -> bool {
        self.announced.load(Ordering::Relaxed) != 0 && self.wake(0)
    }

    /// Like `answer`, for a change by the doorbell's own process. A byte stays wanted: the service
    /// thread waits for the peer.
    pub fn answer_own(&self) {
        full_fence();
        if self.announced.load(Ordering::Relaxed) & how::WORD != 0 {
            self.wake(how::BYTE);
        }
    }

    #[cold]
    fn wake(&self, kept: u32) -> bool {
        let kinds = self.announced.fetch_and(kept, Ordering::SeqCst);
        if kinds & how::WORD != 0 {
            self.ring();
        }
        kinds & how::BYTE != 0
    }

    pub fn ring(&self) {
        self.word.atomic().fetch_add(1, Ordering::SeqCst);
        self.word.wake_shared();
    }
}

/// Every interleaving: `RUSTFLAGS="--cfg loom" cargo test --release --lib interleavings`.
#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use crate::interleavings::{beside, explore};
    use loom::sync::Arc;

    impl Doorbell {
        fn new() -> Self {
            Self { word: Sleepable::new(0), announced: AtomicU32::new(0) }
        }
    }

    /// Sleeps without end: a missed wake-up is a deadlock, which loom reports.
    fn wait_for(doorbell: &Doorbell, done: impl Fn() -> bool) {
        while !done() {
            let seen = doorbell.announce(how::WORD);
            if done() {
                return;
            }
            doorbell.sleep(seen, 0);
        }
    }

    #[test]
    fn two_sleepers_never_miss_a_change() {
        explore(3, || {
            let words = [AtomicU32::new(0), AtomicU32::new(0)];
            let shared = Arc::new((Doorbell::new(), words));
            let sleeper = |index: usize| {
                beside(&shared, move |shared| {
                    wait_for(&shared.0, || shared.1[index].load(Ordering::Acquire) == 1)
                })
            };
            let (one, two) = (sleeper(0), sleeper(1));
            for word in &shared.1 {
                word.store(1, Ordering::Release);
                shared.0.answer();
            }
            one.join().unwrap();
            two.join().unwrap();
        });
    }

    /// A thread of the same process ends the message of one sleeper while the other process ends that
    /// of another one: each of the two answers for both, and takes the announcement away. A byte that the
    /// service thread wants stays wanted until the other process answers.
    #[test]
    fn neighbour_and_other_process_wake_both_sleepers_and_the_byte_is_sent() {
        explore(3, || {
            let words = [AtomicU32::new(0), AtomicU32::new(0)];
            let shared = Arc::new((Doorbell::new(), words));
            shared.0.announce(how::BYTE);
            let sleepers = [0, 1].map(|index| {
                beside(&shared, move |shared| {
                    wait_for(&shared.0, || shared.1[index].load(Ordering::Acquire) == 1)
                })
            });
            let neighbour = beside(&shared, |shared| {
                shared.1[0].store(1, Ordering::Release);
                shared.0.answer_own();
            });
            shared.1[1].store(1, Ordering::Release);
            assert!(shared.0.answer());
            neighbour.join().unwrap();
            sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        });
    }
}
