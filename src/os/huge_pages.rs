//! Huge pages for fresh memory that is about to be written whole.
//!
//! A page fault for each 4 KiB costs more than the bytes. A 2 MiB page inside the range takes one
//! fault, and no more memory, because all of it is written.
//!
//! The kernel makes such pages where a mapping is marked so (madvise). That has two costs, which
//! are avoided by marking the whole mapping MADV_NOHUGEPAGE once the bytes are written:
//! - A mark on a part splits the mapping, and mremap of a split one fails. realloc then copies what
//!   it would have moved: a bytearray that grows took nine times as long.
//! - Memory that an allocator gives back (MADV_DONTNEED) and touches again here and there would
//!   become huge where the mark has stayed.
//!
//! Where huge pages are made on request, MADV_NOHUGEPAGE is equivalent to no mark, except for
//! MADV_COLLAPSE (`collapse`). Parts merge again if they share an anon_vma, which the first page
//! fault makes: it comes before the mark.

use super::lock::TryLock;
use super::process;
use super::sys::{self, NoFilter, NoNewFilter, syscall};
use core::mem::{MaybeUninit, zeroed};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

const PAGE: usize = 4096;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Smallest range: below, the gain is less than system calls that lock all mappings cost.
const FROM: usize = 4 << 20;

/// Least range where the kernel (before 6.11) has to list all mappings to show one: 0.1 ms.
const FROM_WITH_LIST: usize = 32 << 20;

/// Most mappings of a process in which a request is made: the kernel allows 65,530 by default.
const MOST_MAPPINGS: u32 = 16 << 10;

/// Requests after which a process with too many mappings is examined again.
const AGAIN_AFTER: u32 = 4096;

/// State of the system's setting: huge pages on request, rather than always or never.
static ON_REQUEST: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const NO: u32 = 1;
const YES: u32 = 2;

/// Set when the program has asked for small pages anywhere: its choice is respected.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Calls of the program's that ask for huge pages.
static REQUESTS: AtomicU32 = AtomicU32::new(0);

/// Set when a mapping has got a mark: that it had one stays.
static MARKED: AtomicBool = AtomicBool::new(false);

/// Set if the kernel shows a mapping only in a list of all.
static SHOWS_LIST: AtomicBool = AtomicBool::new(false);

/// Requests that may be made, or skipped, before mappings are counted again.
static BUDGET: TryLock<Budget> = TryLock::new(Budget { left: 0, allowed: false });

/// The list of our mappings, and which file that is, in a program of several threads. A number that each
/// copy takes and gives back may be one that another thread has just closed and counts on; and when that
/// closes all numbers and opens a file, giving ours back would close it. So this one stays open.
static LIST: List = List {
    fd: AtomicI32::new(0),
    file: [const { AtomicU64::new(0) }; 2],
    opening: TryLock::new(()),
};

struct List {
    /// 0: not open.
    fd: AtomicI32,
    /// Device and inode.
    file: [AtomicU64; 2],
    opening: TryLock<()>,
}

impl List {
    /// Returns the descriptor, unless the program has closed it.
    fn still_open(&self) -> Option<i32> {
        let fd = Some(self.fd.load(Acquire)).filter(|&fd| fd > 0)?;
        let [device, inode] = [0, 1].map(|i| self.file[i].load(Relaxed));
        (sys::file_of(fd) == Some((device, inode))).then_some(fd)
    }

    /// `None`: it cannot be opened, or another thread is just at it.
    fn get(&self) -> Option<i32> {
        if !process::is_ours() {
            return None;
        }
        if let Some(fd) = self.still_open() {
            return Some(fd);
        }
        let _opening = self.opening.try_take()?;
        let high = sys::move_up(open_list()?) as i32;
        let Some((device, inode)) = sys::file_of(high) else {
            ON_REQUEST.store(NO, Relaxed); // the limit is lower: not again with every copy
            return None;
        };
        self.file[0].store(device, Relaxed);
        self.file[1].store(inode, Relaxed);
        self.fd.store(high, Release);
        Some(high)
    }

    /// Closes the list in the child of a fork, where it is the parent's.
    fn forget_after_fork(&self) {
        self.opening.forget_after_fork();
        if let Some(fd) = self.still_open() {
            sys::close(fd);
        }
        if self.fd.load(Relaxed) != 0 {
            self.fd.store(0, Relaxed);
        }
    }
}

struct Budget {
    left: u32,
    allowed: bool,
}

/// Notes that the program has called madvise with MADV_NOHUGEPAGE, or prctl with PR_SET_THP_DISABLE.
pub fn refuse() {
    REFUSED.store(true, Relaxed);
}

/// Notes that the program is about to call madvise with MADV_HUGEPAGE.
pub fn note_request() {
    REQUESTS.fetch_add(1, Relaxed);
}

/// Releases budget and list in the child of a fork: the thread that counted is not here, and the
/// list is the parent's.
pub fn forget_after_fork() {
    if ON_REQUEST.load(Relaxed) == UNKNOWN {
        return;
    }
    BUDGET.forget_after_fork();
    LIST.forget_after_fork();
}

