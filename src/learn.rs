//! Learns which way is best for the program, not for the copy alone.
//!
//! A shared or streamed copy may end sooner and still cost the program more: what it has just written
//! moves to other CPUs' caches, and what it reads next is not in its own. So two things are measured:
//! where the bytes of this very copy are, and how long the program takes from one call to the next.
//!
//! ```text
//! call(site, len):
//!     look: libc copies 8 KiB at a random page of the copy, timed
//!     place = Near     in a cache of this CPU, by the time; from 2 MiB up by the average of last looks
//!             Far      in memory
//!             Between  in caches further away, of this or other CPUs
//!     if place is Near:
//!         libc copies the rest                         # nothing to gain, much to lose
//!     else:
//!         used = the program did something since its last call from this site
//!         crowd = the last calls from this site were of several threads
//!         cell = cells[site, size class of len, place, used, crowd]
//!         if the last call from this site, or the cell, has a sample open for this thread:
//!             close it: cost = that call, and what the program did until now
//!         way = cell.best, or the way whose turn it is in a trial
//!         copy that way; open a sample
//!
//! best, before any trial: shared if Far (streamed from 4 MiB up if not used), libc if Between
//!
//! trial, when the cell has FIRST samples, when its costs have moved, or when PERIOD times as much time
//! was spent as the last trial has cost:
//!     ways = those available now, without libc and streaming by the caller, if by the look five eighths
//!         of libc's copy alone take longer than the program's whole period now
//!     two rounds: each way has BLOCK calls in a row, the first of which is not counted,
//!         because it finds the caches as the way before has left them
//!     after the first round ways are left out that cost a quarter more than the best one
//!     best = the way with the lowest median; the old one stays unless another gains 1/32
//! ```
//!
//! The time after a call counts up to `AFTERWARDS` times what libc would have taken: a longer pause
//! shows nothing about the caches. It counts for copies and fills only.
//!
//! Nothing is timed or copied in this file. All threads share the numbers without locks: a lost
//! update costs a sample, not a copy.
mod cell;
mod marks;

use crate::backend::engine::tuning;
use crate::backend::threads::Cost;
use crate::backend::threads::workers::SPIN_TICKS;
use crate::os::sys::{self, THREAD_SLOTS};
use bitflags::bitflags;
pub use cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use marks::Marks;
use zerocopy::FromZeros;

/// Size below which no copy is considered.
pub const FLOOR: usize = 256 << 10;

/// Size classes. From 16 MiB up all copies share one: the cost of a byte no longer depends on how many
/// there are, and few programs make enough of each size to judge it by itself.
const SIZES: usize = 7;

/// Size from which shared copies are streamed until more is known: twice an L2 cache would have been
/// evicted anyway.
pub const STREAM_FROM: usize = 4 << 20;
/// Size from which streaming is tried at all. Smaller copies fit into an L2 cache, which it bypasses.
pub const TRY_STREAM_FROM: usize = 1 << 20;

/// Size from which a call that workers help in vain costs next to nothing, because the caller then does
/// everything itself.
pub const LARGE: usize = 8 << 20;

/// Ticks that caches need to settle when the way changes.
pub const SETTLING_TICKS: u64 = 1_000_000;

/// Unit of distances, which are measured by the time of a copy: bytes in the L1 cache are one unit away.
pub const CACHE: u32 = 64;
/// Distances up to which bytes are near, and from which on they are far. On the CPUs that were measured the
/// L2 cache is 2 to 5 away, caches further away 6 to 12, memory 11 to 18.
const NEAR: u32 = 6;
const FAR: u32 = 12;
/// Upper bound of a distance: beyond it the thread was preempted.
const MOST_DISTANT: u32 = 24 * CACHE;
/// Size from which the average distance counts: a part of such a copy may be near and others not.
const AVERAGE_FROM: usize = 2 << 20;

/// Divisor of libc's time for a call: where less than that part of it lies between two calls, nothing uses
/// the bytes.
const UNUSED: u64 = 8;

/// Cells of a learner, and how many of them a key may be in.
const CELLS: usize = 128;
const PROBES: usize = 4;

/// Unit of ratios: it stands for 1.
const ONE: u32 = 1024;

/// Bounds of a ratio: beyond them it makes no difference.
const MOST: u32 = 4 * ONE;
const LEAST: u32 = ONE / 4;

