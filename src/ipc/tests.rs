//! Both ends in one process, on every engine: the same tests against the same bytes.

use super::calls::{
    adma_alloc, adma_check as check, adma_close as close, adma_free, adma_iread, adma_iwrite,
    adma_read, adma_wait, adma_wait_for as wait_for, adma_write,
};
use super::endpoint::Role::{self, Reader, Writer};
use super::endpoint::{MessagePiece, Step};
use super::link::Link;
use super::region::WINDOW;
use super::region::kind::{DIRECT, EAGER, PLACED, STREAMED};
use super::settings::{Engines, Settings, Workers};
use super::{MOST_EAGER, handshake, os, table, tally};
use crate::backend::libc as original;
use crate::backend::threads::workers;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const IN_PROGRESS: isize = -libc::EINPROGRESS as isize;
const UNTOUCHED: u8 = 0xee;
const INVALID: isize = -libc::EINVAL as isize;

const DEFAULT: Settings = Settings::DEFAULT;

/// Two connected handles; a test may close them before.
struct Pair {
    ends: [i32; 2],
    what: &'static str,
}

impl Drop for Pair {
    fn drop(&mut self) {
        let closed = self.ends.map(|end| close(end));
        let good = closed.iter().all(|&closed| closed == 0 || closed == -libc::EBADF);
        assert!(good || thread::panicking(), "{}: closing is {closed:?}", self.what);
    }
}

fn pair_with(settings: [Settings; 2], what: &'static str) -> Pair {
    original::resolve();
    let sockets = os::unix_pair().unwrap();
    let enter = |side: usize| {
        let owner = table::become_owner().unwrap();
        let established = handshake::meet(sockets[side].raw(), settings[side]).unwrap();
        table::enter(Box::new(Link::new(established, owner))).unwrap()
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| enter(1));
        Pair { ends: [enter(0), other.join().unwrap()], what }
    })
}

fn pair() -> Pair {
    pair_with([DEFAULT; 2], "both copy")
}

const SHM: Settings = Settings { engines: Engines::SharedMemory, ..DEFAULT };

/// Every way a message can take.
fn every_pair() -> [Pair; 4] {
    [
        pair(),
        pair_with([DEFAULT, SHM], "first copies"),
        pair_with([SHM, DEFAULT], "second copies"),
        pair_with([SHM; 2], "nobody copies"),
    ]
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed).wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

fn write(handle: i32, data: &[u8]) -> isize {
    // SAFETY: lives through the call.
    unsafe { adma_write(handle, data.as_ptr().cast(), data.len()) }
}

fn read(handle: i32, data: &mut [u8]) -> isize {
    // SAFETY: lives through the call.
    unsafe { adma_read(handle, data.as_mut_ptr().cast(), data.len()) }
}

fn iwrite(handle: i32, data: &[u8]) -> i64 {
    // SAFETY: the tests wait, or close, before the bytes go away.
    unsafe { adma_iwrite(handle, data.as_ptr().cast(), data.len()) }
}

fn iread(handle: i32, data: &mut [u8]) -> i64 {
    // SAFETY: as above.
    unsafe { adma_iread(handle, data.as_mut_ptr().cast(), data.len()) }
}

/// Until the other side has posted the read that our next write meets.
fn await_read(handle: i32) {
    while !table::find(handle).unwrap().is_read_visible() {
        thread::yield_now();
    }
}

fn wait(cookie: i64) -> isize {
    if cookie > 0 { adma_wait(cookie) } else { cookie as isize }
}

/// Whether a buffer that was full of `UNTOUCHED` has got these bytes at one place and no others.
fn has_only(got: &[u8], at: usize, data: &[u8]) -> bool {
    let around = got[..at].iter().chain(&got[at + data.len()..]);
    got[at..at + data.len()] == *data && around.into_iter().all(|&byte| byte == UNTOUCHED)
}

/// One message, both ends of which wait from the beginning.
fn send([a, b]: [i32; 2], data: &[u8], got: &mut [u8]) -> [isize; 2] {
    thread::scope(|scope| {
        let writer = scope.spawn(move || write(a, data));
        let taken = read(b, got);
        [writer.join().unwrap(), taken]
    })
}

