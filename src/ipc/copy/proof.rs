//! Proof that two processes may reach each other's memory, by the kernel's own rule.
//!
//! Each side maps a page of its own at a random address. It holds a secret and the peer's nonce of
//! this connection. The peer reads the page by process_vm_readv, for which the kernel demands
//! PTRACE_MODE_ATTACH (user, capabilities, dumpable, Yama, Landlock and other LSMs, seccomp,
//! namespaces), and sends the secret back. A peer that knows our secret could trace us, and so
//! could do anything to us; it gets addresses and blocks, and its counts are trusted. Where either
//! proof fails, nothing of the kind happens: messages are streamed.
//!
//! Why a read and not pidfd_getfd(2), which has the same rule: container runtimes forbid that call
//! and allow process_vm_readv; data is copied by process_vm_readv, so the proof tests exactly that
//! right; and a descriptor can be a file whose close blocks.
//!
//! A read blocks as long as the peer's page does (userfaultfd, FUSE). So the side that has called
//! `adma_connect` reads first, by a helper thread and within its limit, and the side that accepts
//! reads nothing before it has heard its own secret. (`handshake` has the order.)
//!
//! The page also shows that the peer is the program that greeted: a process may execute another
//! program, or end and leave its number. The kernel looks an address space up once for each call and
//! goes through the ranges of the call in order, so every copy begins with a word of this page; if
//! the program is another one, nothing else is transferred. The address is random so that no other
//! program has a page there.

use crate::ipc::claims::Role;
use crate::ipc::os;
use crate::os::{sys, text};
use crate::plan::PAGE;
use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::AtomicU64;

pub type Secret = [u64; 2];

const MAGIC: u64 = u64::from_le_bytes(*b"admapage");

/// Layout of the beginning of the page.
#[repr(C)]
struct Contents {
    magic: u64,
    /// The peer's nonce: the page is for that peer and this connection.
    nonce: u64,
    /// Read before every pull.
    sign: u64,
    /// Written before every push.
    mark: AtomicU64,
    secret: Secret,
}

/// Bytes of the page that are used; the kernel helper may export them for a trial.
pub const SIGN: usize = size_of::<Contents>();

/// Range of the pages' addresses: no stack and no heap grows there, so a peer that names an address
/// in this range cannot have us read memory of a third process for it.
const LOWEST: u64 = 0x1000_0000_0000;
const PAGES: u64 = 1 << 34;

/// Our own page for one peer; unmapped on drop.
pub struct Page {
    pub at: usize,
}

impl Page {
    /// Maps a page for the peer with this nonce. `None`: no memory, no random numbers, or this
    /// process does not want to be reached (PR_SET_DUMPABLE).
    pub fn new(nonce: u64) -> Option<Self> {
        if !os::is_dumpable() {
            return None;
        }
        let place = || Some((LOWEST + os::random().ok()? % PAGES * PAGE as u64) as usize);
        // Not all of the range is free in every program.
        let at = (0..4).find_map(|_| os::map_page_at(place()?).ok())?;
        let page = Self { at };
        let [sign, one, two] = [os::random().ok()?, os::random().ok()?, os::random().ok()?];
        let (mark, secret) = (AtomicU64::new(0), [one, two]);
        let contents = Contents { magic: MAGIC, nonce, sign, mark, secret };
        // SAFETY: just mapped, writable, and known to this thread only.
        unsafe { (at as *mut Contents).write(contents) };
        Some(page)
    }

    fn contents(&self) -> &Contents {
        // SAFETY: mapped while `self` lives; a peer changes only `mark`, which is atomic.
        unsafe { &*(self.at as *const Contents) }
    }

    /// Returns whether the peer has read the secret.
    pub fn is_proven_by(&self, secret: Secret) -> bool {
        secret == self.contents().secret
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; peers reach it by system calls, which notice.
        unsafe { sys::unmap(self.at as *mut c_void, PAGE) };
    }
}

/// Why a piece was not copied, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Either side's buffer is not mapped.
    Fault,
    /// The system refuses the call, with this errno, or the helper has failed and there is no other way.
    System(i32),
    /// The process has ended, or is not the program that greeted.
    Gone,
}

impl core::fmt::Display for Failed {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Failed::Fault => out.write_str("a buffer is not mapped"),
            Failed::Gone => out.write_str("another program is found there"),
            Failed::System(errno) => write!(out, "{} (errno {errno})", text::meaning(errno)),
        }
    }
}

/// Page that a peer claims to have.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    pid: i32,
    at: usize,
    nonce: u64,
}

impl Claimed {
    /// Checks a claim. `None`: no page can be there, or the process is outside our pid namespace.
    pub fn new(pid: i32, at: u64, nonce: u64) -> Option<Self> {
        let inside = (LOWEST..LOWEST + PAGES * PAGE as u64).contains(&at);
        let right = inside && at.is_multiple_of(PAGE as u64) && pid > 0;
        right.then_some(Self { pid, at: at as usize, nonce })
    }

