//! Waiting for a message, in stages.
//!
//! Who waits looks for work first: a piece of its own message, then anything of the process's
//! connections that the other side cannot do alone. With nothing to do it rests: it spins for
//! some microseconds; it sleeps on its doorbell's word for milliseconds; it polls, for seconds
//! (`watch`), and looks again. So nobody is asked "are you done" and nobody waits for the dead.

use super::across::Pinned;
use super::blocks;
use super::doorbell::how;
use super::endpoint::{AfterPost, Endpoint, Hint, Role};
use super::link::{LEAST_SPIN, Link, MOST_SPIN, Unposted, WORD_NANOSECONDS};
use super::lock::Held;
use super::os;
use super::region::LINE;
use super::watch::{self, AnnouncedSleep};
use super::{kicks, steps};
use crate::os::sync::{Woken, fetch_to_change, pause};
use crate::os::{cpus, sys};
use core::ops::Range;
use core::sync::atomic::Ordering;

/// The stages of resting.
enum Rest<'a> {
    Fresh,
    /// Until this many ticks.
    Spin(u64),
    /// Announced: the next rest is a sleep while the word is this, at most so many nanoseconds.
    Word(u64, u64),
    /// Announced: the next rest polls.
    Poll(AnnouncedSleep<'a>),
}

/// What is left until `limit`, and not more than `most`; in nanoseconds.
fn left(limit: Option<u64>, most: u64) -> u64 {
    limit.map_or(most, |limit| limit.saturating_sub(sys::nanoseconds()).clamp(1, most))
}

impl Link {
    /// Posts, waits, and answers the bytes transferred or a negated errno.
    ///
    /// # Safety
    /// As `start`.
    #[inline(always)]
    pub unsafe fn transfer(&self, role: Role, addr: usize, len: usize) -> isize {
        let mut pinned = match role {
            Role::Writer => self.pin(role, addr, len),
            // It waits, and so fetches the bytes itself.
            Role::Reader => Pinned { across: None, pin: 0 },
        };
        let mut rest = Rest::Fresh;
        loop {
            // SAFETY: the caller's promise.
            match unsafe { self.post(role, addr, len, false, &mut pinned) } {
                // The common case: an eager message.
                Ok((endpoint, AfterPost::Over(count))) => {
                    self.ring_after(endpoint.release());
                    return count as isize;
                }
                Ok((endpoint, AfterPost::Waits(number, Some(hint)))) => {
                    drop(endpoint);
                    return self.wait_for_short(number, hint);
                }
                Ok((endpoint, AfterPost::Waits(number, None))) => {
                    return self.wait_for_posted(role, number, endpoint);
                }
                Err(Unposted { error, until: None }) => return error,
                Err(Unposted { until: Some(hint), .. }) => match self.help_anybody(false) {
                    true => rest = Rest::Fresh,
                    false => self.rest(&mut rest, hint, None),
                },
            }
        }
    }

    /// Apart, for what is over when it is posted should not have to make room for it. (Measured: 0.98
    /// of the time of 64 bytes.)
    #[inline(never)]
    fn wait_for_posted(&self, role: Role, number: u32, endpoint: Held<'_, Endpoint>) -> isize {
        self.let_go(endpoint);
        self.wait(role, number)
    }