/// The same, both ends of which are posted before either waits.
fn exchange([a, b]: [i32; 2], data: &[u8], got: &mut [u8]) -> [isize; 2] {
    let (written, taken) = (iwrite(a, data), iread(b, got));
    thread::scope(|scope| {
        let writer = scope.spawn(move || wait(written));
        let taken = wait(taken);
        [writer.join().unwrap(), taken]
    })
}

/// Who is late with a cookie while others send a whole window holds them up.
fn patiently(mut transfer: impl FnMut() -> isize) -> usize {
    loop {
        match transfer() {
            refused if refused == -libc::EAGAIN as isize => thread::yield_now(),
            count => return usize::try_from(count).unwrap_or_else(|_| panic!("{count}")),
        }
    }
}

/// Around every border, and some beyond.
fn sizes() -> impl Iterator<Item = usize> {
    let borders = [1, 64, 257, MOST_EAGER, 65_536, 300_000, 4 << 20];
    borders.into_iter().flat_map(|size| [size - 1, size, size + 1]).chain([16 << 20])
}

#[test]
fn messages_of_every_size_arrive_whole_on_every_engine() {
    for Pair { ends, what } in every_pair() {
        for size in sizes() {
            for carry in [send, exchange] {
                let (data, mut got) = (bytes(size, 3), vec![0; size]);
                assert_eq!(carry(ends, &data, &mut got), [size as isize; 2], "{what}");
                assert!(got == data, "{what}, {size} bytes");
            }
        }
    }
}

#[test]
fn either_side_completes_a_direct_message_alone() {
    let &Pair { ends: [a, b], .. } = &pair();
    for first in [Writer, Reader] {
        let (data, mut got) = (bytes(3 << 20, 1), vec![0; 3 << 20]);
        let (written, taken) = (iwrite(a, &data), iread(b, &mut got));
        let order = if first == Writer { [written, taken] } else { [taken, written] };
        assert_eq!(order.map(wait), [3 << 20; 2]);
        assert!(got == data);
    }
}

#[test]
fn checking_alone_makes_progress() {
    for Pair { ends: [a, b], what } in every_pair() {
        let (data, mut got) = (bytes(1 << 20, 1), vec![0; 1 << 20]);
        let mut left = vec![iwrite(a, &data), iread(b, &mut got)];
        let begun = Instant::now();
        while !left.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
            left.retain(|&cookie| {
                let count = check(cookie);
                assert!(count == IN_PROGRESS || count == 1 << 20, "{what}: {count}");
                count == IN_PROGRESS
            });
        }
        assert!(got == data, "{what}");
    }
}

#[test]
fn both_directions_at_once_with_reads_waited_for_first() {
    for Pair { ends: [a, b], what } in every_pair() {
        let size = 5 << 20;
        let side = move |handle: i32, seed: usize| {
            for round in 0..5 {
                let (data, mut got) = (bytes(size, seed + round), vec![0; size]);
                let (taken, written) = (iread(handle, &mut got), iwrite(handle, &data));
                assert_eq!(wait(taken), size as isize, "{what}");
                assert_eq!(wait(written), size as isize, "{what}");
                assert!(got == bytes(size, 100 - seed + round), "{what}");
            }
        };
        thread::scope(|scope| {
            scope.spawn(move || side(a, 0));
            side(b, 100);
        });
    }
}

#[test]
fn unequal_lengths_transfer_the_shorter_and_touch_nothing_else() {
    for Pair { ends, what } in every_pair() {
        for (one, other) in [(10, 4), (40_000, 100), (1 << 20, 70_000), (1 << 20, 0)] {
            for (sent, wanted) in [(one, other), (other, one)] {
                let (data, mut got) = (bytes(sent, 7), vec![UNTOUCHED; wanted]);
                let counts = exchange(ends, &data, &mut got);
                assert_eq!(counts, [other as isize; 2], "{what} {sent} {wanted}");
                assert!(has_only(&got, 0, &data[..other]), "{what} {sent} {wanted}");
            }
        }
    }
}

