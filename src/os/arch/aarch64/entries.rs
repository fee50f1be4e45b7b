//! Naked functions of aarch64. Registers x16 and x17 are free at the entry of every function.

macro_rules! argument {
    (second) => {
        "x1"
    };
    (third) => {
        "x2"
    };
    (fourth) => {
        "x3"
    };
}

macro_rules! jump {
    () => {
        "b"
    };
}

macro_rules! trap {
    () => {
        "udf #0"
    };
}

/// Loads the threshold into x16. `entries`, `min`.
macro_rules! load_min {
    () => {
        "adrp x16, {entries} + {min}
        ldr x16, [x16, :lo12:{entries} + {min}]\n"
    };
}

macro_rules! jump_to_next {
    () => {
        "adrp x16, {entries} + {next}
        ldr x16, [x16, :lo12:{entries} + {next}]
        br x16"
    };
}

macro_rules! memory_entry {
    ($length:ident) => {
        concat!(
            $crate::os::arch::load_min!(),
            "cmp ",
            $crate::os::arch::argument!($length),
            ", x16\nb.hs 2f\n",
            $crate::os::arch::jump_to_next!(),
            "\n2: b {slow}"
        )
    };
}

macro_rules! compare_bytes {
    ((list)) => {
        concat!($crate::os::arch::load_min!(), "cmn x16, #1\nb.ne 2f")
    };
    (($length:ident)) => {
        concat!(
            $crate::os::arch::load_min!(),
            "cmp ",
            $crate::os::arch::argument!($length),
            ", x16\nb.hs 2f"
        )
    };
    (($size:ident * $count:ident)) => {
        concat!(
            $crate::os::arch::load_min!(),
            "mul x17, ",
            $crate::os::arch::argument!($size),
            ", ",
            $crate::os::arch::argument!($count),
            "\ncmp x17, x16\nb.hs 2f"
        )
    };
}

macro_rules! jump_with_site_sixth {
    ($function:literal) => {
        concat!("mov x5, x30\nb ", $function)
    };
}

macro_rules! call_with_site_seventh {
    () => {
        "mov x6, x30\nb {slow}"
    };
}

