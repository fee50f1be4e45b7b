//! The engine against a helper that makes every trouble the real one may make.

use super::*;
use crate::backend::ioat::fake::{Kernel, Trouble};
use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const HOW: Options = Options { channels: None, share: Some(0.0), spins: false };
const LATE: Duration = Duration::from_millis(3);
/// Later than a caller comes that has to wait for a CPU.
const VERY_LATE: Duration = Duration::from_millis(300);

fn engine(kernel: &'static Kernel) -> Engine {
    crate::backend::libc::resolve();
    workers::settle_in();
    let engine = Engine::new();
    assert!(engine.helper.fake.set(kernel).is_ok());
    assert!(engine.start());
    engine
}

/// One copy of `len` bytes between the given offsets into pages: every byte of it is right
/// and none beside it touched, and nothing is under way when it has returned.
fn copy_at(
    engine: &Engine,
    (dst_at, src_at): (usize, usize),
    len: usize,
    how: &Options,
) -> Result<(), Refused> {
    let kernel = engine.helper.fake.get().unwrap();
    // As long as a prime number, so that no two pages are alike.
    let block: Vec<u8> = (0..65_521).map(|i: usize| (i * 31 + i / 251 + len) as u8).collect();
    let source = block.repeat(len / block.len() + 2);
    let mut target = vec![0xeeu8; len + 4 * PAGE];
    let page = (target.as_ptr() as usize).next_multiple_of(PAGE) - target.as_ptr() as usize;
    let from = (source.as_ptr() as usize).next_multiple_of(PAGE) - source.as_ptr() as usize;
    let (to, from) = (page + dst_at, from + src_at);
    let (dst, src) = (target.as_mut_ptr() as usize + to, source.as_ptr() as usize + from);
    // SAFETY: inside both vectors.
    let done = unsafe { engine.copy(dst, src, len, how) };
    assert_eq!(kernel.under_way(), 0, "returned while the engine writes");
    assert_eq!(engine.lists.taken.load(Ordering::Relaxed), 0, "a list was not given back");
    if done.is_ok() {
        let right = target[to..to + len] == source[from..from + len];
        assert!(right, "{len} bytes from {src_at} to {dst_at}, {how:?}");
    }
    assert!(target[..to].iter().all(|&byte| byte == 0xee), "written before the copy");
    assert!(target[to + len..].iter().all(|&byte| byte == 0xee), "written behind the copy");
    done
}

fn copy(engine: &Engine, len: usize) -> Result<(), Refused> {
    copy_at(engine, (40, 17), len, &HOW)
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn lens(kernel: &Kernel) -> Vec<usize> {
    kernel.seen.lock().unwrap().iter().map(|piece| piece.len as usize).collect()
}

fn channels(kernel: &Kernel) -> Vec<u32> {
    kernel.seen.lock().unwrap().iter().map(|piece| piece.channel).collect()
}

// ---- right bytes -------------------------------------------------------------------------

const LENGTHS: [usize; 12] =
    [1, 63, 64, 65, 127, 4095, 4096, 65_536, 65_537, 300_000, 1 << 20, 3_000_001];
const OFFSETS: [(usize, usize); 6] = [(0, 0), (1, 0), (0, 63), (63, 1), (64, 2048), (4095, 17)];

#[test]
fn copies_of_every_shape_are_right_with_every_channel_count_share_and_wait() {
    let engine = engine(Kernel::new(4));
    let mut round = 0;
    for len in LENGTHS {
        for offsets in OFFSETS {
            for share in [None, Some(0.0), Some(0.5), Some(1.0)] {
                round += 1;
                let channels = [None, Some(1), Some(3), Some(64)][round % 4];
                let how = Options { channels, share, spins: round % 5 == 0 };
                assert_eq!(copy_at(&engine, offsets, len, &how), Ok(()));
            }
        }
    }
    assert_eq!(count(&engine.counts.redone), 0);
}

#[test]
fn copies_that_end_late_are_waited_for_in_every_way() {
    let kernel = Kernel::new(3);
    let engine = engine(kernel);
    for spins in [false, true] {
        for share in [None, Some(0.25)] {
            kernel.make([Trouble { late: LATE, ..Trouble::default() }; 2]);
            let how = Options { spins, share, ..HOW };
            assert_eq!(copy_at(&engine, (9, 3), 200_000, &how), Ok(()));
            assert_eq!(copy_at(&engine, (9, 3), 200_000, &how), Ok(()));
        }
    }
}

#[test]
fn many_threads_at_once_copy_right() {
    let kernel = Kernel::new(4);
    let engine = engine(kernel);
    kernel.make((0..200).map(|i| Trouble {
        late: Duration::from_micros(i % 7 * 100),
        failed: u64::from(i % 5 == 0),
        ..Trouble::default()
    }));
    std::thread::scope(|scope| {
        for number in 0..6usize {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..40 {
                    let len = 70_000 + round * 4999 + number;
                    let source: Vec<u8> = (0..len).map(|i| (i * 7 + number) as u8).collect();
                    let mut target = vec![0u8; len];
                    let (dst, src) = (target.as_mut_ptr() as usize, source.as_ptr() as usize);
                    // SAFETY: the vectors' own memory.
                    assert_eq!(unsafe { engine.copy(dst, src, len, &HOW) }, Ok(()));
                    assert!(source == target);
                }
            });
        }
    });
    assert_eq!(kernel.under_way(), 0);
}