#[test]
fn eager_write_whose_read_is_there_returns_the_shorter_count() {
    let &Pair { ends: [a, b], .. } = &pair();
    let data = bytes(100, 1);
    // Posted without waiting; and by somebody who spins, sleeps shortly, sleeps long.
    let mut got = [0; 40];
    let posted = iread(b, &mut got);
    assert_eq!((write(a, &data), wait(posted)), (40, 40));
    for microseconds in [5, 1000, 10_000] {
        thread::scope(|scope| {
            scope.spawn(move || assert_eq!(read(b, &mut [0; 30]), 30));
            await_read(a);
            thread::sleep(Duration::from_micros(microseconds));
            assert_eq!(write(a, &data), 30, "{microseconds}");
        });
    }
}

#[test]
fn eager_write_without_a_read_does_not_wait_and_outlives_the_close_of_its_writer() {
    let &Pair { ends: [a, b], .. } = &pair();
    let mut got = [0; 10];
    // Both write first, and read then.
    assert_eq!((write(a, &[1; 100]), write(b, &[2; 100]), write(a, &[3; 5])), (100, 100, 5));
    assert_eq!((read(a, &mut got), got), (10, [2; 10]));
    close(a);
    assert_eq!((read(b, &mut got), got), (10, [1; 10]));
    assert_eq!((read(b, &mut got), read(b, &mut got)), (5, 0));
}

/// Short ones lie beside their posts, others in the room, which is gone through several times.
#[test]
fn eager_messages_written_ahead_arrive_whole_whatever_their_sizes() {
    let &Pair { ends: [a, b], .. } = &pair();
    let size = |turn: usize| turn * 37 % 300;
    let mut data = [0; 400];
    for round in 0..40 {
        let turns = round * 200..(round + 1) * 200;
        for turn in turns.clone() {
            assert_eq!(write(a, &bytes(size(turn), turn)), size(turn) as isize);
        }
        for turn in turns {
            data.fill(UNTOUCHED);
            assert_eq!(read(b, &mut data), size(turn) as isize);
            assert!(has_only(&data, 0, &bytes(size(turn), turn)), "{turn}");
        }
    }
}

#[test]
fn cookie_of_an_eager_write_ends_with_its_read() {
    let &Pair { ends: [a, b], .. } = &pair();
    let cookies = [iwrite(a, &[1; 100]), iwrite(a, &[2; 100]), iwrite(a, &[3; 100])];
    assert!(cookies.iter().all(|&cookie| check(cookie) == IN_PROGRESS));
    assert_eq!(write(a, &[4; 100]), 100, "what is not waited for holds nobody up");
    assert_eq!((read(b, &mut [0; 7]), check(cookies[0]), check(cookies[1])), (7, 7, IN_PROGRESS));
    thread::scope(|scope| {
        scope.spawn(move || assert_eq!(wait(cookies[1]), 8));
        thread::sleep(Duration::from_millis(10));
        assert_eq!(read(b, &mut [0; 8]), 8);
    });
    let left = iwrite(a, &[5; 100]);
    close(b);
    // Messages that were never read.
    assert_eq!([wait(cookies[2]), check(left)], [-libc::EPIPE as isize; 2]);
}

