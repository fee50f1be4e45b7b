//! The thread that calls the driver: it opens it, registers memory, submits copies, and sees to
//! what does not come to its end.
//!
//! A real thread with thread-local storage, made when the process starts if the card is wanted;
//! it sleeps until the first large copy. A second one reads the kernel's events: `watch`.

use super::driver::{Address, BatchParts, Card, CuResult, Driver, Stream};
use super::driver::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use super::registrations::LINE;
use super::watch::{self, Settled};
use super::{
    BUFFER, CHANNELS, Engine, GPU, QUICK_CHUNK, SLOTS, Settings, SlotState, Unavailable, slot,
    state,
};
use crate::os::lookup::rare;
use crate::os::sync::pause;
use crate::os::{process, sys, thread};
use crate::plan::PAGE;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// So small may chunks be.
const LEAST_CHUNK: usize = 1 << 20;
/// A copy in so many chunks, if they are not too small or too large for that: the card reads the
/// first one while nothing can be written yet.
const CHUNKS: usize = 12;
/// Registrations that nobody asked for go after so many milliseconds.
const IDLE_MS: u64 = 10_000;
/// With copies under way it looks for lost ones so often.
const LOOK_NANOS: u64 = 10_000_000;
/// How long the service thread looks for the next copy before it sleeps, in ticks: about 40 us.
const SPIN: u64 = 100_000;
/// How long exit waits for copies and for the thread.
const EXIT_NANOS: u64 = 3_000_000_000;
const STACK: usize = 2 << 20;
/// A registration takes about as long as the CPU takes for half a copy of the same memory: with so
/// many copies by the card it has paid.
const WORTH_IT: u32 = 3;

/// A call for copies of so many bytes is judged by the CPU time it takes.
const JUDGED: usize = 2 << 20;
/// No CPU copies more bytes in a nanosecond.
const QUICKEST_CPU: usize = 32;
/// So many slow calls in a row are no accident.
const TOO_MANY: u32 = 8;
const NEVER: u32 = u32::MAX;

/// Makes the service thread. At start-up, never in the hook.
pub fn start(settings: &Settings) {
    GPU.floor.store(settings.floor.max(1), Relaxed);
    GPU.keep.store(settings.keep.unwrap_or_else(usual_keep), Relaxed);
    GPU.spare_cpus.store(settings.spare_cpus.into(), Relaxed);
    GPU.state.store(state::COLD, Relaxed);
    if let Err(errno) = thread::spawn(STACK, serve) {
        GPU.note_why(Unavailable::Thread(errno));
        GPU.state.store(state::ENDED, Release);
    }
}

/// An eighth of the machine's memory, and not more than 4 GiB.
fn usual_keep() -> usize {
    // SAFETY: asks for a number.
    let pages = unsafe { sysconf().map_or(0, |sysconf| sysconf(libc::_SC_PHYS_PAGES)) };
    (usize::try_from(pages).unwrap_or(0) * PAGE / 8).min(4 << 30)
}

fn serve() {
    let here = 0u8;
    let at = &raw const here as usize;
    GPU.stack[0].store(at.saturating_sub(STACK), Relaxed);
    GPU.stack[1].store(at + (16 << 10), Relaxed);
    while GPU.state.load(SeqCst) == state::COLD {
        let heard = GPU.bell.load(SeqCst);
        if GPU.state.load(SeqCst) == state::COLD {
            sys::futex_wait(GPU.bell.as_ptr(), heard, 0);
        }
    }
    let mut service = match Service::open(&GPU) {
        Ok(service) => service,
        Err(why) => {
            GPU.note_why(why);
            GPU.state.store(state::ENDED, Release);
            return;
        }
    };
    // After the driver has been opened, so that it runs before the driver's own.
    // SAFETY: a function that is never unloaded.
    unsafe {
        if let Some(at_exit_call) = __cxa_atexit() {
            at_exit_call(at_exit, core::ptr::null_mut(), core::ptr::null_mut());
        }
    }
    let (starting, ready) = (state::STARTING, state::READY);
    // Otherwise the process ends already, or must not use it.
    let _ = GPU.state.compare_exchange(starting, ready, SeqCst, Relaxed);
    service.run();
    service.close();
    GPU.closed.store(1, Release);
    sys::futex_wake(GPU.closed.as_ptr(), u32::MAX >> 1);
}