/// Size from which first bytes are timed for reports.
const PAIRS_FROM: usize = 1 << 20;
/// For reports, the first bytes of the first calls of a cell are all timed, later one in `PAIRS_THEN`.
const PAIRS_FIRST: u32 = 3;
const PAIRS_THEN: u32 = 8;
/// First bytes that are timed for reports: libc copies large ranges differently from small ones.
const SAMPLE: usize = 4 << 20;
/// One later call in this many has its first `SAMPLE` bytes timed. The first 32 calls of a cell all may have.
const SAMPLES_THEN: u32 = 32;
/// Copies into fresh memory are timed from this size up, because their first bytes are whole page
/// tables: one in each `FRESH_PAIR_EVERY` bytes of the first 32 calls, then one in eight times as many.
pub const FRESH_PAIRS_FROM: usize = 8 << 20;
const FRESH_PAIR_EVERY: usize = 128 << 20;
const PAGE_TABLE: usize = 2 << 20;
/// Shorter ones are timed whole, by libc: one in `FRESH_WHOLE_EVERY` of the first `FRESH_WHOLE_FIRST` calls,
/// later one in `FRESH_WHOLE_THEN`, which costs 1 or 2 percent where sharing is five times as fast. Both are
/// primes: a program that makes as many copies each time has another one of them timed each time.
const FRESH_WHOLE_FIRST: u32 = 256;
const FRESH_WHOLE_EVERY: u32 = 61;
const FRESH_WHOLE_THEN: u32 = 251;

/// Calls on busy CPUs that do not ask whether memory is fresh, after one that found it in use: asking
/// locks the list of mappings, and a caller that waits for it finds its caches emptied.
const UNASKED: u32 = 63;

/// Near calls after which their time is noted once for all of them.
const NEAR_NOTED: u32 = 16;

/// Where the bytes of a copy are. Operations that are not looked at count as far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Near,
    Between,
    Far,
}

impl Place {
    const ALL: [Place; 3] = [Place::Near, Place::Between, Place::Far];

    /// Returns the place for a distance, in parts of `CACHE`.
    fn at(distance: u32) -> Self {
        match distance {
            _ if distance < NEAR * CACHE => Place::Near,
            _ if distance < FAR * CACHE => Place::Between,
            _ => Place::Far,
        }
    }
}

/// Ways that a large call can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    Libc,
    /// The caller, with streaming stores.
    Alone,
    /// Caller and workers, or another engine.
    Shared,
    /// Caller and workers, with streaming stores.
    Streamed,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Libc, Way::Alone, Way::Shared, Way::Streamed];

    pub fn is_shared(self) -> bool {
        matches!(self, Way::Shared | Way::Streamed)
    }

    fn bit(self) -> Ways {
        Ways::from_bits_truncate(1 << self as u8)
    }

    pub fn name(self) -> &'static str {
        ["libc", "streamed by the caller", "shared", "shared and streamed"][self as usize]
    }
}

bitflags! {
    /// Circumstances of a call that have a cell of their own.
    pub struct Context: u8 {
        /// Bytes are between the caller's cache and memory.
        const BETWEEN = 1 << 3;
        /// The program does nothing between its calls.
        const UNUSED = 1 << 4;
        /// Several threads call from this place: workers take time from them.
        const CROWD = 1 << 5;
    }
}

bitflags! {
    /// Ways that a call could take.
    pub struct Ways: u32 {
        const LIBC = 1 << Way::Libc as u8;
        const ALONE = 1 << Way::Alone as u8;
        const SHARED = 1 << Way::Shared as u8;
        const STREAMED = 1 << Way::Streamed as u8;
    }
}

impl Ways {
    fn iter(self) -> impl Iterator<Item = Way> {
        Way::ALL.into_iter().filter(move |way| self.contains(way.bit()))
    }

    fn count(self) -> u32 {
        self.bits().count_ones()
    }
}

#[derive(FromZeros)]
pub struct Learner {
    cells: [Cell; CELLS],
    recent: [Recent; THREAD_SLOTS],
    /// Calls that found their bytes in the caller's caches, by size; for reports.
    near: [AtomicU32; SIZES],
    /// Copies into memory that was never written, of any size. Shared, but for those that libc makes for
    /// reports; the cell counts them for these.
    pub fresh: Cell,
    /// Choice of huge pages for fresh memory, by size.
    marks: [Marks; SIZES],
    /// Calls left that do not ask whether memory is fresh.
    unasked: AtomicU32,
}

/// Data of a thread, on one cache line: a near call touches no other.
#[repr(align(64))]
#[derive(FromZeros)]
struct Recent {
    /// Ticks at which the thread's last large copy ended that was not near.
    end: AtomicU64,
    /// Large calls, and those of them that were near.
    calls: AtomicU32,
    near: AtomicU32,
}

/// Returns how much faster `b` is than `a`, in parts of `ONE`.
fn ratio(a: u32, b: u32) -> u32 {
    let ratio = u64::from(a) * u64::from(ONE) / u64::from(b.max(1));
    ratio.clamp(LEAST.into(), MOST.into()) as u32
}

/// Adds one without a locked instruction: a lost update costs nothing that matters.
fn add(count: &AtomicU32) -> u32 {
    let before = count.load(Relaxed);
    count.store(before.wrapping_add(1), Relaxed);
    before
}

