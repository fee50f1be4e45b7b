//! Claims on the pieces of a large message: one word that both processes change.
//!
//! ```text
//! 63      32 31   24 23     12 11      0
//! generation  flags    back      front
//! ```
//!
//! The reader claims pieces from the front and the writer from the back, so each count is the number
//! of pieces that its side has begun. A word of another generation belongs to an older message and
//! counts as zeros, so it needs no preparation.
//!
//! A begun piece cannot be taken back. It is waited for, unless its process is gone: at the end of
//! a message, good or bad, no process touches a buffer any more.

use crate::os::sync::{AtomicU32, AtomicU64, Ordering};

/// Role of a process in a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Writer,
    Reader,
}

impl Role {
    pub const BOTH: [Self; 2] = [Role::Writer, Role::Reader];

    pub fn other(self) -> Self {
        Self::BOTH[1 - self as usize]
    }
}

pub mod flag {
    /// A buffer could not be read or written.
    pub const FAULT: u32 = 1;
    /// A side may no longer touch the other's memory: the message is streamed instead.
    pub const REFUSED: u32 = 2;
    /// A side has cancelled the message, or closes the connection.
    pub const CANCELLED: u32 = 4;
}

/// The most pieces of a message.
pub const MOST_PIECES: usize = 0xfff;

const BACK_SHIFT: u32 = 12;
const FLAG_SHIFT: u32 = 24;
const GENERATION_SHIFT: u32 = 32;

/// The word at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursors {
    pub front: usize,
    pub back: usize,
    pub flags: u32,
}

impl Cursors {
    pub fn begun(&self, role: Role) -> usize {
        match role {
            Role::Writer => self.back,
            Role::Reader => self.front,
        }
    }
}

/// The peer has broken the protocol.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken;

fn cursors_of(word: u64, generation: u32) -> Cursors {
    if (word >> GENERATION_SHIFT) as u32 != generation {
        return Cursors::default();
    }
    Cursors {
        front: word as usize & MOST_PIECES,
        back: (word >> BACK_SHIFT) as usize & MOST_PIECES,
        flags: (word >> FLAG_SHIFT) as u32 & 0xff,
    }
}

fn word_of(view: Cursors, generation: u32) -> u64 {
    u64::from(generation) << GENERATION_SHIFT
        | u64::from(view.flags) << FLAG_SHIFT
        | (view.back as u64) << BACK_SHIFT
        | view.front as u64
}

pub fn cursors(word: &AtomicU64, generation: u32) -> Cursors {
    cursors_of(word.load(Ordering::Acquire), generation)
}

/// Claims a piece out of `total` for one side, which has claimed `own` so far. None: all are claimed,
/// or a flag forbids more.
pub fn claim(
    word: &AtomicU64,
    generation: u32,
    role: Role,
    own: usize,
    total: usize,
) -> Result<Option<usize>, Broken> {
    let mut seen = word.load(Ordering::Acquire);
    loop {
        let view = cursors_of(seen, generation);
        if view.begun(role) != own {
            return Err(Broken);
        }
        if view.flags != 0 || view.front + view.back >= total {
            return Ok(None);
        }
        let (next, piece) = match role {
            Role::Reader => (Cursors { front: own + 1, ..view }, own),
            Role::Writer => (Cursors { back: own + 1, ..view }, total - 1 - own),
        };
        let next = word_of(next, generation);
        match word.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(Some(piece)),
            Err(now) => seen = now,
        }
    }
}

/// Raises a flag: no piece is claimed after this.
pub fn raise(word: &AtomicU64, generation: u32, flag: u32) {
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |seen| {
        let view = cursors_of(seen, generation);
        Some(word_of(Cursors { flags: view.flags | flag, ..view }, generation))
    });
}

/// Stores the number of pieces that a side has finished, with 16 bits of the generation, which
/// differ from those of the message before in this cell. Also written before the first claim, because a
/// message 65536 before has the same bits.
pub fn note_finished(word: &AtomicU32, generation: u32, count: usize) {
    word.store(generation << 16 | count as u32, Ordering::Release);
}

