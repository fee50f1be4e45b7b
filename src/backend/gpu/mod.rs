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

mod driver;
mod registrations;
mod service;
mod tuning;
mod watch;

use crate::backend::Refused;
use crate::backend::caller_share::CallerShare;
use crate::backend::request::Request;
use crate::backend::stretch::Stretch;
use crate::backend::threads::Wait;
use crate::os::signal_mask::SignalsHeld;
use crate::os::sync::pause;
use crate::os::{process, sys, text};
use crate::plan::PAGE;
use core::ffi::c_int;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use registrations::{LINE, Registrations};
#[cfg(not(test))]
pub use service::start;
use tuning::{CopyTimes, Lead};
use watch::Watch;

/// Streams.
pub const CHANNELS: usize = 4;
/// Bytes of each buffer, and most of a chunk where CPUs are to be spared: a chunk costs two calls
/// of the driver.
pub const BUFFER: usize = 6 << 20;
/// Most of a chunk elsewhere: a copy takes as long as reading it, and a chunk more.
const QUICK_CHUNK: usize = 4 << 20;
/// Copies below this are libc's, unless ADMA_MIN_BYTES says otherwise.
pub const FLOOR: usize = 1 << 20;
/// Most bytes of one request: bounds how long signals are held.
const STRETCH: usize = 256 << 20;
/// Copies that can be under way.
const SLOTS: usize = 64;

/// In ticks: about 0.2 ms. So long a copy may lie there before the service thread takes it, beside
/// the time that the copy itself takes; and somebody who sleeps wakes up so much earlier, for
/// timers are not exact.
const PATIENCE: u64 = 500_000;
/// The same for copies that nobody waits for: about 50 ms.
const LONG_PATIENCE: u64 = 125_000_000;

/// Sleeping less than this, about 10 us, costs as much as it spares.
const NAP: u64 = 25_000;

/// What is wanted of copies.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub wait: Wait,
    /// Part of each copy the caller does itself; `None`: as much as it has time for.
    pub share: Option<f32>,
    /// The caller sleeps rather than spins or copies.
    pub spare_cpus: bool,
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

/// A slot's life: free, posted, then one of the others, then free again.
mod slot {
    pub const FREE: u32 = 0;
    pub const POSTED: u32 = 1;
    /// The service thread has it.
    pub const RUNNING: u32 = 2;
    /// It is over although words are missing: the streams say so.
    pub const OVER: u32 = 3;
    /// Nothing of it was begun.
    pub const REFUSED: u32 = 4;
    /// It failed, and the card writes no more.
    pub const FAILED: u32 = 5;
}

/// Why there is no engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    Nothing,
    /// No libcuda.so.1, or too old a one.
    NoDriver,
    /// The driver's number of what went wrong.
    Driver(i32),
    /// userfaultfd is not to be had: an errno.
    Watch(i32),
    /// The thread could not be made: an errno.
    Thread(i32),
}

impl core::fmt::Display for Unavailable {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Unavailable::Nothing => out.write_str("nobody knows"),
            Unavailable::NoDriver => out.write_str("no libcuda.so.1 that could be opened"),
            Unavailable::Driver(answer) => write!(out, "the driver says CUDA error {answer}"),
            Unavailable::Watch(errno) => {
                write!(
                    out,
                    "userfaultfd is not to be had: {} (errno {errno})",
                    text::meaning(errno)
                )
            }
            Unavailable::Thread(errno) => {
                write!(out, "no thread: {} (errno {errno})", text::meaning(errno))
            }
        }
    }
}

impl Unavailable {
    fn pack(self) -> (u32, i32) {
        match self {
            Unavailable::Nothing => (0, 0),
            Unavailable::NoDriver => (1, 0),
            Unavailable::Driver(answer) => (2, answer),
            Unavailable::Watch(errno) => (3, errno),
            Unavailable::Thread(errno) => (4, errno),
        }
    }
}

