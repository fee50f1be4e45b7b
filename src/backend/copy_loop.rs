//! Loops that copy, fill or compare the bytes of a piece, survive a bad page and can be
//! interrupted.
//!
//! All loops lie in one range of code and keep one invariant: the register of the first argument holds the
//! next byte to write (or to compare), and every byte before it is written (or equal), at every instruction. So no state
//! is saved before a loop is entered, and changing the instruction pointer suffices to stop it:
//!
//! - A bad page raises SIGSEGV or SIGBUS. The handler (`signals`) asks `recover`, as the Linux
//!   kernel asks its exception table, and the loop ends with `PieceEnd::Failed`.
//! - A worker that was preempted may find, when it runs again, that its caller did not wait and
//!   has copied the piece itself. Its loops are a restartable sequence (rseq(2)): the kernel
//!   lets it go on at `interrupted`, and the next entry looks at the generation of the copy
//!   before it writes another byte. See `TakeBack`.
//!
//! Which loop is the default was decided by `bench/run loops`; see bench/README.md.

use crate::backend::piece_end::PieceEnd;
use crate::os::arch;
use crate::os::sync::AtomicU32;
use crate::os::sys;
use core::cell::UnsafeCell;
use core::num::NonZeroUsize;
use core::sync::atomic::AtomicU8;
use once_cell::race::OnceNonZeroUsize;
use zerocopy::FromZeros;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyLoop {
    /// Ordinary stores: `rep movsb` where the CPU is good at it, else vectors. See `ordinary_loop`.
    Ordinary,
    /// Streaming stores: the destination does not enter the cache.
    Stream,
}

/// State by which a worker's piece can be taken back: as long as `generation` holds `expected`, the
/// piece is the worker's. After `generation` has changed and `sys::interrupt_workers` has returned,
/// the worker writes nothing more.
#[repr(C)]
pub struct TakeBack {
    sequence: *const Sequence,
    generation: *const AtomicU32,
    expected: u32,
}

impl TakeBack {
    pub fn new(sequence: &Sequence, generation: &AtomicU32, expected: u32) -> Self {
        Self { sequence, generation, expected }
    }
}

/// A worker's restartable sequence: the kernel's struct rseq, which it writes to after every
/// preemption.
#[repr(C, align(32))]
#[derive(FromZeros)]
pub struct Sequence(UnsafeCell<[u64; 4]>);

// SAFETY: only the worker that has registered it, and the kernel on its behalf, touch it.
unsafe impl Sync for Sequence {}

impl Sequence {
    #[cfg(test)]
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; 4]))
    }

    /// Registers the sequence with the kernel, for this thread. False: not supported, or refused.
    pub fn register(&self, allowed: sys::NoFilter) -> bool {
        // The kernel expects all zeros except for the CPU number, which is reset to "not yet".
        // SAFETY: no other thread uses this sequence, and the kernel does not before it is registered.
        unsafe { *self.0.get() = [0; 4] };
        sys::register_rseq(self.0.get() as usize, size_of::<Self>(), SIGNATURE, allowed)
    }
}

/// Signature that the kernel expects before the abort address of a sequence, so that an attacker
/// cannot make it jump elsewhere.
const SIGNATURE: u32 = 0x5305_3053;

impl CopyLoop {
    /// Copies one piece that cannot be taken back.
    ///
    /// # Safety
    /// As `copy_until_taken_back`.
    pub unsafe fn copy(self, dst: usize, src: usize, len: usize) -> PieceEnd {
        // SAFETY: the caller promises that the ranges are apart, and that no reference covers `dst`.
        unsafe { self.copy_until_taken_back(dst, src, len, None) }
    }

    /// Copies one piece; with `take_back` in a worker whose piece can be taken back.
    ///
    /// # Safety
    /// Until the piece is done or taken back, the ranges do not overlap and no Rust reference covers `dst`.
    /// A bad page ends the copy with `Failed` if our handler stands in front of the program's;
    /// otherwise it ends as the program has decided.
    pub unsafe fn copy_until_taken_back(
        self,
        dst: usize,
        src: usize,
        len: usize,
        take_back: Option<&TakeBack>,
    ) -> PieceEnd {
        let which = match self {
            CopyLoop::Stream => arch::stream_loop(),
            CopyLoop::Ordinary => ordinary_loop(),
        };
        // SAFETY: the caller's ranges are apart, no reference covers `dst`, and the CPU has the loop's instructions.
        unsafe { run(dst, src, 1, len, which, take_back) }.0
    }

    /// Fills one piece with the bytes of `value`, which are all equal. Otherwise as
    /// `copy_until_taken_back`.
    ///
    /// # Safety
    /// As `copy_until_taken_back`.
    pub unsafe fn fill_until_taken_back(
        self,
        dst: usize,
        value: usize,
        len: usize,
        take_back: Option<&TakeBack>,
    ) -> PieceEnd {
        let which = arch::fill_loop(self == CopyLoop::Stream);
        // SAFETY: the caller promises that no reference covers `dst`; fill loops take the value for
        // the source, and read nothing.
        unsafe { run(dst, value, 0, len, which, take_back) }.0
    }
}

/// Returns the loop with ordinary stores; the first piece may measure which is the better one, in a few
/// microseconds.
fn ordinary_loop() -> *const u8 {
    static CHOSEN: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let choose = || {
        let chosen = arch::ordinary_loop(|loops| loses(ticks_of(loops)));
        NonZeroUsize::new(chosen as usize).unwrap_or(NonZeroUsize::MIN)
    };
    CHOSEN.get_or_init(choose).get() as *const u8
}

