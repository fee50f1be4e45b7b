//! One task, shared by the caller and the workers: chunk by chunk, each from its post to its last byte.

use super::piece;
use super::queue::{End, Posted, Shared, UndoneBits};
use super::task::Task;
use super::watch;
use super::worker::summon;
use super::workers::{self, NAP_NANOS, QUEUE, SPIN_TICKS};
use crate::backend::copy_loop::CopyLoop;
use crate::backend::mode::Mode;
use crate::backend::piece_end::PieceEnd;
use crate::backend::{Refused, signals};
use crate::os::huge_pages::Region;
use crate::os::memory_policy;
use crate::os::signal_mask::SignalsHeld;
use crate::os::sync::{Ordering, pause};
use crate::os::sys;
use crate::plan::{Cut, Piece};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::AtomicU64;

/// Options of shared copies.
#[derive(Clone, Copy, Debug)]
pub struct ShareOptions {
    /// Worker threads, besides the caller; at most `MOST_WORKERS`.
    pub workers: usize,
    pub copy_loop: CopyLoop,
    /// Part of each copy the caller does alone; `None`: it claims pieces like a worker.
    pub share: Option<f32>,
    /// Set if the destination was never written.
    pub fresh: bool,
    /// Where huge pages are made, if at all.
    pub huge: Option<Region>,
}

/// Bytes, and the time they took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub bytes: usize,
    pub ticks: u64,
}

impl Cost {
    /// Ticks for each MiB, at least one.
    pub fn per_mebibyte(self) -> u32 {
        let ticks = u128::from(self.ticks.max(1)) << 20;
        (ticks / self.bytes.max(1) as u128).clamp(1, u32::MAX.into()) as u32
    }

    /// Returns how many times as fast as `other` this was.
    pub fn times_as_fast_as(self, other: Cost) -> usize {
        let of = |a: usize, b: u64| a as u128 * u128::from(b.max(1));
        let times = of(self.bytes, other.ticks) / of(other.bytes.max(1), self.ticks);
        times.min(usize::MAX as u128) as usize
    }
}

/// Measurements of the caller in a shared copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Cost of its own pieces.
    pub own: Cost,
    /// Set if a worker took several times as long for a piece as the caller: its CPU is contended.
    pub late: bool,
}

impl Seen {
    /// Adds the measurements of another chunk.
    pub fn add(&mut self, more: &Self) {
        self.own.bytes += more.own.bytes;
        self.own.ticks += more.own.ticks;
        self.late |= more.late;
    }
}

/// Bytes of a chunk for each thread that copies; the last chunk may be half as large again. Signals
/// with a handler are held during a chunk, because a handler that jumped out would leave workers
/// writing. A chunk that takes longer ends early if a signal waits.
const CHUNK_EACH: usize = 8 << 20;
const LARGEST_CHUNK: usize = 128 << 20;

/// Bytes of a copy for each worker that the caller itself calls. Waking one takes about a
/// microsecond, and the worker takes many more to arrive.
const CALL_EACH: usize = 64 << 10;

/// Ticks of waiting after which a caller sleeps, for `NAP_NANOS` at a time.
const NAP_AFTER_TICKS: u64 = 2_000_000;
/// Naps between two interruptions of workers whose pieces cannot be taken back.
const NAPS: u32 = 50;

/// Bytes copied by callers in copies that were shared.
pub static CALLER_BYTES: AtomicU64 = AtomicU64::new(0);
/// Copies in which a bad page was left to the caller.
pub static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Copies whose begun pieces were taken back from workers that did not run.
pub static TAKEN_BACK: AtomicU64 = AtomicU64::new(0);

/// Resets the counters in the child of a fork.
pub(super) fn forget_counts() {
    for count in [&CALLER_BYTES, &FAULTS, &TAKEN_BACK] {
        count.store(0, Ordering::Relaxed);
    }
}

