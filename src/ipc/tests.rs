//! Both ends in one process, on every engine: the same tests against the same bytes.

use super::calls::{
    adma_alloc, adma_check as check, adma_close as close, adma_free, adma_iread, adma_iwrite,
    adma_read, adma_wait, adma_wait_for as wait_for, adma_write,
};
use super::endpoint::Role::{self, Reader, Writer};
use super::endpoint::Step;
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
const INVALID: isize = -libc::EINVAL as isize;

const DEFAULT: Settings = Settings::DEFAULT;

/// Two connected handles.
fn pair_with(settings: [Settings; 2]) -> [i32; 2] {
    original::resolve();
    let sockets = os::unix_pair().unwrap();
    let enter = |socket: i32, settings: Settings| {
        let owner = table::become_owner().unwrap();
        let established = handshake::meet(socket, settings).unwrap();
        table::enter(Box::new(Link::new(established, owner))).unwrap()
    };
    let (one, two) = (sockets[0].raw(), sockets[1].raw());
    thread::scope(|scope| {
        let other = scope.spawn(|| enter(two, settings[1]));
        [enter(one, settings[0]), other.join().unwrap()]
    })
}

fn pair() -> [i32; 2] {
    pair_with([DEFAULT; 2])
}

/// Every way a message can take: both copy, one side copies, the other does, nobody may.
fn every_pair() -> Vec<([i32; 2], &'static str)> {
    let shm = Settings { engines: Engines::SharedMemory, ..DEFAULT };
    vec![
        (pair(), "both copy"),
        (pair_with([DEFAULT, shm]), "first copies"),
        (pair_with([shm, DEFAULT]), "second copies"),
        (pair_with([shm, shm]), "nobody copies"),
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

/// Whether the other side has posted the read that our next write meets.
fn is_read_visible(handle: i32) -> bool {
    table::find(handle).unwrap().is_read_visible()
}

fn wait(cookie: i64) -> isize {
    adma_wait(cookie)
}

fn waited(cookie: i64) -> isize {
    if cookie > 0 { wait(cookie) } else { cookie as isize }
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

const SIZES: [usize; 16] = [
    0,
    1,
    64,
    65,
    257,
    4096,
    MOST_EAGER - 1,
    MOST_EAGER,
    MOST_EAGER + 1,
    65_535,
    65_536,
    65_537,
    300_001,
    1 << 20,
    (4 << 20) + 5,
    (16 << 20) + 1,
];

#[test]
fn blocking_messages_of_every_size_arrive_on_every_engine() {
    for ([a, b], what) in every_pair() {
        thread::scope(|scope| {
            scope.spawn(move || {
                for (round, size) in SIZES.into_iter().enumerate() {
                    assert_eq!(write(a, &bytes(size, round)), size as isize, "{what}");
                }
            });
            for (round, size) in SIZES.into_iter().enumerate() {
                let mut data = vec![0; size];
                assert_eq!(read(b, &mut data), size as isize, "{what}");
                assert!(data == bytes(size, round), "{what}, {size} bytes");
            }
        });
        assert_eq!((close(a), close(b)), (0, 0));
    }
}

#[test]
fn both_posted_before_either_waits() {
    for ([a, b], what) in every_pair() {
        for size in SIZES {
            let (data, mut got) = (bytes(size, 3), vec![0; size]);
            let (written, taken) = (iwrite(a, &data), iread(b, &mut got));
            assert!(written > 0 && taken > 0, "{what}");
            thread::scope(|scope| {
                scope.spawn(move || assert_eq!(wait(written), size as isize, "{what}"));
                assert_eq!(wait(taken), size as isize, "{what}");
            });
            assert!(got == data, "{what}, {size} bytes");
        }
        close(a);
        close(b);
    }
}

#[test]
fn either_side_completes_a_direct_message_alone() {
    let [a, b] = pair();
    for first in [Writer, Reader] {
        let (data, mut got) = (bytes(3 << 20, 1), vec![0; 3 << 20]);
        let (written, taken) = (iwrite(a, &data), iread(b, &mut got));
        let order = if first == Writer { [written, taken] } else { [taken, written] };
        for cookie in order {
            assert_eq!(wait(cookie), 3 << 20);
        }
        assert!(got == data);
    }
    close(a);
    close(b);
}

#[test]
fn checking_alone_makes_progress() {
    for ([a, b], what) in every_pair() {
        let (data, mut got) = (bytes(1 << 20, 1), vec![0; 1 << 20]);
        let mut cookies = [Some(iwrite(a, &data)), Some(iread(b, &mut got))];
        let begun = Instant::now();
        while cookies.iter().any(Option::is_some) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
            for slot in &mut cookies {
                if let Some(cookie) = *slot {
                    match check(cookie) {
                        IN_PROGRESS => {}
                        result => {
                            assert_eq!(result, 1 << 20, "{what}");
                            *slot = None;
                        }
                    }
                }
            }
        }
        assert!(got == data, "{what}");
        close(a);
        close(b);
    }
}

#[test]
fn both_directions_at_once_with_reads_waited_for_first() {
    for ([a, b], what) in every_pair() {
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
        close(a);
        close(b);
    }
}

#[test]
fn unequal_lengths_transfer_the_shorter_and_touch_nothing_else() {
    for ([a, b], what) in every_pair() {
        for (sent, wanted) in [
            (10, 4),
            (4, 10),
            (40_000, 100),
            (100, 40_000),
            (1 << 20, 70_000),
            (70_000, 1 << 20),
            (1 << 20, 0),
            (0, 1 << 20),
        ] {
            let (data, mut got) = (bytes(sent, 7), vec![0xee; wanted]);
            let count = sent.min(wanted);
            let (taken, written) = (iread(b, &mut got), iwrite(a, &data));
            thread::scope(|scope| {
                scope.spawn(move || assert_eq!(wait(written), count as isize, "{what}"));
                assert_eq!(wait(taken), count as isize, "{what} {sent} {wanted}");
            });
            assert!(got[..count] == data[..count], "{what}");
            assert!(got[count..].iter().all(|&byte| byte == 0xee), "{what} {sent} {wanted}");
        }
        close(a);
        close(b);
    }
}

#[test]
fn eager_write_whose_read_is_there_returns_the_shorter_count() {
    let [a, b] = pair();
    let data = bytes(100, 1);
    // Posted without waiting; and by somebody who spins, sleeps shortly, sleeps long.
    let mut got = [0; 40];
    let posted = iread(b, &mut got);
    assert_eq!((write(a, &data), wait(posted)), (40, 40));
    for microseconds in [5, 1000, 10_000] {
        thread::scope(|scope| {
            scope.spawn(move || assert_eq!(read(b, &mut [0; 30]), 30));
            while !is_read_visible(a) {
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(microseconds));
            assert_eq!(write(a, &data), 30, "{microseconds}");
        });
    }
    close(a);
    close(b);
}

#[test]
fn eager_write_without_a_read_does_not_wait() {
    let [a, b] = pair();
    let mut got = [0; 10];
    // Both write first, and read then.
    assert_eq!((write(a, &[1; 100]), write(b, &[2; 100])), (100, 100));
    assert_eq!((read(a, &mut got), got), (10, [2; 10]));
    assert_eq!((read(b, &mut got), got), (10, [1; 10]));
    close(a);
    close(b);
}

/// Short ones lie beside their posts, others in the room, which is gone through several times.
#[test]
fn eager_messages_written_ahead_arrive_whole_whatever_their_sizes() {
    let [a, b] = pair();
    let size = |turn: usize| turn * 37 % 300;
    let mut data = [0; 400];
    for round in 0..40 {
        let turns = round * 200..(round + 1) * 200;
        for turn in turns.clone() {
            assert_eq!(write(a, &bytes(size(turn), turn)), size(turn) as isize);
        }
        for turn in turns {
            let size = size(turn);
            data.fill(0xee);
            assert_eq!(read(b, &mut data), size as isize);
            assert!(data[..size] == bytes(size, turn), "{turn}: {size}");
            assert!(data[size..].iter().all(|&byte| byte == 0xee), "{turn}: {size}");
        }
    }
    assert_eq!((close(a), close(b)), (0, 0));
}

#[test]
fn cookie_of_an_eager_write_ends_with_its_read() {
    let [a, b] = pair();
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
    assert_eq!((wait(cookies[2]), check(left)), (-libc::EPIPE as isize, -libc::EPIPE as isize));
    close(a);
}

#[test]
fn writers_and_readers_of_many_threads_learn_the_same_counts() {
    for ([a, b], what) in every_pair() {
        let (sum_written, sum_read) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for thread in 1..=4usize {
                let (sum_written, sum_read) = (&sum_written, &sum_read);
                scope.spawn(move || {
                    for _ in 0..300 {
                        let data = vec![0; 50 * thread];
                        let count = patiently(|| waited(iwrite(a, &data)));
                        sum_written.fetch_add(count, Ordering::Relaxed);
                    }
                });
                scope.spawn(move || {
                    for round in 0..300 {
                        let mut got = vec![0; 45 * (5 - thread)];
                        let count = patiently(|| match round % 2 {
                            0 => read(b, &mut got),
                            _ => waited(iread(b, &mut got)),
                        });
                        sum_read.fetch_add(count, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(sum_written.into_inner(), sum_read.into_inner(), "{what}");
        close(a);
        close(b);
    }
}

#[test]
fn a_window_of_mixed_sizes_is_matched_in_order_and_waited_for_backwards() {
    for ([a, b], what) in every_pair() {
        let sizes: Vec<usize> = (0..100).map(|i| [17, 4096, 40_000, 200_000][i % 4]).collect();
        thread::scope(|scope| {
            let sent = sizes.clone();
            scope.spawn(move || {
                let data: Vec<_> = sent.iter().enumerate().map(|(i, &s)| bytes(s, i)).collect();
                let cookies: Vec<_> = data.iter().map(|data| iwrite(a, data)).collect();
                for (cookie, size) in cookies.iter().zip(&sent).rev() {
                    assert_eq!(wait(*cookie), *size as isize, "{what}");
                }
            });
            let mut got: Vec<_> = sizes.iter().map(|&size| vec![0; size]).collect();
            let cookies: Vec<_> = got.iter_mut().map(|data| iread(b, data)).collect();
            for (cookie, size) in cookies.iter().zip(&sizes).rev() {
                assert_eq!(wait(*cookie), *size as isize, "{what}");
            }
            for (i, data) in got.iter().enumerate() {
                assert!(*data == bytes(sizes[i], i), "{what}: message {i}");
            }
        });
        close(a);
        close(b);
    }
}

#[test]
fn cookies_are_good_once_and_only_their_own() {
    let [a, b] = pair();
    let data = bytes(100, 0);
    let mut got = vec![0; 100];
    let (written, taken) = (iwrite(a, &data), iread(b, &mut got));
    assert_eq!((wait(written), wait(written), check(written)), (100, INVALID, INVALID));
    assert_eq!((check(taken), wait(taken)), (100, INVALID));
    for nonsense in [0, -1, 1, i64::MAX, i64::MIN, written + 1, written ^ 1 << 31, taken ^ 1 << 50]
    {
        assert_eq!((check(nonsense), wait(nonsense)), (INVALID, INVALID), "{nonsense:#x}");
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
    let [a, b] = pair();
    let mut got = [0; 8];
    let old = [iread(b, &mut got), iwrite(a, &[1; 100_000])];
    close(a);
    close(b);
    // The same places in the table, and messages with the same numbers.
    let [c, d] = pair();
    let (taken, written) = (iread(d, &mut got), iwrite(c, &[2; 8]));
    for cookie in old {
        assert_eq!((check(cookie), wait(cookie)), (INVALID, INVALID));
        assert_eq!(wait_for(cookie, 1), INVALID);
    }
    assert_eq!((wait(taken), wait(written), got), (8, 8, [2; 8]));
    close(c);
    close(d);
}

#[test]
fn cookies_never_waited_for_end_with_their_connection() {
    for ([a, b], what) in every_pair() {
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
        let [a, b] = pair();
        let data = bytes(size, 0);
        let mut cookies = Vec::new();
        for _ in 0..if size == 1 { 1_000_000 } else { 1000 } {
            match iwrite(a, &data) {
                cookie if cookie > 0 => cookies.push(cookie),
                refused => assert_eq!(refused, i64::from(-libc::EAGAIN)),
            }
        }
        assert_eq!(cookies.len(), WINDOW);
        assert_eq!(write(a, &data), -libc::EAGAIN as isize);
        let mut got = vec![0; size];
        assert_eq!(read(b, &mut got), size as isize);
        assert_eq!(wait(cookies[0]), size as isize);
        assert!(iwrite(a, &data) > 0, "one was waited for, one more is taken");
        close(a);
        close(b);
    }
}

#[test]
fn writer_sleeps_while_the_reader_is_a_window_behind() {
    let [a, b] = pair();
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
    close(a);
    close(b);
}

#[test]
fn many_threads_on_one_connection_each_get_a_whole_message() {
    for ([a, b], what) in every_pair() {
        thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    for size in [10usize, 5000, 100_000] {
                        for _ in 0..20 {
                            assert_eq!(write(a, &vec![thread; size]), size as isize, "{what}");
                        }
                    }
                });
                scope.spawn(move || {
                    for _ in 0..60 {
                        let mut got = vec![0xff; 100_000];
                        let len = read(b, &mut got);
                        assert!([10, 5000, 100_000].contains(&len), "{what}: {len}");
                        assert!(got[..len as usize].iter().all(|&byte| byte == got[0]), "{what}");
                    }
                });
            }
        });
        close(a);
        close(b);
    }
}

#[test]
fn long_sleepers_are_woken_by_message_and_by_close() {
    for delay in [1, 10, 60] {
        let [a, b] = pair();
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
        for ([a, b], what) in every_pair() {
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
fn eager_messages_outlive_the_close_of_their_writer() {
    let [a, b] = pair();
    assert_eq!((write(a, b"one"), write(a, b"three")), (3, 5));
    close(a);
    let mut got = [0; 8];
    assert_eq!((read(b, &mut got), read(b, &mut got), read(b, &mut got)), (3, 5, 0));
    close(b);
}

#[test]
fn bad_buffer_of_a_large_message_is_efault_on_both_sides() {
    let [a, b] = pair();
    let good = bytes(1 << 20, 0);
    let nowhere = 4096 as *mut core::ffi::c_void;
    // SAFETY: not the caller's at all; the kernel notices, for the message is large.
    let bad = |role: Role, handle: i32| unsafe {
        match role {
            Writer => adma_iwrite(handle, nowhere, 1 << 20),
            Reader => adma_iread(handle, nowhere, 1 << 20),
        }
    };
    let fault = -libc::EFAULT as isize;
    let mut got = vec![0; 1 << 20];
    let cookies = [bad(Writer, a), iread(b, &mut got)];
    assert_eq!(cookies.map(wait), [fault; 2]);
    let cookies = [iwrite(a, &good), bad(Reader, b)];
    assert_eq!(cookies.map(wait), [fault; 2]);
    // The connection goes on.
    let cookies = [iwrite(a, &good), iread(b, &mut got)];
    assert_eq!(cookies.map(wait), [1 << 20; 2]);
    assert!(got == good);
    close(a);
    close(b);
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
        let shm = Settings { engines: Engines::SharedMemory, ..DEFAULT };
        let [a, b] = pair_with([DEFAULT, shm]);
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
        close(a);
        close(b);
    }
}

/// Another thread of ours is at the buffer, which stays until that has ended.
#[test]
fn broken_message_waits_for_its_own_pieces_and_is_eproto() {
    let [a, b] = pair();
    let (data, mut got) = (bytes(1 << 20, 0), vec![0; 1 << 20]);
    let cookies = [iwrite(a, &data), iread(b, &mut got)];
    let link = table::find(b).unwrap();
    let (endpoint, lane) = link.endpoint(Reader);
    let Ok(Step::Copy(piece)) = endpoint.lock().advance(lane, &link.engine, true, false, 0) else {
        panic!("no piece for the reader")
    };
    lane.claims(0).store(0, Ordering::Release); // as if nobody had claimed anything
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wait(cookies[1]));
        thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        link.copy(Reader, 0, piece);
        assert_eq!(waiter.join().unwrap(), -libc::EPROTO as isize);
    });
    drop(link);
    close(a);
    close(b);
}

/// Who counts finished pieces writes only 16 bits of the message's number beside them.
#[test]
fn count_of_a_message_65536_before_is_not_taken_for_this_ones() {
    let [a, b] = pair();
    let (data, mut got) = (bytes(1 << 20, 0), vec![0; 1 << 20]);
    let cookie = iread(b, &mut got);
    assert_eq!((write(a, &data), wait(cookie)), (1 << 20, 1 << 20), "copied by its writer");
    for _ in 1..1 << 16 {
        assert_eq!((write(a, &[1]), read(b, &mut [0])), (1, 1));
    }
    got.fill(0);
    let cookies = [iwrite(a, &data), iread(b, &mut got)];
    let link = table::find(a).unwrap();
    let (endpoint, lane) = link.endpoint(Writer);
    let Ok(Step::Copy(piece)) = endpoint.lock().advance(lane, &link.engine, true, false, 1 << 16)
    else {
        panic!("no piece for the writer")
    };
    // It has begun, and is slow.
    assert_eq!(wait_for(cookies[1], 30), -libc::ETIMEDOUT as isize);
    link.copy(Writer, 1 << 16, piece);
    drop(link);
    assert_eq!(cookies.map(wait), [1 << 20; 2]);
    assert!(got == data);
    close(a);
    close(b);
}

#[test]
fn numbers_wrap_around() {
    let [a, b] = pair();
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
    close(a);
    close(b);
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
    let settings = Settings { workers, ..DEFAULT };
    let [a, b] = pair_with([settings; 2]);
    let (mut from, mut to) = (OwnedBlock::new(9 << 20), OwnedBlock::new(9 << 20));
    // Whole messages, or nothing: pieces of 256 KiB are the smallest that are.
    for (size, carried) in [(5000, false), (300_000, false), (1 << 20, true), (9 << 20, true)] {
        let before = CARRIED.load(Ordering::Relaxed);
        from.bytes()[..size].copy_from_slice(&bytes(size, size));
        to.bytes().fill(0xee);
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(write(a, &from.bytes()[..size]), size as isize));
            assert_eq!(read(b, &mut to.bytes()[..size]), size as isize);
        });
        assert!(to.bytes()[..size] == bytes(size, size), "{size}");
        assert!(to.bytes()[size..].iter().all(|&byte| byte == 0xee), "{size}");
        let got = CARRIED.load(Ordering::Relaxed) - before;
        assert_eq!(got, if carried { size } else { 0 }, "{size}");
    }
    // What does not lie in a block is not.
    let before = CARRIED.load(Ordering::Relaxed);
    let mut target = vec![0; 1 << 20];
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(write(a, &from.bytes()[..1 << 20]), 1 << 20));
        assert_eq!(read(b, &mut target), 1 << 20);
    });
    assert!(target == from.bytes()[..1 << 20]);
    assert_eq!(CARRIED.load(Ordering::Relaxed), before);
    assert_eq!((close(a), close(b)), (0, 0));
}

