//! Learns, by measuring inside the copies, for which of them the engine beats libc.
//!
//! Copies of every kind are shared from the first one on. Whether that was right is measured in two
//! ways.
//!
//! *Pairs.* The caller copies the first bytes of a copy alone, by libc. That is libc's speed for
//! this very copy, be it hot or cold, into fresh memory or on busy CPUs. The rest is shared, and
//! the ratio of the two speeds is the gain. It is known after one copy, and costs next to nothing.
//!
//! *Series.* First bytes can mislead: where copies are shared again and again, the first bytes stay
//! in the caller's cache because the rest does not go there. So now and then a few copies go the
//! other way, whole, and those of them that find caches and workers settled are compared with the
//! others. Verdicts rest on such series. A pair that contradicts the last series brings the next
//! one forward.
//!
//! Other programs delay copies of either way. So in a series long copies, and those after a pause, go
//! both ways by turns; a delay counts for little; and the way changes only if nearly all copies of
//! a series say so, so that runs of a program do not differ.
//!
//! A series is due, in either direction, when fifty times as much time has been spent in a cell as
//! the last series has cost. So trying costs about two percent of the time of copying, and no
//! verdict is for ever.
//!
//! There is a cell for each size and pace: right after another copy the workers are awake, after a
//! pause they have to be woken. Nothing is timed or copied in this file. All threads share the
//! numbers without locks: a lost update costs a sample, not a copy.
mod marks;
mod stores;

use crate::backend::engine::tuning;
use crate::backend::threads::workers::SPIN_TICKS;
use crate::backend::threads::{Cost, Pieces, Seen};
use crate::os::mapped::Zeroed;
use crate::os::sys::{self, THREAD_SLOTS};
use crate::stats::Fallback;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use marks::Marks;
pub use stores::Copier;
use stores::{LastCopy, Stores};

/// Size below which no copy is considered. Copies of half this size gain a fifth at best, and only
/// back to back and from memory.
pub const FLOOR: usize = 256 << 10;

/// Size classes. From 16 MiB up all copies share one: the cost of a byte no longer depends on how many
/// there are, and few programs make enough of each size to judge it by itself.
const SIZES: usize = 7;

/// Size from which caller and workers may use streaming stores. They bypass the cache, so a program
/// that reads the destination next pays for them; twice an L2 cache would have been evicted anyway.
pub const STREAM_FROM: usize = 4 << 20;
/// Like `STREAM_FROM`, without workers: streaming gains earlier, even if the destination is read next.
pub const STREAM_ALONE_FROM: usize = 1 << 20;

/// Unit of gains: it stands for 1.
const ONE: u32 = 1024;

/// Bounds of a gain: a larger one makes no difference, and would take long to forget.
const MOST: u32 = 4 * ONE;
const LEAST: u32 = ONE / 4;

/// Gain above which sharing goes on; it is resumed only for a little more (hysteresis).
const STAYS: u32 = ONE + ONE / 50;
const RETURNS: u32 = ONE + ONE / 16;

/// Size from which sharing in vain costs next to nothing, because the caller then copies everything
/// itself: an apparent loss is noise unless the gain is below `LARGE_STAYS`.
pub const LARGE: usize = 8 << 20;
const LARGE_STAYS: u32 = ONE - ONE / 8;

/// Size from which copies no longer fit into the caches of the CPUs that share them, so that what a program
/// does afterwards does not depend on who copied.
const REST_BELOW: usize = 16 << 20;

/// Size from which copies are measured in pairs. Smaller ones are frequent enough for series alone.
const PAIRS_FROM: usize = 1 << 20;
/// The first copies of a cell are all measured in pairs, later ones one in `PAIRS_THEN`.
const PAIRS_FIRST: u32 = 3;
const PAIRS_THEN: u32 = 8;
/// Bytes of a pair where statistics are kept: libc copies large ranges differently from small ones.
const SAMPLE: usize = 4 << 20;
/// Share of later calls that may be pairs of `SAMPLE` bytes, or libc calls that are timed. The
/// first 32 calls of a cell all may.
const SAMPLES_THEN: u32 = 32;
/// Copies into fresh memory are timed from this size up, because their first bytes are whole page
/// tables: one in each `FRESH_PAIR_EVERY` bytes of the first 32 calls, then one in eight times as many.
const FRESH_PAIRS_FROM: usize = 8 << 20;
const FRESH_PAIR_EVERY: usize = 128 << 20;
const PAGE_TABLE: usize = 2 << 20;