/// Counts bytes that a caller has copied itself in a copy shared with others.
pub fn note_caller_bytes(bytes: usize) {
    if bytes > 0 {
        CALLER_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Shares one task; the ranges of a copy do not overlap. Returns the task's answer, and what was
/// measured. After a refusal nothing has been written.
///
/// # Safety
/// The program has called the task's function on its ranges. A bad page faults as it would without us.
pub unsafe fn share(task: &Task, how: &ShareOptions) -> Result<(isize, Seen), Refused> {
    let (mut at, mut answer, mut seen) = (0, 0, Seen::default());
    while at < task.len && answer == 0 {
        let part = task.part(at, chunk_of(task.len - at, how.workers));
        let mut rest = part;
        while rest.len > 0 && answer == 0 {
            // SAFETY: the program has called the task's function on ranges that include this part.
            (answer, rest) = match unsafe { share_chunk(&rest, how, &mut seen) } {
                Ok((answer, left)) => (answer, rest.part(left.offset, left.len)),
                Err(refused) if at == 0 && rest.len == part.len => return Err(refused),
                // SAFETY: the program has called the task's function on ranges that include this part.
                Err(_) => unsafe { (rest.call_libc(), rest.part(0, 0)) },
            };
        }
        at += part.len;
    }
    Ok((answer, seen))
}

/// Returns how many of the bytes that are left make the next chunk. There is no small last chunk:
/// less than half a chunk is added to the one before.
pub fn chunk_of(left: usize, workers: usize) -> usize {
    let chunk = ((workers + 1) * CHUNK_EACH).min(LARGEST_CHUNK);
    if left < chunk + chunk / 2 { left } else { chunk }
}

/// Shares one chunk, from its post to its last byte. Returns the answer, and the part that is left
/// because signals had to be delivered.
unsafe fn share_chunk(
    task: &Task,
    how: &ShareOptions,
    seen: &mut Seen,
) -> Result<(isize, Piece), Refused> {
    workers::may_post()?;
    let held = SignalsHeld::while_copying().ok_or(Refused::System)?;
    signals::install_handlers()?;
    let mode = Mode::for_new_pages(how.copy_loop)? | task.work.mode();
    let shared = take_slot(how.workers)?;
    let marked = how.huge.and_then(|region| region.mark(task.dst, task.len, &held));

    let alone = how.share.map_or(0, |share| (task.len as f64 * f64::from(share)) as usize);
    let own = task.part(0, alone.min(task.len));
    let rest = task.part(own.len, task.len - own.len);
    let parties = how.workers + 1;
    let cut = match how.fresh {
        true => Cut::for_fresh(rest.dst, rest.len, parties),
        false => Cut::new(rest.dst, rest.len, parties),
    };
    let posted = rest.len > 0;
    if posted {
        let mut mode = mode;
        if !how.fresh {
            mode |= Mode::of_ends(memory_policy::nodes_of_ends(rest.dst, rest.len));
        }
        mode.set(Mode::FRESH, how.fresh && cut.suits_making_pages(parties));
        QUEUE.post(shared, &Posted { dst: rest.dst, src: rest.src, cut, mode });
        if watch::ask_for(&held) {
            QUEUE.wake_sleepers(1);
        }
        // Each worker that arrives calls two more, but a short copy ends before they have all come.
        summon((task.len / CALL_EACH).clamp(1, how.workers) as u32);
    }
    // SAFETY: the program has called the task's function on these ranges; our handler ends the loop
    // at a bad page.
    let done_alone = unsafe { own.run(how.copy_loop, None) };
    if done_alone == PieceEnd::Differs {
        shared.cancel(0, shared.generation().load(Ordering::Relaxed));
    }
    if how.share.is_some() {
        leave_to_others(shared);
    }
    // Without a worker no thread watches: the caller copies alone, with signals unblocked.
    let (claimed, mut left) = match posted {
        true => work(shared, seen, &WaitMode::TakingBack(&held), workers::any_running()),
        false => (0, 0..0),
    };
    if claimed == 0 {
        left = 0..0;
    }
    let failed = done_alone == PieceEnd::Failed || posted && shared.has_failed();
    if failed {
        left = 0..0; // redone in the order of addresses
    }
    let mut room: UndoneBits = [const { MaybeUninit::uninit() }; _];
    let undone = posted.then(|| shared.undone(&mut room));
    QUEUE.release(shared);
    note_caller_bytes(own.len + claimed);
    if failed && !held.must_end() {
        FAULTS.fetch_add(1, Ordering::Relaxed);
    }

    drop(marked);
    // No thread writes any more, and signals arrive again: what could not be copied faults now, in
    // the program's thread, as it would have without us.
    drop(held);
    let mut answer = 0;
    if done_alone != PieceEnd::Done {
        // SAFETY: the program has called the task's function on ranges that include this part.
        answer = unsafe { task.retry(0, own.len) };
    }
    for index in undone.into_iter().flatten().filter(|index| !left.contains(index)) {
        if answer != 0 {
            break;
        }
        let piece = cut.piece(index);
        // SAFETY: the program has called the task's function on ranges that include this part.
        answer = unsafe { task.retry(own.len + piece.offset, piece.len) };
    }
    let offset = |index: usize| own.len + if index == 0 { 0 } else { cut.piece(index).offset };
    let (from, to) = match left.is_empty() {
        true => (0, 0),
        false => (offset(left.start), offset(left.end - 1) + cut.piece(left.end - 1).len),
    };
    Ok((answer, Piece { offset: from, len: to - from }))
}

/// Takes a slot of the queue. Refused where callers occupy half of the CPUs: workers are meant for idle CPUs.
pub fn take_slot(workers: usize) -> Result<&'static Shared, Refused> {
    let shared = QUEUE.take().ok_or(Refused::Busy)?;
    if QUEUE.copies() > workers.div_ceil(2) {
        QUEUE.release(shared);
        return Err(Refused::Busy);
    }
    Ok(shared)
}

/// Ways to wait for pieces that others have begun.
pub enum WaitMode<'a> {
    /// Waits to the end: system calls cannot be taken back.
    UntilDone,
    /// Waits for a while, then takes the pieces back. Signals are held.
    TakingBack(&'a SignalsHeld),
}

impl WaitMode<'_> {
    /// Returns whether pending signals have to be delivered.
    fn must_end(&self) -> bool {
        matches!(self, WaitMode::TakingBack(held) if held.must_end())
    }

    fn can_take_back(&self) -> bool {
        matches!(self, WaitMode::TakingBack(_)) && workers::can_take_back()
    }
}

