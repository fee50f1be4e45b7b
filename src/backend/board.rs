//! The board: a caller posts a copy, and whoever has time claims pieces of it.
//!
//! One 64-bit ticket per slot holds everything that must change together:
//!
//! ```text
//! 63      32 31    30      29   20 19   10 9      0
//! generation owned waiting begun   back    front
//! ```
//!
//! The pieces from `front` to `back` are unclaimed. A claim is one compare-and-swap that
//! takes the first or the last of them and adds one to `begun`, which has room for all of
//! them: any number of threads may be at it at once. The caller takes from the front and
//! workers from the back, so that in a copy made again and again each finds its own part in
//! its own cache. What is to be copied is read before it and believed only when it succeeds:
//! the generation shows that the slot still holds the same copy. So a thread that comes late
//! claims nothing and delays nobody, and the poster waits only for pieces that have begun.
//!
//! It need not even wait for those: on the board (`Shared`) each piece that is done is noted by
//! itself, together with the generation. A poster whose worker was preempted raises the
//! generation, interrupts the workers (see `kernel::TakeBack`), and copies what is not noted.

use crate::plan::Cut;
use crate::sync::maybe_const;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, Sleepable, Woken, fetch_to_change};
use core::mem::MaybeUninit;

/// A copy on the board.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    pub dst: usize,
    pub src: usize,
    pub cut: Cut,
    /// How the pieces are to be copied; the board carries it and does not look at it.
    pub manner: usize,
}

/// Where a claim is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Front,
    Back,
}

#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    const FRONT: u64 = Cut::MOST as u64;
    const ONE_BACK: u64 = 1 << 10;
    const BACK: u64 = Cut::MOST as u64 * Self::ONE_BACK;
    const ONE_BEGUN: u64 = 1 << 20;
    const BEGUN: u64 = Cut::MOST as u64 * Self::ONE_BEGUN;
    const WAITING: u64 = 1 << 30;
    const OWNED: u64 = 1 << 31;
    const ONE_GENERATION: u64 = 1 << 32;

    fn front(self) -> u64 {
        self.0 & Self::FRONT
    }

    fn back(self) -> u64 {
        (self.0 & Self::BACK) / Self::ONE_BACK
    }

    fn unclaimed(self) -> u64 {
        self.back() - self.front()
    }

    fn begun(self) -> u64 {
        (self.0 & Self::BEGUN) / Self::ONE_BEGUN
    }

    fn generation(self) -> u64 {
        self.0 & !(Self::ONE_GENERATION - 1)
    }

    fn generation_number(self) -> u32 {
        (self.0 / Self::ONE_GENERATION) as u32
    }

    /// One piece is under way and none is left.
    fn is_last(self) -> bool {
        self.begun() == 1 && self.unclaimed() == 0
    }
}

/// Room for one copy. Slots are apart in memory: each is written by several CPUs.
#[repr(align(128))]
pub struct Slot {
    ticket: Sleepable,
    dst: AtomicUsize,
    src: AtomicUsize,
    len: AtomicUsize,
    head: AtomicUsize,
    piece: AtomicUsize,
    manner: AtomicUsize,
    /// Pieces that could not be copied lie between these: lowest, and one past the highest.
    failed_from: AtomicUsize,
    failed_to: AtomicUsize,
}

impl Slot {
    maybe_const! { fn new() -> Self {
        Self {
            ticket: Sleepable::new(0),
            dst: AtomicUsize::new(0),
            src: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            head: AtomicUsize::new(0),
            piece: AtomicUsize::new(0),
            manner: AtomicUsize::new(0),
            failed_from: AtomicUsize::new(0),
            failed_to: AtomicUsize::new(0),
        }
    } }