/// How the message with this number has travelled.
fn kind_of(handle: i32, number: u32) -> u32 {
    let link = table::find(handle).unwrap();
    link.endpoint(Writer).1.desc(Writer, number).kind.load(Ordering::Relaxed)
}

#[test]
fn small_message_goes_straight_into_a_block_whose_read_waits() {
    let [a, b] = pair();
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
            block.bytes().fill(0xee);
            let buffer = &mut block.bytes()[100_000 - room..];
            let posted = tries % 2 == 1;
            thread::scope(|scope| {
                let reader = scope.spawn(move || match posted {
                    true => waited(iread(b, buffer)),
                    false => read(b, buffer),
                });
                while !is_read_visible(a) {
                    thread::yield_now();
                }
                assert_eq!(write(a, &data), count as isize, "{size}");
                assert_eq!(reader.join().unwrap(), count as isize, "{size}");
            });
            let kind = kind_of(a, number);
            assert!(kind == EAGER || (kind == PLACED && is_placed), "{size}: {kind}");
            let (all, at) = (block.bytes(), 100_000 - room);
            assert!(all[at..at + count] == data[..count], "{size} into {room}");
            assert!(all[..at].iter().chain(&all[at + count..]).all(|&byte| byte == 0xee));
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
    assert_eq!((close(a), close(b)), (0, 0));
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
    for pair in [[settings, settings], [settings, DEFAULT], [DEFAULT, settings]] {
        let [a, b] = pair_with(pair);
        let (before, begun) = (by_workers(), Instant::now());
        let mut round = 0;
        while by_workers() == before || round < 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "no worker has copied anything");
            let size = [3 << 20, (4 << 20) + 5, (9 << 20) - 1, 300_001][round % 4];
            let (data, mut got) = (bytes(size + 77, round), vec![0xee; size + 200]);
            let (from, to) = (round % 77, round * 13 % 100);
            thread::scope(|scope| {
                let data = &data[from..from + size];
                scope.spawn(move || assert_eq!(write(a, data), size as isize));
                assert_eq!(read(b, &mut got[to..to + size]), size as isize);
            });
            assert!(got[to..to + size] == data[from..from + size], "{size}");
            let around = got[..to].iter().chain(&got[to + size..]);
            assert!(around.into_iter().all(|&byte| byte == 0xee), "{size}");
            round += 1;
        }
        assert_eq!((close(a), close(b)), (0, 0));
    }
}
