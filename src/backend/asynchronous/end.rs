//! Finishes asynchronous copies: pieces are copied, requests of an engine are completed, and the
//! thread that finishes last reports the end.
//!
//! Faults come as from memcpy: at once, or in the thread that asks for the end (see `report`).

use super::Copy;
use super::per_process::{is_our_poll, poll};
use crate::backend::engine::Handle;
use crate::backend::mode::Mode;
use crate::backend::piece_end::PieceEnd;
use crate::backend::threads;
use crate::backend::threads::cookies::{Cookie, CookieState, Ended, Entry};
use crate::backend::threads::queue::{End, Posted};
use crate::backend::threads::workers::{self, PENDING, SPIN_TICKS};
use crate::backend::threads::{watch, worker};
use crate::backend::{libc as original, signals};
use crate::os::once::Once;
use crate::os::signal_mask::SignalsHeld;
use crate::os::sync::{Woken, pause};
use crate::os::sys;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most bytes that a caller copies with signals held: a handler that waited for this copy would
/// deadlock, so none may run meanwhile.
const CHUNK: usize = 16 << 20;

/// Time that a worker spends on one request of an engine before it looks at the others.
const WATCH_NANOS: u64 = 1_000_000;

/// Called with bytes and start of what workers and engines have carried, if set; by any thread of
/// ours.
pub static AT_END: Once<fn(usize, u64)> = Once::new();

/// Called with destination, source and length of what was carried, if set, when a call reports its
/// end: afterwards the program may change both sides.
pub static VERIFY: Once<unsafe fn(usize, usize, usize)> = Once::new();

/// Registers `attend` with the workers, at start-up.
pub fn init() {
    worker::ATTEND.set(attend);
}

/// Works on a part that a worker has found.
fn attend(part: &'static Entry, bytes: &AtomicU64, policy: &AtomicU32) {
    if part.is_carried_by_helper() && !is_over(part, WATCH_NANOS) {
        return;
    }
    if let Some((copy, index)) = PENDING.claim(part, End::Front) {
        copy.mode.adopt(policy);
        if !copy.mode.contains(Mode::BY_HELPER) {
            bytes.fetch_add(copy.cut.piece(index).len as u64, Ordering::Relaxed);
        }
        run_piece(part, &copy, index);
    }
}

/// Claims pieces of an owner's parts until there are none but requests of an engine that are not
/// over. Returns whether there were any bytes to copy.
fn help(owner: &Entry) -> bool {
    let (mut held, mut own, mut total) = (None, 0, 0);
    for part in PENDING.parts(owner) {
        while part.slot.unclaimed() > 0 {
            if part.is_carried_by_helper() && !is_over(part, 0) {
                break;
            }
            if held.is_none() {
                held = SignalsHeld::while_copying();
                if held.as_ref().is_some_and(watch::ask_for) {
                    workers::QUEUE.wake_sleepers(1);
                    worker::summon(1);
                }
            }
            // Workers claim from the front, so that the start of a copy is in place first.
            let Some((copy, index)) = PENDING.claim(part, End::Back) else { break };
            if !copy.mode.contains(Mode::BY_HELPER) {
                own += copy.cut.piece(index).len;
            }
            run_piece(part, &copy, index);
            if own >= CHUNK || held.as_ref().is_some_and(SignalsHeld::must_end) {
                total += core::mem::take(&mut own);
                held = None; // pending signals are delivered now
            }
        }
    }
    threads::note_caller_bytes(total + own);
    total + own > 0
}

/// Returns a part of an owner that an engine carries and no thread has claimed.
fn request_left(owner: &Entry) -> Option<&'static Entry> {
    let is_left = |part: &&Entry| part.is_carried_by_helper() && part.slot.unclaimed() > 0;
    PENDING.parts(owner).find(is_left)
}

/// Waits for all parts of an owner to which the caller is still adding.
pub(super) fn see_to_the_end(owner: &Entry) {
    loop {
        help(owner);
        if let Some(part) = request_left(owner) {
            is_over(part, WATCH_NANOS);
        } else if PENDING.parts_are_over(owner) {
            return;
        } else {
            sys::yield_now(); // workers have begun the last ones
        }
    }
}

/// Copies a claimed piece, or waits for a claimed request.
pub(super) fn run_piece(part: &Entry, copy: &Posted, index: usize) {
    let piece = copy.cut.piece(index);
    let (dst, src) = (copy.dst + piece.offset, copy.src + piece.offset);
    let copy_loop = copy.mode.copy_loop();
    let copy_part = |from: usize, to: usize| {
        // SAFETY: the caller keeps its ranges as they are until the end is reported, which is
        // not before this piece is finished.
        part.is_guarded(|| signals::install_handlers().is_ok())
            && unsafe { copy_loop.copy(dst + from, src + from, to - from) } == PieceEnd::Done
    };
    let mut done = true;
    if copy.mode.contains(Mode::BY_HELPER) {
        while !is_over(part, WATCH_NANOS) {}
        if let Some(engine) = engine_of(part) {
            let mut copy = |from, to| done &= copy_part(from, to);
            engine.left_over(&part.request, piece.len, &mut copy);
        }
    } else {
        done = copy_part(0, piece.len);
    }
    if !done && PENDING.owner(part).is_some_and(Entry::is_detached) {
        // A bad page ends the process: see `begin`. Signals are blocked so that no handler runs in
        // this thread, which is not the program's.
        let _held = SignalsHeld::all();
        // SAFETY: the caller keeps its ranges until the end is reported, which is after this piece.
        unsafe { original::copy(dst, src, piece.len) };
        done = true;
    }
    if let Some(ended) = PENDING.finish(part, index, done) {
        report_end(ended);
    }
}