#[test]
fn many_threads_on_one_connection_each_get_a_whole_message_and_its_count() {
    for Pair { ends: [a, b], what } in every_pair() {
        let (sum_written, sum_read) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (sum_written, sum_read) = (&sum_written, &sum_read);
        thread::scope(|scope| {
            for thread in 1..=4usize {
                scope.spawn(move || {
                    for round in 0..300 {
                        let data = vec![thread as u8; [50 * thread, 5000, 100_000][round % 3]];
                        // Who writes an eager message learns its count by a cookie.
                        let count = patiently(|| match data.len() > MOST_EAGER {
                            true => write(a, &data),
                            false => wait(iwrite(a, &data)),
                        });
                        sum_written.fetch_add(count, Ordering::Relaxed);
                    }
                });
                scope.spawn(move || {
                    for round in 0..300 {
                        let mut got = vec![0xff; [100_000, 45 * (5 - thread)][round / 2 % 2]];
                        let count = patiently(|| match round % 2 {
                            0 => read(b, &mut got),
                            _ => wait(iread(b, &mut got)),
                        });
                        let mut bytes = got.iter();
                        let whole = bytes.by_ref().take(count).all(|byte| *byte == got[0]);
                        assert!(whole && bytes.all(|&byte| byte == 0xff), "{what}: {count}");
                        sum_read.fetch_add(count, Ordering::Relaxed);
                    }
                });
            }
        });
        let sums = [sum_written, sum_read].map(|sum| sum.load(Ordering::Relaxed));
        assert_eq!(sums[0], sums[1], "{what}");
    }
}

#[test]
fn a_window_of_mixed_sizes_is_matched_in_order_and_waited_for_backwards() {
    const SIZES: [usize; 4] = [17, 4096, 40_000, 200_000];
    for Pair { ends: [a, b], what } in every_pair() {
        let all = || (0..100).map(|i| bytes(SIZES[i % 4], i));
        let wait_backwards = move |cookies: Vec<i64>| {
            for (i, cookie) in cookies.into_iter().enumerate().rev() {
                assert_eq!(wait(cookie), SIZES[i % 4] as isize, "{what}: message {i}");
            }
        };
        thread::scope(|scope| {
            scope.spawn(move || {
                let data: Vec<_> = all().collect();
                wait_backwards(data.iter().map(|data| iwrite(a, data)).collect());
            });
            let mut got: Vec<_> = all().map(|data| vec![0; data.len()]).collect();
            wait_backwards(got.iter_mut().map(|data| iread(b, data)).collect());
            assert!(got.into_iter().eq(all()), "{what}");
        });
    }
}

#[test]
fn cookies_are_good_once_and_only_their_own() {
    let &Pair { ends: [a, b], .. } = &pair();
    let mut got = [0; 100];
    let (written, taken) = (iwrite(a, &[1; 100]), iread(b, &mut got));
    assert_eq!((wait(written), wait(written), check(written)), (100, INVALID, INVALID));
    assert_eq!((check(taken), wait(taken)), (100, INVALID));
    for nonsense in [0, -1, 1, i64::MAX, i64::MIN, written + 1, written ^ 1 << 31, taken ^ 1 << 50]
    {
        assert_eq!([check(nonsense), adma_wait(nonsense)], [INVALID; 2], "{nonsense:#x}");
    }
    let unmatched = iread(b, &mut got);
    assert_eq!(check(unmatched), IN_PROGRESS);
    close(a);
    assert_eq!(wait(unmatched), 0, "an orderly close ends a read with nothing");
    let left = iread(b, &mut got);
    close(b);
    assert_eq!(wait(left), INVALID);
}

#[test]
fn cookies_of_another_connection_are_unknown_and_harm_nobody() {
    let &Pair { ends: [a, b], .. } = &pair();
    let mut got = [0; 8];
    let old = [iread(b, &mut got), iwrite(a, &[1; 100_000])];
    close(a);
    close(b);
    // The same places in the table, and messages with the same numbers.
    let &Pair { ends: [c, d], .. } = &pair();
    let (taken, written) = (iread(d, &mut got), iwrite(c, &[2; 8]));
    for cookie in old {
        assert_eq!((check(cookie), wait(cookie)), (INVALID, INVALID));
        assert_eq!(wait_for(cookie, 1), INVALID);
    }
    assert_eq!((wait(taken), wait(written), got), (8, 8, [2; 8]));
}

