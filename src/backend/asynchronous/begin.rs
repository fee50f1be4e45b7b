//! Starts asynchronous copies: each is handed to the workers or to an engine's channels, as parts
//! of one cookie. A copy that neither takes is done before `begin` returns.

use super::Copy;
use super::end::{report_end, run_piece, see_to_the_end};
use super::per_process::poll;
use crate::backend::copy_loop::CopyLoop;
use crate::backend::engine::stretch::Stretch;
use crate::backend::engine::{CopyEngine, CopyOptions, Handle};
use crate::backend::mode::Mode;
use crate::backend::threads::cookies::{Cookie, Entry, Notice};
use crate::backend::threads::queue::{End, Posted};
use crate::backend::threads::worker;
use crate::backend::threads::workers::{self, PENDING, QUEUE};
use crate::backend::{Refused, libc as original, signals};
use crate::os::{process, sys};
use crate::plan::{self, Cut, PAGE};
use core::sync::atomic::Ordering;

/// Carrier of copies.
#[derive(Clone, Copy)]
pub enum By {
    /// This many workers; copies of `stream_from` bytes and more by streaming stores.
    Workers {
        workers: usize,
        copy_loop: CopyLoop,
        stream_from: usize,
        /// Engines that may take a copy instead.
        beside: &'static [&'static dyn CopyEngine],
        how: CopyOptions,
    },
    Engine(Handle, CopyOptions, CopyLoop),
}

impl By {
    /// Returns the smallest copy that is worth handing on.
    const fn floor(&self) -> usize {
        match self {
            By::Workers { .. } => FLOOR,
            By::Engine(..) => 4 * FLOOR,
        }
    }

    fn copy_loop(&self, len: usize) -> CopyLoop {
        match *self {
            By::Workers { stream_from, .. } if len >= stream_from => CopyLoop::Stream,
            By::Workers { copy_loop, .. } | By::Engine(_, _, copy_loop) => copy_loop,
        }
    }
}

pub const FLOOR: usize = 16 << 10;

/// Options besides the copies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    pub notice: Option<Notice>,
    /// Set if no thread will ask for the end.
    pub detached: bool,
}

/// Result of `begin`.
pub struct Begun {
    pub cookie: Cookie,
    /// Bytes that workers or an engine carry.
    pub carried: usize,
    pub refused: Option<Refused>,
}

/// Starts copies that end together. Without `by` they are done at once. `None`: the table is full
/// and nothing is in flight.
///
/// # Safety
/// As memmove of each. Ranges, and the word of a notice, stay valid until the end is reported.
pub unsafe fn begin(copies: &[Copy], by: Option<By>, wanted: Wanted) -> Option<Begun> {
    let started = sys::ticks();
    if !PENDING.has_room() {
        return None;
    }
    let suits = |copy: &Copy, by: &By| {
        copy.len >= by.floor() && !plan::overlaps(copy.dst, copy.src, copy.len)
    };
    let by = by.filter(|by| copies.iter().any(|copy| suits(copy, by)));
    let (mut by, refused) = match by.map(|by| may_hand_on_to(&by, started).map(|()| by)) {
        Some(Ok(by)) => (Some(by), None),
        Some(Err(refused)) => (None, Some(refused)),
        None => (None, None),
    };
    let handled = wanted.detached && by.is_some() && signals::program_handles_faults();
    // Most copies that are handed on: the first ones that suit.
    let room = if copies.len() > 1 { PENDING.room() } else { 1 };
    let mut left = room;
    // Faults from here on may jump, so there is nothing in the table yet.
    for copy in copies {
        let &Copy { src, dst, len } = copy;
        match by {
            Some(by) if left > 0 && suits(copy, &by) => {
                left -= 1;
                // There will be no later call in which a fault could be raised.
                if handled {
                    // SAFETY: the caller's ranges.
                    unsafe { touch_pages(dst, src, len) };
                }
            }
            // SAFETY: memmove may copy these ranges, by the caller's contract.
            _ => unsafe { original::copy(dst, src, len) },
        }
    }

    let owner = PENDING.take()?;
    PENDING.start(owner, wanted.notice, wanted.detached, started);
    owner.set_total(copies.iter().fold(0, |sum: usize, copy| sum.saturating_add(copy.len)));
    let mut begun = Begun { cookie: PENDING.cookie(owner), carried: 0, refused };
    if let Some(first) = by {
        let mut parts = Parts { owner, own: true, called: false, wanted };
        for copy in copies.iter().filter(|copy| suits(copy, &first)).take(room) {
            let Some(who) = by else {
                // SAFETY: one of the caller's copies, whose ranges stay until the end is reported.
                unsafe { parts.copy_at_once(copy, Mode::of_caller(first.copy_loop(copy.len))) };
                continue;
            };
            // SAFETY: one of the caller's copies, whose ranges stay until the end is reported.
            let (carried, refused) = unsafe { parts.hand_on(copy, &who) };
            begun.carried += carried;
            begun.refused = refused.or(begun.refused);
            by = by.filter(|_| refused.is_none_or(|why| why == Refused::Busy));
        }
        if parts.called && !workers::any_running() {
            see_to_the_end(owner);
        }
    }
    if let Some(ended) = PENDING.close(owner) {
        report_end(ended);
    }
    Some(begun)
}

