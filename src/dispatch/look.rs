//! A look at a copy: libc copies a few bytes of it, timed. That shows whether they were in a cache of
//! the caller's CPU, and what libc would take for all.
//!
//! The place is random. The first bytes would mislead: the caller of shared copies does them itself
//! each time, and has them in its cache while the rest is in those of other CPUs.

use crate::backend::libc as original;
use crate::backend::threads::Cost;
use crate::backend::threads::task::{Task, Work};
use crate::learn::CACHE;
use crate::os::{arch, sys};
use crate::plan::{PAGE, overlaps};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes of a look, which is short beside the smallest copy that is shared; twice as many from `LONG_FROM`
/// up, since short looks vary more.
const SHORT: usize = 2 * PAGE;
const LONG_FROM: usize = 2 << 20;

/// Copies that measure how long `SHORT` bytes take in the cache: the quickest counts.
const TRIES: usize = 16;
/// Most cycles that they are taken to need: 280 to 300 on the cores that were measured. Where another program
/// has the other half of the core they take twice as many, and four times as many after a pause in which the
/// core has switched wide registers off, while memory is as quick as ever. It would seem to be near.
const MOST_CYCLES: u64 = 384;
/// Looks of a process after which the speed is known.
const MEASURED: u32 = 1 << 10;
static LOOKS: AtomicU32 = AtomicU32::new(0);

/// Ticks for `SHORT` bytes in the L1 cache; 0: not measured yet.
static CACHE_TICKS: AtomicU64 = AtomicU64::new(0);

/// Part of a copy that is done, and the time that it took.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    at: usize,
    len: usize,
    ticks: u64,
}

impl Look {
    /// Returns how far away source and destination were: the time in multiples of that in the cache, in
    /// parts of `learn::CACHE`.
    pub fn distance(self) -> u32 {
        let ticks = self.ticks * SHORT as u64 / self.len as u64;
        (ticks * u64::from(CACHE) / cache_ticks().max(1)).min(u32::MAX.into()) as u32
    }

    /// Returns the ticks that libc would take for `len` bytes.
    pub fn ticks_for(self, len: usize) -> u64 {
        self.ticks * (len / self.len) as u64
    }

    pub fn cost(self) -> Cost {
        Cost { bytes: self.len, ticks: self.ticks }
    }
}

/// Returns the ticks that `SHORT` bytes take in the cache; 0: not measured yet.
pub fn cache_ticks() -> u64 {
    CACHE_TICKS.load(Relaxed)
}

/// Copies a few bytes of a task at a place that depends on `now`. `None`: it is no copy, its ranges
/// overlap, or the machine's speed is not known.
///
/// # Safety
/// memmove may copy the task's ranges.
#[inline]
pub unsafe fn look(task: &Task, now: u64) -> Option<Look> {
    let Task { work, dst, src, len: whole } = *task;
    let len = if whole < LONG_FROM { SHORT } else { 2 * SHORT };
    if work != Work::Copy || cache_ticks() == 0 || whole < 2 * len || overlaps(dst, src, whole) {
        return None;
    }
    count();
    let places = (whole / len) as u64;
    let random = now.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let at = ((random * places) >> 32) as usize * len;
    // SAFETY: the caller promises that memmove may copy ranges that include this part.
    Some(Look { at, len, ticks: unsafe { timed(dst + at, src + at, len) } })
}

/// Copies by libc the bytes that a look has left.
///
/// # Safety
/// memcpy may copy the task's ranges.
pub unsafe fn finish(task: &Task, look: Look) {
    let after = look.at + look.len;
    // SAFETY: the caller promises that memcpy may copy ranges that include these parts.
    unsafe {
        if look.at > 0 {
            task.part(0, look.at).call_libc();
        }
        if after < task.len {
            task.part(after, task.len - after).call_libc();
        }
    }
}

/// Returns the ticks that something takes.
#[inline(always)]
fn ticks_of(run: impl Fn()) -> u64 {
    let begun = sys::ticks();
    run();
    arch::end_loads(); // otherwise the clock is read before the last loads have ended
    sys::ticks().wrapping_sub(begun)
}

/// Copies `len` bytes; returns the ticks.
///
/// # Safety
/// As memcpy.
#[inline]
unsafe fn timed(dst: usize, src: usize, len: usize) -> u64 {
    // SAFETY: memcpy may copy these ranges.
    ticks_of(|| unsafe { original::copy(dst, src, len) })
}