fn monitor() {
    GPU.watch.run(&GPU.registrations, || GPU.ring());
}

rare! {
    fn __cxa_atexit(extern "C" fn(*mut c_void), *mut c_void, *mut c_void) -> i32;
    fn sysconf(i32) -> isize;
}

/// Nothing of ours is under way when the driver tears itself down.
extern "C" fn at_exit(_: *mut c_void) {
    if !process::is_ours() || GPU.is_service_thread() {
        return;
    }
    GPU.state.store(state::ENDED, SeqCst);
    GPU.closing.store(1, SeqCst);
    GPU.bell.fetch_add(1, SeqCst);
    sys::futex_wake(GPU.bell.as_ptr(), 1);
    let end = sys::nanoseconds() + EXIT_NANOS;
    while GPU.closed.load(Acquire) == 0 {
        let now = sys::nanoseconds();
        if now >= end {
            return;
        }
        sys::futex_wait(GPU.closed.as_ptr(), 0, end - now);
    }
}

/// A stream, and its buffer on the card where copies go by buffers.
#[derive(Clone, Copy)]
struct Channel {
    stream: Stream,
    buffer: Address,
}

/// A copy that the card has.
struct Flight {
    index: usize,
    number: u32,
    channels: u32,
    /// The registrations it uses.
    registrations: Vec<usize>,
    since: u64,
    bytes: usize,
}

struct Service {
    gpu: &'static Engine,
    card: Card,
    channels: Vec<Channel>,
    /// Where the card sees the words.
    words: Address,
    flights: Vec<Flight>,
    /// The registrations there are: the table is too long to be looked through for every copy.
    there: Vec<usize>,
    /// How many flights use a registration.
    users: Vec<u32>,
    /// How many copies have used a registration since it was registered.
    uses: Vec<u32>,
    /// Bytes.
    registered: usize,
    /// The channel of the next copy.
    turn: usize,
    failed: bool,
    /// How many calls of `straight` in a row took the CPU as long as a copy; NEVER: it is not to
    /// be used.
    slow_calls: u32,
    /// When registrations were last looked through, in nanoseconds.
    looked: u64,
}

impl Service {
    fn open(gpu: &'static Engine) -> Result<Self, Unavailable> {
        let (ticks, nanos) = (sys::ticks(), sys::nanoseconds());
        gpu.watch.open().map_err(Unavailable::Watch)?;
        let driver = Driver::open().ok_or(Unavailable::NoDriver)?;
        let card = Card::open(driver).map_err(Unavailable::Driver)?;
        let mut service = Self {
            gpu,
            card,
            channels: Vec::new(),
            words: 0,
            flights: Vec::new(),
            there: Vec::new(),
            users: vec![0; super::registrations::MOST],
            uses: vec![0; super::registrations::MOST],
            registered: 0,
            turn: 0,
            failed: false,
            slow_calls: 0,
            looked: sys::nanoseconds(),
        };
        if let Err(answer) = service.furnish() {
            service.close();
            return Err(Unavailable::Driver(answer));
        }
        // Threads of the program's may wait for this one from the first registration on.
        if let Err(errno) = thread::spawn(256 << 10, monitor) {
            service.close();
            return Err(Unavailable::Thread(errno));
        }
        let mut name = [0; 64];
        let engines = service.card.describe(&mut name).max(1);
        gpu.name.iter().zip(name).for_each(|(to, byte)| to.store(byte, Relaxed));
        gpu.engines.store(engines as u32, Relaxed);
        let passed = sys::nanoseconds().saturating_sub(nanos).max(1);
        let per_ms = u128::from(sys::ticks().wrapping_sub(ticks)) * 1_000_000 / u128::from(passed);
        gpu.ticks_per_ms.store(per_ms as u64, Relaxed);
        Ok(service)
    }