#[test]
fn cookies_never_waited_for_end_with_their_connection() {
    for Pair { ends: [a, b], what } in every_pair() {
        let (data, mut got) = (bytes(300_000, 1), vec![0; 300_000]);
        // Matched, unmatched, small and large.
        let mut never = vec![iwrite(a, &data), iwrite(a, &data[..10]), iread(a, &mut [0; 10])];
        never.extend([iwrite(b, &data), iwrite(b, &data[..10])]);
        assert!(never.iter().all(|&cookie| cookie > 0), "{what}");
        thread::scope(|scope| {
            // Through shared memory somebody has to look after it: this wait.
            let other = scope.spawn(move || read(a, &mut [0; 10]));
            assert_eq!(read(b, &mut got), 300_000, "{what}");
            assert!(got == data, "{what}");
            assert_eq!((close(b), close(a)), (0, 0), "{what}");
            other.join().unwrap();
        });
        assert!(never.iter().all(|&cookie| wait(cookie) == INVALID), "{what}");
    }
}

#[test]
fn full_table_is_eagain_and_a_million_are_refused() {
    for size in [1, 100_000] {
        let (data, mut got) = (bytes(size, 0), vec![0; size]);
        let &Pair { ends: [a, b], .. } = &pair();
        let cookies = [(); WINDOW].map(|()| iwrite(a, &data));
        assert!(cookies.iter().all(|&cookie| cookie > 0));
        for _ in 0..if size == 1 { 1_000_000 } else { 1000 } {
            assert_eq!(iwrite(a, &data), i64::from(-libc::EAGAIN));
        }
        assert_eq!(write(a, &data), -libc::EAGAIN as isize);
        assert_eq!(read(b, &mut got), size as isize);
        assert_eq!(wait(cookies[0]), size as isize);
        assert!(iwrite(a, &data) > 0, "one was waited for, one more is taken");
    }
}

#[test]
fn writer_sleeps_while_the_reader_is_a_window_behind() {
    let &Pair { ends: [a, b], .. } = &pair();
    thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..2000usize {
                assert_eq!(write(a, &round.to_le_bytes()), 8);
            }
        });
        thread::sleep(Duration::from_millis(30));
        for round in 0..2000usize {
            let mut got = [0; 8];
            assert_eq!(read(b, &mut got), 8);
            assert_eq!(usize::from_le_bytes(got), round);
        }
    });
}

#[test]
fn long_sleepers_are_woken_by_message_and_by_close() {
    for delay in [1, 10, 60] {
        let &Pair { ends: [a, b], .. } = &pair();
        let sleep = move || thread::sleep(Duration::from_millis(delay));
        thread::scope(|scope| {
            // Two sleepers: one polls, the other sleeps behind it.
            let reader = || scope.spawn(move || assert_eq!(read(b, &mut [0; 4]), 4));
            let readers = [reader(), reader()];
            sleep();
            assert_eq!((write(a, &[1; 4]), write(a, &[2; 4])), (4, 4));
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            scope.spawn(move || assert_eq!(read(b, &mut [0; 4]), 0));
            scope.spawn(move || assert_eq!(read(a, &mut [0; 4]), -libc::EBADF as isize));
            sleep();
            assert_eq!(close(a), 0);
        });
        assert_eq!(write(b, &[0; 4]), -libc::EPIPE as isize);
        assert_eq!(read(a, &mut [0; 4]), -libc::EBADF as isize);
        assert_eq!((close(b), close(b)), (0, -libc::EBADF));
    }
}

/// Calls one after the other until one tells of an end.
fn until_the_end(role: Role, handle: i32) -> isize {
    let mut data = vec![0; 70_000];
    let one = |turn: usize| match role {
        Writer => write(handle, &data[..[10, 5000, 70_000][turn % 3]]),
        Reader => read(handle, &mut data),
    };
    (0..).map(one).find(|&count| count <= 0).unwrap()
}

