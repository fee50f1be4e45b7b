//! The copy loops of x86-64, which `backend::copy_loop` runs; and those of `backend::alone`.

use crate::os::cpus::{self, Features};

unsafe extern "C" {
    pub static adma_loop_movsb: u8;
    pub static adma_loop_avx2: u8;
    pub static adma_loop_stream_avx512: u8;
    pub static adma_loop_stream_sse2: u8;
    static adma_fill_stosb: u8;
    static adma_fill_stream: u8;
    pub static adma_compare_avx2: u8;
    pub static adma_compare_sse2: u8;
    /// Copies four pages side by side.
    fn adma_alone_stream_avx512(dst: usize, src: usize, len: usize);
    pub fn adma_alone_stream_sse2(dst: usize, src: usize, len: usize);
}

#[inline(always)]
fn has(feature: Features) -> bool {
    cpus::features().contains(feature)
}

/// Returns the loop with ordinary stores; `loses` measures whether the first of two takes far longer.
///
/// With AVX2, `rep movsb` is chosen only if the CPU states that it is fast (ERMS) and a measurement
/// shows it: CPUs that state it can take 28 times as long as with vectors where the destination is
/// not aligned (Zen 3), and no bit of cpuid shows that.
#[inline(always)]
pub fn ordinary_loop(loses: impl Fn([*const u8; 2]) -> bool) -> *const u8 {
    let (movsb, vectors) = (&raw const adma_loop_movsb, &raw const adma_loop_avx2);
    let is_good = || has(Features::ERMS) && !loses([movsb, vectors]);
    if !has(Features::AVX2) || is_good() { movsb } else { vectors }
}

/// Returns the loop with streaming stores.
#[inline(always)]
pub fn stream_loop() -> *const u8 {
    match has(Features::AVX512) {
        true => &raw const adma_loop_stream_avx512,
        false => &raw const adma_loop_stream_sse2,
    }
}

/// Returns the loop that fills, by streaming stores or ordinary ones.
#[inline(always)]
pub fn fill_loop(streams: bool) -> *const u8 {
    if streams { &raw const adma_fill_stream } else { &raw const adma_fill_stosb }
}

/// Returns the loop that compares.
#[inline(always)]
pub fn compare_loop() -> *const u8 {
    match has(Features::AVX2) {
        true => &raw const adma_compare_avx2,
        false => &raw const adma_compare_sse2,
    }
}

/// Copies by streaming stores, with a fault for the caller.
///
/// # Safety
/// As memcpy.
#[inline(always)]
pub unsafe fn stream_alone(dst: usize, src: usize, len: usize) {
    // SAFETY: memcpy may copy these ranges, by the caller's promise; the CPU has the instructions.
    unsafe {
        match has(Features::AVX512) {
            true => adma_alone_stream_avx512(dst, src, len),
            false => adma_alone_stream_sse2(dst, src, len),
        }
    }
}

