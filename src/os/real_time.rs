//! Finds out whether the calling thread has real-time scheduling (FIFO, RR or DEADLINE).
//!
//! Such a thread must not wait for ordinary threads: neither for a worker, nor for a lock in the kernel that
//! one of them may hold. So this is checked before every step that can wait. Two system calls are too much
//! for every large copy of all other threads, so an answer is cached for
//! some milliseconds. Under a seccomp filter it is read from a file, which takes longer than some
//! copies, and is cached for seconds.

use super::cpus::Class;
use super::sys::{self, NoFilter, NoNewFilter, syscall};
use core::sync::atomic::{AtomicU64, Ordering};

/// Caches with units of about a millisecond, and of a second or two.
static ANSWERS: Answers<{ 1 << 21 }> = Answers::new();
static ANSWERS_OF_FILES: Answers<{ 1 << 32 }> = Answers::new();

/// Returns whether this thread has real-time scheduling, as far as that can be known.
pub fn is_real_time() -> bool {
    let now = sys::ticks();
    if sys::started_filtered() {
        // The key is not `thread_register`: another thread may get its value, and this answer is cached for
        // seconds.
        return ANSWERS_OF_FILES.recent_or(sys::gettid() as u64, now, by_file);
    }
    // A thread whose register has the value of an earlier thread gets that thread's answer while it is
    // cached.
    let thread = sys::thread_register().unwrap_or_else(|| sys::gettid() as u64);
    // A filter that was installed since start-up may kill for this call.
    ANSWERS.recent_or(thread, now, || Some(NoFilter::look().is_some_and(by_call)))
}

fn by_call(_: NoFilter) -> bool {
    // SAFETY: the call accesses no memory of ours.
    let policy = unsafe { syscall!(SYS_sched_getscheduler, 0) };
    policy >= 0 && is_real_time_policy(policy as i32 & !libc::SCHED_RESET_ON_FORK)
}

/// Reads the class from a file, by calls that a filter in force since the start allows. `None`: another
/// thread uses the buffers.
fn by_file() -> Option<bool> {
    // Under a newer filter, or without /proc, the thread is assumed to be ordinary.
    let Some(allowed) = NoNewFilter::look() else { return Some(false) };
    let class = Class::in_file(c"/proc/thread-self/stat", allowed)?;
    Some(class.is_some_and(|class| is_real_time_policy(class.policy)))
}

fn is_real_time_policy(policy: i32) -> bool {
    matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE)
}

/// Cache of answers about some threads, each in one word: thread, time, and the answer in the
/// lowest bit. Times are in units of `UNIT` ticks; answers of this unit and of the one before are
/// valid.
struct Answers<const UNIT: u64>([AtomicU64; sys::THREAD_SLOTS]);

impl<const UNIT: u64> Answers<UNIT> {
    const TIME_BITS: u32 = 22;

    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; sys::THREAD_SLOTS])
    }

    fn word(thread: u64, unit: u64, answer: bool) -> u64 {
        let time = unit & ((1 << Self::TIME_BITS) - 1);
        (thread << Self::TIME_BITS | time) << 1 | u64::from(answer)
    }

    /// Returns the cached answer, or asks. If that fails, returns true this once, to be on the safe
    /// side.
    fn recent_or(&self, thread: u64, now: u64, ask: impl FnOnce() -> Option<bool>) -> bool {
        let place = &self.0[sys::slot_of(thread)];
        let (known, unit) = (place.load(Ordering::Relaxed), now / UNIT);
        let is_from = |unit| known | 1 == Self::word(thread, unit, true);
        if is_from(unit) || is_from(unit.wrapping_sub(1)) {
            return known & 1 == 1;
        }
        let Some(answer) = ask() else { return true };
        place.store(Self::word(thread, unit, answer), Ordering::Relaxed);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_cached_for_a_while_and_for_one_thread() {
        let answers = Answers::<1000>::new();
        let (thread, now) = (0x7fff_f7d8_0740 >> 6, 7005);
        assert!(answers.recent_or(thread, now, || None), "not known now");
        for answer in [true, false] {
            let then = now + 10_000 * u64::from(answer);
            assert_eq!(answers.recent_or(thread, then, || Some(answer)), answer);
            let known = |later: u64| answers.recent_or(thread, then + later, || Some(!answer));
            assert_eq!((known(0), known(1000)), (answer, answer));
            assert_eq!(known(2000), !answer, "asked again");
        }
        for other in 0..200 {
            assert!(answers.recent_or(thread + 1 + other, now, || Some(true)), "{other}");
        }
    }

    #[test]
    fn ordinary_thread_is_recognised_by_file_and_by_system_call() {
        // `None` while another test uses the buffers.
        let by_file = std::iter::repeat_with(by_file).find_map(|answer| answer);
        let by_call = NoFilter::look().map(by_call);
        assert_eq!(by_file, by_call);
        assert_eq!(Some(is_real_time()), by_call);
    }
}