/// Ticks per MiB below which no page fault can have occurred: making the pages takes five times as
/// long.
const FAULT_FREE_COST: u32 = 200_000;
/// Ticks per MiB below which source and destination were in a cache.
const HOT_COST: u32 = 300_000;

/// Ticks, or copies, that caches and workers need to settle when the way changes.
pub const SETTLING_TICKS: u64 = 1_000_000;
const SETTLING_COPIES: u64 = 16;
/// Settled copies after which a series changes the way; one of them may be an outlier.
const ENOUGH: u32 = 7;

/// One part in `BUDGET` of the time spent in a cell may go into trying the other way, and five
/// times as much where pairs have raised doubts.
const BUDGET: u64 = 50;
const BUDGET_IN_DOUBT: u64 = 10;
/// Series of small copies that leave them to libc double the time to the next one, up to this many
/// times: a loop of hot copies of 256 KiB loses by every one.
const MOST_DOUBLINGS: u32 = 3;

/// Calls on busy CPUs that do not ask whether memory is fresh, after one that found it in use: asking
/// locks the list of mappings, and a caller that waits for it finds its caches emptied.
const UNASKED: u32 = 63;

/// Calls that follow a timed one untimed where libc has won: a hot copy of 256 KiB takes 12,000
/// ticks, and deciding and learning 450 more.
const UNTIMED: u8 = 15;

pub struct Learner {
    /// Cells by size, and for each size: copies after a pause, copies back to back.
    cells: [[Cell; 2]; SIZES],
    /// Choice of stores by size, and for each size by `Copier`.
    stores: [[Stores; 2]; SIZES],
    recent: [Recent; THREAD_SLOTS],
    /// Cells by size, for hot copies including what the program does after them. A shared copy
    /// leaves source and destination in the caches of other CPUs.
    with_rest: [Cell; SIZES],
    /// Copies into memory that was never written, of any size. Always shared; the cell serves the
    /// report only.
    pub fresh: Cell,
    /// Choice of huge pages for fresh memory, by size.
    marks: [Marks; SIZES],
    /// Calls left that do not ask whether memory is fresh.
    unasked: AtomicU32,
}

/// Data of a thread's untimed copies, on one cache line: the copy before has evicted all others.
#[repr(align(64))]
struct Recent {
    /// Ticks at which the thread's last large copy ended.
    end: AtomicU64,
    copy: LastCopy,
    /// Copies left that go by libc untimed, back to back, by size.
    untimed: [AtomicU8; SIZES],
}
const _: () = assert!(size_of::<Recent>() == 64);

/// Way of a copy. `Ok`: by the engine, after this many bytes by libc for comparison. `Err`: by
/// libc, because it was as fast (`Learned`) or is being measured (`Compared`).
pub type Verdict = Result<usize, Fallback>;

/// State of copies of one size and pace. All zeros: nothing is known, and they are shared.
pub struct Cell {
    libc_won: AtomicBool,
    /// Cost of the chosen way: ticks per MiB, a moving average; 0: unknown.
    cost: AtomicU32,
    /// Ticks per MiB of the last copy that libc has made, and of the last whole one; 0: none.
    libc_cost: AtomicU32,
    whole_libc_cost: AtomicU32,
    /// Gain of sharing in the last series, in parts of `ONE`; 0: there was none.
    gain: AtomicU32,
    /// The average gain of pairs, and what it was at the last series.
    pair: AtomicU32,
    pair_then: AtomicU32,
    calls: AtomicU32,
    /// Copies since a series last began or ended.
    since: AtomicU32,
    /// Set while a series is on.
    trying: AtomicBool,
    /// Copies of the series that were settled, how many of these spoke against it, and the sum of
    /// what they have cost.
    settled: AtomicU32,
    against: AtomicU32,
    settled_costs: AtomicU64,
    /// Bytes of all copies of the series.
    tried: AtomicU64,
    /// Ticks spent since the last series, and what that has cost.
    spent: AtomicU64,
    price: AtomicU64,
    /// Consecutive series that have changed nothing.
    confirmed: AtomicU32,
}

