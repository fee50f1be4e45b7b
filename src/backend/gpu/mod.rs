//! A peripheral in loopback: a DMA engine of a GPU reads the source and writes the destination. The
//! CPU only says so.
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
//! The law of the I/OAT engine holds here too: from when the service thread takes a copy until
//! its words have come, or until it is certain that the card writes no more, nothing leaves
//! this file and no signal handler may jump. A copy that the service thread has not taken in
//! reasonable time is taken back.
//!
//! Memory of copies is registered, so it cannot fault. What is not registered is libc's, and is
//! registered when it has come a second time: `registrations`. `watch` sees to it that no copy
//! begins with a registration that is older than the memory it stands for.
//!
//! The program may use the same card and the same primary context. Nothing of ours is current in
//! its threads; the default stream is never used; a child of a fork never calls the driver.
//! After any error that is not about one range of memory everything is libc's for good.

mod asynchronous;
mod copy;
mod counts;
mod driver;
mod registrations;
mod service;
mod slots;
mod unavailable;
mod watch;
mod wishes;

use crate::backend::tuning::{CallerShare, Clock, CopyTimes, Lead};
use crate::os::mapped::{Zeroed, zeroed};
use crate::os::once::Once;
use crate::os::signal_mask::SignalsHeld;
use crate::os::{process, sys};
use crate::plan::PAGE;
use core::ffi::{CStr, c_int};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use counts::Counts;
use registrations::Registrations;
#[cfg(not(test))]
pub use service::start;
use slots::{CopySlot, slot};
pub use unavailable::Unavailable;
use watch::Watch;
use wishes::{MISSED, Wish};

/// Streams.
pub const CHANNELS: usize = 4;
/// Bytes of each buffer, and most of a chunk where CPUs are to be spared: a chunk costs two calls
/// of the driver.
pub const BUFFER: usize = 6 << 20;
/// Most of a chunk elsewhere: a copy takes as long as reading it, and a chunk more.
const QUICK_CHUNK: usize = 4 << 20;
/// Copies below this are libc's, unless ADMA_MIN_BYTES says otherwise.
pub const FLOOR: usize = 1 << 20;
/// Copies that can be under way.
const SLOTS: usize = 64;

/// What is wanted of copies.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Part of each copy the caller does itself; `None`: as much as it has time for.
    pub share: Option<f32>,
    /// The caller sleeps rather than copies.
    pub spare_cpus: bool,
    /// It stays awake while it waits.
    pub spins: bool,
}

/// What is fixed when the process starts.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Copies from this size on.
    pub floor: usize,
    /// Bytes that may stay registered.
    pub keep: Option<usize>,
    /// The service thread sleeps as soon as it has nothing to do.
    pub spare_cpus: bool,
}

/// The engine's life.
mod state {
    /// Not wanted, or in the child of a fork.
    pub const OFF: u32 = 0;
    /// The service thread waits for the first large copy.
    pub const COLD: u32 = 1;
    /// It opens the driver.
    pub const STARTING: u32 = 2;
    pub const READY: u32 = 3;
    /// Something went wrong, or the process ends.
    pub const ENDED: u32 = 4;
}

pub struct Engine {
    state: AtomicU32,
    /// The service thread has given everything back.
    closed: AtomicU32,
    /// What went wrong first.
    why: Once<Unavailable>,
    /// The service thread sleeps on this.
    bell: AtomicU32,
    asleep: AtomicU32,
    /// One bit for each slot.
    taken: AtomicU64,
    posted: AtomicU64,
    slots: [CopySlot; SLOTS],
    /// Where the words are: a line for each slot, with a word for each channel.
    words: AtomicUsize,
    registrations: Registrations,
    watch: Watch,
    /// Lines that were asked for in vain, and how often: line << 8 | times.
    missed: [AtomicU64; MISSED],
    wishes: [Wish; 16],
    /// The service thread's stack, from and to.
    stack: [AtomicUsize; 2],
    floor: AtomicUsize,
    keep: AtomicUsize,
    spare_cpus: AtomicU32,
    clock: Clock,
    times: CopyTimes,
    lead: Lead,
    share: CallerShare<128, 2>,
    /// Of the card, ended by a byte 0, and how many copy engines it has.
    name: Once<[u8; 64]>,
    engines: AtomicU32,
    /// Copies go by buffers on the card.
    pub buffers: AtomicBool,
    pub counts: Counts,
}

// SAFETY: atomic numbers and values that are not set; zeros are `state::OFF` and empty tables.
unsafe impl Zeroed for Engine {}
#[cfg(test)]
// SAFETY: as of the engine that has them.
unsafe impl Zeroed for Registrations {}

/// One engine for the process: the driver's library is one, and so is its thread.
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

    /// The card's name, as far as it is text, and how many copy engines it has.
    pub fn card(&self) -> (&str, usize) {
        let name = self.name.get().and_then(|name| CStr::from_bytes_until_nul(name).ok());
        let name = name.and_then(|name| name.to_str().ok()).unwrap_or_default();
        (name, self.engines.load(Relaxed) as usize)
    }

    pub fn why_not(&self) -> Unavailable {
        self.why.get().copied().unwrap_or(Unavailable::Nothing)
    }

    /// Has the driver opened, because a large copy has come. Does not wait.
    #[cold]
    pub fn want(&self) {
        let (cold, starting) = (state::COLD, state::STARTING);
        // A handler that jumped out between the two would leave it starting for ever.
        let Some(_held) = SignalsHeld::all() else { return };
        if process::is_ours()
            && self.state.compare_exchange(cold, starting, SeqCst, Relaxed).is_ok()
        {
            self.bell.fetch_add(1, SeqCst);
            sys::futex_wake(self.bell.as_ptr(), 1);
        }
    }

    /// Returns whether the card may carry a copy of these ranges, which do not overlap. What it
    /// lacks for it is noted.
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

    /// The driver copies too, and a copy of the service thread's would wait for itself.
    fn is_service_thread(&self) -> bool {
        let here = 0u8;
        let [low, high] = self.stack.each_ref().map(|end| end.load(Relaxed));
        (low..high).contains(&(&raw const here as usize))
    }

    /// The service thread has something to do.
    fn ring(&self) {
        if self.asleep.load(SeqCst) != 0 {
            self.bell.fetch_add(1, SeqCst);
            sys::futex_wake(self.bell.as_ptr(), 1);
        }
    }

    /// In the child of a fork: the driver, its context and the thread are the parent's.
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

    /// Memory changes in a way that the kernel does not tell: its registrations are not used any
    /// more. By the program's thread, before and after its call.
    pub fn memory_changes(&self, start: usize, len: usize) {
        if self.state.load(Relaxed) == state::READY
            && self.registrations.mark_stale(start & !(PAGE - 1), start.saturating_add(len))
        {
            self.ring();
        }
    }

    /// The program will register or unregister memory itself: ours is let go first. Waits for it,
    /// for the driver would refuse.
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

    /// The program uses protection keys, which bind threads and not the card: no more copies.
    pub fn end_for_keys(&self) {
        if self.state.load(Relaxed) != state::OFF {
            self.state.store(state::ENDED, Release);
        }
    }
}

/// The answer to a call of a function that the driver does not have.
pub const NO_DRIVER: c_int = driver::NOT_INITIALIZED;
#[cfg(not(test))]
pub use driver::passed_on as driver_function;