/// Touches every page on either side, so that a bad one faults here.
///
/// # Safety
/// As memcpy.
unsafe fn touch_pages(dst: usize, src: usize, len: usize) {
    let mut at = 0;
    while at < len {
        let rest = |address: usize| PAGE - (address + at) % PAGE;
        // SAFETY: inside the caller's ranges.
        unsafe {
            let byte = ((src + at) as *const u8).read_volatile();
            ((dst + at) as *mut u8).write_volatile(byte);
        }
        at += rest(dst).min(rest(src));
    }
}

/// Returns whether this process may hand copies on now.
fn may_hand_on_to(by: &By, now: u64) -> Result<(), Refused> {
    if workers::REFUSED.is_recent() {
        return Err(Refused::System);
    }
    let ours = match by {
        By::Workers { .. } => process::shares_our_memory(),
        // The helper identifies processes, not memory.
        By::Engine(..) => process::is_ours(),
    };
    if !ours {
        return Err(Refused::NotOurs);
    }
    if workers::user_was_seen_to_change(now) {
        return Err(Refused::Busy);
    }
    Ok(())
}

/// Adds parts to an owner.
struct Parts {
    owner: &'static Entry,
    /// Set while the owner's own entry can still be used for a part.
    own: bool,
    /// Set when workers have been called.
    called: bool,
    wanted: Wanted,
}

