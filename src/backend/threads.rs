//! Software channels: one copy from posting to the last byte, by the caller and the crew.

use super::board::{End, Posted, Slot};
use super::crew::{self, BOARD, SPIN_TICKS, copy_piece, summon};
use super::kernel::{Copied, Kernel};
use super::manner::{Faults, Manner, Touch};
use super::{Refused, libc as original};
use crate::cpus;
use crate::plan::Cut;
use crate::sync::{Ordering, pause};
use crate::sys::{self, SignalsHeld};
use core::sync::atomic::AtomicU64;

/// How copies are to be carried.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Worker threads, besides the caller; at most `MOST_WORKERS`.
    pub workers: usize,
    pub kernel: Kernel,
    pub wait: Wait,
    /// Part of each copy the caller does alone; `None`: it claims pieces like a worker.
    pub share: Option<f32>,
    pub faults: Faults,
}

/// How the caller waits for pieces that others have begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Spin as long as a piece usually takes, then sleep.
    Auto,
    Spin,
    Yield,
    Sleep,
    Umwait,
}

/// Signals are held while a copy is under way: a handler that jumped out of it would leave
/// workers writing. This bounds how long they are held; a last chunk may be half as large
/// again.
const CHUNK: usize = 16 << 20;

/// Bytes copied by callers in copies that were shared.
static CALLER_BYTES: AtomicU64 = AtomicU64::new(0);
/// Copies in which the caller redid pieces because a page refused.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// In the child of a fork: nothing has been copied yet.
pub fn forget_after_fork() {
    crew::forget_after_fork();
    CALLER_BYTES.store(0, Ordering::Relaxed);
    FAULTS.store(0, Ordering::Relaxed);
}

/// Bytes of shared copies that callers did themselves.
pub fn caller_bytes() -> u64 {
    CALLER_BYTES.load(Ordering::Relaxed)
}

