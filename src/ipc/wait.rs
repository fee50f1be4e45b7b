//! Waiting for a message, in stages.
//!
//! A thread that waits looks for work first: a piece of its own message, then what other connections
//! of the process need. With nothing to do it rests: it spins for some microseconds; it sleeps on its
//! doorbell's word for milliseconds; it polls, for seconds (`long_sleep`), and looks again.

mod long_sleep;
pub mod steps;
mod workers;

use crate::ipc::copy::across::Pinned;
use crate::ipc::link::{LEAST_SPIN, Link, MOST_SPIN, Unposted, WORD_NANOSECONDS};
use crate::ipc::memory::region::LINE;
use crate::ipc::messages::{AfterPost, Endpoint, Hint, Role, Withdrawal};
use crate::ipc::wake::background;
use crate::ipc::wake::doorbell::how;
use crate::ipc::wake::wakeups;
use crate::os::lock::{Held, Release};
use crate::os::sync::{Woken, fetch_to_change, pause};
use crate::os::{cpus, sys};
use core::ops::Range;
use core::sync::atomic::Ordering;
use long_sleep::AnnouncedSleep;

/// Longest sleep before another look at a connection that a thread was in.
const SKIPPED_NS: u64 = 1_000_000;

/// The stages of resting.
enum Rest<'a> {
    Fresh,
    /// Until this many ticks.
    Spin(u64),
    /// Announced: the next rest is a sleep while the word is this, with a limit in nanoseconds.
    Word(u64, u64),
    /// Announced: the next rest polls.
    Poll(AnnouncedSleep<'a>),
}

/// Returns the nanoseconds until `limit`, at most `most`, and few where another look is due.
fn left(limit: Option<u64>, most: u64) -> u64 {
    let most = if background::was_skipped() { SKIPPED_NS.min(most) } else { most };
    limit.map_or(most, |limit| limit.saturating_sub(sys::nanoseconds()).clamp(1, most))
}

/// Returns the end of a limit, a time of `sys::nanoseconds`; `None`: there is no limit.
pub fn moment_in(milliseconds: i32) -> Option<u64> {
    let milliseconds = u64::try_from(milliseconds).ok()?;
    Some(sys::nanoseconds() + milliseconds * 1_000_000)
}

impl Link {
    /// Posts and waits, not longer than `ms` milliseconds unless that is negative; returns the bytes
    /// transferred or a negated errno. An eager message is over with its post and reads no clock.
    ///
    /// # Safety
    /// As `start`.
    #[inline(always)]
    pub unsafe fn transfer(&self, role: Role, addr: usize, len: usize, ms: i32) -> isize {
        // A reader without a limit waits, and fetches the bytes itself.
        let fetches = role == Role::Reader && ms < 0;
        let mut pinned = if fetches { Pinned::NONE } else { self.pin(role, addr, len) };
        // SAFETY: the caller's promise.
        match unsafe { self.post(role, addr, len, false, &mut pinned) } {
            Ok((endpoint, AfterPost::Over(count))) => {
                self.ring_after(endpoint.release());
                count as isize
            }
            // SAFETY: the caller's promise.
            posted => unsafe { self.transfer_on(role, (addr, len), pinned, posted, ms) },
        }
    }