/// A mapping of which a part is marked until this is dropped.
pub struct Marked {
    mapping: (usize, usize),
    part: (usize, usize),
    /// Value of `REQUESTS` at that time.
    requests: u32,
}

impl Drop for Marked {
    fn drop(&mut self) {
        // If the program has marked another part meanwhile, the mapping stays split.
        let is_ours = REQUESTS.load(Relaxed) == self.requests;
        let (start, end) = if is_ours { self.mapping } else { self.part };
        advise(start, end, libc::MADV_NOHUGEPAGE);
    }
}

/// Makes the program's call of madvise with MADV_COLLAPSE; if it is refused, repeats it without the
/// mark that our copies leave.
pub fn collapse(start: usize, len: usize, call: impl Fn() -> i32) -> i32 {
    // SAFETY: the address of this thread's errno.
    let errno = unsafe { &mut *libc::__errno_location() };
    let (before, mut answer, end) = (*errno, call(), start.saturating_add(len));
    let is_ours = MARKED.load(Relaxed) && !REFUSED.load(Relaxed) && REQUESTS.load(Relaxed) == 0;
    if answer != 0 && is_ours && advise(start, end, libc::MADV_HUGEPAGE) {
        answer = call();
        advise(start, end, libc::MADV_NOHUGEPAGE);
        if answer == 0 {
            *errno = before;
        }
    }
    answer
}

/// Makes the program's call of mremap, which wants one mapping. Where it gets several, it is made once
/// more when all have the mark that our copies leave: a handler may have jumped out of a copy, another
/// thread may still copy, or memory was mapped beside what has that mark.
pub fn remap(start: usize, len: usize, call: impl Fn() -> isize) -> isize {
    // SAFETY: the address of this thread's errno.
    let errno = unsafe { &mut *libc::__errno_location() };
    let (before, mut answer, end) = (*errno, call(), start.saturating_add(len));
    if answer == -1
        && *errno == libc::EFAULT
        && MARKED.load(Relaxed)
        && REQUESTS.load(Relaxed) == 0
        && NoFilter::look().is_some()
        && advise(start, end, libc::MADV_NOHUGEPAGE)
    {
        answer = call();
        if answer != -1 {
            *errno = before;
        }
    }
    answer
}

fn advise(start: usize, end: usize, advice: i32) -> bool {
    // SAFETY: changes no byte.
    unsafe { syscall!(SYS_madvise, start, end - start, advice) == 0 }
}

/// Makes the kernel use huge pages for what lies entirely in the range, while the result lives.
/// `None`: page sizes remain the program's choice.
pub fn mark(start: usize, len: usize, allowed: NoFilter) -> Option<Marked> {
    let (from, to) = (start.next_multiple_of(HUGE), (start + len) / HUGE * HUGE);
    let least = if SHOWS_LIST.load(Relaxed) { FROM_WITH_LIST } else { FROM };
    if from >= to || len < least || !is_wanted(allowed) || !takes_budget() {
        return None;
    }
    let requests = REQUESTS.load(Relaxed);
    let mapping = mapping_around(from)?;
    // A page that lies in no huge page, if there is one.
    let first = if start < from { start } else { start + len - 1 } & !(PAGE - 1);
    let is_split = to <= mapping.1
        && to - from > HUGE
        && advise(first, first + PAGE, libc::MADV_POPULATE_WRITE)
        && advise(from, from + HUGE, libc::MADV_HUGEPAGE)
        && mapping_around(from) != Some(mapping);
    // An unsplit mapping was marked before, by the program: its mark stays.
    is_split.then(|| {
        MARKED.store(true, Relaxed);
        advise(from + HUGE, to, libc::MADV_HUGEPAGE);
        Marked { mapping, part: (from, to), requests }
    })
}

fn is_wanted(_: NoFilter) -> bool {
    if REFUSED.load(Relaxed) {
        return false;
    }
    if ON_REQUEST.load(Relaxed) == UNKNOWN
        && let Some(on_request) = is_on_request()
    {
        ON_REQUEST.store(if on_request { YES } else { NO }, Relaxed);
    }
    // SAFETY: no memory.
    let disabled = || unsafe { syscall!(SYS_prctl, libc::PR_GET_THP_DISABLE) != 0 };
    ON_REQUEST.load(Relaxed) == YES && !disabled()
}

/// Returns start and end of the private anonymous mapping around an address; `None`: it is of
/// another kind, or unknown.
fn mapping_around(address: usize) -> Option<(usize, usize)> {
    if !sys::has_one_thread() {
        return mapping_in(LIST.get()?, address);
    }
    let fd = open_list()?;
    let found = mapping_in(fd, address);
    sys::close(fd);
    found
}

fn open_list() -> Option<i32> {
    let allowed = NoNewFilter::look()?;
    i32::try_from(sys::open(c"/proc/self/maps", allowed)).ok().filter(|&fd| fd >= 0)
}

