//! Threads for calls that somebody who cannot wait has to make.
//!
//! A call that reaches into another process waits for the pages it finds there, without limit and
//! whatever signals come: a page may be anybody's file, or handled by its own program
//! (userfaultfd). So who waits for a limited time, or only looks, leaves such calls to a thread,
//! which stays with the buffers until the call has ended. A file that a stranger has sent may
//! take as long to close; so may a socket that has got such a file and was not read.

use super::lock::{Held, Lock};
use crate::os::{sys, thread};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::alloc::Layout;
use core::sync::atomic::{AtomicU32, Ordering};

pub type Job = Box<dyn FnOnce() + Send>;

/// A job; `None`: there is no memory for it.
pub fn job<T: FnOnce() + Send + 'static>(work: T) -> Option<Job> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        return Some(Box::new(work)); // needs none
    }
    // SAFETY: of some size; what is written there is the box's from then on.
    unsafe {
        let at = alloc::alloc::alloc(layout).cast::<T>();
        (!at.is_null()).then(|| {
            at.write(work);
            Box::from_raw(at) as Job
        })
    }
}

/// So many may be held up at a time, of one kind.
const MOST: usize = 16;

/// So many jobs may wait, of one kind: about as many as one message can bring.
const MOST_WAITING: usize = 256;

/// How long a thread stays without work.
const STAY: u64 = 1_000_000_000;

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

pub struct Pool {
    state: Lock<PoolState>,
    /// Changes with every job.
    news: AtomicU32,
}

/// For what reaches into another process.
pub static COPIERS: Pool = Pool::new();
/// For files of strangers.
pub static CLOSERS: Pool = Pool::new();
/// For memory that strangers have as well.
pub static SEALERS: Pool = Pool::new();

impl Pool {
    const fn new() -> Self {
        let state = PoolState { jobs: VecDeque::new(), threads: 0, idle: 0 };
        Self { state: Lock::new(state), news: AtomicU32::new(0) }
    }

    /// False: nobody can do it at once.
    pub fn take(&'static self, job: Job) -> bool {
        let mut state = self.state.lock();
        if state.jobs.try_reserve(1).is_err() || !self.has_thread_for_more(&mut state) {
            return false;
        }
        self.add(state, job);
        true
    }

    /// The same; it waits until somebody can.
    pub fn queue(&'static self, job: Job) {
        let mut state = self.state.lock();
        self.has_thread_for_more(&mut state);
        self.add(state, job);
    }

    /// Whether more is queued than should be: who queues is to take in nothing more.
    pub fn is_behind(&self) -> bool {
        self.state.lock().jobs.len() >= MOST_WAITING
    }

    fn has_thread_for_more(&'static self, state: &mut PoolState) -> bool {
        if state.idle > state.jobs.len() {
            return true;
        }
        let another = state.threads < MOST && thread::spawn(128 << 10, || self.work()).is_ok();
        state.threads += usize::from(another);
        state.idle += usize::from(another);
        another
    }

    fn add(&self, mut state: Held<'_, PoolState>, job: Job) {
        state.jobs.push_back(job);
        drop(state);
        self.news.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(self.news.as_ptr(), 1);
    }

    /// What a thread answers within so many nanoseconds. `None`: none can do it, or it takes
    /// longer, and may be done all the same.
    pub fn within<T: Send + 'static>(
        &'static self,
        nanos: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let answer = Arc::new((Lock::new(None), AtomicU32::new(0)));
        let theirs = answer.clone();
        let limit = sys::nanoseconds() + nanos;
        let mut taken = self.take(Box::new(move || {
            *theirs.0.lock() = Some(work());
            theirs.1.store(1, Ordering::Release);
            sys::futex_wake(theirs.1.as_ptr(), 1);
        }));
        while taken && answer.1.load(Ordering::Acquire) == 0 {
            let left = limit.saturating_sub(sys::nanoseconds());
            taken = left > 0;
            sys::futex_wait(answer.1.as_ptr(), 0, left.max(1));
        }
        answer.0.lock().take()
    }

    /// Threads begin idle.
    fn work(&self) {
        loop {
            let seen = self.news.load(Ordering::SeqCst);
            let mut state = self.state.lock();
            if let Some(job) = state.jobs.pop_front() {
                state.idle -= 1;
                drop(state);
                job();
                self.state.lock().idle += 1;
                continue;
            }
            drop(state);
            sys::futex_wait(self.news.as_ptr(), seen, STAY);
            let mut state = self.state.lock();
            if state.jobs.is_empty() && self.news.load(Ordering::SeqCst) == seen {
                state.threads -= 1;
                state.idle -= 1;
                return;
            }
        }
    }
}

/// In the child of a fork: the threads are the parent's.
pub fn forget_after_fork() {
    for pool in [&COPIERS, &CLOSERS, &SEALERS] {
        pool.state.renew();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn job_that_hangs_holds_up_no_other_and_too_many_are_refused() {
        static OWN: Pool = Pool::new();
        let (release, gate) = mpsc::channel::<()>();
        let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
        let (done, dones) = mpsc::channel();
        // A thread that has just ended a job may not have said so.
        let eventually = |job: &dyn Fn() -> Job| {
            while !OWN.take(job()) {
                std::thread::yield_now();
            }
        };
        let hang = || -> Job {
            let gate = gate.clone();
            Box::new(move || drop(gate.lock().map(|gate| gate.recv())))
        };
        for hanging in 1..=MOST {
            eventually(&hang);
            if hanging < MOST {
                eventually(&|| {
                    let done = done.clone();
                    Box::new(move || done.send(()).unwrap())
                });
                dones.recv_timeout(Duration::from_secs(10)).unwrap();
            }
        }
        assert!(!OWN.take(hang()), "all are held up");
        drop(release);
        eventually(&|| Box::new(|| {}));
    }
}