    /// Takes an idle slot for oneself.
    fn take(&self) -> bool {
        let now = Ticket(self.ticket.atomic().load(Ordering::Relaxed));
        now.0 & (Ticket::OWNED | Ticket::BEGUN) == 0
            && now.unclaimed() == 0
            && self
                .ticket
                .atomic()
                .compare_exchange(
                    now.0,
                    now.0 | Ticket::OWNED,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Opens the copy to everybody. Only the taker may call this.
    pub(super) fn post(&self, copy: &Posted) {
        let (len, head, piece) = copy.cut.parts();
        self.dst.store(copy.dst, Ordering::Relaxed);
        self.src.store(copy.src, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.head.store(head, Ordering::Relaxed);
        self.piece.store(piece, Ordering::Relaxed);
        self.manner.store(copy.manner, Ordering::Relaxed);
        self.failed_from.store(usize::MAX, Ordering::Relaxed);
        self.failed_to.store(0, Ordering::Relaxed);
        let before = Ticket(self.ticket.atomic().load(Ordering::Relaxed));
        let ticket = before.generation().wrapping_add(Ticket::ONE_GENERATION)
            | Ticket::OWNED
            | (copy.cut.count() as u64 * Ticket::ONE_BACK);
        self.ticket.atomic().store(ticket, Ordering::Release);
    }

    fn posted(&self) -> Posted {
        let cut = Cut::from_parts(
            self.len.load(Ordering::Relaxed),
            self.head.load(Ordering::Relaxed),
            self.piece.load(Ordering::Relaxed),
        );
        Posted {
            dst: self.dst.load(Ordering::Relaxed),
            src: self.src.load(Ordering::Relaxed),
            cut,
            manner: self.manner.load(Ordering::Relaxed),
        }
    }

    /// Claims a piece, if one is left: the copy, the piece's number, and whether more are
    /// left. Who claims must call `finish`.
    pub fn claim(&self, end: End) -> Option<(Posted, usize, bool)> {
        let (copy, index, before) = self.claim_ticket(end)?;
        Some((copy, index, before.unclaimed() > 1))
    }

    /// The same, with the ticket as it was before.
    fn claim_ticket(&self, end: End) -> Option<(Posted, usize, Ticket)> {
        let mut now = Ticket(self.ticket.atomic().load(Ordering::Acquire));
        loop {
            if now.unclaimed() == 0 {
                return None;
            }
            let copy = self.posted();
            let (index, step) = match end {
                End::Front => (now.front(), 1),
                End::Back => (now.back() - 1, Ticket::ONE_BACK.wrapping_neg()),
            };
            // Release keeps the loads above before the exchange; see the module's opening.
            match self.ticket.atomic().compare_exchange_weak(
                now.0,
                now.0.wrapping_add(step) + Ticket::ONE_BEGUN,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some((copy, index as usize, now)),
                Err(other) => now = Ticket(other),
            }
        }
    }

    /// Says that a claimed piece is over; `done` is false when it could not be copied. True
    /// for the one who ends the copy: nothing is unclaimed, nothing else under way, and the
    /// bytes of all can be seen.
    pub fn finish(&self, index: usize, done: bool) -> bool {
        if !done {
            self.failed_from.fetch_min(index, Ordering::Relaxed);
            self.failed_to.fetch_max(index + 1, Ordering::Relaxed);
        }
        let before = Ticket(self.ticket.atomic().fetch_sub(Ticket::ONE_BEGUN, Ordering::AcqRel));
        self.tell_last(before);
        before.is_last()
    }

    /// Wakes the poster if the piece that was under way in `before` was the last one.
    fn tell_last(&self, before: Ticket) {
        if before.is_last() && before.0 & Ticket::WAITING != 0 {
            // The slot may hold another copy by now; its poster then wakes for nothing.
            self.ticket.wake(1);
        }
    }

    fn generation(&self) -> u32 {
        Ticket(self.ticket.atomic().load(Ordering::Relaxed)).generation_number()
    }

    /// How many pieces are left to claim.
    pub fn unclaimed(&self) -> u64 {
        Ticket(self.ticket.atomic().load(Ordering::Relaxed)).unclaimed()
    }

    /// Whether begun pieces are still under way. False also means: their bytes are visible.
    pub fn is_busy(&self) -> bool {
        Ticket(self.ticket.atomic().load(Ordering::Acquire)).begun() > 0
    }

    /// Sleeps until no piece is under way, or for `nanos` (0: without end), or for no reason.
    /// Everything has been claimed before.
    fn sleep_until_idle(&self, nanos: u64) -> Woken {
        let now = self.ticket.atomic().fetch_or(Ticket::WAITING, Ordering::AcqRel);
        if Ticket(now).begun() == 0 {
            return Woken::LookAgain;
        }
        self.ticket.sleep_while(now | Ticket::WAITING, nanos)
    }

    /// The pieces that failed, once nothing is under way: first, and one past the last.
    pub fn failed(&self) -> core::ops::Range<usize> {
        self.failed_from.load(Ordering::Relaxed)..self.failed_to.load(Ordering::Relaxed)
    }

    /// What is on it, for who knows that nobody posts meanwhile.
    pub(super) fn copy(&self) -> Posted {
        self.posted()
    }

    /// Gives the slot back. Nothing is unclaimed and nothing under way.
    pub(super) fn leave(&self) {
        let now = Ticket(self.ticket.atomic().load(Ordering::Relaxed));
        self.ticket.atomic().store(now.generation(), Ordering::Release);
    }
}

/// A claimed piece of a copy on the board.
pub struct Claim {
    pub copy: Posted,
    pub index: usize,
    /// As long as the slot's is the same, the piece belongs to who has claimed it.
    pub generation: u32,
}

/// A slot of the board: its pieces can be taken back.
#[repr(align(128))]
pub struct Shared {
    slot: Slot,
    /// One bit for each piece that is done: 32 of them in the low half, the generation in the
    /// high one. So nobody who comes late can note a piece of another copy.
    done: [AtomicU64; Shared::WORDS],
}

impl Shared {
    const WORDS: usize = if cfg!(loom) { 1 } else { Cut::MOST.div_ceil(32) };

    maybe_const! { fn new() -> Self {
        Self {
            slot: Slot::new(),
            #[cfg(not(loom))]
            done: [const { AtomicU64::new(0) }; Shared::WORDS],
            #[cfg(loom)]
            done: [AtomicU64::new(0)],
        }
    } }

    fn post(&self, copy: &Posted) {
        let generation = self.slot.generation().wrapping_add(1);
        for word in &self.done[..copy.cut.count().div_ceil(32)] {
            word.store(u64::from(generation) << 32, Ordering::Relaxed);
        }
        self.slot.post(copy);
    }

    /// Claims a piece, if one is left. Who claims must call `finish`.
    pub fn claim(&self, end: End) -> Option<Claim> {
        let (copy, index, ticket) = self.slot.claim_ticket(end)?;
        Some(Claim { copy, index, generation: ticket.generation_number() })
    }

    /// Says that a claimed piece is over; `done` is false when it could not be copied. Nothing
    /// happens if it was taken back meanwhile.
    pub fn finish(&self, claim: &Claim, done: bool) {
        if !done {
            self.slot.failed_to.store(claim.index + 1, Ordering::Relaxed);
        } else if !self.note_done(claim) {
            return;
        }
        let ticket = self.slot.ticket.atomic();
        let mut now = Ticket(ticket.load(Ordering::Relaxed));
        while now.generation_number() == claim.generation {
            let next = now.0 - Ticket::ONE_BEGUN;
            match ticket.compare_exchange_weak(now.0, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return self.slot.tell_last(now),
                Err(other) => now = Ticket(other),
            }
        }
    }

    fn note_done(&self, claim: &Claim) -> bool {
        let word = &self.done[claim.index / 32];
        let mut now = word.load(Ordering::Relaxed);
        while (now >> 32) as u32 == claim.generation {
            let next = now | 1 << (claim.index % 32);
            match word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Takes all pieces back that are under way. Who has them must be interrupted before the
    /// next look at `undone`. Everything has been claimed before.
    pub fn take_back(&self) {
        let ticket = self.slot.ticket.atomic();
        let next = |now: u64| {
            let generation = Ticket(now).generation().wrapping_add(Ticket::ONE_GENERATION);
            let kept = now & (Ticket::OWNED | Ticket::FRONT | Ticket::BACK);
            (Ticket(now).begun() > 0).then_some(generation | kept)
        };
        // An error: the last piece has just been finished.
        let _ = ticket.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// The pieces that nobody has copied, once nothing is under way any more. What is noted in
    /// `room` stays when the slot is given back.
    pub fn undone<'a>(&self, room: &'a mut Room) -> Undone<'a> {
        let count = self.slot.posted().cut.count();
        for (place, done) in room.iter_mut().zip(&self.done).take(count.div_ceil(32)) {
            place.write(done.load(Ordering::Acquire) as u32);
        }
        Undone { room, next: 0, count }
    }

    /// Whether some piece could not be copied.
    pub fn has_failed(&self) -> bool {
        self.slot.failed_to.load(Ordering::Relaxed) > 0
    }

    pub fn unclaimed(&self) -> u64 {
        self.slot.unclaimed()
    }

    pub fn is_busy(&self) -> bool {
        self.slot.is_busy()
    }

    /// Sleeps until no piece is under way, or for `nanos`. Everything has been claimed before.
    pub fn sleep_until_idle(&self, nanos: u64) -> Woken {
        self.slot.sleep_until_idle(nanos)
    }

    /// The generation, as a word of its own for those who watch it.
    #[cfg(not(loom))]
    pub fn generation(&self) -> &AtomicU32 {
        self.slot.ticket.high_half()
    }
}

/// Room for `Shared::undone`. Neither cleared nor moved: compilers do that with memset and
/// memcpy, which is us.
pub type Room = [MaybeUninit<u32>; Shared::WORDS];

/// See `Shared::undone`.
pub struct Undone<'a> {
    room: &'a Room,
    next: usize,
    count: usize,
}

impl Iterator for Undone<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        // SAFETY: `Shared::undone` has written as many as there are pieces.
        let word = |index: usize| unsafe { self.room[index / 32].assume_init() };
        let done = |index: usize| word(index) >> (index % 32) & 1 == 1;
        let found = (self.next..self.count).find(|&index| !done(index))?;
        self.next = found + 1;
        Some(found)
    }
}

/// How many copies can be under way at once; the next one stays with libc.
#[cfg(not(loom))]
pub const SLOTS: usize = 32;
#[cfg(loom)]
pub const SLOTS: usize = 2;

/// How workers are counted, in one word: those that are alive or about to be, and of them
/// those that are about to be. Whether these come is not known yet.
pub mod workers {
    pub const ONE: u32 = 1;
    pub const ONE_TO_COME: u32 = 1 << 16;

