//! The queue: every interleaving of posting, claiming, sleeping and waking.

use super::*;
use crate::interleavings::{WriteCounts, beside, copy_of, explore};
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

fn undone(slot: &Shared) -> Vec<usize> {
    slot.undone(&mut [const { MaybeUninit::uninit() }; Cut::MOST.div_ceil(32)]).collect()
}

fn work_on(slot: &Shared, end: End, bytes: &WriteCounts) {
    while let Some(claim) = slot.claim(end) {
        bytes.write(claim.copy.mode.bits(), claim.index);
        slot.finish(&claim, PieceEnd::Done);
    }
}

/// Models `share_chunk`, without threads and without spinning.
fn share(queue: &Queue, copy: Posted, bytes: &WriteCounts) {
    let slot = queue.take().expect("room");
    queue.post(slot, &copy);
    queue.wake_sleepers(1);
    work_on(slot, End::Front, bytes);
    while slot.is_busy(&mut 0) {
        thread::yield_now();
    }
    assert_eq!(undone(slot).len(), 0);
    queue.release(slot);
    // The memcpy returns here.
    bytes.assert_once(copy.mode.bits());
}

#[test]
fn late_worker_claims_nothing_of_the_next_copy_twice() {
    explore(3, || {
        let model = (Arc::<Queue>::default(), WriteCounts::new(2, 1));
        let (queue, bytes) = &model;
        let worker = beside(&model, |(queue, bytes)| work_on(&queue.slots[0], End::Back, &bytes));
        share(queue, copy_of(1, 0), bytes);
        share(queue, copy_of(1, 1), bytes);
        worker.join().unwrap();
    });
}

#[test]
fn caller_sleeps_until_the_begun_piece_is_over() {
    explore(4, || {
        let model = (Arc::<Queue>::default(), WriteCounts::new(1, 2));
        let (queue, bytes) = &model;
        let worker = beside(&model, |(queue, bytes)| work_on(&queue.slots[0], End::Back, &bytes));
        share(queue, copy_of(2, 0), bytes);
        worker.join().unwrap();
    });
}

/// A worker is preempted somewhere in its piece, and the caller does not wait: it takes the piece
/// back and copies it itself. An interruption (membarrier) finds a restartable sequence either not
/// begun or aborted, which a lock models here.
#[test]
fn piece_taken_back_is_written_by_one_at_a_time_and_never_afterwards() {
    explore(3, || {
        let sequence = Arc::new(loom::sync::Mutex::new(()));
        let returned = Arc::new(AtomicUsize::new(0));
        let model = (Arc::<Queue>::default(), WriteCounts::new(2, 1), sequence, returned);
        let (queue, bytes, sequence, returned) = &model;
        let worker = beside(&model, |(queue, bytes, sequence, returned)| {
            let slot = &queue.slots[0];
            let Some(claim) = slot.claim(End::Back) else { return };
            let is_mine = || slot.slot.generation() == claim.generation;
            {
                let _inside = sequence.lock().unwrap();
                if !is_mine() {
                    return;
                }
                // No thread may write to a copy whose memcpy has returned.
                assert_eq!(returned.load(Ordering::SeqCst), claim.copy.mode.bits());
                bytes.write(claim.copy.mode.bits(), claim.index);
            }
            // Storing the state is a sequence of its own.
            let _inside = sequence.lock().unwrap();
            if is_mine() {
                slot.finish(&claim, PieceEnd::Done);
            }
        });
        for number in 0..2 {
            let slot = queue.take().expect("room");
            queue.post(slot, &copy_of(1, number));
            work_on(slot, End::Front, bytes);
            if slot.is_busy(&mut 0) {
                slot.take_back();
                drop(sequence.lock().unwrap());
            }
            for index in undone(slot) {
                // Possibly written a second time, after the worker, with equal bytes.
                bytes.write(number, index);
            }
            assert!(bytes.times(number, 0) >= 1);
            queue.release(slot);
            returned.store(number + 1, Ordering::SeqCst);
        }
        worker.join().unwrap();
    });
}

#[test]
fn two_callers_share_one_worker_without_waiting_for_each_other() {
    explore(2, || {
        let model = (Arc::<Queue>::default(), WriteCounts::new(2, 1));
        let (queue, bytes) = &model;
        let other = beside(&model, |(queue, bytes)| share(&queue, copy_of(1, 0), &bytes));
        let worker = beside(&model, |(queue, bytes)| {
            if let Some(slot) = queue.find_work(0) {
                work_on(slot, End::Back, &bytes);
            }
        });
        share(queue, copy_of(1, 1), bytes);
        other.join().unwrap();
        worker.join().unwrap();
    });
}

#[test]
fn sleeping_worker_never_misses_the_bell() {
    explore(4, || {
        let model = (Arc::<Queue>::default(), WriteCounts::new(1, 1));
        let (queue, bytes) = &model;
        // Sleeps without end: a missed bell is a deadlock, which loom reports.
        let worker = beside(&model, |(queue, bytes)| {
            let heard = queue.bell();
            if heard == 0 && queue.find_work(0).is_none() {
                queue.sleep(heard, 0);
            }
            work_on(&queue.slots[0], End::Back, &bytes);
        });
        share(queue, copy_of(1, 0), bytes);
        worker.join().unwrap();
    });
}
