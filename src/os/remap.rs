//! The program's mremap of memory that our marks (`huge_pages`) have split into several mappings.
//!
//! The kernel extends one mapping, but returns EFAULT for several. Two neighbours with different marks merge
//! when they get equal marks, unless both were touched before that. Such neighbours arise when memory is
//! mapped beside marked memory, or by another thread while the mark is made. If they do not merge, the steps
//! of the kernel are made here:
//!
//! ```text
//! in place   new memory is mapped behind it, if there is room
//! by a move  room for all of it is mapped; each part is moved there, which copies no byte
//! ```

use super::arch;
use super::brief_file;
use super::huge_pages;
use super::mappings::{self, Around};
use super::signal_mask::SignalsHeld;
use super::sys::{NoFilter, NoNewFilter, SysResult, syscall};

const PAGE: usize = 4096;

/// Most mappings of a process in which parts are moved: the kernel refuses calls from 65,530 on by
/// default, and a move must not end half way.
const MOST_MAPPINGS: u32 = 32 << 10;

/// Most parts: each copy that meets a neighbour makes one.
const MOST_PARTS: usize = 64;

/// Arguments of the program's call; the lengths are not rounded up to pages.
#[derive(Clone, Copy, Debug)]
pub struct RemapCall {
    pub start: usize,
    pub len: usize,
    pub new: usize,
    pub flags: usize,
}

/// Makes the program's call by `pass_on`, which returns like mremap. If the kernel refuses because of our
/// marks, gives the whole range one mark and repeats the call; if that is refused too, works by parts.
pub fn remap(call: &RemapCall, pass_on: impl Fn() -> isize) -> isize {
    // SAFETY: the C library returns the address of this thread's errno, which no other thread accesses.
    let errno = unsafe { &mut *libc::__errno_location() };
    let (before, mut answer, end) = (*errno, pass_on(), call.start.saturating_add(call.len));
    let is_refused = |answer: isize, errno: i32| answer == -1 && errno == libc::EFAULT;
    if !is_refused(answer, *errno)
        || NoFilter::look().is_none()
        || !huge_pages::mark_alike(call.start, end)
    {
        return answer;
    }
    answer = pass_on();
    if is_refused(answer, *errno) {
        match by_parts(call) {
            Ok(at) => answer = at as isize,
            Err(why) => *errno = why,
        }
    }
    if answer != -1 {
        *errno = before;
    }
    answer
}

/// Returns the new address, or an errno. After an error nothing has changed.
fn by_parts(call: &RemapCall) -> Result<usize, i32> {
    let may_move = call.flags == libc::MREMAP_MAYMOVE as usize;
    let pages = |len: usize| len.checked_next_multiple_of(PAGE).ok_or(libc::EFAULT);
    let (len, new) = (pages(call.len)?, pages(call.new)?);
    if !(may_move || call.flags == 0) || !call.start.is_multiple_of(PAGE) || new <= len {
        return Err(libc::EFAULT);
    }
    let (start, end) = (call.start, call.start.checked_add(len).ok_or(libc::EFAULT)?);
    // A handler that jumped out would leave the memory half moved.
    let held = SignalsHeld::all().ok_or(libc::EFAULT)?;
    let count =
        NoNewFilter::look().and_then(|allowed| brief_file::count_lines(mappings::LIST, allowed));
    if !are_alike(start, end, &held) || count.is_none_or(|count| count > MOST_MAPPINGS) {
        return Err(libc::EFAULT);
    }
    match map(end, new - len, libc::MAP_FIXED_NOREPLACE) {
        behind if behind == end as isize => return Ok(start),
        // Kernels before 4.17 take the address for a hint.
        // SAFETY: just mapped, and known to no other thread.
        behind @ 0.. => unsafe { _ = syscall!(SYS_munmap, behind, new - len) },
        _ => {}
    }
    if !may_move {
        return Err(libc::ENOMEM);
    }
    let to = usize::try_from(map(0, new, 0)).map_err(|_| libc::ENOMEM)?;
    let mut at = start;
    while at < end {
        let part_end = Around::look(at, &held).map_or(end, |around| around.this.1.min(end));
        // SAFETY: the part is memory that the program has asked to move, and its place in `to` was just
        // mapped for it.
        unsafe { move_part(at, part_end - at, to + (at - start)) };
        at = part_end;
    }
    Ok(to)
}

/// Returns whether a range consists of private anonymous memory that can be read and written.
fn are_alike(start: usize, end: usize, held: &SignalsHeld) -> bool {
    let mut at = start;
    for _ in 0..MOST_PARTS {
        match Around::look(at, held) {
            Some(around) if around.is_plain => at = around.this.1,
            _ => return false,
        }
        if at >= end {
            return true;
        }
    }
    false
}

fn map(at: usize, len: usize, flags: i32) -> SysResult {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping touches no other; with `MAP_FIXED` it replaces unused memory that `move_part`
    // passes.
    unsafe { syscall!(SYS_mmap, at, len, protection, flags, usize::MAX) }
}

/// Moves one mapping, or a part of one. Where the kernel has no memory for that, copies its bytes.
///
/// # Safety
/// `to` is unused memory of ours, and the program gives `from` up.
unsafe fn move_part(from: usize, len: usize, to: usize) {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the program gives `from` up, and `to` is unused memory of ours, so the two do not overlap.
    unsafe {
        if syscall!(SYS_mremap, from, len, len, flags, to) == to as isize {
            return;
        }
        map(to, len, libc::MAP_FIXED); // the refused call may have unmapped it
        arch::copy_bytes(to, from, len);
        syscall!(SYS_munmap, from, len);
    }
}
