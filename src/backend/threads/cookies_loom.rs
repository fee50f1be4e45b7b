//! Outstanding copies: every interleaving of a few threads.

use super::*;
use crate::backend::threads::queue::{Queue, headcount};
use crate::interleavings::{WriteCounts, beside, copy_of, explore};
use loom::sync::Arc;
use loom::thread;

fn work_on(table: &Table, part: &Entry, end: End, bytes: &WriteCounts) {
    while let Some((copy, index)) = table.claim(part, end) {
        bytes.write(copy.mode.bits(), index);
        table.finish(part, index, true);
    }
}

fn begin(table: &Table, copy: Posted, notice: Option<Notice>) -> Cookie {
    let owner = table.take().expect("room");
    table.start(owner, notice, notice.is_some(), 0);
    let cookie = table.cookie(owner);
    table.add(owner, owner, &copy, true);
    table.close(owner);
    cookie
}

/// Models `asynchronous::wait`, without spinning. Returns whether it has reported the end.
fn wait(table: &Table, cookie: Cookie, bytes: &WriteCounts) -> bool {
    loop {
        let owner = match table.look(cookie) {
            CookieState::Unknown => return false,
            CookieState::Over(owner) => {
                let is_first = table.retire(cookie);
                if is_first {
                    table.free(owner);
                }
                return is_first;
            }
            CookieState::UnderWay(owner) => owner,
        };
        work_on(table, owner, End::Front, bytes);
        table.sleep(owner, cookie, 0);
    }
}

fn worker(model: &(Arc<Table>, WriteCounts)) -> thread::JoinHandle<()> {
    beside(model, |(table, bytes)| {
        if let Some((_, part)) = table.find_work(0) {
            work_on(&table, part, End::Back, &bytes);
        }
    })
}

#[test]
fn waiter_and_worker_share_a_copy_and_the_waiter_never_sleeps_on() {
    explore(3, || {
        let model = (Arc::<Table>::default(), WriteCounts::new(1, 2));
        let (table, bytes) = &model;
        let cookie = begin(table, copy_of(2, 0), None);
        let worker = worker(&model);
        assert!(wait(table, cookie, bytes));
        bytes.assert_once(0);
        worker.join().unwrap();
        assert!(!table.has_work());
    });
}

#[test]
fn end_is_reported_to_one_of_two_waiters() {
    explore(2, || {
        let model = (Arc::<Table>::default(), WriteCounts::new(1, 1));
        let (table, bytes) = &model;
        let cookie = begin(table, copy_of(1, 0), None);
        let other = beside(&model, move |(table, bytes)| wait(&table, cookie, &bytes));
        let has_reported = wait(table, cookie, bytes);
        assert!(has_reported != other.join().unwrap());
        bytes.assert_once(0);
    });
}

#[test]
fn late_worker_takes_nothing_of_the_next_owner_twice() {
    explore(3, || {
        let model = (Arc::<Table>::default(), WriteCounts::new(2, 1));
        let (table, bytes) = &model;
        let first = begin(table, copy_of(1, 0), None);
        let worker = worker(&model);
        assert!(wait(table, first, bytes));
        bytes.assert_once(0);
        let second = begin(table, copy_of(1, 1), None);
        assert!(wait(table, second, bytes));
        bytes.assert_once(1);
        worker.join().unwrap();
        assert!(!table.has_work());
    });
}

#[test]
fn word_is_written_after_all_pieces_of_all_parts() {
    explore(2, || {
        let model = (Arc::<Table>::default(), WriteCounts::new(2, 1));
        let (table, bytes) = &model;
        let word = Box::leak(Box::new(AtomicU64::new(0)));
        let notice = Notice { word: &raw const *word as usize, value: 7 };
        let owner = table.take().unwrap();
        table.start(owner, Some(notice), true, 0);
        table.add(owner, owner, &copy_of(1, 0), true);
        table.add(owner, table.take().unwrap(), &copy_of(1, 1), true);
        table.close(owner);
        let workers = [worker(&model), worker(&model)];
        if word.load(Ordering::Acquire) == 7 {
            bytes.assert_once(0);
            bytes.assert_once(1);
        }
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        while let Some((_, part)) = table.find_work(0) {
            work_on(table, part, End::Back, bytes);
        }
        assert_eq!(word.load(Ordering::Acquire), 7);
        // SAFETY: `word` comes from a box, and no thread uses it any more.
        drop(unsafe { Box::from_raw(word) });
    });
}

/// A table, the queue with the bell, the count of live workers, and the bytes of one copy.
type Workshop = (Arc<Table>, Arc<Queue>, Arc<AtomicU32>, WriteCounts);

fn workshop(alive: u32) -> Workshop {
    let alive = Arc::new(AtomicU32::new(alive));
    (Arc::<Table>::default(), Arc::<Queue>::default(), alive, WriteCounts::new(1, 1))
}

/// Starts the copy while the worker is about to leave.
fn copy_is_done_or_worker_replaced(model: &Workshop, worker: thread::JoinHandle<()>) {
    let (table, queue, alive, bytes) = model;
    begin(table, copy_of(1, 0), None);
    queue.ring();
    let replaced = queue.wake_sleepers(1).is_none() && Queue::lacks_workers(alive, 1);
    worker.join().unwrap();
    assert!(bytes.times(0, 0) == 1 || replaced);
}

/// No thread waits for the copy: its starter finds a worker that stays, wakes one that sleeps, or
/// makes one.
#[test]
fn worker_that_leaves_is_replaced_or_stays_for_the_copy() {
    explore(4, || {
        let model = workshop(1);
        let worker = beside(&model, |(table, queue, alive, bytes)| {
            loop {
                let heard = queue.bell();
                if let Some((_, part)) = table.find_work(0) {
                    work_on(&table, part, End::Back, &bytes);
                    return;
                }
                // A sleep that times out at once.
                if queue.count_out(&alive, heard) {
                    return;
                }
            }
        });
        copy_is_done_or_worker_replaced(&model, worker);
    });
}

/// Like the test above, for a worker that is sent away, or may not sleep any more.
#[test]
fn worker_that_is_sent_away_is_replaced_or_stays_for_the_copy() {
    explore(4, || {
        let model = workshop(headcount::ONE);
        let worker = beside(&model, |(table, _, alive, bytes)| {
            loop {
                if let Some((_, part)) = table.find_work(0) {
                    work_on(&table, part, End::Back, &bytes);
                }
                if table.count_out(&alive) {
                    return;
                }
                thread::yield_now();
            }
        });
        copy_is_done_or_worker_replaced(&model, worker);
    });
}

/// No thread relies on a worker that another thread then fails to make.
#[test]
fn copy_completes_without_a_worker_that_never_comes() {
    explore(4, || {
        let (table, alive) = (Arc::<Table>::default(), Arc::new(AtomicU32::new(0)));
        let other = beside(&alive, |alive| {
            let to_come = headcount::ONE + headcount::ONE_TO_COME;
            alive.fetch_add(to_come, Ordering::Relaxed);
            alive.fetch_sub(to_come, Ordering::Relaxed);
        });
        begin(&table, copy_of(1, 0), None);
        let makes_one = Queue::lacks_workers(&alive, 1);
        if !makes_one {
            assert!(!headcount::any_running(alive.load(Ordering::Acquire)));
        }
        other.join().unwrap();
    });
}
