//! Choice among the ways of calls of one size from one site, by what they cost the program. The
//! algorithm is at the top of `learn`.

use super::{Context, Cost, ONE, Place, STREAM_FROM, Way, Ways, add, blend, ratio};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use zerocopy::FromZeros;

/// Samples after which the first trial begins: few copies of a short program are spent on it.
const FIRST: u32 = 6;
/// Calls in a row that one way has in a trial; the first is not counted. More of them where they are
/// short, because these vary more: below `SHORT` ticks, about 200 us, from one to the next.
const BLOCK: u32 = 3;
const BLOCK_IF_SHORT: u32 = 6;
const SHORT: u64 = 400_000;
/// Rounds of a trial.
const ROUNDS: u32 = 2;
const KEPT: usize = (ROUNDS * (BLOCK_IF_SHORT - 1)) as usize;

/// Calls of the thread between two of one cell after which a sample does not count.
const MOST_BETWEEN: u32 = 4;

/// Ratio to the best way's cost from which a way is left out of the second round.
const HOPELESS: u32 = ONE + ONE / 4;
/// Ratio of costs from which a cheaper way replaces the best one.
const CHANGES: u32 = ONE + ONE / 32;
/// Least changes since the last trial that make the next one due: of the program's period by one part in
/// `MOVED`; of the time of looks, which varies more, by one part in `LOOK_MOVED`; of the share of the cost
/// that comes after the call by `AFTERWARDS_MOVED`.
const MOVED: u32 = 5;
const LOOK_MOVED: u32 = 2;
const AFTERWARDS_MOVED: u32 = ONE / 4;
/// A trial is due when this many times as much time has been spent as the last one has cost. Each trial
/// that changes nothing doubles the number, up to `MOST_DOUBLINGS` times.
const PERIOD: u64 = 64;
const MOST_DOUBLINGS: u32 = 3;
/// Where costs have moved, a trial is due after `FIRST` samples. Each such trial that changes nothing
/// multiplies that number by four, up to `MOST_ALARMS` times: in some programs costs move all the time.
const MOST_ALARMS: u32 = 2;

/// Time after a call that counts, in multiples of what libc would have taken.
const AFTERWARDS: u64 = 8;

/// Size class, of 16 MiB, from which unused bytes between cache and memory are worth a trial, because
/// programs that use them gain, too.
const UNUSED_FROM: usize = 6;

/// Ticks after which a sample that its thread has not closed makes room for another thread's.
const STALE: u64 = 1 << 30;

/// Number of calls that pass without a decision after one by libc, where the decision itself costs much.
const PASSES: u8 = 15;

/// Bound of `turns`: some four calls tell a crowd from a single thread.
const MOST_TURNS: u8 = 8;

/// State of calls of one size from one site, whose bytes are in one place. All zeros: nothing is known.
#[repr(C, align(64))] // a near call touches the first line only
#[derive(FromZeros)]
pub struct Cell {
    /// Site, place and size; 0: free.
    key: AtomicU64,
    calls: AtomicU32,
    /// The best way plus one; 0: none was chosen yet.
    best: AtomicU8,
    /// In the base cell: where the last calls found their bytes, plus one, and their average distance;
    /// context, thread and end of the last call.
    place: AtomicU8,
    last_context: AtomicU8,
    distance: AtomicU32,
    last_thread: AtomicU64,
    last_end: AtomicU64,
    passes: AtomicU8,
    /// In the base cell: how often another thread's call has come before one, of late.
    turns: AtomicU8,
    /// Ways that were available at the last trial or, before any, at the first choice.
    had: AtomicU32,
    /// Ticks per MiB that libc would take, by looks; 0: not known.
    libc: AtomicU32,
    /// Ticks per MiB of the best way, with what the program does after it: a moving average, and its
    /// value after the last trial; 0: not known.
    usual: AtomicU32,
    then: AtomicU32,
    /// `libc` and `afterwards` after the last trial.
    libc_then: AtomicU32,
    afterwards_then: AtomicU32,
    /// Part of the cost that comes after the call: a moving average, in parts of `ONE`.
    afterwards: AtomicU32,
    /// Samples of the best way since the last trial.
    since: AtomicU32,
    /// Cost of each way when it was last tried; 0: never.
    costs: [AtomicU32; Way::ALL.len()],
    open: Open,
    trial: Trial,
    /// Ticks spent since the last trial, and the price of that trial.
    spent: AtomicU64,
    price: AtomicU64,
    /// Consecutive trials that have changed nothing, and those of them that were made because costs had
    /// moved.
    confirmed: AtomicU32,
    alarms: AtomicU32,
}