// ---- where the pieces go -----------------------------------------------------------------

#[test]
fn one_copy_spreads_over_channels_that_follow_from_its_place() {
    const LEN: usize = 64 << 10;
    let kernel = Kernel::new(4);
    let engine = engine(kernel);
    let source = vec![1u8; LEN];
    let mut target = vec![0u8; 7 * LINE];
    let line = (target.as_ptr() as usize).next_multiple_of(LINE);
    let mut used = |at: usize, how: &Options| {
        kernel.seen.lock().unwrap().clear();
        let dst = line - target.as_ptr() as usize + at;
        let (dst, src) = (target[dst..dst + LEN].as_mut_ptr() as usize, source.as_ptr() as usize);
        // SAFETY: inside both vectors.
        unsafe { engine.copy(dst, src, LEN, how) }.unwrap();
        channels(kernel)
    };
    let two = Options { channels: Some(2), ..HOW };
    for number in 0..5 {
        let next = |step: usize| ((line / LINE + number + step) % 4) as u32;
        for at in [number * LINE, number * LINE + PAGE, number * LINE] {
            assert_eq!(used(at, &HOW), [next(0), next(1), next(2), next(3)], "64 KiB spread");
            assert_eq!(used(at, &two), [next(0), next(1)]);
        }
    }
}

#[test]
fn channels_on_several_nodes_are_left_to_the_kernel() {
    let info = Kernel::new(4).info();
    let kernel = Kernel::with(abi::Info { features: info.features | abi::FEATURE_NODES, ..info });
    let engine = engine(kernel);
    copy_at(&engine, (0, 0), 64 << 10, &HOW).unwrap();
    // The fake one says that the first half is near.
    assert_eq!(channels(kernel), [0, 1, 0, 1]);
    // Who wants fewer names them himself.
    copy_at(&engine, (0, 0), 64 << 10, &Options { channels: Some(2), ..HOW }).unwrap();
    let named = &channels(kernel)[4..];
    assert!(matches!(named, [one, next] if *next == (one + 1) % 4), "{named:?}");
}

#[test]
fn with_one_channel_for_a_copy_it_stays_there() {
    let kernel = Kernel::new(3);
    let engine = engine(kernel);
    let one = Options { channels: Some(1), ..HOW };
    // Larger than a request may be.
    copy_at(&engine, (0, 0), 20 << 20, &one).unwrap();
    let used = channels(kernel);
    assert!(used.len() > 2 && used.iter().all(|&channel| channel == used[0]), "{used:?}");
}