/// With `claims`, copies pieces as long as any is unclaimed and no signal waits. Then waits for the
/// pieces that others have begun, including those of workers that are not counted yet. Returns how
/// many bytes the caller has copied, and the pieces that are left.
pub fn work(
    shared: &Shared,
    seen: &mut Seen,
    how: &WaitMode,
    claims: bool,
) -> (usize, Range<usize>) {
    let (own, quickest) = if claims { claim_pieces(shared, seen, how) } else { (0, None) };
    let left = leave_the_rest(shared);
    let (begun, patience) = (sys::ticks(), SPIN_TICKS + 4 * quickest.unwrap_or(SPIN_TICKS));
    wait(shared, patience, how);
    seen.late |= quickest.is_some() && sys::ticks().wrapping_sub(begun) > patience;
    (own, left)
}

/// Claims what is unclaimed without beginning it, so that no worker does. Returns the range of these pieces.
/// Workers claim from the other end, but for those on the node of the first page: what they have claimed
/// inside the range is copied twice.
fn leave_the_rest(shared: &Shared) -> Range<usize> {
    let mut left = 0..0;
    while let Some(claim) = shared.claim(End::Front) {
        shared.finish(&claim, PieceEnd::TakenBack);
        left = if left.is_empty() { claim.index } else { left.start }..claim.index + 1;
    }
    left
}

/// Copies pieces as long as there are any and no signal waits. Returns the bytes, and the time of
/// the quickest piece: slower ones may have been preempted.
fn claim_pieces(shared: &Shared, seen: &mut Seen, how: &WaitMode) -> (usize, Option<u64>) {
    let (mut own, mut quickest, mut now) = (0, None, sys::ticks());
    let end = End::Front.or_nearer(shared.mode());
    while let Some(claim) = shared.claim(end) {
        let len = claim.copy.cut.piece(claim.index).len;
        piece::run(shared, &claim, None);
        let then = core::mem::replace(&mut now, sys::ticks());
        let ticks = now.wrapping_sub(then);
        seen.own.bytes += len;
        seen.own.ticks += ticks;
        own += len;
        quickest = Some(quickest.map_or(ticks, |before: u64| before.min(ticks)));
        if how.must_end() {
            break;
        }
    }
    (own, quickest)
}

