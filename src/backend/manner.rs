//! How the pieces of one copy are copied: by which loop, and with whose rights.

use super::kernel::Kernel;
use crate::cpus;
use core::arch::asm;

/// A bit that no packed manner has: the helper carries the piece.
pub const BY_HELPER: usize = 1 << 25;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Manner {
    pub kernel: Kernel,
    /// The caller's protection-key rights, where the CPU has keys: they belong to the
    /// thread, and a worker must see exactly the memory its caller sees.
    rights: Option<u32>,
}

impl Manner {
    /// With the rights of this thread.
    pub fn now(kernel: Kernel) -> Self {
        Self { kernel, rights: cpus::features().protection_keys.then(read_rights) }
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

    /// rights: 32 bits | for others: 29 bits | has rights | kernel: 2 bits
    pub fn pack(self) -> usize {
        let kind = match self.kernel {
            Kernel::Ordinary => 0,
            Kernel::Movsb => 1,
            Kernel::Stream => 2,
        };
        let has_rights = usize::from(self.rights.is_some());
        (self.rights.unwrap_or(0) as usize) << 32 | has_rights << 2 | kind
    }

    pub fn unpack(packed: usize) -> Self {
        let kernel = match packed & 3 {
            0 => Kernel::Ordinary,
            1 => Kernel::Movsb,
            _ => Kernel::Stream,
        };
        let rights = (packed & 4 != 0).then_some((packed >> 32) as u32);
        Self { kernel, rights }
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
        for kernel in [Kernel::Ordinary, Kernel::Movsb, Kernel::Stream] {
            for rights in [None, Some(0), Some(u32::MAX)] {
                let manner = Manner { kernel, rights };
                assert_eq!(Manner::unpack(manner.pack()), manner);
            }
        }
    }
}