    fn furnish(&mut self) -> Result<(), CuResult> {
        for _ in 0..CHANNELS {
            let stream = self.card.new_stream()?;
            self.channels.push(Channel { stream, buffer: 0 });
        }
        if !self.card.has_straight() {
            self.slow_calls = NEVER;
            self.furnish_buffers()?;
        }
        // Ours, and never unmapped: others may look at words when the driver has gone.
        let words = sys::map(SLOTS * 64).ok_or(OUT_OF_MEMORY)? as usize;
        self.words = self.card.register_words(words, SLOTS * 64)?;
        self.gpu.words.store(words, Release);
        Ok(())
    }

    /// The buffers on the card, if there are none yet.
    fn furnish_buffers(&mut self) -> Result<(), CuResult> {
        for channel in self.channels.iter_mut().filter(|channel| channel.buffer == 0) {
            channel.buffer = self.card.new_memory(BUFFER)?;
        }
        self.gpu.buffers.store(1, Relaxed);
        Ok(())
    }

    fn run(&mut self) {
        while self.gpu.closing.load(SeqCst) == 0 && !self.failed {
            let heard = self.gpu.bell.load(SeqCst);
            self.submit_all();
            self.reap();
            self.tidy();
            self.grant();
            if self.failed || self.gpu.posted.load(SeqCst) != 0 {
                continue;
            }
            if self.gpu.spare_cpus.load(Relaxed) == 0 && self.work_comes_soon() {
                continue;
            }
            self.sleep(heard);
        }
    }

    fn work_comes_soon(&self) -> bool {
        let begun = sys::ticks();
        while sys::ticks().wrapping_sub(begun) < SPIN {
            if self.gpu.posted.load(Relaxed) != 0 {
                return true;
            }
            pause();
        }
        false
    }

    fn sleep(&self, heard: u32) {
        let gpu = self.gpu;
        gpu.asleep.store(1, SeqCst);
        let nothing = gpu.posted.load(SeqCst) == 0
            && gpu.closing.load(SeqCst) == 0
            && !gpu.wishes.iter().any(|wish| wish.state.load(Relaxed) == 2)
            && !self
                .there
                .iter()
                .any(|&i| self.users[i] == 0 && gpu.registrations.get(i).is_stale());
        if nothing {
            let nanos = match (self.flights.is_empty(), self.registered) {
                (false, _) => LOOK_NANOS,
                (true, 0) => 0,
                _ => 1_000_000_000,
            };
            sys::futex_wait(gpu.bell.as_ptr(), heard, nanos);
        }
        gpu.asleep.store(0, SeqCst);
    }

    fn submit_all(&mut self) {
        let mut posted = self.gpu.posted.swap(0, SeqCst);
        while posted != 0 {
            let index = posted.trailing_zeros() as usize;
            posted &= posted - 1;
            let state = &self.gpu.slots[index].state;
            if state.compare_exchange(slot::POSTED, slot::RUNNING, Acquire, Relaxed).is_err() {
                continue; // taken back
            }
            if self.failed {
                state.store(slot::REFUSED, Release);
                continue;
            }
            self.submit(index);
        }
    }

    /// Registrations that all of a range lies in; `None`: not all of it.
    fn registrations_of(&self, start: usize, len: usize, found: &mut Vec<usize>) -> Option<()> {
        let (mut at, end) = (start, start + len);
        while at < end {
            let index = self.gpu.registrations.find(at)?;
            found.push(index);
            at = self.gpu.registrations.get(index).end();
        }
        Some(())
    }

    /// Waits a little for somebody who is just unmapping something.
    fn is_settled(&mut self) -> bool {
        for _ in 0..1000 {
            match self.gpu.watch.is_settled() {
                Settled::Yes => return true,
                Settled::NotYet => sys::yield_now(),
                Settled::Never => {
                    self.end(Unavailable::Watch(libc::EBADF));
                    return false;
                }
            }
        }
        false
    }

