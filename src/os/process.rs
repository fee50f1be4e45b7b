//! Whose memory this is. A child of vfork runs in its parent's memory, and the child of a fork in
//! a copy of it in which nobody works; neither may use what belongs to the parent.

use super::sync::fetch_to_change;
use super::sys;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// The process all of this belongs to: a vfork child shares our memory and must not make
/// workers, for they would die with it, perhaps in the middle of a piece.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, as for the next ones
static PID: AtomicI32 = AtomicI32::new(0);
/// A word that is 1 here and, wiped by the kernel, 0 in every child with memory of its own;
/// null until the first engine is started.
#[unsafe(link_section = ".data")]
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// The seccomp mode the process started with.
#[unsafe(link_section = ".data")]
static SECCOMP: AtomicI32 = AtomicI32::new(0);

/// At start-up, before anybody copies.
pub fn settle_in() {
    claim_memory();
    SECCOMP.store(sys::seccomp_mode() as i32, Ordering::Relaxed);
}

/// This process is the one whose memory it is.
#[inline]
pub fn claim_memory() {
    PID.store(sys::getpid(), Ordering::Relaxed);
    if !MARK.load(Ordering::Relaxed).is_null() {
        mark_our_memory();
    }
}

/// The process whose memory this is.
pub fn pid() -> u32 {
    PID.load(Ordering::Relaxed) as u32
}

/// Whether this is the process whose memory it is: no child of vfork, nor of a fork that ran
/// no handler.
pub fn is_ours() -> bool {
    mark() != Some(false) && sys::getpid() == PID.load(Ordering::Relaxed)
}

/// What the page says that the kernel wipes; `None`: there is none. The child of an init in a
/// pid namespace of its own has the same number as its parent.
fn mark() -> Option<bool> {
    // SAFETY: null, or a page that is never unmapped.
    let mark = unsafe { MARK.load(Ordering::Acquire).as_ref() };
    mark.map(|mark| mark.load(Ordering::Relaxed) == 1)
}

/// Whether workers that are alive by our count are alive. Asked without a system call, for callers
/// that start a copy and go on. A child of vfork lives in our memory, and so do our workers: they
/// work for it too.
pub fn shares_our_memory() -> bool {
    mark().unwrap_or_else(is_ours)
}

/// Fetches what `shares_our_memory` will look at.
pub fn prefetch() {
    fetch_to_change(MARK.load(Ordering::Relaxed) as usize);
}

/// Lets `shares_our_memory` answer without a system call, where the kernel can wipe a page.
pub fn mark_our_memory() {
    let mut page = MARK.load(Ordering::Acquire);
    if page.is_null() && !is_filtered() {
        page = sys::page_wiped_on_fork().cast();
    }
    if page.is_null() {
        return; // the process number will have to do
    }
    // SAFETY: a page that is never unmapped.
    unsafe { (*page).store(1, Ordering::Relaxed) };
    MARK.store(page, Ordering::Release);
}

/// Whether this thread is under a seccomp filter, from the start or since: then only calls may
/// be made that every program makes, those that stand in adma(7).
pub fn is_filtered() -> bool {
    started_filtered() || sys::seccomp_mode() != 0
}

/// Whether there was a seccomp filter when the process started.
pub fn started_filtered() -> bool {
    SECCOMP.load(Ordering::Relaxed) != 0
}

/// Whether the program has installed a seccomp filter since it started, which may kill where we
/// would only be refused.
pub fn has_new_filter() -> bool {
    sys::seccomp_mode() as i32 != SECCOMP.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_of_a_bare_fork_does_not_take_the_parents_workers_for_its_own() {
        settle_in();
        mark_our_memory();
        assert!(shares_our_memory());
        // SAFETY: the child only asks and leaves.
        let status = unsafe {
            let child = libc::syscall(libc::SYS_fork) as i32;
            if child == 0 {
                // As in a pid namespace of its own, where both are number 1.
                PID.store(sys::getpid(), Ordering::Relaxed);
                libc::_exit(i32::from(shares_our_memory() || is_ours()));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
    }
}