#[repr(align(64))]
struct CopySlot {
    state: AtomicU32,
    /// Which copy it is; the words hold it when it is over.
    number: AtomicU32,
    /// One bit for each channel that writes a word; 0: not known yet.
    channels: AtomicU32,
    dst: AtomicUsize,
    src: AtomicUsize,
    len: AtomicUsize,
    since: AtomicU64,
}

/// What a look at a slot shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Posted,
    UnderWay,
    Done,
    /// To be copied by the CPU: nothing is under way.
    Undone,
}

/// What who waits has last done.
#[derive(Clone, Copy)]
enum Slept {
    NotYet,
    Now,
    /// And has been awake since this moment.
    Until(u64),
}

/// Memory that copies ask for and that is not registered.
struct Wish {
    /// 0: free. 1: somebody is writing. 2: for the service thread.
    state: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
}

/// For the report.
pub struct Counts {
    pub channel_bytes: [AtomicU64; CHANNELS],
    pub caller_bytes: AtomicU64,
    /// Words that did not come although their streams were done.
    pub lost: AtomicU64,
    pub taken_back: AtomicU64,
    /// Copies whose memory was registered, and others that were large enough.
    hits: AtomicU64,
    misses: AtomicU64,
    registrations: AtomicU64,
    /// Bytes that were registered at one time.
    most_bytes: AtomicU64,
    /// Registrations whose memory went away.
    invalidations: AtomicU64,
    evictions: AtomicU64,
    /// Memory that the driver would not register, that is not of the right kind, or is too much.
    refused: AtomicU64,
}