pub fn finished(word: &AtomicU32, generation: u32) -> usize {
    let word = word.load(Ordering::Acquire);
    if word >> 16 == generation & 0xffff { (word & 0xffff) as usize } else { 0 }
}

/// Returns the word, and whether the peer of `role` has finished every piece that it has begun there.
///
/// Its count is read before the word: a side counts a piece that it could not copy after it has raised
/// the flag, so the flags of all pieces that are finished are in the word.
pub fn view(word: &AtomicU64, theirs: &AtomicU32, generation: u32, role: Role) -> (Cursors, bool) {
    let finished = finished(theirs, generation);
    let view = cursors(word, generation);
    (view, finished >= view.begun(role.other()))
}

/// Every interleaving: `RUSTFLAGS="--cfg loom" cargo test --release --lib interleavings`.
#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use crate::interleavings::{beside, explore};
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize as Count;

    struct Message {
        claims: AtomicU64,
        finished: [AtomicU32; 2],
        pieces: Vec<Count>,
    }

    fn message(claims: u64, pieces: usize) -> Arc<Message> {
        Arc::new(Message {
            claims: AtomicU64::new(claims),
            finished: [AtomicU32::new(0), AtomicU32::new(0)],
            pieces: (0..pieces).map(|_| Count::new(0)).collect(),
        })
    }

    /// Returns whether one side sees the end; then every piece was copied, once, and can be seen.
    fn is_over(message: &Message, end: Role) -> bool {
        let theirs = &message.finished[end.other() as usize];
        let (view, settled) = view(&message.claims, theirs, 5, end);
        let all_claimed = view.front + view.back == message.pieces.len();
        assert!(all_claimed || view.flags != 0);
        let over = settled && view.flags == 0;
        if over {
            for piece in &message.pieces {
                assert_eq!(piece.load(Ordering::Relaxed), 1);
            }
        }
        over
    }

    /// One side: copies while there is something to claim.
    fn side(message: &Message, end: Role) {
        let mut own = 0;
        while let Ok(Some(piece)) = claim(&message.claims, 5, end, own, message.pieces.len()) {
            own += 1;
            message.pieces[piece].fetch_add(1, Ordering::Relaxed);
            note_finished(&message.finished[end as usize], 5, own);
        }
    }

    #[test]
    fn two_ends_copy_every_piece_once_and_see_it_at_the_end() {
        explore(4, || {
            let message = message(4 << 32 | 3, 3);
            let other = beside(&message, |message| {
                side(&message, Role::Writer);
                is_over(&message, Role::Writer);
            });
            side(&message, Role::Reader);
            is_over(&message, Role::Reader);
            other.join().unwrap();
            // Afterwards both see the end; a side that does not yet see it looks again (`doorbell`).
            assert!(is_over(&message, Role::Reader) && is_over(&message, Role::Writer));
        });
    }

    /// A side that has copied its own must not take the message for copied.
    #[test]
    fn piece_that_failed_is_not_taken_for_copied() {
        explore(4, || {
            let message = message(0, 2);
            let other = beside(&message, |message| {
                side(&message, Role::Writer);
                is_over(&message, Role::Writer);
            });
            if let Ok(Some(_)) = claim(&message.claims, 5, Role::Reader, 0, 2) {
                raise(&message.claims, 5, flag::REFUSED);
                note_finished(&message.finished[Role::Reader as usize], 5, 1);
            }
            other.join().unwrap();
        });
    }

    /// A side that raises a flag and then sees the other settled is alone.
    #[test]
    fn raised_flag_and_settled_means_no_side_copies_any_more() {
        explore(4, || {
            let message = message(0, 2);
            let other = beside(&message, |message| side(&message, Role::Writer));
            raise(&message.claims, 5, flag::CANCELLED);
            let begun = cursors(&message.claims, 5).back;
            if finished(&message.finished[Role::Writer as usize], 5) == begun {
                let copied = |piece: &Count| piece.load(Ordering::Relaxed);
                let before: usize = message.pieces.iter().map(copied).sum();
                other.join().unwrap();
                assert_eq!(message.pieces.iter().map(copied).sum::<usize>(), before);
                return;
            }
            other.join().unwrap();
        });
    }
}