    /// Posts again while there is no room, and waits. Not inlined: a message that is over when it is
    /// posted should not pay for this stack frame. (Measured: 0.98 of the time of 64 bytes.)
    ///
    /// # Safety
    /// As `start`.
    #[cold]
    #[inline(never)]
    unsafe fn transfer_on<'a>(
        &'a self,
        role: Role,
        (addr, len): (usize, usize),
        mut pinned: Pinned<'_>,
        mut posted: Result<(Held<'a, Endpoint>, AfterPost), Unposted>,
        ms: i32,
    ) -> isize {
        let (limit, mut rest) = (moment_in(ms), Rest::Fresh);
        let (number, taken) = loop {
            let hint = match posted {
                Ok((endpoint, AfterPost::Over(count))) => {
                    self.ring_after(endpoint.release());
                    return count as isize;
                }
                // The reader of what is not there yet has changed nothing that the peer waits for.
                Ok((endpoint, AfterPost::Waits(number, Some(hint)))) if ms != 0 => {
                    drop(endpoint);
                    break (number, self.spin_for_short(number, hint));
                }
                Ok((endpoint, AfterPost::Waits(number, _))) => {
                    self.let_go(endpoint);
                    break (number, None);
                }
                Err(Unposted { error, until: None }) => return error,
                Err(Unposted { until: Some(hint), .. }) => hint,
            };
            if limit.is_some_and(|limit| sys::nanoseconds() >= limit) {
                return -libc::ETIMEDOUT as isize;
            }
            match self.help_background(limit.is_some()) {
                true => rest = Rest::Fresh,
                false => self.rest(&mut rest, hint, limit),
            }
            // SAFETY: the caller's promise.
            posted = unsafe { self.post(role, addr, len, false, &mut pinned) };
        };
        drop(rest); // another thread may poll for this connection
        const CANCELLED: isize = -libc::ECANCELED as isize;
        match taken.or_else(|| self.wait_until(role, number, limit)) {
            Some(result) => result,
            None => match self.cancel(role, number) {
                CANCELLED => -libc::ETIMEDOUT as isize,
                result => result,
            },
        }
    }

    /// Spins for a read that was posted first, because its message is often eager; returns its result.
    /// Bytes of a short one lie beside the word; that line is fetched with every look, so they come
    /// together with the word and not after it. (Measured: 0.84 of the time of 64 bytes. Longer
    /// messages lose: their lines would be fetched while the writer fills them.)
    #[inline]
    fn spin_for_short(&self, number: u32, hint: Hint) -> Option<isize> {
        if !self.pays_to_spin() {
            return None;
        }
        let until = sys::ticks() + self.spin_ticks.load(Ordering::Relaxed);
        let mut ahead = self.room_ahead().step_by(LINE);
        while sys::ticks() < until {
            self.spin(hint, || {
                hint.fetch_beside();
                ahead.by_ref().take(2).for_each(fetch_to_change);
            });
            let (endpoint, lane) = self.endpoint(Role::Reader);
            let mut endpoint = endpoint.lock();
            if let Some(count) = endpoint.take_short(lane, number) {
                self.let_go(endpoint);
                return Some(count);
            }
            // SAFETY: the region is mapped as long as we live.
            if !unsafe { hint.is_unchanged() } {
                break; // something else has come
            }
        }
        None
    }

    /// Returns the room of the next write, to be fetched; empty while another thread writes.
    fn room_ahead(&self) -> Range<usize> {
        let (endpoint, lane) = self.endpoint(Role::Writer);
        endpoint.try_lock().map_or(0..0, |mut endpoint| endpoint.room_ahead(lane))
    }

    /// Waits until a message is over, and takes its result.
    pub fn wait(&self, role: Role, number: u32) -> isize {
        loop {
            if let Some(result) = self.wait_until(role, number, None) {
                return result;
            }
        }
    }

    /// Like `wait`, but not beyond `limit`, a time of `sys::nanoseconds`: `None`.
    pub fn wait_until(&self, role: Role, number: u32, limit: Option<u64>) -> Option<isize> {
        let is_late = || limit.is_some_and(|limit| sys::nanoseconds() >= limit);
        let mut rest = Rest::Fresh;
        let result = loop {
            match self.step_or_help(role, number, limit.is_some()) {
                Ok(result) => break Some(result),
                // The step may have been the last.
                Err(_) if is_late() => break self.collect_if_over(role, number),
                Err(None) => rest = Rest::Fresh,
                Err(Some(hint)) => self.rest(&mut rest, hint, limit),
            }
        };
        // Other sleepers take over what this one has looked after.
        drop(rest);
        match result {
            Some(_) => wakeups::wake_if_needed(),
            None => self.note_in_background(),
        }
        result
    }

    /// Takes one step without waiting; returns the result if that was the last.
    pub fn check(&self, role: Role, number: u32) -> Option<isize> {
        self.believe();
        let stepped = self.step_or_help(role, number, true);
        stepped.ok().or_else(|| self.collect_if_over(role, number))
    }

    /// Like `step`; with nothing to do for this message it serves others.
    fn step_or_help(&self, role: Role, number: u32, limited: bool) -> Result<isize, Option<Hint>> {
        match self.step(role, number, limited) {
            Err(Some(_)) if self.help_background(limited) => Err(None),
            stepped => stepped,
        }
    }