/// Moves an average towards a sample by one part in `weight`.
fn blend(average: &AtomicU32, sample: u32, weight: u64) {
    let next = tuning::blend(average.load(Relaxed).into(), sample.into(), weight, 4);
    average.store(next as u32, Relaxed);
}

/// Returns whether a call is among the first ones, or is one in `then`.
fn is_turn(calls: u32, then: u32) -> bool {
    calls < PAIRS_FIRST || calls.is_multiple_of(then)
}

/// Returns the size class of a call.
pub fn class(len: usize) -> usize {
    ((len / FLOOR).max(1).ilog2() as usize).min(SIZES - 1)
}

/// Returns the key of a cell: never 0, which stands for a free one.
fn key(site: usize, len: usize, context: Context) -> u64 {
    (site as u64) << 6 | u64::from(context.bits()) | (class(len) as u64 + 1)
}

fn hash(key: u64) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - CELLS.ilog2())) as usize
}

/// Returns a number for the calling thread; threads may share one.
fn thread() -> u64 {
    sys::thread_register().unwrap_or(0)
}

impl Learner {
    /// Returns the cell for calls of `len` bytes from a site. Where a table is full of other sites, one cell
    /// serves several.
    pub fn cell(&self, site: usize, len: usize, context: Context) -> &Cell {
        let key = key(site, len, context);
        let at = hash(key);
        let mut cell = &self.cells[at];
        for probe in 0..PROBES {
            cell = &self.cells[(at + probe) % CELLS];
            if cell.is_for(key) {
                break;
            }
        }
        cell
    }

    fn recent(&self, thread: u64) -> &Recent {
        &self.recent[sys::slot_of(thread)]
    }

    /// Returns the cell of all calls of `len` bytes from a site.
    pub fn base(&self, site: usize, len: usize) -> &Cell {
        self.cell(site, len, Context::empty())
    }

    /// Returns the place of a call's bytes, given the distance of a few of them. From `AVERAGE_FROM` up the
    /// average counts, and changes its place only once it is a sixteenth outside. Nothing is stored below that
    /// unless the place changes: threads that copy from one site share its cell.
    pub fn place(&self, site: usize, len: usize, distance: u32) -> Place {
        let base = self.base(site, len);
        let before = base.place();
        let now = if len < AVERAGE_FROM {
            Place::at(distance)
        } else {
            let average = base.note_distance(distance.min(MOST_DISTANT));
            let by = average / 16;
            let is_inside =
                |place: &Place| [average - by, average + by].map(Place::at).contains(place);
            before.filter(is_inside).unwrap_or_else(|| Place::at(average))
        };
        if before != Some(now) {
            base.set_place(now);
        }
        now
    }

    /// Returns the cell of a call that begins `now`, for which libc would take `ticks`.
    pub fn cell_at(&self, site: usize, len: usize, place: Place, ticks: u64, now: u64) -> &Cell {
        let mut context = Context::empty();
        context.set(Context::BETWEEN, place == Place::Between);
        let base = self.base(site, len);
        let since = base.since_end(thread(), now);
        context.set(Context::CROWD, base.note_turn(since.is_none()));
        context.set(Context::UNUSED, since.is_some_and(|since| since < ticks / UNUSED));
        self.cell(site, len, context)
    }

    /// Counts a call of this thread.
    pub fn note_begin(&self) {
        add(&self.recent(thread()).calls);
    }

    /// Closes the sample of the thread's last call from a site, before the next one: of its cell, which may be
    /// another one, or of this call's, where another thread's call has come in between.
    pub fn close(&self, site: usize, len: usize, cell: &Cell, now: u64) {
        let thread = thread();
        let calls = self.recent(thread).calls.load(Relaxed);
        let last = self.cell(site, len, self.base(site, len).last_context());
        [last, cell].iter().for_each(|cell| cell.close(thread, calls, now));
    }

    /// Opens a sample of a call of this cell that has ended.
    pub fn open(&self, cell: &Cell, site: usize, way: Way, whole: Cost, now: u64) {
        let thread = thread();
        self.base(site, whole.bytes).note_end(thread, now, cell.context());
        cell.open(way, whole, thread, self.recent(thread).calls.load(Relaxed), now);
    }

    /// Notes the end of a call that woke workers.
    pub fn note_workers_awake(&self, now: u64) {
        self.recent(thread()).end.store(now, Relaxed);
    }

    /// Returns whether the workers that helped the thread's last copy are still awake.
    pub fn is_back_to_back(&self, now: u64) -> bool {
        now.wrapping_sub(self.recent(thread()).end.load(Relaxed)) < SPIN_TICKS
    }

    /// Returns whether a call passes to libc without a decision; counts it.
    pub fn passes(&self, site: usize, len: usize) -> bool {
        self.base(site, len).passes()
    }