impl Parts {
    fn entry(&mut self) -> Option<&'static Entry> {
        if core::mem::take(&mut self.own) { Some(self.owner) } else { PENDING.take() }
    }

    /// Releases an entry in which nothing was begun.
    fn give_back(&mut self, part: &'static Entry) {
        if core::ptr::eq(part, self.owner) { self.own = true } else { PENDING.release(part) }
    }

    /// Adds a part; workers are called if it is `offered` to them. Once is enough: every worker
    /// that comes calls more.
    fn post(&mut self, part: &Entry, posted: &Posted, offered: bool) {
        PENDING.add(self.owner, part, posted, offered);
        if offered {
            QUEUE.ring();
            if !core::mem::replace(&mut self.called, true) {
                worker::call_for_pending();
            }
        }
    }

    /// Adds a part that an engine carries. A worker watches it if no call of the program will, or
    /// if the program polls the descriptor.
    fn post_request(&mut self, part: &Entry, copy: &Copy, mode: Mode) {
        let &Copy { src, dst, len } = copy;
        let (cut, mode) = (Cut::from_parts(len, 0, len), mode | Mode::BY_HELPER);
        let watched = self.wanted.detached || poll().is_some();
        self.post(part, &Posted { dst, src, cut, mode }, watched);
    }

    /// Hands one copy on, in as many parts as it takes; the rest is done at once. Returns how many
    /// bytes are carried, and why the others are not.
    unsafe fn hand_on(&mut self, copy: &Copy, who: &By) -> (usize, Option<Refused>) {
        let &Copy { src, dst, len } = copy;
        let mode = Mode::of_caller(who.copy_loop(len));
        match *who {
            // SAFETY: ranges that stay until the end is reported.
            By::Workers { .. } if unsafe { self.hand_to_other(who, copy, mode) } => (len, None),
            By::Workers { workers, .. } => {
                let Some(part) = self.entry() else {
                    // SAFETY: ranges that stay until the end is reported.
                    unsafe { self.copy_at_once(copy, mode) };
                    return (0, Some(Refused::Busy));
                };
                let cut = Cut::new(dst, len, workers + 1);
                self.post(part, &Posted { dst, src, cut, mode }, true);
                (len, None)
            }
            // SAFETY: ranges that stay until the end is reported.
            By::Engine(engine, how, _) => unsafe { self.submit(engine, &how, copy, mode) },
        }
    }

    /// Returns whether an engine beside the workers has taken a copy.
    unsafe fn hand_to_other(&mut self, who: &By, copy: &Copy, mode: Mode) -> bool {
        let &By::Workers { beside, how, .. } = who else { return false };
        let &Copy { src, dst, len } = copy;
        let takes = |engine: &Handle| engine.is_beside() && engine.takes(dst, src, len);
        let Some(engine) = Handle::all(beside).find(takes) else { return false };
        let Some(part) = self.entry() else { return false };
        part.request.engine.store(engine.address(), Ordering::Relaxed);
        // SAFETY: the caller keeps both ranges until the end is reported.
        let taken = unsafe { engine.begin(&part.request, Stretch { dst, src, len }, &how) };
        if let Ok(Some(_)) = taken {
            self.post_request(part, copy, mode);
            return true;
        }
        self.give_back(part);
        false
    }

    /// Copies what neither workers nor an engine take. It must not fault while other parts are in
    /// flight: a handler might jump, and no thread would know of them. So it is a part as well, and
    /// a bad page of it faults when the end is reported.
    unsafe fn copy_at_once(&mut self, copy: &Copy, mode: Mode) {
        let &Copy { src, dst, len } = copy;
        let Some(part) = self.entry() else {
            // Other threads have just taken the last entries.
            see_to_the_end(self.owner);
            // SAFETY: memmove may copy these ranges, by the caller's contract.
            return unsafe { original::copy(dst, src, len) };
        };
        let cut = Cut::new(dst, len, 1);
        let posted = Posted { dst, src, cut, mode };
        self.post(part, &posted, false);
        self.owner.take_off(len);
        while let Some((copy, index)) = PENDING.claim(part, End::Front) {
            run_piece(part, &copy, index);
        }
    }

    /// Submits one request after the other, as large as allowed.
    unsafe fn submit(
        &mut self,
        engine: Handle,
        how: &CopyOptions,
        copy: &Copy,
        mode: Mode,
    ) -> (usize, Option<Refused>) {
        let (mut at, mut carried, mut refused) = (0, 0, None);
        while at < copy.len {
            let len = engine.part_of(copy.len - at);
            let (dst, src) = (copy.dst + at, copy.src + at);
            let mut begun = Err(Refused::Busy);
            if let Some(part) = self.entry() {
                part.request.engine.store(engine.address(), Ordering::Relaxed);
                // SAFETY: part of the caller's ranges.
                begun = unsafe { engine.begin(&part.request, Stretch { dst, src, len }, how) };
                if let Ok(Some(body)) = begun {
                    let (dst, src) = (dst + body.offset, src + body.offset);
                    self.post_request(part, &Copy { src, dst, len: body.len }, mode);
                    carried += body.len;
                } else {
                    self.give_back(part);
                }
            }
            refused = begun.err().or(refused);
            if !matches!(begun, Ok(Some(_))) {
                // SAFETY: part of the caller's ranges, of which nothing is under way.
                unsafe { self.copy_at_once(&Copy { src, dst, len }, mode) };
            }
            at += len;
        }
        (carried, refused)
    }
}
