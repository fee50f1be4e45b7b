//! Copies that go on while their caller does something else: started here, carried by the
//! workers or by the helper's channels, ended by whoever finishes last.
//!
//! The caller works too, but only when it waits: then it claims pieces like a worker. Where
//! nobody can be had to carry a copy it is done before `begin` returns.
//!
//! What is under way belongs to the caller's promise: source, destination and word stay as
//! they are until the end is told. Faults come as from memcpy: at once, or in the thread
//! that asks for the end (see `report`).

pub use super::cookies::{Cookie, Notice};
use super::cookies::{CookieState, Ended, Entry};
use crate::backend::copy_loop::{Copied, CopyLoop};
use crate::backend::gpu::GPU;
use crate::backend::mode::{BY_HELPER, Mode};
use crate::backend::threads::queue::{End, Posted};
use crate::backend::threads::worker;
use crate::backend::threads::workers::{self, PENDING, QUEUE, SPIN_TICKS};
use crate::backend::threads::{self, Wait};
use crate::backend::{Refused, ioat, libc as original, may_start, signals};
use crate::os::cpus;
use crate::os::signal_mask::SignalsHeld;
use crate::os::sync::{Ordering, Woken, fetch_to_change, pause};
use crate::os::{process, sys};
use crate::plan::{self, Cut, PAGE};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

/// One copy, as the caller gives it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    pub src: usize,
    pub dst: usize,
    pub len: usize,
}

/// Who carries copies.
#[derive(Clone, Copy)]
pub enum By {
    /// So many workers; copies from `stream_from` bytes up by streaming stores.
    Workers {
        workers: usize,
        copy_loop: CopyLoop,
        stream_from: usize,
    },
    Helper(&'static ioat::Engine, ioat::Options, CopyLoop),
}

impl By {
    /// Copies below this are over sooner than they could be handed on.
    const fn floor(&self) -> usize {
        match self {
            By::Workers { .. } => FLOOR,
            By::Helper(..) => 4 * FLOOR,
        }
    }

    fn copy_loop(&self, len: usize) -> CopyLoop {
        match *self {
            By::Workers { stream_from, .. } if len >= stream_from => CopyLoop::Stream,
            By::Workers { copy_loop, .. } | By::Helper(_, _, copy_loop) => copy_loop,
        }
    }
}

pub const FLOOR: usize = 16 << 10;

/// What is wanted besides the copies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    pub notice: Option<Notice>,
    /// Nobody will ask for the end.
    pub detached: bool,
}

/// What has become of a beginning.
pub struct Begun {
    pub cookie: Cookie,
    /// Bytes that somebody else carries.
    pub carried: usize,
    pub refused: Option<Refused>,
}

/// The caller holds signals while it works on pieces: a handler that waited for the same
/// copy would wait for ever. So many bytes at most in one go.
const CHUNK: usize = 16 << 20;

/// How long a worker looks at one request of the helper before it looks at the others.
const WATCH_NANOS: u64 = 1_000_000;

/// Called for every end, if set; by any thread of ours.
static AT_END: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
/// Called with each part of a cookie that is told of, if set: to compare it.
static VERIFY: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
/// What the descriptor for ends stood for: device and inode.
static POLL_FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// What is this process's own. It lies in a page that the kernel wipes in every child, also in
/// one that runs no handlers; null until there is something to know.
static OURS: AtomicPtr<Ours> = AtomicPtr::new(core::ptr::null_mut());
/// Where there is no such page.
static PLAIN: Ours = Ours { tag: AtomicU32::new(0), poll: AtomicI32::new(0) };

struct Ours {
    /// Which process the cookies belong to; 0: there are none.
    tag: AtomicU32,
    /// The descriptor that is readable when something has ended, plus one; 0: nobody has asked
    /// for one.
    poll: AtomicI32,
}

/// At start-up, and again in the child of a fork.
pub fn settle_in() {
    worker::attend_with(attend);
}

