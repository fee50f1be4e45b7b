//! Threads that each copy a part: the ceiling for the shim.
//!
//! Helpers sleep in a futex while other arms have their turn, so that they take no CPU from the
//! shim's own workers. `gather` wakes them before the clock starts; then they spin, each on its own
//! CPU, and a copy costs no wake-up at all.

use crate::machine;
use crate::memory::{CopyFn, Spot};
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

const ASLEEP: u32 = 0;
const CALLED: u32 = 1;
const READY: u32 = 2;
const WORK: u32 = 3;

#[derive(Clone, Copy)]
struct Job {
    copy: CopyFn,
    spot: Spot,
    len: usize,
}

/// The state has one owner at a time: the helper in CALLED and WORK, the
/// leader in ASLEEP and READY. The job is written in READY, read in WORK.
#[repr(align(128))]
struct Seat {
    state: AtomicU32,
    tid: AtomicI32,
    job: UnsafeCell<Option<Job>>,
}

// SAFETY: `job` is passed by the release store of WORK and given back by the
// release store of READY.
unsafe impl Sync for Seat {}

pub struct Team {
    seats: Vec<Arc<Seat>>,
    /// CPUs that we may use.
    cpus: Vec<usize>,
    /// CPU of the leader when the helpers were last pinned.
    leader: Cell<i32>,
}

impl Team {
    /// Makes a team of `threads`, including the caller.
    pub fn new(threads: usize) -> Self {
        let seats = (1..threads).map(|_| hire()).collect();
        Team { seats, cpus: machine::cpu_numbers(), leader: Cell::new(-1) }
    }

    /// Wakes enough helpers and waits until they spin.
    pub fn gather(&self, threads: usize) {
        if threads < 2 {
            return;
        }
        self.pin();
        for seat in &self.seats[..threads - 1] {
            seat.state.store(CALLED, Release);
            futex(&seat.state, WAKE, 1);
        }
        for seat in &self.seats[..threads - 1] {
            await_ready(seat);
        }
    }

    pub fn dismiss(&self, threads: usize) {
        for seat in &self.seats[..threads - 1] {
            seat.state.store(ASLEEP, Release);
        }
    }

    /// Gives every thread an equal part, cut at cache lines.
    ///
    /// # Safety
    /// `gather(threads)` came before, `dismiss` has not; `spot` is good for `len` bytes.
    pub unsafe fn copy(&self, copy: CopyFn, threads: usize, spot: Spot, len: usize) {
        let part = (len / threads).next_multiple_of(64);
        let piece = |index: usize| {
            let from = (part * index).min(len);
            // SAFETY: `from <= len`.
            let spot = unsafe { Spot { dst: spot.dst.add(from), src: spot.src.add(from) } };
            Job { copy, spot, len: part.min(len - from) }
        };
        for (index, seat) in self.seats[..threads - 1].iter().enumerate() {
            // SAFETY: the seat is READY, so its job is ours to write.
            unsafe { *seat.job.get() = Some(piece(index + 1)) };
            seat.state.store(WORK, Release);
        }
        let own = piece(0);
        // SAFETY: a part of what the caller promised.
        unsafe { (own.copy)(own.spot.dst.cast(), own.spot.src.cast(), own.len) };
        for seat in &self.seats[..threads - 1] {
            await_ready(seat);
        }
    }

    /// Puts each helper on a CPU of its own, away from the leader's. The leader is never pinned,
    /// because the shim would then count one CPU.
    fn pin(&self) {
        // SAFETY: no arguments.
        let here = unsafe { libc::sched_getcpu() };
        if here == self.leader.replace(here) {
            return;
        }
        let free = self.cpus.iter().filter(|cpu| **cpu != here as usize);
        for (seat, cpu) in self.seats.iter().zip(free) {
            // A refusal only costs some precision.
            let _ = machine::bind(seat.tid.load(Acquire), &[*cpu]);
        }
    }
}

fn await_ready(seat: &Seat) {
    while seat.state.load(Acquire) != READY {
        spin_loop();
    }
}

/// Starts one helper; it ends with the process.
fn hire() -> Arc<Seat> {
    let seat = Arc::new(Seat {
        state: AtomicU32::new(ASLEEP),
        tid: AtomicI32::new(0),
        job: UnsafeCell::new(None),
    });
    let own = Arc::clone(&seat);
    std::thread::spawn(move || {
        // SAFETY: no arguments.
        own.tid.store(unsafe { libc::gettid() }, Release);
        serve(&own)
    });
    while seat.tid.load(Acquire) == 0 {
        std::thread::yield_now();
    }
    seat
}

fn serve(seat: &Seat) -> ! {
    loop {
        match seat.state.load(Acquire) {
            ASLEEP => futex(&seat.state, WAIT, ASLEEP),
            CALLED => seat.state.store(READY, Release),
            WORK => {
                // SAFETY: in WORK the job is ours to read, and the leader waits until we are READY.
                unsafe {
                    if let Some(job) = *seat.job.get() {
                        (job.copy)(job.spot.dst.cast(), job.spot.src.cast(), job.len);
                    }
                }
                seat.state.store(READY, Release);
            }
            _ => spin_loop(),
        }
    }
}

/// Futex operations inside this process.
pub const WAIT: i32 = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
pub const WAKE: i32 = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;

pub fn futex(word: &AtomicU32, operation: i32, value: u32) {
    let forever = ptr::null::<libc::timespec>();
    // SAFETY: the word outlives the call; waiting and waking use no more.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, forever) };
}