/// Leaves the rest to workers, with a fixed share. Returns when no piece has been claimed for a
/// while: no copy depends on another thread being scheduled.
fn leave_to_others(shared: &Shared) {
    let (mut since, mut left) = (sys::ticks(), shared.unclaimed());
    while left > 0 && sys::ticks().wrapping_sub(since) < 4 * SPIN_TICKS {
        let now = shared.unclaimed();
        if now != left {
            (since, left) = (sys::ticks(), now);
        }
        pause();
    }
}

/// Waits for pieces that others have begun, for about `patience` ticks or until pending signals have to
/// be delivered. Then they are taken back, because the workers that have them may not be running at all.
pub(super) fn wait(shared: &Shared, patience: u64, how: &WaitMode) {
    let (begun, mut from, mut naps) = (sys::ticks(), 0, 0u32);
    while shared.is_busy(&mut from) {
        let waited = sys::ticks().wrapping_sub(begun);
        if waited < patience.min(NAP_AFTER_TICKS) {
            pause();
            continue;
        }
        let must_end = how.must_end();
        if (must_end || waited >= patience) && how.can_take_back() {
            shared.take_back();
            TAKEN_BACK.fetch_add(1, Ordering::Relaxed);
            let interrupted = workers::drive_out();
            while !interrupted && workers::help_with(shared) {
                nap(&mut naps, how.must_end());
            }
            return;
        }
        nap(&mut naps, must_end);
    }
}

/// Sleeps a little; `must_end`: workers that may hang in a page fault are interrupted now and then.
fn nap(naps: &mut u32, must_end: bool) {
    *naps += 1;
    if must_end && naps.is_multiple_of(NAPS) {
        workers::interrupt_pieces();
    }
    sys::sleep(NAP_NANOS);
}

#[cfg(test)]
mod tests {
    use super::super::queue::Queue;
    use super::super::task::Work;
    use super::*;
    use crate::os::mapped::zeroed;

    /// A worker that has begun a piece loses its CPU, as where many ranks share the CPUs: the caller notices.
    #[test]
    fn piece_that_takes_its_worker_much_longer_than_the_caller_is_late() {
        // A caller that was itself kept waiting does not notice: the next turn makes the worker twice as late.
        assert!((0..8).any(|turn| is_late_after(20 << turn, true)));
    }

    /// The worker's maker has not counted it yet, or a refusal has just been noted.
    #[test]
    fn caller_that_sees_no_worker_waits_for_a_piece_that_one_has_begun() {
        assert!(!is_late_after(100, false));
    }

    fn is_late_after(millis: u64, claims: bool) -> bool {
        let queue = Box::new(zeroed::<Queue>());
        let shared = queue.take().unwrap();
        let mut bytes = vec![1u8; 1 << 16];
        let dst = bytes.as_mut_ptr() as usize;
        let mode = Mode::of_caller(CopyLoop::Ordinary) | Work::Fill.mode();
        let cut = Cut::with_piece(dst, bytes.len(), 1 << 12);
        queue.post(shared, &Posted { dst, src: 0, cut, mode });
        let theirs = shared.claim(End::Back).unwrap();
        let mut seen = Seen::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(millis));
                shared.finish(&theirs, PieceEnd::Done);
            });
            let (own, left) = work(shared, &mut seen, &WaitMode::UntilDone, claims);
            assert!(!shared.is_busy(&mut 0), "returned while a worker writes");
            let others = bytes.len() - cut.piece(theirs.index).len;
            assert_eq!(own, if claims { others } else { 0 });
            assert_eq!(left.is_empty(), claims);
        });
        queue.release(shared);
        seen.late
    }
}