    /// Returns whether the last call from a site found its bytes near.
    pub fn was_near(&self, site: usize, len: usize) -> bool {
        self.base(site, len).was_near()
    }

    /// Counts a call whose bytes were near. Returns for how many such calls its time is noted; `None`: it is not.
    pub fn note_near(&self, len: usize) -> Option<u64> {
        let near = add(&self.recent(thread()).near);
        if near.is_multiple_of(NEAR_NOTED) {
            add(&self.near[class(len)]);
        }
        near.is_multiple_of(NEAR_NOTED).then_some(NEAR_NOTED.into())
    }

    /// Lets the next calls on busy CPUs pass without asking whether memory is fresh.
    pub fn leave_unasked(&self) {
        self.unasked.store(UNASKED, Relaxed);
    }

    /// Returns whether a call on busy CPUs passes without asking; counts it.
    pub fn is_unasked(&self) -> bool {
        let left = self.unasked.load(Relaxed);
        self.unasked.store(left.saturating_sub(1), Relaxed);
        left > 0
    }

    pub fn marks(&self, len: usize) -> &Marks {
        &self.marks[class(len)]
    }

    /// Returns whether shared copies of `len` bytes are best streamed, by what calls from any site have
    /// shown.
    pub fn streaming_pays(&self, len: usize) -> bool {
        let of_size = |cell: &&Cell| cell.size() == Some(class(len));
        let (mut streamed, mut shared) = (0, 0);
        for cell in self.cells.iter().filter(of_size) {
            match cell.best() {
                Some(Way::Streamed) => streamed += cell.calls(),
                Some(Way::Shared) => shared += cell.calls(),
                _ => {}
            }
        }
        if streamed == shared { len >= STREAM_FROM } else { streamed > shared }
    }

    /// Returns the smallest size that is shared wherever it was seen: a fixed threshold that would do no
    /// harm.
    pub fn threshold(&self) -> Option<usize> {
        let is_clear = |&size: &usize| {
            let mut cells = self.cells.iter().filter(|cell| cell.size() == Some(size)).peekable();
            cells.peek().is_some()
                && self.near[size].load(Relaxed) == 0
                && cells.all(|cell| cell.best().is_none_or(Way::is_shared))
        };
        (0..SIZES).find(is_clear).map(|size| FLOOR << size)
    }

    /// Iterates, for the log, over the cells that have had calls, each with the least size of its class.
    pub fn known(&self) -> impl Iterator<Item = (usize, &Cell)> {
        let known = |cell: &&Cell| cell.calls() > 0;
        self.cells.iter().filter(known).filter_map(|cell| Some((FLOOR << cell.size()?, cell)))
    }
}

/// Returns how many of `len` bytes are timed first, in a call before which there were `calls`.
pub fn first_bytes(calls: u32, len: usize) -> usize {
    let timed = len >= PAIRS_FROM && is_turn(calls, PAIRS_THEN);
    if timed { (len / 32).clamp(32 << 10, 128 << 10) & !63 } else { 0 } // whole lines of the cache
}

/// Like `first_bytes`, for reports.
pub fn sample(calls: u32, len: usize) -> usize {
    match first_bytes(calls, len) {
        0 => 0,
        first if !is_time_to_sample(calls) => first,
        first => first.max((len / 8).min(SAMPLE).max(len / 16)) & !63,
    }
}

/// Like `sample`, into fresh memory at `dst`: now and then two whole page tables are timed, so that the
/// cost of a huge page is spread over all its bytes.
pub fn sample_fresh(calls: u32, dst: usize, len: usize) -> usize {
    let then = (FRESH_PAIR_EVERY / len.max(1)).max(1) as u32;
    let then = if calls < SAMPLES_THEN { then } else { 8 * then };
    let timed = is_turn(calls, then) && len >= FRESH_PAIRS_FROM;
    if timed { untimed(dst) + 2 * PAGE_TABLE } else { 0 }
}

/// Returns whether libc makes a whole call into fresh memory, for reports.
pub fn is_time_for_libc(calls: u32, len: usize) -> bool {
    let every = if calls < FRESH_WHOLE_FIRST { FRESH_WHOLE_EVERY } else { FRESH_WHOLE_THEN };
    len < FRESH_PAIRS_FROM && calls % every == every - 1
}

/// Returns how many bytes from `dst` on lie in front of the first whole page table.
pub fn untimed(dst: usize) -> usize {
    dst.next_multiple_of(PAGE_TABLE) - dst
}

/// Returns whether a call is one of those that are timed for reports.
pub fn is_time_to_sample(calls: u32) -> bool {
    calls < SAMPLES_THEN || calls.is_multiple_of(SAMPLES_THEN)
}

#[cfg(test)]
#[path = "learn_tests.rs"]
mod tests;
