//! The copy loops of aarch64, which `backend::copy_loop` runs; and that of `backend::alone`.

unsafe extern "C" {
    static adma_loop_ordinary: u8;
    static adma_loop_stream: u8;
    static adma_fill_ordinary: u8;
    static adma_fill_stream: u8;
    static adma_compare: u8;
    fn adma_alone_stream(dst: usize, src: usize, len: usize);
}

/// Returns the loop with ordinary stores, which is the only one.
pub fn ordinary_loop(_loses: impl Fn([*const u8; 2]) -> bool) -> *const u8 {
    &raw const adma_loop_ordinary
}

pub fn stream_loop() -> *const u8 {
    &raw const adma_loop_stream
}

pub fn fill_loop(streams: bool) -> *const u8 {
    if streams { &raw const adma_fill_stream } else { &raw const adma_fill_ordinary }
}

pub fn compare_loop() -> *const u8 {
    &raw const adma_compare
}

pub unsafe fn stream_alone(dst: usize, src: usize, len: usize) {
    // SAFETY: memcpy may copy these ranges, by the caller's promise.
    unsafe { adma_alone_stream(dst, src, len) }
}

// Registers in the loops: x0 next byte to write, x8 the first one, x9 source minus destination,
// x10 the end, x1 the value of a fill. Nothing is on the stack, so every end is a plain return, and one
// unwind entry covers all of it. Names and sizes are for debuggers and profilers.
macro_rules! copy_loops {
    ($($operands:tt)*) => {
        core::arch::global_asm!(
            ".macro adma_label name",
            ".globl \\name",
            ".hidden \\name",
            "\\name:",
            ".endm",

            // Begins a function, which `adma_close` ends.
            ".macro adma_function name",
            ".type \\name, %function",
            "adma_label \\name",
            ".endm",

            ".macro adma_close name",
            ".size \\name, . - \\name",
            ".endm",

            // Writes single bytes up to `limit`; a body gets the byte in w5.
            ".macro adma_bytes limit, body:vararg",
            "2:",
            "cmp x0, \\limit",
            "b.eq 3f",
            "\\body",
            "strb w5, [x0]",
            "add x0, x0, #1",
            "b 2b",
            "3:",
            ".endm",

            // x11: the next line of the cache, or the end.
            ".macro adma_line",
            "add x11, x0, #63",
            "and x11, x11, #-64",
            "cmp x11, x10",
            "csel x11, x11, x10, lo",
            ".endm",

            // Whole strides of 64 bytes; a body may leave by a jump to 3.
            ".macro adma_strides body:vararg",
            "sub x12, x10, #64", // the last place at which a stride can begin
            "cmp x0, x12",
            "b.hi 3f",
            ".p2align 5",
            "2:",
            "\\body",
            "add x0, x0, #64",
            "cmp x0, x12",
            "b.ls 2b",
            "3:",
            ".endm",

            // A loop that copies: bytes up to a line of the cache, strides, and the rest.
            ".macro adma_copy load, store",
            "adma_line",
            "adma_bytes x11, ldrb w5, [x0, x9]",
            "adma_strides adma_body_copy \\load, \\store",
            "adma_bytes x10, ldrb w5, [x0, x9]",
            ".endm",

            ".macro adma_body_copy load, store",
            "add x6, x0, x9",
            "\\load q0, q1, [x6]",
            "\\load q2, q3, [x6, #32]",
            "\\store q0, q1, [x0]",
            "\\store q2, q3, [x0, #32]",
            ".endm",

            ".macro adma_fill store",
            "dup v0.2d, x1",
            "adma_line",
            "adma_bytes x11, mov w5, w1",
            "adma_strides adma_body_fill \\store",
            "adma_bytes x10, mov w5, w1",
            ".endm",

            ".macro adma_body_fill store",
            "\\store q0, q0, [x0]",
            "\\store q0, q0, [x0, #32]",
            ".endm",

            ".macro adma_body_compare",
            "add x6, x0, x9",
            "ldp q0, q1, [x0]",
            "ldp q2, q3, [x0, #32]",
            "ldp q4, q5, [x6]",
            "ldp q6, q7, [x6, #32]",
            "cmeq v0.16b, v0.16b, v4.16b",
            "cmeq v1.16b, v1.16b, v5.16b",
            "cmeq v2.16b, v2.16b, v6.16b",
            "cmeq v3.16b, v3.16b, v7.16b",
            "and v0.16b, v0.16b, v1.16b",
            "and v2.16b, v2.16b, v3.16b",
            "and v0.16b, v0.16b, v2.16b",
            "uminv b0, v0.16b",
            "umov w5, v0.b[0]",
            "cmp w5, #255", // where all are equal
            "b.ne 3f",
            ".endm",

            ".macro adma_end why",
            "sub x0, x0, x8",
            "mov x1, \\why",
            "ret",
            ".endm",

            // Description of the restartable sequence for the kernel (struct rseq_cs).
            ".pushsection .data.rel.ro.adma_sequence,\"aw\",%progbits",
            ".p2align 5",
            "adma_sequence:",
            ".word 0, 0",
            ".quad adma_loops_begin",
            ".quad adma_loops_end - adma_loops_begin",
            ".quad adma_loop_interrupted",
            "adma_commit_sequence:",
            ".word 0, 0",
            ".quad adma_commit_begin",
            ".quad adma_commit_end - adma_commit_begin",
            ".quad adma_commit_interrupted",
            ".popsection",

            ".pushsection .text.adma_loops,\"ax\",%progbits",
            ".p2align 6",
            ".cfi_startproc",
            "adma_function adma_copy_loop",
            "sub x9, x1, x0",
            "add x10, x0, x2",
            "mov x8, x0",
            "cbz x4, 5f",
            "ldr x5, [x4]",
            "adrp x6, adma_sequence",
            "add x6, x6, :lo12:adma_sequence",
            // Nothing lies between this store and the first instruction of the sequence: if the worker is
            // preempted outside the sequence, the kernel undoes the store.
            "str x6, [x5, #8]",
            "adma_label adma_loops_begin",
            "ldr x5, [x4, #8]",
            "ldr w5, [x5]",
            "ldr w6, [x4, #16]",
            "cmp w5, w6",
            "b.ne adma_loop_taken_back",
            "5:",
            "br x3",
            "adma_close adma_copy_loop",

            "adma_function adma_loop_ordinary",
            "adma_copy ldp, stp",
            "b adma_loop_whole",
            "adma_close adma_loop_ordinary",

            "adma_function adma_loop_stream",
            "adma_copy ldnp, stnp",
            "b adma_loop_whole",
            "adma_close adma_loop_stream",

            "adma_function adma_fill_ordinary",
            "adma_fill stp",
            "b adma_loop_whole",
            "adma_close adma_fill_ordinary",

            "adma_function adma_fill_stream",
            "adma_fill stnp",
            "b adma_loop_whole",
            "adma_close adma_fill_stream",

            // Strides, and byte by byte the first one that differs and what lies behind all of them.
            "adma_function adma_compare",
            "adma_strides adma_body_compare",
            "4:",
            "cmp x0, x10",
            "b.eq adma_loop_whole",
            "ldrb w5, [x0]",
            "ldrb w6, [x0, x9]",
            "cmp w5, w6",
            "b.ne adma_loop_differs",
            "add x0, x0, #1",
            "b 4b",
            "adma_close adma_compare",
            "adma_label adma_loops_end",

            // All ends, one behind the other.
            "adma_function adma_loop_whole",
            "adma_end {whole}",
            "adma_loop_differs:",
            "adma_end {differs}",
            "adma_label adma_loop_bad_page",
            "adma_end {bad_page}",
            "adma_loop_taken_back:",
            "adma_end {taken_back}",
            ".word {signature}",
            "adma_label adma_loop_interrupted",
            "adma_end {interrupted}",
            "adma_close adma_loop_whole",

            "adma_function adma_commit",
            "ldr x3, [x2]",
            "adrp x4, adma_commit_sequence",
            "add x4, x4, :lo12:adma_commit_sequence",
            "str x4, [x3, #8]",
            "adma_commit_begin:",
            "ldr x3, [x2, #8]",
            "ldr w3, [x3]",
            "ldr w4, [x2, #16]",
            "cmp w3, w4",
            "b.ne 4f",
            "stlrb w1, [x0]",
            "adma_commit_end:",
            "mov x0, #0",
            "ret",
            "4:",
            "mov x0, {taken_back}",
            "ret",
            ".word {signature}",
            "adma_commit_interrupted:",
            "mov x0, {interrupted}",
            "ret",
            "adma_close adma_commit",

            "adma_function adma_alone_stream",
            "sub x9, x1, x0",
            "add x10, x0, x2",
            "adma_copy ldnp, stnp",
            "ret",
            "adma_close adma_alone_stream",
            ".cfi_endproc",
            ".popsection",
            $($operands)*
        );
    };
}

pub(crate) use copy_loops;