#[test]
fn calls_of_other_threads_are_ebadf_when_their_connection_is_closed() {
    let bad = -libc::EBADF as isize;
    for round in 0..60 {
        for Pair { ends: [a, b], what } in every_pair() {
            let writer_closes = round % 2 == 0;
            let (closed, role) = if writer_closes { (a, Writer) } else { (b, Reader) };
            let (left, other_role) = if writer_closes { (b, Reader) } else { (a, Writer) };
            thread::scope(|scope| {
                let ours = [(); 4].map(|()| scope.spawn(move || until_the_end(role, closed)));
                // The other side closes as soon as it hears of it.
                let others = [(); 4].map(|()| {
                    scope.spawn(move || (until_the_end(other_role, left), close(left)).0)
                });
                thread::sleep(Duration::from_micros(round * 30));
                assert_eq!(close(closed), 0);
                let ends = ours.map(|thread| thread.join().unwrap());
                assert_eq!(ends, [bad; 4], "{what}, round {round}");
                let heard = if writer_closes { 0 } else { -libc::EPIPE as isize };
                for end in others.map(|thread| thread.join().unwrap()) {
                    assert!(end == heard || end == bad, "{what}, round {round}: {end}");
                }
            });
        }
    }
}

#[test]
fn bad_buffer_of_a_large_message_is_efault_on_both_sides() {
    let &Pair { ends: [a, b], .. } = &pair();
    let good = bytes(1 << 20, 0);
    let nowhere = 4096 as *mut core::ffi::c_void;
    // SAFETY: not the caller's at all; the kernel notices, for the message is large.
    let bad = |role: Role, handle: i32| unsafe {
        match role {
            Writer => adma_iwrite(handle, nowhere, 1 << 20),
            Reader => adma_iread(handle, nowhere, 1 << 20),
        }
    };
    let (fault, mut got) = (-libc::EFAULT as isize, vec![0; 1 << 20]);
    assert_eq!([bad(Writer, a), iread(b, &mut got)].map(wait), [fault; 2]);
    assert_eq!([iwrite(a, &good), bad(Reader, b)].map(wait), [fault; 2]);
    // The connection goes on.
    assert_eq!([iwrite(a, &good), iread(b, &mut got)].map(wait), [1 << 20; 2]);
    assert!(got == good);
}

/// The other side's post of a message is not what it may be; a thread that comes by for another
/// message meets it first.
#[test]
fn bad_post_is_eproto_for_its_own_cookie_whoever_meets_it() {
    let bad = [(DIRECT, u64::MAX - 10, 1 << 20), (DIRECT, 4096, u64::MAX), (77, 4096, 1 << 20)];
    let bad = bad.into_iter().chain([(EAGER, 1 << 40, 100_000), (STREAMED, u64::MAX, 1 << 20)]);
    // Said to be in a buffer that was never shown.
    let bad = bad.chain([(PLACED, 0, 1 << 20)]);
    for (kind, at, len) in bad {
        let &Pair { ends: [a, b], .. } = &pair_with([DEFAULT, SHM], "first copies");
        let (mut first, mut second) = (vec![1; 1 << 20], vec![1; 1 << 20]);
        let cookies = [iread(b, &mut first), iread(b, &mut second)];
        {
            let link = table::find(a).unwrap();
            let desc = link.endpoint(Writer).1.desc(Writer, 0);
            desc.kind.store(kind, Ordering::Relaxed);
            desc.at.store(at, Ordering::Relaxed);
            desc.len.store(len, Ordering::Relaxed);
            desc.number.store(1, Ordering::Release);
        }
        // Its own message has met nothing, so it helps; then nobody is believed any more.
        assert_eq!(check(cookies[1]), IN_PROGRESS);
        let broken = -libc::EPROTO as isize;
        assert_eq!([check(cookies[0]), check(cookies[1])], [broken; 2], "{kind} {at:#x} {len:#x}");
        assert!(first.iter().chain(&second).all(|&byte| byte == 1));
    }
}

/// A thread that has begun a piece of a message, and is slow.
fn claim(link: &Link, role: Role, number: u32) -> MessagePiece {
    let (endpoint, lane) = link.endpoint(role);
    match endpoint.lock().advance(lane, &link.engine, true, false, number) {
        Ok(Step::Copy(piece)) => piece,
        _ => panic!("there is no piece"),
    }
}

