//! Tests with both ends of a connection in one process, on every engine: what programs cannot do or
//! see from outside (tests/ipc.rs has the rest).

use crate::backend::libc as original;
use crate::ipc::calls::{
    adma_close as close, adma_iread, adma_iwrite, adma_read, adma_read_for, adma_write,
    adma_write_for, cancel, check, wait_for,
};
use crate::ipc::claims::cursors;
use crate::ipc::copy::MessagePiece;
use crate::ipc::handles;
use crate::ipc::link::Link;
use crate::ipc::memory::region::kind::{DIRECT, EAGER, STREAMED};
use crate::ipc::messages::Role::{self, Reader, Writer};
use crate::ipc::messages::Step;
use crate::ipc::os;
use crate::ipc::settings::{Engines, Settings};
use crate::ipc::setup;
use core::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

const IN_PROGRESS: isize = -libc::EINPROGRESS as isize;
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
    crate::ipc::wait::serve::begin();
    original::resolve();
    let sockets = os::unix_pair().unwrap();
    let enter = |side: usize| {
        let owner = handles::become_owner().unwrap();
        let established = setup::attach(sockets[side].raw(), settings[side]).unwrap();
        handles::enter(Box::new(Link::new(established, owner))).unwrap()
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

/// Returns a pair for every way of a message: one side that refuses proof is enough.
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
    // SAFETY: `data` outlives the call, in which the message is over or refused.
    unsafe { adma_write(handle, data.as_ptr().cast(), data.len()) }
}

fn read(handle: i32, data: &mut [u8]) -> isize {
    // SAFETY: `data` outlives the call, in which the message is over or refused.
    unsafe { adma_read(handle, data.as_mut_ptr().cast(), data.len()) }
}

fn iwrite(handle: i32, data: &[u8]) -> i64 {
    // SAFETY: the tests wait, or close, before the bytes go away.
    unsafe { adma_iwrite(handle, data.as_ptr().cast(), data.len()) }
}

fn iread(handle: i32, data: &mut [u8]) -> i64 {
    // SAFETY: the callers keep `data` until the cookie is over.
    unsafe { adma_iread(handle, data.as_mut_ptr().cast(), data.len()) }
}

fn wait(cookie: i64) -> isize {
    if cookie > 0 { wait_for(cookie, -1) } else { cookie as isize }
}

/// Sends one message, both ends of which wait from the beginning.
fn send([a, b]: [i32; 2], data: &[u8], got: &mut [u8]) -> [isize; 2] {
    thread::scope(|scope| {
        let writer = scope.spawn(move || write(a, data));
        let taken = read(b, got);
        [writer.join().unwrap(), taken]
    })
}

/// An unproven peer sees none of our addresses.
#[test]
fn posts_give_addresses_to_proven_peers_only() {
    for Pair { ends: [a, b], what } in every_pair() {
        let (data, mut got) = (bytes(300_000, 3), vec![0; 300_000]);
        let cookies = [iwrite(a, &data), iread(a, &mut got)];
        let link = handles::find(a).unwrap();
        for (role, number) in [(Writer, 0), (Reader, 0)] {
            let at = link.endpoint(role).1.desc(role, number).at.load(Ordering::Relaxed);
            assert_eq!(at != 0, link.proven().is_some(), "{what}");
        }
        drop(link);
        assert!(cookies.iter().all(|&cookie| cookie > 0));
        assert_eq!((close(a), close(b)), (0, 0));
    }
}

#[test]
fn numbers_wrap_around() {
    let &Pair { ends: [a, b], .. } = &pair();
    for handle in [a, b] {
        let link = handles::find(handle).unwrap();
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

#[test]
fn message_given_up_by_a_side_that_begins_to_close_does_not_look_cancelled() {
    let pair = pair_with([SHM; 2], "streamed");
    let (data, mut room) = (bytes(1 << 20, 1), vec![0u8; 1 << 20]);
    let [_, read] = [iwrite(pair.ends[0], &data), iread(pair.ends[1], &mut room)];
    let link = handles::find(pair.ends[0]).unwrap();
    link.closing.store(true, Ordering::Release); // the first step of closing
    let end = (0..).find_map(|_| link.advance(Writer, 0, true).ok());
    assert_eq!(end, Some(-libc::EBADF as isize));
    drop(link);
    assert_eq!(check(read), -libc::EPIPE as isize);
    drop(pair);
}

/// Makes calls until one reports an end.
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
                // The other side closes as soon as it notices.
                let others = [(); 4].map(|()| {
                    scope.spawn(move || (until_the_end(other_role, left), close(left)).0)
                });
                thread::sleep(Duration::from_micros(round * 30));
                assert_eq!(close(closed), 0);
                let ends = ours.map(|thread| thread.join().unwrap());
                assert_eq!(ends, [bad; 4], "{what}, round {round}");
                let heard = -libc::EPIPE as isize;
                for end in others.map(|thread| thread.join().unwrap()) {
                    assert!(end == heard || end == bad, "{what}, round {round}: {end}");
                }
            });
        }
    }
}