    fn submit(&mut self, index: usize) {
        let slot = &self.gpu.slots[index];
        let [dst, src, len] = [&slot.dst, &slot.src, &slot.len].map(|part| part.load(Relaxed));
        let number = slot.number.load(Relaxed);
        let mut registrations = Vec::new();
        // First all changes are known, then the registrations are looked at: see `watch`.
        let usable = self.is_settled()
            && self.registrations_of(src, len, &mut registrations).is_some()
            && self.registrations_of(dst, len, &mut registrations).is_some();
        if !usable {
            slot.state.store(slot::REFUSED, Release);
            return;
        }
        for &registration in &registrations {
            self.users[registration] += 1;
            self.uses[registration] += 1;
        }
        let (since, channels) = (sys::ticks(), 0);
        self.flights.push(Flight { index, number, channels, registrations, since, bytes: len });
        let begun = match self.go_straight(dst, src, len) {
            Err(NOT_SUPPORTED | INVALID_VALUE) => self.go_by_buffers(dst, src, len),
            begun => begun,
        };
        match begun.and_then(|channels| self.write_words(index, number, channels)) {
            // From now on it is over when the words have come.
            Ok(channels) => {
                self.flights.last_mut().into_iter().for_each(|flight| flight.channels = channels);
                slot.channels.store(channels, Release);
            }
            Err(answer) => self.end(Unavailable::Driver(answer)),
        }
    }

    /// A word on each of these channels, behind what they have to do.
    fn write_words(&self, index: usize, number: u32, channels: u32) -> Result<u32, CuResult> {
        for which in (0..CHANNELS).filter(|which| channels >> which & 1 == 1) {
            let word = self.words + (index * 64 + which * 4) as u64;
            // SAFETY: a word of ours for this slot and channel.
            unsafe { self.card.write(self.channels[which].stream, word, number)? };
        }
        Ok(channels)
    }

    /// How many of `left` bytes from `at` on lie in the same registration of the last flight.
    fn within(&self, at: usize, left: usize) -> usize {
        // Also those that have gone stale since: they stay as they are while they are used.
        let registrations = self.flights.last().map_or(&[][..], |flight| &flight.registrations);
        let all = registrations.iter().map(|&index| self.gpu.registrations.get(index));
        let found = all.filter(|found| (found.start()..found.end()).contains(&at)).last();
        found.map_or(left, |registration| left.min(registration.end() - at))
    }

    /// The last flight by one engine that reads and writes: one call, one channel. What is not
    /// possible is not asked again, and nothing of it is under way.
    fn go_straight(&mut self, dst: usize, src: usize, len: usize) -> Result<u32, CuResult> {
        if self.slow_calls == NEVER {
            return Err(NOT_SUPPORTED);
        }
        let (mut parts, mut at) = (BatchParts::default(), 0);
        while at < len {
            let part = self.within(dst + at, self.within(src + at, len - at));
            parts.add(dst + at, src + at, part);
            at += part;
        }
        let which = self.turn;
        let (stream, begun) = (self.channels[which].stream, cpu_time());
        // SAFETY: registrations of the flight, which stay while it uses them; the destination is
        // the copy's.
        if let Err(answer) = unsafe { self.card.straight(&parts, stream) } {
            self.slow_calls = NEVER;
            // SAFETY: a stream of ours.
            unsafe { self.card.drain([stream].into_iter()) };
            return Err(answer);
        }
        // No promise says that the CPU does not make the copy during the call.
        let took = cpu_time().saturating_sub(begun);
        let slow = len >= JUDGED && took as usize > len / QUICKEST_CPU;
        self.slow_calls = if slow { self.slow_calls + 1 } else { 0 };
        if self.slow_calls == TOO_MANY {
            self.slow_calls = NEVER;
        }
        self.turn = (which + 1) % CHANNELS;
        self.gpu.counts.channel_bytes[which].fetch_add(len as u64, Relaxed);
        Ok(1 << which)
    }

