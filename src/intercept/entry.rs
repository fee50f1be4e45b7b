//! Every exported function compares its length, goes to the slow path if that reaches the threshold,
//! and jumps to libc if not: three instructions where a register holds the length. No frame is made
//! and no argument touched. Entries lie between what every program runs at its start and end (section
//! .text.start) and what the child of a fork runs with its first large call (.text.fork): each
//! touches a few pages side by side, which the kernel maps with one fault.

use super::slow::{aligned, looking};
use super::{reads, remote};
use crate::backend::libc::ENTRIES;
use crate::functions::{Op, min_offset, next_offset};
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
                concat!("cmp ", stringify!($length), ", qword ptr [rip + {entries} + {min}]"),
                "jae {slow}",
                "jmp qword ptr [rip + {entries} + {next}]",
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

/// Compares the bytes that a file call asks for, and jumps to 2 if they reach the threshold.
macro_rules! compare_bytes {
    (($length:ident)) => {
        concat!("cmp ", stringify!($length), ", [rip + {entries} + {min}]\njae 2f")
    };
    // A product above 64 bits wraps, as it does in libc.
    (($size:ident * $count:ident)) => {
        concat!(
            "mov rax, ",
            stringify!($size),
            "\nimul rax, ",
            stringify!($count),
            "\ncmp rax, [rip + {entries} + {min}]\njae 2f"
        )
    };
}

macro_rules! file_entry {
    // Only the slow path sums up lists of buffers: functions::NEVER is -1.
    ((list) $symbol:ident $name:ident) => {
        file_entry! { by "cmp qword ptr [rip + {entries} + {min}], -1\njne 2f", $symbol $name }
    };
    ($length:tt $symbol:ident $name:ident) => {
        file_entry! { by compare_bytes!($length), $symbol $name }
    };
    (by $compare:expr, $symbol:ident $name:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.start")]
        unsafe extern "C" fn $symbol() {
            naked_asm!(
                ".cfi_startproc",
                $compare,
                "jmp qword ptr [rip + {entries} + {next}]",
                "2:",
                "mov r9, [rsp]", // the call site, behind the five arguments that there can be
                "jmp {slow}",
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
                "cmp qword ptr [rip + {entries} + {min}], -1", // functions::NEVER
                "jne 2f",
                "jmp qword ptr [rip + {entries} + {next}]",
                "2:",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "sub rsp, 16",
                "and rsp, -16",
                "mov rax, [rbp + 8]", // the call site, as the seventh argument
                "mov [rsp], rax",
                "call {slow}",
                "leave",
                ".cfi_def_cfa rsp, 8",
                "ret",
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