/// The last call, until its thread makes the next one.
#[derive(FromZeros)]
struct Open {
    thread: AtomicU64,
    /// Number of calls of the thread up to this one.
    calls: AtomicU32,
    /// Ticks at which it ended; 0: there is none.
    end: AtomicU64,
    ticks: AtomicU64,
    bytes: AtomicU64,
    way: AtomicU8,
}

/// Ways take turns, the best one first.
#[derive(FromZeros)]
struct Trial {
    /// Ways that take part; 0: there is no trial.
    ways: AtomicU32,
    round: AtomicU32,
    /// Calls in a row.
    block: AtomicU32,
    /// Samples in this round.
    turn: AtomicU32,
    /// Cost of the previous sample.
    last: AtomicU32,
    /// Ticks of all samples, and those by which other ways took longer than the best one.
    ticks: AtomicU64,
    extra: AtomicU64,
    counts: [AtomicU32; Way::ALL.len()],
    samples: [[AtomicU32; KEPT]; Way::ALL.len()],
}

impl Cell {
    /// Returns whether the cell is for this key; a free one becomes it.
    pub(super) fn is_for(&self, key: u64) -> bool {
        match self.key.load(Relaxed) {
            0 => self.key.compare_exchange(0, key, Relaxed, Relaxed).is_ok(),
            now => now == key,
        }
    }

    /// Returns the size class; `None`: the cell is free.
    pub fn size(&self) -> Option<usize> {
        (self.key.load(Relaxed) as usize & 7).checked_sub(1)
    }

    pub fn context(&self) -> Context {
        Context::from_bits_truncate(self.key.load(Relaxed) as u8)
    }

    pub fn calls(&self) -> u32 {
        self.calls.load(Relaxed)
    }

    /// Counts a call; returns how many there were before it.
    pub fn count(&self) -> u32 {
        add(&self.calls)
    }

    /// Returns the best way; `None`: none was chosen yet.
    pub fn best(&self) -> Option<Way> {
        self.best.load(Relaxed).checked_sub(1).map(|way| Way::ALL[usize::from(way)])
    }

    /// Returns what a way cost when it was last tried, in ticks per MiB; 0: it never was.
    pub fn cost(&self, way: Way) -> u32 {
        self.costs[way as usize].load(Relaxed)
    }

    pub fn was_near(&self) -> bool {
        self.place.load(Relaxed) == Place::Near as u8 + 1
    }

    /// Returns where the last calls found their bytes; `None`: there was none.
    pub(super) fn place(&self) -> Option<Place> {
        self.place.load(Relaxed).checked_sub(1).map(|place| Place::ALL[usize::from(place)])
    }

    pub(super) fn set_place(&self, place: Place) {
        self.place.store(place as u8 + 1, Relaxed);
    }

    /// Adds a distance to the average of the last calls. Returns that average.
    pub(super) fn note_distance(&self, distance: u32) -> u32 {
        blend(&self.distance, distance, 4);
        self.distance.load(Relaxed)
    }

    /// Notes the end of a call; in the base cell.
    pub(super) fn note_end(&self, thread: u64, now: u64, context: Context) {
        self.last_context.store(context.bits(), Relaxed);
        self.last_thread.store(thread, Relaxed);
        self.last_end.store(now, Relaxed);
    }

    /// Returns the context of the last call.
    pub(super) fn last_context(&self) -> Context {
        Context::from_bits_truncate(self.last_context.load(Relaxed))
    }

    /// Returns the ticks since the thread's last call; `None`: another thread's came in between.
    pub(super) fn since_end(&self, thread: u64, now: u64) -> Option<u64> {
        let is_ours = self.last_thread.load(Relaxed) == thread;
        is_ours.then(|| now.wrapping_sub(self.last_end.load(Relaxed)))
    }

    /// Notes whether the call before this one was another thread's. Returns whether one call in three, or
    /// more, has been like that.
    pub(super) fn note_turn(&self, was_others: bool) -> bool {
        let before = self.turns.load(Relaxed);
        let now = if was_others { (before + 2).min(MOST_TURNS) } else { before.saturating_sub(1) };
        if now != before {
            self.turns.store(now, Relaxed);
        }
        now >= MOST_TURNS / 2
    }

    /// Notes the time that libc took for some bytes, such as those of a look.
    pub fn note_look(&self, look: Cost) {
        blend(&self.libc, look.per_mebibyte(), 8);
    }

