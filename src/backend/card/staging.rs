//! Copies of the program between its own memory and a card, made by cudaMemcpy or a related function.
//! The driver takes memory that is not pinned through a small buffer, with one thread. Here the caller
//! and workers copy chunks of it to pinned buffers, from which the card fetches them:
//!
//! ```text
//! to the card                                      from the card
//! slot free? else wait for its event               all slots: card -> slot, event
//! memory -> slot, shared with workers              wait for the event of the next slot
//! slot -> card on the program's stream, event      slot -> memory, shared with workers
//! the next chunk                                   card -> slot for a later chunk, event
//! ```
//!
//! The program sees the behaviour of the driver's own way: order on its stream; a call that returns
//! when the source may change, or when all bytes are there. Calls for which anything might differ are
//! passed on to the program's own function: `CardCopy::of` has the list. The driver's functions are
//! called directly, so the last error of the CUDA runtime stays as it is. After an error of theirs the
//! whole copy is passed on, and the program's own function gives the answer.
//!
//! Unlike copies in the hook, these may allocate and wait: the functions they stand for do.

mod originals;
mod ring;

use super::driver::{Address, Context, CopyFunctions, CuResult, Device, INVALID_VALUE, Stream};
use crate::backend::copy_loop::CopyLoop;
use crate::backend::libc as original;
use crate::backend::threads::task::{Task, Work};
use crate::backend::threads::{self, Seen, ShareOptions};
use crate::backend::{ENGINES, Refused};
use crate::os::once::Once;
use crate::os::{process, sys};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub use originals::CardFunction;
use ring::{RING, Ring, SLOTS};

/// Smallest copy that is considered, where sizes are learned.
pub const CARD_FROM: usize = 8 << 20;

/// Bytes of one copy, or of smaller ones together, that pay for pinning buffers, which takes some 10 ms.
const START_BYTES: usize = 128 << 20;

/// Smallest chunk: below it, calls of the driver cost more than overlapping gains.
const LEAST_CHUNK: usize = 1 << 20;
/// Slots for memory that was never written: few and large, because a huge page is made by one worker alone.
const SLOTS_IF_FRESH: usize = 2;

/// The driver's names for the default streams.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// Attributes of an address.
const MEMORY_TYPE: i32 = 2;
const IS_MANAGED: i32 = 8;
const DEVICE_ORDINAL: i32 = 9;
/// Value of MEMORY_TYPE for memory of a card.
const ON_CARD: u32 = 2;

/// Values of cudaMemcpyKind; copies of other kinds are not staged.
const HOST_TO_DEVICE: u32 = 1;
const DEVICE_TO_HOST: u32 = 2;
const DEFAULT: u32 = 4;

/// Mode of stream capture in which no call of this thread disturbs a capture of another one.
const RELAXED: i32 = 2;

static FUNCTIONS: Once<Option<CopyFunctions>> = Once::new();
/// Bytes of copies so far, counted until they pay for pinning buffers.
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// Returns whether a copy of `len` bytes, with those before it, pays for pinning buffers.
pub fn pays(len: usize) -> bool {
    let before = SEEN.load(Ordering::Relaxed);
    if before < START_BYTES {
        SEEN.store(before.saturating_add(len), Ordering::Relaxed);
    }
    before.saturating_add(len) >= START_BYTES
}

fn functions() -> Option<&'static CopyFunctions> {
    if FUNCTIONS.get().is_none() {
        FUNCTIONS.set(CopyFunctions::of_loaded_library());
    }
    FUNCTIONS.get()?.as_ref()
}

/// Set in the child of a process that has used the driver: the child cannot use it.
static IS_PARENTS: AtomicBool = AtomicBool::new(false);

/// Forgets buffers in the child of a fork, if there are any.
pub fn forget_after_fork() {
    if FUNCTIONS.get().is_some() {
        IS_PARENTS.store(true, Ordering::Relaxed);
        ring::forget_after_fork();
    }
}

