//! How the pieces of one copy are copied: by which kernel, with whose rights, and what keeps
//! faults in the caller.

use super::Refused;
use super::kernel::Kernel;
use super::signals;
use crate::cpus;
use crate::plan::PAGE;
use core::arch::asm;

/// What is done for a program that handles SIGSEGV or SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// The kernel copies and reports bad pages: right whatever happens meanwhile.
    Strict,
    /// The caller touches every page first, so that a bad one faults there and then. Faster,
    /// and right unless a page goes bad while it is being copied (another thread unmaps it,
    /// another process truncates the file): then the process dies without its handler.
    Touch,
}

/// A bit that no packed manner has: the helper carries the piece.
pub const BY_HELPER: usize = 1 << 25;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Manner {
    pub kernel: Kernel,
    /// The caller's protection-key rights, where the CPU has keys: they belong to the
    /// thread, and a worker must see exactly the memory its caller sees.
    rights: Option<u32>,
    pub touch: Touch,
}

/// Which pages the caller touches before it posts, so that a bad one faults there and then,
/// in the program's thread, with nothing on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    Nothing,
    /// Reads one byte of every source page.
    Source,
    /// Copies one byte of every page on either side.
    Both,
}

impl Touch {
    /// # Safety
    /// As memcpy.
    pub unsafe fn pages(self, dst: usize, src: usize, len: usize) {
        let mut at = 0;
        while at < len {
            let rest = |address: usize| PAGE - (address + at) % PAGE;
            // SAFETY: inside the caller's ranges.
            let byte = unsafe { ((src + at) as *const u8).read_volatile() };
            if self == Touch::Both {
                // SAFETY: inside the caller's ranges.
                unsafe { ((dst + at) as *mut u8).write_volatile(byte) };
                at += rest(dst).min(rest(src));
            } else {
                at += rest(src);
            }
        }
    }
}

impl Manner {
    /// Faults belong to the caller. When the program handles SIGSEGV or SIGBUS, nobody may
    /// fault while a copy is on the board, so the kernel copies and reports bad pages.
    pub fn now(kernel: Kernel, faults: Faults) -> Result<Self, Refused> {
        let keys = cpus::features().protection_keys;
        signals::stand_in_front()?;
        let _ = faults;
        Ok(Self { kernel, rights: keys.then(read_rights), touch: Touch::Nothing })
    }

    /// The same for a copy that goes on when its caller has returned. Whether the program
    /// handles faults is asked by whoever copies a piece, so that starting is short. Keys of
    /// source pages are not looked at.
    pub fn for_later(kernel: Kernel) -> Self {
        let rights = cpus::features().protection_keys.then(read_rights);
        Self { kernel, rights, touch: Touch::Nothing }
    }

    pub fn adopt_rights(self) {
        if let Some(rights) = self.rights.filter(|&rights| rights != read_rights()) {
            // SAFETY: only exists where the CPU has keys. The caller runs with these rights
            // and can reach its stack and our data, so a worker can too.
            unsafe {
                asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0,
                    options(nostack, preserves_flags));
            }
        }
    }

    /// rights: 32 bits | thread number: 22 bits, as the kernel's | has rights | kernel: 2 bits
    pub fn pack(self) -> usize {
        let (kind, tid) = match self.kernel {
            Kernel::Ordinary => (0, 0),
            Kernel::Movsb => (1, 0),
            Kernel::Stream => (2, 0),
            Kernel::NoFault { tid } => (3, tid as usize & 0x3f_ffff),
        };
        let has_rights = usize::from(self.rights.is_some());
        (self.rights.unwrap_or(0) as usize) << 32 | tid << 3 | has_rights << 2 | kind
    }

    pub fn unpack(packed: usize) -> Self {
        let kernel = match packed & 3 {
            0 => Kernel::Ordinary,
            1 => Kernel::Movsb,
            2 => Kernel::Stream,
            _ => Kernel::NoFault { tid: (packed >> 3 & 0x3f_ffff) as i32 },
        };
        let rights = (packed & 4 != 0).then_some((packed >> 32) as u32);
        Self { kernel, rights, touch: Touch::Nothing }
    }
}

/// The protection-key rights of this thread. Only where the CPU has keys.
fn read_rights() -> u32 {
    let rights;
    // SAFETY: callers have checked the CPU; reads one register.
    unsafe {
        asm!("rdpkru", out("eax") rights, in("ecx") 0, out("edx") _,
            options(nomem, nostack, preserves_flags));
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manner_survives_packing() {
        let last = Kernel::NoFault { tid: (1 << 22) - 1 };
        for kernel in [Kernel::Ordinary, Kernel::Movsb, Kernel::Stream, last] {
            for rights in [None, Some(0), Some(u32::MAX)] {
                let manner = Manner { kernel, rights, touch: Touch::Nothing };
                assert_eq!(Manner::unpack(manner.pack()), manner);
            }
        }
    }
}
