//! The C library's functions that we stand in front of, and what the entry code of each reads.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize};

/// The functions we intercept, in the order of `ENTRIES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Op {
    Memcpy,
    Memmove,
    Mempcpy,
    Bcopy,
    Wmemcpy,
    Wmemmove,
    MemcpyChk,
    MemmoveChk,
    MempcpyChk,
    ProcessVmReadv,
    ProcessVmWritev,
    Memset,
    MemsetChk,
    Bzero,
    Wmemset,
    Memcmp,
    Bcmp,
    Wmemcmp,
    Read,
    Pread,
    Readv,
    Preadv,
    Preadv2,
    ReadChk,
    PreadChk,
    Fread,
    FreadUnlocked,
    FreadChk,
    FreadUnlockedChk,
}

impl Op {
    pub const ALL: [Op; 29] = [
        Op::Memcpy,
        Op::Memmove,
        Op::Mempcpy,
        Op::Bcopy,
        Op::Wmemcpy,
        Op::Wmemmove,
        Op::MemcpyChk,
        Op::MemmoveChk,
        Op::MempcpyChk,
        Op::ProcessVmReadv,
        Op::ProcessVmWritev,
        Op::Memset,
        Op::MemsetChk,
        Op::Bzero,
        Op::Wmemset,
        Op::Memcmp,
        Op::Bcmp,
        Op::Wmemcmp,
        Op::Read,
        Op::Pread,
        Op::Readv,
        Op::Preadv,
        Op::Preadv2,
        Op::ReadChk,
        Op::PreadChk,
        Op::Fread,
        Op::FreadUnlocked,
        Op::FreadChk,
        Op::FreadUnlockedChk,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Op::Memcpy => "memcpy",
            Op::Memmove => "memmove",
            Op::Mempcpy => "mempcpy",
            Op::Bcopy => "bcopy",
            Op::Wmemcpy => "wmemcpy",
            Op::Wmemmove => "wmemmove",
            Op::MemcpyChk => "memcpy_chk",
            Op::MemmoveChk => "memmove_chk",
            Op::MempcpyChk => "mempcpy_chk",
            Op::ProcessVmReadv => "process_vm_readv",
            Op::ProcessVmWritev => "process_vm_writev",
            Op::Memset => "memset",
            Op::MemsetChk => "memset_chk",
            Op::Bzero => "bzero",
            Op::Wmemset => "wmemset",
            Op::Memcmp => "memcmp",
            Op::Bcmp => "bcmp",
            Op::Wmemcmp => "wmemcmp",
            Op::Read => "read",
            Op::Pread => "pread",
            Op::Readv => "readv",
            Op::Preadv => "preadv",
            Op::Preadv2 => "preadv2",
            Op::ReadChk => "read_chk",
            Op::PreadChk => "pread_chk",
            Op::Fread => "fread",
            Op::FreadUnlocked => "fread_unlocked",
            Op::FreadChk => "fread_chk",
            Op::FreadUnlockedChk => "fread_unlocked_chk",
        }
    }

    /// Whether the kernel copies, so that `KERNEL_CALLS_FROM` holds.
    pub const fn is_kernel_call(self) -> bool {
        matches!(self, Op::ProcessVmReadv | Op::ProcessVmWritev)
            || self as usize >= Op::Read as usize
    }

    /// Bytes per counted unit.
    pub const fn unit(self) -> usize {
        match self {
            Op::Wmemcpy | Op::Wmemmove | Op::Wmemset | Op::Wmemcmp => size_of::<libc::wchar_t>(),
            _ => 1,
        }
    }
}

/// No call of the kernel that copies less than this is shared where sizes are learned: it costs a
/// microsecond and more before the first byte moves.
pub const KERNEL_CALLS_FROM: usize = 1 << 20;

/// What one exported function reads: below `min` units it jumps to `next`.
#[repr(C)]
pub struct EntryPoint {
    pub min: AtomicUsize,
    pub next: AtomicPtr<c_void>,
}

/// A number larger than any copy: the entry always jumps to `next`.
pub const NEVER: usize = usize::MAX;