impl Counts {
    const fn new() -> Self {
        Self {
            channel_bytes: [const { AtomicU64::new(0) }; CHANNELS],
            caller_bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            taken_back: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            registrations: AtomicU64::new(0),
            most_bytes: AtomicU64::new(0),
            invalidations: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn clear(&self) {
        let single = [&self.caller_bytes, &self.lost, &self.taken_back];
        let about_memory = self.about_memory().map(|(_, count)| count);
        let all = single.into_iter().chain(about_memory).chain(&self.channel_bytes);
        all.for_each(|count| count.store(0, Relaxed));
    }

    fn about_memory(&self) -> [(&'static str, &AtomicU64); 7] {
        [
            ("hits", &self.hits),
            ("misses", &self.misses),
            ("made", &self.registrations),
            ("most_bytes", &self.most_bytes),
            ("evictions", &self.evictions),
            ("invalidations", &self.invalidations),
            ("refused", &self.refused),
        ]
    }

    /// What has become of registrations, by name.
    pub fn of_registrations(&self) -> [(&'static str, u64); 7] {
        self.about_memory().map(|(name, count)| (name, count.load(Relaxed)))
    }
}

/// All zeros until it is wanted, so that it takes no room in the file.
pub struct Engine {
    state: AtomicU32,
    /// The process ends: set once, for the service thread.
    closing: AtomicU32,
    closed: AtomicU32,
    why: AtomicU32,
    why_number: AtomicI32,
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
    ticks_per_ms: AtomicU64,
    times: CopyTimes,
    lead: Lead,
    share: CallerShare<128, 2>,
    /// Of the card, and how many copy engines it has.
    name: [AtomicU8; 64],
    engines: AtomicU32,
    /// Copies go by buffers on the card.
    buffers: AtomicU32,
    pub counts: Counts,
}

const MISSED: usize = 1024;

/// One engine for the process: the driver's library is one, and so is its thread.
pub static GPU: Engine = Engine::new();

impl Engine {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(state::OFF),
            closing: AtomicU32::new(0),
            closed: AtomicU32::new(0),
            why: AtomicU32::new(0),
            why_number: AtomicI32::new(0),
            bell: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            taken: AtomicU64::new(0),
            posted: AtomicU64::new(0),
            slots: [const {
                CopySlot {
                    state: AtomicU32::new(slot::FREE),
                    number: AtomicU32::new(0),
                    channels: AtomicU32::new(0),
                    dst: AtomicUsize::new(0),
                    src: AtomicUsize::new(0),
                    len: AtomicUsize::new(0),
                    since: AtomicU64::new(0),
                }
            }; SLOTS],
            words: AtomicUsize::new(0),
            registrations: Registrations::new(),
            watch: Watch::new(),
            missed: [const { AtomicU64::new(0) }; MISSED],
            wishes: [const {
                Wish {
                    state: AtomicU32::new(0),
                    start: AtomicUsize::new(0),
                    len: AtomicUsize::new(0),
                }
            }; 16],
            stack: [const { AtomicUsize::new(0) }; 2],
            floor: AtomicUsize::new(0),
            keep: AtomicUsize::new(0),
            spare_cpus: AtomicU32::new(0),
            ticks_per_ms: AtomicU64::new(0),
            times: CopyTimes::new(),
            lead: Lead::new(),
            share: CallerShare::new(),
            name: [const { AtomicU8::new(0) }; 64],
            engines: AtomicU32::new(0),
            buffers: AtomicU32::new(0),
            counts: Counts::new(),
        }
    }

    /// Whether it was ever up in this process.
    pub fn was_up(&self) -> bool {
        self.engines.load(Relaxed) > 0
    }

    pub fn is_up(&self) -> bool {
        self.state.load(Acquire) == state::READY
    }

    /// Nothing will come of it any more, or it is up.
    pub fn is_settled(&self) -> bool {
        !matches!(self.state.load(Acquire), state::COLD | state::STARTING)
    }

    pub fn why_not(&self) -> Unavailable {
        let number = self.why_number.load(Relaxed);
        match self.why.load(Relaxed) {
            0 => Unavailable::Nothing,
            1 => Unavailable::NoDriver,
            2 => Unavailable::Driver(number),
            3 => Unavailable::Watch(number),
            _ => Unavailable::Thread(number),
        }
    }

    /// The card's name, into a buffer, and how many copy engines it has.
    pub fn card<'a>(&self, room: &'a mut [u8; 64]) -> (&'a str, usize) {
        for (byte, from) in room.iter_mut().zip(&self.name) {
            *byte = from.load(Relaxed);
        }
        let len = room.iter().position(|&byte| byte == 0).unwrap_or(room.len());
        (text::as_text(&mut room[..len]), self.engines.load(Relaxed) as usize)
    }

    /// Whether copies go by buffers on the card.
    pub fn has_buffers(&self) -> bool {
        self.buffers.load(Relaxed) != 0
    }

    /// A large copy has come: the driver is opened if that has not been done. Nobody waits.
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

    /// Whether the card may carry a copy of these ranges, which do not overlap. What it lacks for
    /// it is noted.
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

    /// Memory is registered when it is missed for the second time; if that was refused, or was
    /// not worth it, for the 8th, the 64th, and every 64th time after that.
    #[cold]
    fn miss(&self, at: usize, start: usize, len: usize) {
        let line = (at / LINE) as u64;
        let cell = self.misses_of(at / LINE);
        let before = cell.load(Relaxed);
        let times = if before >> 8 == line { (before & 0xff) + 1 } else { 1 };
        cell.store(line << 8 | if times == 128 { 64 } else { times }, Relaxed);
        if !matches!(times, 2 | 8 | 64 | 128) {
            return;
        }
        for wish in &self.wishes {
            if wish.state.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                wish.start.store(start, Relaxed);
                wish.len.store(len, Relaxed);
                wish.state.store(2, Release);
                self.ring();
                return;
            }
        }
    }

    fn misses_of(&self, line: usize) -> &AtomicU64 {
        &self.missed[(line ^ (line / MISSED)) % MISSED]
    }

