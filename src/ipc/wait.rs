//! Waiting for a message, in stages.
//!
//! A thread that waits looks for a piece of its own message first. With nothing to do it rests: it spins
//! for some microseconds, then it sleeps on its doorbell's word. The service thread wakes it when the
//! peer ends.

pub mod serve;
mod steps;
mod workers;

use crate::ipc::copy::across::Pinned;
use crate::ipc::link::{LEAST_SPIN, Link, MOST_SPIN, Unposted, WORD_NANOSECONDS};
use crate::ipc::memory::region::LINE;
use crate::ipc::messages::{AfterPost, Endpoint, Hint, Role, Withdrawal};
use crate::ipc::wake::doorbell::how;
use crate::ipc::wake::service;
use crate::os::lock::{Held, Release};
use crate::os::sync::{Woken, fetch_to_change, pause};
use crate::os::{cpus, sys};
use core::ops::Range;
use core::sync::atomic::Ordering;

/// Longest sleep in nanoseconds: a lost wake-up is a delay, not a hang.
const MOST_SLEEP: u64 = 4_000_000_000;

/// The stages of resting.
enum Rest {
    Fresh,
    /// Until this many ticks.
    Spin(u64),
    /// Announced: the next rest is a sleep while the word is this.
    Word(u64),
}

/// Meaning of a caller's limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The message is over, or cancelled for both sides.
    Over,
    /// The peer has posted its part; the message is then transferred to its end, by the caller.
    Begun,
}

/// Returns the nanoseconds until `limit`, at most `most`.
fn left(limit: Option<u64>, most: u64) -> u64 {
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
    pub unsafe fn transfer(
        &self,
        role: Role,
        (addr, len): (usize, usize),
        ms: i32,
        until: Until,
    ) -> isize {
        // A reader without a limit waits, and fetches the bytes itself.
        let fetches = role == Role::Reader && ms < 0;
        let mut pinned = if fetches { Pinned::NONE } else { self.pin(role, addr, len) };
        // SAFETY: the caller's buffer, which stays valid as `start` wants it.
        match unsafe { self.post(role, addr, len, false, &mut pinned) } {
            Ok((endpoint, AfterPost::Over(count))) => {
                self.ring_after(endpoint.release());
                count as isize
            }
            // SAFETY: the caller's buffer, which stays valid as `start` wants it.
            posted => unsafe { self.transfer_on(role, (addr, len), pinned, posted, (ms, until)) },
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
        (ms, until): (i32, Until),
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
            self.rest(&mut rest, hint, limit);
            // SAFETY: the caller's buffer, which stays valid as `start` wants it.
            posted = unsafe { self.post(role, addr, len, false, &mut pinned) };
        };
        const CANCELLED: isize = -libc::ECANCELED as isize;
        let limited = until == Until::Over && limit.is_some();
        match taken.or_else(|| self.wait_until(role, number, limit, limited)) {
            Some(result) => result,
            None if until == Until::Begun => {
                self.undo(role, number).unwrap_or_else(|| self.wait(role, number))
            }
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
            if let Some(result) = self.wait_until(role, number, None, false) {
                return result;
            }
        }
    }

    /// Like `wait`, but not beyond `limit`, a time of `sys::nanoseconds`: `None`. `limited`: nor where
    /// the peer's pages do not come.
    pub fn wait_until(
        &self,
        role: Role,
        number: u32,
        limit: Option<u64>,
        limited: bool,
    ) -> Option<isize> {
        let is_late = || limit.is_some_and(|limit| sys::nanoseconds() >= limit);
        let mut rest = Rest::Fresh;
        loop {
            match self.advance(role, number, limited) {
                Ok(result) => return Some(result),
                // The step may have been the last.
                Err(_) if is_late() => return self.collect_if_over(role, number),
                Err(None) => rest = Rest::Fresh,
                Err(Some(hint)) => self.rest(&mut rest, hint, limit),
            }
        }
    }

    /// Takes one step without waiting; returns the result if that was the last.
    pub fn check(&self, role: Role, number: u32) -> Option<isize> {
        self.believe();
        let stepped = self.advance(role, number, true);
        if stepped.is_err() {
            service::help_out();
        }
        stepped.ok().or_else(|| self.collect_if_over(role, number))
    }

    fn collect_if_over(&self, role: Role, number: u32) -> Option<isize> {
        let (endpoint, lane) = self.endpoint(role);
        let mut endpoint = endpoint.lock();
        let over = endpoint.is_over(lane, number);
        over.then(|| self.collected(endpoint, number))
    }

    /// Takes a post back that the peer has not matched; returns the error for that.
    fn undo(&self, role: Role, number: u32) -> Option<isize> {
        let (endpoint, lane) = self.endpoint(role);
        let mut endpoint = endpoint.lock();
        let pin = endpoint.undo(lane, number)?;
        self.let_go(endpoint);
        self.unpin(pin);
        Some(-libc::ETIMEDOUT as isize)
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

    fn rest(&self, rest: &mut Rest, hint: Hint, limit: Option<u64>) {
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
            Rest::Fresh | Rest::Spin(_) => {
                *rest = Rest::Word(self.mine().doorbell.0.announce(how::WORD));
            }
            Rest::Word(seen) => {
                let (begun, is_served) = (sys::ticks(), service::start());
                let most = if is_served { MOST_SLEEP } else { WORD_NANOSECONDS };
                let woken = self.mine().doorbell.0.sleep(seen, left(limit, most));
                // Would spinning have been as good?
                self.note_spin(sys::ticks().wrapping_sub(begun) < MOST_SPIN);
                if woken != Woken::LookAgain {
                    self.look_for_end();
                }
                if !is_served {
                    service::help_out();
                }
            }
        }
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
        let (cpu, shown) = (cpus::current() + 1, &self.mine().cpu.0);
        if shown.load(Ordering::Relaxed) != cpu {
            shown.store(cpu, Ordering::Relaxed);
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