fn mapping_in(fd: i32, address: usize) -> Option<(usize, usize)> {
    let shown = if SHOWS_LIST.load(Relaxed) { Err(libc::ENOTTY) } else { query(fd, address) };
    match shown {
        Err(libc::ENOTTY) => {
            SHOWS_LIST.store(true, Relaxed);
            find_in_list(fd, address)
        }
        shown => shown.ok().flatten(),
    }
}

/// Queries one mapping (PROCMAP_QUERY of linux/fs.h); an error is an errno.
fn query(fd: i32, address: usize) -> Result<Option<(usize, usize)>, i32> {
    const PROCMAP_QUERY: usize = 0xc068_6611;
    const SHARED: u64 = 8;
    #[repr(C)]
    struct Query {
        size: u64,
        query_flags: u64,
        address: u64,
        start: u64,
        end: u64,
        flags: u64,
        page_size: u64,
        offset: u64,
        inode: u64,
        rest: [u64; 4],
    }
    // SAFETY: numbers.
    let mut asked = unsafe { Query { size: 104, address: address as u64, ..zeroed() } };
    const _: () = assert!(size_of::<Query>() == 104);
    // SAFETY: the kernel fills `asked`.
    match unsafe { syscall!(SYS_ioctl, fd, PROCMAP_QUERY, &raw mut asked) } {
        0 => {
            let suits = asked.inode == 0 && asked.flags & SHARED == 0;
            Ok(suits.then_some((asked.start as usize, asked.end as usize)))
        }
        error => Err(-(error as i32)),
    }
}

/// Searches the list in small parts: callers may have a stack of 8 KiB.
fn find_in_list(fd: i32, address: usize) -> Option<(usize, usize)> {
    // Long enough for what comes before the path.
    let (mut line, mut filled, mut at) = ([0; 96], 0, 0);
    let mut room = MaybeUninit::<[u8; 512]>::uninit();
    let (to, size) = (room.as_mut_ptr(), size_of_val(&room));
    // SAFETY: the kernel writes inside `room`, and what it has filled is looked at.
    while let got @ 1.. = unsafe { syscall!(SYS_pread64, fd, to, size, at) } {
        at += got;
        // SAFETY: as above.
        let text = unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), got as usize) };
        for &byte in text {
            if byte != b'\n' {
                if let Some(place) = line.get_mut(filled) {
                    *place = byte;
                    filled += 1;
                }
                continue;
            }
            let shown = parse_line(&line[..filled]);
            filled = 0;
            if let Some((start, end, suits)) = shown.filter(|&(_, end, _)| address < end) {
                return (suits && start <= address).then_some((start, end));
            }
        }
    }
    None
}

/// Parses start, end, and whether it is private and anonymous.
fn parse_line(line: &[u8]) -> Option<(usize, usize, bool)> {
    let hex = |text: &[u8]| usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok();
    let mut words = line.split(|&byte| byte == b' ');
    let mut ends = words.next()?.split(|&byte| byte == b'-');
    let (start, end) = (hex(ends.next()?)?, hex(ends.next()?)?);
    let (rights, inode) = (words.next()?, words.nth(2)?);
    Some((start, end, rights.ends_with(b"p") && inode == b"0"))
}

/// `None`: the file is there, but cannot be opened now; the program may have no free descriptor.
fn is_on_request() -> Option<bool> {
    let (path, mut text) = (c"/sys/kernel/mm/transparent_hugepage/enabled", [0; 64]);
    match sys::read_file(path, &mut text, NoNewFilter::look()?) {
        Some(text) => Some(text.windows(9).any(|word| word == b"[madvise]")),
        None => (sys::may_read(path) != 0).then_some(false),
    }
}

/// Takes one request from the budget; false: there are too many mappings. A mark keeps a mapping
/// from merging with two neighbours, so mappings are counted again after half of what is left.
fn takes_budget() -> bool {
    let Some(mut budget) = BUDGET.try_take() else { return false };
    if budget.left == 0 {
        let counted =
            NoNewFilter::look().and_then(|allowed| sys::count_lines(c"/proc/self/maps", allowed));
        let Some(count) = counted else { return false };
        budget.allowed = count < MOST_MAPPINGS;
        budget.left = match budget.allowed {
            true => (MOST_MAPPINGS - count).div_ceil(2),
            false => AGAIN_AFTER,
        };
    }
    budget.left -= 1;
    budget.allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_and_query_show_the_same_mappings() {
        process::claim_memory();
        let len = 3 * HUGE + 4096;
        let map = |flags| {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: new memory.
            let at = unsafe { libc::mmap(core::ptr::null_mut(), len, rights, flags, -1, 0) };
            at as usize
        };
        let private = map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let shared = map(libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let code = mapping_around as *const () as usize;
        for (address, is_private) in [(private + HUGE, true), (shared, false), (code, false)] {
            let found = mapping_around(address);
            assert_eq!(found.is_some(), is_private);
            assert!(found.is_none_or(|(start, end)| start <= private && private + len <= end));
            let was_list = SHOWS_LIST.swap(true, Relaxed);
            assert_eq!(mapping_around(address), found);
            SHOWS_LIST.store(was_list, Relaxed);
        }
        assert_eq!(mapping_around(1), None);
    }
}