#[test]
fn pieces_begin_at_destination_pages_and_are_not_small() {
    let kernel = Kernel::new(4);
    let engine = engine(kernel);
    copy_at(&engine, (100, 3), 500_000, &HOW).unwrap();
    let pieces = kernel.seen.lock().unwrap().clone();
    assert_eq!(pieces.len(), 4);
    assert!(pieces[1..].iter().all(|piece| piece.dst.is_multiple_of(PAGE as u64)));
    assert!(pieces[..pieces.len() - 1].iter().all(|piece| piece.len >= 16 << 10));
    let (first, last) = (&pieces[0], pieces.last().unwrap());
    assert!(pieces.windows(2).all(|two| two[0].dst + two[0].len == two[1].dst));
    assert!(last.dst + last.len - first.dst > 500_000 - 128, "only the edges are the caller's");
}

#[test]
fn requests_respect_the_limits_of_the_file() {
    let limited = |max_bytes, max_pages| {
        let kernel = Kernel::with(abi::Info { max_bytes, max_pages, ..Kernel::new(2).info() });
        let engine = engine(kernel);
        copy_at(&engine, (0, 0), 9_000_000, &HOW).unwrap();
        9_000_000 / count(&engine.counts.submits)
    };
    assert!(limited(2 << 20, 1 << 20) <= 1 << 20, "half of what may be under way");
    assert!(limited(1 << 30, 1024) <= (512 - 64) * PAGE as u64, "on both sides, in pages");
    assert_eq!(limited(1 << 30, 1 << 20), 9_000_000);
    assert!(limited(0, 0) > 0, "whatever the helper says");
}

#[test]
fn fixed_share_is_copied_by_the_caller() {
    for (share, least, most) in [(0.0, 0, 128), (0.5, 500_000, 500_128), (1.0, 1 << 20, 1 << 20)] {
        let engine = engine(Kernel::new(2));
        let len = if share == 1.0 { 1 << 20 } else { 1_000_000 };
        copy_at(&engine, (7, 7), len, &Options { share: Some(share), ..HOW }).unwrap();
        let own = count(&engine.counts.caller_bytes) as usize;
        assert!((least..=most).contains(&own), "{share}: {own}");
        let by_channels: u64 = engine.counts.channel_bytes.iter().map(count).sum();
        assert_eq!(own + by_channels as usize, len, "every byte is counted once");
    }
}

#[test]
fn share_of_the_caller_grows_while_it_waits_and_shrinks_while_it_does_not() {
    let kernel = Kernel::new(2);
    let engine = engine(kernel);
    let how = Options { share: None, ..HOW };
    // Words that never come: the caller has to wait however slow it is itself.
    kernel.make([Trouble { lost: !0, ..Trouble::default() }; 12]);
    (0..12).for_each(|_| copy_at(&engine, (0, 0), 1 << 20, &how).unwrap());
    let grown = engine.share.of(1 << 20);
    assert!(grown > 100_000, "{grown}");
    (0..8).for_each(|_| copy_at(&engine, (0, 0), 1 << 20, &how).unwrap());
    assert!(engine.share.of(1 << 20) < grown);
}

#[test]
fn addresses_the_engine_cannot_read_do_not_suit() {
    let kernel = Kernel::with(abi::Info { src_align: 8, ..Kernel::new(2).info() });
    let engine = engine(kernel);
    assert!(engine.suits(0x1000, 0x2008) && engine.suits(0x1001, 0x2009));
    assert!(!engine.suits(0x1000, 0x2001) && !engine.suits(0x1001, 0x2008));
    assert_eq!(copy_at(&engine, (3, 11), 100_000, &HOW), Ok(()));
    let kernel = Kernel::with(abi::Info { src_align: 4096, ..Kernel::new(2).info() });
    let engine = self::engine(kernel);
    assert_eq!(copy_at(&engine, (3, 3), 100_000, &HOW), Ok(()));
    assert!(lens(kernel).iter().all(|len| len.is_multiple_of(4096)));
}

// ---- signals -----------------------------------------------------------------------------

