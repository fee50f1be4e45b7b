//! Pieces that are copied for somebody who cannot wait.
//!
//! A call that reaches into another process waits for the pages it finds there, without limit and
//! whatever signals come: a page may be anybody's file, or handled by its own program
//! (userfaultfd). So who waits for a limited time, or only looks, leaves such calls to a thread.
//! It stays with the buffers until the call has ended; its master has the rest of the time.

use super::lock::Lock;
use crate::sys::{self, SignalsHeld};
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;

pub type Job = Box<dyn FnOnce() + Send>;

/// So many may be held up at a time.
const MOST: usize = 16;

/// How long a thread stays without work.
const STAY: u64 = 1_000_000_000;

struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

const NOTHING: State = State { jobs: VecDeque::new(), threads: 0, idle: 0 };

static STATE: Lock<State> = Lock::new(NOTHING);
/// Changes with every job.
static NEWS: AtomicU32 = AtomicU32::new(0);

/// False: nobody can do it.
pub fn take(job: Job) -> bool {
    let mut state = STATE.lock();
    if state.idle <= state.jobs.len() {
        if state.threads == MOST {
            return false;
        }
        // Handlers of the program are not for this thread.
        let _signals = SignalsHeld::all();
        let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(work);
        if thread.is_err() {
            return false;
        }
        state.threads += 1;
        state.idle += 1;
    }
    state.jobs.push_back(job);
    drop(state);
    NEWS.fetch_add(1, Ordering::SeqCst);
    sys::futex_wake(NEWS.as_ptr(), 1);
    true
}

/// Threads begin idle.
fn work() {
    loop {
        let seen = NEWS.load(Ordering::SeqCst);
        let mut state = STATE.lock();
        if let Some(job) = state.jobs.pop_front() {
            state.idle -= 1;
            drop(state);
            job();
            STATE.lock().idle += 1;
            continue;
        }
        drop(state);
        sys::futex_wait(NEWS.as_ptr(), seen, STAY);
        let mut state = STATE.lock();
        if state.jobs.is_empty() && NEWS.load(Ordering::SeqCst) == seen {
            state.threads -= 1;
            state.idle -= 1;
            return;
        }
    }
}

/// In the child of a fork: the threads are the parent's.
pub fn forget_after_fork() {
    STATE.renew(NOTHING);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn job_that_hangs_holds_up_no_other_and_too_many_are_refused() {
        let (release, gate) = mpsc::channel::<()>();
        let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
        let (done, dones) = mpsc::channel();
        let mut hanging = 0;
        while take(Box::new({
            let gate = gate.clone();
            move || drop(gate.lock().map(|gate| gate.recv()))
        })) {
            hanging += 1;
            if hanging < MOST {
                let done = done.clone();
                assert!(take(Box::new(move || done.send(()).unwrap())), "{hanging}");
                dones.recv_timeout(Duration::from_secs(10)).unwrap();
            }
            assert!(hanging <= MOST);
        }
        assert_eq!(hanging, MOST);
        drop(release);
        let free = || take(Box::new(|| {}));
        while !free() {
            std::thread::yield_now();
        }
    }
}
