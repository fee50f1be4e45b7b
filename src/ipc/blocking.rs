//! Threads for calls that somebody who cannot wait has to make.
//!
//! A call that reaches into another process waits for the pages it finds there, without limit and
//! whatever signals come: a page may be anybody's file, or handled by its own program
//! (userfaultfd). So who waits for a limited time, or only looks, leaves such calls to a thread,
//! which stays with the buffers until the call has ended. A file that a stranger has sent may
//! take as long to close; so may a socket that has got such a file and was not read.

use super::lock::Lock;
use crate::os::{sys, thread};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

pub type Job = Box<dyn FnOnce() + Send>;

/// A job; `None`: there is no memory for it.
pub fn job<T: FnOnce() + Send + 'static>(work: T) -> Option<Job> {
    let mut room = Vec::new();
    room.try_reserve_exact(1).ok()?;
    room.push(work);
    let one = Box::into_raw(room.into_boxed_slice()).cast::<T>();
    // SAFETY: a box of one of them lies in memory as a box of a slice with one.
    Some(unsafe { Box::from_raw(one) })
}

/// So many may be held up at a time, of one kind.
const MOST: usize = 16;

/// So many of them by one user, and so many of its descriptors may wait to be closed: about as
/// many as one message can bring.
const SHARE: usize = 4;
const MOST_WAITING: usize = 256;

/// How long a thread stays without work.
const STAY: u64 = 1_000_000_000;

/// Who may hold up a job: a user as the kernel counts them.
pub type User = u32;

/// For what no other user has a hand in.
pub const OURS: User = User::MAX;

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<(User, Job)>,
    /// Whose jobs are being done.
    busy: Vec<User>,
    threads: usize,
}

pub struct Pool {
    /// So many jobs of one user are done at a time, and so many wait.
    share: usize,
    waiting: usize,
    state: Lock<PoolState>,
    /// Changes with every job.
    news: AtomicU32,
}

/// For what reaches into another process, which is an equal.
pub static COPIERS: Pool = Pool::new(MOST, 0);
/// For files of strangers.
pub static CLOSERS: Pool = Pool::new(SHARE, MOST_WAITING);
/// For memory that strangers have as well.
pub static SEALERS: Pool = Pool::new(SHARE, MOST_WAITING);

impl Pool {
    const fn new(share: usize, waiting: usize) -> Self {
        let state = PoolState { jobs: VecDeque::new(), busy: Vec::new(), threads: 0 };
        Self { share, waiting, state: Lock::new(state), news: AtomicU32::new(0) }
    }

    /// False: there is no thread for it, or this user has enough to do already.
    pub fn take(&'static self, user: User, job: Job) -> bool {
        let mut state = self.state.lock();
        if self.is_full(&state, user) || state.jobs.try_reserve(1).is_err() {
            return false;
        }
        state.jobs.push_back((user, job));
        let taken = self.has_threads(&mut state) || (self.waiting > 0 && state.threads > 0);
        if !taken {
            state.jobs.pop_back();
        }
        drop(state);
        self.wake();
        taken
    }

    /// The same; it waits until there is one.
    pub fn queue(&'static self, user: User, job: Job) {
        let mut state = self.state.lock();
        state.jobs.push_back((user, job));
        self.has_threads(&mut state);
        drop(state);
        self.wake();
    }

    /// Whether more is queued for a user than should be: nothing more is to be taken in from it.
    pub fn is_behind(&self, user: User) -> bool {
        self.is_full(&self.state.lock(), user)
    }

    /// Whether so much is queued that nobody new is to be let in.
    pub fn is_swamped(&self) -> bool {
        self.state.lock().jobs.len() >= 4 * self.waiting
    }

    fn is_full(&self, state: &PoolState, user: User) -> bool {
        let waiting = state.jobs.iter().filter(|job| job.0 == user).count();
        waiting + state.busy_with(user) >= self.share + self.waiting
    }

    /// Whether there is a thread for each job that can be done now.
    fn has_threads(&'static self, state: &mut PoolState) -> bool {
        let ready = self.ready(state);
        if state.threads >= (state.busy.len() + ready).min(MOST) {
            return state.threads - state.busy.len() >= ready;
        }
        let room = state.busy.try_reserve(MOST).is_ok();
        let another = room && thread::spawn(128 << 10, || self.work()).is_ok();
        state.threads += usize::from(another);
        another
    }