#[test]
fn copy_is_one_call_of_the_helper_with_signals_held() {
    let kernel = Kernel::new(4);
    let engine = engine(kernel);
    (0..100).for_each(|_| copy(&engine, 100_000).unwrap());
    let calls = [&engine.counts.submits, &engine.counts.waits, &engine.counts.others].map(count);
    assert_eq!(calls, [100, 0, 200]);
    assert_eq!((count(&kernel.submits), count(&kernel.waits)), (100, 0));
}

/// Two calls look whether our handler of faults is in front, and signals are held and released
/// once for the engine's part and the caller's.
#[test]
fn copy_with_a_share_of_the_callers_costs_two_calls_more() {
    let engine = engine(Kernel::new(4));
    let how = Options { share: Some(0.5), ..HOW };
    copy_at(&engine, (40, 17), 100_000, &how).unwrap();
    let before = count(&engine.counts.others);
    (0..100).for_each(|_| copy_at(&engine, (40, 17), 100_000, &how).unwrap());
    assert_eq!(count(&engine.counts.others) - before, 400);
}

/// How a child ends that has this handler for SIGSEGV and leaves with what `body` answers.
fn status_of_child(handler: extern "C" fn(i32), body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes nothing of other threads' its own, and is ended here.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            workers::forget_after_fork();
            crate::backend::signals::forget_after_fork(); // another test may have held the lock
            libc::alarm(20);
            libc::signal(libc::SIGSEGV, handler as *const () as usize);
            libc::_exit(body());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    }
}

/// Our handler hears of bad pages meanwhile, and so of a signal that somebody sends.
#[test]
fn fault_signal_that_is_sent_waits_for_the_end_of_the_copy() {
    static FAKE: std::sync::OnceLock<&'static Kernel> = std::sync::OnceLock::new();
    /// 1: it came while the engine was writing; 2: afterwards.
    static CAME: AtomicU32 = AtomicU32::new(0);
    extern "C" fn on_signal(_: i32) {
        let under_way = FAKE.get().is_none_or(|kernel| kernel.under_way() > 0);
        CAME.store(if under_way { 1 } else { 2 }, Ordering::SeqCst);
    }
    let kernel = Kernel::new(2);
    let engine = engine(kernel);
    let _ = FAKE.set(kernel);
    let status = status_of_child(on_signal, || {
        // SAFETY: a number.
        let thread = unsafe { libc::pthread_self() };
        kernel.at_end(move || {
            // SAFETY: the thread waits for the copy.
            unsafe { libc::pthread_kill(thread, libc::SIGSEGV) };
        });
        kernel.make([Trouble { late: LATE, ..Trouble::default() }]);
        let how = Options { share: Some(0.5), ..HOW };
        let done = copy_at(&engine, (0, 0), 1 << 20, &how);
        if done.is_ok() { CAME.load(Ordering::SeqCst) as i32 } else { 3 }
    });
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 2, "{status:#x}");
}

#[test]
fn caller_copies_its_share_while_the_engine_works() {
    workers::settle_in();
    let kernel = Kernel::new(2);
    let engine = engine(kernel);
    let (source, mut target) = (vec![0x11u8; 100_000], vec![0xeeu8; 100_000]);
    let (dst, src) = (target.as_mut_ptr() as usize, source.as_ptr() as usize);
    let seen = std::sync::Arc::new(AtomicU32::new(0));
    let note = seen.clone();
    kernel.at_end(move || {
        // SAFETY: the target lives until the copy has returned, which is after this.
        note.store(unsafe { (dst as *const u8).read_volatile() }.into(), Ordering::SeqCst);
    });
    kernel.make([Trouble { late: VERY_LATE, ..Trouble::default() }]);
    let how = Options { share: Some(0.5), ..HOW };
    // SAFETY: the vectors' own memory.
    assert_eq!(unsafe { engine.copy(dst, src, 100_000, &how) }, Ok(()));
    assert_eq!(seen.load(Ordering::SeqCst), 0x11);
    assert!(source == target);
}

