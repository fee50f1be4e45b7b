//! How messages end that do not just arrive: cookies, tables that are full, closed and broken
//! connections.

use super::super::calls::{adma_read_for, adma_write_for, cancel};
use super::super::endpoint::Step;
use super::super::engine::MessagePiece;
use super::super::region::kind::{DIRECT, EAGER, STREAMED};
use super::*;

#[test]
fn cookie_of_an_eager_write_ends_with_its_read() {
    let &Pair { ends: [a, b], .. } = &pair();
    let cookies = [iwrite(a, &[1; 100]), iwrite(a, &[2; 100]), iwrite(a, &[3; 100])];
    assert!(cookies.iter().all(|&cookie| check(cookie) == IN_PROGRESS));
    assert_eq!(write(a, &[4; 100]), 100, "what is not waited for holds nobody up");
    let mut got = [0; 100];
    assert_eq!((read(b, &mut got), check(cookies[0]), check(cookies[1])), (100, 100, IN_PROGRESS));
    thread::scope(|scope| {
        scope.spawn(move || assert_eq!(wait(cookies[1]), 100));
        thread::sleep(Duration::from_millis(10));
        assert_eq!(read(b, &mut got), 100);
    });
    let left = iwrite(a, &[5; 100]);
    close(b);
    // Messages that were never read.
    assert_eq!([wait(cookies[2]), check(left)], [-libc::EPIPE as isize; 2]);
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
        assert_eq!([check(nonsense), wait_for(nonsense, -1)], [INVALID; 2], "{nonsense:#x}");
    }
    let unmatched = iread(b, &mut got);
    assert_eq!(check(unmatched), IN_PROGRESS);
    close(a);
    assert_eq!(wait(unmatched), -libc::EPIPE as isize, "the other side has closed");
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
    // Messages with the same numbers.
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
                let heard = -libc::EPIPE as isize;
                for end in others.map(|thread| thread.join().unwrap()) {
                    assert!(end == heard || end == bad, "{what}, round {round}: {end}");
                }
            });
        }
    }
}

fn forge_first_write(handle: i32, kind: u32, at: u64, len: u64) {
    let link = table::find(handle).unwrap();
    let desc = link.endpoint(Writer).1.desc(Writer, 0);
    desc.kind.store(kind, Ordering::Relaxed);
    desc.at.store(at, Ordering::Relaxed);
    desc.len.store(len, Ordering::Relaxed);
    desc.number.store(1, Ordering::Release);
}

/// What is mended afterwards is not met by a thread that comes by for another connection.
#[test]
fn read_that_meets_a_bad_post_is_over_when_it_returns() {
    let &Pair { ends: [a, b], .. } = &pair_with([SHM; 2], "nobody copies");
    let &Pair { ends: [_, other], .. } = &pair_with([SHM; 2], "nobody copies");
    let (mut got, mut nothing) = (vec![1; 1 << 20], [0; 1]);
    forge_first_write(a, DIRECT, u64::MAX - 10, 1 << 20);
    assert_eq!(read(b, &mut got), -libc::EPROTO as isize);
    forge_first_write(a, EAGER, 0, 64);
    assert_eq!(check(iread(other, &mut nothing)), IN_PROGRESS);
    assert!(got.iter().all(|&byte| byte == 1));
}

