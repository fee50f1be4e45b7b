//! Tests of the engine on a helper that fails in every way the real one may.

mod signals;

use super::*;
use crate::backend::engine::CopyEngine;
use crate::backend::ioat::fake::{Kernel, Trouble};
use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const HOW: CopyOptions =
    CopyOptions { channels: None, share: Some(0.0), spins: false, spare_cpus: false };
const LATE: Duration = Duration::from_millis(3);
/// Longer than a caller waits for a CPU.
const VERY_LATE: Duration = Duration::from_millis(300);
const FINE: Trouble =
    Trouble { refuse: None, failed: 0, lost: 0, silent: 0, late: Duration::ZERO, status: None };

/// Returns an engine on a helper with these faults, one submission after the other.
fn engine_on(kernel: &'static Kernel, troubles: impl IntoIterator<Item = Trouble>) -> Engine {
    crate::backend::libc::resolve();
    workers::init();
    kernel.make(troubles);
    let engine = Engine::new();
    engine.helper.set_fake(kernel);
    assert!(start(&engine));
    engine
}

fn engine(channels: u32, troubles: impl IntoIterator<Item = Trouble>) -> Engine {
    engine_on(Kernel::new(channels), troubles)
}

fn start(engine: &Engine) -> bool {
    engine.open(sys::NoNewFilter::look().unwrap())
}

fn kernel(engine: &Engine) -> &'static Kernel {
    engine.helper.fake().unwrap()
}

/// One copy of `len` bytes between the given offsets into pages: every byte of it is right
/// and none beside it touched, and nothing is under way when it has returned.
fn copy_at(
    engine: &Engine,
    (dst_at, src_at): (usize, usize),
    len: usize,
    how: &CopyOptions,
) -> Result<(), Refused> {
    // The length is prime, so that no two pages are equal.
    let block: Vec<u8> = (0..65_521).map(|i: usize| (i * 31 + i / 251 + len) as u8).collect();
    let source = block.repeat(len / block.len() + 2);
    let mut target = vec![0xeeu8; len + 4 * PAGE];
    let page = |at: usize| at.next_multiple_of(PAGE) - at;
    let to = page(target.as_ptr() as usize) + dst_at;
    let from = page(source.as_ptr() as usize) + src_at;
    let (dst, src) = (target.as_mut_ptr() as usize + to, source.as_ptr() as usize + from);
    // SAFETY: inside both vectors.
    let done = unsafe { engine.copy(Stretch { dst, src, len }, how) };
    if done.is_ok() {
        let right = target[to..to + len] == source[from..from + len];
        assert!(right, "{len} bytes from {src_at} to {dst_at}, {how:?}");
    }
    assert!(target[..to].iter().all(|&byte| byte == 0xee), "written before the copy");
    assert!(target[to + len..].iter().all(|&byte| byte == 0xee), "written behind the copy");
    done
}

/// One copy, with nothing under way and no list taken when it has returned.
fn copy(engine: &Engine, len: usize) -> Result<(), Refused> {
    let done = copy_at(engine, (40, 17), len, &HOW);
    assert_eq!(kernel(engine).under_way(), 0, "returned while the engine writes");
    assert_eq!(engine.lists.taken.load(Ordering::Relaxed), 0, "a list was not given back");
    done
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn seen<T>(engine: &Engine, part: impl Fn(&abi::Piece) -> T) -> Vec<T> {
    kernel(engine).seen.lock().unwrap().iter().map(part).collect()
}

fn lens(engine: &Engine) -> Vec<usize> {
    seen(engine, |piece| piece.len as usize)
}

#[test]
fn copies_of_every_shape_are_right_with_every_channel_count_share_and_wait() {
    const LENGTHS: [usize; 10] = [1, 63, 64, 65, 4095, 4096, 65_537, 300_000, 1 << 20, 3_000_001];
    const OFFSETS: [(usize, usize); 6] = [(0, 0), (1, 0), (0, 63), (63, 1), (64, 2048), (4095, 17)];
    let late = (0..2400).map(|i| match i % 50 {
        0 => Trouble { late: LATE, ..FINE },
        _ => FINE,
    });
    let engine = engine(4, late);
    let mut round = 0;
    for len in LENGTHS {
        for offsets in OFFSETS {
            for share in [None, Some(0.0), Some(0.5), Some(1.0)] {
                round += 1;
                let channels = [None, Some(1), Some(3), Some(64)][round % 4];
                let how = CopyOptions { channels, share, spins: round % 5 == 0, spare_cpus: false };
                assert_eq!(copy_at(&engine, offsets, len, &how), Ok(()));
                let (own, len) = (count(&engine.counts.caller_bytes), len as u64);
                let by_channels: u64 = engine.counts.channel_bytes.iter().map(count).sum();
                engine.counts.clear();
                assert_eq!(own + by_channels, len, "every byte is counted once");
                let fixed = share.map_or(0, |share| (len as f32 * share) as u64);
                assert!(share.is_none() || (fixed..fixed + 129).contains(&own), "{own} of {len}");
            }
        }
    }
}

#[test]
fn many_threads_at_once_copy_right() {
    let troubles = (0..200).map(|i| Trouble {
        late: Duration::from_micros(i % 7 * 100),
        failed: u64::from(i % 5 == 0),
        ..FINE
    });
    let engine = engine(4, troubles);
    std::thread::scope(|scope| {
        for number in 0..6 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..40 {
                    let len = 70_000 + round * 4999 + number;
                    assert_eq!(copy_at(engine, (number, round), len, &HOW), Ok(()));
                }
            });
        }
    });
    assert_eq!(kernel(&engine).under_way(), 0);
}