fn forge_first_write(handle: i32, kind: u32, at: u64, len: u64) {
    let link = handles::find(handle).unwrap();
    let desc = link.endpoint(Writer).1.desc(Writer, 0);
    desc.kind.store(kind, Ordering::Relaxed);
    desc.at.store(at, Ordering::Relaxed);
    desc.len.store(len, Ordering::Relaxed);
    desc.number.store(1, Ordering::Release);
}

/// A thread that serves another message meets it first.
#[test]
fn bad_post_is_eproto_for_its_own_cookie_and_is_never_taken() {
    let bad = [(DIRECT, u64::MAX - 10, 1 << 20), (DIRECT, 4096, u64::MAX), (77, 4096, 1 << 20)];
    let bad = bad.into_iter().chain([(EAGER, 1 << 40, 100_000), (STREAMED, u64::MAX, 1 << 20)]);
    for (kind, at, len) in bad {
        let &Pair { ends: [a, b], .. } = &pair_with([DEFAULT, SHM], "streamed");
        let &Pair { ends: [_, other], .. } = &pair_with([SHM; 2], "another");
        let (mut first, mut second) = (vec![1; 1 << 20], vec![1; 1 << 20]);
        let cookies = [iread(b, &mut first), iread(b, &mut second)];
        forge_first_write(a, kind, at, len);
        // Its own message is unmatched, so it helps; then nothing is trusted any more.
        assert_eq!(check(cookies[1]), IN_PROGRESS);
        let broken = -libc::EPROTO as isize;
        assert_eq!([check(cookies[0]), check(cookies[1])], [broken; 2], "{kind} {at:#x} {len:#x}");
        // Repaired afterwards: no thread that serves another connection takes it.
        forge_first_write(a, EAGER, 0, 64);
        assert_eq!(check(iread(other, &mut [0; 1])), IN_PROGRESS);
        assert!(first.iter().chain(&second).all(|&byte| byte == 1));
    }
}

/// Begins a piece of a message, like a slow thread.
fn claim(link: &Link, role: Role, number: u32) -> MessagePiece {
    let (endpoint, lane) = link.endpoint(role);
    match endpoint.lock().advance(lane, link.proven(), true, false, number) {
        Ok(Step::Copy(piece)) => piece,
        _ => panic!("there is no piece"),
    }
}

/// A piece that the peer, or another thread of ours, has begun ends before the message does, though
/// that is cancelled or the peer breaks the protocol.
#[test]
fn message_that_fails_waits_for_a_piece_that_was_begun() {
    let (cancelled, broken) = (-libc::ECANCELED as isize, -libc::EPROTO as isize);
    for (role, end) in [(Reader, cancelled), (Writer, cancelled), (Reader, broken)] {
        let &Pair { ends: [a, b], .. } = &pair();
        let (data, mut got) = (bytes(1 << 20, 0), vec![0; 1 << 20]);
        let cookies = [iwrite(a, &data), iread(b, &mut got)];
        let link = handles::find(if role == Reader { b } else { a }).unwrap();
        let piece = claim(&link, role, 0);
        let word = link.endpoint(role).1.claims(0);
        if end == broken {
            word.store(0, Ordering::Release); // as if nothing had been claimed
        }
        thread::scope(|scope| {
            let waiter = scope.spawn(move || match (end == broken, role) {
                (true, _) => wait(cookies[1]),
                (_, Reader) => cancel(cookies[0]),
                (_, Writer) => cancel(cookies[1]),
            });
            while end == cancelled && cursors(word, 0).flags == 0 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished());
            link.copy(link.proven().unwrap(), role, 0, piece);
            assert_eq!(waiter.join().unwrap(), end);
        });
    }
}