// SAFETY: atomics.
unsafe impl Zeroed for Learner {}
// SAFETY: atomics.
unsafe impl Zeroed for Cell {}

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

/// Returns whether a copy of a series by turns goes the other way. Half of them do, but not every
/// second one: where that is the one that finds its source in the cache, hot copies would be
/// compared with cold ones. (This is the Thue-Morse sequence.)
fn is_other_turn(calls: u32) -> bool {
    calls.count_ones().is_multiple_of(2)
}

/// Returns the size class of a call.
pub fn class(len: usize) -> usize {
    ((len / FLOOR).max(1).ilog2() as usize).min(SIZES - 1)
}

impl Learner {
    /// Returns what is kept for the calling thread. Threads that wrote to one line would wait for it.
    fn recent(&self) -> &Recent {
        &self.recent[sys::slot_of(sys::thread_register().unwrap_or(0))]
    }

    /// Notes that a large copy has ended.
    pub fn note_end(&self, now: u64) {
        self.recent().end.store(now, Relaxed);
    }

    /// Returns whether the workers that helped the thread's last copy are still awake.
    pub fn is_back_to_back(&self, now: u64) -> bool {
        now.wrapping_sub(self.recent().end.load(Relaxed)) < SPIN_TICKS
    }

    /// Returns whether a call goes by libc untimed; counts it. `now` is asked only if one may.
    pub fn passes_untimed(&self, len: usize, now: impl Fn() -> u64) -> bool {
        let left = &self.recent().untimed[class(len)];
        let count = left.load(Relaxed);
        if count == 0 {
            return false;
        }
        let now = now();
        let passes = self.is_back_to_back(now);
        if passes {
            left.store(count - 1, Relaxed);
            self.note_begin(now);
        }
        passes
    }

    /// Lets the thread's next calls pass untimed, after one that was left to libc back to back with another,
    /// `by_rest`: for what the program pays afterwards. Time to the next series passes as if they were
    /// timed. Returns the ticks that they will take.
    pub fn leave_untimed(&self, whole: Cost, by_rest: bool) -> u64 {
        let (size, ticks) = (class(whole.bytes), whole.ticks * u64::from(UNTIMED));
        self.recent().untimed[size].store(UNTIMED, Relaxed);
        let cell = if by_rest { &self.with_rest[size] } else { &self.cells[size][1] };
        cell.spent.store(cell.spent.load(Relaxed) + ticks, Relaxed);
        ticks
    }

    pub fn cell(&self, len: usize, back_to_back: bool) -> &Cell {
        let (size, pace) = (class(len), usize::from(back_to_back));
        let cell = &self.cells[size][pace];
        // Where larger copies do not gain, smaller ones need not be tried at once.
        if cell.calls.load(Relaxed) == 0
            && let Some(larger) = self.cells.get(size + 1).map(|cells| &cells[pace])
            && larger.libc_won.load(Relaxed)
        {
            cell.libc_won.store(true, Relaxed);
            cell.price.store(larger.price.load(Relaxed), Relaxed);
        }
        cell
    }

