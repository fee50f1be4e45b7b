//! Whose memory this is. A child of vfork runs in its parent's memory, and the child of a fork in
//! a copy of it without the other threads; neither may use what belongs to the parent.

use super::sync::fetch_to_change;
use super::sys::{self, NoFilter, NoNewFilter};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// The process all of this belongs to: a vfork child shares our memory and must not make
/// workers, for they would die with it, perhaps in the middle of a piece.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, as for the next ones
static PID: AtomicI32 = AtomicI32::new(0);
/// A word that is 1 here and, wiped by the kernel, 0 in every child with memory of its own;
/// null until the first engine is started.
#[unsafe(link_section = ".data")]
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// This process is the child of a fork, and has made no other program of itself.
#[unsafe(link_section = ".data")]
static FORKED: AtomicBool = AtomicBool::new(false);

/// At start-up, before the first copy.
pub fn settle_in() {
    claim_memory();
    NoNewFilter::note_start();
}

/// This process is the one whose memory it is.
#[inline]
pub fn claim_memory() {
    PID.store(sys::getpid(), Ordering::Relaxed);
    if !MARK.load(Ordering::Relaxed).is_null() {
        mark_our_memory();
    }
}

/// In the child of a fork.
pub fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// The process whose memory this is.
pub fn pid() -> u32 {
    PID.load(Ordering::Relaxed) as u32
}

/// Whether the main thread has ended and others go on.
pub fn main_has_ended() -> bool {
    sys::has_ended(sys::getpid())
}

/// The status with which the main thread has ended, for the last thread of the process to end with;
/// 0 where that is not known. Where the C library has made threads, they may be there, and the file
/// would take a descriptor number from them; they end the process with a status of their own.
pub fn status_of_main() -> usize {
    let mut room = MaybeUninit::<[u8; 1024]>::uninit();
    // Not by memset, that is, by us.
    // SAFETY: bytes of our own, all of which are written before one is read.
    let room = unsafe {
        (0..1024).for_each(|at| room.as_mut_ptr().cast::<u8>().add(at).write_volatile(0));
        room.assume_init_mut()
    };
    let allowed = NoNewFilter::look().filter(|_| sys::has_one_thread());
    let stat = allowed.and_then(|allowed| sys::read_file(c"/proc/self/stat", room, allowed));
    stat.and_then(exit_code).map_or(0, |code| code as usize >> 8 & 0xff)
}

fn exit_code(stat: &[u8]) -> Option<i64> {
    sys::word_of_stat(stat, 52)
}

/// Whether this is the process whose memory it is: no child of vfork, nor of a fork that ran
/// no handler.
pub fn is_ours() -> bool {
    mark() != Some(false) && sys::getpid() == PID.load(Ordering::Relaxed)
}

/// What the page says that the kernel wipes; `None`: there is none. The child of an init in a pid
/// namespace of its own has the process number of its parent.
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
    if page.is_null()
        && let Some(allowed) = NoFilter::look()
    {
        page = sys::page_wiped_on_fork(allowed).cast();
    }
    if page.is_null() {
        return; // the process number will have to do
    }
    // SAFETY: a page that is never unmapped.
    unsafe { (*page).store(1, Ordering::Relaxed) };
    MARK.store(page, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_found_in_the_file_whatever_the_process_is_called() {
        let mut line = b"7 (a ) b) Z".to_vec();
        (4..52).for_each(|_| line.extend(b" 1"));
        line.extend(b" 768\n");
        assert_eq!(exit_code(&line), Some(3 << 8));
        assert_eq!(exit_code(&line[..line.len() - 5]), None);
        assert_eq!(exit_code(b""), None);
    }

    #[test]
    fn thread_that_was_joined_has_ended_and_this_one_has_not() {
        let (tell, told) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(sys::gettid()).unwrap();
            let _ = wait.recv();
        });
        let tid = told.recv().unwrap();
        let seen = || (sys::has_ended(tid), sys::is_thread(tid as u32));
        assert_eq!(seen(), (false, true));
        assert!(!main_has_ended());
        drop(go);
        thread.join().unwrap();
        // The C library is told a little earlier.
        while seen() != (true, false) {
            sys::yield_now();
        }
    }

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