/// In the child of a fork: cookies and descriptor are the parent's.
pub fn forget_after_fork() {
    PLAIN.tag.store(0, Ordering::Relaxed);
    PLAIN.poll.store(0, Ordering::Relaxed);
    PENDING.forget_everything();
    settle_in();
}

/// Has `record` called with bytes and starting time of what others have carried.
pub fn record_with(record: fn(usize, u64)) {
    AT_END.store((record as *const ()).cast_mut(), Ordering::Release);
}

/// Has `verify` called with destination, source and length of what others have carried, when
/// its end is told by a call: afterwards the program may change both sides.
pub fn verify_with(verify: unsafe fn(usize, usize, usize)) {
    VERIFY.store((verify as *const ()).cast_mut(), Ordering::Release);
}

/// A copy will be started soon.
pub fn expect() {
    fetch_to_change(OURS.load(Ordering::Relaxed) as usize);
    process::expect();
    PENDING.expect();
    QUEUE.expect();
}

pub fn pack(cookie: Cookie) -> i64 {
    let word = &ours_or_new().tag;
    if word.load(Ordering::Relaxed) == 0 {
        word.store(sys::getpid() as u32, Ordering::Relaxed);
    }
    cookie.pack(word.load(Ordering::Relaxed))
}

pub fn unpack(cookie: i64) -> Option<Cookie> {
    let tag = ours()?.tag.load(Ordering::Relaxed);
    if tag == 0 { None } else { Cookie::unpack(cookie, tag) }
}

fn ours() -> Option<&'static Ours> {
    // SAFETY: null, or what `make_ours` has put there, which stays.
    unsafe { OURS.load(Ordering::Acquire).as_ref() }
}

fn ours_or_new() -> &'static Ours {
    ours().unwrap_or_else(make_ours)
}

#[cold]
fn make_ours() -> &'static Ours {
    // A filter may kill for a call it does not know.
    let filtered = process::is_filtered() || may_start() == Err(Refused::System);
    let mut page: *mut Ours = core::ptr::null_mut();
    if !filtered {
        page = sys::page_wiped_on_fork().cast();
    }
    if page.is_null() {
        page = (&raw const PLAIN).cast_mut();
    }
    // Another thread may be first; a page is lost then.
    let null = core::ptr::null_mut();
    let made = OURS.compare_exchange(null, page, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: `PLAIN`, or a page of zeros that is never unmapped.
    unsafe { &*made.map_or_else(|there| there, |_| page) }
}

