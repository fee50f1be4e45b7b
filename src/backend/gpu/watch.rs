//! Detects that registered memory has gone away: the kernel reports it by userfaultfd.
//!
//! A registration pins pages, not addresses. When the program unmaps a buffer and maps another at
//! the same address, the card would still use the old pages. Functions that unmap can be
//! interposed, but free() unmaps inside the C library, and system calls can be made by hand. So
//! each registered range is also registered with a userfaultfd, which write-protects nothing and
//! asks for no page, but for events: munmap, mmap over it, brk and mremap, and MADV_DONTNEED,
//! MADV_FREE and MADV_REMOVE, whichever code calls them. The kernel makes the caller of these wait
//! until the event has been read.
//!
//! ```text
//! the program's thread, in the kernel            our thread, `run`         `is_settled`
//! changing += 1
//! pages go; address may be had by others
//! event is offered; waits                        turn odd                  changing > 0 ? no
//!                                                read; caller goes on
//! changing -= 1; returns                         mark stale                turn odd ? no
//!                                                turn even                 yes
//! ```
//!
//! `changing` is a count of the kernel's. While it is not 0, the ioctl that lifts write protection
//! returns EAGAIN, so a call for a page of our own shows it. It becomes 0 again only after the
//! event was read, which is after `turn` has become odd. So if a thread finds nothing changing, and
//! then an even turn, everything whose pages went before is marked stale.
//!
//! Not covered: pages of files and of shared memory, which can go away without an event
//! (truncation, shmdt). Such memory is never registered; see `anonymous`. Nor are changes of
//! protection: mprotect is interposed.

use super::registrations::Registrations;
use crate::os::{brief_file, sys};
use crate::plan::PAGE;
use alloc::vec;
use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize};
use zerocopy::FromZeros;

/// The kernel's interface, linux/userfaultfd.h.
mod abi {
    pub const USER_MODE_ONLY: i32 = 1;
    pub const API: usize = 0xc018_aa3f;
    pub const REGISTER: usize = 0xc020_aa00;
    pub const UNREGISTER: usize = 0x8010_aa01;
    pub const WRITEPROTECT: usize = 0xc018_aa06;
    pub const VERSION: u64 = 0xaa;
    /// Write protection, and the events of remapping, removing and unmapping.
    pub const FEATURES: u64 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 6;
    pub const MODE_WP: u64 = 1 << 1;
    pub const DONT_WAKE: u64 = 1 << 1;
    pub const EVENT_REMAP: u8 = 0x14;
    pub const EVENT_REMOVE: u8 = 0x15;
    pub const EVENT_UNMAP: u8 = 0x16;

    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub struct Message {
        pub event: u8,
        reserved: [u8; 7],
        pub arguments: [u64; 3],
    }
    const _: () = assert!(size_of::<Message>() == 32);
}

#[derive(FromZeros)]
pub struct Watch {
    /// The descriptor plus one; 0: not open.
    fd: AtomicI32,
    turn: AtomicU64,
    /// Page of ours that is registered only for `is_settled`.
    page: AtomicUsize,
}

/// Result of `is_settled`.
#[derive(Debug, PartialEq, Eq)]
pub enum Settled {
    Yes,
    /// A thread is unmapping memory.
    NotYet,
    /// Nothing can be known any more: the descriptor is not ours.
    Never,
}

