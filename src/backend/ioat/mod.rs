//! DMA channels, of I/OAT or a DSA: one copy from submission to the last byte, by the caller and the engine.
//!
//! Law of this file, cited as "the engine's law": while a request is in flight the engine writes
//! the program's memory, whatever the program does. So control does not leave this file between a
//! submission and the end of its request: we do not return, and all signals are held, because a
//! handler of any of them may jump. The caller's own part is copied by loops that survive a bad
//! page, with our fault handler in front of the program's; parts shorter than a page are copied
//! before the request is submitted.

mod across;
mod asynchronous;
mod check;
pub mod counts;
mod engine;
#[cfg(test)]
pub mod fake;
pub mod helper;
mod piece_lists;
pub mod queues;
pub mod report;
#[cfg(test)]
mod tests;
mod words;

use crate::backend::engine::CopyOptions;
pub use adma_shared::abi;

use crate::backend::copy_loop::CopyLoop;
use crate::backend::piece_end::PieceEnd;
use crate::backend::engine::stretch::Stretch;
use crate::backend::engine::tuning::{CallerShare, Clock, CopyTimes, Limit};
use crate::backend::threads::workers;
use crate::backend::{Refused, signals};
use crate::os::mapped::zeroed;
use crate::os::signal_mask::SignalsHeld;
use crate::os::{process, sys};
use crate::plan::{Cut, PAGE, Split};
use zerocopy::FromZeros;
pub use across::There;
#[cfg(test)]
pub(super) use asynchronous::ASK_AGAIN;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize};
use counts::Counts;
use helper::Helper;
use piece_lists::{PieceLists, TakenList, Turn};
use words::Words;

/// Bytes of a line, the unit in which the helper keeps pages.
const LINE: usize = 64 * PAGE;

/// Most bytes of one request: bounds how long signals are held.
const CHUNK: usize = 16 << 20;

/// A caller that has more ticks left to wait than this (about 0.2 ms) sleeps through most of them, and
/// looks again after `LONGEST_DOZE` nanoseconds: the estimate may be wrong.
const DOZE_FROM: u64 = 500_000;
const LONGEST_DOZE: u64 = 2_000_000;

/// Timeout in ticks (about 10 ms), added to eight times the expected time, after which a completion
/// word is considered lost; applies to spinning callers too.
pub const LOST_AFTER: u64 = 25_000_000;

/// Time that one status call waits; another one follows.
const STATUS_NANOS: u64 = 1_000_000_000;

#[derive(FromZeros)]
pub struct Engine {
    pub helper: Helper,
    /// Number of channels; 0: not started.
    channels: AtomicU32,
    usable: AtomicU32,
    src_align: AtomicUsize,
    features: AtomicU32,
    /// Errno of the last start that failed.
    why_not: AtomicI32,
    /// Address of each channel's words; 0: not mapped.
    words: [AtomicUsize; abi::MAX_CHANNELS],
    lists: PieceLists,
    /// Pages that may stay pinned, plus one; 0: as the helper is configured.
    keeps: AtomicU64,
    limit: Limit,
    share: CallerShare<192, 4>,
    times: CopyTimes,
    clock: Clock,
    pub counts: Counts,
}

/// One engine for the process: it has one file of the helper.
pub static IOAT: Engine = zeroed();

impl Engine {
    #[cfg(test)]
    pub const fn new() -> Self {
        zeroed()
    }

    /// Opens the helper. Called by one thread at a time, with signals held: a handler that jumped
    /// out would leak the descriptor. False: there is no engine.
    pub fn open(&self, allowed: sys::NoNewFilter) -> bool {
        let info = match self.helper.open(allowed) {
            Ok(info) => info,
            Err(errno) => {
                self.why_not.store(errno, Relaxed);
                return false;
            }
        };
        if info.features & abi::FEATURE_WORDS != 0 {
            for (channel, words) in self.words.iter().enumerate().take(info.channels as usize) {
                words.store(self.helper.words(channel), Relaxed);
            }
        }
        // Half of what the file may have in flight: there may be several callers. A page that two
        // pieces share is pinned twice.
        let pages = (info.max_pages / 2).saturating_sub(abi::MAX_PIECES as u64);
        let most = (info.max_bytes / 2).min(pages.saturating_mul(PAGE as u64)).min(CHUNK as u64);
        self.limit.set(most as usize);
        self.src_align.store(info.src_align as usize, Relaxed);
        self.features.store(info.features, Relaxed);
        self.usable.store(info.usable, Relaxed);
        self.clock.set();
        self.channels.store(info.channels, Relaxed);
        true
    }