/// Measures the speed of this machine's cache, in less than 10 us. The quickest time counts: a CPU that was idle
/// runs slowly at first. Threads that measure at once disturb each other's times, not their results.
pub fn measure_speed() {
    static BYTES: Aligned = Aligned([const { AtomicU8::new(0) }; 2 * SHORT]);
    let src = BYTES.0.as_ptr() as usize;
    // SAFETY: bytes of our own, which may change at any time.
    let ticks = (0..TRIES).map(|_| unsafe { timed(src + SHORT, src, SHORT) }).min().unwrap_or(1);
    let ticks = ticks.min(most_ticks());
    let before = cache_ticks();
    let quickest = if before > 0 { before.min(ticks) } else { ticks };
    CACHE_TICKS.store(quickest.max(1), Relaxed);
}

/// Returns the ticks of `MOST_CYCLES`.
fn most_ticks() -> u64 {
    let tries = (0..TRIES).map(|_| ticks_of(|| arch::spend_cycles(MOST_CYCLES / 8)));
    tries.min().unwrap_or(u64::MAX)
}

/// Counts a look; the first ones of a process measure the cache anew, now and then.
fn count() {
    let before = LOOKS.load(Relaxed);
    if before < MEASURED {
        LOOKS.store(before + 1, Relaxed);
        if before.is_power_of_two() {
            measure_speed();
        }
    }
}

#[repr(align(4096))]
struct Aligned([AtomicU8; 2 * SHORT]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_and_finish_copy_every_byte_once_and_no_other() {
        original::resolve();
        measure_speed();
        let src: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8 | 1).collect();
        for (len, now) in (0..200).map(|i| (2 * SHORT + 777 * i, i as u64 * 0x1234_5678_9abc)) {
            let mut dst = vec![0u8; len + 128];
            let at = dst.as_mut_ptr() as usize + 64;
            let task = Task { work: Work::Copy, dst: at, src: src.as_ptr() as usize, len };
            // SAFETY: memory of the test's own.
            let look = unsafe { look(&task, now) }.unwrap();
            let copied = dst.iter().filter(|&&byte| byte != 0).count();
            assert_eq!(copied, look.len);
            // SAFETY: the ranges that `look` has begun, of this test's own vectors.
            unsafe { finish(&task, look) };
            assert_eq!(dst[64..64 + len], src[..len]);
            assert!(dst[..64].iter().chain(&dst[64 + len..]).all(|&byte| byte == 0));
        }
    }

    /// What this core copies in its cache takes no longer, whoever has its other half.
    #[test]
    fn cache_is_taken_to_be_quick_also_where_it_was_not() {
        original::resolve();
        (0..100).for_each(|_| measure_speed()); // until the core runs at its speed
        let (most, cache) = (most_ticks(), cache_ticks());
        assert!(cache <= most + most / 2 && most < 100 * cache, "{cache} of {most}");
    }

    #[test]
    fn look_at_overlapping_ranges_or_at_a_fill_is_not_taken() {
        original::resolve();
        measure_speed();
        let mut bytes = vec![7u8; 1 << 20];
        let src = bytes.as_mut_ptr() as usize;
        let overlapping = Task { work: Work::Copy, dst: src + 64, src, len: 1 << 19 };
        // SAFETY: memory of the test's own.
        unsafe {
            assert!(look(&overlapping, 1).is_none());
            assert!(look(&Task::fill(src, 1, 1 << 19), 1).is_none());
        }
    }

    /// Caches are tried several times: other threads of the tests evict lines, too.
    #[cfg(target_arch = "x86_64")] // others let programs flush no cache
    #[test]
    fn copy_that_was_just_made_is_near_and_one_that_was_flushed_is_not() {
        use core::arch::x86_64::{_mm_clflush, _mm_mfence};
        original::resolve();
        measure_speed();
        let (src, mut dst) = (vec![7u8; 64 << 10], vec![0u8; 64 << 10]);
        let (from, to) = (src.as_ptr() as usize, dst.as_mut_ptr() as usize);
        let task = Task { work: Work::Copy, dst: to, src: from, len: 64 << 10 };
        let mut count = [0; 2];
        for round in 0..100u64 {
            // SAFETY: memory of the test's own; flushing changes no byte.
            unsafe {
                task.call_libc();
                count[0] += u32::from(look(&task, round << 40).unwrap().distance() < 6 * CACHE);
                for line in (0..64 << 10).step_by(64) {
                    _mm_clflush((from + line) as *const u8);
                    _mm_clflush((to + line) as *const u8);
                }
                _mm_mfence();
                count[1] += u32::from(look(&task, round << 40).unwrap().distance() < 6 * CACHE);
            }
        }
        assert!(count[0] > 60 && count[1] < 40, "{count:?} of 100 were near");
    }
}