impl Watch {
    /// Opens the userfaultfd. Returns an errno where the kernel refuses.
    pub fn open(&self, _: sys::NoFilter) -> Result<(), i32> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK | abi::USER_MODE_ONLY) as usize;
        // SAFETY: the call takes flags, and touches no memory of the program.
        let low = unsafe { sys::syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) };
        if low < 0 {
            return Err(-low as i32);
        }
        let fd = sys::move_up(low as i32);
        if fd < 0 {
            return Err(-fd as i32);
        }
        self.fd.store(fd as i32 + 1, Relaxed);
        let mut api = [abi::VERSION, abi::FEATURES, 0];
        let answer = self.call(abi::API, &mut api);
        if answer != 0 {
            return Err(-answer as i32);
        }
        let page = sys::map(PAGE).ok_or(libc::ENOMEM)? as usize;
        self.page.store(page, Relaxed);
        if !self.add(page, page + PAGE) {
            return Err(libc::EINVAL);
        }
        match self.is_settled() {
            Settled::Never => Err(libc::ENOSYS),
            _ => Ok(()),
        }
    }

    fn call(&self, request: usize, argument: &mut [u64]) -> sys::SysResult {
        let fd = self.fd.load(Relaxed) - 1;
        let at = argument.as_mut_ptr() as usize;
        // SAFETY: each request has as many words as the array it is called with.
        unsafe { sys::syscall(libc::SYS_ioctl, [fd as usize, request, at, 0, 0, 0]) }
    }

    /// Reports changes of a range from now on. False: the kernel cannot.
    pub fn add(&self, start: usize, end: usize) -> bool {
        let mut range = [start as u64, (end - start) as u64, abi::MODE_WP, 0];
        self.call(abi::REGISTER, &mut range) == 0
    }

    /// Stops reporting changes of a range.
    pub fn remove(&self, start: usize, end: usize) {
        self.call(abi::UNREGISTER, &mut [start as u64, (end - start) as u64]);
    }

    /// Returns whether all changes that have taken place have been marked.
    pub fn is_settled(&self) -> Settled {
        let page = self.page.load(Relaxed) as u64;
        match -self.call(abi::WRITEPROTECT, &mut [page, PAGE as u64, abi::DONT_WAKE]) as i32 {
            0 if self.turn.load(SeqCst).is_multiple_of(2) => Settled::Yes,
            0 | libc::EAGAIN => Settled::NotYet,
            _ => Settled::Never,
        }
    }

    /// Reads events until the descriptor is gone, and marks registrations stale. Calls `notify`
    /// when there were any. Allocates nothing and waits for no thread: threads of the program's
    /// wait for this one, with whatever locks they hold.
    pub fn run(&self, registrations: &Registrations, notify: impl Fn()) {
        let fd = self.fd.load(Relaxed) - 1;
        loop {
            let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry of ours.
            let ready = unsafe { sys::poll(&raw mut wanted as usize, 1, -1) };
            if ready == -libc::EINTR as isize {
                continue;
            }
            if ready < 0 || wanted.revents & libc::POLLIN == 0 {
                return; // not ours any more, as `is_settled` finds too
            }
            self.turn.fetch_add(1, SeqCst);
            let mut messages = [abi::Message::default(); 8];
            // SAFETY: the kernel writes whole messages into the array.
            let got = unsafe {
                let (at, len) = (messages.as_mut_ptr() as usize, size_of_val(&messages));
                sys::syscall(libc::SYS_read, [fd as usize, at, len, 0, 0, 0])
            };
            let count = usize::try_from(got).unwrap_or(0) / size_of::<abi::Message>();
            let mut marked = false;
            for message in messages.iter().take(count) {
                let [first, second, third] = message.arguments.map(|word| word as usize);
                marked |= match message.event {
                    abi::EVENT_UNMAP | abi::EVENT_REMOVE => registrations.mark_stale(first, second),
                    // From, to, length.
                    abi::EVENT_REMAP => {
                        registrations.mark_stale(first, first.saturating_add(third))
                    }
                    _ => false,
                };
            }
            self.turn.fetch_add(1, SeqCst);
            if marked {
                notify();
            }
            if got == 0
                || (got < 0 && got != -libc::EAGAIN as isize && got != -libc::EINTR as isize)
            {
                return;
            }
        }
    }

    /// Resets the watch in the child of a fork: the descriptor reports the parent's memory.
    pub fn forget_after_fork(&self) {
        self.fd.store(0, Relaxed);
    }
}

/// Returns the mapping at an address, if it is private, anonymous, readable and writable: the kind
/// of which every change is reported.
pub fn anonymous(address: usize) -> Option<Range<usize>> {
    let mut maps = vec![0; 64 << 10];
    let len = loop {
        let len = brief_file::read(c"/proc/self/maps", &mut maps, sys::NoNewFilter::look()?)?.len();
        if len < maps.len() {
            break len;
        }
        maps.resize(2 * len, 0);
    };
    find_anonymous(core::str::from_utf8(&maps[..len]).ok()?, address)
}

fn find_anonymous(maps: &str, address: usize) -> Option<Range<usize>> {
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        if !(start..end).contains(&address) {
            continue;
        }
        let (rights, _offset, _device) = (words.next()?, words.next()?, words.next()?);
        let (inode, name) = (words.next()?, words.next().unwrap_or(""));
        let plain = name.is_empty() || name == "[heap]" || name.starts_with("[anon");
        let fits = rights.starts_with("rw") && rights.ends_with('p') && inode == "0" && plain;
        return fits.then_some(start..end);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
5581c000-5581d000 r--p 00000000 fe:00 131 /usr/bin/true
5581d000-5583e000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
7f0000400000-7f0000500000 ---p 00000000 00:00 0 
7f0000500000-7f0000600000 rw-s 00000000 00:01 44 /dev/zero (deleted)
7f0000600000-7f0000700000 rw-p 00001000 fe:00 12 /tmp/file
7f0000700000-7f0000800000 rw-p 00000000 00:00 0 [anon:name]
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn only_private_memory_of_no_file_that_can_be_written_is_anonymous() {
        let found = |address| find_anonymous(MAPS, address).map(|found| (found.start, found.end));
        assert_eq!(found(0x5581_d010), Some((0x5581_d000, 0x5583_e000)));
        assert_eq!(found(0x7f00_003f_ffff), Some((0x7f00_0000_0000, 0x7f00_0040_0000)));
        assert_eq!(found(0x7f00_0070_0000), Some((0x7f00_0070_0000, 0x7f00_0080_0000)));
        let others = [0x5581_c000, 0x7f00_0040_0000, 0x7f00_0050_0000, 0x7f00_0060_0000];
        for other in others.into_iter().chain([0x7ffd_0000_0000, 0x1000]) {
            assert_eq!(found(other), None, "{other:x}");
        }
    }
}