/// One call of the program, as it has made it.
pub struct CardCall {
    pub function: CardFunction,
    pub arguments: [usize; 8],
    pub site: usize,
    pub dst: usize,
    pub src: usize,
    pub len: usize,
    /// Direction: a cudaMemcpyKind.
    pub direction: u32,
    /// 0: the default stream.
    pub stream: usize,
}

impl CardCall {
    /// Calls the program's own function; the answer is its error code. Returns when the driver would
    /// for memory that is not pinned: that is what the program expects, even where we have registered
    /// its memory (ADMA_GOAL=cpu).
    ///
    /// # Safety
    /// The arguments are those of a call that the program is making.
    pub unsafe fn pass_on(&self) -> isize {
        let hold = [self.src, self.dst]
            .map(|at| ENGINES.iter().find_map(|engine| engine.hold(at, self.len)));
        // SAFETY: the program's own call, and its stream.
        unsafe {
            let answer = self.call_next();
            if answer == 0 && hold.iter().any(Option::is_some) {
                self.wait();
            }
            answer
        }
    }

    /// Waits for the stream, unless it is captured: then nothing has begun.
    unsafe fn wait(&self) {
        let Some(driver) = functions() else { return };
        let mut capturing = 0;
        // SAFETY: the program's stream, in the thread and context of its call.
        unsafe {
            if driver.is_capturing(self.stream(), &mut capturing).is_ok() && capturing == 0 {
                let _ = driver.stream_synchronize(self.stream());
            }
        }
    }

    unsafe fn call_next(&self) -> isize {
        type AnyFn =
            unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> i32;
        let [a, b, c, d, e, f, g, h] = self.arguments;
        let found = originals::find(self.function, self.site);
        // SAFETY: null is `None`; a function of the program's ignores arguments that it does not have.
        let next = unsafe { core::mem::transmute::<*mut c_void, Option<AnyFn>>(found) };
        match next {
            // SAFETY: the program's own call of that function, with its own arguments.
            Some(next) => unsafe { next(a, b, c, d, e, f, g, h) as isize },
            None => super::driver::NOT_INITIALIZED as isize,
        }
    }

    /// Returns the stream by a name that does not depend on the function.
    fn stream(&self) -> Stream {
        let default = if self.function.is_per_thread() { PER_THREAD } else { LEGACY };
        (if self.stream == 0 { default } else { self.stream }) as Stream
    }
}

/// Where a copy takes place: the context of the calling thread.
pub struct Here {
    pub context: Context,
    /// Id of the context, which no other context has or had.
    pub id: u64,
    pub device: Device,
}

/// A copy that can be staged.
pub struct CardCopy<'a> {
    pub call: &'a CardCall,
    driver: &'static CopyFunctions,
    here: Here,
    pub is_to_card: bool,
    /// Set if the card reaches the memory of the program, which we have registered: no CPU copies it.
    is_registered: bool,
}

impl<'a> CardCopy<'a> {
    /// Returns the copy, if staging it differs in nothing that the program may rely on. `None`: the
    /// child of a fork; no context, or none of version 12; a stream of another context, or one that is
    /// captured; memory of the program that is pinned; memory of the card that is managed, another
    /// card's, or not the card's at all.
    pub fn of(call: &'a CardCall) -> Option<Self> {
        if call.len == 0 || IS_PARENTS.load(Ordering::Relaxed) || !process::is_ours() {
            return None;
        }
        let driver = functions()?;
        let (mut context, mut of_stream) = (null_mut(), null_mut());
        let (mut id, mut device, mut capturing) = (0, 0, 0);
        // SAFETY: results are written where there is room for them.
        unsafe {
            driver.current(&mut context).ok()?;
            if context.is_null() {
                return None;
            }
            driver.is_capturing(call.stream(), &mut capturing).ok()?;
            driver.stream_context(call.stream(), &mut of_stream).ok()?;
            driver.context_id(context, &mut id).ok()?;
            driver.device(&mut device).ok()?;
        }
        if capturing != 0 || of_stream != context {
            return None;
        }
        let here = Here { context, id, device };
        let ends = |at: usize| [at, at.saturating_add(call.len - 1)].map(|at| at as Address);
        let is_card = |at: usize| ends(at).iter().all(|&at| is_on(driver, at, device));
        let is_pageable = |at: usize| ends(at).iter().all(|&at| is_unknown(driver, at));
        let is_to_card = match call.direction {
            HOST_TO_DEVICE => true,
            DEVICE_TO_HOST => false,
            DEFAULT => is_card(call.dst),
            _ => return None,
        };
        let (card, host) = if is_to_card { (call.dst, call.src) } else { (call.src, call.dst) };
        let is_registered = ENGINES.iter().any(|engine| engine.reaches(host, call.len));
        let is_touched = || ENGINES.iter().any(|engine| engine.touches(host, call.len));
        // To the program, memory that we have registered in part is still pageable.
        ((is_touched() || is_pageable(host)) && is_card(card)).then_some(Self {
            call,
            driver,
            here,
            is_to_card,
            is_registered,
        })
    }

