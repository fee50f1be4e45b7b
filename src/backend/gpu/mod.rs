//! A peripheral in loopback: a DMA engine of a GPU reads the source and writes the destination on
//! behalf of the CPU.
//!
//! ```text
//! hook                         service thread                       card
//! registrations.covers? else libc
//! slot: dst, src, len; ring -> registrations still live? else refused
//!                              one call, channels in turn        -> source -> destination
//! own share, or sleep          a word behind it                  -> word in the slot's line
//! words come -> return
//! ```
//!
//! Calls of the driver allocate and lock, which the hook may not: a thread of ours makes them,
//! and the hook hands it a copy through a slot. A channel is a stream.
//!
//! Drivers before 12.8 have no such call: there one engine reads the source into a buffer on the
//! card, chunk by chunk, and another writes it from there to the destination. Each channel has a
//! buffer of its own. Order holds within a stream, so a buffer is written again only when it has
//! been read, and no events are needed; chunks of one copy on different channels keep both
//! directions busy. That takes a tenth longer, and eight times as many calls.
//!
//! The law of the I/OAT engine holds here too: from when the service thread takes a copy until its
//! words have come, or until it is certain that the card writes no more, control does not leave
//! this file and no signal handler may jump. A copy that the service thread has not taken in
//! reasonable time is taken back.
//!
//! Memory of copies is registered, so it cannot fault. Copies of other memory go to libc, and it is
//! registered when it is used a second time: `registrations`. `watch` ensures that no copy begins
//! with a registration that is older than its memory.
//!
//! The program may use the same card and the same primary context. Nothing of ours is current in
//! its threads; the default stream is never used; a child of a fork never calls the driver. After
//! any error that is not about one range of memory all copies go to libc for good.

mod asynchronous;
mod check;
mod copy;
mod counts;
mod driver;
mod engine;
// Exports stay out of test executables.
#[cfg(not(test))]
mod exports;
mod lead;
mod registrations;
mod report;
mod service;
mod slots;
mod unavailable;
mod watch;
mod wishes;

use crate::backend::engine::Hold;
use crate::backend::engine::tuning::{CallerShare, Clock, CopyTimes};
use crate::os::mapped::zeroed;
use crate::os::once::Once;
use crate::os::signal_mask::SignalsHeld;
use crate::os::{process, sys};
use crate::plan::PAGE;
use core::ffi::CStr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use counts::Counts;
use lead::Lead;
use registrations::Registrations;
use slots::{CopySlot, slot};
pub use unavailable::Unavailable;
use watch::Watch;
use wishes::{MISSED, Wish};
use zerocopy::FromZeros;

/// Number of streams.
pub const CHANNELS: usize = 4;
/// Bytes of each buffer, and the largest chunk where CPU time is to be saved: a chunk costs two
/// driver calls.
pub const BUFFER: usize = 6 << 20;
/// Largest chunk elsewhere: a copy takes as long as reading it, plus one chunk.
const QUICK_CHUNK: usize = 4 << 20;
/// Smallest copy for the card, unless ADMA_MIN_BYTES says otherwise.
pub const FLOOR: usize = 1 << 20;
/// Copies that can be in flight.
const SLOTS: usize = 64;

/// States of the engine.
mod state {
    /// Not wanted, or in the child of a fork.
    pub const OFF: u32 = 0;
    /// The service thread waits for the first large copy.
    pub const COLD: u32 = 1;
    /// The service thread is opening the driver.
    pub const STARTING: u32 = 2;
    pub const READY: u32 = 3;
    /// The engine has failed, or the process ends.
    pub const ENDED: u32 = 4;
}

#[derive(FromZeros)]
pub struct Engine {
    state: AtomicU32,
    /// Set when the service thread has released everything.
    closed: AtomicU32,
    /// First failure.
    why: Once<Unavailable>,
    /// Word that the service thread sleeps on.
    bell: AtomicU32,
    asleep: AtomicU32,
    /// Slots that are taken, one bit each.
    taken: AtomicU64,
    posted: AtomicU64,
    slots: [CopySlot; SLOTS],
    /// Address of the words: a line for each slot, with a word for each channel.
    words: AtomicUsize,
    registrations: Registrations,
    watch: Watch,
    /// Lines without a registration, and how often they were needed: line << 8 | times.
    missed: [AtomicU64; MISSED],
    wishes: [Wish; 16],
    /// Lower and upper end of the service thread's stack.
    stack: [AtomicUsize; 2],
    floor: AtomicUsize,
    keep: AtomicUsize,
    spare_cpus: AtomicU32,
    clock: Clock,
    times: CopyTimes,
    lead: Lead,
    share: CallerShare<128, 2>,
    /// Name of the card, terminated, and its number of copy engines.
    name: Once<[u8; 64]>,
    engines: AtomicU32,
    /// Set if copies go through buffers on the card.
    pub buffers: AtomicBool,
    pub counts: Counts,
}

/// One engine for the process: there is one driver library, and one service thread.
pub static GPU: Engine = zeroed();

impl Engine {
    /// Returns whether it was ever up in this process.
    pub fn was_up(&self) -> bool {
        self.engines.load(Relaxed) > 0
    }

    pub fn is_up(&self) -> bool {
        self.state.load(Acquire) == state::READY
    }

    /// Returns whether it is up, or will never be.
    pub fn is_settled(&self) -> bool {
        !matches!(self.state.load(Acquire), state::COLD | state::STARTING)
    }

