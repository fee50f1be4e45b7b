//! The queue: a caller posts a copy, and idle threads claim pieces of it.
//!
//! ```text
//! take       the poster gets a free slot            post      its pieces can be claimed
//! claim      a thread gets one piece                finish    it stores how the piece has ended
//! cancel     unclaimed pieces need not be done      take back the poster redoes begun pieces
//! release    the slot is free again
//! ```
//!
//! `cookies`, `gpu::slots` and `ioat::piece_lists` use these terms for their slots too.
//!
//! One 64-bit ticket in each slot holds everything that must change together:
//!
//! ```text
//! 63      32 31    29   20 19   10 9      0
//! generation taken begun   back    front
//! ```
//!
//! The pieces from `front` to `back` are unclaimed. A claim is one compare-and-swap that takes the
//! first or the last of them. The caller takes from the front and workers from the back, so that in
//! a repeated copy each finds its own part in its own cache; but a thread whose NUMA node has the pages at one
//! of the ends takes them from there (`End::or_nearer`). The copy's fields are read before the
//! swap and used only when the swap succeeds: the generation shows that the slot still holds that
//! copy. So a thread that comes late claims nothing and delays no other, and the poster waits only
//! for pieces that have begun.
//!
//! In the queue (`Shared`) the state of each piece is a byte of its own, written by the thread that
//! has claimed it: no two threads write to one byte, and the poster reads all of them. It need not
//! even wait for pieces that have begun: if their worker does not run, the poster raises the
//! generation, interrupts the workers (see `copy_loop::TakeBack`), and copies them itself.
//!
//! A comparison is over with its first difference. Its pieces are claimed `IN_ORDER`, from the
//! front by every thread, and a thread that finds a difference cancels what is unclaimed: `back`
//! becomes `front`, and only pieces before that were ever begun. Threads that work on a piece behind
//! it stop soon.
//!
//! No caller polls asynchronous copies (`cookies`). Their slots count the pieces in flight in
//! `begun`, and the thread that brings that to zero reports the end.

use crate::backend::mode::Mode;
use crate::backend::piece_end::PieceEnd;
#[cfg(not(loom))]
use crate::os::memory_policy;
use crate::os::sync::{
    AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, Sleepable, Woken, fetch_to_change,
};
#[cfg(not(loom))]
use crate::os::sys::NoFilter;
use crate::plan::Cut;
use core::mem::MaybeUninit;
#[cfg(not(loom))]
use zerocopy::FromZeros;

/// A copy in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    pub dst: usize,
    pub src: usize,
    pub cut: Cut,
    /// Mode in which pieces are copied. The queue itself reads only `IN_ORDER`.
    pub mode: Mode,
}

/// End of the unclaimed pieces at which a claim is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Front,
    Back,
}

#[cfg(not(loom))]
impl End {
    /// Returns the end that is on this thread's node, where the ends are on different ones.
    pub fn or_nearer(self, mode: Mode) -> Self {
        let Some([first, last]) = mode.nodes_of_ends() else { return self };
        match NoFilter::look().and_then(memory_policy::this_node) {
            Some(node) if node == first => End::Front,
            Some(node) if node == last => End::Back,
            _ => self,
        }
    }
}

#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    const FRONT: u64 = Cut::MOST as u64;
    const ONE_BACK: u64 = 1 << 10;
    const BACK: u64 = Cut::MOST as u64 * Self::ONE_BACK;
    const ONE_BEGUN: u64 = 1 << 20;
    const BEGUN: u64 = Cut::MOST as u64 * Self::ONE_BEGUN;
    const TAKEN: u64 = 1 << 31;
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
}

