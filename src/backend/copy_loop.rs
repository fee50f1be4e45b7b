//! Loops that copy, fill or compare the bytes of a piece, survive a bad page and can be
//! interrupted.
//!
//! All loops lie in one range of code and keep one invariant: `rdi` is the next byte to write (or
//! to compare), and every byte before it is written (or equal), at every instruction. So no state
//! is saved before a loop is entered, and changing the instruction pointer suffices to stop it:
//!
//! - A bad page raises SIGSEGV or SIGBUS. The handler (`signals`) asks `recover`, as the Linux
//!   kernel asks its exception table, and the loop ends with `PieceEnd::Failed`.
//! - A worker that was preempted may find, when it runs again, that its caller did not wait and
//!   has copied the piece itself. Its loops are a restartable sequence (rseq(2)): the kernel
//!   lets it go on at `interrupted`, and the next entry looks at the generation of the copy
//!   before it writes another byte. See `TakeBack`.
//!
//! Which loop is the default was decided by `bench/run loops`; see bench/README.md.

use crate::backend::piece_end::PieceEnd;
use crate::os::cpus::{self, Features};
use crate::os::sync::AtomicU32;
use crate::os::sys;
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::num::NonZeroUsize;
use core::sync::atomic::AtomicU8;
use once_cell::race::OnceNonZeroUsize;
use zerocopy::FromZeros;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyLoop {
    /// Ordinary stores: `rep movsb` where the CPU is good at it, else vectors. See `ordinary_loop`.
    Ordinary,
    /// Streaming stores: the destination does not enter the cache.
    Stream,
}

/// State by which a worker's piece can be taken back: as long as `generation` holds `expected`, the
/// piece is the worker's. After `generation` has changed and `sys::interrupt_workers` has returned,
/// the worker writes nothing more.
#[repr(C)]
pub struct TakeBack {
    sequence: *const Sequence,
    generation: *const AtomicU32,
    expected: u32,
}

impl TakeBack {
    pub fn new(sequence: &Sequence, generation: &AtomicU32, expected: u32) -> Self {
        Self { sequence, generation, expected }
    }
}

/// A worker's restartable sequence: the kernel's struct rseq, which it writes to after every
/// preemption.
#[repr(C, align(32))]
#[derive(FromZeros)]
pub struct Sequence(UnsafeCell<[u64; 4]>);

// SAFETY: only the worker that has registered it, and the kernel on its behalf, touch it.
unsafe impl Sync for Sequence {}

impl Sequence {
    #[cfg(test)]
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; 4]))
    }

    /// Registers the sequence with the kernel, for this thread. False: not supported, or refused.
    pub fn register(&self, allowed: sys::NoFilter) -> bool {
        // The kernel expects all zeros except for the CPU number, which is reset to "not yet".
        // SAFETY: no other thread uses this sequence, and the kernel does not before it is registered.
        unsafe { *self.0.get() = [0; 4] };
        sys::register_rseq(self.0.get() as usize, size_of::<Self>(), SIGNATURE, allowed)
    }
}

/// Signature that the kernel expects before the abort address of a sequence, so that an attacker
/// cannot make it jump elsewhere.
const SIGNATURE: u32 = 0x5305_3053;

impl CopyLoop {
    /// Copies one piece that cannot be taken back.
    ///
    /// # Safety
    /// As `copy_until_taken_back`.
    pub unsafe fn copy(self, dst: usize, src: usize, len: usize) -> PieceEnd {
        // SAFETY: the caller promises that the ranges are apart, and that no reference covers `dst`.
        unsafe { self.copy_until_taken_back(dst, src, len, None) }
    }