/// In a child, which may be left by a jump: a bad page in the caller's own part.
#[test]
fn fault_in_the_callers_share_comes_when_the_engine_has_ended() {
    static ENGINE: std::sync::OnceLock<Engine> = std::sync::OnceLock::new();
    extern "C" fn on_fault(_: i32) {
        let is_idle = |engine: &Engine| {
            engine.helper.fake.get().is_some_and(|kernel| kernel.under_way() == 0)
                && engine.lists.taken.load(Ordering::Relaxed) == 0
        };
        // SAFETY: ends the child, with 7 if the engine was idle and nothing is taken.
        unsafe { libc::_exit(if ENGINE.get().is_some_and(is_idle) { 7 } else { 1 }) };
    }
    let kernel = Kernel::new(2);
    let engine = ENGINE.get_or_init(|| engine(kernel));
    kernel.make([Trouble { late: LATE, ..Trouble::default() }]);
    let len = 1 << 20;
    let (source, mut target) = (vec![0x11u8; len], vec![0xeeu8; len + 2 * PAGE]);
    let src = source.as_ptr() as usize;
    let dst = (target.as_mut_ptr() as usize).next_multiple_of(PAGE) + 40;
    let middle = (dst + len / 8).next_multiple_of(PAGE);
    // In the caller's share, and in the few bytes that it copies before the request.
    for (share, bad) in [(0.5, middle), (0.0, dst - 40)] {
        // SAFETY: a page of the vector's, in the child only; the copy ends in the handler.
        let status = status_of_child(on_fault, || unsafe {
            libc::mprotect(bad as *mut c_void, PAGE, libc::PROT_READ);
            let _ = engine.copy(dst, src, len, &Options { share: Some(share), ..HOW });
            2
        });
        let is_right = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7;
        assert!(is_right, "{share}: {status:#x}");
    }
}

// ---- trouble -----------------------------------------------------------------------------

#[test]
fn refused_request_is_left_to_libc_and_says_why() {
    let reasons = [
        (libc::EAGAIN, Refused::Busy),
        (libc::EBUSY, Refused::Busy),
        (libc::ENOMEM, Refused::Busy),
        (libc::EIO, Refused::Busy),
        (libc::ENODEV, Refused::NoChannels),
        (libc::EINVAL, Refused::System),
        (libc::EBADF, Refused::System),
        (libc::ENOTTY, Refused::System),
        (libc::EPERM, Refused::System),
        (libc::ENOSYS, Refused::System),
        // Another file that answers everything with 0.
        (0, Refused::System),
    ];
    for (errno, refused) in reasons {
        let kernel = Kernel::new(2);
        let engine = engine(kernel);
        kernel.make([Trouble { refuse: Some((errno, 0)), ..Trouble::default() }]);
        assert_eq!(copy(&engine, 300_000), Err(refused), "errno {errno}");
        assert_eq!(copy(&engine, 300_000), Ok(()), "the next one is asked again");
    }
}

#[test]
fn refused_request_in_the_middle_of_a_copy_is_done_by_the_caller() {
    for errno in [libc::EAGAIN, libc::EBADF, libc::ENODEV, libc::EFAULT, libc::ENOMEM] {
        let kernel = Kernel::new(2);
        let engine = engine(kernel);
        let fine = Trouble::default();
        kernel.make([fine, Trouble { refuse: Some((errno, 0)), ..fine }, fine]);
        assert_eq!(copy(&engine, 40 << 20), Ok(()), "errno {errno}");
        assert!(count(&engine.counts.caller_bytes) > 1 << 20);
    }
}

#[test]
fn bad_page_at_the_beginning_is_the_callers() {
    let kernel = Kernel::new(2);
    let engine = engine(kernel);
    kernel.make([Trouble { refuse: Some((libc::EFAULT, 0)), ..Trouble::default() }]);
    assert_eq!(copy(&engine, 300_000), Ok(()));
    assert_eq!(count(&engine.counts.faults), 1);
    assert_eq!(count(&engine.counts.caller_bytes), 300_000);
}