/// Another thread of ours is at the buffer, which stays until that has ended.
#[test]
fn broken_message_waits_for_its_own_pieces_and_is_eproto() {
    let &Pair { ends: [a, b], .. } = &pair();
    let (data, mut got) = (bytes(1 << 20, 0), vec![0; 1 << 20]);
    let cookies = [iwrite(a, &data), iread(b, &mut got)];
    let link = table::find(b).unwrap();
    let piece = claim(&link, Reader, 0);
    // As if nobody had claimed anything.
    link.endpoint(Reader).1.claims(0).store(0, Ordering::Release);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wait(cookies[1]));
        thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        link.copy(Reader, 0, piece);
        assert_eq!(waiter.join().unwrap(), -libc::EPROTO as isize);
    });
}

/// Who counts finished pieces writes only 16 bits of the message's number beside them.
#[test]
fn count_of_a_message_65536_before_is_not_taken_for_this_ones() {
    let &Pair { ends: [a, b], .. } = &pair();
    let (data, mut got) = (bytes(1 << 20, 0), vec![0; 1 << 20]);
    let cookie = iread(b, &mut got);
    assert_eq!((write(a, &data), wait(cookie)), (1 << 20, 1 << 20), "copied by its writer");
    for _ in 1..1 << 16 {
        assert_eq!((write(a, &[1]), read(b, &mut [0])), (1, 1));
    }
    got.fill(0);
    let cookies = [iwrite(a, &data), iread(b, &mut got)];
    let link = table::find(a).unwrap();
    let piece = claim(&link, Writer, 1 << 16);
    assert_eq!(wait_for(cookies[1], 30), -libc::ETIMEDOUT as isize);
    link.copy(Writer, 1 << 16, piece);
    drop(link);
    assert_eq!(cookies.map(wait), [1 << 20; 2]);
    assert!(got == data);
}

#[test]
fn numbers_wrap_around() {
    let &Pair { ends: [a, b], .. } = &pair();
    for handle in [a, b] {
        table::find(handle).unwrap().begin_at(u32::MAX - 300);
    }
    for round in 0..1000usize {
        let size = if round % 3 == 0 { 8 } else { 40_000 };
        let (data, mut got) = (bytes(size, round), vec![0; size]);
        let cookies = [iwrite(a, &data), iread(b, &mut got)];
        assert_eq!(cookies.map(wait), [size as isize; 2], "{round}");
        assert!(got == data);
    }
}

/// A block, freed in the end.
struct OwnedBlock(usize, usize);

