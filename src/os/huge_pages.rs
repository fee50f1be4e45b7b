//! Huge pages for memory that was never touched and is about to be written whole.
//!
//! A page fault for each 4 KiB costs more than the bytes. A whole 2 MiB page inside the range takes
//! one fault, and not a byte more of memory, because all of it is written. The kernel makes such
//! pages where it is asked to (madvise), which marks the mapping and may split it in three.

use super::lock::TryLock;
use super::sys::{self, NoFilter, NoNewFilter, syscall};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// What one huge page covers.
pub const HUGE: usize = 2 << 20;

/// Ranges below this gain too little for a system call that locks all mappings.
pub const FROM: usize = 4 << 20;

/// No request is made in a process with this many mappings: the kernel allows 65,530 by default.
const MOST_MAPPINGS: u32 = 16 << 10;

/// Requests after which a process with too many mappings is looked at again.
const AGAIN_AFTER: u32 = 4096;

/// Whether the system makes huge pages on request: not where it always does, or never.
static ON_REQUEST: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const NO: u32 = 1;
const YES: u32 = 2;

/// Set when the program has asked for small pages anywhere: it knows better.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Requests that may be made, or skipped, before mappings are counted again.
static BUDGET: TryLock<Budget> = TryLock::new(Budget { left: 0, allowed: false });

struct Budget {
    left: u32,
    allowed: bool,
}

/// Notes that the program has called madvise with MADV_NOHUGEPAGE.
pub fn refuse() {
    REFUSED.store(true, Relaxed);
}

/// In the child of a fork: the thread that counted mappings is not here.
pub fn forget_after_fork() {
    if ON_REQUEST.load(Relaxed) != UNKNOWN {
        BUDGET.forget_after_fork();
    }
}

/// Has the pages that lie whole in the range made huge ones when they are first touched.
pub fn request(start: usize, len: usize, allowed: NoFilter) {
    let (from, to) = (start.next_multiple_of(HUGE), (start + len) / HUGE * HUGE);
    if from < to && len >= FROM && is_wanted(allowed) && takes_budget() {
        // SAFETY: changes no byte.
        unsafe { syscall!(SYS_madvise, from, to - from, libc::MADV_HUGEPAGE) };
    }
}

fn is_wanted(_: NoFilter) -> bool {
    if REFUSED.load(Relaxed) {
        return false;
    }
    if ON_REQUEST.load(Relaxed) == UNKNOWN {
        ON_REQUEST.store(if is_on_request() { YES } else { NO }, Relaxed);
    }
    // SAFETY: no memory.
    let disabled = || unsafe { syscall!(SYS_prctl, libc::PR_GET_THP_DISABLE) != 0 };
    ON_REQUEST.load(Relaxed) == YES && !disabled()
}

fn is_on_request() -> bool {
    let (path, mut text) = (c"/sys/kernel/mm/transparent_hugepage/enabled", [0; 64]);
    NoNewFilter::look()
        .and_then(|allowed| sys::read_file(path, &mut text, allowed))
        .is_some_and(|text| text.windows(9).any(|word| word == b"[madvise]"))
}

/// Each request adds two mappings at most, so counting them is due after half of what is left.
fn takes_budget() -> bool {
    let Some(mut budget) = BUDGET.try_take() else { return false };
    if budget.left == 0 {
        let count = NoNewFilter::look()
            .and_then(|allowed| sys::count_lines(c"/proc/self/maps", allowed))
            .unwrap_or(MOST_MAPPINGS);
        budget.allowed = count < MOST_MAPPINGS;
        budget.left = match budget.allowed {
            true => (MOST_MAPPINGS - count).div_ceil(2),
            false => AGAIN_AFTER,
        };
    }
    budget.left -= 1;
    budget.allowed
}