    fn help_background(&self, limited: bool) -> bool {
        steps::look_for_lost();
        self.help(limited) || (steps::has_background(self) && steps::serve_background(limited))
    }

    fn collect_if_over(&self, role: Role, number: u32) -> Option<isize> {
        let (endpoint, lane) = self.endpoint(role);
        let mut endpoint = endpoint.lock();
        let over = endpoint.is_over(lane, number);
        over.then(|| self.collected(endpoint, number))
    }

    /// Ends a message at the program's wish; afterwards no process touches its buffer.
    pub fn cancel(&self, role: Role, number: u32) -> isize {
        let (endpoint, lane) = self.endpoint(role);
        let mut endpoint = endpoint.lock();
        match endpoint.withdraw(lane, number) {
            Withdrawal::Over => self.collected(endpoint, number),
            Withdrawal::Withdrawn(pin) => {
                self.let_go(endpoint);
                self.unpin(pin);
                -libc::ECANCELED as isize
            }
            Withdrawal::Wait => {
                self.let_go(endpoint);
                self.wait(role, number)
            }
        }
    }

    fn rest<'a>(&'a self, rest: &mut Rest<'a>, hint: Hint, limit: Option<u64>) {
        match core::mem::replace(rest, Rest::Fresh) {
            _ if self.closing.load(Ordering::Relaxed) => {
                self.sleep_shortly(self.mine().doorbell.0.announce(how::WORD));
            }
            Rest::Fresh if self.pays_to_spin() => {
                self.spin(hint, || {});
                *rest = Rest::Spin(sys::ticks() + self.spin_ticks.load(Ordering::Relaxed));
            }
            Rest::Spin(until) if sys::ticks() < until => {
                self.spin(hint, || {});
                *rest = Rest::Spin(until);
            }
            // A futex is one word: other connections are heard of by polling.
            Rest::Fresh | Rest::Spin(_) if steps::has_background(self) => {
                *rest = self.announce_long();
            }
            Rest::Fresh | Rest::Spin(_) => *rest = self.announce(WORD_NANOSECONDS),
            Rest::Word(seen, most) => {
                let begun = sys::ticks();
                let woken = self.mine().doorbell.0.sleep(seen, left(limit, most));
                // Would spinning have been as good?
                self.note_spin(sys::ticks().wrapping_sub(begun) < MOST_SPIN);
                *rest = match woken {
                    Woken::LookAgain => Rest::Fresh,
                    Woken::TimedOut | Woken::Refused => self.announce_long(),
                };
            }
            Rest::Poll(watch) => watch.sleep(left(limit, long_sleep::MOST_SLEEP)),
        }
    }

    fn announce<'a>(&self, most: u64) -> Rest<'a> {
        Rest::Word(self.mine().doorbell.0.announce(how::WORD), most)
    }

    /// Announces a sleep on the word, and a poll unless another thread polls: that one rings the word
    /// when it leaves. Announced before we ask whether one polls, because it may leave then.
    fn announce_long(&self) -> Rest<'_> {
        let word = self.announce(long_sleep::MOST_SLEEP);
        AnnouncedSleep::new(self).map_or(word, Rest::Poll)
    }

    /// Spins until the word changes, or for a microsecond.
    #[inline]
    fn spin(&self, hint: Hint, mut meanwhile: impl FnMut()) {
        for _ in 0..64 {
            // SAFETY: the region is mapped as long as we live.
            if !unsafe { hint.is_unchanged() } {
                return;
            }
            meanwhile();
            pause();
        }
    }

    /// Returns false where the peer waits for the very CPU that we would spin on.
    fn pays_to_spin(&self) -> bool {
        let (cpu, told) = (cpus::current() + 1, &self.mine().cpu.0);
        if told.load(Ordering::Relaxed) != cpu {
            told.store(cpu, Ordering::Relaxed);
        }
        self.theirs().cpu.0.load(Ordering::Relaxed) != cpu
    }

    fn note_spin(&self, good: bool) {
        let ticks = self.spin_ticks.load(Ordering::Relaxed);
        let next = if good { ticks * 2 } else { ticks / 2 }.clamp(LEAST_SPIN, MOST_SPIN);
        if next != ticks {
            self.spin_ticks.store(next, Ordering::Relaxed);
        }
    }
}