/// Returns the engine that carries a part.
fn engine_of(part: &Entry) -> Option<Handle> {
    // SAFETY: 0, or what `begin` has put there.
    unsafe { Handle::from_address(part.request.engine.load(Ordering::Relaxed)) }
}

/// Returns whether the engine's request for a part is over; waits up to `nanos` for it.
fn is_over(part: &Entry, nanos: u64) -> bool {
    engine_of(part).is_none_or(|engine| engine.is_over(&part.request, nanos))
}

/// Reports that all copies of an owner have ended.
pub(super) fn report_end(ended: Ended) {
    if let Some(record) = AT_END.get().filter(|_| ended.bytes > 0) {
        record(ended.bytes, ended.begun);
    }
    if let Some(fd) = poll().filter(|&fd| is_our_poll(fd)) {
        sys::raise_event(fd);
    }
}

/// Returns the bytes from the start of a copy that are in place; `None`: not a cookie.
pub fn copied(cookie: Cookie) -> Option<usize> {
    PENDING.copied(cookie)
}

/// Looks without waiting; the cookie is retired when it is over.
///
/// # Safety
/// As memmove of its copies.
pub unsafe fn check(cookie: Cookie) -> CookieState {
    let mut look = PENDING.look(cookie);
    if let CookieState::UnderWay(owner) = look
        && owner.needs_help()
    {
        settle(owner);
        look = PENDING.look(cookie);
    }
    match look {
        CookieState::Unknown => CookieState::Unknown,
        CookieState::UnderWay(_) => CookieState::UnderWay(()),
        // SAFETY: memmove may copy the ranges behind this cookie, as the caller has ensured.
        CookieState::Over(owner) => unsafe { report(owner, cookie) },
    }
}

/// Finishes the requests of an engine that are over.
fn settle(owner: &Entry) {
    for part in PENDING.parts(owner) {
        if part.slot.unclaimed() == 0 || !part.is_carried_by_helper() || !is_over(part, 0) {
            continue;
        }
        let _held = SignalsHeld::while_copying();
        if let Some((copy, index)) = PENDING.claim(part, End::Front) {
            run_piece(part, &copy, index);
        }
    }
}

/// Waits; the cookie is retired then.
///
/// # Safety
/// As memmove of its copies.
pub unsafe fn wait(cookie: Cookie) -> CookieState {
    let mut since = sys::ticks();
    loop {
        let owner = match PENDING.look(cookie) {
            CookieState::Unknown => return CookieState::Unknown,
            // SAFETY: memmove may copy the ranges behind this cookie, as the caller has ensured.
            CookieState::Over(owner) => return unsafe { report(owner, cookie) },
            CookieState::UnderWay(owner) => owner,
        };
        if help(owner) {
            since = sys::ticks();
            continue;
        }
        // Nothing is claimed meanwhile, so signals may be handled.
        if owner.needs_help()
            && let Some(part) = request_left(owner)
            && !engine_of(part).is_some_and(|engine| engine.is_asked_for(&part.request))
        {
            is_over(part, WATCH_NANOS);
            continue;
        }
        if sys::ticks().wrapping_sub(since) < SPIN_TICKS {
            pause();
            continue;
        }
        // Threads that wait for an engine may only look at it, and wake no other.
        let most = if owner.needs_help() { WATCH_NANOS } else { 0 };
        if PENDING.sleep(owner, cookie, most) == Woken::Refused {
            workers::REFUSED.note();
            sys::yield_now();
        }
    }
}

/// Reports the end, once. Pieces that failed are copied now, in the program's thread, where a bad
/// page faults as it would have in memcpy.
unsafe fn report(owner: &Entry, cookie: Cookie) -> CookieState {
    if !PENDING.retire(cookie) {
        return CookieState::Unknown;
    }
    if !PENDING.has_failed(owner) {
        verify(owner);
        PENDING.free(owner);
        return CookieState::Over(());
    }
    threads::FAULTS.fetch_add(1, Ordering::Relaxed);
    let mut left = PENDING.parts(owner).filter_map(failure).fuse();
    // Neither cleared nor moved: compilers do that with memset and memcpy, which is us.
    let mut some = [const { MaybeUninit::<Copy>::uninit() }; 16];
    loop {
        let mut count = 0;
        for (place, copy) in some.iter_mut().zip(&mut left) {
            place.write(copy);
            count += 1;
        }
        // A handler may jump out of the last ones without leaving anything behind.
        let are_last = count < some.len();
        if are_last {
            PENDING.free(owner);
        }
        for place in &some[..count] {
            // SAFETY: `count` were written. memmove may copy these ranges, and no other thread writes
            // there any more.
            unsafe {
                let Copy { src, dst, len } = place.assume_init_read();
                original::copy(dst, src, len);
            }
        }
        if are_last {
            return CookieState::Over(());
        }
    }
}

fn verify(owner: &Entry) {
    let Some(verify) = VERIFY.get() else { return };
    for part in PENDING.parts(owner) {
        let Posted { dst, src, cut, .. } = part.slot.posted();
        // SAFETY: just copied, and the end is not reported yet.
        unsafe { verify(dst, src, cut.parts().0) };
    }
}

/// Returns the stretch of a part in which pieces have failed.
fn failure(part: &Entry) -> Option<Copy> {
    let failed = part.slot.failed();
    if failed.is_empty() {
        return None;
    }
    let copy = part.slot.posted();
    let (from, last) = (copy.cut.piece(failed.start), copy.cut.piece(failed.end - 1));
    let len = last.offset + last.len - from.offset;
    Some(Copy { src: copy.src + from.offset, dst: copy.dst + from.offset, len })
}