/// Room for one copy. Slots have cache lines of their own: several CPUs write to each.
#[repr(align(128))]
#[cfg_attr(loom, derive(Default))]
#[cfg_attr(not(loom), derive(FromZeros))]
pub struct Slot {
    ticket: AtomicU64,
    dst: AtomicUsize,
    src: AtomicUsize,
    len: AtomicUsize,
    head: AtomicUsize,
    piece: AtomicUsize,
    mode: AtomicUsize,
    /// Range of the pieces that could not be copied: the lowest, and one past the highest. For a
    /// comparison, the lowest is where the cancelled pieces begin.
    failed_from: AtomicUsize,
    failed_to: AtomicUsize,
}

impl Slot {
    /// Takes the slot, if it is free.
    fn take(&self) -> bool {
        let now = Ticket(self.ticket.load(Ordering::Relaxed));
        now.0 & (Ticket::TAKEN | Ticket::BEGUN) == 0
            && now.unclaimed() == 0
            && self
                .ticket
                .compare_exchange(
                    now.0,
                    now.0 | Ticket::TAKEN,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Publishes the copy. Only the taker may call this.
    pub(in crate::backend) fn post(&self, copy: &Posted) {
        let (len, head, piece) = copy.cut.parts();
        self.dst.store(copy.dst, Ordering::Relaxed);
        self.src.store(copy.src, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.head.store(head, Ordering::Relaxed);
        self.piece.store(piece, Ordering::Relaxed);
        self.mode.store(copy.mode.bits(), Ordering::Relaxed);
        self.failed_from.store(usize::MAX, Ordering::Relaxed);
        self.failed_to.store(0, Ordering::Relaxed);
        let before = Ticket(self.ticket.load(Ordering::Relaxed));
        let ticket = before.generation().wrapping_add(Ticket::ONE_GENERATION)
            | Ticket::TAKEN
            | (copy.cut.count() as u64 * Ticket::ONE_BACK);
        self.ticket.store(ticket, Ordering::Release);
    }

    /// Returns the copy that was posted last. May be torn while another thread posts.
    pub(in crate::backend) fn posted(&self) -> Posted {
        let cut = Cut::from_parts(
            self.len.load(Ordering::Relaxed),
            self.head.load(Ordering::Relaxed),
            self.piece.load(Ordering::Relaxed),
        );
        Posted {
            dst: self.dst.load(Ordering::Relaxed),
            src: self.src.load(Ordering::Relaxed),
            cut,
            mode: Mode::from_bits_truncate(self.mode.load(Ordering::Relaxed)),
        }
    }

    /// Claims a piece, if one is left. Returns the copy, the piece's number, and whether more are
    /// left. The claimer must call `finish`.
    pub fn claim(&self, end: End) -> Option<(Posted, usize, bool)> {
        let (copy, index, before) = self.claim_and_count(end, Ticket::ONE_BEGUN)?;
        Some((copy, index, before.unclaimed() > 1))
    }

    /// Like `claim`, but returns the ticket from before the claim; `counted` is added to the new ticket.
    fn claim_and_count(&self, end: End, counted: u64) -> Option<(Posted, usize, Ticket)> {
        let mut now = Ticket(self.ticket.load(Ordering::Acquire));
        loop {
            if now.unclaimed() == 0 {
                return None;
            }
            let copy = self.posted();
            let end = if copy.mode.contains(Mode::IN_ORDER) { End::Front } else { end };
            let (index, step) = match end {
                End::Front => (now.front(), 1),
                End::Back => (now.back() - 1, Ticket::ONE_BACK.wrapping_neg()),
            };
            // Release keeps the loads above before the exchange; see the module's opening.
            match self.ticket.compare_exchange_weak(
                now.0,
                now.0.wrapping_add(step) + counted,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some((copy, index as usize, now)),
                Err(other) => now = Ticket(other),
            }
        }
    }

    /// Cancels the unclaimed pieces of this generation.
    fn cancel(&self, generation: u32) {
        let mut now = Ticket(self.ticket.load(Ordering::Relaxed));
        while now.generation_number() == generation && now.unclaimed() > 0 {
            let ended = (now.0 & !Ticket::BACK) + now.front() * Ticket::ONE_BACK;
            let (set, other) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.ticket.compare_exchange_weak(now.0, ended, set, other) {
                Ok(_) => return,
                Err(other) => now = Ticket(other),
            }
        }
    }

    /// Finishes a claimed piece; `done` is false when it could not be copied. Returns whether the
    /// copy is over: no piece is unclaimed or in flight, and this thread sees the bytes of all of
    /// them.
    pub fn finish(&self, index: usize, done: bool) -> bool {
        if !done {
            self.failed_from.fetch_min(index, Ordering::Relaxed);
            self.failed_to.fetch_max(index + 1, Ordering::Relaxed);
        }
        let before = Ticket(self.ticket.fetch_sub(Ticket::ONE_BEGUN, Ordering::AcqRel));
        before.begun() == 1 && before.unclaimed() == 0
    }

    #[cfg(loom)]
    fn generation(&self) -> u32 {
        Ticket(self.ticket.load(Ordering::Relaxed)).generation_number()
    }

    /// Returns the number of pieces left to claim.
    pub fn unclaimed(&self) -> u64 {
        Ticket(self.ticket.load(Ordering::Relaxed)).unclaimed()
    }

    /// Returns the range of failed pieces, once nothing is in flight.
    pub fn failed(&self) -> core::ops::Range<usize> {
        self.failed_from.load(Ordering::Relaxed)..self.failed_to.load(Ordering::Relaxed)
    }

    fn is_taken(&self) -> bool {
        self.ticket.load(Ordering::Relaxed) & Ticket::TAKEN != 0
    }

    /// Frees the slot. No piece may be unclaimed or in flight.
    pub(in crate::backend) fn release(&self) {
        let now = Ticket(self.ticket.load(Ordering::Relaxed));
        self.ticket.store(now.generation(), Ordering::Release);
    }
}

/// A claimed piece of a copy in the queue.
pub struct ClaimedPiece {
    pub copy: Posted,
    pub index: usize,
    /// While the slot has this generation, the piece belongs to its claimer.
    pub generation: u32,
}

/// A slot of the queue: its pieces can be taken back.
#[repr(align(128))]
#[cfg_attr(loom, derive(Default))]
#[cfg_attr(not(loom), derive(FromZeros))]
pub struct Shared {
    slot: Slot,
    /// A `PieceEnd` for each piece, 0 until it has one.
    pieces: [AtomicU8; if cfg!(loom) { 2 } else { Cut::MOST }],
}

impl Shared {
    fn post(&self, copy: &Posted) {
        for piece in &self.pieces[..copy.cut.count()] {
            piece.store(0, Ordering::Relaxed);
        }
        self.slot.post(copy);
    }

    /// Claims a piece, if one is left. The claimer must call `finish`.
    pub fn claim(&self, end: End) -> Option<ClaimedPiece> {
        let (copy, index, ticket) = self.slot.claim_and_count(end, 0)?;
        Some(ClaimedPiece { copy, index, generation: ticket.generation_number() })
    }

    /// Stores the end of a piece that cannot be taken back, such as one that the poster has claimed.
    pub fn finish(&self, claim: &ClaimedPiece, end: PieceEnd) {
        self.pieces[claim.index].store(end as u8, Ordering::Release);
    }

    /// Returns the byte of a piece.
    pub fn piece(&self, index: usize) -> &AtomicU8 {
        &self.pieces[index]
    }

    /// Returns how a piece has ended, if it has.
    fn end_of(&self, index: usize) -> Option<PieceEnd> {
        PieceEnd::of(usize::from(self.pieces[index].load(Ordering::Acquire)))
    }

    /// Returns whether a piece from `from` on is in flight, and moves `from` to the first that is.
    /// No piece may be unclaimed. False also means that this thread sees the bytes of these pieces.
    pub fn is_busy(&self, from: &mut usize) -> bool {
        let copy = self.slot.posted();
        // Cancelled pieces have not begun, and never will.
        let claimed = || Ticket(self.slot.ticket.load(Ordering::Relaxed)).front() as usize;
        let count = if copy.mode.contains(Mode::IN_ORDER) { claimed() } else { copy.cut.count() };
        while *from < count && self.end_of(*from).is_some() {
            *from += 1;
        }
        *from < count
    }

    /// Cancels the pieces from number `from` on, where they are claimed `IN_ORDER`.
    pub fn cancel(&self, from: usize, generation: u32) {
        // A late thread may lower this for the next task in the slot. Then the poster does the
        // pieces that were skipped needlessly.
        self.slot.failed_from.fetch_min(from, Ordering::Relaxed);
        self.slot.cancel(generation);
    }

    /// Returns whether a claimed piece need not be done any more.
    pub fn is_cancelled(&self, index: usize) -> bool {
        self.slot.failed_from.load(Ordering::Relaxed) <= index
    }

    /// Takes back all pieces in flight. No piece may be unclaimed, and workers must be interrupted
    /// before the next call of `undone`.
    pub fn take_back(&self) {
        self.slot.ticket.fetch_add(Ticket::ONE_GENERATION, Ordering::AcqRel);
    }

    /// Returns the pieces that were not copied, once nothing is under way any more. The bits in `room`
    /// stay valid when the slot is released.
    pub fn undone<'a>(&self, room: &'a mut UndoneBits) -> Undone<'a> {
        let count = self.slot.posted().cut.count();
        for (number, place) in room.iter_mut().enumerate().take(count.div_ceil(32)) {
            let is_done = |bit: usize| self.end_of(32 * number + bit) == Some(PieceEnd::Done);
            let last = (count - 32 * number).min(32);
            place.write((0..last).filter(|&bit| is_done(bit)).fold(0, |done, bit| done | 1 << bit));
        }
        Undone { room, next: 0, count }
    }

    /// Returns whether some piece could not be copied.
    pub fn has_failed(&self) -> bool {
        let count = self.slot.posted().cut.count();
        (0..count).any(|index| self.end_of(index) == Some(PieceEnd::Failed))
    }

    pub fn unclaimed(&self) -> u64 {
        self.slot.unclaimed()
    }

    /// Returns the mode of the posted copy, or of the last one if none is posted.
    pub fn mode(&self) -> Mode {
        Mode::from_bits_truncate(self.slot.mode.load(Ordering::Relaxed))
    }

    /// Returns the generation as a 32-bit word of its own, which a worker's `TakeBack` reads.
    #[cfg(not(loom))]
    pub fn generation(&self) -> &AtomicU32 {
        // SAFETY: the upper half of the ticket, which lives as long as `self`; the ticket and this
        // half are only ever changed by atomic instructions.
        unsafe { &*self.slot.ticket.as_ptr().cast::<AtomicU32>().add(1) }
    }
}

/// Room for `Shared::undone`. Neither cleared nor moved: compilers do that with memset and memcpy,
/// which this library exports.
pub type UndoneBits = [MaybeUninit<u32>; Cut::MOST.div_ceil(32)];

/// Iterator over the pieces that were not copied: see `Shared::undone`.
pub struct Undone<'a> {
    room: &'a UndoneBits,
    next: usize,
    count: usize,
}

