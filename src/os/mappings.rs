//! Mappings of this process, as the kernel shows them in /proc/self/maps: by a query since Linux 6.11,
//! before that in a list of all.

use super::brief_file::BriefFile;
use super::lock::TryLock;
use super::lookup;
use super::process;
use super::signal_mask::SignalsHeld;
use super::sys::{self, NoNewFilter, syscall};
use core::ffi::CStr;
use core::mem::{MaybeUninit, zeroed};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};

/// Start and end of a mapping.
pub type Range = (usize, usize);

pub const LIST: &CStr = c"/proc/self/maps";

/// Set if the kernel shows a mapping only in a list of all.
static SHOWS_LIST: AtomicBool = AtomicBool::new(false);

/// Descriptor of the list of mappings, and identity of that file, for a program of several threads. If each
/// copy opened and closed a descriptor, it could take a number that another thread has just closed and
/// expects to get again; and if another thread closed all descriptors and opened a file, our close could
/// close that file. So this descriptor stays open.
static KEPT: Kept = Kept {
    fd: AtomicI32::new(0),
    file: [const { AtomicU64::new(0) }; 2],
    opening: TryLock::new(()),
};

/// Value of `Kept::fd` where the limit of descriptors is below `sys::LEAST_KEPT`, so that not every copy
/// tries to open the list.
const NEVER: i32 = -1;

struct Kept {
    /// 0: not open. `NEVER`: no number is free from `sys::LEAST_KEPT` up.
    fd: AtomicI32,
    /// Device and inode.
    file: [AtomicU64; 2],
    opening: TryLock<()>,
}

impl Kept {
    /// Returns the descriptor, unless the program has closed it.
    fn still_open(&self) -> Option<i32> {
        let fd = Some(self.fd.load(Acquire)).filter(|&fd| fd > 0)?;
        let [device, inode] = [0, 1].map(|i| self.file[i].load(Relaxed));
        (sys::file_of(fd) == Some((device, inode))).then_some(fd)
    }

    /// Returns the descriptor, opened if need be. `None`: it cannot be opened, or another thread is opening
    /// it.
    fn get(&self, held: &SignalsHeld) -> Option<i32> {
        if self.fd.load(Relaxed) == NEVER || !process::is_ours() {
            return None;
        }
        if let Some(fd) = self.still_open() {
            return Some(fd);
        }
        let _opening = self.opening.try_take(held)?;
        let low = BriefFile::open(LIST, NoNewFilter::look()?, held)?;
        let high = sys::duplicate(low.fd(), sys::LEAST_KEPT) as i32;
        let Some((device, inode)) = sys::file_of(high) else {
            self.fd.store(NEVER, Relaxed);
            return None;
        };
        self.file[0].store(device, Relaxed);
        self.file[1].store(inode, Relaxed);
        self.fd.store(high, Release);
        Some(high)
    }
}

/// Closes the list in the child of a fork, where the descriptor shows the mappings of the parent.
pub fn forget_after_fork() {
    KEPT.opening.forget_after_fork();
    if KEPT.fd.load(Relaxed) != 0 {
        KEPT.still_open().map(sys::close);
        KEPT.fd.store(0, Relaxed);
    }
}

/// Returns whether the kernel has to list all mappings to show one, which takes 0.1 ms; false while that is
/// not known.
pub fn takes_list() -> bool {
    SHOWS_LIST.load(Relaxed)
}

/// A private anonymous mapping, and the mappings of that kind that adjoin it below and above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    pub below: Option<Range>,
    pub this: Range,
    pub above: Option<Range>,
    /// Set if `this` can be read and written, and not executed.
    pub is_plain: bool,
}

impl Around {
    /// Looks at the mapping around an address; `None`: it is of another kind, or unknown.
    pub fn look(address: usize, held: &SignalsHeld) -> Option<Self> {
        if !lookup::has_one_thread() {
            return Self::in_file(KEPT.get(held)?, address);
        }
        let file = BriefFile::open(LIST, NoNewFilter::look()?, held)?;
        Self::in_file(file.fd(), address)
    }

    fn in_file(fd: i32, address: usize) -> Option<Self> {
        if !takes_list() {
            match query(fd, address) {
                // This kernel does not have the query, or a seccomp filter refuses it.
                Err(libc::ENOTTY | libc::ENOSYS | libc::EPERM) => SHOWS_LIST.store(true, Relaxed),
                found => {
                    let (this, is_plain) = found.ok()??;
                    let at = |address: usize| Some(query(fd, address).ok()??.0);
                    let below = at(this.0.wrapping_sub(1)).filter(|below| below.1 == this.0);
                    let above = at(this.1).filter(|above| above.0 == this.1);
                    return Some(Self { below, this, above, is_plain });
                }
            }
        }
        in_list(fd, address)
    }
}

