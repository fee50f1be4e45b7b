//! The table of asynchronous copies: cookies, their parts, and their ends.
//!
//! An entry is the owner of a cookie, or a part of one, or both at once: a single copy is an
//! owner that is its only part. A part's pieces are claimed and finished as in `queue`. The state
//! of an owner is one 64-bit word:
//!
//! ```text
//! 63         4    3      2   0
//! generation  sleepers  phase       free -> filling -> active -> over -> retiring -> free
//! ```
//!
//! An owner counts the parts that are not over, and one more while the caller is still adding
//! parts. The thread that brings that count to zero ends the owner. It first writes the notice,
//! whose memory the caller may free after the next step; then it sets the phase, which is all that
//! `look` reads. The generation rises whenever an entry becomes free, so a cookie can be waited for
//! once.

use super::queue::{End, Posted, Slot, headcount};
use crate::backend::engine::request::Request;
#[cfg(not(loom))]
use crate::os::mapped::Mapped;
use crate::os::sync::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering, Sleepable, Woken, fetch_to_change, take_bit,
};
#[cfg(not(loom))]
use zerocopy::FromZeros;

/// Most cookies and parts at once.
pub const ENTRIES: usize = if cfg!(loom) { 2 } else { 4096 };
const WORDS: usize = ENTRIES.div_ceil(64);

mod phase {
    pub const FREE: u64 = 0;
    pub const FILLING: u64 = 1;
    pub const ACTIVE: u64 = 2;
    pub const OVER: u64 = 3;
    pub const RETIRING: u64 = 4;
    pub const MASK: u64 = 7;
    pub const SLEEPERS: u64 = 8;
    pub const ONE_GENERATION: u64 = 16;
}

/// Index in the table, plus one; 0: none.
type EntryLink = AtomicU32;

#[cfg_attr(loom, derive(Default))]
#[cfg_attr(not(loom), derive(FromZeros))]
pub struct Entry {
    pub slot: Slot,
    state: Sleepable,
    // As a part.
    owner: EntryLink,
    next: EntryLink,
    /// Set if a bad page in this part only ends a copy loop: see `is_guarded`.
    guarded: AtomicU32,
    /// Engine request that carries this part; number 0: none does, its pieces are claimed.
    pub request: Request,
    // As an owner.
    first: EntryLink,
    left: AtomicU32,
    failed: AtomicU32,
    detached: AtomicU32,
    helped: AtomicU32,
    word: AtomicUsize,
    value: AtomicU64,
    /// Bytes of its parts.
    bytes: AtomicUsize,
    /// Bytes of all its copies, including those that the caller has made itself.
    total: AtomicUsize,
    begun: AtomicU64,
    /// Pieces of a part that were copied, one bit each.
    #[cfg(not(loom))]
    copied: [AtomicU64; COPIED_WORDS],
}

#[cfg(not(loom))]
const COPIED_WORDS: usize = (crate::plan::Cut::MOST + 1).div_ceil(64);

/// Word of the caller that is written at the end, and its value then.
#[derive(Clone, Copy, Debug)]
pub struct Notice {
    pub word: usize,
    pub value: u64,
}

/// An owner that has just ended, for the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub bytes: usize,
    pub begun: u64,
}

/// State of a cookie; `Inside` is the cookie's entry where a function of the table returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieState<Inside = ()> {
    /// Retired, being retired, or never given out.
    Unknown,
    UnderWay(Inside),
    Over(Inside),
}

/// A cookie: the index and the generation of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    index: usize,
    generation: u32,
}

impl Cookie {
    const INDEX_BITS: u32 = 12;
    const TAG_SHIFT: u32 = Self::INDEX_BITS + 32;
    const TAG: u64 = (1 << 18) - 1;

    /// Returns a number below 2^62: `tag` (18 bits of it) | generation | index. Bit 62 is set in the
    /// cookies of messages.
    pub fn pack(self, tag: u32) -> i64 {
        let tag = (u64::from(tag) & Self::TAG) << Self::TAG_SHIFT;
        (tag | u64::from(self.generation) << Self::INDEX_BITS | self.index as u64) as i64
    }

    /// Undoes `pack`. `None`: the number was not packed with this tag.
    pub fn unpack(packed: i64, tag: u32) -> Option<Self> {
        let bits = u64::try_from(packed).ok()?;
        let index = (bits & ((1 << Self::INDEX_BITS) - 1)) as usize;
        let ours = bits >> Self::TAG_SHIFT == u64::from(tag) & Self::TAG && index < ENTRIES;
        ours.then_some(Self { index, generation: (bits >> Self::INDEX_BITS) as u32 })
    }
}