impl Iterator for Undone<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        // SAFETY: `Shared::undone` has written the words of all `count` pieces.
        let word = |index: usize| unsafe { self.room[index / 32].assume_init() };
        let done = |index: usize| word(index) >> (index % 32) & 1 == 1;
        let found = (self.next..self.count).find(|&index| !done(index))?;
        self.next = found + 1;
        Some(found)
    }
}

/// Most copies in flight at once; the next one stays with libc.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 32 };

/// Two counts of workers in one word: those alive or being made; and, among these, those being
/// made, which may still fail.
pub mod headcount {
    pub const ONE: u32 = 1;
    pub const ONE_TO_COME: u32 = 1 << 16;

    pub fn alive(count: u32) -> u32 {
        count % ONE_TO_COME
    }

    /// Returns whether at least one of them is running.
    pub fn any_running(count: u32) -> bool {
        alive(count) > count / ONE_TO_COME
    }
}

#[cfg_attr(loom, derive(Default))]
#[cfg_attr(not(loom), derive(FromZeros))]
pub struct Queue {
    slots: [Shared; SLOTS],
    /// Rises with every posted copy; idle workers sleep on it.
    bell: Sleepable,
    sleepers: AtomicU32,
}

impl Queue {
    /// Prefetches the words that calling a worker will change.
    pub fn prefetch(&self) {
        fetch_to_change(&raw const self.bell as usize);
        fetch_to_change(&raw const self.sleepers as usize);
    }

