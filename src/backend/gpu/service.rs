//! The thread that calls the driver: it registers memory, submits copies, and detects copies that
//! do not end.
//!
//! A real thread with thread-local storage, made when the process starts if the card is wanted;
//! it sleeps until the first large copy. A second one reads the kernel's events: `watch`.

mod memory;
mod submit;

use super::driver::Card;
use crate::backend::card::driver::{Address, CuResult, NOT_READY, OUT_OF_MEMORY, Stream};
use super::slots::{SlotState, slot};
use super::{BUFFER, CHANNELS, Engine, FLOOR, GPU, SLOTS, Unavailable, state};
use crate::backend::engine::Settings;
use crate::os::lookup::rare;
use crate::os::sync::pause;
use crate::os::{process, sys, thread};
use crate::plan::PAGE;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Interval of the search for lost copies while any are in flight.
const LOOK_NANOS: u64 = 10_000_000;
/// Ticks that the service thread spins for the next copy before it sleeps: about 40 us.
const SPIN: u64 = 100_000;
/// Time that exit waits for copies and for the thread.
const EXIT_NANOS: u64 = 3_000_000_000;
const STACK: usize = 2 << 20;
/// Value of `slow_calls`: `straight` is not used any more.
const NEVER: u32 = u32::MAX;

/// Makes the service thread. At start-up, never in the hook.
pub fn start(settings: &Settings) {
    GPU.floor.store(settings.min_bytes.unwrap_or(FLOOR).max(1), Relaxed);
    GPU.keep.store(settings.keep.unwrap_or_else(usual_keep), Relaxed);
    GPU.spare_cpus.store(settings.spare_cpus.into(), Relaxed);
    GPU.state.store(state::COLD, Relaxed);
    if let Err(errno) = thread::spawn(STACK, serve) {
        GPU.why.set(Unavailable::Thread(errno));
        GPU.state.store(state::ENDED, Release);
    }
}

/// Returns an eighth of the machine's memory, 4 GiB at most.
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
            GPU.why.set(why);
            GPU.state.store(state::ENDED, Release);
            return;
        }
    };
    // Registered after the driver was opened, so that it runs before the driver's own exit handler.
    // SAFETY: `at_exit` has the type that __cxa_atexit takes, and is never unloaded.
    unsafe {
        if let Some(at_exit_call) = __cxa_atexit() {
            at_exit_call(at_exit, core::ptr::null_mut(), core::ptr::null_mut());
        }
    }
    let (starting, ready) = (state::STARTING, state::READY);
    // If the state has changed, the process is ending or must not use the engine.
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

