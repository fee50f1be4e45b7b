//! The queue: slots, claims and generations, one thread at a time.

use super::*;
use crate::os::mapped::zeroed;

fn undone(slot: &Shared) -> Vec<usize> {
    slot.undone(&mut [const { MaybeUninit::uninit() }; Cut::MOST.div_ceil(32)]).collect()
}

fn copy_of(pieces: usize) -> Posted {
    let cut = Cut::with_piece(0, pieces * 4096, 4096);
    Posted { dst: 0x1000, src: 0x2000, cut, mode: Mode::from_bits_truncate(5) }
}

fn posted<'a>(queue: &'a Queue, copy: &Posted) -> &'a Shared {
    let slot = queue.take().unwrap();
    assert!(slot.claim(End::Front).is_none(), "nothing is posted yet");
    queue.post(slot, copy);
    slot
}

#[test]
fn slot_claims_every_piece_once_from_both_ends() {
    let queue = zeroed::<Queue>();
    let slot = posted(&queue, &copy_of(4));
    let mut ends = [End::Front, End::Back, End::Back, End::Front].into_iter();
    let claims: Vec<_> =
        std::iter::from_fn(|| slot.claim(ends.next().unwrap_or(End::Back))).collect();
    assert_eq!(claims.iter().map(|c| c.index).collect::<Vec<_>>(), [0, 3, 2, 1]);
    assert!(claims.iter().all(|c| c.copy.dst == 0x1000 && c.copy.mode.bits() == 5));
    assert!(slot.is_busy(&mut 0) && slot.unclaimed() == 0);
    for claim in claims {
        let end = if claim.index == 1 { PieceEnd::Failed } else { PieceEnd::Done };
        slot.finish(&claim, end);
    }
    assert!(!slot.is_busy(&mut 0) && slot.has_failed());
    assert_eq!(undone(slot), [1]);
    queue.release(slot);
    assert_eq!(queue.copies(), 0);
}

#[test]
fn pieces_taken_back_are_undone_and_of_no_later_generation() {
    const PIECES: usize = Cut::MOST - 1;
    let queue = zeroed::<Queue>();
    let slot = posted(&queue, &copy_of(PIECES));
    let mut claims: Vec<_> = std::iter::from_fn(|| slot.claim(End::Back)).collect();
    assert_eq!(claims.len(), PIECES);
    let late = [claims.remove(3), claims.remove(7)];
    let mut from = 0;
    for claim in claims.iter().rev() {
        assert!(slot.is_busy(&mut from) && from <= claim.index);
        slot.finish(claim, PieceEnd::Done);
    }
    assert!(slot.is_busy(&mut from) && from == late[1].index);
    slot.take_back();
    assert_eq!(undone(slot), [late[1].index, late[0].index]);
    assert_ne!(slot.generation().load(Ordering::Relaxed), late[0].generation);
    queue.release(slot);
    let slot = posted(&queue, &copy_of(40));
    assert_ne!(slot.generation().load(Ordering::Relaxed), late[0].generation);
    assert_eq!((slot.unclaimed(), undone(slot).len()), (40, 40));
}

#[test]
fn pieces_in_order_come_from_the_front_and_end_with_a_difference() {
    let queue = zeroed::<Queue>();
    let slot = posted(&queue, &Posted { mode: Mode::IN_ORDER, ..copy_of(6) });
    let claims = [End::Front, End::Back, End::Back].map(|end| slot.claim(end).unwrap());
    assert_eq!(claims.each_ref().map(|claim| claim.index), [0, 1, 2]);
    slot.cancel(6, claims[1].generation.wrapping_sub(1));
    assert_eq!(slot.unclaimed(), 3, "a thread that comes too late cancels nothing");
    slot.cancel(2, claims[1].generation);
    assert_eq!([0, 1, 2].map(|index| slot.is_cancelled(index)), [false, false, true]);
    assert!(slot.claim(End::Front).is_none() && slot.claim(End::Back).is_none());
    for (claim, end) in claims.iter().zip([PieceEnd::Done, PieceEnd::Differs, PieceEnd::Done]) {
        assert!(slot.is_busy(&mut 0));
        slot.finish(claim, end);
    }
    assert!(!slot.is_busy(&mut 0) && !slot.has_failed(), "what was cancelled is not waited for");
    assert_eq!(undone(slot), [1, 3, 4, 5]);
}

#[test]
fn full_queue_refuses_the_next_copy_and_reset_queue_is_empty() {
    let queue = zeroed::<Queue>();
    let all: Vec<_> = (0..SLOTS).map(|_| posted(&queue, &copy_of(2))).collect();
    assert!(queue.take().is_none());
    all[5].claim(End::Front).unwrap();
    queue.forget_everything();
    assert!(queue.copies() == 0 && queue.find_work(0).is_none() && queue.take().is_some());
}

#[test]
fn thread_claims_from_the_end_on_its_node() {
    let Some(here) = NoFilter::look().and_then(memory_policy::this_node) else { return };
    let other = here + 1;
    for (nodes, usual, expected) in [
        (Some([here, other]), End::Back, End::Front),
        (Some([other, here]), End::Front, End::Back),
        (Some([other, other + 1]), End::Back, End::Back),
        (None, End::Back, End::Back),
        (None, End::Front, End::Front),
    ] {
        let mode = Mode::of_ends(nodes);
        assert_eq!(mode.nodes_of_ends(), nodes);
        assert_eq!(usual.or_nearer(mode), expected, "{nodes:?}, usually {usual:?}");
    }
}