    pub fn stores(&self, len: usize, by: Copier) -> &Stores {
        &self.stores[class(len)][by as usize]
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

    /// Notes that a large call begins, which ends the time between the last copy and this one.
    pub fn note_begin(&self, now: u64) {
        if let Some((whole, by, streamed)) = self.recent().copy.take(now) {
            if let Some(streamed) = streamed {
                self.stores(whole.bytes, by).record(whole, streamed);
            }
            let shared = by == Copier::Together;
            let verdict = if shared { Ok(0) } else { Err(Fallback::Compared) };
            self.with_rest[class(whole.bytes)].record_with_rest(verdict, whole);
        }
    }

    /// Returns why a hot copy that would be shared is not: the program pays for it afterwards, or that is
    /// to be found out. `None`: it is shared.
    pub fn rest_speaks_against(&self, len: usize, cell: &Cell) -> Option<Fallback> {
        if len >= REST_BELOW || !cell.is_hot() {
            return None;
        }
        let rest = &self.with_rest[class(len)];
        if rest.price.load(Relaxed) == 0 {
            rest.price.store(rest.usual(len), Relaxed); // 0 before the second copy
            return None;
        }
        let tries = rest.turn(len, false).1;
        match (rest.is_shared(), tries) {
            (true, true) => Some(Fallback::Compared),
            (false, false) => Some(Fallback::Learned),
            _ => None,
        }
    }

    /// Notes a copy that has ended `now`; `chosen`: with these stores, which were chosen here.
    pub fn note_copy(
        &self,
        by: Copier,
        chosen: Option<Pieces>,
        whole: Cost,
        seen: &Seen,
        now: u64,
    ) {
        let copy_loop = match chosen {
            Some(Pieces::Alternate) => {
                return self.stores(whole.bytes, by).record_pieces(seen);
            }
            Some(Pieces::All(copy_loop)) => Some(copy_loop),
            None => None,
        };
        self.recent().copy.set(whole, by, copy_loop, now);
    }

    /// Returns the smallest size for which the engine is used at every pace seen so far: a fixed
    /// threshold that would do no harm.
    pub fn threshold(&self) -> Option<usize> {
        let clear = |cells: &[Cell; 2]| {
            cells.iter().any(|cell| cell.calls() > 0) && cells.iter().all(Cell::is_shared)
        };
        self.cells.iter().position(clear).map(|class| FLOOR << class)
    }

    /// Iterates, for the log, over cells that copies have come to: from which size, whether back to
    /// back, and what sharing gains by series, by pairs, and with what the program does afterwards, and what
    /// streaming stores gain; 0 where not tried.
    pub fn known(&self) -> impl Iterator<Item = (usize, bool, &Cell, [f32; 4])> {
        let number = |parts: u32| parts as f32 / ONE as f32;
        let of = move |at: usize| {
            let cell = &self.cells[at / 2][at % 2];
            let [series, pairs, rest] = [&cell.gain, &cell.pair, &self.with_rest[at / 2].gain]
                .map(|parts| parts.load(Relaxed));
            let gains = [series, pairs, rest, self.stores[at / 2][0].pieces_gain()].map(number);
            (FLOOR << (at / 2), at % 2 == 1, cell, gains)
        };
        (0..2 * SIZES).map(of).filter(|(_, _, cell, _)| cell.calls() > 0)
    }
}

impl Cell {
    pub fn calls(&self) -> u32 {
        self.calls.load(Relaxed)
    }

    pub fn is_shared(&self) -> bool {
        !self.libc_won.load(Relaxed)
    }

    /// Returns which way a copy of `len` bytes goes; `back_to_back`: it follows another one.
    pub fn decide(&self, len: usize, back_to_back: bool) -> Verdict {
        // A long copy, or one after a pause, does not depend on the way of the one before.
        let (calls, tries) = self.turn(len, !back_to_back || self.usual(len) >= SETTLING_TICKS);
        match (self.libc_won.load(Relaxed), tries) {
            (false, true) => Err(Fallback::Compared),
            (true, false) => Err(Fallback::Learned),
            (false, false) if len >= PAIRS_FROM && is_turn(calls, PAIRS_THEN) => {
                Ok((len / 32).clamp(32 << 10, 128 << 10) & !63) // whole lines of the cache
            }
            _ => Ok(0),
        }
    }

    /// Counts a copy of `len` bytes. Returns how many there were before it, and whether it is to go
    /// the other way because a series is on: every copy of it, or about every second one by turns.
    fn turn(&self, len: usize, by_turns: bool) -> (u32, bool) {
        let calls = add(&self.calls);
        if !self.trying.load(Relaxed) && self.is_time_to_try(len) {
            self.trying.store(true, Relaxed);
            self.since.store(0, Relaxed);
        }
        (calls, self.trying.load(Relaxed) && (!by_turns || is_other_turn(calls)))
    }

