//! Both ends in one process, on every engine: the same tests against the same bytes. In it ends:
//! messages that do not just arrive; blocks: messages between them.

mod blocks;
mod ends;

use super::calls::{
    adma_alloc, adma_close as close, adma_free, adma_iread, adma_iwrite, adma_next, adma_read,
    adma_write, check, wait_for,
};
use super::endpoint::Role::{self, Reader, Writer};
use super::link::Link;
use super::settings::{Engines, Settings};
use super::{connect, os, table};
use crate::backend::libc as original;
use core::sync::atomic::Ordering;
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
        let established = connect::attach(sockets[side].raw(), settings[side]).unwrap();
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

/// Every way a message can take: one side that does not want to be proven is enough.
fn every_pair() -> [Pair; 3] {
    [
        pair(),
        pair_with([DEFAULT, SHM], "streamed, second is not proven"),
        pair_with([SHM; 2], "streamed"),
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

/// Waits until the peer has posted the read that our next write meets.
fn await_read(handle: i32) {
    let link = table::find(handle).unwrap();
    let (_, lane) = link.endpoint(Writer);
    let next = lane.done[Writer as usize].0.load(Ordering::Acquire);
    while lane.desc(Reader, next).number.load(Ordering::Acquire) != next + 1 {
        thread::yield_now();
    }
}

fn wait(cookie: i64) -> isize {
    if cookie > 0 { wait_for(cookie, -1) } else { cookie as isize }
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

#[test]
fn checking_alone_makes_progress() {
    for Pair { ends: [a, b], what } in every_pair() {
        let (data, mut got) = (bytes(1 << 20, 1), vec![0; 1 << 20]);
        let mut left = vec![iwrite(a, &data), iread(b, &mut got)];
        let begun = Instant::now();
        while !left.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
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

const TOO_LONG: isize = -libc::EMSGSIZE as isize;

/// The writer is told how much was taken, and the reader that there was more.
#[test]
fn eager_message_longer_than_the_read_that_is_there_is_told_to_both() {
    let &Pair { ends: [a, b], .. } = &pair();
    let data = bytes(100, 1);
    // Posted without waiting; and by a thread that spins, sleeps shortly, sleeps long.
    let mut got = [0; 40];
    let posted = iread(b, &mut got);
    assert_eq!((write(a, &data), wait(posted)), (40, TOO_LONG));
    assert_eq!(got, data[..40]);
    for microseconds in [5, 1000, 10_000] {
        thread::scope(|scope| {
            scope.spawn(move || assert_eq!(read(b, &mut [0; 30]), TOO_LONG));
            await_read(a);
            thread::sleep(Duration::from_micros(microseconds));
            assert_eq!(write(a, &data), 30, "{microseconds}");
        });
    }
}

/// Of every kind: it can be read with a larger buffer.
#[test]
fn message_longer_than_a_later_read_stays() {
    for Pair { ends: [a, b], what } in every_pair() {
        for size in [50, 5000, 300_000] {
            let (data, mut got) = (bytes(size, 3), vec![0; size]);
            let cookie = iwrite(a, &data);
            let next = || adma_next(b);
            assert_eq!(next(), size as isize, "{what}");
            assert_eq!(read(b, &mut got[..size - 1]), TOO_LONG, "{what}: {size}");
            assert_eq!(iread(b, &mut got[..size - 1]), TOO_LONG as i64, "{what}: {size}");
            assert_eq!(next(), size as isize, "{what}");
            thread::scope(|scope| {
                let writer = scope.spawn(move || wait(cookie));
                assert_eq!(read(b, &mut got), size as isize, "{what}: {size}");
                assert_eq!(writer.join().unwrap(), size as isize);
            });
            assert!(got == data && next() == -libc::EAGAIN as isize, "{what}: {size}");
        }
        assert_eq!((write(a, &[]), adma_next(b), read(b, &mut [])), (0, 0, 0), "an empty message");
        close(a);
        let closed = -libc::EPIPE as isize;
        assert_eq!((adma_next(b), read(b, &mut [0; 10])), (closed, closed), "{what}");
    }
}

/// What is shown of our addresses to a peer without proof: nothing.
#[test]
fn posts_tell_addresses_to_proven_peers_only() {
    for Pair { ends: [a, b], what } in every_pair() {
        let (data, mut got) = (bytes(300_000, 3), vec![0; 300_000]);
        let cookies = [iwrite(a, &data), iread(a, &mut got)];
        let link = table::find(a).unwrap();
        for (role, number) in [(Writer, 0), (Reader, 0)] {
            let at = link.endpoint(role).1.desc(role, number).at.load(Ordering::Relaxed);
            assert_eq!(at != 0, link.proven().is_some(), "{what}");
        }
        drop(link);
        assert!(cookies.iter().all(|&cookie| cookie > 0));
        assert_eq!((close(a), close(b)), (0, 0));
    }
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
fn numbers_wrap_around() {
    let &Pair { ends: [a, b], .. } = &pair();
    for handle in [a, b] {
        let link = table::find(handle).unwrap();
        for role in Role::BOTH {
            let (endpoint, lane) = link.endpoint(role);
            endpoint.lock().begin_at(lane, u32::MAX - 300);
        }
    }
    for round in 0..1000usize {
        let size = if round % 3 == 0 { 8 } else { 40_000 };
        let (data, mut got) = (bytes(size, round), vec![0; size]);
        let cookies = [iwrite(a, &data), iread(b, &mut got)];
        assert_eq!(cookies.map(wait), [size as isize; 2], "{round}");
        assert!(got == data);
    }
}