    /// Limits the memory that stays pinned from one copy to the next.
    pub fn keep(&self, bytes: usize) {
        let pages = (bytes / PAGE) as u64;
        self.keeps.store(pages + 1, Relaxed);
        // A helper that refuses keeps its own limit.
        self.helper.keep(pages);
    }

    /// Unpins everything before a fork. The kernel copies pinned pages for the child at once and
    /// leaves them writable, so other threads write to them while it copies the next: the child's
    /// heap could be torn between pages. The helper does not keep pages of a forked process anyway.
    pub fn let_go(&self) {
        if self.channels() > 0 {
            self.helper.keep(0);
        }
    }

    /// Keeps pages pinned again after the fork.
    pub fn keep_again(&self) {
        if self.channels() > 0 {
            self.helper.keep(self.keeps.load(Relaxed).checked_sub(1).unwrap_or(u64::MAX));
        }
    }

    /// Returns the counters of kept ranges; `None`: not known.
    pub fn kept(&self) -> Option<[(&'static str, u64); 4]> {
        let info = self.helper.counts()?;
        Some([
            ("hits", info.hits),
            ("misses", info.misses),
            ("evictions", info.evictions),
            ("invalidations", info.invalidations),
        ])
    }

    /// Returns the channels of the helper; 0 while the engine is not up.
    pub fn channels(&self) -> usize {
        self.channels.load(Relaxed) as usize
    }

    /// Returns the channels that were not in quarantine when the engine was started.
    pub fn usable(&self) -> usize {
        self.usable.load(Relaxed) as usize
    }

    /// Returns why there is no engine: an errno, or 0 when it was not asked for.
    pub fn why_not(&self) -> i32 {
        self.why_not.load(Relaxed)
    }

    /// Returns whether the engine can read and write at such addresses in one go.
    #[inline]
    pub fn suits(&self, dst: usize, src: usize) -> bool {
        dst.wrapping_sub(src) & (self.src_align.load(Relaxed).max(1) - 1) == 0
    }

    /// Resets the engine in the child of a fork: the file and its requests are the parent's, and
    /// the words are not mapped here.
    pub fn forget_after_fork(&self) {
        self.helper.forget_after_fork();
        self.words.iter().for_each(|words| words.store(0, Relaxed));
        self.channels.store(0, Relaxed);
        self.lists.forget_everything();
        self.counts.clear();
    }

    /// Returns the channels of a copy to or from `at`. They depend on the range of pages that the
    /// helper keeps: pages mapped for a channel's device serve the next copy too.
    fn turn_for(&self, at: usize, how: &CopyOptions) -> Turn {
        let all = self.channels().max(1);
        let used = how.channels.unwrap_or(all).clamp(1, all);
        let any = used == all && self.features.load(Relaxed) & abi::FEATURE_NODES != 0;
        Turn { first: at / LINE, used, all, any }
    }

    /// Copies by one request, from submission to the last byte. The caller's own part is the
    /// beginning, which the program reads first, and the edges that are not aligned.
    ///
    /// # Safety
    /// As memcpy.
    unsafe fn copy_stretch(
        &self,
        whole: Stretch,
        turn: Turn,
        how: &CopyOptions,
    ) -> Result<(), Refused> {
        let Stretch { dst, src, len } = whole;
        let own = self.own_part(len, how.share);
        let align = self.src_align.load(Relaxed).max(abi::ALIGN);
        let split = Split::new(dst + own, len - own, align);
        let (body, end) = (own + split.head, own + split.head + split.body);
        if split.body == 0 {
            self.counts.caller_bytes.fetch_add(len as u64, Relaxed);
            // SAFETY: the whole of ranges that memcpy may copy, by the caller's contract.
            unsafe { whole.by_libc(0, len) };
            return Ok(());
        }
        let cut = Cut::for_channels(abi::MAX_PIECES, dst + body, split.body, turn.used);
        let own_parts = || {
            // SAFETY: parts of the caller's ranges that the engine does not write.
            unsafe {
                whole.by_libc(0, body);
                whole.by_libc(end, len);
            }
        };
        let little = body + (len - end) < PAGE;
        if little {
            own_parts();
        }
        let begun_at = sys::ticks();
        let guarded = !little && self.hear_faults();
        // Before a list is taken: a handler that jumped out would leak it.
        let held = self.hold_signals(guarded)?;
        let list = self.lists.take().ok_or(Refused::Busy)?;
        let mut request = list.fill(cut, dst + body, src + body, turn);
        let errno = match self.submit(&mut request) {
            Ok(errno) => errno,
            Err(errno) => {
                drop(list);
                drop(held);
                self.refused(errno)?;
                self.counts.caller_bytes.fetch_add(len as u64, Relaxed);
                // SAFETY: ranges that memcpy may copy, with nothing in flight; a bad page faults as it would in
                // libc.
                unsafe { whole.by_libc(0, len) };
                return Ok(());
            }
        };

        // The engine's law begins.
        let submitted = sys::ticks();
        // SAFETY: parts of ranges that memcpy may copy, which the engine does not write; our handler is in front.
        let own_done =
            little || guarded && unsafe { copy_guarded(&[(0, body), (end, len)], whole) };
        let (taken, begun) = accepted(&request, cut);
        let failed = self.wait(&request, begun, submitted, how) & low_bits(taken);
        let over = sys::ticks();
        // The engine's law ends. Faults from here on may jump, so everything has been released.
        self.account(&list, &request, taken, failed, len);
        drop(list);
        drop(held);
        self.note_errno(errno, len, begun);
        if errno == libc::EFAULT {
            self.counts.faults.fetch_add(1, Relaxed);
        }

        if !own_done {
            own_parts();
        }
        // SAFETY: parts of ranges that memcpy may copy; the request is over, so the engine writes them no more.
        unsafe {
            for index in (0..taken).filter(|index| failed >> index & 1 == 1) {
                let piece = cut.piece(index);
                whole.by_libc(body + piece.offset, body + piece.offset + piece.len);
            }
            whole.by_libc(body + begun, end);
        }
        self.counts.note(&request, [begun_at, submitted, over, sys::ticks()]);
        Ok(())
    }

    /// Starts a request. `Ok`: at least a part is under way, and the errno is the reason why the rest is
    /// not. `Err`: nothing is under way.
    fn submit(&self, request: &mut abi::Submit) -> Result<i32, i32> {
        self.counts.submits.fetch_add(1, Relaxed);
        let errno = self.helper.submit(request);
        if request.id != 0 {
            return Ok(errno);
        }
        self.note_errno(errno, 0, 0);
        Err(errno)
    }

    /// Adapts the size of requests: `taken` bytes of `len` are under way.
    fn note_errno(&self, errno: i32, len: usize, taken: usize) {
        match errno {
            0 => self.limit.note_taken(len),
            libc::ENOMEM => self.limit.lower(taken),
            _ => {}
        }
    }

    /// Returns what an errno means for a request with nothing in flight. `Ok`: a page is bad, so
    /// the caller is to copy.
    fn refused(&self, errno: i32) -> Result<(), Refused> {
        Err(match errno {
            libc::EFAULT => {
                self.counts.faults.fetch_add(1, Relaxed);
                return Ok(());
            }
            libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::EINTR | libc::EIO => Refused::Busy,
            libc::ENODEV => Refused::NoChannels,
            // A child that shares our memory may have closed its own descriptor, and a child with a
            // copy of our memory did not open it.
            _ if !process::is_ours() => Refused::NotOurs,
            // 0: the number refers to another file, whose answer this is.
            _ => Refused::System,
        })
    }

    /// Returns the bytes at the beginning that the caller copies itself.
    fn own_part(&self, len: usize, share: Option<f32>) -> usize {
        match share {
            Some(share) => ((len as f64 * f64::from(share)) as usize).min(len),
            None => self.share.of(len),
        }
    }

    /// Installs our fault handler in front of the program's. Before the request, so that signals
    /// are held and released once. False: no page may fault while the engine writes.
    fn hear_faults(&self) -> bool {
        self.counts.others.fetch_add(2, Relaxed);
        signals::install_handlers().is_ok()
    }

    fn hold_signals(&self, but_faults: bool) -> Result<SignalsHeld, Refused> {
        self.counts.others.fetch_add(2, Relaxed);
        let held = if but_faults { SignalsHeld::while_copying() } else { SignalsHeld::handled() };
        held.ok_or(Refused::System)
    }

    /// Waits for the end of a request of `bytes`. Returns the pieces that failed.
    fn wait(&self, request: &abi::Submit, bytes: usize, since: u64, how: &CopyOptions) -> u64 {
        let Some(words) = self.words_of(request) else { return self.ask(request.id, None) };
        let engine_was_first = words.missing().is_none();
        if how.share.is_none() {
            self.share.note(engine_was_first);
        }
        if engine_was_first {
            self.times.note_at_most(bytes, sys::ticks().wrapping_sub(since));
            return 0;
        }
        let failed = if self.watch(&words, self.times.expected(bytes), since, how.spins) {
            0
        } else {
            self.ask(request.id, Some(&words))
        };
        if failed == 0 {
            self.times.note(bytes, sys::ticks().wrapping_sub(since));
        }
        failed
    }

    /// Polls the words. Returns false if they were not written in reasonable time.
    fn watch(&self, words: &Words<'_>, expected: u64, since: u64, spins: bool) -> bool {
        if spins {
            let lost_after = LOST_AFTER.saturating_add(expected.saturating_mul(8));
            return words.come_within(lost_after);
        }
        let rest = || expected.saturating_sub(sys::ticks().wrapping_sub(since));
        while rest() > DOZE_FROM && words.missing().is_some() {
            self.clock.measure();
            self.counts.others.fetch_add(1, Relaxed);
            sys::sleep(self.clock.nanoseconds(rest() / 4 * 3).min(LONGEST_DOZE));
        }
        words.come_within(expected.max(workers::SPIN_TICKS))
    }

    /// Asks the kernel until it reports the end of the request. Never gives up: see the engine's
    /// law. SIGKILL ends it inside the kernel.
    fn ask(&self, id: u64, words: Option<&Words<'_>>) -> u64 {
        loop {
            let size = size_of::<abi::Wait>() as u32;
            let mut wait = abi::Wait { size, id, timeout_ns: STATUS_NANOS, ..Default::default() };
            self.counts.waits.fetch_add(1, Relaxed);
            match self.helper.wait(&mut wait) {
                0 => return wait.failed,
                libc::EINTR | libc::ETIMEDOUT | libc::EAGAIN => {}
                // Another thread has closed the descriptor: only the words show the end.
                _ => sys::sleep(1_000_000),
            }
            if words.is_some_and(|words| words.missing().is_none()) {
                return 0;
            }
        }
    }

    /// Returns the completion words of a request; `None`: it has none, so the kernel must be asked.
    fn words_of(&self, request: &abi::Submit) -> Option<Words<'_>> {
        let slot = request.slot as usize;
        let words = Words {
            pages: &self.words,
            channels: request.channels,
            offset: slot * abi::WORD_STRIDE,
            id: request.id,
        };
        let has_words = request.channels != 0 && slot < abi::SLOTS;
        (has_words && words.each().all(|page| page != 0)).then_some(words)
    }

