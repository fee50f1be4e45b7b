//! Helper threads for calls that may block without limit.
//!
//! A call that reaches into another process waits for that process's pages, whatever signals come: a
//! page may be a file of FUSE or handled by userfaultfd. A caller with a time limit leaves such calls
//! to a thread, which keeps the buffers until the call has returned.

use crate::ipc::os::check_heap;
use crate::os::lock::Lock;
use crate::os::{sys, thread};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU32, Ordering};

type Job = Box<dyn FnOnce() + Send>;

/// Most threads that may block at a time.
const MOST_THREADS: usize = 16;

/// Nanoseconds after which an idle thread ends.
const IDLE_NS: u64 = 1_000_000_000;

#[derive(Default)]
struct Pool {
    jobs: VecDeque<Job>,
    busy: usize,
    threads: usize,
    /// Rises when idle threads are to end.
    dismissals: u32,
    /// Numbers of threads, also of some that have ended; 0: none.
    tids: [i32; MOST_THREADS],
}

static POOL: Lock<Pool> = Lock::new(Pool {
    jobs: VecDeque::new(),
    busy: 0,
    threads: 0,
    dismissals: 0,
    tids: [0; MOST_THREADS],
});

/// Rises with every job; idle threads sleep on it.
static NEWS: AtomicU32 = AtomicU32::new(0);

/// Has a thread do the work at once. False: there is no thread or no memory for it.
pub fn run(work: impl FnOnce() + Send + 'static) -> bool {
    if check_heap().is_err() {
        return false;
    }
    let job: Job = Box::new(work);
    let mut pool = POOL.lock();
    let needed = pool.busy + pool.jobs.len() + 1;
    if pool.threads < needed {
        if needed > MOST_THREADS || thread::spawn(128 << 10, work_until_idle).is_err() {
            drop(pool);
            return false;
        }
        pool.threads += 1;
    }
    pool.jobs.push_back(job);
    drop(pool);
    NEWS.fetch_add(1, Ordering::SeqCst);
    sys::futex_wake(NEWS.as_ptr(), 1);
    true
}

/// Has threads end when they are idle, and waits until `end` until the kernel does not count them any
/// more.
pub fn dismiss(end: u64) {
    let stays = |tid: i32| tid != 0 && sys::is_thread(tid as u32);
    loop {
        let mut pool = POOL.lock();
        if pool.threads == 0 && !pool.tids.into_iter().any(stays) {
            return;
        }
        pool.dismissals += 1; // again in every turn: a thread that ends may have made another
        drop(pool);
        if sys::nanoseconds() > end {
            return;
        }
        NEWS.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(NEWS.as_ptr(), i32::MAX as u32);
        sys::sleep(100_000);
    }
}

fn work_until_idle() {
    let mut pool = POOL.lock();
    let dismissals = pool.dismissals;
    if let Some(place) =
        pool.tids.iter_mut().find(|tid| **tid == 0 || !sys::is_thread(**tid as u32))
    {
        *place = sys::gettid();
    }
    drop(pool);
    loop {
        let seen = NEWS.load(Ordering::SeqCst);
        let mut pool = POOL.lock();
        if let Some(job) = pool.jobs.pop_front() {
            pool.busy += 1;
            drop(pool);
            job();
            POOL.lock().busy -= 1;
            continue;
        }
        drop(pool);
        sys::futex_wait(NEWS.as_ptr(), seen, IDLE_NS);
        let mut pool = POOL.lock();
        let is_idle = NEWS.load(Ordering::SeqCst) == seen || pool.dismissals != dismissals;
        if is_idle && pool.jobs.is_empty() {
            pool.threads -= 1;
            return;
        }
    }
}

/// Forgets the parent's threads in the child of a fork.
pub fn forget_after_fork() {
    POOL.renew();
}
