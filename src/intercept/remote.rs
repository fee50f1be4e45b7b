//! The two calls that copy between processes. Their lengths are in lists, which only the slow path
//! reads. While sharing is switched off, the entry jumps to libc's function.

use crate::backend::libc::ENTRIES;
use crate::backend::threads::remote::TransferCall;
use crate::backend::threads::segments::SegmentList;
use crate::functions::{Op, min_offset, next_offset};
use crate::runtime::DISPATCHER;
use core::arch::naked_asm;

macro_rules! entry {
    ($($name:ident: $op:ident to $slow:ident),* $(,)?) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
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
                min = const min_offset(Op::$op),
                next = const next_offset(Op::$op),
                slow = sym $slow,
            )
        }

        unsafe extern "C" fn $slow(
            pid: usize,
            local: usize,
            local_count: usize,
            remote: usize,
            remote_count: usize,
            flags: usize,
            site: usize,
        ) -> isize {
            let local = SegmentList { at: local, count: local_count };
            let remote = SegmentList { at: remote, count: remote_count };
            let call = TransferCall { op: Op::$op, pid, local, remote, flags, site };
            // SAFETY: the program's own call.
            unsafe { DISPATCHER.transfer(&call) }
        }
    )* };
}

entry! {
    process_vm_readv: ProcessVmReadv to readv,
    process_vm_writev: ProcessVmWritev to writev,
}