    /// Returns the memory of the program.
    pub fn host(&self) -> usize {
        if self.is_to_card { self.call.src } else { self.call.dst }
    }

    /// Copies by way of pinned buffers. After a refusal nothing has been written.
    ///
    /// # Safety
    /// The arguments are those of a call that the program is making.
    pub unsafe fn stage(&self, how: &ShareOptions) -> Result<(isize, Seen), Refused> {
        if self.is_registered {
            // SAFETY: the program's own call.
            return Ok((unsafe { self.call.pass_on() }, Seen::default()));
        }
        let _mode = CaptureMode::relaxed(self.driver).ok_or(Refused::Busy)?;
        let mut ring = ring::take(self.driver, &self.here).ok_or(Refused::Busy)?;
        let mut seen = Seen::default();
        // SAFETY: the program lets its call read or write this memory until it returns, which is after us.
        let staged = unsafe {
            match self.is_to_card {
                true => self.send(&mut ring, how, &mut seen),
                false => self.fetch(&mut ring, how, &mut seen),
            }
        };
        ring.note_use(sys::nanoseconds());
        match staged {
            Ok(()) => Ok((0, seen)),
            Err(_) => {
                // SAFETY: the program's stream, which may still use a slot whose event was not recorded.
                let _ = unsafe { self.driver.stream_synchronize(self.call.stream()) };
                ring.settle(self.driver);
                drop(ring);
                // SAFETY: the program's own call, before it has returned; every byte may be copied again.
                Ok((unsafe { self.call.pass_on() }, seen))
            }
        }
    }

