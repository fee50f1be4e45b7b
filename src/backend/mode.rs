//! How the pieces of one copy are copied: by which loop, and with whose rights.

use crate::backend::copy_loop::CopyLoop;
use crate::os::cpus;
use core::arch::asm;

/// A bit that no packed mode has: the helper carries the piece.
pub const BY_HELPER: usize = 1 << 25;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mode {
    pub copy_loop: CopyLoop,
    /// The caller's protection-key rights, where the CPU has keys: they belong to the
    /// thread, and a worker must see exactly the memory its caller sees.
    rights: Option<u32>,
}

impl Mode {
    /// With the rights of this thread.
    pub fn now(copy_loop: CopyLoop) -> Self {
        Self { copy_loop, rights: cpus::features().protection_keys.then(read_rights) }
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

    /// rights: 32 bits | for others: 29 bits | has rights | copy_loop: 2 bits
    pub fn pack(self) -> usize {
        let kind = match self.copy_loop {
            CopyLoop::Ordinary => 0,
            CopyLoop::Stream => 1,
        };
        let has_rights = usize::from(self.rights.is_some());
        (self.rights.unwrap_or(0) as usize) << 32 | has_rights << 2 | kind
    }

    pub fn unpack(packed: usize) -> Self {
        let copy_loop = match packed & 3 {
            0 => CopyLoop::Ordinary,
            _ => CopyLoop::Stream,
        };
        let rights = (packed & 4 != 0).then_some((packed >> 32) as u32);
        Self { copy_loop, rights }
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
    fn mode_survives_packing() {
        for copy_loop in [CopyLoop::Ordinary, CopyLoop::Stream] {
            for rights in [None, Some(0), Some(u32::MAX)] {
                let mode = Mode { copy_loop, rights };
                assert_eq!(Mode::unpack(mode.pack()), mode);
            }
        }
    }
}