// Registers in the loops: rdi next byte to write, r8 the first one, r9 source minus destination,
// r10 the end, r11 the loop. Nothing is on the stack, so every end is a plain return, and one
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
            ".type \\name, @function",
            "adma_label \\name",
            ".endm",

            ".macro adma_close name",
            ".size \\name, . - \\name",
            ".endm",

            // Copies rcx bytes; rdi is the next byte to write at every moment.
            ".macro adma_bytes",
            "lea rsi, [rdi + r9]",
            "rep movsb",
            ".endm",

            // rcx: bytes up to the next line of the cache, or to the end.
            ".macro adma_to_line",
            "mov rcx, rdi",
            "neg rcx",
            "and ecx, 63",
            "mov rdx, r10",
            "sub rdx, rdi",
            "cmp rcx, rdx",
            "cmova rcx, rdx",
            ".endm",

            // Whole strides of `step` bytes; a body may leave by a jump to 3. rcx: the bytes that are left.
            ".macro adma_strides step, body:vararg",
            "mov rdx, r10",
            "sub rdx, \\step",  // the last place at which a stride can begin
            "cmp rdi, rdx",
            "ja 3f",
            ".p2align 5",
            "2:",
            "\\body",
            "add rdi, \\step",
            "cmp rdi, rdx",
            "jbe 2b",
            "3:",
            "mov rcx, r10",
            "sub rcx, rdi",
            ".endm",

            // A loop that copies: bytes up to a line of the cache, strides, and the rest.
            ".macro adma_copy step, body:vararg",
            "adma_to_line",
            "adma_bytes",
            "adma_strides \\step, \\body",
            "adma_bytes",
            ".endm",

            ".macro adma_body_avx2",
            "vmovdqu ymm0, [rdi + r9]",
            "vmovdqu ymm1, [rdi + r9 + 32]",
            "vmovdqu ymm2, [rdi + r9 + 64]",
            "vmovdqu ymm3, [rdi + r9 + 96]",
            "vmovdqa [rdi], ymm0",
            "vmovdqa [rdi + 32], ymm1",
            "vmovdqa [rdi + 64], ymm2",
            "vmovdqa [rdi + 96], ymm3",
            ".endm",

            ".macro adma_body_fill",
            "movntdq [rdi], xmm0",
            "movntdq [rdi + 16], xmm0",
            "movntdq [rdi + 32], xmm0",
            "movntdq [rdi + 48], xmm0",
            ".endm",

            // One line of the cache, `at` bytes further on. Registers from 16 up leave no dirty upper halves
            // behind.
            ".macro adma_body_stream_avx512 at=0",
            "vmovdqu64 zmm16, [rdi + r9 + \\at]",
            "vmovntdq [rdi + \\at], zmm16",
            ".endm",

            ".macro adma_body_stream_sse2 at=0",
            "movdqu xmm0, [rdi + r9 + \\at]",
            "movdqu xmm1, [rdi + r9 + \\at + 16]",
            "movdqu xmm2, [rdi + r9 + \\at + 32]",
            "movdqu xmm3, [rdi + r9 + \\at + 48]",
            "movntdq [rdi + \\at], xmm0",
            "movntdq [rdi + \\at + 16], xmm1",
            "movntdq [rdi + \\at + 32], xmm2",
            "movntdq [rdi + \\at + 48], xmm3",
            ".endm",

            // A function of `alone`: streams four pages side by side, which keeps more reads in flight.
            ".macro adma_alone name, line",
            ".p2align 6",
            "adma_function \\name",
            "mov r9, rsi",
            "sub r9, rdi",
            "lea r10, [rdi + rdx]",
            "adma_to_line",
            "adma_bytes",
            "4:",
            "mov rax, r10",
            "sub rax, rdi",
            "cmp rax, 16384",
            "jb 6f",
            "lea rcx, [rdi + 4096]",
            ".p2align 5",
            "5:",
            "\\line 0",
            "\\line 4096",
            "\\line 8192",
            "\\line 12288",
            "add rdi, 64",
            "cmp rdi, rcx",
            "jb 5b",
            "add rdi, 12288",
            "jmp 4b",
            "6:",
            "adma_strides 64, \\line",
            "adma_bytes",
            "sfence",
            "ret",
            "adma_close \\name",
            ".endm",

            // Compares, byte by byte, the first stride that differs and what lies behind all strides.
            ".macro adma_compare_bytes",
            "4:",
            "cmp rdi, r10",
            "je adma_loop_whole",
            "movzx eax, byte ptr [rdi]",
            "cmp al, [rdi + r9]",
            "jne adma_loop_differs",
            "inc rdi",
            "jmp 4b",
            ".endm",

            ".macro adma_body_compare_avx2",
            "vmovdqu ymm0, [rdi]",
            "vmovdqu ymm1, [rdi + 32]",
            "vmovdqu ymm2, [rdi + 64]",
            "vmovdqu ymm3, [rdi + 96]",
            "vpcmpeqb ymm0, ymm0, [rdi + r9]",
            "vpcmpeqb ymm1, ymm1, [rdi + r9 + 32]",
            "vpcmpeqb ymm2, ymm2, [rdi + r9 + 64]",
            "vpcmpeqb ymm3, ymm3, [rdi + r9 + 96]",
            "vpand ymm0, ymm0, ymm1",
            "vpand ymm2, ymm2, ymm3",
            "vpand ymm0, ymm0, ymm2",
            "vpmovmskb ecx, ymm0",
            "inc ecx", // 0 where all are equal
            "jnz 3f",
            ".endm",

            ".macro adma_body_compare_sse2",
            "movdqu xmm0, [rdi]",
            "movdqu xmm1, [rdi + 16]",
            "movdqu xmm2, [rdi + r9]",
            "movdqu xmm3, [rdi + r9 + 16]",
            "pcmpeqb xmm0, xmm2",
            "pcmpeqb xmm1, xmm3",
            "pand xmm0, xmm1",
            "pmovmskb ecx, xmm0",
            "sub ecx, 0xffff",
            "jnz 3f",
            ".endm",

            // For a loop that was stopped: dirty upper halves of wide registers would slow down all later
            // code that does not use AVX. r11 holds the loop's address.
            ".macro adma_leave_registers",
            "lea rax, [rip + adma_loop_avx2]",
            "cmp r11, rax",
            "je 6f",
            "lea rax, [rip + adma_compare_avx2]",
            "cmp r11, rax",
            "jne 7f",
            "6:",
            "vzeroupper",
            "7:",
            ".endm",

            // Streaming stores are weakly ordered, so a fence completes them before the end of the piece
            // can be stored.
            ".macro adma_end why",
            "sfence",
            "mov rax, rdi",
            "sub rax, r8",
            "mov edx, \\why",
            "ret",
            ".endm",

            // Description of the restartable sequence for the kernel (struct rseq_cs).
            ".pushsection .data.rel.ro.adma_sequence,\"aw\",@progbits",
            ".p2align 5",
            "adma_sequence:",
            ".long 0, 0",
            ".quad adma_loops_begin",
            ".quad adma_loops_end - adma_loops_begin",
            ".quad adma_loop_interrupted",
            "adma_commit_sequence:",
            ".long 0, 0",
            ".quad adma_commit_begin",
            ".quad adma_commit_end - adma_commit_begin",
            ".quad adma_commit_interrupted",
            ".popsection",

            ".pushsection .text.adma_loops,\"ax\",@progbits",
            ".p2align 6",
            ".cfi_startproc",
            "adma_function adma_copy_loop",
            "mov r11, rcx",
            "mov rax, r8",
            "mov r9, rsi",
            "sub r9, rdi",
            "lea r10, [rdi + rdx]",
            "mov r8, rdi",
            "test rax, rax",
            "jz 5f",
            "mov rdx, [rax]",
            "lea rsi, [rip + adma_sequence]",
            // Nothing lies between this store and the first instruction of the sequence: if the worker is
            // preempted outside the sequence, the kernel undoes the store.
            "mov [rdx + 8], rsi",
            "adma_label adma_loops_begin",
            "mov rdx, [rax + 8]",
            "mov edx, [rdx]",
            "cmp edx, [rax + 16]",
            "jne adma_loop_taken_back",
            "5:",
            "jmp r11",
            "adma_close adma_copy_loop",

            "adma_function adma_loop_movsb",
            "mov rcx, r10",
            "sub rcx, rdi",
            "adma_bytes",
            "jmp adma_loop_whole",
            "adma_close adma_loop_movsb",

            "adma_function adma_loop_avx2",
            "adma_copy 128, adma_body_avx2",
            "vzeroupper",
            "jmp adma_loop_whole",
            "adma_close adma_loop_avx2",

            "adma_function adma_loop_stream_avx512",
            "adma_copy 64, adma_body_stream_avx512",
            "jmp adma_loop_whole",
            "adma_close adma_loop_stream_avx512",

            "adma_function adma_loop_stream_sse2",
            "adma_copy 64, adma_body_stream_sse2",
            "jmp adma_loop_whole",
            "adma_close adma_loop_stream_sse2",

            // Fills: the value stands where copies have their source.
            "adma_function adma_fill_stosb",
            "lea rax, [r9 + r8]",
            "mov rcx, r10",
            "sub rcx, rdi",
            "rep stosb",
            "jmp adma_loop_whole",
            "adma_close adma_fill_stosb",

            "adma_function adma_fill_stream",
            "lea rax, [r9 + r8]",
            "movq xmm0, rax",
            "punpcklqdq xmm0, xmm0",
            "adma_to_line",
            "rep stosb",
            "adma_strides 64, adma_body_fill",
            "rep stosb",
            "jmp adma_loop_whole",
            "adma_close adma_fill_stream",

            "adma_function adma_compare_avx2",
            "adma_strides 128, adma_body_compare_avx2",
            "vzeroupper",
            "adma_compare_bytes",
            "adma_close adma_compare_avx2",

            "adma_function adma_compare_sse2",
            "adma_strides 32, adma_body_compare_sse2",
            "adma_compare_bytes",
            "adma_close adma_compare_sse2",
            "adma_label adma_loops_end",

            // All ends, one behind the other.
            "adma_function adma_loop_whole",
            "adma_end {whole}",
            "adma_loop_differs:",
            "adma_end {differs}",
            "adma_label adma_loop_bad_page",
            "adma_leave_registers",
            "adma_end {bad_page}",
            "adma_loop_taken_back:",
            "adma_end {taken_back}",
            ".long {signature}",
            "adma_label adma_loop_interrupted",
            "adma_leave_registers",
            "adma_end {interrupted}",
            "adma_close adma_loop_whole",

            "adma_function adma_commit",
            "mov rcx, [rdx]",
            "lea rax, [rip + adma_commit_sequence]",
            "mov [rcx + 8], rax",
            "adma_commit_begin:",
            "mov rcx, [rdx + 8]",
            "mov ecx, [rcx]",
            "cmp ecx, [rdx + 16]",
            "jne 4f",
            "mov [rdi], sil",
            "adma_commit_end:",
            "xor eax, eax",
            "ret",
            "4:",
            "mov eax, {taken_back}",
            "ret",
            ".long {signature}",
            "adma_commit_interrupted:",
            "mov eax, {interrupted}",
            "ret",
            "adma_close adma_commit",

            "adma_alone adma_alone_stream_avx512, adma_body_stream_avx512",
            "adma_alone adma_alone_stream_sse2, adma_body_stream_sse2",
            ".cfi_endproc",
            ".popsection",
            $($operands)*
        );
    };
}

pub(crate) use copy_loops;
