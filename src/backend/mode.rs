//! How the pieces of one copy are copied: by which loop, with whose rights, and by whose memory policy.

use crate::backend::copy_loop::CopyLoop;
use crate::os::cpus;
use crate::os::memory_policy::{self, PolicyId};
use core::arch::asm;
use core::sync::atomic::AtomicU32;

/// A bit that no packed mode has: the helper carries the piece.
pub const BY_HELPER: usize = 1 << 25;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mode {
    pub copy_loop: CopyLoop,
    /// The caller's protection-key rights, where the CPU has keys: they belong to the
    /// thread, and a worker must see exactly the memory its caller sees.
    rights: Option<u32>,
    /// By which the caller's new pages are placed.
    policy: PolicyId,
}

const POLICY_SHIFT: u32 = 3;

impl Mode {
    /// With the rights and the memory policy of this thread.
    pub fn now(copy_loop: CopyLoop) -> Self {
        let rights = cpus::features().protection_keys.then(read_rights);
        Self { copy_loop, rights, policy: memory_policy::of_caller() }
    }

    /// Whether workers can place new pages as the caller would.
    pub fn can_be_shared(self) -> bool {
        self.policy != memory_policy::UNKNOWN
    }

    /// Takes on what belongs to the caller, for a worker that has the memory policy in `policy`.
    pub fn adopt(self, policy: &AtomicU32) {
        memory_policy::take_on(self.policy, policy);
        if let Some(rights) = self.rights.filter(|&rights| rights != read_rights()) {
            // SAFETY: only exists where the CPU has keys. The caller runs with these rights
            // and can reach its stack and our data, so a worker can too.
            unsafe {
                asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0,
                    options(nostack, preserves_flags));
            }
        }
    }

    /// rights: 32 bits | for others: 24 bits | policy: 5 bits | has rights | copy_loop: 2 bits
    pub fn pack(self) -> usize {
        let kind = match self.copy_loop {
            CopyLoop::Ordinary => 0,
            CopyLoop::Stream => 1,
        };
        let has_rights = usize::from(self.rights.is_some());
        let policy = (self.policy as usize) << POLICY_SHIFT;
        (self.rights.unwrap_or(0) as usize) << 32 | policy | has_rights << 2 | kind
    }

    pub fn unpack(packed: usize) -> Self {
        let copy_loop = match packed & 3 {
            0 => CopyLoop::Ordinary,
            _ => CopyLoop::Stream,
        };
        let rights = (packed & 4 != 0).then_some((packed >> 32) as u32);
        let policy = (packed >> POLICY_SHIFT) as PolicyId & ((1 << memory_policy::BITS) - 1);
        Self { copy_loop, rights, policy }
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
                for policy in [memory_policy::ANY, 1, memory_policy::UNKNOWN] {
                    let mode = Mode { copy_loop, rights, policy };
                    assert_eq!(Mode::unpack(mode.pack()), mode);
                }
            }
        }
    }
}