    /// The last flight by way of the buffers on the card, chunk by chunk, on channels in turn.
    fn go_by_buffers(&mut self, dst: usize, src: usize, len: usize) -> Result<u32, CuResult> {
        self.furnish_buffers()?;
        let spares = self.gpu.spare_cpus.load(Relaxed) != 0;
        let chunk = chunk_of(len, if spares { BUFFER } else { QUICK_CHUNK });
        let count = len.div_ceil(chunk);
        let (first, used) = (self.turn, count.min(CHANNELS));
        self.turn = (first + used) % CHANNELS;
        for i in 0..count {
            let (from, which) = (i * chunk, (first + i) % CHANNELS);
            let part = chunk.min(len - from);
            self.loop_back(dst + from, src + from, part, which)?;
            self.gpu.counts.channel_bytes[which].fetch_add(part as u64, Relaxed);
        }
        Ok((0..used).fold(0, |all, i| all | 1 << ((first + i) % CHANNELS)))
    }

    /// One chunk of the last flight to the card and back again. The memory of a call of the
    /// driver's lies in one registration.
    fn loop_back(&self, dst: usize, src: usize, len: usize, which: usize) -> Result<(), CuResult> {
        let Channel { stream, buffer } = self.channels[which];
        let mut done = 0;
        while done < len {
            let part = self.within(src + done, len - done);
            // SAFETY: the registrations of the flight, which stay while it uses them; the chunk
            // fits the buffer, and what was in it has been read: same stream.
            unsafe { self.card.to_card(buffer + done as u64, src + done, part, stream)? };
            done += part;
        }
        let mut done = 0;
        while done < len {
            let part = self.within(dst + done, len - done);
            // SAFETY: as above; the destination is the copy's.
            unsafe { self.card.back_from_card(dst + done, buffer + done as u64, part, stream)? };
            done += part;
        }
        Ok(())
    }

    /// Lets go of flights that are over, and looks after those that are overdue.
    fn reap(&mut self) {
        let (gpu, now) = (self.gpu, sys::ticks());
        let mut left = Vec::with_capacity(self.flights.len());
        let mut lost = None;
        for flight in core::mem::take(&mut self.flights) {
            let slot = &gpu.slots[flight.index];
            let over = slot.number.load(Acquire) != flight.number
                || slot.state.load(Acquire) == slot::FREE
                || gpu.look(flight.index) != SlotState::UnderWay;
            let patience =
                10 * gpu.ticks_per_ms.load(Relaxed) + 8 * gpu.times.expected(flight.bytes);
            if !over && now.wrapping_sub(flight.since) > patience {
                match self.streams_are_done(&flight) {
                    Ok(false) => {}
                    Ok(true) => {
                        if !gpu.words_have_come(flight.index) {
                            gpu.counts.lost.fetch_add(1, Relaxed);
                            slot.state.store(slot::OVER, Release);
                        }
                        self.let_go(&flight);
                        continue;
                    }
                    Err(answer) => lost = Some(answer),
                }
            }
            if over {
                self.let_go(&flight);
            } else {
                left.push(flight);
            }
        }
        self.flights = left;
        if let Some(answer) = lost {
            self.end(Unavailable::Driver(answer));
        }
    }

    fn let_go(&mut self, flight: &Flight) {
        for &registration in &flight.registrations {
            self.users[registration] -= 1;
        }
    }