#[test]
fn one_copy_spreads_over_channels_that_follow_from_its_place() {
    const LEN: usize = 64 << 10;
    let engine = engine(4, []);
    let source = vec![1u8; LEN];
    let mut target = vec![0u8; 7 * LINE];
    let line = (target.as_ptr() as usize).next_multiple_of(LINE);
    let mut used = |at: usize, how: &CopyOptions| {
        kernel(&engine).seen.lock().unwrap().clear();
        let dst = line - target.as_ptr() as usize + at;
        let (dst, src) = (target[dst..dst + LEN].as_mut_ptr() as usize, source.as_ptr() as usize);
        // SAFETY: inside both vectors.
        unsafe { engine.copy(Stretch { dst, src, len: LEN }, how) }.unwrap();
        seen(&engine, |piece| piece.channel)
    };
    let two = CopyOptions { channels: Some(2), ..HOW };
    for number in 0..5 {
        let next = |step: usize| ((line / LINE + number + step) % 4) as u32;
        for at in [number * LINE, number * LINE + PAGE, number * LINE] {
            assert_eq!(used(at, &HOW), [next(0), next(1), next(2), next(3)], "64 KiB spread");
            assert_eq!(used(at, &two), [next(0), next(1)]);
        }
    }
}

#[test]
fn requests_respect_the_limits_of_the_file() {
    let limited = |max_bytes, max_pages| {
        let info = abi::Info { max_bytes, max_pages, ..Kernel::new(2).info() };
        let engine = engine_on(Kernel::with(info), []);
        copy_at(&engine, (0, 0), 9_000_000, &HOW).unwrap();
        9_000_000 / count(&engine.counts.submits)
    };
    assert!(limited(2 << 20, 1 << 20) <= 1 << 20, "half of what may be under way");
    assert!(limited(1 << 30, 1024) <= (512 - 64) * PAGE as u64, "on both sides, in pages");
    assert_eq!(limited(1 << 30, 1 << 20), 9_000_000);
    assert!(limited(0, 0) > 0, "whatever the helper says");
}

#[test]
fn addresses_the_engine_cannot_read_do_not_suit() {
    let aligned =
        |src_align| engine_on(Kernel::with(abi::Info { src_align, ..Kernel::new(2).info() }), []);
    let engine = aligned(8);
    assert!(engine.suits(0x1000, 0x2008) && engine.suits(0x1001, 0x2009));
    assert!(!engine.suits(0x1000, 0x2001) && !engine.suits(0x1001, 0x2008));
    assert_eq!(copy_at(&engine, (3, 11), 100_000, &HOW), Ok(()));
    let engine = aligned(4096);
    assert_eq!(copy_at(&engine, (3, 3), 100_000, &HOW), Ok(()));
    assert!(lens(&engine).iter().all(|len| len.is_multiple_of(4096)));
}

#[test]
fn refused_request_is_left_to_libc_with_its_reason() {
    let reasons = [
        (libc::EAGAIN, Refused::Busy),
        (libc::EBUSY, Refused::Busy),
        (libc::ENOMEM, Refused::Busy),
        (libc::EIO, Refused::Busy),
        (libc::ENODEV, Refused::NoChannels),
        (libc::EINVAL, Refused::System),
        (libc::EBADF, Refused::System),
        (libc::EPERM, Refused::System),
        // Another file that answers everything with 0.
        (0, Refused::System),
    ];
    for (errno, refused) in reasons {
        let refusal = Trouble { refuse: Some((errno, 0)), ..FINE };
        let engine = engine(2, [refusal, FINE, FINE, refusal]);
        assert_eq!(copy(&engine, 300_000), Err(refused), "errno {errno}");
        assert_eq!(copy(&engine, 300_000), Ok(()), "the next one is asked again");
        assert_eq!(copy(&engine, 40 << 20), Ok(()), "errno {errno} in the middle of a copy");
        assert!(count(&engine.counts.caller_bytes) > 1 << 20);
    }
}

