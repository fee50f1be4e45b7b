//! Every exported function compares its length, goes to the slow path if that reaches the threshold,
//! and jumps to libc if not: three instructions where a register holds the length. No frame is made
//! and no argument touched. Entries lie between what every program runs at its start and end (section
//! .text.start) and what the child of a fork runs with its first large call (.text.fork): each
//! touches a few pages side by side, which the kernel maps with one fault.

use super::slow::{aligned, looking};
use super::{reads, remote};
use crate::backend::libc::ENTRIES;
use crate::functions::{Op, min_offset, next_offset};
use crate::os::arch;
use core::arch::naked_asm;

/// Makes the exported functions of a row: of its kind, for each of its symbols.
macro_rules! entries {
    ($($name:ident: ($($symbol:ident)*) $unit:literal $length:tt $kind:ident::$large:ident
        $original:tt;)*) => { $( entry_of! { $kind $length $name: $($symbol)* } )* };
}

macro_rules! entry_of {
    (memory ($length:ident) $name:ident: $($symbol:ident)*) => {
        $( memory_entry! { $length $symbol $name aligned } )*
    };
    (compare ($length:ident) $name:ident: $($symbol:ident)*) => {
        $( memory_entry! { $length $symbol $name looking } )*
    };
    (file $length:tt $name:ident: $($symbol:ident)*) => {
        $( file_entry! { $length $symbol $name } )*
    };
    (transfer (list) $name:ident: $($symbol:ident)*) => {
        $( transfer_entry! { $symbol $name } )*
    };
}

macro_rules! memory_entry {
    ($length:ident $symbol:ident $name:ident $slow:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.start")]
        unsafe extern "C" fn $symbol() {
            naked_asm!(
                ".cfi_startproc",
                arch::memory_entry!($length),
                ".p2align 5", // aligns the function's section: all three share a cache line
                ".cfi_endproc",
                entries = sym ENTRIES,
                min = const min_offset(Op::$name),
                next = const next_offset(Op::$name),
                slow = sym $slow::$name,
            )
        }
    };
}

macro_rules! file_entry {
    ($length:tt $symbol:ident $name:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.start")]
        unsafe extern "C" fn $symbol() {
            naked_asm!(
                ".cfi_startproc",
                arch::compare_bytes!($length),
                arch::jump_to_next!(),
                "2:",
                arch::jump_with_site_sixth!("{slow}"), // behind the five that there can be
                ".p2align 5",
                ".cfi_endproc",
                entries = sym ENTRIES,
                min = const min_offset(Op::$name),
                next = const next_offset(Op::$name),
                slow = sym reads::large::$name,
            )
        }
    };
}

/// While sharing is switched off, the entry jumps to libc's function.
macro_rules! transfer_entry {
    ($symbol:ident $name:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol() {
            naked_asm!(
                ".cfi_startproc",
                arch::compare_bytes!((list)),
                arch::jump_to_next!(),
                "2:",
                arch::call_with_site_seventh!(),
                ".cfi_endproc",
                entries = sym ENTRIES,
                min = const min_offset(Op::$name),
                next = const next_offset(Op::$name),
                slow = sym remote::large::$name,
            )
        }
    };
}

adma_shared::intercepted_functions! { entries }
