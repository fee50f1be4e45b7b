//! Huge pages for fresh memory that is about to be written whole.
//!
//! A page fault for each 4 KiB costs more than the bytes. A 2 MiB page inside the range takes one
//! fault, and no more memory, because all of it is written.
//!
//! The kernel makes such pages where memory is marked so (MADV_HUGEPAGE). A mark can be replaced by its
//! opposite (MADV_NOHUGEPAGE) but not removed, and it splits the mapping:
//! - mremap of a split mapping fails. realloc then copies what it would have moved: a bytearray that
//!   grows took nine times as long.
//! - Memory that an allocator gives back (MADV_DONTNEED) and touches again here and there would
//!   get huge pages where the mark has stayed.
//!
//! So a call takes these steps:
//!
//! ```text
//! once      the whole mapping gets MADV_NOHUGEPAGE         Region::new
//! by parts  the part gets MADV_HUGEPAGE                    Region::mark
//!           its pages are made; signals are held meanwhile
//!           the part gets MADV_NOHUGEPAGE: the mapping is whole again
//! ```
//!
//! Parts lie in memory that a running call writes, which other threads do not unmap. No handler jumps out
//! while a part is marked, and the child of a fork removes the marks that other threads of its parent had
//! made (`MARKED`).
//!
//! Where huge pages are made on request, MADV_NOHUGEPAGE is equivalent to no mark, except for
//! MADV_COLLAPSE (`collapse`). Parts merge again if they share an anon_vma, which the first page fault makes;
//! so one page is made before the first mark.

use super::brief_file;
use super::lock::TryLock;
use super::lookup;
use super::mappings::{self, Around};
use super::signal_mask::SignalsHeld;
use super::sys::{self, NoFilter, NoNewFilter, syscall};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

const PAGE: usize = 4096;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Smallest range: for a smaller one, the system calls, which lock all mappings, cost more than they gain.
const FROM: usize = 4 << 20;

/// Smallest range where the kernel has to list all mappings to show one.
const FROM_WITH_LIST: usize = 32 << 20;

/// Bytes whose pages `Region::make_pages` makes at a time: signals are held for about a millisecond, and
/// the bytes are still in the cache when they are written.
pub const STEP: usize = 8 << 20;

/// Most mappings of a process in which a request is made: the kernel allows 65,530 by default.
const MOST_MAPPINGS: u32 = 16 << 10;

/// Requests after which a process with too many mappings is examined again.
const AGAIN_AFTER: u32 = 4096;

/// Whether the system makes huge pages on request, rather than always or never: `UNKNOWN`, `NO` or `YES`.
static ON_REQUEST: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const NO: u32 = 1;
const YES: u32 = 2;

/// Set when the program has asked for small pages anywhere: its choice is respected.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Number of calls by which the program has asked for huge pages.
static REQUESTS: AtomicU32 = AtomicU32::new(0);

/// Set when any mapping was marked; never cleared.
static EVER: AtomicBool = AtomicBool::new(false);

/// Requests that may be made, or skipped, before mappings are counted again.
static BUDGET: TryLock<Budget> = TryLock::new(Budget { left: 0, allowed: false });

struct Budget {
    left: u32,
    allowed: bool,
}

/// Ranges that running calls have marked for huge pages: more entries than copies can be shared at the same
/// time.
static MARKED: [Entry; 64] = [const { Entry::new() }; 64];

struct Entry {
    /// 0: free.
    start: AtomicUsize,
    /// 0: not marked yet.
    end: AtomicUsize,
}

impl Entry {
    const fn new() -> Self {
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }

    fn free(&self) {
        self.end.store(0, Relaxed);
        self.start.store(0, Release);
    }
}

/// Notes that the program has asked for small pages.
pub fn refuse() {
    REFUSED.store(true, Relaxed);
}

/// Notes that the program is about to call madvise.
pub fn note_advice(advice: i32) {
    match advice {
        libc::MADV_HUGEPAGE => drop(REQUESTS.fetch_add(1, Relaxed)),
        libc::MADV_NOHUGEPAGE => refuse(),
        _ => {}
    }
}