    pub fn alive(count: u32) -> u32 {
        count % ONE_TO_COME
    }

    /// Whether there is one who is there indeed.
    pub fn somebody_is_there(count: u32) -> bool {
        alive(count) > count / ONE_TO_COME
    }
}

pub struct Board {
    slots: [Shared; SLOTS],
    /// Rises with every posted copy; idle workers sleep on it.
    bell: Sleepable,
    sleepers: AtomicU32,
}

impl Board {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            slots: [const { Shared::new() }; SLOTS],
            bell: Sleepable::new(0),
            sleepers: AtomicU32::new(0),
        }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            slots: [Shared::new(), Shared::new()],
            bell: Sleepable::new(0),
            sleepers: AtomicU32::new(0),
        }
    }

    /// Fetches what calling a worker will change.
    pub fn expect(&self) {
        fetch_to_change(&raw const self.bell as usize);
        fetch_to_change(&raw const self.sleepers as usize);
    }

    /// A free slot, or `None` when too many copies are under way.
    pub fn take(&self) -> Option<&Shared> {
        self.slots.iter().find(|shared| shared.slot.take())
    }

    /// Opens the copy and rings the bell; workers that spin see it at once.
    pub fn post(&self, shared: &Shared, copy: &Posted) {
        shared.post(copy);
        self.bell.atomic().fetch_add(1, Ordering::AcqRel);
    }

    pub fn leave(&self, shared: &Shared) {
        shared.slot.leave();
    }

    /// Wakes up to `count` sleeping workers. `None`: nobody sleeps. `Some(false)`: refused.
    pub fn wake_sleepers(&self, count: u32) -> Option<bool> {
        // An exchange, not a load: either it sees the sleeper, or the sleeper, who changes the
        // same word before it looks at the bell, sees the bell rung.
        (self.sleepers.fetch_add(0, Ordering::AcqRel) > 0).then(|| self.bell.wake(count))
    }

    /// Rings for work that lies elsewhere.
    pub fn ring(&self) {
        self.bell.atomic().fetch_add(1, Ordering::AcqRel);
    }

    /// Whether one more of `limit` workers can be made. As with the sleepers: either this
    /// sees that one has counted itself out, or that one sees the bell rung.
    pub fn lacks_workers(alive: &AtomicU32, limit: u32) -> bool {
        workers::alive(alive.fetch_add(0, Ordering::AcqRel)) < limit
    }

    /// An idle worker counts itself out before it ends; false when the bell has rung since
    /// `heard`: then it is counted in again and has to look for work.
    pub fn count_out(&self, alive: &AtomicU32, heard: u64) -> bool {
        alive.fetch_sub(workers::ONE, Ordering::AcqRel);
        if self.bell.atomic().fetch_add(0, Ordering::AcqRel) == heard {
            return true;
        }
        alive.fetch_add(workers::ONE, Ordering::AcqRel);
        false
    }

    /// Wakes everybody who sleeps, for nothing to copy: to look around.
    #[cfg(not(loom))]
    pub fn ring_for_all(&self) {
        self.bell.atomic().fetch_add(1, Ordering::AcqRel);
        self.bell.wake(i32::MAX as u32);
    }

    /// How many copies are on the board now.
    pub fn copies(&self) -> usize {
        let owned = |shared: &&Shared| {
            shared.slot.ticket.atomic().load(Ordering::Relaxed) & Ticket::OWNED != 0
        };
        self.slots.iter().filter(owned).count()
    }

    /// A worker's look at all slots; `start` spreads the workers over them.
    pub fn find_work(&self, start: usize) -> Option<&Shared> {
        let turn = |i: usize| &self.slots[start.wrapping_add(i) % SLOTS];
        (0..SLOTS).map(turn).find(|slot| slot.unclaimed() > 0)
    }

    /// The bell as it is now; taken before looking for work, handed to `sleep`.
    pub fn bell(&self) -> u64 {
        self.bell.atomic().load(Ordering::Acquire)
    }

    /// Sleeps until the bell has rung since `heard`, at most `nanos` (0: without end).
    pub fn sleep(&self, heard: u64, nanos: u64) -> Woken {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        let woken = self.bell.sleep_while(heard, nanos);
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
        woken
    }

    /// In the child of a fork: no worker has come along, and copies of other threads will
    /// never be finished here.
    #[cfg(not(loom))]
    pub fn forget_everything(&self) {
        for shared in &self.slots {
            shared.slot.leave();
        }
        self.sleepers.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn undone(slot: &Shared) -> Vec<usize> {
        slot.undone(&mut [const { MaybeUninit::uninit() }; Shared::WORDS]).collect()
    }

    fn copy_of(pieces: usize) -> Posted {
        let cut = Cut::with_piece(0, pieces * 4096, 4096);
        Posted { dst: 0x1000, src: 0x2000, cut, manner: 7 }
    }

    #[test]
    fn slot_claims_every_piece_once_from_both_ends() {
        let board = Board::new();
        let slot = board.take().unwrap();
        assert!(slot.claim(End::Front).is_none(), "nothing is posted yet");
        board.post(slot, &copy_of(4));
        let mut ends = [End::Front, End::Back, End::Back, End::Front].into_iter();
        let claims: Vec<_> =
            std::iter::from_fn(|| slot.claim(ends.next().unwrap_or(End::Back))).collect();
        let indices: Vec<_> = claims.iter().map(|c| c.index).collect();
        assert_eq!(indices, [0, 3, 2, 1]);
        assert!(claims.iter().all(|c| c.copy.dst == 0x1000 && c.copy.manner == 7));
        assert!(slot.is_busy() && slot.unclaimed() == 0);
        for claim in claims {
            slot.finish(&claim, claim.index != 1);
        }
        assert!(!slot.is_busy());
        assert_eq!(undone(slot), [1]);
        board.leave(slot);
        assert_eq!(board.copies(), 0);
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
    fn piece_taken_back_is_undone_and_its_worker_changes_nothing_later() {
        let board = Board::new();
        let slot = board.take().unwrap();
        board.post(slot, &copy_of(40));
        let mut claims: Vec<_> = std::iter::from_fn(|| slot.claim(End::Back)).collect();
        let late = [claims.remove(3), claims.remove(7)];
        for claim in &claims {
            slot.finish(claim, true);
        }
        assert!(slot.is_busy());
        slot.take_back();
        assert!(!slot.is_busy());
        assert_eq!(undone(slot), [late[1].index, late[0].index]);
        board.leave(slot);
        let slot = board.take().unwrap();
        board.post(slot, &copy_of(40));
        slot.finish(&late[0], true);
        slot.finish(&late[1], true);
        assert_eq!((slot.unclaimed(), undone(slot).len()), (40, 40));
        assert!(!slot.is_busy());
    }

    #[test]
    fn taking_back_when_all_is_over_changes_nothing() {
        let board = Board::new();
        let slot = board.take().unwrap();
        board.post(slot, &copy_of(1));
        let claim = slot.claim(End::Front).unwrap();
        slot.finish(&claim, true);
        let before = slot.slot.ticket.atomic().load(Ordering::Relaxed);
        slot.take_back();
        assert_eq!(slot.slot.ticket.atomic().load(Ordering::Relaxed), before);
        assert_eq!(undone(slot).len(), 0);
    }

    #[test]
    fn slot_ends_with_its_last_piece_however_many_are_under_way_at_once() {
        let board = Board::new();
        let slot = board.take().unwrap();
        board.post(slot, &copy_of(Cut::MOST - 1));
        let begun: Vec<_> = std::iter::from_fn(|| slot.claim(End::Back)).collect();
        assert_eq!(begun.len(), Cut::MOST - 1);
        for claim in begun.into_iter().rev() {
            assert!(slot.is_busy());
            slot.finish(&claim, true);
        }
        assert!(!slot.is_busy());
        assert_eq!(undone(slot).len(), 0);
    }

    #[test]
    fn board_full_refuses_the_next_copy_and_recovers() {
        let board = Board::new();
        let all: Vec<_> = (0..SLOTS).map(|_| board.take().unwrap()).collect();
        assert!(board.take().is_none());
        board.leave(all[5]);
        assert!(board.take().is_some());
    }

    #[test]
    fn slot_generation_differs_between_copies() {
        let board = Board::new();
        let slot = board.take().unwrap();
        let mut seen = Vec::new();
        for _ in 0..3 {
            board.post(slot, &copy_of(1));
            let claim = slot.claim(End::Back).unwrap();
            seen.push(claim.generation);
            slot.finish(&claim, true);
        }
        seen.dedup();
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn forgotten_board_is_empty_even_with_work_under_way() {
        let board = Board::new();
        let slot = board.take().unwrap();
        board.post(slot, &copy_of(2));
        slot.claim(End::Front).unwrap();
        board.forget_everything();
        assert_eq!(board.copies(), 0);
        assert!(board.find_work(0).is_none());
        assert!(!slot.is_busy());
    }
}

/// Every interleaving of posting, claiming, sleeping and waking:
/// `RUSTFLAGS="--cfg loom" cargo test --release --lib board`.
#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize as Count;
    use loom::thread;

    fn undone(slot: &Shared) -> Vec<usize> {
        slot.undone(&mut [const { MaybeUninit::uninit() }; Shared::WORDS]).collect()
    }

    fn copy_of(pieces: usize, manner: usize) -> Posted {
        let cut = Cut::with_piece(0, pieces * 4096, 4096);
        Posted { dst: 0, src: 0, cut, manner }
    }

    /// The bytes of the copies: piece `i` of copy `manner` counts how often it was written.
    type Bytes = Arc<Vec<Vec<Count>>>;

    fn bytes(copies: usize, pieces: usize) -> Bytes {
        Arc::new((0..copies).map(|_| (0..pieces).map(|_| Count::new(0)).collect()).collect())
    }

    fn work_on(slot: &Shared, end: End, bytes: &Bytes) {
        while let Some(claim) = slot.claim(end) {
            bytes[claim.copy.manner][claim.index].fetch_add(1, Ordering::Relaxed);
            slot.finish(&claim, true);
        }
    }

    /// All interleavings with up to `preemptions` switches that nobody asked for.
    fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    /// What `threads::carry` does, without threads and without spinning.
    fn carry(board: &Board, copy: Posted, bytes: &Bytes) {
        let slot = board.take().expect("room");
        board.post(slot, &copy);
        board.wake_sleepers(1);
        work_on(slot, End::Front, bytes);
        while slot.is_busy() {
            slot.sleep_until_idle(0);
        }
        assert_eq!(undone(slot).len(), 0);
        board.leave(slot);
        // The memcpy returns here: every byte must have been written, once, and be visible.
        for count in &bytes[copy.manner] {
            assert_eq!(count.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn late_worker_claims_nothing_of_the_next_copy_twice() {
        explore(3, || {
            let (board, bytes) = (Arc::new(Board::new()), bytes(2, 1));
            let worker = thread::spawn({
                let (board, bytes) = (board.clone(), bytes.clone());
                move || work_on(&board.slots[0], End::Back, &bytes)
            });
            carry(&board, copy_of(1, 0), &bytes);
            carry(&board, copy_of(1, 1), &bytes);
            worker.join().unwrap();
        });
    }

    #[test]
    fn caller_sleeps_until_the_begun_piece_is_over() {
        explore(4, || {
            let (board, bytes) = (Arc::new(Board::new()), bytes(1, 2));
            let worker = thread::spawn({
                let (board, bytes) = (board.clone(), bytes.clone());
                move || work_on(&board.slots[0], End::Back, &bytes)
            });
            carry(&board, copy_of(2, 0), &bytes);
            worker.join().unwrap();
        });
    }

    /// A worker is preempted somewhere in its piece, and the caller does not wait: it takes the
    /// piece back and copies it itself. A restartable sequence is a stretch that an interruption
    /// (membarrier) finds either not begun or given up, which is what a lock is here.
    #[test]
    fn piece_taken_back_is_written_by_one_at_a_time_and_never_afterwards() {
        explore(3, || {
            let (board, bytes) = (Arc::new(Board::new()), bytes(2, 1));
            let sequence = Arc::new(loom::sync::Mutex::new(()));
            let returned = Arc::new(Count::new(0));
            let worker = thread::spawn({
                let (board, bytes, sequence) = (board.clone(), bytes.clone(), sequence.clone());
                let returned = returned.clone();
                move || {
                    let slot = &board.slots[0];
                    let Some(claim) = slot.claim(End::Back) else { return };
                    let mine = {
                        let _inside = sequence.lock().unwrap();
                        let mine = slot.slot.generation() == claim.generation;
                        if mine {
                            // Nobody may write to a copy whose memcpy has returned.
                            assert_eq!(returned.load(Ordering::SeqCst), claim.copy.manner);
                            bytes[claim.copy.manner][claim.index].fetch_add(1, Ordering::Relaxed);
                        }
                        mine
                    };
                    if mine {
                        slot.finish(&claim, true);
                    }
                }
            });
            for number in 0..2 {
                let slot = board.take().expect("room");
                board.post(slot, &copy_of(1, number));
                work_on(slot, End::Front, &bytes);
                if slot.is_busy() {
                    slot.take_back();
                    drop(sequence.lock().unwrap());
                }
                for index in undone(slot) {
                    // Perhaps once more than the worker has, but with the same bytes.
                    bytes[number][index].fetch_add(1, Ordering::Relaxed);
                }
                assert!(bytes[number][0].load(Ordering::Relaxed) >= 1);
                board.leave(slot);
                returned.store(number + 1, Ordering::SeqCst);
            }
            worker.join().unwrap();
        });
    }

    #[test]
    fn two_callers_share_one_worker_without_waiting_for_each_other() {
        explore(2, || {
            let (board, bytes) = (Arc::new(Board::new()), bytes(2, 1));
            let spawn = |number: usize| {
                let (board, bytes) = (board.clone(), bytes.clone());
                thread::spawn(move || carry(&board, copy_of(1, number), &bytes))
            };
            let other = spawn(0);
            let worker = thread::spawn({
                let (board, bytes) = (board.clone(), bytes.clone());
                move || {
                    if let Some(slot) = board.find_work(0) {
                        work_on(slot, End::Back, &bytes);
                    }
                }
            });
            carry(&board, copy_of(1, 1), &bytes);
            other.join().unwrap();
            worker.join().unwrap();
        });
    }

    #[test]
    fn sleeping_worker_never_misses_the_bell() {
        explore(4, || {
            let (board, bytes) = (Arc::new(Board::new()), bytes(1, 1));
            let worker = thread::spawn({
                let (board, bytes) = (board.clone(), bytes.clone());
                // Sleeps without end: a missed bell is a deadlock, which loom reports.
                move || {
                    let heard = board.bell();
                    if heard == 0 && board.find_work(0).is_none() {
                        board.sleep(heard, 0);
                    }
                    work_on(&board.slots[0], End::Back, &bytes);
                }
            });
            carry(&board, copy_of(1, 0), &bytes);
            worker.join().unwrap();
        });
    }
}