    /// A registration has paid: when this memory comes again it is registered as soon as before.
    fn forgive_misses(&self, start: usize, end: usize) {
        for line in start / LINE..=(end - 1) / LINE {
            self.misses_of(line).store(0, Relaxed);
        }
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

    /// Carries one copy of ranges that `takes` has answered yes for. After a refusal nothing is
    /// under way, and all of it is to be copied.
    ///
    /// # Safety
    /// As memcpy.
    pub unsafe fn copy(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        how: &Options,
    ) -> Result<(), Refused> {
        if !process::is_ours() {
            return Err(Refused::NotOurs);
        }
        // SAFETY: the caller's promise; a stretch is a part of its ranges.
        unsafe {
            Stretch { dst, src, len }.one_by_one(
                &self.counts.caller_bytes,
                |rest| rest.min(STRETCH),
                |stretch| self.copy_stretch(stretch, how),
            )
        }
    }

    /// One request. The caller's own part is the beginning, which the program reads first.
    unsafe fn copy_stretch(&self, whole: Stretch, how: &Options) -> Result<(), Refused> {
        let Stretch { dst, src, len } = whole;
        let own = match how.share {
            Some(share) => ((len as f64 * f64::from(share)) as usize).min(len),
            None if how.spare_cpus => 0,
            None => self.share.of(len),
        };
        if own == len {
            self.counts.caller_bytes.fetch_add(len as u64, Relaxed);
            // SAFETY: the caller's ranges.
            unsafe { whole.by_libc(0, len) };
            return Ok(());
        }
        let held = SignalsHeld::all().ok_or(Refused::Busy)?;
        let index = self.take_slot().ok_or(Refused::Busy)?;
        self.post(index, dst + own, src + own, len - own);
        let since = sys::ticks();
        // SAFETY: the caller's ranges, outside of what the card writes. They are registered, so
        // no page of them is bad.
        unsafe { whole.by_libc(0, own) };
        let mut done = self.look(index);
        if how.share.is_none() && !how.spare_cpus {
            self.share.note(done == SlotState::Done);
        }
        if done != SlotState::Done {
            done = self.wait(index, len - own, since, how);
        }
        self.free_slot(index);
        drop(held);
        match done {
            SlotState::Done => {
                self.counts.caller_bytes.fetch_add(own as u64, Relaxed);
                Ok(())
            }
            _ => Err(Refused::Busy),
        }
    }

    fn take_slot(&self) -> Option<usize> {
        let mut taken = self.taken.load(Relaxed);
        loop {
            let index = taken.trailing_ones();
            let bit = 1u64.checked_shl(index)?;
            match self.taken.compare_exchange_weak(taken, taken | bit, Acquire, Relaxed) {
                Ok(_) => return Some(index as usize),
                Err(other) => taken = other,
            }
        }
    }

    fn free_slot(&self, index: usize) {
        self.slots[index].state.store(slot::FREE, Relaxed);
        self.taken.fetch_and(!(1 << index), Release);
    }

    /// Hands a copy to the service thread; answers its number.
    fn post(&self, index: usize, dst: usize, src: usize, len: usize) -> u32 {
        let slot = &self.slots[index];
        let number = slot.number.load(Relaxed).wrapping_add(1).max(1);
        slot.number.store(number, Relaxed);
        slot.channels.store(0, Relaxed);
        slot.dst.store(dst, Relaxed);
        slot.src.store(src, Relaxed);
        slot.len.store(len, Relaxed);
        slot.since.store(sys::ticks(), Relaxed);
        slot.state.store(slot::POSTED, Release);
        self.posted.fetch_or(1 << index, SeqCst);
        self.ring();
        number
    }

    fn look(&self, index: usize) -> SlotState {
        let slot = &self.slots[index];
        match slot.state.load(Acquire) {
            slot::POSTED => SlotState::Posted,
            slot::RUNNING if self.words_have_come(index) => SlotState::Done,
            slot::RUNNING => SlotState::UnderWay,
            slot::OVER => SlotState::Done,
            _ => SlotState::Undone,
        }
    }

    /// Whether the card has written all words of a copy: then its bytes can be seen.
    fn words_have_come(&self, index: usize) -> bool {
        let slot = &self.slots[index];
        let mut left = slot.channels.load(Acquire);
        let words = self.words.load(Relaxed);
        if left == 0 || words == 0 {
            return false;
        }
        let number = slot.number.load(Relaxed);
        while left != 0 {
            let word = words + index * 64 + left.trailing_zeros() as usize * 4;
            // SAFETY: a word of the page that the card writes to, which stays.
            if unsafe { (*(word as *const AtomicU32)).load(Acquire) } != number {
                return false;
            }
            left &= left - 1;
        }
        true
    }

    /// Takes a copy back that the service thread has not taken.
    fn take_back(&self, index: usize) -> bool {
        let (posted, refused) = (slot::POSTED, slot::REFUSED);
        let state = &self.slots[index].state;
        let taken = state.compare_exchange(posted, refused, Acquire, Relaxed).is_ok();
        if taken {
            self.posted.fetch_and(!(1 << index), Relaxed);
            self.counts.taken_back.fetch_add(1, Relaxed);
        }
        taken
    }

    /// Waits for the end of a copy, or takes it back. There is no giving up once it is under
    /// way: the service thread sees to lost words and lost devices.
    fn wait(&self, index: usize, bytes: usize, since: u64, how: &Options) -> SlotState {
        let expected = self.times.expected(bytes);
        // As long again as the card would take is not too long to wait for it; nor is as long as
        // the CPU would, where that is to be spared.
        let patience =
            if how.spare_cpus { 10 * (PATIENCE + expected) } else { PATIENCE + expected };
        let mut slept = Slept::NotYet;
        loop {
            let look = self.look(index);
            let waited = sys::ticks().wrapping_sub(since);
            match look {
                SlotState::Done => {
                    self.note_end(bytes, waited, slept);
                    return look;
                }
                SlotState::Undone => return look,
                SlotState::Posted if waited > patience && self.take_back(index) => {
                    return SlotState::Undone;
                }
                _ => match how.wait {
                    Wait::Spin | Wait::Umwait => pause(),
                    Wait::Yield => sys::yield_now(),
                    _ => {
                        let naps = how.spare_cpus || how.wait == Wait::Sleep;
                        self.pass_time(expected, waited, u64::MAX, naps, &mut slept);
                    }
                },
            }
        }
    }

    /// A little of the time until the expected end, at most so many nanoseconds. Who naps sleeps
    /// as long as he can; others only if there is much time, and rather wake up too early.
    fn pass_time(&self, expected: u64, waited: u64, most: u64, naps: bool, slept: &mut Slept) {
        let rest = expected.saturating_sub(waited);
        let lead = self.lead.get() + if naps { 0 } else { PATIENCE / 2 };
        if let Slept::Now = slept {
            *slept = Slept::Until(waited);
        }
        let late = if naps { expected / 8 + PATIENCE / 4 } else { expected / 2 + PATIENCE };
        let worth_it = if naps { lead + NAP } else { 2 * lead };
        if rest > worth_it {
            sys::sleep(self.nanoseconds(rest - lead).min(most));
            *slept = Slept::Now;
        } else if waited > expected.saturating_add(late) {
            // Nothing is known yet, or it takes much longer than expected.
            sys::sleep(50_000.min(most));
        } else {
            pause();
        }
    }

    /// A copy is over that somebody has waited for.
    fn note_end(&self, bytes: usize, waited: u64, slept: Slept) {
        match slept {
            Slept::Now if self.lead.was_too_short() => return self.times.forget_half(bytes),
            Slept::Now => return self.times.note_at_most(bytes, waited),
            Slept::Until(when) => self.lead.was_long_enough(waited - when),
            Slept::NotYet => self.lead.was_too_long_to_sleep(),
        }
        self.times.note(bytes, waited);
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        match self.ticks_per_ms.load(Relaxed) {
            0 => ticks / 4,
            per_ms => (u128::from(ticks) * 1_000_000 / u128::from(per_ms)) as u64,
        }
    }

    /// Starts a copy that its caller does not wait for, of ranges that `takes` has answered yes
    /// for. After a refusal nothing is under way.
    ///
    /// # Safety
    /// As memcpy, until it is over and `left_over` was called.
    pub unsafe fn begin(
        &self,
        request: &Request,
        dst: usize,
        src: usize,
        len: usize,
    ) -> Result<(), Refused> {
        if !process::is_ours() {
            return Err(Refused::NotOurs);
        }
        // A handler that jumped out would leave a copy nobody knows of.
        let _held = SignalsHeld::all().ok_or(Refused::Busy)?;
        let index = self.take_slot().ok_or(Refused::Busy)?;
        let number = self.post(index, dst, src, len);
        request.engine.store(&raw const *self as usize, Relaxed);
        request.taken.store(len, Relaxed);
        request.since.store(sys::ticks(), Relaxed);
        request.id.store(u64::from(number) << 8 | index as u64, Release);
        Ok(())
    }

    /// Whether a request is one of ours.
    pub fn owns(&self, request: &Request) -> bool {
        request.engine.load(Relaxed) == &raw const *self as usize
    }

    /// Whether a request is over; waits up to so long for it.
    pub fn is_over(&self, request: &Request, nanos: u64) -> bool {
        let id = request.id.load(Acquire);
        let (index, number) = ((id & 0xff) as usize % SLOTS, (id >> 8) as u32);
        let slot = &self.slots[index];
        let bytes = request.taken.load(Relaxed);
        let (begun, expected) = (sys::ticks(), self.times.expected(bytes));
        let mut slept = Slept::NotYet;
        let mut looked = false;
        loop {
            // Another copy has the slot: whoever has claimed this one has finished it.
            if slot.number.load(Acquire) != number {
                return true;
            }
            let waited = sys::ticks().wrapping_sub(request.since.load(Relaxed));
            match self.look(index) {
                SlotState::Done => {
                    if looked {
                        self.note_end(bytes, waited, slept);
                    }
                    return true;
                }
                SlotState::Undone => return true,
                SlotState::Posted if waited > LONG_PATIENCE && self.take_back(index) => {
                    return true;
                }
                _ => looked = true,
            }
            let passed = self.nanoseconds(sys::ticks().wrapping_sub(begun));
            if passed >= nanos {
                return false;
            }
            let naps = self.spare_cpus.load(Relaxed) != 0;
            self.pass_time(expected, waited, nanos - passed, naps, &mut slept);
        }
    }

    /// Ends a request that is over, and calls `copy` with what the card has not copied of it. By
    /// who has claimed it.
    pub fn left_over(&self, request: &Request, len: usize, copy: impl FnOnce(usize, usize)) {
        let index = (request.id.load(Acquire) & 0xff) as usize % SLOTS;
        let look = self.look(index);
        self.free_slot(index);
        if look != SlotState::Done {
            self.counts.caller_bytes.fetch_add(len as u64, Relaxed);
            copy(0, len);
        }
    }

    /// For `--check`: has ranges registered, and waits for it. False: it was not possible.
    pub fn prepare(&self, ranges: [(usize, usize); 2]) -> bool {
        for _ in 0..2000 {
            let now = sys::ticks();
            if ranges.iter().all(|&(start, len)| self.registrations.covers(start, len, now).is_ok())
            {
                return true;
            }
            if !self.is_up() {
                return false;
            }
            for (start, len) in ranges {
                let there = self.registrations.covers(start, len, now);
                there.err().inspect(|&at| self.miss(at, start, len));
            }
            sys::sleep(1_000_000);
        }
        false
    }

    fn note_why(&self, why: Unavailable) {
        let (kind, number) = why.pack();
        self.why_number.store(number, Relaxed);
        self.why.store(kind, Relaxed);
    }
}

/// What who calls a function of the driver that is not there gets.
pub const NO_DRIVER: c_int = driver::NOT_INITIALIZED;
#[cfg(not(test))]
pub use driver::loaded as driver_function;