#[test]
fn request_taken_in_part_is_waited_for_and_the_rest_copied() {
    for errno in [libc::EFAULT, libc::EAGAIN, libc::EBUSY, libc::ENOMEM, libc::ENODEV] {
        for taken in [1, 2, 3] {
            let kernel = Kernel::new(4);
            let engine = engine(kernel);
            let refuse = Some((errno, taken));
            kernel.make([Trouble { refuse, late: LATE, ..Trouble::default() }]);
            assert_eq!(copy(&engine, 600_000), Ok(()), "errno {errno} after {taken} pieces");
            assert_eq!(lens(kernel).len(), taken);
            assert!(count(&engine.counts.redone) > 0);
            assert_eq!(count(&engine.counts.faults), u64::from(errno == libc::EFAULT));
            let by_channels: usize = lens(kernel).iter().sum();
            assert_eq!(count(&engine.counts.caller_bytes) as usize + by_channels, 600_000);
        }
    }
}

#[test]
fn failed_pieces_are_copied_again() {
    for failed in [1, 0b1010, u64::MAX] {
        for late in [Duration::ZERO, LATE] {
            let kernel = Kernel::new(3);
            let engine = engine(kernel);
            kernel.make([Trouble { failed, late, ..Trouble::default() }]);
            assert_eq!(copy(&engine, 600_000), Ok(()));
            let expected = (failed & low_bits(lens(kernel).len())).count_ones();
            assert_eq!(count(&engine.counts.redone), u64::from(expected));
            assert!(count(&engine.counts.waits) > 0, "only the kernel knows");
            assert_eq!(copy(&engine, 600_000), Ok(()));
        }
    }
}

#[test]
fn lost_word_is_asked_for() {
    for spins in [false, true] {
        let kernel = Kernel::new(4);
        let engine = engine(kernel);
        kernel.make([Trouble { lost: 0b100, ..Trouble::default() }]);
        assert_eq!(copy_at(&engine, (1, 2), 300_000, &Options { spins, ..HOW }), Ok(()));
        assert_eq!(count(&engine.counts.waits), 1, "{spins}");
        assert_eq!(count(&engine.counts.redone), 0);
    }
}

#[test]
fn silent_channel_is_asked_for_at_once() {
    for silent in [0b10, !0] {
        let kernel = Kernel::new(4);
        let engine = engine(kernel);
        kernel.make([Trouble { silent, late: LATE, ..Trouble::default() }]);
        assert_eq!(copy(&engine, 300_000), Ok(()));
        assert_eq!(count(&engine.counts.waits), 1);
    }
}

#[test]
fn helper_without_words_is_asked_for_every_copy() {
    let kernel = Kernel::with(abi::Info { features: 0, ..Kernel::new(2).info() });
    let engine = engine(kernel);
    (0..5).for_each(|_| copy(&engine, 300_000).unwrap());
    assert_eq!(count(&engine.counts.waits), 5);
}

#[test]
fn status_call_that_is_interrupted_or_too_early_is_made_again() {
    for errno in [libc::EINTR, libc::ETIMEDOUT, libc::EAGAIN] {
        let kernel = Kernel::new(2);
        let engine = engine(kernel);
        let status = Some((errno, 7));
        kernel.make([Trouble { silent: !0, status, late: LATE, ..Trouble::default() }]);
        assert_eq!(copy(&engine, 300_000), Ok(()));
        assert_eq!(count(&kernel.waits), 8);
    }
}

#[test]
fn descriptor_closed_during_a_copy_leaves_the_words_to_tell_its_end() {
    let kernel = Kernel::new(2);
    let engine = engine(kernel);
    let status = Some((libc::EBADF, u32::MAX));
    kernel.make([Trouble { status, late: VERY_LATE, ..Trouble::default() }]);
    assert_eq!(copy(&engine, 300_000), Ok(()));
    assert!(count(&engine.counts.waits) > 1);
}