/// Starts copies that end together. `by`: nobody, and they are done at once. `None`: the
/// table is full and nothing is under way.
///
/// # Safety
/// As memmove of each, until the end is told; the word of a notice can be written until it is.
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
    // So many copies can be handed on: the first ones that suit.
    let room = if copies.len() > 1 { PENDING.room() } else { 1 };
    let mut left = room;
    // Whatever faults from here on may jump, so there is nothing in the table yet.
    for copy in copies {
        let &Copy { src, dst, len } = copy;
        match by {
            Some(by) if left > 0 && suits(copy, &by) => {
                left -= 1;
                // There will be no later call in which a fault could come.
                if handled {
                    // SAFETY: the caller's ranges.
                    unsafe { touch_pages(dst, src, len) };
                }
            }
            // SAFETY: the caller's promise.
            _ => unsafe { original::copy(dst, src, len) },
        }
    }

    let owner = PENDING.take()?;
    PENDING.start(owner, wanted.notice, wanted.detached, started);
    let mut begun = Begun { cookie: PENDING.cookie(owner), carried: 0, refused };
    if let Some(first) = by {
        let mut parts = Parts { owner, own: true, called: false, wanted };
        for copy in copies.iter().filter(|copy| suits(copy, &first)).take(room) {
            let Some(who) = by else {
                // SAFETY: the caller's promise.
                unsafe { parts.copy_at_once(copy, Mode::now(first.copy_loop(copy.len))) };
                continue;
            };
            // SAFETY: the caller's promise.
            let (carried, refused) = unsafe { parts.hand_on(copy, &who) };
            begun.carried += carried;
            begun.refused = refused.or(begun.refused);
            by = by.filter(|_| refused.is_none_or(|why| why == Refused::Busy));
        }
        if parts.called && !workers::somebody_works() {
            see_to_the_end(owner);
        }
    }
    if let Some(ended) = PENDING.close(owner) {
        tell(ended);
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

/// Whether this process may hand copies on now.
fn may_hand_on_to(by: &By, now: u64) -> Result<(), Refused> {
    if workers::is_refused() {
        return Err(Refused::System);
    }
    let ours = match by {
        By::Workers { .. } => process::shares_our_memory(),
        // The helper knows processes, not memory.
        By::Helper(..) => process::is_ours(),
    };
    if !ours {
        return Err(Refused::NotOurs);
    }
    if workers::user_was_seen_to_change(now) {
        return Err(Refused::Busy);
    }
    Ok(())
}

/// Who adds parts to an owner.
struct Parts {
    owner: &'static Entry,
    /// The owner's own entry is still to be had for a part.
    own: bool,
    /// Workers have been called.
    called: bool,
    wanted: Wanted,
}

impl Parts {
    fn entry(&mut self) -> Option<&'static Entry> {
        if core::mem::take(&mut self.own) { Some(self.owner) } else { PENDING.take() }
    }

    /// Hands one copy on, in as many parts as it takes; what nobody takes is done at once.
    /// Answers how many bytes are carried, and why the others are not.
    unsafe fn hand_on(&mut self, copy: &Copy, who: &By) -> (usize, Option<Refused>) {
        let &Copy { src, dst, len } = copy;
        let mode = Mode::now(who.copy_loop(len));
        match *who {
            // SAFETY: the caller's promise.
            By::Workers { .. } if unsafe { self.hand_to_card(copy, mode) } => (len, None),
            By::Workers { workers, .. } => {
                let owner = self.owner;
                let Some(part) = self.entry() else {
                    // SAFETY: the caller's promise.
                    unsafe { self.copy_at_once(copy, mode) };
                    return (0, Some(Refused::Busy));
                };
                let cut = Cut::new(dst, len, workers + 1);
                let posted = Posted { dst, src, cut, mode: mode.pack() };
                PENDING.add(owner, part, &posted, true);
                QUEUE.ring();
                self.call();
                (len, None)
            }
            // SAFETY: the caller's promise.
            By::Helper(engine, how, _) => unsafe { self.submit(engine, &how, copy, mode) },
        }
    }

    /// Whether a graphics card has taken a copy.
    unsafe fn hand_to_card(&mut self, copy: &Copy, mode: Mode) -> bool {
        let &Copy { src, dst, len } = copy;
        if !GPU.takes(dst, src, len) {
            return false;
        }
        let had = self.own;
        let Some(part) = self.entry() else { return false };
        // SAFETY: the caller's promise, which lasts until the end is told.
        if unsafe { GPU.begin(&part.request, dst, src, len) }.is_err() {
            if had {
                self.own = true;
            } else {
                PENDING.give_back(part);
            }
            return false;
        }
        let posted =
            Posted { dst, src, cut: Cut::from_parts(len, 0, len), mode: mode.pack() | BY_HELPER };
        let watched = self.wanted.detached || poll().is_some();
        PENDING.add(self.owner, part, &posted, watched);
        if watched {
            QUEUE.ring();
            self.call();
        }
        true
    }

    /// Copies what nobody takes. It must not fault while other parts are under way: a handler
    /// might jump, and nobody would know of them. So it is a part as well, and a page of it
    /// that is bad faults when the end is told.
    unsafe fn copy_at_once(&mut self, copy: &Copy, mode: Mode) {
        let &Copy { src, dst, len } = copy;
        let Some(part) = self.entry() else {
            // Others have just taken what there was room for.
            see_to_the_end(self.owner);
            // SAFETY: the caller's promise.
            return unsafe { original::copy(dst, src, len) };
        };
        let cut = Cut::new(dst, len, 1);
        let posted = Posted { dst, src, cut, mode: mode.pack() };
        PENDING.add(self.owner, part, &posted, false);
        self.owner.take_off(len);
        while let Some((copy, index)) = PENDING.claim(part, End::Front) {
            run_piece(part, &copy, index);
        }
    }

    /// Once is enough: every worker that comes calls others.
    fn call(&mut self) {
        if !core::mem::replace(&mut self.called, true) {
            worker::call_for_pending();
        }
    }

    /// One request after the other, as large as they may be.
    unsafe fn submit(
        &mut self,
        engine: &'static ioat::Engine,
        how: &ioat::Options,
        copy: &Copy,
        mode: Mode,
    ) -> (usize, Option<Refused>) {
        let (owner, mut at, mut carried, mut refused) = (self.owner, 0, 0, None);
        while at < copy.len {
            let len = engine.part_of(copy.len - at);
            let (dst, src) = (copy.dst + at, copy.src + at);
            let mut begun = Err(Refused::Busy);
            let had = self.own;
            if let Some(part) = self.entry() {
                part.request.engine.store(&raw const *engine as usize, Ordering::Relaxed);
                // SAFETY: part of the caller's ranges.
                begun = unsafe { engine.begin(&part.request, dst, src, len, how) };
                match begun {
                    Ok(Some(body)) => {
                        let cut = Cut::from_parts(body.len, 0, body.len);
                        let (dst, src) = (dst + body.offset, src + body.offset);
                        let mode = mode.pack() | BY_HELPER;
                        let watched = self.wanted.detached || poll().is_some();
                        let posted = Posted { dst, src, cut, mode };
                        PENDING.add(owner, part, &posted, watched);
                        carried += body.len;
                        if watched {
                            QUEUE.ring();
                            self.call();
                        }
                    }
                    _ if had => self.own = true,
                    _ => PENDING.give_back(part),
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

/// What a worker does with a part that it has found.
fn attend(part: &'static Entry, bytes: &AtomicU64) {
    if part.is_carried_by_helper() && !is_over(part, WATCH_NANOS) {
        return;
    }
    if let Some((copy, index)) = PENDING.claim(part, End::Back) {
        Mode::unpack(copy.mode).adopt_rights();
        if copy.mode & BY_HELPER == 0 {
            bytes.fetch_add(copy.cut.piece(index).len as u64, Ordering::Relaxed);
        }
        run_piece(part, &copy, index);
    }
}

/// Claims pieces of an owner's parts until there are none but requests of the helper that are
/// not over. Answers whether there were any bytes to copy.
fn help(owner: &Entry) -> bool {
    let (mut held, mut own, mut total) = (None, 0, 0);
    for part in PENDING.parts(owner) {
        while part.slot.unclaimed() > 0 {
            if part.is_carried_by_helper() && !is_over(part, 0) {
                break;
            }
            if held.is_none() {
                held = SignalsHeld::all_but_faults();
            }
            let Some((copy, index)) = PENDING.claim(part, End::Front) else { break };
            if copy.mode & BY_HELPER == 0 {
                own += copy.cut.piece(index).len;
            }
            run_piece(part, &copy, index);
            if own >= CHUNK {
                total += core::mem::take(&mut own);
                held = None; // what is pending comes now
            }
        }
    }
    threads::note_caller_bytes(total + own);
    total + own > 0
}

/// A part of an owner that the helper carries and nobody has claimed.
fn request_left(owner: &Entry) -> Option<&'static Entry> {
    let is_left = |part: &&Entry| part.is_carried_by_helper() && part.slot.unclaimed() > 0;
    PENDING.parts(owner).find(is_left)
}

/// Waits for all parts of an owner that the caller is still adding to.
fn see_to_the_end(owner: &Entry) {
    loop {
        help(owner);
        if let Some(part) = request_left(owner) {
            is_over(part, WATCH_NANOS);
        } else if PENDING.parts_are_over(owner) {
            return;
        } else {
            sys::yield_now(); // somebody has begun the last ones
        }
    }
}

/// Copies a claimed piece, or sees a claimed request to its end.
fn run_piece(part: &Entry, copy: &Posted, index: usize) {
    let piece = copy.cut.piece(index);
    let (dst, src) = (copy.dst + piece.offset, copy.src + piece.offset);
    let copy_loop = Mode::unpack(copy.mode).copy_loop;
    let copy_part = |from: usize, to: usize| {
        // SAFETY: the caller keeps its ranges as they are until it is told of the end, which
        // is not before this piece is finished.
        part.is_guarded(|| signals::stand_in_front().is_ok())
            && unsafe { copy_loop.copy(dst + from, src + from, to - from) } == Copied::Whole
    };
    let mut done = true;
    if copy.mode & BY_HELPER != 0 {
        while !is_over(part, WATCH_NANOS) {}
        if GPU.owns(&part.request) {
            GPU.left_over(&part.request, piece.len, |from, to| done &= copy_part(from, to));
        } else if let Some(engine) = helper(part) {
            engine.left_over(&part.request, piece.len, |from, to| done &= copy_part(from, to));
        }
    } else {
        done = copy_part(0, piece.len);
    }
    if !done && PENDING.owner(part).is_some_and(Entry::is_detached) {
        // A bad page ends the process: see `begin`. Blocked, so that no handler sees it: this is
        // not a thread of the program's.
        let _held = SignalsHeld::all();
        // SAFETY: as above.
        unsafe { original::copy(dst, src, piece.len) };
        done = true;
    }
    if let Some(ended) = PENDING.finish(part, index, done) {
        tell(ended);
    }
}

/// Whose request a part is.
fn helper(part: &Entry) -> Option<&'static ioat::Engine> {
    let engine = part.request.engine.load(Ordering::Relaxed) as *const ioat::Engine;
    // SAFETY: null, or what `submit` has put there, which lives for ever.
    unsafe { engine.as_ref() }
}

/// Whether the helper's request for a part is over; waits a little for it.
fn is_over(part: &Entry, nanos: u64) -> bool {
    if GPU.owns(&part.request) {
        return GPU.is_over(&part.request, nanos);
    }
    helper(part).is_none_or(|engine| engine.is_over(&part.request, nanos))
}

/// Somebody's copies have ended.
fn tell(ended: Ended) {
    let record = AT_END.load(Ordering::Acquire);
    if !record.is_null() && ended.bytes > 0 {
        // SAFETY: what `record_with` has put there.
        let record = unsafe { core::mem::transmute::<*mut (), fn(usize, u64)>(record) };
        record(ended.bytes, ended.begun);
    }
    if let Some(fd) = poll().filter(|&fd| is_our_poll(fd)) {
        sys::raise_event(fd);
    }
}

/// The descriptor for ends, if somebody has asked for one.
fn poll() -> Option<i32> {
    ours().map(|ours| ours.poll.load(Ordering::Acquire)).filter(|&stored| stored > 0).map(|n| n - 1)
}

/// The program may have closed the number, and another file may have it now.
fn is_our_poll(fd: i32) -> bool {
    let [device, inode] = POLL_FILE.each_ref().map(|half| half.load(Ordering::Relaxed));
    sys::file_of(fd) == Some((device, inode))
}

/// The descriptor that becomes readable when something has ended, or an errno.
pub fn poll_fd() -> Result<i32, i32> {
    let stored = &ours_or_new().poll;
    let before = stored.load(Ordering::Acquire);
    if before > 0 && is_our_poll(before - 1) {
        return Ok(before - 1);
    }
    let answer = sys::new_event();
    if answer < 0 {
        return Err(-answer as i32);
    }
    let new = answer as i32;
    if let Some((device, inode)) = sys::file_of(new) {
        POLL_FILE[0].store(device, Ordering::Relaxed);
        POLL_FILE[1].store(inode, Ordering::Relaxed);
    }
    match stored.compare_exchange(before, new + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(new),
        Err(other) => {
            sys::close(new);
            Ok(other - 1)
        }
    }
}

/// What a look at a cookie shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    Over,
    UnderWay,
    Unknown,
}

/// Looks without waiting; the cookie is retired when it is over.
///
/// # Safety
/// As memmove of its copies.
pub unsafe fn check(cookie: Cookie) -> CopyStatus {
    let mut look = PENDING.look(cookie);
    if let CookieState::UnderWay(owner) = look
        && owner.needs_help()
    {
        settle(owner);
        look = PENDING.look(cookie);
    }
    match look {
        CookieState::Unknown => CopyStatus::Unknown,
        CookieState::UnderWay(_) => CopyStatus::UnderWay,
        // SAFETY: the caller's promise.
        CookieState::Over(owner) => unsafe { report(owner, cookie) },
    }
}

/// Finishes those requests of the helper that are over.
fn settle(owner: &Entry) {
    for part in PENDING.parts(owner) {
        if part.slot.unclaimed() == 0 || !part.is_carried_by_helper() || !is_over(part, 0) {
            continue;
        }
        let _held = SignalsHeld::all_but_faults();
        if let Some((copy, index)) = PENDING.claim(part, End::Front) {
            run_piece(part, &copy, index);
        }
    }
}

/// Waits; the cookie is retired then.
///
/// # Safety
/// As memmove of its copies.
pub unsafe fn wait(cookie: Cookie, how: Wait) -> CopyStatus {
    let mut since = sys::ticks();
    loop {
        let owner = match PENDING.look(cookie) {
            CookieState::Unknown => return CopyStatus::Unknown,
            // SAFETY: the caller's promise.
            CookieState::Over(owner) => return unsafe { report(owner, cookie) },
            CookieState::UnderWay(owner) => owner,
        };
        if help(owner) {
            since = sys::ticks();
            continue;
        }
        // Nothing is claimed meanwhile, so signals may come.
        if owner.needs_help()
            && let Some(part) = request_left(owner)
            && !ioat::is_asked_for(&part.request)
        {
            is_over(part, WATCH_NANOS);
            continue;
        }
        let waited = sys::ticks().wrapping_sub(since);
        match how {
            Wait::Spin => pause(),
            Wait::Yield => sys::yield_now(),
            Wait::Umwait if cpus::features().umwait => {
                let under_way = || matches!(PENDING.look(cookie), CookieState::UnderWay(_));
                // SAFETY: the CPU has it; an entry is always there.
                unsafe { sys::watch(owner.line(), under_way) };
            }
            Wait::Auto | Wait::Umwait if waited < SPIN_TICKS => pause(),
            _ => {
                // Whoever waits for the helper may only have looked at it.
                let most = if owner.needs_help() { WATCH_NANOS } else { 0 };
                if PENDING.sleep(owner, cookie, most) == Woken::Refused {
                    workers::note_refusal();
                    sys::yield_now();
                }
            }
        }
    }
}

/// Tells of the end, once. Pieces that could not be copied are copied now, in the program's
/// thread, where a bad page faults as it would have in memcpy.
unsafe fn report(owner: &Entry, cookie: Cookie) -> CopyStatus {
    if !PENDING.retire(cookie) {
        return CopyStatus::Unknown;
    }
    if !PENDING.has_failed(owner) {
        verify(owner);
        PENDING.free(owner);
        return CopyStatus::Over;
    }
    threads::note_fault();
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
            // SAFETY: so many were written. The caller's promise; nobody else writes there any
            // more.
            unsafe {
                let Copy { src, dst, len } = place.assume_init_read();
                original::copy(dst, src, len);
            }
        }
        if are_last {
            return CopyStatus::Over;
        }
    }
}

fn verify(owner: &Entry) {
    let verify = VERIFY.load(Ordering::Acquire);
    if verify.is_null() {
        return;
    }
    // SAFETY: what `verify_with` has put there.
    let verify = unsafe { core::mem::transmute::<*mut (), unsafe fn(usize, usize, usize)>(verify) };
    for part in PENDING.parts(owner) {
        let Posted { dst, src, cut, .. } = part.slot.posted();
        // SAFETY: just copied, and the caller was not told yet.
        unsafe { verify(dst, src, cut.parts().0) };
    }
}

/// The stretch of a part in which pieces have failed.
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

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
