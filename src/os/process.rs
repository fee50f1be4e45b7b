//! Ownership of our memory. A child of vfork runs in its parent's memory, and the child of a fork
//! in a copy of it without the other threads; neither may use what belongs to the parent.

use super::brief_file;
use super::lookup;
use super::sync::fetch_to_change;
use super::sys::{self, NoFilter, NoNewFilter};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// Process that owns our memory. A child of vfork shares that memory and must not make workers, which would
/// die with it, perhaps in the middle of a piece.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, as for the next ones
static PID: AtomicI32 = AtomicI32::new(0);
/// State of this process only; null until it is made.
#[unsafe(link_section = ".data")]
static OWN: AtomicPtr<Own> = AtomicPtr::new(core::ptr::null_mut());
/// Set when `Own::mark` was set: a page made for cookies only does not show ownership.
#[unsafe(link_section = ".data")]
static MARKED: AtomicBool = AtomicBool::new(false);
/// Takes the place of the page where the kernel cannot wipe one.
static PLAIN: Own =
    Own { mark: AtomicU32::new(0), cookies: AtomicU32::new(0), poll: AtomicI32::new(0) };
/// Set if this process is the child of a fork and has not called exec.
#[unsafe(link_section = ".data")]
pub static FORKED: AtomicBool = AtomicBool::new(false);

/// State in a page that the kernel wipes in every child with memory of its own, even one that runs
/// no handlers.
pub struct Own {
    /// 1 in the process whose memory this is.
    mark: AtomicU32,
    /// Process that the cookies of asynchronous copies belong to; 0: there are none.
    pub cookies: AtomicU32,
    /// Descriptor that is readable when such a copy has ended, plus one; 0: there is none.
    pub poll: AtomicI32,
}

impl Own {
    pub fn get() -> Option<&'static Self> {
        // SAFETY: the pointer is null, or one that `make` has stored, to a value that is never freed.
        unsafe { OWN.load(Ordering::Acquire).as_ref() }
    }

    pub fn get_or_make() -> &'static Self {
        Self::get().unwrap_or_else(Self::make)
    }

    #[cold]
    fn make() -> &'static Self {
        let wiped = NoFilter::look().map(sys::page_wiped_on_fork).filter(|page| !page.is_null());
        let page = wiped.map_or((&raw const PLAIN).cast_mut(), |page| page.cast());
        // Another thread may be first; then our page is leaked.
        let null = core::ptr::null_mut();
        let made = OWN.compare_exchange(null, page, Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: `PLAIN`, or a page of zeros that is never unmapped.
        unsafe { &*made.map_or_else(|there| there, |_| page) }
    }
}

/// Notes the owner at start-up, before the first copy.
pub fn note_start() {
    claim_memory();
    NoNewFilter::note_start();
}

/// Makes this process the owner.
#[inline]
pub fn claim_memory() {
    PID.store(sys::getpid(), Ordering::Relaxed);
    if let Some(own) = Own::get() {
        own.mark.store(1, Ordering::Relaxed);
        own.cookies.store(0, Ordering::Relaxed);
        own.poll.store(0, Ordering::Relaxed);
    }
}

/// Returns the owner's process id.
pub fn pid() -> u32 {
    PID.load(Ordering::Relaxed) as u32
}

/// Returns whether the main thread has ended and others go on.
pub fn main_has_ended() -> bool {
    sys::has_ended(sys::getpid())
}

/// Returns the number of threads of this process, as the kernel counts them. Takes a descriptor for
/// a moment.
pub fn threads() -> Option<i64> {
    let mut room = [0; 1024];
    let allowed = NoNewFilter::look()?;
    let stat = brief_file::read(c"/proc/self/stat", &mut room, allowed)?;
    sys::word_of_stat(stat, 20)
}

/// Returns the exit status of the main thread, for the last thread to exit with; 0 where that is
/// not known. Not read if the C library has made threads: the file would take a descriptor number
/// from them, and they end the process with a status of their own.
pub fn status_of_main() -> usize {
    let mut room = MaybeUninit::<[u8; 1024]>::uninit();
    // Not by memset, that is, by us.
    // SAFETY: the loop writes all 1024 bytes of `room` before any is read.
    let room = unsafe {
        (0..1024).for_each(|at| room.as_mut_ptr().cast::<u8>().add(at).write_volatile(0));
        room.assume_init_mut()
    };
    let allowed = NoNewFilter::look().filter(|_| lookup::has_one_thread());
    let stat = allowed.and_then(|allowed| brief_file::read(c"/proc/self/stat", room, allowed));
    let code = stat.and_then(|stat| sys::word_of_stat(stat, 52));
    code.map_or(0, |code| code as usize >> 8 & 0xff)
}

/// Returns whether this process owns our memory: it is neither a child of vfork nor the child of a fork that
/// ran no handler.
pub fn is_ours() -> bool {
    mark() != Some(false) && sys::getpid() == PID.load(Ordering::Relaxed)
}

/// Returns the mark in the wiped page; `None`: there is no page. Process ids do not suffice: the
/// init of a new pid namespace and its child may see equal ones.
fn mark() -> Option<bool> {
    if !MARKED.load(Ordering::Acquire) {
        return None;
    }
    let own = Own::get().filter(|own| !core::ptr::eq(*own, &PLAIN));
    own.map(|own| own.mark.load(Ordering::Relaxed) == 1)
}

/// Returns whether our count of live workers is valid here. Makes no system call, for callers of
/// asynchronous copies. True in a child of vfork, which shares our memory and our workers.
pub fn shares_our_memory() -> bool {
    mark().unwrap_or_else(is_ours)
}

/// Prefetches the mark that `shares_our_memory` will read.
pub fn prefetch() {
    fetch_to_change(OWN.load(Ordering::Relaxed) as usize);
}

/// Lets `shares_our_memory` answer without a system call, where the kernel can wipe a page.
pub fn mark_our_memory() {
    Own::get_or_make().mark.store(1, Ordering::Relaxed);
    MARKED.store(true, Ordering::Release);
}