    /// Returns whether a call passes to libc without a decision; counts it.
    pub fn passes(&self) -> bool {
        let left = self.passes.load(Relaxed);
        if left > 0 {
            self.passes.store(left - 1, Relaxed);
        }
        left > 0
    }

    /// Lets the next calls pass after one that libc has done in `ticks`. Their expected time counts
    /// towards the next trial, as if each had been decided about. Returns that time, in ticks.
    pub fn let_pass(&self, ticks: u64) -> u64 {
        if !self.trial.ways().is_empty() || self.is_due() {
            return 0;
        }
        self.passes.store(PASSES, Relaxed);
        self.open.end.store(0, Relaxed); // the next call is one of those that pass
        let ticks = ticks * u64::from(PASSES);
        self.spend(ticks);
        ticks
    }

    fn spend(&self, ticks: u64) {
        self.spent.store(self.spent.load(Relaxed).saturating_add(ticks), Relaxed);
    }

    /// Chooses among `ways` for a call of `len` bytes.
    pub fn choose(&self, len: usize, ways: Ways) -> Way {
        let best = self.best().filter(|best| ways.contains(best.bit())).unwrap_or_else(|| {
            let best = self.best_of(len, ways);
            self.best.store(best as u8 + 1, Relaxed);
            self.had.store(ways.bits(), Relaxed);
            self.trial.end();
            best
        });
        let mut tried = self.trial.ways();
        if !ways.contains(tried) {
            self.trial.end();
            tried = Ways::empty();
        }
        let is_new = ways.bits() & !self.had.load(Relaxed) != 0;
        if tried.is_empty() && (self.is_due() || is_new && self.since.load(Relaxed) >= FIRST) {
            self.had.store(ways.bits(), Relaxed);
            tried = self.worth_trying(best, ways);
            match tried.count() {
                1 => {
                    self.end_trial(best);
                    tried = Ways::empty();
                }
                _ => {
                    let period =
                        u64::from(self.usual.load(Relaxed)).saturating_mul(len as u64) >> 20;
                    let block = if period < SHORT { BLOCK_IF_SHORT } else { BLOCK };
                    self.trial.start(tried, block);
                }
            }
        }
        if tried.is_empty() { best } else { self.trial.way(tried, best) }
    }

    /// Returns the way that is taken before any was compared.
    fn first_way(&self, len: usize, ways: Ways) -> Way {
        let context = self.context();
        // Operations without a look have no context.
        let is_unused = context.contains(Context::UNUSED) || self.libc.load(Relaxed) == 0;
        match ways {
            _ if ways.contains(Ways::LIBC) && context.contains(Context::BETWEEN) => Way::Libc,
            _ if ways.contains(Ways::STREAMED) && len >= STREAM_FROM && is_unused => Way::Streamed,
            _ if ways.contains(Ways::SHARED) => Way::Shared,
            _ if ways.contains(Ways::STREAMED) => Way::Streamed,
            _ if ways.contains(Ways::ALONE) => Way::Alone,
            _ => Way::Libc,
        }
    }

    /// Returns the best of some ways, while others are unavailable for a moment.
    pub fn best_of(&self, len: usize, ways: Ways) -> Way {
        let known = |way: &Way| self.cost(*way) > 0;
        match self.best().filter(|best| ways.contains(best.bit())) {
            Some(best) => best,
            None if ways.iter().all(|way| known(&way)) => {
                ways.iter().min_by_key(|way| self.cost(*way)).unwrap_or(Way::Libc)
            }
            None => self.first_way(len, ways),
        }
    }

    /// Returns the best way and those that could be better. A look, at a place that nothing has fetched, takes up
    /// to half as long again as its part of a long copy.
    fn worth_trying(&self, best: Way, mut ways: Ways) -> Ways {
        let [libc, usual] = [&self.libc, &self.usual].map(|cost| cost.load(Relaxed));
        if libc / 8 * 5 >= usual {
            ways.remove(Ways::LIBC | Ways::ALONE);
        }
        ways | best.bit()
    }

    fn is_due(&self) -> bool {
        if self.since.load(Relaxed) < FIRST || self.is_benchmark() {
            return false;
        }
        let period = PERIOD << self.confirmed.load(Relaxed).min(MOST_DOUBLINGS);
        let patience = FIRST << (2 * self.alarms.load(Relaxed).min(MOST_ALARMS));
        self.spent.load(Relaxed) >= self.price.load(Relaxed).saturating_mul(period)
            || self.since.load(Relaxed) >= patience && self.has_moved()
    }