impl OwnedBlock {
    fn new(len: usize) -> Self {
        let at = adma_alloc(len) as usize;
        assert_ne!(at, 0);
        Self(at, len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: as long as it lives; the other side writes only while a message is read.
        unsafe { core::slice::from_raw_parts_mut(self.0 as *mut u8, self.1) }
    }
}

impl Drop for OwnedBlock {
    fn drop(&mut self) {
        // SAFETY: the messages are over.
        assert_eq!(unsafe { adma_free(self.0 as *mut _) }, 0);
    }
}

#[test]
fn large_pieces_between_blocks_are_carried_where_others_can_help() {
    static CARRIED: AtomicUsize = AtomicUsize::new(0);
    unsafe fn carry(to: usize, from: usize, len: usize) {
        CARRIED.fetch_add(len, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { original::copy(to, from, len) };
    }
    let workers = || Some(Workers { cpus: 4, copy: carry, count: || 0, crowded: || {} });
    let pair = pair_with([Settings { workers, ..DEFAULT }; 2], "workers");
    let (mut from, mut to) = (OwnedBlock::new(9 << 20), OwnedBlock::new(9 << 20));
    from.bytes().copy_from_slice(&bytes(9 << 20, 1));
    let mut carried = |size: usize, to: &mut [u8]| {
        to.fill(UNTOUCHED);
        let before = CARRIED.load(Ordering::Relaxed);
        let counts = send(pair.ends, &from.bytes()[..size], &mut to[..size]);
        assert_eq!(counts, [size as isize; 2]);
        assert!(has_only(to, 0, &from.bytes()[..size]), "{size}");
        CARRIED.load(Ordering::Relaxed) - before
    };
    // Whole messages, or nothing: pieces of 256 KiB are the smallest that are.
    for (size, all) in [(5000, false), (300_000, false), (1 << 20, true), (9 << 20, true)] {
        assert_eq!(carried(size, to.bytes()), if all { size } else { 0 }, "{size}");
    }
    assert_eq!(carried(1 << 20, &mut vec![0; 1 << 20]), 0, "what does not lie in a block");
}

/// How the message with this number has travelled.
fn kind_of(handle: i32, number: u32) -> u32 {
    let link = table::find(handle).unwrap();
    link.endpoint(Writer).1.desc(Writer, number).kind.load(Ordering::Relaxed)
}

#[test]
fn small_message_goes_straight_into_a_block_whose_read_waits() {
    let &Pair { ends: [a, b], .. } = &pair();
    let mut block = OwnedBlock::new(100_000);
    let mut number = 0;
    for (size, room, is_placed) in [
        (9000, 9000, true),
        (MOST_EAGER, MOST_EAGER, true),
        (8192, 100_000, true),
        (30_000, 10_000, true),
        (8191, 100_000, false),
        (100, 100, false),
    ] {
        // The first write has to fetch the block, and later it is tried whenever it may pay.
        let (mut placed, mut tries) = (0, 0);
        while if is_placed { placed < 4 } else { tries < 20 } {
            let (data, count) = (bytes(size, size), size.min(room));
            block.bytes().fill(UNTOUCHED);
            let buffer = &mut block.bytes()[100_000 - room..];
            let posted = tries % 2 == 1;
            thread::scope(|scope| {
                let reader = scope.spawn(move || match posted {
                    true => wait(iread(b, buffer)),
                    false => read(b, buffer),
                });
                await_read(a);
                assert_eq!(write(a, &data), count as isize, "{size}");
                assert_eq!(reader.join().unwrap(), count as isize, "{size}");
            });
            let kind = kind_of(a, number);
            assert!(kind == EAGER || (kind == PLACED && is_placed), "{size}: {kind}");
            assert!(has_only(block.bytes(), 100_000 - room, &data[..count]), "{size} into {room}");
            placed += usize::from(kind == PLACED);
            (number, tries) = (number + 1, tries + 1);
            assert!(tries < 5000, "{size}: never straight into the block");
        }
    }
    // Who is not there yet gets it later, and the writer does not wait.
    let data = bytes(20_000, 1);
    assert_eq!(write(a, &data), 20_000);
    assert_eq!(kind_of(a, number), EAGER);
    assert_eq!(read(b, &mut block.bytes()[..20_000]), 20_000);
    assert!(block.bytes()[..20_000] == data);
}

#[test]
fn large_messages_between_any_memory_are_copied_by_workers_too() {
    original::resolve();
    workers::settle_in();
    workers::start(3);
    static NO_FILE: fn() = || {};
    tally::begin(&NO_FILE);
    let by_workers =
        || tally::messages().map_or(0, |all| all.copied[tally::Means::Workers as usize].1);
    let help = || Some(Workers { cpus: 8, copy: original::copy, count: || 3, crowded: || {} });
    let settings = Settings { workers: help, ..DEFAULT };
    // Of both sides, of one, and of the other: the pieces are the same for both.
    for settings in [[settings, settings], [settings, DEFAULT], [DEFAULT, settings]] {
        let pair = pair_with(settings, "workers");
        let (before, begun) = (by_workers(), Instant::now());
        let mut round = 0;
        while by_workers() == before || round < 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "no worker has copied anything");
            let size = [3 << 20, (4 << 20) + 5, (9 << 20) - 1, 300_001][round % 4];
            let (data, mut got) = (bytes(size + 77, round), vec![UNTOUCHED; size + 200]);
            let (data, to) = (&data[round % 77..][..size], round * 13 % 100);
            let counts = send(pair.ends, data, &mut got[to..to + size]);
            assert_eq!(counts, [size as isize; 2]);
            assert!(has_only(&got, to, data), "{size}");
            round += 1;
        }
    }
}
