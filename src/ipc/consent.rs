//! The sign that a program has agreed to be reached: a page of its memory, at an address and
//! with a word that the other side has chosen.
//!
//! A process number is no proof: the process may have ended and the number been given away, or
//! it may have executed another program, with rights that its old one did not have. But the
//! kernel looks up a process's memory once for each `process_vm_readv` or `process_vm_writev`,
//! together with its credentials, and goes through the ranges of the call in order. So every
//! call begins with this page, and what comes after it belongs to the same memory, whatever the
//! process does meanwhile: either the program that has agreed, or nothing is transferred.
//!
//! The address is chosen at random out of 2^34 pages by the side that wants to reach, so that
//! the other cannot choose one that another program is known to have. What both sides have said
//! first goes into it, and who of them asks: a page that was laid for another connection, or for
//! the other direction of this one, is not there.

use super::claims::Role;
use super::os;
use crate::os::{sys, text};
use crate::plan::PAGE;
use core::ffi::c_void;
use core::mem::offset_of;

/// What lies at the beginning of the page.
#[repr(C)]
pub struct Sign {
    /// What was asked for; to be read.
    pub word: u64,
    /// To be written.
    pub mark: u64,
}

pub const SIGN: usize = size_of::<Sign>();

/// What is asked of the other side: where a page shall lie that says that it has agreed, and the
/// word in it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Stands for the places; see `place`.
    pub seed: u64,
    pub word: u64,
}

impl Demand {
    /// What it means between two sides with these nonces: who asks, and who is asked. The latter may
    /// have heard the demand before it chose its nonce, and must not get what it likes: so what was
    /// stirred is bound to what went in, and cannot be counted back.
    pub fn between(self, asks: u64, asked: u64) -> Self {
        let bound = |word: u64| stir(stir(word ^ asks).wrapping_add(asked)) ^ word ^ asked;
        Self { seed: bound(self.seed), word: bound(self.word) }
    }
}

/// Not all of the address space is free in every program.
const PLACES: u32 = 4;

/// Where no stack and no heap grows, so that a page there is in nobody's way.
const LOWEST: u64 = 0x1000_0000_0000;
const PAGES: u64 = 1 << 34;

/// One of the places of a demand.
fn place(seed: u64, index: u32) -> usize {
    let word = stir(seed.wrapping_add(u64::from(index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (LOWEST + (word >> 30) % PAGES * PAGE as u64) as usize
}

/// As splitmix64: every bit counts.
fn stir(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Our page for the other side; it goes with its owner.
pub struct Page {
    pub at: usize,
    /// Which of the places it is, and one; 0: another, which only the kernel helper is told.
    pub chosen: u32,
}

impl Page {
    /// For who may reach us, or may not: then, or where this program does not want to be reached,
    /// it lies anywhere. `None`: there is no memory.
    pub fn lay(demand: Demand, may_reach: bool) -> Option<Self> {
        let asked_for = if may_reach && os::is_dumpable() { PLACES } else { 0 };
        let places = (0..asked_for).map(|index| (place(demand.seed, index), index + 1));
        places.chain([(0, 0)]).find_map(|(at, chosen)| {
            let at = os::map_page_at(at).ok()?;
            let sign = Sign { word: demand.word, mark: 0 };
            // SAFETY: just mapped, writable, and nobody else's.
            unsafe { (at as *mut Sign).write(sign) };
            Some(Self { at, chosen })
        })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `lay`; the others reach it by system calls, which notice.
        unsafe { sys::unmap(self.at as *mut c_void, PAGE) };
    }
}

/// A program that has agreed: the only address of another process's memory that there is here.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    pid: i32,
    at: usize,
    word: u64,
}

/// Why nothing was copied, or not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It is not the program that has agreed, or not any more.
    Stranger,
    System(i32),
}

impl core::fmt::Display for Failed {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Failed::Stranger => out.write_str("another process is found there"),
            Failed::System(errno) => write!(out, "{} (errno {errno})", text::meaning(errno)),
        }
    }
}

impl Agreed {
    /// `None`: the other side says that it has no such page.
    pub fn new(pid: i32, demand: Demand, chosen: u32) -> Option<Self> {
        let index = chosen.checked_sub(1).filter(|&index| index < PLACES)?;
        Some(Self { pid, at: place(demand.seed, index), word: demand.word })
    }

