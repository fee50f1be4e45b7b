//! Waiting for a message, in stages.
//!
//! Who waits looks for work first: a piece of its own message, then anything of the process's
//! connections that the other side cannot do alone. With nothing to do it rests: it spins for
//! some microseconds; it sleeps on its doorbell's word for milliseconds; it polls, for seconds
//! (`watch`), and looks again. So nobody is asked "are you done" and nobody waits for the dead.

use super::MOST_EAGER;
use super::across::Pinned;
use super::blocks;
use super::doorbell::how;
use super::endpoint::{Hint, NoRoom, PLACED_FROM, Role, Short, Step};
use super::link::{LEAST_SPIN, Link, MOST_SPIN, WORD_NANOSECONDS, other};
use super::os::{self, Way};
use super::region::LINE;
use super::watch::{self, AnnouncedSleep};
use crate::os::sync::{Woken, fetch_to_change, pause};
use crate::os::{cpus, sys};
use core::ops::Range;
use core::sync::atomic::Ordering;

/// The stages of resting.
enum Rest<'a> {
    Fresh,
    /// Until this many ticks.
    Spin(u64),
    /// Announced: the next rest is a sleep while the word is this.
    Word(u64),
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
    #[inline]
    pub unsafe fn transfer(&self, role: Role, addr: usize, len: usize) -> isize {
        // SAFETY: the caller's promise.
        let short = unsafe {
            match role {
                Role::Writer => self.write_eagerly(addr, len),
                Role::Reader => self.read_eagerly(addr, len),
            }
        };
        match short {
            Short::Done(count) => count as isize,
            Short::Posted(number) => self.wait(role, number),
            // SAFETY: the caller's promise.
            _ => unsafe { self.post_and_wait(role, addr, len) },
        }
    }

    /// Eager messages have no need of a post.
    #[inline]
    unsafe fn write_eagerly(&self, addr: usize, len: usize) -> Short {
        if len > MOST_EAGER || self.end_before(Role::Writer) != other::ALIVE {
            return Short::UsualWay;
        }
        let (endpoint, lane) = self.endpoint(Role::Writer);
        let mut endpoint = endpoint.lock();
        let waiting = if len >= PLACED_FROM { endpoint.waiting_block(lane, len) } else { None };
        let placed = waiting.filter(|_| endpoint.placing.pays());
        let view = placed
            .and_then(|(place, count)| Some((self.engine.view(Way::Push, place, count)?, count)));
        // SAFETY: the caller's promise; the view stays mapped.
        let written = unsafe {
            match &view {
                Some(((_view, at), count)) => endpoint.write_in_place(lane, addr, len, *at, *count),
                None => endpoint.write_eagerly(lane, addr, len, waiting.is_some()),
            }
        };
        let released = endpoint.release();
        if let (Some((place, _)), None) = (placed, &view)
            && !self.engine.mappings.knows(place)
        {
            self.fetch(place); // for the next time
        }
        let Ok(Some(count)) = written else { return Short::UsualWay };
        self.ring_after(released);
        Short::Done(count)
    }

    /// A reader that comes first spins before it remembers its post: what it then finds is
    /// often eager. Short ones lie beside the word it looks at. That line is asked for with
    /// every look: so the bytes come together with the word and not after it. (Measured: 0.84 of
    /// the time of 64 bytes. Of longer messages it would take lines away that are just being
    /// filled.)
    #[inline]
    unsafe fn read_eagerly(&self, addr: usize, len: usize) -> Short {
        let (endpoint, lane) = self.endpoint(Role::Reader);
        let mut held = endpoint.lock();
        // SAFETY: the caller's promise.
        let mut short = unsafe { held.read_eagerly(lane, self.buffer(Role::Reader, addr, len, 0)) };
        let mut released = held.release();
        let (mut until, mut ahead) = (0, (0..0).step_by(LINE));
        while let Short::Announced(number, hint) = short {
            if until == 0 && self.pays_to_spin() {
                until = sys::ticks() + self.spin_ticks.load(Ordering::Relaxed);
                ahead = self.room_ahead().step_by(LINE);
            }
            if sys::ticks() > until {
                endpoint.lock().post_announced();
                return Short::Posted(number);
            }
            self.spin(hint, || {
                hint.fetch_beside();
                ahead.by_ref().take(2).for_each(fetch_to_change);
            });
            let mut held = endpoint.lock();
            short = held.read_announced(lane, number);
            released = held.release();
        }
        if let Short::Done(_) = short {
            self.ring_after(released);
        }
        short
    }

    /// Nothing if somebody writes just now.
    fn room_ahead(&self) -> Range<usize> {
        let (endpoint, lane) = self.endpoint(Role::Writer);
        endpoint.try_lock().map_or(0..0, |mut endpoint| endpoint.room_ahead(lane))
    }

    unsafe fn post_and_wait(&self, role: Role, addr: usize, len: usize) -> isize {
        let (lock, lane) = self.endpoint(role);
        let mut rest = Rest::Fresh;
        let mut pinned = match role {
            Role::Writer => self.pin(role, addr, len),
            // It waits, and so fetches the bytes itself.
            Role::Reader => Pinned { across: None, pin: 0 },
        };
        let number = loop {
            let gone = self.end_before(role);
            if role == Role::Writer && gone != other::ALIVE {
                return self.failure(role, gone);
            }
            let mut endpoint = lock.lock();
            // SAFETY: the caller's promise.
            let posted = unsafe { self.post(role, &mut endpoint, addr, len, false, &mut pinned) };
            let number = match posted {
                Ok(number) => number,
                Err(NoRoom::Broken) => return self.far_ahead(role),
                Err(NoRoom::Uncollected) => return -libc::EAGAIN as isize,
                Err(_) if self.closing.load(Ordering::Acquire) => return -libc::EBADF as isize,
                Err(NoRoom::OtherIsBehind(_)) if gone != other::ALIVE => {
                    return self.failure(role, gone);
                }
                Err(NoRoom::InUse(hint) | NoRoom::OtherIsBehind(hint)) => {
                    drop(endpoint);
                    if self.help_anybody(false) {
                        rest = Rest::Fresh;
                    } else {
                        self.rest(&mut rest, hint, None);
                    }
                    continue;
                }
            };
            // The common case: an eager message, which is over already.
            match endpoint.advance(lane, &self.engine, self.other_may(role), false, number) {
                Ok(Step::Over) => return self.collected(endpoint, number),
                Ok(Step::Copy(piece)) => {
                    drop(endpoint);
                    if piece.of > 1 {
                        self.ring();
                    }
                    self.copy_with_workers(role, number, piece);
                }
                // A read that has met nothing: who writes looks for it and waits for nothing.
                Ok(Step::Idle(_)) if role == Role::Reader && endpoint.is_unmatched(number) => {}
                _ => self.let_go(endpoint),
            }
            break number;
        };
        self.wait(role, number)
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
        let mut rest = Rest::Fresh;
        let is_late = || limit.is_some_and(|limit| sys::nanoseconds() >= limit);
        let result = loop {
            match self.step_or_help(role, number, limit.is_some()) {
                Ok(result) => break Some(result),
                Err(_) if is_late() => break self.collect_if_over(role, number),
                Err(None) => rest = Rest::Fresh,
                Err(Some(hint)) => self.rest(&mut rest, hint, limit),
            }
        };
        // What this sleeper has looked after is for the others now.
        drop(rest);
        watch::kick();
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
        self.help(limited) || watch::help_others(self, limited)
    }

    /// What was just done may have been the last.
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
        self.note_events(&os::poll(self.descriptors(), 0));
        let gone = || match self.end_of_other() {
            other::ALIVE if !self.closing.load(Ordering::Acquire) => None,
            gone => Some(-self.failure(Role::Writer, gone) as i32),
        };
        if let Some(errno) = gone() {
            return Err(errno);
        }
        let lent = serial.and_then(|serial| Ok((serial, mappings.lend(socket, serial)?)));
        if lent.is_err() {
            // The other side waits all the same.
            let _ = mappings.lend(socket, 0);
        }
        let (serial, times) = lent?;
        let done = || serial == 0 || blocks::is_sealed(serial);
        let taken = loop {
            self.take_in();
            if done() && mappings.has_borrowed(times) {
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
                os::poll([(-1, 0)], 1);
            }
        };
        if serial == 0 {
            return taken;
        }
        // Whoever has it keeps it, but cannot take pages away any more.
        blocks::settle(serial)?;
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
            Rest::Fresh | Rest::Spin(_) if watch::others_need_help(self) => {
                *rest = Rest::Poll(AnnouncedSleep::new(self));
            }
            Rest::Fresh | Rest::Spin(_) => {
                *rest = Rest::Word(self.mine().doorbell.0.announce(how::WORD));
            }
            Rest::Word(seen) => {
                let (begun, nanos) = (sys::ticks(), left(limit, WORD_NANOSECONDS));
                let woken = self.mine().doorbell.0.sleep(seen, nanos);
                // Would spinning have been as good?
                self.note_spin(sys::ticks().wrapping_sub(begun) < MOST_SPIN);
                *rest = match woken {
                    Woken::LookAgain => Rest::Fresh,
                    Woken::TimedOut | Woken::Refused => Rest::Poll(AnnouncedSleep::new(self)),
                };
            }
            Rest::Poll(watch) => watch.sleep(left(limit, watch::MOST_SLEEP)),
        }
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
        let cpu = cpus::current() + 1;
        if self.cpu.load(Ordering::Relaxed) != cpu {
            self.cpu.store(cpu, Ordering::Relaxed);
            self.mine().cpu.0.store(cpu, Ordering::Relaxed);
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
