//! The C library's functions that we intercept, and the data that their entry code reads.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize};

macro_rules! operations {
    ($($op:ident $name:ident),* $(,)?) => {
        /// The functions we intercept, in the order of `ENTRIES`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Op { $($op),* }

        impl Op {
            pub const ALL: [Op; [$(Op::$op),*].len()] = [$(Op::$op),*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Op::$op => stringify!($name)),*
                }
            }
        }
    };
}

operations! {
    Memcpy memcpy, Memmove memmove, Mempcpy mempcpy, Bcopy bcopy,
    Wmemcpy wmemcpy, Wmemmove wmemmove,
    MemcpyChk memcpy_chk, MemmoveChk memmove_chk, MempcpyChk mempcpy_chk,
    ProcessVmReadv process_vm_readv, ProcessVmWritev process_vm_writev,
    Memset memset, MemsetChk memset_chk, Bzero bzero, Wmemset wmemset,
    Memcmp memcmp, Bcmp bcmp, Wmemcmp wmemcmp,
    Read read, Pread pread, Readv readv, Preadv preadv, Preadv2 preadv2,
    ReadChk read_chk, PreadChk pread_chk,
    Fread fread, FreadUnlocked fread_unlocked,
    FreadChk fread_chk, FreadUnlockedChk fread_unlocked_chk,
}

impl Op {
    /// Returns whether the kernel copies, so that `KERNEL_CALLS_FROM` applies.
    pub const fn is_kernel_call(self) -> bool {
        matches!(self, Op::ProcessVmReadv | Op::ProcessVmWritev)
            || self as usize >= Op::Read as usize
    }

    /// Returns the bytes per counted unit.
    pub const fn unit(self) -> usize {
        match self {
            Op::Wmemcpy | Op::Wmemmove | Op::Wmemset | Op::Wmemcmp => size_of::<libc::wchar_t>(),
            _ => 1,
        }
    }
}

/// Size from which system calls are shared where sizes are learned: each costs a microsecond and more
/// before the first byte moves.
pub const KERNEL_CALLS_FROM: usize = 1 << 20;

/// Data of one exported function: below `min` units it jumps to `next`.
#[repr(C)]
pub struct EntryPoint {
    pub min: AtomicUsize,
    pub next: AtomicPtr<c_void>,
}

/// Returns the offset of a field of one entry in `ENTRIES`, for assembly.
pub const fn min_offset(op: Op) -> usize {
    op as usize * size_of::<EntryPoint>() + core::mem::offset_of!(EntryPoint, min)
}

pub const fn next_offset(op: Op) -> usize {
    op as usize * size_of::<EntryPoint>() + core::mem::offset_of!(EntryPoint, next)
}

/// Threshold larger than any copy: the entry always jumps to `next`.
pub const NEVER: usize = usize::MAX;