/// A count of finished pieces has only 16 bits of the message's number beside it.
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
    let link = handles::find(a).unwrap();
    let piece = claim(&link, Writer, 1 << 16);
    assert_eq!(wait_for(cookies[1], 30), -libc::ETIMEDOUT as isize);
    link.copy(link.proven().unwrap(), Writer, 1 << 16, piece);
    drop(link);
    assert_eq!(cookies.map(wait), [1 << 20; 2]);
    assert!(got == data);
}

#[test]
fn handle_of_a_closed_connection_is_not_given_out_again() {
    let mut handles: Vec<i32> = (0..150).flat_map(|_| pair().ends).collect();
    handles.sort_unstable();
    assert!(handles.windows(2).all(|two| two[0] != two[1]), "{handles:?}");
}

/// A read that later ones are behind keeps its number: the message for it is cancelled.
#[test]
fn cancelled_read_with_others_behind_is_reported_to_its_writer() {
    let cancelled = -libc::ECANCELED as isize;
    for Pair { ends: [a, b], what } in every_pair() {
        let (data, mut got, mut unused) = (bytes(300_000, 6), vec![0; 300_000], vec![0; 300_000]);
        let reads = [iread(b, &mut unused), iread(b, &mut got)];
        assert_eq!((cancel(reads[0]), check(reads[0])), (cancelled, INVALID), "{what}");
        thread::scope(|scope| {
            let reader = scope.spawn(move || wait(reads[1]));
            let [first, second] = [write(a, &data), write(a, &data)];
            assert!(first == 0 || first == cancelled, "{what}: {first}");
            assert_eq!((second, reader.join().unwrap()), (300_000, 300_000), "{what}");
        });
        assert!(got == data && unused.iter().all(|&byte| byte == 0), "{what}");
    }
}

/// Streamed halfway, then given up by either side: the next messages arrive.
#[test]
fn message_cancelled_in_its_middle_is_reported_to_the_peer() {
    let (all, cancelled) = (2 << 20, -libc::ECANCELED as isize);
    // Other tests help with messages of this process, and may end one before it is cancelled.
    let shows = |by_reader: bool| {
        let &Pair { ends: [a, b], what } = &pair_with([SHM; 2], "streamed");
        let (data, mut got) = (bytes(2 << 20, 5), vec![0; 2 << 20]);
        let (written, taken) = (iwrite(a, &data), iread(b, &mut got));
        for _ in 0..3 {
            let ends = [written, taken].map(|cookie| (cookie, check(cookie)));
            if ends.iter().any(|&(_, end)| end != IN_PROGRESS) {
                let left = ends.iter().filter(|(_, end)| *end == IN_PROGRESS);
                left.for_each(|&(cookie, _)| assert_eq!(wait(cookie), all));
                return false;
            }
        }
        let (cancels, hears) = if by_reader { (taken, written) } else { (written, taken) };
        let ends = [cancel(cancels), wait(hears)];
        if ends == [all; 2] {
            return false;
        }
        assert_eq!(ends, [cancelled; 2], "{what}");
        got.fill(0);
        assert_eq!(send([a, b], &data, &mut got), [all; 2]);
        assert!(got == data);
        true
    };
    for by_reader in [true, false] {
        assert!((0..100).any(|_| shows(by_reader)), "every message was too quick");
    }
}

#[test]
fn limit_of_a_read_or_write_leaves_the_buffer_alone() {
    let timed_out = -libc::ETIMEDOUT as isize;
    for Pair { ends: [a, b], what } in every_pair() {
        let (data, mut got) = (bytes(300_000, 5), vec![0; 300_000]);
        let (from, to) = (data.as_ptr().cast(), got.as_mut_ptr().cast());
        // SAFETY: both live through the calls.
        unsafe {
            assert_eq!(adma_read_for(b, to, 300_000, 5), timed_out, "{what}");
            assert_eq!(adma_write_for(a, from, 300_000, 5), timed_out, "{what}");
            assert_eq!(adma_write_for(a, from, 10, 5), 10, "{what}: a small one is taken");
            assert_eq!(adma_read_for(b, to, 300_000, 60_000), 10, "{what}");
        }
        assert_eq!(send([a, b], &data, &mut got), [300_000; 2], "{what}");
        assert!(got == data, "{what}");
    }
}