    /// Like `decide`, into memory that was never written. Now and then two whole page tables at the
    /// beginning are timed, so that huge pages cost what they cost by the byte.
    pub fn decide_fresh(&self, dst: usize, len: usize) -> Verdict {
        let calls = add(&self.calls);
        let then = (FRESH_PAIR_EVERY / len.max(1)).max(1) as u32;
        let then = if calls < SAMPLES_THEN { then } else { 8 * then };
        let timed = is_turn(calls, then) && len >= FRESH_PAIRS_FROM;
        Ok(if timed { Self::untimed(dst) + 2 * PAGE_TABLE } else { 0 })
    }

    /// Returns how many bytes from `dst` on lie in front of the first whole page table.
    pub fn untimed(dst: usize) -> usize {
        dst.next_multiple_of(PAGE_TABLE) - dst
    }

    /// Returns whether libc has copied so fast here that no page fault can have occurred, which spares
    /// asking whether memory is fresh. A slower copy makes us ask again.
    pub fn libc_is_fault_free(&self) -> bool {
        (1..FAULT_FREE_COST).contains(&self.libc_cost.load(Relaxed))
    }

    /// Returns whether source and destination were in a cache. First bytes alone do not tell: between
    /// shared copies they are in the caches of other CPUs.
    fn is_hot(&self) -> bool {
        let costs = [&self.libc_cost, &self.whole_libc_cost];
        costs.iter().any(|cost| (1..HOT_COST).contains(&cost.load(Relaxed)))
    }

    /// Notes a whole copy that libc has made, for whatever reason.
    pub fn note_libc(&self, whole: Cost) {
        let cost = whole.per_mebibyte();
        [&self.libc_cost, &self.whole_libc_cost].iter().for_each(|of| of.store(cost, Relaxed));
    }

    /// Returns the ticks that `bytes` usually take.
    fn usual(&self, bytes: usize) -> u64 {
        u64::from(self.cost.load(Relaxed)).saturating_mul(bytes as u64) >> 20
    }

    fn is_time_to_try(&self, len: usize) -> bool {
        let (price, shared) = (self.price.load(Relaxed), self.is_shared());
        if shared && price == 0 {
            // Small copies are not paired, so nothing is known of them before the first series.
            return len < PAIRS_FROM && u64::from(self.since.load(Relaxed)) >= 2 * SETTLING_COPIES;
        }
        let budget = match shared && self.is_in_doubt() {
            true => BUDGET_IN_DOUBT,
            false if len >= PAIRS_FROM || shared => BUDGET,
            false => BUDGET << self.confirmed.load(Relaxed).min(MOST_DOUBLINGS),
        };
        self.spent.load(Relaxed) >= price.saturating_mul(budget)
    }

    /// Returns how many of `len` bytes are timed first where statistics are kept, instead of `first`.
    pub fn sample(&self, first: usize, len: usize) -> usize {
        if first == 0 || !self.is_time_to_sample() {
            return first;
        }
        first.max((len / 8).min(SAMPLE).max(len / 16)) & !63
    }

    /// Returns whether a call is one of those that are timed for statistics.
    pub fn is_time_to_sample(&self) -> bool {
        let calls = self.calls();
        calls <= SAMPLES_THEN || calls % SAMPLES_THEN == 1
    }

    /// Returns whether pairs say that sharing has ceased to gain. They are scaled by what series and
    /// pairs showed when there last was a series.
    fn is_in_doubt(&self) -> bool {
        let [pair, then, gain] =
            [&self.pair, &self.pair_then, &self.gain].map(|part| u64::from(part.load(Relaxed)));
        let gain = (pair * gain).checked_div(then).unwrap_or(pair);
        self.calls.load(Relaxed) > PAIRS_FIRST && pair > 0 && gain < u64::from(STAYS)
    }

    /// Notes the cost of a copy that has just ended, and how many ticks of it were spent waiting for
    /// workers.
    pub fn record(&self, verdict: Verdict, whole: Cost, waited: u64, back_to_back: bool) {
        self.note(verdict, whole, waited, back_to_back, whole.bytes >= LARGE);
    }