    fn account(
        &self,
        list: &TakenList,
        request: &abi::Submit,
        taken: usize,
        failed: u64,
        len: usize,
    ) {
        let counts = &self.counts;
        let mut by_channels = 0;
        for (index, piece) in list.pieces().iter().take(taken).enumerate() {
            let done = failed >> index & 1 == 0;
            if let Some(count) = counts.channel_bytes.get(piece.channel as usize).filter(|_| done) {
                count.fetch_add(piece.len, Relaxed);
                by_channels += piece.len;
            }
        }
        counts.caller_bytes.fetch_add(len as u64 - by_channels, Relaxed);
        let redone = request.count as u64 - taken as u64 + u64::from(failed.count_ones());
        if redone > 0 {
            counts.redone.fetch_add(redone, Relaxed);
        }
    }
}

/// Copies parts of the program's memory while the engine writes others. False: a page is bad, so
/// they are copied when the engine is done.
///
/// # Safety
/// As memcpy; our fault handler is in front of the program's, and faults are not blocked.
unsafe fn copy_guarded(parts: &[(usize, usize)], whole: Stretch) -> bool {
    parts.iter().all(|&(from, to)| {
        let (dst, src) = (whole.dst + from, whole.src + from);
        // SAFETY: parts of ranges that memcpy may copy, and our handler is in front, as the caller has ensured.
        unsafe { CopyLoop::Ordinary.copy(dst, src, to - from) == PieceEnd::Done }
    })
}

fn low_bits(count: usize) -> u64 {
    1u64.checked_shl(count as u32).map_or(u64::MAX, |bit| bit - 1)
}

/// Returns how many pieces of a request were taken, and how many bytes that are.
fn accepted(request: &abi::Submit, cut: Cut) -> (usize, usize) {
    let (count, (bytes, ..)) = (cut.count(), cut.parts());
    let taken = (request.accepted as usize).min(count);
    (taken, if taken < count { cut.piece(taken).offset } else { bytes })
}