    /// # Safety
    /// As `stage`.
    unsafe fn send(
        &self,
        ring: &mut Ring,
        how: &ShareOptions,
        seen: &mut Seen,
    ) -> Result<(), CuResult> {
        let (driver, stream) = (self.driver, self.call.stream());
        // No CPU reads a slot again. The card fetched 16 MiB at 40 GB/s instead of 26.
        let how = &ShareOptions { copy_loop: CopyLoop::Stream, ..*how };
        // SAFETY: the program's memory and stream; a slot that no transfer uses.
        unsafe {
            if self.call.function.is_synchronous() {
                driver.stream_synchronize(stream)?; // what was before may write the source
            }
            let chunks = Chunks::new(self.call.len, SLOTS);
            for (number, (at, len)) in chunks.all() {
                let slot = number % SLOTS;
                ring.wait_for(driver, slot)?;
                let memory = ring.slot(slot, chunks.slot);
                copy(memory, self.call.src + at, len, how, seen);
                driver.host_to_card(
                    (self.call.dst + at) as Address,
                    memory as *const c_void,
                    len,
                    stream,
                )?;
                ring.record(driver, slot, stream)?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As `stage`.
    unsafe fn fetch(
        &self,
        ring: &mut Ring,
        how: &ShareOptions,
        seen: &mut Seen,
    ) -> Result<(), CuResult> {
        let (driver, stream) = (self.driver, self.call.stream());
        let slots = if how.fresh { SLOTS_IF_FRESH } else { SLOTS };
        let chunks = Chunks::new(self.call.len, slots);
        let begin = |ring: &mut Ring, number: usize| {
            let Some((at, len)) = chunks.get(number) else { return Ok(()) };
            let slot = number % slots;
            ring.wait_for(driver, slot)?;
            let memory = ring.slot(slot, chunks.slot) as *mut c_void;
            // SAFETY: the card's memory, and a slot that no transfer uses.
            unsafe { driver.card_to_host(memory, (self.call.src + at) as Address, len, stream)? };
            ring.record(driver, slot, stream)
        };
        for number in 0..slots {
            begin(ring, number)?;
        }
        for (number, (at, len)) in chunks.all() {
            let slot = number % slots;
            ring.wait_for(driver, slot)?;
            // SAFETY: the program's memory; the transfer to the slot has ended.
            unsafe { copy(self.call.dst + at, ring.slot(slot, chunks.slot), len, how, seen) };
            begin(ring, number + slots)?;
        }
        Ok(())
    }
}

/// How a copy is cut: each chunk takes a slot.
struct Chunks {
    whole: usize,
    chunk: usize,
    /// Bytes of a slot.
    slot: usize,
}

impl Chunks {
    fn new(whole: usize, slots: usize) -> Self {
        let (slot, each) = (RING / slots, (whole / slots).next_multiple_of(64 << 10));
        Self { whole, chunk: each.clamp(LEAST_CHUNK, slot), slot }
    }

    /// Returns offset and length of a chunk, if there is one with that number.
    fn get(&self, number: usize) -> Option<(usize, usize)> {
        let at = number * self.chunk;
        (at < self.whole).then(|| (at, self.chunk.min(self.whole - at)))
    }

    fn all(&self) -> impl Iterator<Item = (usize, (usize, usize))> {
        (0..).map_while(|number| Some((number, self.get(number)?)))
    }
}

/// Copies a chunk together with workers, or alone where they are busy.
///
/// # Safety
/// As memcpy.
unsafe fn copy(dst: usize, src: usize, len: usize, how: &ShareOptions, seen: &mut Seen) {
    // SAFETY: memcpy may copy these ranges, as the caller has ensured; after a refusal all is to be done.
    unsafe {
        match threads::share(&Task { work: Work::Copy, dst, src, len }, how) {
            Ok((_, more)) => seen.add(&more),
            Err(_) => original::copy(dst, src, len),
        }
    }
}

/// Returns whether an address is of memory that is this card's own.
fn is_on(driver: &CopyFunctions, address: Address, device: Device) -> bool {
    let (mut kind, mut managed, mut ordinal) = (0u32, 0u32, -1i32);
    // SAFETY: the driver writes as many bytes as each attribute has.
    unsafe {
        driver.pointer_attribute((&raw mut kind).cast(), MEMORY_TYPE, address).is_ok()
            && driver.pointer_attribute((&raw mut managed).cast(), IS_MANAGED, address).is_ok()
            && driver.pointer_attribute((&raw mut ordinal).cast(), DEVICE_ORDINAL, address).is_ok()
            && (kind, managed, ordinal) == (ON_CARD, 0, device)
    }
}

/// Returns whether the driver does not know an address: memory of the program that is not pinned.
fn is_unknown(driver: &CopyFunctions, address: Address) -> bool {
    let mut kind = 0u32;
    // SAFETY: the driver writes four bytes.
    let known = unsafe { driver.pointer_attribute((&raw mut kind).cast(), MEMORY_TYPE, address) };
    known == Err(INVALID_VALUE) || known.is_ok() && kind == 0
}

/// Mode of stream capture of this thread, put back on drop.
struct CaptureMode<'a>(&'a CopyFunctions, i32);

impl<'a> CaptureMode<'a> {
    fn relaxed(driver: &'a CopyFunctions) -> Option<Self> {
        let mut mode = RELAXED;
        // SAFETY: reads and writes `mode`.
        unsafe { driver.exchange_capture_mode(&mut mode).ok()? };
        Some(Self(driver, mode))
    }
}

impl Drop for CaptureMode<'_> {
    fn drop(&mut self) {
        // SAFETY: reads and writes our word.
        let _ = unsafe { self.0.exchange_capture_mode(&mut self.1) };
    }
}