/// Queries one mapping (PROCMAP_QUERY of linux/fs.h), and whether it is plain; an error is an errno.
fn query(fd: i32, address: usize) -> Result<Option<(Range, bool)>, i32> {
    const PROCMAP_QUERY: usize = 0xc068_6611;
    const READABLE: u64 = 1;
    const WRITABLE: u64 = 2;
    const EXECUTABLE: u64 = 4;
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
    // SAFETY: every field of `Query` is a number, for which zero is valid.
    let mut asked = unsafe { Query { size: 104, address: address as u64, ..zeroed() } };
    const _: () = assert!(size_of::<Query>() == 104);
    // SAFETY: the kernel reads and fills `asked`, whose first field is its size.
    match unsafe { syscall!(SYS_ioctl, fd, PROCMAP_QUERY, &raw mut asked) } {
        0 => {
            let suits = asked.inode == 0 && asked.flags & SHARED == 0;
            let rights = asked.flags & (READABLE | WRITABLE | EXECUTABLE);
            let range = (asked.start as usize, asked.end as usize);
            Ok(suits.then_some((range, rights == READABLE | WRITABLE)))
        }
        error => Err(-(error as i32)),
    }
}

/// Searches the list in small parts: callers may have a stack of 8 KiB.
fn in_list(fd: i32, address: usize) -> Option<Around> {
    // Long enough for the fields before the path.
    let (mut line, mut filled, mut at) = ([0; 96], 0, 0);
    let mut room = MaybeUninit::<[u8; 512]>::uninit();
    let (to, size) = (room.as_mut_ptr(), size_of_val(&room));
    let (mut last, mut found): (Option<Range>, Option<Around>) = (None, None);
    // SAFETY: the kernel writes at most `size` bytes, the size of `room`.
    while let got @ 1.. = unsafe { syscall!(SYS_pread64, fd, to, size, at) } {
        at += got;
        // SAFETY: the kernel has filled the first `got` bytes of `room`.
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
            let Some((start, end, suits, is_plain)) = shown else { continue };
            if let Some(found) = found {
                let above = Some((start, end)).filter(|above| suits && above.0 == found.this.1);
                return Some(Around { above, ..found });
            }
            if address < end {
                if !suits || address < start {
                    return None;
                }
                let below = last.filter(|last| last.1 == start);
                found = Some(Around { below, this: (start, end), above: None, is_plain });
            }
            last = suits.then_some((start, end));
        }
    }
    found
}

/// Parses start, end, whether it is private and anonymous, and whether it is plain.
fn parse_line(line: &[u8]) -> Option<(usize, usize, bool, bool)> {
    let hex = |text: &[u8]| usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok();
    let mut words = line.split(|&byte| byte == b' ');
    let mut ends = words.next()?.split(|&byte| byte == b'-');
    let (start, end) = (hex(ends.next()?)?, hex(ends.next()?)?);
    let (rights, inode) = (words.next()?, words.nth(2)?);
    Some((start, end, rights.ends_with(b"p") && inode == b"0", rights.starts_with(b"rw-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_and_query_show_equal_mappings() {
        process::claim_memory();
        let len = 6 << 20;
        let map = |rights, flags, len| {
            // SAFETY: new memory.
            let at = unsafe { libc::mmap(core::ptr::null_mut(), len, rights, flags, -1, 0) };
            at as usize
        };
        let held = SignalsHeld::all().unwrap();
        let (both, anonymous) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS);
        let private = map(libc::PROT_READ, libc::MAP_PRIVATE | anonymous, 3 * len) + len;
        // SAFETY: memory that was just mapped.
        unsafe { libc::mprotect(private as *mut _, len, both) };
        let shared = map(both, libc::MAP_SHARED | anonymous, len);
        let code = Around::look as *const () as usize;
        for (address, is_private) in [(private + 4096, true), (shared, false), (code, false)] {
            let found = Around::look(address, &held);
            assert_eq!(found.is_some(), is_private);
            if let Some(found) = found {
                assert_eq!(found.this, (private, private + len));
                assert!(found.is_plain);
                assert!(!Around::look(private - 1, &held).unwrap().is_plain);
                assert_eq!(found.below.unwrap().1, private);
                assert_eq!(found.above.unwrap().0, private + len);
            }
            let was_list = SHOWS_LIST.swap(true, Relaxed);
            assert_eq!(Around::look(address, &held), found);
            SHOWS_LIST.store(was_list, Relaxed);
        }
        assert_eq!(Around::look(1, &held), None);
    }
}
