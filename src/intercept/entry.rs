//! Every exported function is three instructions: compare the length, go to the slow path if it
//! reaches the threshold, and jump to libc if not. No frame is made and no argument touched. They lie
//! between what every program runs at its start and end (section .text.start) and what the child of
//! a fork runs with its first large call (.text.fork): each touches a few pages side by side, which
//! the kernel maps with one fault.

use super::slow::aligned;
use crate::backend::libc::ENTRIES;
use crate::functions::{Op, min_offset, next_offset};
use core::arch::naked_asm;

macro_rules! entry {
    ($length:literal: $($name:ident: $op:ident to $slow:ident),* $(,)?) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.start")]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                concat!("cmp ", $length, ", qword ptr [rip + {entries} + {min}]"),
                "jae {slow}",
                "jmp qword ptr [rip + {entries} + {next}]",
                ".p2align 5", // aligns the function's section: all three share a cache line
                ".cfi_endproc",
                entries = sym ENTRIES,
                min = const min_offset(Op::$op),
                next = const next_offset(Op::$op),
                slow = sym aligned::$slow,
            )
        }
    )* };
}

entry! { "rdx":
    memcpy: Memcpy to memcpy,
    memmove: Memmove to memmove,
    mempcpy: Mempcpy to mempcpy,
    __mempcpy: Mempcpy to mempcpy,
    bcopy: Bcopy to bcopy,
    wmemcpy: Wmemcpy to wmemcpy,
    wmemmove: Wmemmove to wmemmove,
    __memcpy_chk: MemcpyChk to memcpy_chk,
    __memmove_chk: MemmoveChk to memmove_chk,
    __mempcpy_chk: MempcpyChk to mempcpy_chk,
    memset: Memset to memset,
    __memset_chk: MemsetChk to memset_chk,
    wmemset: Wmemset to wmemset,
    memcmp: Memcmp to looking_memcmp,
    bcmp: Bcmp to looking_bcmp,
    wmemcmp: Wmemcmp to looking_wmemcmp,
}

entry! { "rsi":
    bzero: Bzero to bzero,
}