    /// Copies one piece; with `take_back` in a worker whose piece can be taken back.
    ///
    /// # Safety
    /// Until the piece is done or taken back, the ranges do not overlap and no Rust reference covers `dst`.
    /// A bad page ends the copy with `Failed` if our handler stands in front of the program's;
    /// otherwise it ends as the program has decided.
    pub unsafe fn copy_until_taken_back(
        self,
        dst: usize,
        src: usize,
        len: usize,
        take_back: Option<&TakeBack>,
    ) -> PieceEnd {
        let which = match self {
            CopyLoop::Stream if cpus::features().contains(Features::AVX512) => {
                &raw const adma_loop_stream_avx512
            }
            CopyLoop::Stream => &raw const adma_loop_stream_sse2,
            CopyLoop::Ordinary => ordinary_loop(),
        };
        // SAFETY: the caller's ranges are apart, no reference covers `dst`, and the CPU has the loop's instructions.
        unsafe { run(dst, src, 1, len, which, take_back) }.0
    }

    /// Fills one piece with the bytes of `value`, which are all equal. Otherwise as
    /// `copy_until_taken_back`.
    ///
    /// # Safety
    /// As `copy_until_taken_back`.
    pub unsafe fn fill_until_taken_back(
        self,
        dst: usize,
        value: usize,
        len: usize,
        take_back: Option<&TakeBack>,
    ) -> PieceEnd {
        let which = match self {
            CopyLoop::Stream => &raw const adma_fill_stream,
            _ => &raw const adma_fill_stosb,
        };
        // SAFETY: the caller promises that no reference covers `dst`; fill loops take the value for
        // the source, and read nothing.
        unsafe { run(dst, value, 0, len, which, take_back) }.0
    }
}

/// Returns the loop with ordinary stores.
///
/// With AVX2, `rep movsb` is chosen only if the CPU states that it is fast (ERMS) and a measurement
/// shows it: CPUs that state it can take 28 times as long as with vectors where the destination is
/// not aligned (Zen 3), and no bit of cpuid shows that. The first piece measures, in a few
/// microseconds.
fn ordinary_loop() -> *const u8 {
    static CHOSEN: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let choose = || {
        let has = |feature| cpus::features().contains(feature);
        let (movsb, vectors) = (&raw const adma_loop_movsb, &raw const adma_loop_avx2);
        let is_good = || has(Features::ERMS) && !loses(ticks_of([movsb, vectors]));
        let chosen = if !has(Features::AVX2) || is_good() { movsb } else { vectors };
        NonZeroUsize::new(chosen as usize).unwrap_or(NonZeroUsize::MIN)
    };
    CHOSEN.get_or_init(choose).get() as *const u8
}

/// Returns whether the first of two loops takes far longer than the second: other CPUs differ by less.
fn loses([first, second]: [u64; 2]) -> bool {
    first > 2 * second
}

/// Measures two loops with about 2 KiB in the nearest cache and a destination that is not aligned: returns
/// the ticks of the fastest of several turns. Source and destination lie in one page, so that no load
/// waits for a store which only has the same offset in its page.
fn ticks_of(loops: [*const u8; 2]) -> [u64; 2] {
    const LEN: usize = 1984;
    #[repr(align(4096))]
    struct Page(UnsafeCell<[u8; 4096]>);
    // SAFETY: only the loops touch the page; threads that measure at once write zeros over zeros.
    unsafe impl Sync for Page {}
    static PAGE: Page = Page(UnsafeCell::new([0; 4096]));
    let page = PAGE.0.get() as usize;
    let mut best = [u64::MAX; 2];
    for _ in 0..5 {
        for (which, best) in loops.into_iter().zip(&mut best) {
            let begin = sys::ticks();
            // SAFETY: two ranges of the page that do not overlap; the caller passes loops whose
            // instructions the CPU has.
            unsafe { run(page + 2048 + 15, page, 1, LEN, which, None) };
            *best = (*best).min(sys::ticks().wrapping_sub(begin));
        }
    }
    best
}

/// Compares two ranges. Also returns how many bytes are equal; a difference or a bad page that has
/// stopped it lies right after them.
///
/// # Safety
/// As `CopyLoop::copy_until_taken_back`, except that nothing is written: ranges may overlap.
pub unsafe fn compare_until_taken_back(
    a: usize,
    b: usize,
    len: usize,
    take_back: Option<&TakeBack>,
) -> (PieceEnd, usize) {
    let which = match cpus::features().contains(Features::AVX2) {
        true => &raw const adma_compare_avx2,
        false => &raw const adma_compare_sse2,
    };
    // SAFETY: these loops only read the caller's ranges, with instructions that the CPU has.
    unsafe { run(a, b, 1, len, which, take_back) }
}

