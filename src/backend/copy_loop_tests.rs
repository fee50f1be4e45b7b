use super::*;
#[cfg(target_arch = "x86_64")]
use crate::os::cpus::{self, Features};
#[cfg(target_arch = "x86_64")]
use arch::{
    adma_compare_avx2, adma_compare_sse2, adma_loop_avx2, adma_loop_movsb, adma_loop_stream_avx512,
    adma_loop_stream_sse2,
};

#[cfg(target_arch = "x86_64")]
fn has(feature: Features) -> bool {
    cpus::features().contains(feature)
}

/// The loops that this CPU can run, whichever of them it prefers: those that copy, and those that
/// compare.
#[cfg(target_arch = "x86_64")]
fn loops() -> [Vec<*const u8>; 2] {
    let copy = [
        (true, &raw const adma_loop_movsb),
        (true, &raw const adma_loop_stream_sse2),
        (has(Features::AVX2), &raw const adma_loop_avx2),
        (has(Features::AVX512), &raw const adma_loop_stream_avx512),
    ];
    let compare =
        [(true, &raw const adma_compare_sse2), (has(Features::AVX2), &raw const adma_compare_avx2)];
    let runs_here = |&(can, address): &(bool, *const u8)| can.then_some(address);
    [copy.iter().filter_map(runs_here).collect(), compare.iter().filter_map(runs_here).collect()]
}

#[cfg(target_arch = "aarch64")]
fn loops() -> [Vec<*const u8>; 2] {
    [vec![arch::ordinary_loop(|_| false), arch::stream_loop()], vec![arch::compare_loop()]]
}

/// Every length and alignment in which loops can differ.
fn edges() -> impl Iterator<Item = (usize, usize, usize)> {
    let lens = (0..400).chain([511, 512, 513, 1000]);
    lens.flat_map(|len| {
        [(0, 0), (1, 0), (0, 1), (31, 15), (33, 7), (64, 63)].map(|(to, from)| (len, to, from))
    })
}

fn assert_only(target: &[u8], to: usize, expected: &[u8]) {
    let end = to + expected.len();
    assert_eq!(target[to..end], *expected);
    assert!(target[..to].iter().chain(&target[end..]).all(|&byte| byte == 0xee));
}

#[test]
fn loops_that_copy_and_fill_agree_with_naive_for_every_length_and_alignment() {
    let source: Vec<u8> = (0..1100u32).map(|i| (i * 13 + 5) as u8).collect();
    for (len, to, from) in edges() {
        let copied = |copy: &dyn Fn(usize, usize)| {
            let mut target = [0xeeu8; 1100];
            copy(target.as_mut_ptr() as usize + to, source.as_ptr() as usize + from);
            assert_only(&target, to, &source[from..from + len]);
        };
        for which in loops()[0].iter() {
            copied(&|dst, src| {
                // SAFETY: both ranges of `len` bytes lie inside the test's own buffers.
                let end = unsafe { adma_copy_loop(dst, src, len, *which, core::ptr::null()) };
                assert_eq!((end.copied, end.why), (len, PieceEnd::Done as usize));
            });
        }
        for copy_loop in [CopyLoop::Ordinary, CopyLoop::Stream] {
            copied(&|dst, src| {
                // SAFETY: both ranges of `len` bytes lie inside the test's own buffers.
                assert_eq!(unsafe { copy_loop.copy(dst, src, len) }, PieceEnd::Done);
            });
            let (mut target, value) = ([0xeeu8; 1100], len as u8 ^ 0x5a);
            let (dst, eight) = (target.as_mut_ptr() as usize + to, [value; 8]);
            // SAFETY: the `len` bytes lie inside the test's own target.
            let filled = unsafe {
                copy_loop.fill_until_taken_back(dst, usize::from_ne_bytes(eight), len, None)
            };
            assert_eq!(filled, PieceEnd::Done);
            assert_only(&target, to, &vec![value; len]);
        }
    }
}