    /// Returns the card's name, as far as it is text, and its number of copy engines.
    pub fn card(&self) -> (&str, usize) {
        let name = self.name.get().and_then(|name| CStr::from_bytes_until_nul(name).ok());
        let name = name.and_then(|name| name.to_str().ok()).unwrap_or_default();
        (name, self.engines.load(Relaxed) as usize)
    }

    pub fn why_not(&self) -> Unavailable {
        self.why.get().copied().unwrap_or(Unavailable::Nothing)
    }

    /// Asks for the driver to be opened, at the first large copy. Does not wait.
    #[cold]
    pub fn want(&self) {
        let (cold, starting) = (state::COLD, state::STARTING);
        // A handler that jumped out before the wake-up would leave the engine STARTING for ever.
        let Some(_held) = SignalsHeld::all() else { return };
        if process::is_ours()
            && self.state.compare_exchange(cold, starting, SeqCst, Relaxed).is_ok()
        {
            self.bell.fetch_add(1, SeqCst);
            sys::futex_wake(self.bell.as_ptr(), 1);
        }
    }

    /// Returns whether the card may carry a copy of these ranges, which do not overlap. Notes
    /// memory that lacks a registration.
    #[inline]
    pub fn takes(&self, dst: usize, src: usize, len: usize) -> bool {
        match self.state.load(Acquire) {
            state::READY => {}
            state::COLD if len >= self.floor.load(Relaxed) => {
                self.want();
                return false;
            }
            _ => return false,
        }
        if len < self.floor.load(Relaxed) || self.is_service_thread() {
            return false;
        }
        let now = sys::ticks();
        let (from, to) =
            (self.registrations.covers(src, len, now), self.registrations.covers(dst, len, now));
        if from.is_err() || to.is_err() {
            for (missing, start) in [(from, src), (to, dst)] {
                if let Err(at) = missing {
                    self.miss(at, start, len);
                }
            }
            self.counts.misses.fetch_add(1, Relaxed);
            return false;
        }
        self.counts.hits.fetch_add(1, Relaxed);
        true
    }

    /// See `CopyEngine::hold`.
    pub fn hold(&self, start: usize, len: usize) -> Option<Hold<'_>> {
        let end = start.saturating_add(len);
        for _ in 0..4 {
            if !self.touches(start, len) {
                break;
            }
            if let Some(hold) = self.registrations.hold(start, end) {
                return Some(hold);
            }
            self.let_go(start, len);
        }
        None
    }

    /// Returns whether some of a range is registered by us.
    pub fn touches(&self, start: usize, len: usize) -> bool {
        self.is_up() && self.registrations.touches(start, start.saturating_add(len))
    }

    /// See `CopyEngine::reaches`.
    pub fn reaches(&self, start: usize, len: usize) -> bool {
        match self.state.load(Acquire) {
            state::READY => {}
            state::COLD => {
                self.want();
                return false;
            }
            _ => return false,
        }
        let missing = self.registrations.covers(start, len, sys::ticks()).err();
        missing.inspect(|&at| self.miss(at, start, len));
        self.registrations.has_whole(start, start.saturating_add(len))
    }

    /// Returns whether the caller is the service thread: a copy made by the driver must not wait for its own
    /// thread.
    fn is_service_thread(&self) -> bool {
        let here = 0u8;
        let [low, high] = self.stack.each_ref().map(|end| end.load(Relaxed));
        (low..high).contains(&(&raw const here as usize))
    }

    /// Wakes the service thread.
    fn ring(&self) {
        if self.asleep.load(SeqCst) != 0 {
            self.bell.fetch_add(1, SeqCst);
            sys::futex_wake(self.bell.as_ptr(), 1);
        }
    }

    /// Resets the engine in the child of a fork: driver, context and thread are the parent's.
    pub fn forget_after_fork(&self) {
        if self.state.swap(state::OFF, Relaxed) == state::OFF {
            return;
        }
        self.words.store(0, Relaxed);
        self.taken.store(0, Relaxed);
        self.posted.store(0, Relaxed);
        self.slots.iter().for_each(|slot| slot.state.store(slot::FREE, Relaxed));
        self.registrations.forget_everything();
        self.watch.forget_after_fork();
        self.engines.store(0, Relaxed);
        self.counts.clear();
    }

    /// Invalidates registrations of memory that changes in a way that the kernel does not report.
    /// Called by the program's thread, before and after its own call.
    pub fn memory_changes(&self, start: usize, len: usize) {
        if self.state.load(Relaxed) == state::READY
            && self.registrations.mark_stale(start & !(PAGE - 1), start.saturating_add(len))
        {
            self.ring();
        }
    }

    /// Drops our registrations before the program registers or unregisters memory itself, because the
    /// driver would refuse. Waits until they are dropped.
    pub fn let_go(&self, start: usize, len: usize) {
        if self.state.load(Relaxed) != state::READY || !process::is_ours() {
            return;
        }
        let (from, to) = (start & !(PAGE - 1), start.saturating_add(len));
        self.registrations.mark_stale(from, to);
        for _ in 0..20_000 {
            if !self.registrations.touches(from, to) || !self.is_up() || self.is_service_thread() {
                return;
            }
            self.ring();
            sys::sleep(100_000);
        }
    }

    /// Stops the engine: protection keys, which the program uses, bind threads and not the card.
    pub fn end_for_keys(&self) {
        if self.state.load(Relaxed) != state::OFF {
            self.state.store(state::ENDED, Release);
        }
    }
}