/// The other side's post of a message is not what it may be; a thread that comes by for another
/// message meets it first.
#[test]
fn bad_post_is_eproto_for_its_own_cookie_whoever_meets_it() {
    let bad = [(DIRECT, u64::MAX - 10, 1 << 20), (DIRECT, 4096, u64::MAX), (77, 4096, 1 << 20)];
    let bad = bad.into_iter().chain([(EAGER, 1 << 40, 100_000), (STREAMED, u64::MAX, 1 << 20)]);
    for (kind, at, len) in bad {
        let &Pair { ends: [a, b], .. } = &pair_with([DEFAULT, SHM], "streamed");
        let (mut first, mut second) = (vec![1; 1 << 20], vec![1; 1 << 20]);
        let cookies = [iread(b, &mut first), iread(b, &mut second)];
        forge_first_write(a, kind, at, len);
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
    match endpoint.lock().advance(lane, link.proven(), true, false, number) {
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
        link.copy(link.proven().unwrap(), Reader, 0, piece);
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
    link.copy(link.proven().unwrap(), Writer, 1 << 16, piece);
    drop(link);
    assert_eq!(cookies.map(wait), [1 << 20; 2]);
    assert!(got == data);
}

/// Also where it was woken shortly before: by a signal, or by a thread that looks at the handle.
#[test]
fn closing_takes_no_longer_than_its_patience() {
    let patience = Duration::from_secs(4);
    let settings = Settings { patience: patience.as_nanos() as u64, ..DEFAULT };
    let &Pair { ends: [a, _], .. } = &pair_with([settings; 2], "patient");
    let used = table::find(a).unwrap();
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(patience * 3 / 4);
            drop(table::find_any(a));
            used.wake_closer();
        });
        assert_eq!(close(a), -libc::ETIMEDOUT);
    });
    // Patience that begins anew when it is woken ends after that at the earliest.
    assert!(begun.elapsed() < patience * 7 / 4, "{:?}", begun.elapsed());
    drop(used);
}

#[test]
fn place_of_a_closed_connection_is_not_given_out_at_once() {
    let place = |handle: i32| handle as usize % 4096;
    let places: Vec<usize> = (0..8).map(|_| place(pair().ends[0])).collect();
    assert!(places.windows(2).all(|two| two[0] != two[1]), "{places:?}");
}

/// A read that is given up loses no message, and the buffer is not touched any more.
#[test]
fn cancelled_message_leaves_the_buffer_alone_and_loses_nothing() {
    let cancelled = -libc::ECANCELED as isize;
    for Pair { ends: [a, b], what } in every_pair() {
        for size in [40, 300_000] {
            let (data, mut got, mut unused) = (bytes(size, 5), vec![0; size], vec![0; size]);
            let given_up = iread(b, &mut unused);
            assert_eq!((cancel(given_up), check(given_up)), (cancelled, INVALID), "{what}");
            let given_up = iwrite(a, &data[..size / 2]);
            // A small one is in the region already.
            let small = size < 1000;
            let result = if small { size as isize / 2 } else { cancelled };
            assert_eq!(cancel(given_up), result, "{what}");
            if small {
                assert_eq!(read(b, &mut got[..size / 2]), size as isize / 2);
            }
            assert_eq!(send([a, b], &data, &mut got), [size as isize; 2], "{what}");
            assert!(got == data && unused.iter().all(|&byte| byte == 0), "{what}");
        }
        // One that later reads are behind: its writer is told.
        let (data, mut got, mut unused) = (bytes(300_000, 6), vec![0; 300_000], vec![0; 300_000]);
        let reads = [iread(b, &mut unused), iread(b, &mut got)];
        assert_eq!(cancel(reads[0]), cancelled, "{what}");
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
fn message_cancelled_in_its_middle_is_told_to_the_other_side() {
    for by_reader in [true, false] {
        let &Pair { ends: [a, b], what } = &pair_with([SHM; 2], "streamed");
        let (data, mut got) = (bytes(2 << 20, 5), vec![0; 2 << 20]);
        let (written, taken) = (iwrite(a, &data), iread(b, &mut got));
        for _ in 0..3 {
            assert_eq!([check(written), check(taken)], [IN_PROGRESS; 2]);
        }
        let (cancels, hears) = if by_reader { (taken, written) } else { (written, taken) };
        let cancelled = -libc::ECANCELED as isize;
        assert_eq!([cancel(cancels), wait(hears)], [cancelled; 2], "{what}");
        got.fill(0);
        assert_eq!(send([a, b], &data, &mut got), [2 << 20; 2]);
        assert!(got == data);
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
