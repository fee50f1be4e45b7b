//! The queue: slots, claims and generations, one thread at a time.

use super::*;

fn undone(slot: &Shared) -> Vec<usize> {
    slot.undone(&mut [const { MaybeUninit::uninit() }; Cut::MOST.div_ceil(32)]).collect()
}

fn copy_of(pieces: usize) -> Posted {
    let cut = Cut::with_piece(0, pieces * 4096, 4096);
    Posted { dst: 0x1000, src: 0x2000, cut, mode: Mode::from_bits_truncate(5) }
}

#[test]
fn slot_claims_every_piece_once_from_both_ends() {
    let queue = Queue::new();
    let slot = queue.take().unwrap();
    assert!(slot.claim(End::Front).is_none(), "nothing is posted yet");
    queue.post(slot, &copy_of(4));
    let mut ends = [End::Front, End::Back, End::Back, End::Front].into_iter();
    let claims: Vec<_> =
        std::iter::from_fn(|| slot.claim(ends.next().unwrap_or(End::Back))).collect();
    let indices: Vec<_> = claims.iter().map(|c| c.index).collect();
    assert_eq!(indices, [0, 3, 2, 1]);
    assert!(claims.iter().all(|c| c.copy.dst == 0x1000 && c.copy.mode.bits() == 5));
    assert!(slot.is_busy(&mut 0) && slot.unclaimed() == 0);
    for claim in claims {
        let what = if claim.index == 1 { piece_is::FAILED } else { piece_is::DONE };
        slot.finish(&claim, what);
    }
    assert!(!slot.is_busy(&mut 0) && slot.has_failed());
    assert_eq!(undone(slot), [1]);
    queue.leave(slot);
    assert_eq!(queue.copies(), 0);
}

#[test]
fn slot_of_a_pending_copy_tells_the_stretch_that_failed() {
    let slot = Slot::new();
    assert!(slot.take());
    slot.post(&copy_of(4));
    while let Some((_, index, _)) = slot.claim(End::Front) {
        slot.finish(index, index == 0 || index == 3);
    }
    assert_eq!(slot.failed(), 1..3);
}

#[test]
fn pieces_taken_back_are_undone_and_belong_to_nobody_of_that_generation() {
    let queue = Queue::new();
    let slot = queue.take().unwrap();
    queue.post(slot, &copy_of(40));
    let mut claims: Vec<_> = std::iter::from_fn(|| slot.claim(End::Back)).collect();
    let late = [claims.remove(3), claims.remove(7)];
    for claim in &claims {
        slot.finish(claim, piece_is::DONE);
    }
    assert!(slot.is_busy(&mut 0));
    slot.take_back();
    assert_eq!(undone(slot), [late[1].index, late[0].index]);
    assert_ne!(slot.generation().load(Ordering::Relaxed), late[0].generation);
    queue.leave(slot);
    let slot = queue.take().unwrap();
    queue.post(slot, &copy_of(40));
    assert_ne!(slot.generation().load(Ordering::Relaxed), late[0].generation);
    assert_eq!((slot.unclaimed(), undone(slot).len()), (40, 40));
}

#[test]
fn pieces_in_order_come_from_the_front_and_end_with_a_difference() {
    let queue = Queue::new();
    let slot = queue.take().unwrap();
    queue.post(slot, &Posted { mode: Mode::IN_ORDER, ..copy_of(6) });
    let claims = [End::Front, End::Back, End::Back].map(|end| slot.claim(end).unwrap());
    assert_eq!(claims.each_ref().map(|claim| claim.index), [0, 1, 2]);
    slot.cancel(6, claims[1].generation.wrapping_sub(1));
    assert_eq!(slot.unclaimed(), 3, "somebody who comes too late cancels nothing");
    slot.cancel(2, claims[1].generation);
    assert_eq!([0, 1, 2].map(|index| slot.is_cancelled(index)), [false, false, true]);
    assert!(slot.claim(End::Front).is_none() && slot.claim(End::Back).is_none());
    for (claim, what) in claims.iter().zip([piece_is::DONE, piece_is::DIFFERS, piece_is::DONE]) {
        assert!(slot.is_busy(&mut 0));
        slot.finish(claim, what);
    }
    assert!(!slot.is_busy(&mut 0), "what was cancelled is nobody's");
    assert_eq!(undone(slot), [1, 3, 4, 5]);
    assert!(!slot.has_failed());
    queue.leave(slot);
    assert!(queue.take().is_some());
}

#[test]
fn slot_ends_with_its_last_piece_however_many_are_under_way_at_once() {
    let queue = Queue::new();
    let slot = queue.take().unwrap();
    queue.post(slot, &copy_of(Cut::MOST - 1));
    let begun: Vec<_> = std::iter::from_fn(|| slot.claim(End::Back)).collect();
    assert_eq!(begun.len(), Cut::MOST - 1);
    let mut from = 0;
    for claim in begun.into_iter().rev() {
        assert!(slot.is_busy(&mut from));
        assert_eq!(from, claim.index);
        slot.finish(&claim, piece_is::DONE);
    }
    assert!(!slot.is_busy(&mut from) && !slot.has_failed());
    assert_eq!(undone(slot).len(), 0);
}

#[test]
fn board_full_refuses_the_next_copy_and_recovers() {
    let queue = Queue::new();
    let all: Vec<_> = (0..SLOTS).map(|_| queue.take().unwrap()).collect();
    assert!(queue.take().is_none());
    queue.leave(all[5]);
    assert!(queue.take().is_some());
}

#[test]
fn slot_generation_differs_between_copies() {
    let queue = Queue::new();
    let slot = queue.take().unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        queue.post(slot, &copy_of(1));
        let claim = slot.claim(End::Back).unwrap();
        seen.push(claim.generation);
        slot.finish(&claim, piece_is::DONE);
    }
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

#[test]
fn forgotten_board_is_empty_even_with_work_under_way() {
    let queue = Queue::new();
    let slot = queue.take().unwrap();
    queue.post(slot, &copy_of(2));
    slot.claim(End::Front).unwrap();
    queue.forget_everything();
    assert_eq!(queue.copies(), 0);
    assert!(queue.find_work(0).is_none());
}