    /// Returns whether bytes between cache and memory are copied again and again, and not used. Sharing
    /// such copies would gain, but only benchmarks make them, and a program that uses the bytes later
    /// would lose.
    fn is_benchmark(&self) -> bool {
        self.context().contains(Context::BETWEEN | Context::UNUSED)
            && self.size() < Some(UNUSED_FROM)
    }

    /// Returns whether the program's period, or what libc would take, has moved since the last trial.
    fn has_moved(&self) -> bool {
        let moved = |now: &AtomicU32, [then, by]: [u32; 2]| {
            then > 0 && now.load(Relaxed).abs_diff(then) > by
        };
        let [usual, libc, afterwards] =
            [&self.then, &self.libc_then, &self.afterwards_then].map(|then| then.load(Relaxed));
        moved(&self.usual, [usual, usual / MOVED])
            || moved(&self.libc, [libc, libc / LOOK_MOVED])
            || moved(&self.afterwards, [afterwards, AFTERWARDS_MOVED])
    }

    /// Opens the sample of a call that has ended `now`, unless another thread has one open.
    pub(super) fn open(&self, way: Way, whole: Cost, thread: u64, calls: u32, now: u64) {
        let open = &self.open;
        let end = open.end.load(Relaxed);
        if end > 0 && open.thread.load(Relaxed) != thread && now.wrapping_sub(end) < STALE {
            return;
        }
        open.calls.store(calls, Relaxed);
        open.end.store(0, Relaxed);
        open.thread.store(thread, Relaxed);
        open.ticks.store(whole.ticks, Relaxed);
        open.bytes.store(whole.bytes as u64, Relaxed);
        open.way.store(way as u8, Relaxed);
        open.end.store(now.max(1), Relaxed);
    }

    /// Closes the thread's sample, if it has one, with the time until `now`.
    pub(super) fn close(&self, thread: u64, calls: u32, now: u64) {
        let open = &self.open;
        let end = open.end.load(Relaxed);
        if end == 0 || open.thread.load(Relaxed) != thread {
            return;
        }
        open.end.store(0, Relaxed);
        if calls.wrapping_sub(open.calls.load(Relaxed)) > MOST_BETWEEN {
            return;
        }
        let (bytes, ticks) = (open.bytes.load(Relaxed), open.ticks.load(Relaxed));
        let libc = (u64::from(self.libc.load(Relaxed)) * (bytes >> 10)) >> 10;
        let after = now.wrapping_sub(end).min(AFTERWARDS * libc.max(ticks));
        let way = Way::ALL[usize::from(open.way.load(Relaxed)) % Way::ALL.len()];
        let part = after * u64::from(ONE) / (ticks + after).max(1);
        blend(&self.afterwards, part as u32 + 1, 8);
        self.record(way, Cost { bytes: bytes as usize, ticks: ticks + after });
    }

    /// Records what a call has cost the program.
    pub fn record(&self, way: Way, whole: Cost) {
        let (cost, tried, best) = (whole.per_mebibyte(), self.trial.ways(), self.best());
        let usual = self.usual.load(Relaxed);
        if !tried.is_empty()
            && let Some(best) = best
        {
            let usual = u64::from(usual).saturating_mul(whole.bytes as u64) >> 20;
            if self.trial.note(tried, best, way, cost, whole.ticks, usual) {
                self.judge(tried, best);
            }
        } else if best == Some(way) {
            add(&self.since);
            let most = if usual > 0 { usual.saturating_add(usual / 2) } else { u32::MAX };
            blend(&self.usual, cost.min(most), 8);
            self.spend(whole.ticks);
        } else {
            blend(&self.costs[way as usize], cost, 4);
        }
    }

    /// Ends a round of a trial, or the trial.
    fn judge(&self, tried: Ways, best: Way) {
        for way in tried.iter() {
            self.costs[way as usize].store(self.trial.median(way), Relaxed);
        }
        let least = tried.iter().map(|way| self.cost(way)).min().unwrap_or(0);
        let is_hopeful = |way: &Way| *way == best || ratio(self.cost(*way), least) < HOPELESS;
        let left = tried.iter().filter(is_hopeful).fold(Ways::empty(), |sum, way| sum | way.bit());
        if self.trial.round.load(Relaxed) + 1 < ROUNDS && left.count() > 1 {
            return self.trial.go_on(left);
        }
        let winner = left.iter().min_by_key(|way| self.cost(*way)).unwrap_or(best);
        let gains = ratio(self.cost(best), self.cost(winner)) >= CHANGES;
        self.end_trial(if gains { winner } else { best });
    }