    /// A read that comes first spins before it does anything else: what it meets is often eager.
    /// Short ones lie beside the word it looks at. That line is asked for with every look: so the
    /// bytes come together with the word and not after it. (Measured: 0.84 of the time of 64 bytes.
    /// Of longer messages it would take lines away that are just being filled.)
    #[inline]
    fn wait_for_short(&self, number: u32, hint: Hint) -> isize {
        if self.pays_to_spin() {
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
                    return count as isize;
                }
                // SAFETY: the region is mapped as long as we live.
                if !unsafe { hint.is_unchanged() } {
                    break; // something else has come
                }
            }
        }
        self.wait(Role::Reader, number)
    }

    /// For a thread that waits, and will write then. Nothing if somebody writes just now.
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

    /// The same, but not beyond a moment of `sys::nanoseconds`: `None`.
    pub fn wait_until(&self, role: Role, number: u32, limit: Option<u64>) -> Option<isize> {
        let is_late = || limit.is_some_and(|limit| sys::nanoseconds() >= limit);
        let mut rest = Rest::Fresh;
        let result = loop {
            match self.step_or_help(role, number, limit.is_some()) {
                Ok(result) => break Some(result),
                // What was just done may have been the last.
                Err(_) if is_late() => break self.collect_if_over(role, number),
                Err(None) => rest = Rest::Fresh,
                Err(Some(hint)) => self.rest(&mut rest, hint, limit),
            }
        };
        // What this sleeper has looked after is for the others now.
        drop(rest);
        kicks::kick();
        result
    }

    /// One step without waiting: the result if that was the last, or nothing.
    pub fn check(&self, role: Role, number: u32) -> Option<isize> {
        self.believe();
        let stepped = self.step_or_help(role, number, true);
        stepped.ok().or_else(|| self.collect_if_over(role, number))
    }

    /// As `step`; with nothing to do for this message it is something for another.
    fn step_or_help(&self, role: Role, number: u32, limited: bool) -> Result<isize, Option<Hint>> {
        match self.step(role, number, limited) {
            Err(Some(_)) if self.help_anybody(limited) => Err(None),
            stepped => stepped,
        }
    }

    fn help_anybody(&self, limited: bool) -> bool {
        self.help(limited) || steps::help_others(self, limited)
    }

    fn collect_if_over(&self, role: Role, number: u32) -> Option<isize> {
        let (endpoint, lane) = self.endpoint(role);
        let mut endpoint = endpoint.lock();
        let over = endpoint.is_over(lane, number);
        over.then(|| self.collected(endpoint, number))
    }

    /// Lends a block to the other side, whoever that is, or none, and waits until both have lent
    /// something and have mapped it.
    pub fn lend(&self, addr: usize) -> os::Result<()> {
        let limit = sys::nanoseconds() + self.settings.patience;
        let (mappings, socket) = (&self.engine.mappings, self.socket.raw());
        let serial = if addr == 0 { Ok(0) } else { blocks::serial_of(addr, self.owner) };
        if !mappings.wanted {
            return Err(libc::EOPNOTSUPP);
        }
        if self.engine.terms.equal {
            return serial.map(drop);
        }
        self.note_events(os::poll_few(self.descriptors(), 0));
        let gone = || self.end_for(Role::Writer).map(|end| -end as i32);
        if let Some(errno) = gone() {
            return Err(errno);
        }
        let wait_for = |done: &dyn Fn() -> bool| loop {
            self.take_in();
            if done() {
                break Ok(());
            }
            if let Some(errno) = gone() {
                break Err(errno);
            }
            if sys::nanoseconds() >= limit {
                break Err(libc::ETIMEDOUT);
            }
            self.believe();
            if !self.help_anybody(true) {
                os::poll_few([(-1, 0)], 1);
            }
        };
        wait_for(&|| !mappings.is_in_doubt())?;
        let lent = serial.and_then(|serial| Ok((serial, mappings.lend(socket, serial)?)));
        if lent.is_err() {
            // The other side waits all the same.
            let _ = mappings.lend(socket, 0);
        }
        let (serial, times) = lent?;
        let is_sealed = || serial == 0 || blocks::is_sealed(serial);
        let taken = wait_for(&|| is_sealed() && mappings.has_borrowed(times));
        if taken == Err(libc::ETIMEDOUT) {
            mappings.take_back(socket, times);
        }
        if serial == 0 {
            return taken;
        }
        // Whoever has it keeps it, but cannot take pages away any more.
        blocks::settle(serial, mappings.user)?;
        taken.map(|()| mappings.note_lent(serial))
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
            // Nobody sleeps on several words.
            Rest::Fresh | Rest::Spin(_) if steps::others_need_help(self) => {
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
            Rest::Poll(watch) => watch.sleep(left(limit, watch::MOST_SLEEP)),
        }
    }

    fn announce<'a>(&self, most: u64) -> Rest<'a> {
        Rest::Word(self.mine().doorbell.0.announce(how::WORD), most)
    }

    /// Where another thread polls, its leaving and every answer ring the word. Announced before we
    /// ask whether one does: it may leave then.
    fn announce_long(&self) -> Rest<'_> {
        let word = self.announce(watch::MOST_SLEEP);
        AnnouncedSleep::new(self).map_or(word, Rest::Poll)
    }

    /// Until the word changes, or for a microsecond.
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

    /// Not where the other side waits for the very CPU that we would spin on.
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