    /// Takes a free slot. `None`: too many copies are under way.
    pub fn take(&self) -> Option<&Shared> {
        self.slots.iter().find(|shared| shared.slot.take())
    }

    /// Posts the copy and rings the bell; workers that spin see it at once.
    pub fn post(&self, shared: &Shared, copy: &Posted) {
        shared.post(copy);
        self.bell.atomic().fetch_add(1, Ordering::AcqRel);
    }

    pub fn release(&self, shared: &Shared) {
        shared.slot.release();
    }

    /// Wakes up to `count` sleeping workers. `None`: none sleeps. `Some(false)`: the system refuses.
    pub fn wake_sleepers(&self, count: u32) -> Option<bool> {
        // An exchange, not a load: either it sees the sleeper, or the sleeper, which changes this
        // word before it looks at the bell, sees the bell rung.
        (self.sleepers.fetch_add(0, Ordering::AcqRel) > 0).then(|| self.bell.wake(count))
    }

    /// Rings the bell for work that is not in the queue.
    pub fn ring(&self) {
        self.bell.atomic().fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether one more of `limit` workers can be made. An exchange, as for the sleepers:
    /// either this sees that a worker has counted itself out, or that worker sees the bell rung.
    pub fn lacks_workers(alive: &AtomicU32, limit: u32) -> bool {
        headcount::alive(alive.fetch_add(0, Ordering::AcqRel)) < limit
    }

    /// An idle worker counts itself out before it ends; false when the bell has rung since
    /// `heard`: then it is counted in again and has to look for work.
    pub fn count_out(&self, alive: &AtomicU32, heard: u64) -> bool {
        alive.fetch_sub(headcount::ONE, Ordering::AcqRel);
        if self.bell.atomic().fetch_add(0, Ordering::AcqRel) == heard {
            return true;
        }
        alive.fetch_add(headcount::ONE, Ordering::AcqRel);
        false
    }

    /// Wakes every sleeping worker, so that it checks whether it is still wanted.
    pub fn ring_for_all(&self) {
        self.bell.atomic().fetch_add(1, Ordering::AcqRel);
        self.bell.wake(i32::MAX as u32);
    }

    /// Returns how many copies are in the queue now.
    pub fn copies(&self) -> usize {
        self.slots.iter().filter(|shared| shared.slot.is_taken()).count()
    }

    /// Returns a slot with unclaimed pieces, for a worker; `start` spreads the workers over the slots.
    pub fn find_work(&self, start: usize) -> Option<&Shared> {
        let turn = |i: usize| &self.slots[start.wrapping_add(i) % SLOTS];
        (0..SLOTS).map(turn).find(|slot| slot.unclaimed() > 0)
    }

    /// Returns the count of the bell. Read it before looking for work, and pass it to `sleep`.
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

    /// Resets the queue in the child of a fork: the child has no workers, and copies of other
    /// threads will never be finished in it.
    pub fn forget_everything(&self) {
        for shared in &self.slots {
            // Writing to an unchanged page would copy the page for nothing.
            if shared.slot.is_taken() {
                shared.slot.release();
            }
        }
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.sleepers.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "queue_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
#[path = "queue_loom.rs"]
mod interleavings;
