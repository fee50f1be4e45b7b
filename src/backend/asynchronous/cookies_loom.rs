//! Outstanding copies: every interleaving of a few threads.

use super::*;
use crate::backend::threads::queue::{Queue, headcount};
use crate::plan::Cut;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize as Count;
use loom::thread;

/// Piece `i` of copy `mode` counts how often it was written.
type Bytes = Arc<Vec<Vec<Count>>>;

fn bytes(copies: usize, pieces: usize) -> Bytes {
    Arc::new((0..copies).map(|_| (0..pieces).map(|_| Count::new(0)).collect()).collect())
}

fn copy_of(pieces: usize, mode: usize) -> Posted {
    let cut = Cut::with_piece(0, pieces * 4096, 4096);
    Posted { dst: 0, src: 0, cut, mode }
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn work_on(table: &Table, part: &Entry, end: End, bytes: &Bytes) {
    while let Some((copy, index)) = table.claim(part, end) {
        bytes[copy.mode][index].fetch_add(1, Ordering::Relaxed);
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

/// What `asynchronous::wait` does, without spinning. Whether we were told of the end.
fn wait(table: &Table, cookie: Cookie, bytes: &Bytes) -> bool {
    loop {
        let owner = match table.look(cookie) {
            CookieState::Unknown => return false,
            CookieState::Over(owner) => {
                let told = table.retire(cookie);
                if told {
                    table.free(owner);
                }
                return told;
            }
            CookieState::UnderWay(owner) => owner,
        };
        work_on(table, owner, End::Front, bytes);
        table.sleep(owner, cookie, 0);
    }
}

fn all_written_once(bytes: &Bytes, copy: usize) {
    for count in &bytes[copy] {
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}

fn worker(table: &Arc<Table>, bytes: &Bytes) -> thread::JoinHandle<()> {
    let (table, bytes) = (table.clone(), bytes.clone());
    thread::spawn(move || {
        if let Some((_, part)) = table.find_work(0) {
            work_on(&table, part, End::Back, &bytes);
        }
    })
}

#[test]
fn waiter_and_worker_share_a_copy_and_the_waiter_never_sleeps_on() {
    explore(3, || {
        let (table, bytes) = (Arc::new(Table::new()), bytes(1, 2));
        let cookie = begin(&table, copy_of(2, 0), None);
        let worker = worker(&table, &bytes);
        assert!(wait(&table, cookie, &bytes));
        all_written_once(&bytes, 0);
        worker.join().unwrap();
        assert!(!table.has_work());
    });
}

#[test]
fn one_of_two_waiters_is_told() {
    explore(2, || {
        let (table, bytes) = (Arc::new(Table::new()), bytes(1, 1));
        let cookie = begin(&table, copy_of(1, 0), None);
        let other = thread::spawn({
            let (table, bytes) = (table.clone(), bytes.clone());
            move || wait(&table, cookie, &bytes)
        });
        let told = wait(&table, cookie, &bytes);
        assert!(told != other.join().unwrap());
        all_written_once(&bytes, 0);
    });
}

#[test]
fn late_worker_takes_nothing_of_the_next_owner_twice() {
    explore(3, || {
        let (table, bytes) = (Arc::new(Table::new()), bytes(2, 1));
        let first = begin(&table, copy_of(1, 0), None);
        let worker = worker(&table, &bytes);
        assert!(wait(&table, first, &bytes));
        all_written_once(&bytes, 0);
        let second = begin(&table, copy_of(1, 1), None);
        assert!(wait(&table, second, &bytes));
        all_written_once(&bytes, 1);
        worker.join().unwrap();
        assert!(!table.has_work());
    });
}

#[test]
fn word_is_written_after_all_pieces_of_all_parts() {
    explore(2, || {
        let (table, bytes) = (Arc::new(Table::new()), bytes(2, 1));
        let word = Box::leak(Box::new(AtomicU64::new(0)));
        let notice = Notice { word: &raw const *word as usize, value: 7 };
        let owner = table.take().unwrap();
        table.start(owner, Some(notice), true, 0);
        table.add(owner, owner, &copy_of(1, 0), true);
        table.add(owner, table.take().unwrap(), &copy_of(1, 1), true);
        table.close(owner);
        let workers = [worker(&table, &bytes), worker(&table, &bytes)];
        if word.load(Ordering::Acquire) == 7 {
            all_written_once(&bytes, 0);
            all_written_once(&bytes, 1);
        }
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        while let Some((_, part)) = table.find_work(0) {
            work_on(&table, part, End::Back, &bytes);
        }
        assert_eq!(word.load(Ordering::Acquire), 7);
        // SAFETY: from a box, and nobody knows it any more.
        drop(unsafe { Box::from_raw(word) });
    });
}

/// Nobody waits for the copy: whoever starts it finds a worker that stays, wakes one that
/// sleeps, or makes one.
#[test]
fn worker_that_leaves_is_replaced_or_stays_for_the_copy() {
    explore(4, || {
        let (table, queue) = (Arc::new(Table::new()), Arc::new(Queue::new()));
        let alive = Arc::new(AtomicU32::new(1));
        let bytes = bytes(1, 1);
        let worker = thread::spawn({
            let (table, queue) = (table.clone(), queue.clone());
            let (alive, bytes) = (alive.clone(), bytes.clone());
            move || loop {
                let heard = queue.bell();
                if let Some((_, part)) = table.find_work(0) {
                    work_on(&table, part, End::Back, &bytes);
                    return;
                }
                // A sleep that is over at once: its time has passed.
                if queue.count_out(&alive, heard) {
                    return;
                }
            }
        });
        begin(&table, copy_of(1, 0), None);
        queue.ring();
        let replaced = queue.wake_sleepers(1).is_none() && Queue::lacks_workers(&alive, 1);
        worker.join().unwrap();
        let done = bytes[0][0].load(Ordering::Relaxed) == 1;
        assert!(done || replaced);
    });
}

/// The same for one that is sent away, and one that may not sleep any more.
#[test]
fn worker_that_is_sent_away_is_replaced_or_stays_for_the_copy() {
    explore(4, || {
        let (table, queue) = (Arc::new(Table::new()), Arc::new(Queue::new()));
        let alive = Arc::new(AtomicU32::new(headcount::ONE));
        let bytes = bytes(1, 1);
        let worker = thread::spawn({
            let (table, alive, bytes) = (table.clone(), alive.clone(), bytes.clone());
            move || loop {
                if let Some((_, part)) = table.find_work(0) {
                    work_on(&table, part, End::Back, &bytes);
                }
                if table.count_out(&alive) {
                    return;
                }
                thread::yield_now();
            }
        });
        begin(&table, copy_of(1, 0), None);
        queue.ring();
        let replaced = queue.wake_sleepers(1).is_none() && Queue::lacks_workers(&alive, 1);
        worker.join().unwrap();
        let done = bytes[0][0].load(Ordering::Relaxed) == 1;
        assert!(done || replaced);
    });
}

/// Nor does anybody rely on a worker that another thread then fails to make.
#[test]
fn worker_that_does_not_come_is_not_relied_on() {
    explore(4, || {
        let (table, alive) = (Arc::new(Table::new()), Arc::new(AtomicU32::new(0)));
        let other = thread::spawn({
            let alive = alive.clone();
            move || {
                let to_come = headcount::ONE + headcount::ONE_TO_COME;
                alive.fetch_add(to_come, Ordering::Relaxed);
                alive.fetch_sub(to_come, Ordering::Relaxed);
            }
        });
        begin(&table, copy_of(1, 0), None);
        let makes_one = Queue::lacks_workers(&alive, 1);
        if !makes_one {
            assert!(!headcount::somebody_is_there(alive.load(Ordering::Acquire)));
        }
        other.join().unwrap();
    });
}