    /// Copies between our memory and the other's; answers the bytes copied. 0: one of the
    /// buffers is not what it should be.
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
        // SAFETY: the caller's promise.
        match unsafe { self.copy_behind_sign(role, ours, theirs, len) } {
            // The kernel also says so, before it has looked at anything, of an address of ours
            // that nobody can have.
            Err(libc::EFAULT) if len > 0 => {
                // SAFETY: nothing but the sign.
                let sign = unsafe { self.copy_behind_sign(role, 0, 0, 0) };
                if let Ok(Some(_)) = sign { Ok(0) } else { Err(Failed::Stranger) }
            }
            Err(libc::EFAULT) => Err(Failed::Stranger),
            Err(errno) => Err(Failed::System(errno)),
            Ok(None) => Err(Failed::Stranger),
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
            Role::Reader => (0, self.at + offset_of!(Sign, word)),
            Role::Writer => (!self.word, self.at + offset_of!(Sign, mark)),
        };
        let here = [(&raw mut word as usize, WORD), (ours, len)];
        // SAFETY: `word` is ours and nobody looks at it meanwhile; the caller's promise.
        let bytes =
            unsafe { os::copy_across(role, self.pid, here, [(there, WORD), (theirs, len)]) }?;
        // SAFETY: a word of ours, which the kernel may have written.
        let word = unsafe { (&raw const word).read_volatile() };
        let right = role == Role::Writer || word == self.word;
        Ok(bytes.checked_sub(WORD).filter(|_| right))
    }

    /// Whether the sign is there, and can be read, or written.
    pub fn shows_sign(&self, role: Role) -> Result<(), Failed> {
        // SAFETY: nothing but the sign.
        unsafe { self.copy(role, 0, 0, 0) }.map(drop)
    }

    /// Both ways; nothing is written into a process that was not recognised.
    pub fn probe(&self) -> [Result<(), Failed>; 2] {
        let pull = self.shows_sign(Role::Reader);
        [pull, pull.and_then(|()| self.shows_sign(Role::Writer))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_pages_far_from_stack_and_heap_and_none_like_another() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..1000u64 {
            for index in 0..PLACES {
                let at = place(seed, index);
                assert!(
                    at.is_multiple_of(PAGE) && (LOWEST..0x5000_0000_0000).contains(&(at as u64))
                );
                assert!(seen.insert(at), "{seed} {index}");
            }
        }
    }

    /// The same demand, of two sides, both ways and with another third.
    #[test]
    fn page_for_one_direction_of_one_connection_is_no_other() {
        let demand = Demand { seed: 5, word: 6 };
        let nonces = [1, 2, 3, 1 << 63];
        let mut seen = std::collections::HashSet::new();
        for (asks, asked) in nonces.iter().flat_map(|&asks| nonces.map(|asked| (asks, asked))) {
            let Demand { seed, word } = demand.between(asks, asked);
            assert!(seen.insert(place(seed, 0)) && seen.insert(word as usize), "{asks} {asked}");
        }
    }

    /// Who is asked knows the demand when it chooses its nonce, and counts back from where it wants
    /// the page to be, or what is to be the word in it.
    #[test]
    fn who_is_asked_cannot_choose_the_place() {
        let inverse = |odd: u64| {
            let step = |x: u64| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
            (0..6).fold(odd, |x, _| step(x))
        };
        let unshift = |word: u64, by: u32| word ^ word >> by ^ word >> (2 * by).min(63);
        let unstir = |word: u64| {
            let word = unshift(word, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
            let word = unshift(word, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
            unshift(word, 30)
        };
        let (demand, asks) = (Demand { seed: 5, word: 6 }, 1234);
        for wanted in [1, 0x1234_5678_9abc_def0, 1 << 63] {
            assert_eq!(stir(unstir(wanted)), wanted);
            let nonce = unstir(wanted).wrapping_sub(stir(demand.seed ^ asks));
            assert_ne!(demand.between(asks, nonce).seed, wanted);
            let nonce = unstir(wanted).wrapping_sub(stir(demand.word ^ asks));
            assert_ne!(demand.between(asks, nonce).word, wanted);
        }
    }

    #[test]
    fn nothing_is_copied_without_the_sign() {
        let demand = Demand { seed: 77, word: 0x1234_5678 };
        let page = Page::lay(demand, true).unwrap();
        let pid = crate::os::sys::getpid();
        let agreed = Agreed::new(pid, demand, page.chosen).unwrap();
        let (from, mut to) = ([7u8; 100], [0u8; 100]);
        let (here, there) = (to.as_mut_ptr() as usize, from.as_ptr() as usize);
        // SAFETY: both live through the call.
        let pull = |agreed: &Agreed, len: usize| unsafe {
            (here as *mut u8).write_bytes(0, 100);
            let got = agreed.copy(Role::Reader, here, there, len);
            (got, (here as *const u8).read())
        };
        assert_eq!(agreed.probe(), [Ok(()), Ok(())]);
        assert_eq!(pull(&agreed, 100), (Ok(100), 7));
        assert_eq!(pull(&Agreed { word: 1, ..agreed }, 100).0, Err(Failed::Stranger));
        // SAFETY: addresses that nobody has.
        unsafe {
            assert_eq!(agreed.copy(Role::Reader, here, 4096, 8), Ok(0));
            assert_eq!(agreed.copy(Role::Writer, 4096, here, 8), Ok(0));
            assert_eq!(agreed.copy(Role::Reader, usize::MAX - 99, there, 9), Ok(0));
        }
        drop(page);
        assert_eq!(pull(&agreed, 100), (Err(Failed::Stranger), 0));
        assert_eq!(agreed.probe(), [Err(Failed::Stranger); 2]);
        for chosen in [0, PLACES + 1, u32::MAX] {
            assert!(Agreed::new(pid, demand, chosen).is_none());
        }
    }

    #[test]
    fn page_is_laid_elsewhere_where_a_place_is_taken() {
        let demand = Demand { seed: 99, word: 1 };
        let lay = |may_reach| Page::lay(demand, may_reach).unwrap();
        let pages = [false, true, true, true, true, true].map(lay);
        assert_eq!(pages.each_ref().map(|page| page.chosen), [0, 1, 2, 3, 4, 0]);
    }
}