/// Returns whether the first of two loops takes far longer than the second: other CPUs differ by less.
fn loses([first, second]: [u64; 2]) -> bool {
    first > 2 * second
}

/// Measures two loops with about 2 KiB in the nearest cache and a destination that is not aligned: returns
/// the ticks of the fastest of several turns. Source and destination lie in one page, so that no load
/// waits for a store which only has the same offset in its page.
fn ticks_of(loops: [*const u8; 2]) -> [u64; 2] {
    const LEN: usize = 1984;
    #[repr(align(4096))]
    struct Page(UnsafeCell<[u8; 4096]>);
    // SAFETY: only the loops touch the page; threads that measure at once write zeros over zeros.
    unsafe impl Sync for Page {}
    static PAGE: Page = Page(UnsafeCell::new([0; 4096]));
    let page = PAGE.0.get() as usize;
    let mut best = [u64::MAX; 2];
    for _ in 0..5 {
        for (which, best) in loops.into_iter().zip(&mut best) {
            let begin = sys::ticks();
            // SAFETY: two ranges of the page that do not overlap; the caller passes loops whose
            // instructions the CPU has.
            unsafe { run(page + 2048 + 15, page, 1, LEN, which, None) };
            *best = (*best).min(sys::ticks().wrapping_sub(begin));
        }
    }
    best
}

/// Compares two ranges. Also returns how many bytes are equal; a difference or a bad page that has
/// stopped it lies right after them.
///
/// # Safety
/// As `CopyLoop::copy_until_taken_back`, except that nothing is written: ranges may overlap.
pub unsafe fn compare_until_taken_back(
    a: usize,
    b: usize,
    len: usize,
    take_back: Option<&TakeBack>,
) -> (PieceEnd, usize) {
    let which = arch::compare_loop();
    // SAFETY: these loops only read the caller's ranges, with instructions that the CPU has.
    unsafe { run(a, b, 1, len, which, take_back) }
}

/// Writes the end of a worker's piece to `place`, unless it was taken back.
pub fn commit(place: *const AtomicU8, end: PieceEnd, take_back: &TakeBack) {
    // SAFETY: `place` is a byte of the queue, which is never freed.
    while unsafe { adma_commit(place, end as u8, take_back) } == INTERRUPTED {}
}

/// Runs one of the loops below to its end, however often it is interrupted; returns how it has
/// ended, and after how many bytes. The source argument advances by `pace` with each byte.
///
/// # Safety
/// The ranges are as the loop at `which` demands, and the CPU has its instructions.
unsafe fn run(
    dst: usize,
    src: usize,
    pace: usize,
    len: usize,
    which: *const u8,
    take_back: Option<&TakeBack>,
) -> (PieceEnd, usize) {
    let take_back = take_back.map_or(core::ptr::null(), |t| t);
    let mut at = 0;
    loop {
        let src = src + pace * at;
        // SAFETY: the rest of the caller's ranges, which are as this loop demands.
        let end = unsafe { adma_copy_loop(dst + at, src, len - at, which, take_back) };
        at += end.copied;
        if let Some(end) = PieceEnd::of(end.why) {
            return (end, at);
        } // interrupted: go on if it is still ours
    }
}

/// Returns the address to resume at, if `ip` lies in a copy loop that has met a bad page.
pub fn recover(ip: usize) -> Option<usize> {
    let [begin, end, interrupted, bad_page] = [
        &raw const adma_loops_begin,
        &raw const adma_loops_end,
        // At a bad page in a worker's sequence, the kernel aborts the sequence, and only then calls the
        // handler: so the handler finds this address.
        &raw const adma_loop_interrupted,
        &raw const adma_loop_bad_page,
    ]
    .map(|address| address as usize);
    ((begin..end).contains(&ip) || ip == interrupted).then_some(bad_page)
}

/// Number that the loops return where the kernel has interrupted their sequence; it is no `PieceEnd`.
const INTERRUPTED: usize = 5;
const _: () = assert!(PieceEnd::of(INTERRUPTED).is_none());

#[repr(C)]
struct LoopEnd {
    copied: usize,
    /// `INTERRUPTED`, or a `PieceEnd`.
    why: usize,
}

unsafe extern "C" {
    /// Copies by the loop at `which`.
    fn adma_copy_loop(
        dst: usize,
        src: usize,
        len: usize,
        which: *const u8,
        take_back: *const TakeBack,
    ) -> LoopEnd;
    /// Writes a byte and returns 0, if the piece was not taken back; otherwise returns a number as
    /// in `LoopEnd::why`.
    fn adma_commit(place: *const AtomicU8, end: u8, take_back: *const TakeBack) -> usize;
    static adma_loops_begin: u8;
    static adma_loops_end: u8;
    static adma_loop_interrupted: u8;
    static adma_loop_bad_page: u8;
}

arch::copy_loops!(
    whole = const PieceEnd::Done as usize,
    bad_page = const PieceEnd::Failed as usize,
    interrupted = const INTERRUPTED,
    taken_back = const PieceEnd::TakenBack as usize,
    differs = const PieceEnd::Differs as usize,
    signature = const SIGNATURE,
);

#[cfg(test)]
#[path = "copy_loop_tests.rs"]
mod tests;