/// Removes, in the child of a fork, the marks of the parent's other threads, and frees the lock of the
/// budget.
pub fn forget_after_fork() {
    if !EVER.load(Relaxed) {
        return;
    }
    BUDGET.forget_after_fork();
    for entry in MARKED.iter().filter(|entry| entry.start.load(Relaxed) != 0) {
        let (start, end) = (entry.start.load(Relaxed), entry.end.load(Relaxed));
        // The thread that forks may have got a filter after the mark was made.
        if end > start && NoNewFilter::look().is_some() {
            advise(start, end, libc::MADV_NOHUGEPAGE);
        }
        entry.free();
    }
}

/// Memory that is marked until this is dropped. It belongs to a running call, which writes to it.
pub struct Marked<'a> {
    entry: &'static Entry,
    _held: &'a SignalsHeld,
}

impl<'a> Marked<'a> {
    /// `None`: there is no free entry, or the kernel refuses.
    fn new(start: usize, end: usize, held: &'a SignalsHeld) -> Option<Self> {
        let take =
            |entry: &&Entry| entry.start.compare_exchange(0, start, Acquire, Relaxed).is_ok();
        let entry = MARKED.iter().find(take)?;
        entry.end.store(end, Release);
        let marked = Self { entry, _held: held };
        advise(start, end, libc::MADV_HUGEPAGE).then_some(marked)
    }

    /// Frees the entry and keeps the mark.
    fn leave(self) {
        self.entry.free();
        core::mem::forget(self);
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        let [start, end] = [&self.entry.start, &self.entry.end].map(|at| at.load(Relaxed));
        advise(start, end, libc::MADV_NOHUGEPAGE);
        self.entry.free();
    }
}

/// Makes the program's call of madvise with MADV_COLLAPSE; if it is refused, repeats it without the
/// mark that our copies leave.
pub fn collapse(start: usize, len: usize, call: impl Fn() -> i32) -> i32 {
    // SAFETY: the C library returns the address of this thread's errno, which no other thread accesses.
    let errno = unsafe { &mut *libc::__errno_location() };
    let (before, mut answer, end) = (*errno, call(), start.saturating_add(len));
    let is_ours = EVER.load(Relaxed) && !REFUSED.load(Relaxed) && REQUESTS.load(Relaxed) == 0;
    if answer != 0
        && is_ours
        && let Some(held) = SignalsHeld::all()
        && let Some(_marked) = Marked::new(start, end, &held)
    {
        answer = call();
        if answer == 0 {
            *errno = before;
        }
    }
    answer
}

/// Gives a range the mark that our copies leave, so that mappings split by that mark merge again. False: we
/// have marked nothing, or the program has marks of its own.
pub fn mark_alike(start: usize, end: usize) -> bool {
    EVER.load(Relaxed) && REQUESTS.load(Relaxed) == 0 && advise(start, end, libc::MADV_NOHUGEPAGE)
}

fn advise(start: usize, end: usize, advice: i32) -> bool {
    // SAFETY: callers pass advice about huge pages or about making pages, neither of which changes a byte.
    unsafe { syscall!(SYS_madvise, start, end - start, advice) == 0 }
}

/// Memory that one call is about to write, whose parts can be marked.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The whole huge pages of the range.
    from: usize,
    to: usize,
    /// Value of `REQUESTS` when the region was made.
    requests: u32,
}

impl Region {
    /// Prepares the mapping of a range for marks. `None`: the range is not marked, and its page sizes remain
    /// the program's choice.
    pub fn new(start: usize, len: usize, allowed: NoFilter) -> Option<Self> {
        let (from, to) = (start.next_multiple_of(HUGE), (start + len) / HUGE * HUGE);
        let least = if mappings::takes_list() { FROM_WITH_LIST } else { FROM };
        let is_known_unwanted = ON_REQUEST.load(Relaxed) == NO || REFUSED.load(Relaxed);
        if is_known_unwanted || from >= to || to - from <= HUGE || len < least {
            return None;
        }
        let Some(held) = SignalsHeld::all() else {
            ON_REQUEST.store(NO, Relaxed); // it is not tried with every copy
            return None;
        };
        if !is_wanted(allowed) || !takes_budget(&held) {
            return None;
        }
        let requests = REQUESTS.load(Relaxed);
        let before = Around::look(from, &held).filter(|around| to <= around.this.1)?;
        // A page of the range outside its whole huge pages, if there is one.
        let first = if start < from { start } else { start + len - 1 } & !(PAGE - 1);
        if !advise(first, first + PAGE, libc::MADV_POPULATE_WRITE) {
            return None;
        }
        EVER.store(true, Relaxed);
        let trial = Marked::new(from, from + HUGE, &held)?;
        if Around::look(from, &held).is_none_or(|around| around.this == before.this) {
            trial.leave(); // not split: it has the program's own mark
            return None;
        }
        let whole = before.this;
        advise(whole.0, whole.1, libc::MADV_NOHUGEPAGE);
        drop(trial);
        if !lookup::has_one_thread() {
            mend(&before, &held);
        }
        Some(Self { from, to, requests })
    }