/// Ensures that nothing of ours is in flight when the driver tears itself down.
extern "C" fn at_exit(_: *mut c_void) {
    if !process::is_ours() || GPU.is_service_thread() {
        return;
    }
    GPU.state.store(state::ENDED, SeqCst);
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

/// A copy in flight on the card.
struct Flight {
    index: usize,
    number: u32,
    channels: u32,
    /// Registrations that it uses.
    registrations: Vec<usize>,
    since: u64,
    bytes: usize,
}

struct Service {
    gpu: &'static Engine,
    card: Card,
    channels: Vec<Channel>,
    /// Address of the words, as the card sees them.
    words: Address,
    flights: Vec<Flight>,
    /// Copies that have used each registration since it was made.
    uses: Vec<u32>,
    /// Bytes that are registered.
    registered: usize,
    /// Channel of the next copy.
    turn: usize,
    /// Consecutive calls of `straight` that took the CPU as long as a copy; NEVER: it is not to be
    /// used.
    slow_calls: u32,
    /// Time of the last look through the registrations, in nanoseconds.
    looked: u64,
}

impl Service {
    fn open(gpu: &'static Engine) -> Result<Self, Unavailable> {
        gpu.clock.set();
        // A seccomp filter may have been installed since start-up.
        let watched = sys::NoFilter::look().map_or(Err(libc::EPERM), |none| gpu.watch.open(none));
        watched.map_err(Unavailable::Watch)?;
        let card = Card::open()?;
        let mut service = Self {
            gpu,
            card,
            channels: Vec::new(),
            words: 0,
            flights: Vec::new(),
            uses: vec![0; super::registrations::MOST],
            registered: 0,
            turn: 0,
            slow_calls: 0,
            looked: sys::nanoseconds(),
        };
        if let Err(answer) = service.furnish() {
            service.close();
            return Err(Unavailable::Driver(answer));
        }
        // From the first registration on, threads of the program may wait for the monitor.
        if let Err(errno) = thread::spawn(256 << 10, monitor) {
            service.close();
            return Err(Unavailable::Thread(errno));
        }
        let mut name = [0; 64];
        let engines = service.card.describe(&mut name).max(1);
        gpu.name.set(name);
        gpu.engines.store(engines as u32, Relaxed);
        gpu.clock.measure();
        Ok(service)
    }

    fn furnish(&mut self) -> Result<(), CuResult> {
        for _ in 0..CHANNELS {
            let stream = self.card.new_stream()?;
            self.channels.push(Channel { stream, buffer: 0 });
        }
        if self.card.batch.is_none() {
            self.slow_calls = NEVER;
            self.furnish_buffers()?;
        }
        // Our own memory, never unmapped: threads may look at words when the driver has gone.
        let words = sys::map(SLOTS * 64).ok_or(OUT_OF_MEMORY)? as usize;
        self.words = self.card.register_words(words, SLOTS * 64)?;
        self.gpu.words.store(words, Release);
        Ok(())
    }

    /// Allocates the buffers on the card, if there are none yet.
    fn furnish_buffers(&mut self) -> Result<(), CuResult> {
        for channel in self.channels.iter_mut().filter(|channel| channel.buffer == 0) {
            channel.buffer = self.card.new_memory(BUFFER)?;
        }
        self.gpu.buffers.store(true, Relaxed);
        Ok(())
    }

    fn run(&mut self) {
        while self.gpu.is_up() {
            let heard = self.gpu.bell.load(SeqCst);
            self.submit_all();
            self.reap();
            self.evict_unused();
            self.grant();
            if self.gpu.posted.load(SeqCst) != 0 {
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
            && gpu.state.load(SeqCst) == state::READY
            && !gpu.wishes.iter().any(|wish| wish.state.load(Relaxed) == 2)
            && !gpu.registrations.all().any(|(i, one)| one.is_stale() && !self.is_used(i));
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
            if self.gpu.is_up() {
                self.submit(index);
            } else {
                state.store(slot::REFUSED, Release);
            }
        }
    }

    /// Retires flights that are over, and checks those that are overdue.
    fn reap(&mut self) {
        let (gpu, now, mut lost) = (self.gpu, sys::ticks(), None);
        let mut flights = core::mem::take(&mut self.flights);
        flights.retain(|flight| {
            let slot = &gpu.slots[flight.index];
            if slot.number.load(Acquire) != flight.number
                || slot.state.load(Acquire) == slot::FREE
                || gpu.look(flight.index) != SlotState::UnderWay
            {
                return false;
            }
            let patience = 10 * gpu.clock.ticks_per_ms() + 8 * gpu.times.expected(flight.bytes);
            let is_late = now.wrapping_sub(flight.since) > patience;
            match if is_late { self.streams_are_done(flight) } else { Ok(false) } {
                Ok(true) if gpu.finish(flight.index, slot::OVER) => {
                    gpu.counts.lost.fetch_add(1, Relaxed);
                    false
                }
                Ok(done) => !done,
                Err(answer) => {
                    lost = Some(answer);
                    true
                }
            }
        });
        self.flights = flights;
        if let Some(answer) = lost {
            self.end(Unavailable::Driver(answer));
        }
    }

    /// Returns whether a flight, or a call of the program, uses a registration.
    fn is_used(&self, registration: usize) -> bool {
        self.gpu.registrations.get(registration).is_held()
            || self.flights.iter().any(|flight| flight.registrations.contains(&registration))
    }

    fn streams_are_done(&self, flight: &Flight) -> Result<bool, CuResult> {
        for which in (0..CHANNELS).filter(|which| flight.channels >> which & 1 == 1) {
            // SAFETY: a stream of ours.
            match unsafe { self.card.stream_query(self.channels[which].stream) } {
                Err(NOT_READY) => return Ok(false),
                answer => answer?,
            }
        }
        Ok(true)
    }

    /// Ends the engine after a failure.
    fn end(&mut self, why: Unavailable) {
        self.gpu.why.set(why);
        self.stop();
    }

    /// Stops copies by the card. Those in flight end when it is certain that the card writes no
    /// more.
    fn stop(&mut self) {
        self.gpu.state.store(state::ENDED, SeqCst);
        for slot in &self.gpu.slots {
            let (posted, refused) = (slot::POSTED, slot::REFUSED);
            let _ = slot.state.compare_exchange(posted, refused, Release, Relaxed);
        }
        self.card.drain(self.channels.iter().map(|channel| channel.stream));
        for flight in core::mem::take(&mut self.flights) {
            if self.gpu.slots[flight.index].number.load(Acquire) == flight.number {
                self.gpu.finish(flight.index, slot::FAILED);
            }
        }
    }

    /// Waits for the copies in flight and releases everything.
    fn close(mut self) {
        self.stop();
        let gpu = self.gpu;
        for (index, _) in gpu.registrations.all().filter(|(_, one)| !one.is_empty()) {
            gpu.registrations.retire(index);
            self.drop_registration(index);
        }
        // SAFETY: ours; drained, so the card does not use them any more.
        unsafe {
            if self.words != 0 {
                let words = self.gpu.words.load(Relaxed) as *mut c_void;
                let _ = self.card.host_unregister(words);
            }
            for channel in &self.channels {
                let _ = self.card.stream_destroy(channel.stream);
                if channel.buffer != 0 {
                    let _ = self.card.free(channel.buffer);
                }
            }
        }
        self.card.close();
    }
}