    fn note(&self, verdict: Verdict, whole: Cost, waited: u64, back_to_back: bool, large: bool) {
        let since = u64::from(add(&self.since)) + 1;
        let passed = since.saturating_mul(whole.ticks);
        let settled = !back_to_back || passed >= SETTLING_TICKS || since > SETTLING_COPIES;
        // Other load delays the caller either way; waiting for workers counts against sharing.
        let waited = Cost { ticks: waited, ..whole }.per_mebibyte() - 1;
        let cost = |most: u32| whole.per_mebibyte().min(most.saturating_add(waited));
        let (usual, trying) = (self.cost.load(Relaxed), self.trying.load(Relaxed));
        let libc_won = self.libc_won.load(Relaxed);
        if !trying || verdict.is_ok() != libc_won {
            self.spent.store(self.spent.load(Relaxed) + whole.ticks, Relaxed);
            if settled || usual == 0 {
                let most = if usual > 0 { usual.saturating_add(usual / 2) } else { u32::MAX };
                blend(&self.cost, cost(most), if trying { 4 } else { 8 });
            }
            return;
        }
        self.tried.fetch_add(whole.bytes as u64, Relaxed);
        if !settled {
            return;
        }
        let tried = cost(usual.saturating_mul(if libc_won { 2 } else { 4 }));
        let costs = self.settled_costs.fetch_add(tried.into(), Relaxed) + u64::from(tried);
        let settled = self.settled.fetch_add(1, Relaxed) + 1;
        let (least, most) = if large && !libc_won { (LARGE_STAYS, 0) } else { (STAYS, 1) };
        let against = u32::from(ratio(tried, usual) >= least);
        let against = self.against.fetch_add(against, Relaxed) + against;
        if against <= most && settled < ENOUGH {
            return;
        }
        let tried = (costs / u64::from(settled)) as u32;
        let gain = if libc_won { ratio(usual, tried) } else { ratio(tried, usual) };
        let changes = against <= most && (!libc_won || gain >= RETURNS);
        self.gain.store(gain, Relaxed);
        self.pair_then.store(self.pair.load(Relaxed), Relaxed);
        let ticks_at = |cost: u32| (self.tried.load(Relaxed) >> 10) * u64::from(cost) / 1024;
        let (was, would_be) = (ticks_at(tried), ticks_at(usual));
        // Never 0, for a series takes time even where it shows no difference; and large copies need
        // not be known so soon to be shared in vain.
        let least = if large && libc_won == changes { was } else { was / 16 };
        self.price.store(was.saturating_sub(would_be).max(least).max(1), Relaxed);
        self.spent.store(0, Relaxed);
        if changes {
            self.libc_won.store(!libc_won, Relaxed);
            self.cost.store(tried, Relaxed);
            self.confirmed.store(0, Relaxed);
        } else {
            add(&self.confirmed);
        }
        self.trying.store(false, Relaxed);
        [&self.settled, &self.against, &self.since].into_iter().for_each(|n| n.store(0, Relaxed));
        [&self.settled_costs, &self.tried].into_iter().for_each(|n| n.store(0, Relaxed));
    }

    /// Like `record`, for copies and what the program did after them. That time has outliers in one
    /// direction only, so the average falls quickly and rises slowly. Large copies can lose as much
    /// as others.
    fn record_with_rest(&self, verdict: Verdict, whole: Cost) {
        let usual = self.cost.load(Relaxed);
        self.note(verdict, whole, 0, true, false);
        let average = self.cost.load(Relaxed);
        if usual > 0 && average > usual && !self.trying.load(Relaxed) {
            self.cost.store(usual + (average - usual) / 8, Relaxed);
        }
    }

    /// Notes the result of a pair: the first bytes by libc, the rest by the engine.
    pub fn record_pair(&self, first: Cost, rest: Cost) {
        let gain = ratio(first.per_mebibyte(), rest.per_mebibyte());
        // During the first copy of a process the workers are still being made.
        self.libc_cost.store(first.per_mebibyte(), Relaxed);
        blend(&self.pair, gain, if self.calls.load(Relaxed) < PAIRS_FIRST { 2 } else { 4 });
        if self.price.load(Relaxed) == 0 {
            let gained = rest.ticks * u64::from(gain.saturating_sub(ONE)) / u64::from(ONE);
            self.price.store(gained.max(rest.ticks / 16).max(1), Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "learn_tests.rs"]
mod tests;