    /// Ends a trial; `best` is the best way from now on.
    fn end_trial(&self, best: Way) {
        let trial = &self.trial;
        let was_alarm = self.has_moved();
        match self.best.swap(best as u8 + 1, Relaxed) == best as u8 + 1 {
            true => {
                add(&self.confirmed);
                if was_alarm {
                    add(&self.alarms);
                }
            }
            false => [&self.confirmed, &self.alarms].iter().for_each(|of| of.store(0, Relaxed)),
        }
        if trial.counts[best as usize].load(Relaxed) > 0 {
            self.usual.store(self.cost(best), Relaxed);
        }
        self.then.store(self.usual.load(Relaxed), Relaxed);
        self.libc_then.store(self.libc.load(Relaxed), Relaxed);
        self.afterwards_then.store(self.afterwards.load(Relaxed), Relaxed);
        // A trial takes time even where it shows no difference.
        let price = trial.extra.load(Relaxed).max(trial.ticks.load(Relaxed) / 16);
        self.price.store(price.max(self.spent.load(Relaxed) / PERIOD).max(1), Relaxed);
        self.spent.store(0, Relaxed);
        self.since.store(0, Relaxed);
        trial.end();
    }
}

impl Trial {
    fn ways(&self) -> Ways {
        Ways::from_bits_truncate(self.ways.load(Relaxed))
    }

    fn start(&self, ways: Ways, block: u32) {
        self.end();
        self.block.store(block, Relaxed);
        self.ways.store(ways.bits(), Relaxed);
    }

    /// Begins the next round, among these ways.
    fn go_on(&self, ways: Ways) {
        add(&self.round);
        self.turn.store(0, Relaxed);
        self.ways.store(ways.bits(), Relaxed);
    }

    fn end(&self) {
        self.ways.store(0, Relaxed);
        [&self.round, &self.turn, &self.last].iter().for_each(|of| of.store(0, Relaxed));
        [&self.ticks, &self.extra].iter().for_each(|of| of.store(0, Relaxed));
        self.counts.iter().for_each(|count| count.store(0, Relaxed));
    }

    /// Returns the way whose turn it is.
    fn way(&self, ways: Ways, best: Way) -> Way {
        let others = ways.iter().filter(|way| *way != best);
        let block = self.turn.load(Relaxed) / self.block.load(Relaxed).max(1);
        core::iter::once(best).chain(others).nth(block as usize).unwrap_or(best)
    }

    /// Notes a sample; returns whether the round is over.
    fn note(&self, ways: Ways, best: Way, way: Way, cost: u32, ticks: u64, usual: u64) -> bool {
        if way != self.way(ways, best) {
            return false; // of a call that was decided about before, or otherwise
        }
        self.ticks.fetch_add(ticks, Relaxed);
        if way != best {
            self.extra.fetch_add(ticks.saturating_sub(usual), Relaxed);
        }
        let (turn, block) = (self.turn.load(Relaxed), self.block.load(Relaxed).max(1));
        let mut next = turn + 1;
        let before = self.last.load(Relaxed);
        self.last.store(cost, Relaxed);
        if !turn.is_multiple_of(block) {
            let count = &self.counts[way as usize];
            let at = count.load(Relaxed) as usize % KEPT;
            self.samples[way as usize][at].store(cost, Relaxed);
            count.store(at as u32 + 1, Relaxed);
            // Two samples in a row are enough to see that a way is hopeless.
            let best_cost = self.median(best);
            let is_hopeless = |cost: u32| ratio(cost, best_cost) >= HOPELESS;
            if way != best && is_hopeless(cost) && is_hopeless(before) {
                next = next.next_multiple_of(block);
            }
        }
        self.turn.store(next, Relaxed);
        next >= block * ways.count()
    }

    /// Returns the median of a way's samples, the lower one of two.
    fn median(&self, way: Way) -> u32 {
        let count = self.counts[way as usize].load(Relaxed) as usize;
        let mut samples = [u32::MAX; KEPT];
        for (to, from) in samples.iter_mut().zip(&self.samples[way as usize]).take(count) {
            *to = from.load(Relaxed);
        }
        samples.sort_unstable();
        samples[count.saturating_sub(1) / 2]
    }
}