    /// Reads the page. Blocks as long as the peer's memory does.
    pub fn read(&self) -> Result<(Reached, Secret), Failed> {
        let mut words = [0u64; SIGN / size_of::<u64>()];
        let here = [(words.as_mut_ptr() as usize, SIGN), (0, 0)];
        // SAFETY: the kernel writes `words`, which are ours.
        let got =
            unsafe { os::copy_across(Role::Reader, self.pid, here, [(self.at, SIGN), (0, 0)]) };
        match got {
            Ok(SIGN) => {}
            Ok(_) | Err(libc::EFAULT) => return Err(Failed::Gone),
            Err(errno) => return Err(Failed::System(errno)),
        }
        // SAFETY: an array of ours, which the kernel has filled.
        let [magic, nonce, sign, _, secret @ ..] = unsafe { (&raw const words).read_volatile() };
        if magic != MAGIC || nonce != self.nonce {
            return Err(Failed::Gone);
        }
        Ok((Reached { pid: self.pid, at: self.at, sign }, secret))
    }
}

/// A peer whose page we have read: the only way to an address of another process.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    pid: i32,
    at: usize,
    sign: u64,
}

impl Reached {
    /// Copies between our memory and the peer's; returns the bytes copied. 0: one of the buffers is
    /// not mapped.
    ///
    /// # Safety
    /// For a pull no Rust reference covers `ours`; a push changes `theirs` in that process.
    pub unsafe fn copy(
        &self,
        role: Role,
        ours: usize,
        theirs: usize,
        len: usize,
    ) -> Result<usize, Failed> {
        // SAFETY: the caller says who else may touch `ours` and `theirs` (see above).
        match unsafe { self.copy_behind_sign(role, ours, theirs, len) } {
            // The kernel says EFAULT before it has looked at anything where an address of ours is
            // beyond the address space.
            Err(libc::EFAULT) if len > 0 => {
                // SAFETY: no bytes behind the sign, so no buffer is touched.
                let sign = unsafe { self.copy_behind_sign(role, 0, 0, 0) };
                if let Ok(Some(_)) = sign { Ok(0) } else { Err(Failed::Gone) }
            }
            Err(libc::EFAULT) => Err(Failed::Gone),
            Err(errno) => Err(Failed::System(errno)),
            Ok(None) => Err(Failed::Gone),
            Ok(Some(bytes)) => Ok(bytes),
        }
    }

    /// `None`: the sign is not there.
    unsafe fn copy_behind_sign(
        &self,
        role: Role,
        ours: usize,
        theirs: usize,
        len: usize,
    ) -> os::Result<Option<usize>> {
        const WORD: usize = size_of::<u64>();
        let (mut word, there) = match role {
            Role::Reader => (0, self.at + offset_of!(Contents, sign)),
            Role::Writer => (!self.sign, self.at + offset_of!(Contents, mark)),
        };
        let here = [(&raw mut word as usize, WORD), (ours, len)];
        // SAFETY: `word` is ours, and only the kernel writes it; `ours` is the caller's, for `len` bytes.
        let bytes =
            unsafe { os::copy_across(role, self.pid, here, [(there, WORD), (theirs, len)]) }?;
        // SAFETY: a word of ours, which the kernel may have written.
        let word = unsafe { (&raw const word).read_volatile() };
        let right = role == Role::Writer || word == self.sign;
        Ok(bytes.checked_sub(WORD).filter(|_| right))
    }

    /// Checks that the sign can be read, or the mark written.
    pub fn probe(&self, role: Role) -> Result<(), Failed> {
        // SAFETY: no bytes behind the sign, so no buffer is touched.
        unsafe { self.copy(role, 0, 0, 0) }.map(drop)
    }

    /// Returns the offsets of sign and mark in the page, and the sign; for a trial of the helper.
    pub fn trial(&self) -> (usize, usize, u64) {
        (offset_of!(Contents, sign), offset_of!(Contents, mark), self.sign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: u64 = 77;

    fn read(at: usize, nonce: u64) -> Result<(Reached, Secret), Failed> {
        Claimed::new(sys::getpid(), at as u64, nonce).unwrap().read()
    }

    #[test]
    fn secret_is_proven_by_reading_and_by_nothing_else() {
        let page = Page::new(NONCE).unwrap();
        let (_, secret) = read(page.at, NONCE).unwrap();
        assert!(page.is_proven_by(secret) && !page.is_proven_by([0; 2]));
        assert_eq!(read(page.at, NONCE + 1).unwrap_err(), Failed::Gone, "another peer's");
        let other = Page::new(NONCE).unwrap();
        assert!(other.at != page.at && !other.is_proven_by(secret));
    }

    /// A peer could otherwise have us read 16 bytes of a process that it may not read itself.
    #[test]
    fn page_outside_the_range_is_not_read() {
        let (pid, good) = (sys::getpid(), LOWEST + 5 * PAGE as u64);
        assert!(Claimed::new(pid, good, 0).is_some());
        let stack = &raw const pid as u64 & !4095;
        for bad in [0, stack, good + 8, LOWEST - PAGE as u64, LOWEST + PAGES * PAGE as u64] {
            assert!(Claimed::new(pid, bad, 0).is_none(), "{bad:#x}");
        }
        assert!(Claimed::new(0, good, 0).is_none());
    }
}