/// Calls `large` with the call site as its ninth argument, the only one on the stack.
macro_rules! call_with_site_ninth {
    () => {
        "sub sp, sp, #32
        .cfi_adjust_cfa_offset 32
        stp x29, x30, [sp, #16]
        .cfi_offset x29, -16
        .cfi_offset x30, -8
        str x30, [sp]
        bl {large}
        ldp x29, x30, [sp, #16]
        add sp, sp, #32
        .cfi_adjust_cfa_offset -32
        ret"
    };
}

/// Calls `large` with the call site as its fifth argument. The CPU sees to it that stacks are aligned.
macro_rules! call_aligned {
    () => {
        "mov x4, x30\nb {large}"
    };
}

macro_rules! look {
    () => {
        concat!(
            $crate::os::arch::load_min!(),
            "cbz x16, 4f // before start-up, and for a profile: all calls
            cmp x2, #4096
            b.lo 4f
            and x16, x0, #4095
            and x17, x1, #4095
            cmp x16, #4096 - 128
            b.hi 4f
            cmp x17, #4096 - 128
            b.hi 4f
            mov x17, #0
            2:
            add x16, x0, x17
            ldp q0, q1, [x16]
            ldp q2, q3, [x16, #32]
            add x16, x1, x17
            ldp q4, q5, [x16]
            ldp q6, q7, [x16, #32]
            cmeq v0.16b, v0.16b, v4.16b
            cmeq v1.16b, v1.16b, v5.16b
            cmeq v2.16b, v2.16b, v6.16b
            cmeq v3.16b, v3.16b, v7.16b
            and v0.16b, v0.16b, v1.16b
            and v2.16b, v2.16b, v3.16b
            and v0.16b, v0.16b, v2.16b
            uminv b0, v0.16b
            umov w16, v0.b[0]
            cmp w16, #255
            b.ne 3f
            eor x17, x17, #64
            cbnz x17, 2b
            4: b {slow}
            3:\n",
            $crate::os::arch::jump_to_next!()
        )
    };
}

macro_rules! syscall_entry {
    () => {
        "cmp x0, #{seccomp}
        b.eq 2f
        cmp x0, #{prctl}
        b.eq 2f
        cmp x0, #{madvise}
        b.eq 2f
        adrp x16, {next}
        ldr x16, [x16, :lo12:{next}]
        br x16
        2: b {filter}"
    };
}

macro_rules! find_and_jump {
    () => {
        "stp x29, x30, [sp, #-80]!
        .cfi_adjust_cfa_offset 80
        .cfi_offset x29, -80
        .cfi_offset x30, -72
        stp x0, x1, [sp, #16]
        stp x2, x3, [sp, #32]
        stp x4, x5, [sp, #48]
        stp x6, x7, [sp, #64]
        bl {find}
        mov x16, x0
        ldp x0, x1, [sp, #16]
        ldp x2, x3, [sp, #32]
        ldp x4, x5, [sp, #48]
        ldp x6, x7, [sp, #64]
        ldp x29, x30, [sp], #80
        .cfi_adjust_cfa_offset -80
        br x16"
    };
}

/// Ends the program, from a function that checks its arguments; 3 goes on.
macro_rules! check_failed {
    () => {
        ".weak __chk_fail
        adrp x16, :got:__chk_fail
        ldr x16, [x16, :got_lo12:__chk_fail]
        br x16
        3:\n"
    };
}

macro_rules! change_arguments {
    (swapped) => {
        "mov x16, x0\nmov x0, x1\nmov x1, x16"
    };
    (wide) => {
        "lsl x2, x2, #2"
    };
    (zeros) => {
        "mov x2, x1\nmov x1, #0"
    };
    // x3 is the room at the destination. An overflow ends the program.
    (checked) => {
        concat!("cmp x3, x2\nb.hs 3f\n", $crate::os::arch::check_failed!())
    };
    (checked_fifth) => {
        concat!("cmp x4, x2\nb.hs 3f\n", $crate::os::arch::check_failed!())
    };
    // The checked variants of fread take the room at the destination as their second argument: x2 and
    // x3 are size and number of the items.
    (checked_items) => {
        concat!(
            "umulh x16, x2, x3
            cbnz x16, 2f
            mul x16, x2, x3
            cmp x1, x16
            b.hs 3f
            2:\n",
            $crate::os::arch::check_failed!(),
            "mov x1, x2\nmov x2, x3\nmov x3, x4"
        )
    };
}

macro_rules! bootstrap_functions {
    ($macro:ident) => {
        $macro! {
            // x3, x1, x2 as memmove; x0 is kept. Copies from the end where the destination is inside the
            // source.
            move_bytes: "sub x4, x3, x1", "cmp x4, x2", "b.lo 3f",
                "2: cbz x2, 4f", "ldrb w4, [x1], #1", "strb w4, [x3], #1", "sub x2, x2, #1", "b 2b",
                "3: cbz x2, 4f", "sub x2, x2, #1", "ldrb w4, [x1, x2]", "strb w4, [x3, x2]", "b 3b",
                "4: ret";
            bootstrap_memmove: "mov x3, x0" => move_bytes;
            bootstrap_mempcpy: "mov x3, x0", "add x0, x0, x2" => move_bytes;
            bootstrap_memset: "mov x3, x0",
                "2: cbz x2, 3f", "strb w1, [x3], #1", "sub x2, x2, #1", "b 2b", "3: ret";
            bootstrap_wmemset: "mov x3, x0",
                "2: cbz x2, 3f", "str w1, [x3], #4", "sub x2, x2, #1", "b 2b", "3: ret";
            // The kernel takes the flags after an offset in two halves, of which 64-bit programs use the
            // first.
            bootstrap_preadv2: "mov x5, x4" => bootstrap_preadv2_of_six;
        }
    };
}

macro_rules! first_frame {
    () => {
        ".cfi_undefined x30
        mov x29, #0
        mov x30, #0
        mov x0, x5
        bl {work}
        udf #0"
    };
}

/// A signal handler, see `backend::signals::handler`: x0 the signal, x1 the siginfo, x2 the context, and x30
/// the address to return to. x16 and x17 are scratch.
macro_rules! signal_handler {
    ($($operands:tt)*) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "ldr x16, [x2, #{pc}]",
            "adrp x17, adma_loops_begin",
            "add x17, x17, :lo12:adma_loops_begin",
            "cmp x16, x17",
            "b.lo 2f",
            "adrp x17, adma_loop_interrupted",
            "add x17, x17, :lo12:adma_loop_interrupted",
            "cmp x16, x17",
            "b.hi 2f",
            "ldr w17, [x1, #{code}]",
            "cmp w17, #0",
            "b.le 2f",
            "b {end_loop}",
            // A signal that was sent, while a copy is shared.
            "2:",
            "ldr w17, [x1, #{code}]",
            "cmp w17, #0",
            "b.gt 3f",
            "ldr x16, [x2, #{mask}]",
            "mov x17, #{of_the_c_library}",
            "bics xzr, x17, x16",
            "b.eq 4f",
            "3:",
            "adrp x17, {chain} + {next}",
            "ldr x17, [x17, :lo12:{chain} + {next}]",
            "adrp x16, {unusual}",
            "add x16, x16, :lo12:{unusual}",
            "cmp x16, x17",
            "b.eq 4f",
            "br x17",
            "4:",
            "mov w16, #{slot}",
            "b {unusual}",
            ".cfi_endproc",
            pc = const Ucontext::INSTRUCTION,
            mask = const core::mem::offset_of!(Ucontext, mask),
            $($operands)*
        )
    };
}

/// Ends a loop: the interrupted code goes on where the function `after` says, which is asked with its
/// address in x16.
macro_rules! end_loop {
    ($($operands:tt)*) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-32]!",
            ".cfi_adjust_cfa_offset 32",
            ".cfi_offset x29, -32",
            ".cfi_offset x30, -24",
            "str x2, [sp, #16]",
            "mov x0, x16",
            "bl {after}",
            "ldr x2, [sp, #16]",
            "str x0, [x2, #{pc}]",
            "ldp x29, x30, [sp], #32",
            ".cfi_adjust_cfa_offset -32",
            "ret",
            ".cfi_endproc",
            pc = const Ucontext::INSTRUCTION,
            $($operands)*
        )
    };
}

/// Calls `decide` with the handler's arguments and the slot's number in x16, and then returns or jumps to
/// the function that this has returned.
macro_rules! unusual_signal {
    ($($operands:tt)*) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-48]!",
            ".cfi_adjust_cfa_offset 48",
            ".cfi_offset x29, -48",
            ".cfi_offset x30, -40",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "mov w3, w16",
            "bl {decide}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldr x2, [sp, #32]",
            "ldp x29, x30, [sp], #48",
            ".cfi_adjust_cfa_offset -48",
            "cbz x16, 2f",
            "br x16",
            "2: ret",
            ".cfi_endproc",
            $($operands)*
        )
    };
}

#[cfg_attr(test, allow(unused_imports))] // test executables have no entries
pub(crate) use {
    argument, bootstrap_functions, call_aligned, call_with_site_ninth, call_with_site_seventh,
    change_arguments, check_failed, compare_bytes, end_loop, find_and_jump, first_frame, jump,
    jump_to_next, jump_with_site_sixth, load_min, look, memory_entry, signal_handler,
    syscall_entry, trap, unusual_signal,
};