#[test]
fn request_that_found_no_memory_makes_the_next_ones_smaller_for_a_while() {
    let kernel = Kernel::new(2);
    let engine = engine(kernel);
    kernel.make([Trouble { refuse: Some((libc::ENOMEM, 4)), ..Trouble::default() }]);
    copy(&engine, 16 << 20).unwrap();
    let taken: usize = lens(kernel).iter().sum();
    let next = engine.limit.part_of(1 << 30);
    assert!(next <= taken && next + PAGE > taken.min(16 << 20), "{next} after {taken}");
    copy(&engine, 16 << 20).unwrap();
    assert!(engine.limit.part_of(1 << 30) > next, "and larger again");
}

#[test]
fn no_list_free_refuses_the_copy_and_recovers() {
    let engine = engine(Kernel::new(2));
    let all: Vec<_> = (0..abi::SLOTS).map(|_| engine.lists.take().unwrap()).collect();
    assert!(engine.lists.take().is_none());
    let (source, mut target) = (vec![1u8; 100_000], vec![0u8; 100_000]);
    let (dst, src) = (target.as_mut_ptr() as usize, source.as_ptr() as usize);
    // SAFETY: the vectors' own memory.
    assert_eq!(unsafe { engine.copy(dst, src, 100_000, &HOW) }, Err(Refused::Busy));
    drop(all);
    assert_eq!(copy(&engine, 100_000), Ok(()));
}

// ---- start and fork ----------------------------------------------------------------------

#[test]
fn helper_that_makes_no_sense_is_not_used() {
    let sound = Kernel::new(2).info();
    let unsound = [
        abi::Info { abi: abi::ABI_VERSION + 1, ..sound },
        abi::Info { channels: 0, ..sound },
        abi::Info { channels: 33, ..sound },
        abi::Info { usable: 0, ..sound },
        abi::Info { src_align: 0, ..sound },
        abi::Info { src_align: 24, ..sound },
        abi::Info { src_align: 8192, ..sound },
    ];
    for info in unsound {
        let engine = Engine::new();
        assert!(engine.helper.fake.set(Kernel::with(info)).is_ok());
        assert!(!engine.start(), "{info:?}");
        assert_ne!(engine.why_not(), 0);
        assert_eq!(engine.channels(), 0);
    }
}

#[test]
fn what_stays_pinned_is_told_in_pages_and_asked_for_in_lines() {
    let info = Kernel::new(2).info();
    let kernel = Kernel::with(abi::Info { hits: 5, invalidations: 7, ..info });
    let engine = engine(kernel);
    let keeps = || count(&kernel.keeps);
    let fork = |pages| {
        engine.let_go();
        assert_eq!(keeps(), 0, "while the program forks");
        engine.keep_again();
        assert_eq!(keeps(), pages, "afterwards");
    };
    assert_eq!(keeps(), u64::MAX, "nobody was told");
    fork(u64::MAX);
    for (bytes, pages) in [(64 << 20, 16384), (PAGE, 1), (PAGE - 1, 0), (0, 0)] {
        engine.keep(bytes);
        assert_eq!(keeps(), pages, "{bytes} bytes");
        fork(pages);
    }
    let kept = engine.kept().unwrap();
    assert_eq!((kept[0], kept[3]), (("hits", 5), ("invalidations", 7)));
}

#[test]
fn forgotten_engine_has_no_channels_and_starts_anew() {
    let engine = engine(Kernel::new(2));
    copy(&engine, 100_000).unwrap();
    std::mem::forget(engine.lists.take());
    engine.forget_after_fork();
    assert_eq!((engine.channels(), count(&engine.counts.submits)), (0, 0));
    assert!(engine.words.iter().all(|words| words.load(Ordering::Relaxed) == 0));
    assert!(engine.start());
    assert_eq!(copy(&engine, 100_000), Ok(()));
}

#[test]
fn helper_that_is_not_there_is_told_from_one_that_is() {
    if std::path::Path::new("/dev/adma").exists() {
        return;
    }
    let engine = Engine::new();
    assert!(!engine.start());
    assert_eq!(engine.why_not(), libc::ENOENT);
}