    /// Jobs of users who have not all their threads busy.
    fn ready(&self, state: &PoolState) -> usize {
        state.jobs.iter().filter(|job| state.busy_with(job.0) < self.share).count()
    }

    fn wake(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(self.news.as_ptr(), 1);
    }

    /// What a thread answers within so many nanoseconds. `None`: there is no thread for it.
    /// `Some(None)`: it takes longer, and may be done all the same.
    pub fn within<T: Send + 'static>(
        &'static self,
        user: User,
        nanos: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Option<T>> {
        let answer = Arc::new((Lock::new(None), AtomicU32::new(0)));
        let theirs = answer.clone();
        let limit = sys::nanoseconds() + nanos;
        let job = Box::new(move || {
            *theirs.0.lock() = Some(work());
            theirs.1.store(1, Ordering::Release);
            sys::futex_wake(theirs.1.as_ptr(), 1);
        });
        if !self.take(user, job) {
            return None;
        }
        while answer.1.load(Ordering::Acquire) == 0 && sys::nanoseconds() < limit {
            let left = limit.saturating_sub(sys::nanoseconds());
            sys::futex_wait(answer.1.as_ptr(), 0, left.max(1));
        }
        Some(answer.0.lock().take())
    }

    fn work(&self) {
        loop {
            let seen = self.news.load(Ordering::SeqCst);
            let mut state = self.state.lock();
            if let Some((user, job)) = self.next(&mut state) {
                drop(state);
                job();
                let mut state = self.state.lock();
                let place = state.busy.iter().position(|busy| *busy == user);
                place.map(|place| state.busy.swap_remove(place));
                continue;
            }
            drop(state);
            sys::futex_wait(self.news.as_ptr(), seen, STAY);
            let mut state = self.state.lock();
            // What cannot be done yet is done by who makes room for it.
            if self.news.load(Ordering::SeqCst) == seen && self.ready(&state) == 0 {
                state.threads -= 1;
                return;
            }
        }
    }

    /// The first of them.
    fn next(&self, state: &mut PoolState) -> Option<(User, Job)> {
        let ready = |job: &(User, Job)| state.busy_with(job.0) < self.share;
        let next = state.jobs.iter().position(ready).and_then(|place| state.jobs.remove(place))?;
        state.busy.push(next.0);
        Some(next)
    }
}

impl PoolState {
    fn busy_with(&self, user: User) -> usize {
        self.busy.iter().filter(|busy| **busy == user).count()
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

    /// A gate that jobs hang at, and one who tells of jobs that do not.
    fn hanging(gate: &Arc<std::sync::Mutex<mpsc::Receiver<()>>>) -> Job {
        let gate = gate.clone();
        Box::new(move || drop(gate.lock().map(|gate| gate.recv())))
    }

    #[test]
    fn job_that_hangs_holds_up_no_other_and_too_many_are_refused() {
        static OWN: Pool = Pool::new(MOST, 0);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        let (done, dones) = mpsc::channel();
        // A thread that has just ended a job may not have said so.
        let eventually = |job: &dyn Fn() -> Job| {
            while !OWN.take(0, job()) {
                std::thread::yield_now();
            }
        };
        for hanging_now in 1..=MOST {
            eventually(&|| hanging(&gate));
            if hanging_now < MOST {
                eventually(&|| {
                    let done = done.clone();
                    Box::new(move || done.send(()).unwrap())
                });
                dones.recv_timeout(Duration::from_secs(60)).unwrap();
            }
        }
        assert!(!OWN.take(0, hanging(&gate)), "all are held up");
        drop(release);
        eventually(&|| Box::new(|| {}));
    }

    #[test]
    fn user_who_holds_up_its_share_holds_up_nobody_else() {
        static OWN: Pool = Pool::new(SHARE, 20);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        for _ in 0..SHARE + 20 {
            assert!(!OWN.is_behind(1) && OWN.take(1, hanging(&gate)));
        }
        assert!(OWN.is_behind(1) && !OWN.take(1, hanging(&gate)) && !OWN.is_behind(2));
        OWN.queue(1, hanging(&gate));
        let minute = 60_000_000_000;
        for user in 2..30 {
            assert_eq!(OWN.within(user, minute, move || user), Some(Some(user)));
        }
        assert_eq!(OWN.within(1, 1_000_000, || ()), None);
        drop(release); // and those that have waited are done
        while OWN.within(1, minute, || ()).is_none() {}
    }
}