    fn streams_are_done(&self, flight: &Flight) -> Result<bool, CuResult> {
        for which in (0..CHANNELS).filter(|which| flight.channels >> which & 1 == 1) {
            // SAFETY: a stream of ours.
            if !unsafe { self.card.is_idle(self.channels[which].stream)? } {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Something went wrong: no more copies by the card. Those under way are over, one way or the
    /// other, when it is certain that the card writes no more.
    fn end(&mut self, why: Unavailable) {
        self.gpu.note_why(why);
        self.gpu.state.store(state::ENDED, SeqCst);
        self.failed = true;
        // SAFETY: streams of ours.
        unsafe { self.card.drain(self.channels.iter().map(|channel| channel.stream)) };
        for flight in core::mem::take(&mut self.flights) {
            let slot = &self.gpu.slots[flight.index];
            let ours = slot.number.load(Acquire) == flight.number;
            if ours && self.gpu.look(flight.index) == SlotState::UnderWay {
                slot.state.store(slot::FAILED, Release);
            }
            self.let_go(&flight);
        }
    }

    /// Unregisters what has gone stale, and what nobody has asked for in a while.
    fn tidy(&mut self) {
        if self.registered == 0 {
            return;
        }
        let (now, ticks) = (sys::nanoseconds(), sys::ticks());
        let old = IDLE_MS * self.gpu.ticks_per_ms.load(Relaxed);
        let look_through = now.saturating_sub(self.looked) > 500_000_000;
        if look_through {
            self.looked = now;
        }
        for index in self.there.clone() {
            let registration = self.gpu.registrations.get(index);
            if self.users[index] > 0 {
                continue;
            }
            if registration.is_stale() {
                self.gpu.counts.invalidations.fetch_add(1, Relaxed);
                self.drop_registration(index);
            } else if look_through
                && registration.is_live()
                && ticks.wrapping_sub(registration.used()) as i64 > old as i64
            {
                self.evict(index);
            }
        }
    }

    fn evict(&mut self, index: usize) {
        self.gpu.counts.evictions.fetch_add(1, Relaxed);
        self.gpu.registrations.retire(index);
        self.drop_registration(index);
    }

    /// A registration that no flight uses, and no copy begins with.
    fn drop_registration(&mut self, index: usize) {
        let registration = self.gpu.registrations.get(index);
        let (start, end) = (registration.start(), registration.end());
        if core::mem::take(&mut self.uses[index]) >= WORTH_IT {
            self.gpu.forgive_misses(start, end);
        }
        self.gpu.watch.remove(start, end);
        self.registered -= end - start;
        self.there.retain(|&other| other != index);
        // SAFETY: registered by us and used by nobody.
        let done = unsafe { self.card.unregister(start) };
        self.gpu.registrations.remove(index);
        if let Err(answer) = done {
            self.end(Unavailable::Driver(answer));
        }
    }

    /// Registers one range that copies have asked for.
    fn grant(&mut self) {
        if self.failed || self.gpu.state.load(Relaxed) != state::READY {
            return;
        }
        let wished = self.gpu.wishes.iter().find(|wish| wish.state.load(Acquire) == 2);
        let Some(wish) = wished else { return };
        let (start, len) = (wish.start.load(Relaxed), wish.len.load(Relaxed));
        wish.state.store(0, Release);
        let (mut from, mut end) = (start & !(PAGE - 1), (start + len).next_multiple_of(PAGE));
        if end - from < LINE
            && let Some(found) = watch::anonymous(from)
        {
            // Small requests fill a line: what lies beside is likely to be asked for next.
            from = found.start.max(from & !(LINE - 1));
            end = end.max(found.end.min(end.next_multiple_of(LINE)));
        }
        if !self.register_missing(from, end) {
            self.gpu.counts.refused.fetch_add(1, Relaxed);
        }
    }

    /// Registers what is not yet registered of whole pages. False: not all of it could be had.
    fn register_missing(&mut self, mut at: usize, end: usize) -> bool {
        while at < end {
            if let Some(index) = self.gpu.registrations.find(at) {
                at = self.gpu.registrations.get(index).end();
                continue;
            }
            let stop = self.gpu.registrations.next_start(at, end);
            let Some(found) = watch::anonymous(at) else { return false };
            let to = stop.min(found.end);
            if self.failed || to <= at || !self.register(at, to) {
                return false;
            }
            at = to;
        }
        true
    }

    /// False: it could not be had.
    fn register(&mut self, start: usize, end: usize) -> bool {
        let (gpu, len) = (self.gpu, end - start);
        if !self.make_room(len) {
            return false;
        }
        let Some(index) = gpu.registrations.begin(start, end, sys::ticks()) else { return false };
        // From here on changes of the memory make it stale, so only now it is certain what it is.
        let watched = gpu.watch.add(start, end);
        let fits = watch::anonymous(start).is_some_and(|found| found.end >= end);
        let registered = watched
            && fits
            && self.card.register(start, len).unwrap_or_else(|answer| {
                self.end(Unavailable::Driver(answer));
                false
            });
        if !registered {
            gpu.watch.remove(start, end);
            gpu.registrations.remove(index);
            return false;
        }
        self.registered += len;
        gpu.counts.most_bytes.fetch_max(self.registered as u64, Relaxed);
        self.there.push(index);
        gpu.counts.registrations.fetch_add(1, Relaxed);
        while let Err(there) = gpu.registrations.fill(index) {
            let idle = |other: &usize| self.users[*other] == 0 && *other != index;
            let oldest =
                there.into_iter().filter(idle).min_by_key(|&i| gpu.registrations.get(i).used());
            match oldest {
                Some(other) => self.evict(other),
                None => {
                    gpu.registrations.retire(index);
                    break;
                }
            }
        }
        // If it went stale meanwhile, `tidy` lets it go.
        gpu.registrations.publish(index)
    }

    /// Lets go of what was used least recently until so many bytes more may be registered, and
    /// there is a place for one more.
    fn make_room(&mut self, len: usize) -> bool {
        let keep = self.gpu.keep.load(Relaxed);
        if len > keep {
            return false;
        }
        loop {
            let full =
                !self.gpu.registrations.all().any(|(_, registration)| registration.is_empty());
            if self.registered + len <= keep && !full {
                return true;
            }
            let idle = self.gpu.registrations.all().filter(|(index, registration)| {
                self.users[*index] == 0 && (registration.is_live() || registration.is_stale())
            });
            match idle.min_by_key(|(_, registration)| registration.used()).map(|(index, _)| index) {
                Some(index) => self.evict(index),
                None => return false,
            }
        }
    }

    /// Waits for the copies under way and gives everything back.
    fn close(mut self) {
        self.gpu.state.store(state::ENDED, SeqCst);
        let end = sys::nanoseconds() + EXIT_NANOS / 2;
        loop {
            for slot in &self.gpu.slots {
                let (posted, refused) = (slot::POSTED, slot::REFUSED);
                let _ = slot.state.compare_exchange(posted, refused, Release, Relaxed);
            }
            self.reap();
            if self.flights.is_empty() || sys::nanoseconds() > end {
                break;
            }
            sys::sleep(100_000);
        }
        for index in self.there.clone() {
            if self.users[index] == 0 {
                self.gpu.registrations.retire(index);
                self.drop_registration(index);
            }
        }
        // SAFETY: ours; used by nobody once they are drained.
        unsafe {
            self.card.drain(self.channels.iter().map(|channel| channel.stream));
            if self.words != 0 {
                let _ = self.card.unregister(self.gpu.words.load(Relaxed));
            }
            for channel in &self.channels {
                self.card.end_stream(channel.stream);
                if channel.buffer != 0 {
                    self.card.end_memory(channel.buffer);
                }
            }
        }
        self.card.close();
    }
}

/// Of this thread, in nanoseconds.
fn cpu_time() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whole 64 KiB.
fn chunk_of(len: usize, most: usize) -> usize {
    (len / CHUNKS).next_multiple_of(64 << 10).clamp(LEAST_CHUNK, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_fits_the_buffer_and_large_copies_have_many() {
        let chunk = |len| chunk_of(len, BUFFER);
        assert_eq!(chunk(1), LEAST_CHUNK);
        assert_eq!(chunk(4 << 20), LEAST_CHUNK);
        assert!(chunk(24 << 20) <= 2 << 20 && chunk(24 << 20) > 1 << 20);
        assert_eq!((chunk(1 << 30), chunk_of(64 << 20, QUICK_CHUNK)), (BUFFER, QUICK_CHUNK));
    }
}