/// Writes the end of a worker's piece to `place`, unless it was taken back.
pub fn commit(place: *const AtomicU8, end: PieceEnd, take_back: &TakeBack) {
    // SAFETY: `place` is a byte of the queue, which is never freed.
    while unsafe { adma_commit(place, end as u8, take_back) } == INTERRUPTED {}
}

/// Runs one of the loops below to its end, however often it is interrupted; returns how it has
/// ended, and after how many bytes. The source argument advances by `pace` with each byte.
///
/// # Safety
/// The ranges are as the loop at `which` demands, and the CPU has its instructions.
unsafe fn run(
    dst: usize,
    src: usize,
    pace: usize,
    len: usize,
    which: *const u8,
    take_back: Option<&TakeBack>,
) -> (PieceEnd, usize) {
    let take_back = take_back.map_or(core::ptr::null(), |t| t);
    let mut at = 0;
    loop {
        let src = src + pace * at;
        // SAFETY: the rest of the caller's ranges, which are as this loop demands.
        let end = unsafe { adma_copy_loop(dst + at, src, len - at, which, take_back) };
        at += end.copied;
        if let Some(end) = PieceEnd::of(end.why) {
            return (end, at);
        } // interrupted: go on if it is still ours
    }
}

/// Returns the address to resume at, if `ip` lies in a copy loop that has met a bad page.
pub fn recover(ip: usize) -> Option<usize> {
    let [begin, end, interrupted, bad_page] = [
        &raw const adma_loops_begin,
        &raw const adma_loops_end,
        // At a bad page in a worker's sequence, the kernel aborts the sequence, and only then calls the
        // handler: so the handler finds this address.
        &raw const adma_loop_interrupted,
        &raw const adma_loop_bad_page,
    ]
    .map(|address| address as usize);
    ((begin..end).contains(&ip) || ip == interrupted).then_some(bad_page)
}

/// Number that the loops return where the kernel has interrupted their sequence; it is no `PieceEnd`.
const INTERRUPTED: usize = 5;
const _: () = assert!(PieceEnd::of(INTERRUPTED).is_none());

#[repr(C)]
struct LoopEnd {
    copied: usize,
    /// `INTERRUPTED`, or a `PieceEnd`.
    why: usize,
}

unsafe extern "C" {
    /// Copies by the loop at `which`.
    fn adma_copy_loop(
        dst: usize,
        src: usize,
        len: usize,
        which: *const u8,
        take_back: *const TakeBack,
    ) -> LoopEnd;
    /// Writes a byte and returns 0, if the piece was not taken back; otherwise returns a number as
    /// in `LoopEnd::why`.
    fn adma_commit(place: *const AtomicU8, end: u8, take_back: *const TakeBack) -> usize;
    static adma_loop_movsb: u8;
    static adma_loop_avx2: u8;
    static adma_loop_stream_avx512: u8;
    static adma_loop_stream_sse2: u8;
    static adma_fill_stosb: u8;
    static adma_fill_stream: u8;
    static adma_compare_avx2: u8;
    static adma_compare_sse2: u8;
    static adma_loops_begin: u8;
    static adma_loops_end: u8;
    static adma_loop_interrupted: u8;
    static adma_loop_bad_page: u8;
}

// Registers in the loops: rdi next byte to write, r8 the first one, r9 source minus destination,
// r10 the end, r11 the loop. Nothing is on the stack, so every end is a plain return, and one
// unwind entry covers all of it. Names and sizes are for debuggers and profilers.
global_asm!(
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
    whole = const PieceEnd::Done as usize,
    bad_page = const PieceEnd::Failed as usize,
    interrupted = const INTERRUPTED,
    taken_back = const PieceEnd::TakenBack as usize,
    differs = const PieceEnd::Differs as usize,
    signature = const SIGNATURE,
);

#[cfg(test)]
#[path = "copy_loop_tests.rs"]
mod tests;