/// Copies in which a bad page was left to the caller.
pub fn faults() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// Counts bytes that a caller has copied itself in a copy shared with others.
pub fn note_caller_bytes(bytes: usize) {
    if bytes > 0 {
        CALLER_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Counts a copy in which a bad page was left to the caller.
pub fn note_fault() {
    FAULTS.fetch_add(1, Ordering::Relaxed);
}

/// Carries one copy of ranges that do not overlap. After a refusal nothing has been written.
///
/// # Safety
/// As memcpy; a bad page ends as it would in memcpy.
pub unsafe fn copy(dst: usize, src: usize, len: usize, how: &How) -> Result<(), Refused> {
    let mut at = 0;
    while at < len {
        // No small last chunk: the rest goes along when it is less than half of one.
        let chunk = if len - at < CHUNK + CHUNK / 2 { len - at } else { CHUNK };
        // SAFETY: part of the caller's ranges.
        match unsafe { carry(dst + at, src + at, chunk, how) } {
            Ok(()) => {}
            Err(refused) if at == 0 => return Err(refused),
            // SAFETY: part of the caller's ranges.
            Err(_) => unsafe { original::copy(dst + at, src + at, chunk) },
        }
        at += chunk;
    }
    Ok(())
}

/// One chunk, from posting to the last byte.
unsafe fn carry(dst: usize, src: usize, len: usize, how: &How) -> Result<(), Refused> {
    if crew::is_refused() {
        return Err(Refused::System);
    }
    if crew::user_has_changed() {
        return Err(Refused::Busy);
    }
    let mut held = SignalsHeld::all().ok_or(Refused::System)?;
    let manner = Manner::now(how.kernel, how.faults)?;
    if manner.touch != Touch::Nothing {
        // Faults come here, before anybody else has begun; signals must come too.
        drop(held);
        // SAFETY: the caller's ranges.
        unsafe { manner.touch.pages(dst, src, len) };
        held = SignalsHeld::all().ok_or(Refused::System)?;
    }
    let slot = BOARD.take().ok_or(Refused::Busy)?;
    // Workers are for CPUs that nobody else uses: with a caller on every other one there is
    // none left for a helper each.
    if BOARD.copies() > how.workers.div_ceil(2) {
        BOARD.leave(slot);
        return Err(Refused::Busy);
    }

    let alone = how.share.map_or(0, |share| (len as f64 * f64::from(share)) as usize).min(len);
    let cut = Cut::new(dst + alone, len - alone, how.workers + 1);
    if alone < len {
        let copy = Posted { dst: dst + alone, src: src + alone, cut, manner: manner.pack() };
        BOARD.post(slot, &copy);
        summon(1);
    }
    // SAFETY: the caller's ranges; bad pages are `Manner`'s business.
    let done_alone = alone == 0 || unsafe { manner.kernel.copy(dst, src, alone) } == Copied::Whole;
    let mut own = alone;
    if how.share.is_some() {
        leave_to_others(slot);
    }
    while let Some((copy, index, _)) = slot.claim(End::Front) {
        own += cut.piece(index).len;
        copy_piece(slot, &copy, index, manner.kernel);
    }
    wait(slot, how.wait);
    let failed = if alone < len { slot.failed() } else { 0..0 };
    BOARD.leave(slot);
    CALLER_BYTES.fetch_add(own as u64, Ordering::Relaxed);

    // Nobody writes any more and signals come again: whatever could not be copied faults
    // now, in the program's thread, as it would have without us.
    drop(held);
    if !done_alone || !failed.is_empty() {
        FAULTS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: parts of the caller's ranges.
    unsafe {
        if !done_alone {
            original::copy(dst, src, alone);
        }
        if !failed.is_empty() {
            let (from, last) = (cut.piece(failed.start), cut.piece(failed.end - 1));
            let (start, end) = (alone + from.offset, alone + last.offset + last.len);
            original::copy(dst + start, src + start, end - start);
        }
    }
    Ok(())
}

/// With a fixed share the rest is for the workers. When none of them has taken a piece for a
/// while, the caller takes the rest: no copy depends on another thread being scheduled.
fn leave_to_others(slot: &Slot) {
    let (mut since, mut left) = (sys::ticks(), slot.unclaimed());
    while left > 0 && sys::ticks().wrapping_sub(since) < 4 * SPIN_TICKS {
        let now = slot.unclaimed();
        if now != left {
            (since, left) = (sys::ticks(), now);
        }
        pause();
    }
}

fn wait(slot: &Slot, how: Wait) {
    match how {
        Wait::Sleep => {}
        Wait::Spin => spin_while_busy(slot, u64::MAX),
        Wait::Umwait if cpus::features().umwait => {
            while slot.is_busy() {
                // SAFETY: the CPU has it; a slot is always there.
                unsafe { sys::watch(&raw const *slot as usize, || slot.is_busy()) };
            }
        }
        Wait::Yield => {
            while slot.is_busy() {
                sys::yield_now();
            }
        }
        Wait::Auto | Wait::Umwait => spin_while_busy(slot, SPIN_TICKS),
    }
    if slot.is_busy() && !slot.sleep_until_idle() {
        crew::note_refusal();
        spin_while_busy(slot, u64::MAX);
    }
}

fn spin_while_busy(slot: &Slot, most: u64) {
    let begun = sys::ticks();
    while slot.is_busy() && sys::ticks().wrapping_sub(begun) < most {
        pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_many_threads_are_right_with_every_way_to_wait() {
        original::resolve();
        crew::settle_in();
        crew::start(3);
        let waits = [Wait::Auto, Wait::Spin, Wait::Yield, Wait::Sleep, Wait::Umwait];
        std::thread::scope(|scope| {
            for number in 0..6usize {
                scope.spawn(move || {
                    for round in 0..60 {
                        let len = 70_000 + round * 4999 + number;
                        let source: Vec<u8> =
                            (0..len).map(|i| (i * 31 + number + round) as u8).collect();
                        let mut target = vec![0u8; len + 2];
                        let how = How {
                            workers: 3,
                            kernel: Kernel::Ordinary,
                            wait: waits[round % waits.len()],
                            share: [None, Some(0.0), Some(0.5), Some(1.0)][round % 4],
                            faults: Faults::Strict,
                        };
                        let (to, from) = (target.as_mut_ptr() as usize + 1, source.as_ptr());
                        // SAFETY: inside both vectors.
                        let done = unsafe { copy(to, from as usize, len, &how) };
                        match done {
                            Ok(()) => assert_eq!(target[1..=len], source[..]),
                            Err(refused) => assert_eq!(refused, Refused::Busy),
                        }
                        assert_eq!((target[0], target[len + 1]), (0, 0));
                    }
                });
            }
        });
    }
}