    /// Marks a part of the range, and with it the huge pages at its ends.
    pub fn mark<'a>(&self, start: usize, len: usize, held: &'a SignalsHeld) -> Option<Marked<'a>> {
        let from = (start / HUGE * HUGE).max(self.from);
        let to = (start + len).next_multiple_of(HUGE).min(self.to);
        // A part that the program has marked meanwhile keeps its mark.
        let is_ours = || REQUESTS.load(Relaxed) == self.requests && !REFUSED.load(Relaxed);
        if from < to && is_ours() { Marked::new(from, to, held) } else { None }
    }

    /// Makes the pages of a part of the range, in steps of about `STEP`.
    pub fn make_pages(&self, start: usize, len: usize) {
        let (mut at, end) = (start.max(self.from), (start + len).min(self.to));
        while at < end {
            let next = (at + STEP).next_multiple_of(HUGE).min(end);
            let allowed = NoFilter::look();
            let Some((held, allowed)) = SignalsHeld::all().zip(allowed) else { return };
            let Some(_marked) = self.mark(at, next - at, &held) else { return };
            sys::make_pages(at / PAGE * PAGE, next - at / PAGE * PAGE, allowed);
            at = next;
        }
    }
}

/// Repairs a mapping that our mark has split: another thread may have mapped memory across an end of the
/// mapping between the look at it and the mark. The part outside the marked range gets the mark as well.
fn mend(before: &Around, held: &SignalsHeld) {
    let (start, end) = before.this;
    let below =
        Around::look(start, held).filter(|now| now.this.0 == start).and_then(|now| now.below);
    let above =
        Around::look(end - 1, held).filter(|now| now.this.1 == end).and_then(|now| now.above);
    for (now, before) in [(below, before.below), (above, before.above)] {
        if let Some((start, end)) = now.filter(|_| now != before) {
            advise(start, end, libc::MADV_NOHUGEPAGE);
        }
    }
}

fn is_wanted(_: NoFilter) -> bool {
    if REFUSED.load(Relaxed) {
        return false;
    }
    if ON_REQUEST.load(Relaxed) == UNKNOWN
        && let Some(on_request) = is_on_request()
    {
        ON_REQUEST.store(if on_request { YES } else { NO }, Relaxed);
    }
    // SAFETY: the call accesses no memory of ours.
    let disabled = || unsafe { syscall!(SYS_prctl, libc::PR_GET_THP_DISABLE) != 0 };
    ON_REQUEST.load(Relaxed) == YES && !disabled()
}

/// Reads whether the system makes huge pages on request. `None`: the file exists, but cannot be opened now;
/// the program may have no free descriptor.
fn is_on_request() -> Option<bool> {
    let (path, mut text) = (c"/sys/kernel/mm/transparent_hugepage/enabled", [0; 64]);
    match brief_file::read(path, &mut text, NoNewFilter::look()?) {
        Some(text) => Some(text.windows(9).any(|word| word == b"[madvise]")),
        None => (sys::may_read(path) != 0).then_some(false),
    }
}

/// Takes one request from the budget; false: there are too many mappings. A mark keeps a mapping
/// from merging with two neighbours, so mappings are counted again after half of what is left.
fn takes_budget(held: &SignalsHeld) -> bool {
    let Some(mut budget) = BUDGET.try_take(held) else { return false };
    if budget.left == 0 {
        let count = |allowed| brief_file::count_lines(mappings::LIST, allowed);
        let Some(count) = NoNewFilter::look().and_then(count) else { return false };
        budget.allowed = count < MOST_MAPPINGS;
        budget.left = match budget.allowed {
            true => (MOST_MAPPINGS - count).div_ceil(2),
            false => AGAIN_AFTER,
        };
    }
    budget.left -= 1;
    budget.allowed
}