impl Entry {
    fn state(&self) -> u64 {
        self.state.atomic().load(Ordering::Acquire)
    }

    pub fn is_carried_by_helper(&self) -> bool {
        self.request.id.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a bad page of this part only ends a copy loop. Calls `ask` until it has
    /// returned true once, and keeps that answer. For threads that have claimed a piece.
    pub fn is_guarded(&self, ask: impl FnOnce() -> bool) -> bool {
        if self.guarded.load(Ordering::Relaxed) == 0 && ask() {
            self.guarded.store(1, Ordering::Relaxed);
        }
        self.guarded.load(Ordering::Relaxed) != 0
    }

    /// Notes a piece whose bytes are in place.
    fn note_copied(&self, index: usize) {
        #[cfg(not(loom))]
        self.copied[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
        #[cfg(loom)]
        let _ = index;
    }

    /// Returns the bytes from the start of this part that are in place.
    #[cfg(not(loom))]
    fn copied_from_start(&self) -> usize {
        let cut = self.slot.posted().cut;
        let is_copied = |&index: &usize| {
            self.copied[index / 64].load(Ordering::Acquire) & 1 << (index % 64) != 0
        };
        let whole = (0..cut.count()).take_while(is_copied).last().map(|last| cut.piece(last));
        whole.map_or(0, |last| last.offset + last.len)
    }

    /// Returns whether an engine carries a part of this owner: then the phase alone does not show the end.
    pub fn needs_help(&self) -> bool {
        self.helped.load(Ordering::Relaxed) != 0
    }

    /// Returns whether this owner becomes free by itself, because no thread asks for its end.
    pub fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed) != 0
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the length of all its copies, which `Table::copied` returns once they are over.
    pub fn set_total(&self, bytes: usize) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes of the parts that the caller copies itself.
    pub fn take_off(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Writes the notice to the caller's word, if the caller has given one.
    ///
    /// # Safety
    /// The end is not reported yet: until then the caller keeps the word writable.
    pub unsafe fn give_notice(&self) {
        let word = self.word.load(Ordering::Relaxed);
        if word != 0 {
            let value = self.value.load(Ordering::Relaxed);
            // SAFETY: the caller ensures that the word is still writable; its alignment was checked
            // when it was taken.
            let word = unsafe { &*(word as *const AtomicU64) };
            word.store(value, Ordering::Release);
        }
    }
}

#[cfg_attr(loom, derive(Default))]
#[cfg_attr(not(loom), derive(FromZeros))]
pub struct Table {
    #[cfg(not(loom))]
    entries: Mapped<[Entry; ENTRIES]>,
    #[cfg(loom)]
    entries: [Entry; ENTRIES],
    /// One bit for each entry that is not free.
    used: [AtomicU64; WORDS],
    /// One bit for each part with pieces for workers to claim.
    open: [AtomicU64; WORDS],
    /// Number of bits set in `open`.
    offered: AtomicUsize,
    /// Where the search for a free entry begins.
    hint: AtomicUsize,
}

impl Table {
    /// Returns the entries; none before the first was taken.
    #[inline]
    fn entries(&self) -> &[Entry] {
        #[cfg(not(loom))]
        return self.entries.get().map_or(&[], |entries| entries);
        #[cfg(loom)]
        return &self.entries;
    }

    /// Returns the entries; the first call makes them. `None`: there is no memory for them.
    #[inline]
    fn entries_to_take(&self) -> Option<&[Entry]> {
        #[cfg(not(loom))]
        return self.entries.get_or_map().map(|entries| &entries[..]);
        #[cfg(loom)]
        return Some(&self.entries);
    }

    fn number(&self, entry: &Entry) -> usize {
        (&raw const *entry as usize - self.entries().as_ptr() as usize) / size_of::<Entry>()
    }

    fn linked(&self, link: &EntryLink) -> Option<&Entry> {
        self.entries().get((link.load(Ordering::Relaxed) as usize).wrapping_sub(1))
    }

    /// Prefetches the words that starting a copy will change. A large copy has evicted all of them,
    /// and taking these cache misses one after the other would take longer than the rest.
    pub fn prefetch(&self) {
        let word = self.hint.load(Ordering::Relaxed) % WORDS;
        let free = self.used[word].load(Ordering::Relaxed).trailing_ones() as usize % 64;
        let first = self.entries().as_ptr() as usize;
        let entry = first + (word * 64 + free) % ENTRIES * size_of::<Entry>();
        for line in (entry..entry + size_of::<Entry>()).step_by(64) {
            fetch_to_change(line);
        }
        fetch_to_change(&raw const self.open[word] as usize);
    }

    /// Returns whether there was a free entry just now.
    pub fn has_room(&self) -> bool {
        let first = self.hint.load(Ordering::Relaxed);
        (0..WORDS).any(|i| self.used[(first + i) % WORDS].load(Ordering::Relaxed) != u64::MAX)
    }

    /// Returns how many entries were free just now.
    pub fn room(&self) -> usize {
        self.used.iter().map(|used| used.load(Ordering::Relaxed).count_zeros() as usize).sum()
    }

    /// Takes a free entry. `None`: the table is full.
    pub fn take(&self) -> Option<&Entry> {
        let entries = self.entries_to_take()?;
        let first = self.hint.load(Ordering::Relaxed);
        let in_word = |word| Some((word, take_bit(&self.used[word], ENTRIES.min(64) as u32)?));
        let (word, bit) = (0..WORDS).find_map(|i| in_word((first + i) % WORDS))?;
        if word != first {
            self.hint.store(word, Ordering::Relaxed);
        }
        let entry = &entries[word * 64 + bit];
        // From generation 1 up: a cookie is never 0.
        let state = entry.state.atomic().load(Ordering::Relaxed).max(phase::ONE_GENERATION);
        entry.state.atomic().store(state | phase::FILLING, Ordering::Relaxed);
        entry.request.id.store(0, Ordering::Relaxed);
        Some(entry)
    }

    /// Makes a taken entry free, with a new generation.
    pub fn release(&self, entry: &Entry) {
        let generation = entry.state.atomic().load(Ordering::Relaxed) / phase::ONE_GENERATION + 1;
        let free = (generation * phase::ONE_GENERATION) | phase::FREE;
        entry.state.atomic().store(free, Ordering::Release);
        let number = self.number(entry);
        self.used[number / 64].fetch_and(!(1 << (number % 64)), Ordering::Release);
    }

    /// Makes a taken entry an owner, whose parts are added later. `detached`: it becomes free by itself.
    pub fn start(&self, owner: &Entry, notice: Option<Notice>, detached: bool, begun: u64) {
        let notice = notice.unwrap_or(Notice { word: 0, value: 0 });
        owner.word.store(notice.word, Ordering::Relaxed);
        owner.value.store(notice.value, Ordering::Relaxed);
        owner.detached.store(u32::from(detached), Ordering::Relaxed);
        owner.begun.store(begun, Ordering::Relaxed);
        owner.bytes.store(0, Ordering::Relaxed);
        owner.total.store(0, Ordering::Relaxed);
        owner.first.store(0, Ordering::Relaxed);
        owner.failed.store(0, Ordering::Relaxed);
        owner.helped.store(0, Ordering::Relaxed);
        owner.left.store(1, Ordering::Relaxed);
        let filling = owner.state.atomic().load(Ordering::Relaxed);
        let active = filling & !phase::MASK | phase::ACTIVE;
        owner.state.atomic().store(active, Ordering::Release);
    }

    /// Returns the cookie of an owner.
    pub fn cookie(&self, owner: &Entry) -> Cookie {
        let state = owner.state.atomic().load(Ordering::Relaxed);
        Cookie { index: self.number(owner), generation: (state / phase::ONE_GENERATION) as u32 }
    }

    /// Adds a taken entry, perhaps the owner itself, as a part. Its pieces can be claimed from now
    /// on: by workers if they are `offered`, and by a caller that waits.
    pub fn add(&self, owner: &Entry, part: &Entry, copy: &Posted, offered: bool) {
        let number = self.number(part);
        let (len, ..) = copy.cut.parts();
        owner.left.fetch_add(1, Ordering::Relaxed);
        owner.bytes.fetch_add(len, Ordering::Relaxed);
        if part.is_carried_by_helper() {
            owner.helped.store(1, Ordering::Relaxed);
        }
        part.guarded.store(0, Ordering::Relaxed);
        #[cfg(not(loom))]
        for word in &part.copied[..copy.cut.count().div_ceil(64)] {
            word.store(0, Ordering::Relaxed);
        }
        part.owner.store(self.number(owner) as u32 + 1, Ordering::Relaxed);
        part.next.store(owner.first.load(Ordering::Relaxed), Ordering::Relaxed);
        if offered {
            // Before the part can be claimed, because the claimer of its last piece undoes this.
            self.offered.fetch_add(1, Ordering::Relaxed);
            self.open[number / 64].fetch_or(1 << (number % 64), Ordering::Relaxed);
        }
        part.slot.post(copy);
        // Stored last, with release: a thread that walks over the owner's parts sees all fields of each.
        owner.first.store(number as u32 + 1, Ordering::Release);
    }

    /// Counts out a worker that is sent away, or may not sleep, before it ends. Returns false if a
    /// copy is pending: then the worker is counted in again. A thread that starts a copy meanwhile
    /// either sees one worker less, or its copy is seen here.
    pub fn count_out(&self, alive: &AtomicU32) -> bool {
        alive.fetch_sub(headcount::ONE, Ordering::AcqRel);
        if !self.has_work() {
            return true;
        }
        alive.fetch_add(headcount::ONE, Ordering::AcqRel);
        false
    }

    /// Returns whether all parts added so far are over, for an owner that is not closed yet.
    pub fn parts_are_over(&self, owner: &Entry) -> bool {
        owner.left.load(Ordering::Acquire) == 1
    }

    /// Claims a piece of a part. The claimer must call `finish`.
    pub fn claim(&self, part: &Entry, end: End) -> Option<(Posted, usize)> {
        let (copy, index, more) = part.slot.claim(end)?;
        if !more {
            // Before the piece is finished: until then the entry holds this copy.
            let number = self.number(part);
            let bit = 1 << (number % 64);
            if self.open[number / 64].fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
                self.offered.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Some((copy, index))
    }

    /// Finishes a claimed piece; `done` is false when it could not be copied and is left to the
    /// thread that asks for the end. `Some`: the owner is over with this piece.
    pub fn finish(&self, part: &Entry, index: usize, done: bool) -> Option<Ended> {
        let owner = self.owner(part)?; // read while the piece keeps it alive
        if !done {
            owner.failed.store(1, Ordering::Relaxed);
        } else {
            part.note_copied(index);
        }
        if part.slot.finish(index, done) { self.close(owner) } else { None }
    }

    /// Counts down the owner: the caller adds no more parts, or one part is over. `Some`: the owner is over.
    pub fn close(&self, owner: &Entry) -> Option<Ended> {
        if owner.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        let ended = Ended { bytes: owner.bytes(), begun: owner.begun.load(Ordering::Relaxed) };
        if owner.failed.load(Ordering::Relaxed) == 0 {
            // SAFETY: the end was not reported yet, and until then the caller keeps the word writable.
            unsafe { owner.give_notice() };
        }
        if owner.is_detached() {
            self.free(owner);
            return Some(ended);
        }
        let step = |state: u64| Some(state & !(phase::MASK | phase::SLEEPERS) | phase::OVER);
        let state = owner.state.atomic();
        let before = state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, step);
        if before.is_ok_and(|before| before & phase::SLEEPERS != 0) {
            // The entry may have another owner by now; its sleepers then wake for nothing.
            owner.state.wake(i32::MAX as u32);
        }
        Some(ended)
    }

    /// Returns the state of a cookie: one load.
    #[inline]
    pub fn look(&self, cookie: Cookie) -> CookieState<&Entry> {
        let Some(entry) = self.entries().get(cookie.index) else { return CookieState::Unknown };
        let state = entry.state();
        if (state / phase::ONE_GENERATION) as u32 != cookie.generation {
            return CookieState::Unknown;
        }
        match state & phase::MASK {
            phase::ACTIVE if !entry.is_detached() => CookieState::UnderWay(entry),
            phase::OVER => CookieState::Over(entry),
            _ => CookieState::Unknown,
        }
    }

    /// Returns the bytes from the start of a cookie's copy that are in place: all of them once it is
    /// over, and 0 until then where it has several parts. `None`: not a cookie.
    #[cfg(not(loom))]
    pub fn copied(&self, cookie: Cookie) -> Option<usize> {
        let copied = match self.look(cookie) {
            CookieState::Unknown => return None,
            CookieState::Over(owner) => owner.total.load(Ordering::Relaxed),
            CookieState::UnderWay(owner) => {
                let mut parts = self.parts(owner);
                match (parts.next(), parts.next()) {
                    (Some(part), None) => part.copied_from_start(),
                    _ => 0,
                }
            }
        };
        // The entry may have been reused for another owner meanwhile.
        match self.look(cookie) {
            CookieState::Unknown => None,
            _ => Some(copied),
        }
    }

    /// Claims the end of an owner; false: another thread was first. After true, call `free`.
    pub fn retire(&self, cookie: Cookie) -> bool {
        let CookieState::Over(owner) = self.look(cookie) else { return false };
        let state = owner.state.atomic();
        let over = state.load(Ordering::Relaxed);
        let retiring = over & !phase::MASK | phase::RETIRING;
        (over / phase::ONE_GENERATION) as u32 == cookie.generation
            && over & phase::MASK == phase::OVER
            && state.compare_exchange(over, retiring, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Iterates over the parts of an owner. A thread that does not own the entry may see parts of
    /// the entry's next owner; claiming their pieces only helps.
    pub fn parts<'a>(&'a self, owner: &Entry) -> impl Iterator<Item = &'a Entry> + use<'a> {
        let _ = owner.first.load(Ordering::Acquire);
        let mut at = self.linked(&owner.first);
        (0..ENTRIES).map_while(move |_| {
            let part = at?;
            at = self.linked(&part.next);
            Some(part)
        })
    }

    /// Returns the owner of a part, while a piece of it is claimed.
    pub fn owner(&self, part: &Entry) -> Option<&Entry> {
        self.linked(&part.owner)
    }

    pub fn has_failed(&self, owner: &Entry) -> bool {
        owner.failed.load(Ordering::Relaxed) != 0
    }

    /// Releases an owner that is over, and its parts.
    pub fn free(&self, owner: &Entry) {
        let mut at = self.linked(&owner.first);
        while let Some(part) = at {
            at = self.linked(&part.next);
            if self.number(part) != self.number(owner) {
                self.release(part);
            }
        }
        self.release(owner);
    }

    /// Sleeps until a cookie is no longer under way, at most `nanos` (0: without end).
    pub fn sleep(&self, owner: &Entry, cookie: Cookie, nanos: u64) -> Woken {
        let state = owner.state();
        let ours = (state / phase::ONE_GENERATION) as u32 == cookie.generation
            && state & phase::MASK == phase::ACTIVE;
        if !ours {
            return Woken::LookAgain;
        }
        let asleep = state | phase::SLEEPERS;
        if state != asleep
            && owner
                .state
                .atomic()
                .compare_exchange(state, asleep, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
        {
            return Woken::LookAgain;
        }
        owner.state.sleep_while(asleep, nanos)
    }

    /// Returns whether there is work for workers.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.offered.load(Ordering::Relaxed) > 0
    }

    /// Returns a part with pieces to claim: the first after number `after`, round robin, so that no
    /// part starves.
    pub fn find_work(&self, after: usize) -> Option<(usize, &Entry)> {
        if !self.has_work() {
            return None;
        }
        let (word, bit) = (after / 64, after % 64);
        let above = u64::MAX.checked_shl(bit as u32 + 1).unwrap_or(0);
        let masks = core::iter::once((word, above))
            .chain((1..WORDS).map(move |i| ((word + i) % WORDS, u64::MAX)))
            .chain([(word, !above)]);
        for (word, mask) in masks {
            let mut open = self.open[word % WORDS].load(Ordering::Acquire) & mask;
            while open != 0 {
                let number = word % WORDS * 64 + open.trailing_zeros() as usize;
                open &= open - 1;
                if let Some(entry) = self.entries().get(number)
                    && entry.slot.unclaimed() > 0
                {
                    return Some((number, entry));
                }
            }
        }
        None
    }

    /// Clears the table in the child of a fork: cookies and copies are the parent's.
    pub fn forget_everything(&self) {
        if self.entries().is_empty() {
            return; // a page that is written is copied for the child
        }
        for (word, used) in self.used.iter().enumerate() {
            let mut left = used.load(Ordering::Relaxed);
            while left != 0 {
                let entry = &self.entries()[word * 64 + left.trailing_zeros() as usize];
                left &= left - 1;
                entry.slot.release();
                self.release(entry);
            }
            self.open[word].store(0, Ordering::Relaxed);
        }
        self.offered.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "cookies_tests.rs"]
mod tests;

/// Every interleaving of starting, claiming, ending, asking and leaving:
/// `RUSTFLAGS="--cfg loom" cargo test --release --lib interleavings`.
#[cfg(all(test, loom))]
#[path = "cookies_loom.rs"]
mod interleavings;
