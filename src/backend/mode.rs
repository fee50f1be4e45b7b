//! Mode of a copy: one word that the queue carries, and all of its bits.

#[cfg(not(loom))]
use crate::backend::Refused;
#[cfg(not(loom))]
use crate::backend::copy_loop::CopyLoop;
#[cfg(not(loom))]
use crate::os::arch;
#[cfg(not(loom))]
use crate::os::cpus::{self, Features};
#[cfg(not(loom))]
use crate::os::memory_policy::{self, PolicyId};
use bitflags::bitflags;

bitflags! {
    pub struct Mode: usize {
        /// Streaming stores instead of ordinary ones.
        const STREAM = 1;
        /// `RIGHTS` are the caller's, where the CPU has protection keys: they belong to the thread,
        /// and a worker must see exactly the memory its caller sees.
        const HAS_RIGHTS = 1 << 2;
        /// The `PolicyId` by which the caller's new pages are placed.
        const POLICY = 0b1_1111 << 3;
        /// Nodes of the first and the last page of the destination, each plus one; 0: it is one node, or they
        /// are not known.
        const FIRST_NODE = 0x7f << 8;
        const LAST_NODE = 0x7f << 15;
        /// Beside `BY_FUNCTION`: all workers that gain by it have been called; they call no others.
        const ALL_CALLED = 1 << 23;
        /// Beside `BY_FUNCTION`: the function counts its bytes itself. See `parallel`.
        const PARALLEL = 1 << 24;
        /// The kernel helper carries the piece.
        const BY_HELPER = 1 << 25;
        /// The destination was never written. Its pages are made before they are copied into, many
        /// by one call instead of a fault for each.
        const FRESH = 1 << 27;
        /// The source is the address of a `PieceFn`.
        const BY_FUNCTION = 1 << 28;
        /// The destination is filled with the source, which is the value.
        const FILL = 1 << 29;
        /// Both sides are compared.
        const COMPARE = 1 << 30;
        /// Pieces are claimed from the front by all threads, and those behind a piece can be
        /// cancelled.
        const IN_ORDER = 1 << 31;
        const RIGHTS = 0xffff_ffff << 32;
    }
}

#[cfg(not(loom))]
const _: () = assert!(Mode::POLICY.bits() >> 3 == memory_policy::UNKNOWN as usize);

#[cfg(not(loom))]
impl Mode {
    /// Returns a mode with the rights and the memory policy of this thread.
    pub fn of_caller(copy_loop: CopyLoop) -> Self {
        let policy = (memory_policy::of_caller() as usize) << 3;
        let mut mode = Self::from_bits_truncate(policy);
        mode.set(Self::STREAM, copy_loop == CopyLoop::Stream);
        if cpus::features().contains(Features::PROTECTION_KEYS) {
            mode |= Self::HAS_RIGHTS | Self::from_bits_truncate((read_rights() as usize) << 32);
        }
        mode
    }

    pub fn copy_loop(self) -> CopyLoop {
        if self.contains(Self::STREAM) { CopyLoop::Stream } else { CopyLoop::Ordinary }
    }

    fn policy(self) -> PolicyId {
        ((self & Self::POLICY).bits() >> 3) as PolicyId
    }

    /// Like `of_caller`, for memory whose pages may be new; refused where workers cannot place them as
    /// the caller would.
    pub fn for_new_pages(copy_loop: CopyLoop) -> Result<Self, Refused> {
        let mode = Self::of_caller(copy_loop);
        if mode.policy() == memory_policy::UNKNOWN { Err(Refused::Busy) } else { Ok(mode) }
    }

    /// Returns a mode with the nodes of a destination's ends (`memory_policy::nodes_of_ends`).
    pub fn of_ends(nodes: Option<[u32; 2]>) -> Self {
        let [first, last] = nodes.map_or([0, 0], |nodes| nodes.map(|node| node as usize + 1));
        Self::from_bits_truncate(first << 8 | last << 15)
    }

    /// Returns the nodes of the destination's ends, where they are known and differ.
    pub fn nodes_of_ends(self) -> Option<[u32; 2]> {
        let node = |bits: Self, shift: u32| ((self & bits).bits() >> shift).checked_sub(1);
        let [first, last] = [node(Self::FIRST_NODE, 8)?, node(Self::LAST_NODE, 15)?];
        Some([first as u32, last as u32])
    }

    /// Adopts the caller's memory policy and rights, in a worker whose own policy is in `policy`.
    pub fn adopt(self, policy: &core::sync::atomic::AtomicU32) {
        memory_policy::take_on(self.policy(), policy);
        let rights = (self.bits() >> 32) as u32;
        if self.contains(Self::HAS_RIGHTS) && rights != read_rights() {
            // SAFETY: only set where the CPU has keys. The caller runs with these rights
            // and can reach its stack and our data, so a worker can too.
            unsafe { arch::set_rights(rights) };
        }
    }
}

/// Reads the protection-key rights of this thread. Only where the CPU has keys.
#[cfg(not(loom))]
fn read_rights() -> u32 {
    // SAFETY: callers have checked that the CPU has protection keys.
    unsafe { arch::rights() }
}