/// The errno of the first piece that is not taken decides. Only EFAULT is tried for the very first piece,
/// too: with a bad page in it nothing is taken, and libc copies everything.
#[test]
fn request_taken_in_part_is_waited_for_and_the_rest_copied() {
    for errno in [libc::EFAULT, libc::EAGAIN, libc::EBUSY, libc::ENOMEM, libc::ENODEV] {
        for taken in usize::from(errno != libc::EFAULT)..4 {
            let refuse = Some((errno, taken));
            let engine = engine(4, [Trouble { refuse, late: LATE, ..FINE }]);
            assert_eq!(copy(&engine, 600_000), Ok(()), "errno {errno} after {taken} pieces");
            assert_eq!(lens(&engine).len(), taken);
            assert_eq!(count(&engine.counts.redone) > 0, taken > 0);
            assert_eq!(count(&engine.counts.faults), u64::from(errno == libc::EFAULT));
            let by_channels: usize = lens(&engine).iter().sum();
            assert_eq!(count(&engine.counts.caller_bytes) as usize + by_channels, 600_000);
        }
    }
}

#[test]
fn failed_pieces_are_copied_again() {
    for failed in [1, 0b1010, u64::MAX] {
        for late in [Duration::ZERO, LATE] {
            let engine = engine(3, [Trouble { failed, late, ..FINE }]);
            assert_eq!(copy(&engine, 600_000), Ok(()));
            let expected = (failed & low_bits(lens(&engine).len())).count_ones();
            assert_eq!(count(&engine.counts.redone), u64::from(expected));
            assert!(count(&engine.counts.waits) > 0, "only the kernel knows");
            assert_eq!(copy(&engine, 600_000), Ok(()));
        }
    }
}

#[test]
fn copy_with_missing_words_asks_the_kernel() {
    const MANY: u64 = u64::MAX; // a call may time out on a busy machine
    let silent = Trouble { silent: !0, late: LATE, ..FINE };
    let asked_again = |errno| Trouble { status: Some((errno, 7)), ..silent };
    let closed = Trouble { status: Some((libc::EBADF, u32::MAX)), late: LATE, ..FINE };
    let rows = [
        (FINE, 0..=0),
        (Trouble { lost: 0b100, ..FINE }, 1..=1),
        (Trouble { silent: 0b10, ..silent }, 1..=MANY),
        (silent, 1..=MANY),
        (asked_again(libc::EINTR), 8..=MANY),
        (asked_again(libc::ETIMEDOUT), 8..=MANY),
        (asked_again(libc::EAGAIN), 8..=MANY),
        (closed, 2..=MANY), // ended by the completion words
    ];
    for (row, (trouble, asks)) in rows.into_iter().enumerate() {
        for spins in [false, true] {
            let engine = engine(4, [trouble]);
            let (kernel, least) = (kernel(&engine), *asks.start());
            if !trouble.late.is_zero() {
                kernel.at_end(move || {
                    while count(&kernel.waits) < least {
                        sys::yield_now();
                    }
                });
            }
            let how = CopyOptions { spins, ..HOW };
            assert_eq!(copy_at(&engine, (1, 2), 300_000, &how), Ok(()));
            let asked = count(&engine.counts.waits);
            assert!(asks.contains(&asked), "row {row}, spins {spins}: {asked}");
            assert_eq!(count(&engine.counts.redone), 0);
        }
    }
    let info = abi::Info { features: 0, ..Kernel::new(2).info() };
    let engine = engine_on(Kernel::with(info), []);
    (0..5).for_each(|_| copy(&engine, 300_000).unwrap());
    assert_eq!(count(&engine.counts.waits), 5, "a helper without words");
}

#[test]
fn request_that_found_no_memory_makes_the_next_ones_smaller_for_a_while() {
    let engine = engine(2, [Trouble { refuse: Some((libc::ENOMEM, 4)), ..FINE }]);
    copy(&engine, 16 << 20).unwrap();
    let taken: usize = lens(&engine).iter().sum();
    let next = engine.limit.part_of(1 << 30);
    assert!(next <= taken && next + PAGE > taken.min(16 << 20), "{next} after {taken}");
    copy(&engine, 16 << 20).unwrap();
    assert!(engine.limit.part_of(1 << 30) > next, "and larger again");
}

#[test]
fn no_list_free_refuses_the_copy_and_recovers() {
    let engine = engine(2, []);
    let all: Vec<_> = (0..abi::SLOTS).map(|_| engine.lists.take().unwrap()).collect();
    assert!(engine.lists.take().is_none());
    assert_eq!(copy_at(&engine, (0, 0), 100_000, &HOW), Err(Refused::Busy));
    drop(all);
    assert_eq!(copy(&engine, 100_000), Ok(()));
}

#[test]
fn helper_with_invalid_info_is_not_used() {
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
        engine.helper.set_fake(Kernel::with(info));
        assert!(!start(&engine), "{info:?}");
        assert!(engine.why_not() != 0 && engine.channels() == 0);
    }
    if !std::path::Path::new("/dev/adma").exists() {
        let engine = Engine::new();
        assert!(!start(&engine) && engine.why_not() == libc::ENOENT);
    }
}