#[test]
fn loop_that_takes_far_longer_loses() {
    // 4.4 and 121.9 GB/s, 84.2 and 124.2: published for a Zen 3, with a destination that is not aligned and
    // with one that is. Ticks on a Sapphire Rapids.
    let rows = [([2257, 82], true), ([119, 81], false), ([124, 144], false)];
    rows.into_iter().for_each(|(ticks, far)| assert_eq!(loses(ticks), far));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn measured_choice_does_not_depend_on_luck() {
    let movsb = &raw const adma_loop_movsb;
    for _ in 0..100 {
        assert!(!loses(ticks_of([movsb, movsb])));
        assert_eq!(ordinary_loop(), ordinary_loop());
    }
    if has(Features::AVX2) && has(Features::ERMS) {
        let vectors = &raw const adma_loop_avx2;
        let first = loses(ticks_of([movsb, vectors]));
        assert!((0..100).all(|_| loses(ticks_of([movsb, vectors])) == first));
    }
}

#[test]
fn comparisons_of_every_length_find_the_first_difference() {
    let a: Vec<u8> = (0..1100u32).map(|i| (i * 13 + 5) as u8).collect();
    for which in &loops()[1] {
        for (len, shift, _) in edges() {
            for first in [0, len / 3, len / 2, len] {
                let mut b = [0xee; 1100];
                b[shift..shift + len].copy_from_slice(&a[..len]);
                for at in [first, first + 1, len - len / 8] {
                    b[shift + at] ^= 0x80; // behind the range for some
                }
                let differs = (0..len).find(|&i| a[i] != b[shift + i]);
                let (x, y) = (a.as_ptr() as usize, b.as_ptr() as usize + shift);
                // SAFETY: both ranges of `len` bytes lie inside the test's own buffers.
                let end = unsafe { adma_copy_loop(x, y, len, *which, core::ptr::null()) };
                let why = if differs.is_some() {
                    PieceEnd::Differs as usize
                } else {
                    PieceEnd::Done as usize
                };
                assert_eq!((end.copied, end.why), (differs.unwrap_or(len), why), "{len} {first}");
            }
        }
    }
}

#[test]
fn recover_knows_the_loops_and_nothing_else() {
    for which in loops().into_iter().flatten() {
        assert!(recover(which as usize).is_some());
    }
    assert!(recover(&raw const adma_loop_interrupted as usize).is_some());
    assert!(recover(&raw const adma_loops_end as usize).is_none());
    assert!(recover(&raw const adma_loop_bad_page as usize).is_none());
    assert!(recover(recover_knows_the_loops_and_nothing_else as *const () as usize).is_none());
}

/// Runs a loop, or jumps to one of their ends, with all bits of a wide register set; returns how it
/// ended, and the upper half of the register afterwards.
///
/// # Safety
/// As `adma_copy_loop`; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
unsafe fn upper_half_after(
    function: *const u8,
    [dst, src, len]: [usize; 3],
    which: *const u8,
) -> (usize, u64) {
    let (why, upper): (usize, u64);
    // SAFETY: ranges that the loop may copy, and a CPU with AVX2; the ends touch no memory.
    unsafe {
        core::arch::asm!(
            "vpcmpeqd ymm0, ymm0, ymm0",
            "call {function}",
            "vextracti128 xmm0, ymm0, 1",
            "vmovq rax, xmm0",
            "vzeroupper",
            function = in(reg) function,
            inout("rdi") dst => _, inout("rsi") src => _, inout("rdx") len => why,
            inout("rcx") which => _, inout("r8") 0usize => _, inout("r11") which => _,
            out("rax") upper,
            clobber_abi("C"),
        );
    }
    (why, upper)
}

/// The program's own code runs next; where it has no AVX, dirty upper halves make it slow.
#[cfg(target_arch = "x86_64")]
#[test]
fn loop_that_ends_at_a_bad_page_leaves_no_upper_halves_of_registers() {
    use crate::backend::signals;
    use crate::backend::threads::workers;
    if !has(Features::AVX2) {
        return;
    }
    let (page, protection) = (4096, libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping of which the second page becomes bad.
    let dst = unsafe {
        let at = libc::mmap(core::ptr::null_mut(), 2 * page, protection, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.write_bytes(7, 2 * page);
        assert_eq!(libc::mprotect(at.byte_add(page), page, libc::PROT_NONE), 0);
        at as usize
    };
    let source = vec![7u8; 2 * page];
    let ranges = [dst, source.as_ptr() as usize, 2 * page];
    workers::init();
    for which in [&raw const adma_loop_avx2, &raw const adma_compare_avx2] {
        // SAFETY: this entry of the loops touches no memory, it only returns.
        let interrupted =
            unsafe { upper_half_after(&raw const adma_loop_interrupted, [0; 3], which) };
        assert_eq!(interrupted, (INTERRUPTED, 0));
        // In a child: the signals of the test process are its harness's.
        // SAFETY: the child makes system calls only, and runs a loop that survives a bad page.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                crate::os::process::claim_memory();
                workers::forget_after_fork();
                signals::forget_after_fork(); // another test may just have held the lock
                libc::alarm(20);
                let ready = signals::install_handlers().is_ok();
                let done = upper_half_after(adma_copy_loop as *const u8, ranges, which);
                libc::_exit(
                    i32::from(!ready) | i32::from(done != (PieceEnd::Failed as usize, 0)) << 1,
                );
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
    }
    // SAFETY: mapped above by this test, and not used any more.
    unsafe { libc::munmap(dst as *mut _, 2 * page) };
}

#[test]
fn piece_of_another_generation_is_not_written() {
    let (source, mut target) = ([1u8; 256], [0u8; 256]);
    let (sequence, generation) = (Sequence::new(), AtomicU32::new(8));
    for copy_loop in [CopyLoop::Ordinary, CopyLoop::Stream] {
        let late = TakeBack::new(&sequence, &generation, 7);
        let (dst, src) = (target.as_mut_ptr() as usize, source.as_ptr() as usize);
        // SAFETY: both ranges are the test's own arrays of 256 bytes.
        let copied = unsafe { copy_loop.copy_until_taken_back(dst, src, 256, Some(&late)) };
        assert_eq!(copied, PieceEnd::TakenBack);
        assert!(target.iter().all(|&byte| byte == 0));
    }
}
