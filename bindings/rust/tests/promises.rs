//! The promises of the crate. `LD_LIBRARY_PATH` names the folder of libadma.so.0; tests/bindings.rs of
//! the source tree runs this with and without a preloaded library.

use adma::{Block, Connection, Listener};
use std::future::Future;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

const MIB: usize = 1 << 20;
/// Only turns a hang into a failure.
const LIMIT: Duration = Duration::from_secs(100);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn waker() -> Waker {
    Arc::new(Unpark(thread::current())).into()
}

/// Polls only when woken.
fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, waker) = (pin!(future), waker());
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        let begun = std::time::Instant::now();
        thread::park_timeout(LIMIT);
        assert!(begun.elapsed() < LIMIT, "was not woken");
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn pair() -> (Connection, Connection) {
    let (here, there) = UnixStream::pair().unwrap();
    let other = thread::spawn(move || Connection::attach(&there).unwrap());
    (Connection::attach(&here).unwrap(), other.join().unwrap())
}

#[test]
fn copies_move_all_bytes_and_give_their_blocks_back() {
    for len in [0, 1, 5000, 300_001, 8 * MIB] {
        let mut dst = vec![0; len];
        adma::copy(&pattern(len), &mut dst).unwrap();
        assert_eq!(dst, pattern(len));
        let (result, src, dst) =
            adma::icopy(pattern(len).into(), Block::zeroed(len).unwrap()).wait();
        result.unwrap();
        assert!(src[..] == dst[..] && dst.into_vec() == pattern(len));
        let (result, _, dst) = block_on(adma::icopy(src, Block::from(vec![0; len])));
        result.unwrap();
        assert_eq!(dst[..], pattern(len));
        drop(adma::icopy(dst, Block::zeroed(len).unwrap()));
    }
    let (result, src, dst) = adma::icopy(vec![0; 5].into(), vec![0; 4].into()).wait();
    assert_eq!((result.unwrap_err().kind(), src.len(), dst.len()), (ErrorKind::InvalidInput, 5, 4));
    assert!(adma::copy(&[0; 5], &mut [0; 4]).is_err());
    let _off = adma::off().unwrap();
    adma::icopy(vec![1; MIB].into(), vec![0; MIB].into()).wait().0.unwrap();
}

#[test]
fn messages_of_every_size_arrive_by_wait_await_and_slices() {
    let (here, there) = pair();
    for len in [0, 1, 5000, 32768, 32769, 8 * MIB] {
        let reading = there.read(Block::zeroed(len).unwrap());
        let writing = here.write(pattern(len).into());
        assert_eq!(reading.wait().0.unwrap(), len);
        assert_eq!(writing.wait().0.unwrap(), len);
        let writer = thread::spawn({
            let here = here.clone();
            move || block_on(here.write(pattern(len).into())).0.unwrap()
        });
        assert_eq!(block_on(there.next()).unwrap(), len);
        let (count, block) = block_on(there.read(vec![0; len].into()));
        assert!(count.unwrap() == len && block[..] == pattern(len));
        assert_eq!(writer.join().unwrap(), len);
    }
    here.send(b"four").unwrap();
    assert_eq!(there.wait_next().unwrap(), 4);
    assert_eq!(there.recv(&mut [0; 3]).unwrap_err().raw_os_error(), Some(90)); // EMSGSIZE
    assert_eq!(there.recv_for(&mut [0; 9], LIMIT).unwrap(), 4);
    let late = there.recv_for(&mut [0; 9], Duration::ZERO).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    assert!(adma::describe(&late).contains("in time"));
    assert_eq!(there.peer().unwrap().pid, std::process::id() as i32);
    drop(here);
    let (result, block) = block_on(there.read(vec![0; 5].into()));
    assert_eq!((result.unwrap_err().kind(), block.len()), (ErrorKind::BrokenPipe, 5));
}

#[test]
fn dropped_future_leaves_its_memory_and_the_next_message_alone() {
    let (here, there) = pair();
    let waker = waker();
    for len in [1000, MIB] {
        for polled in [false, true] {
            let mut reading = there.read(vec![0; len].into());
            if polled {
                let poll = std::pin::Pin::new(&mut reading).poll(&mut Context::from_waker(&waker));
                assert!(poll.is_pending());
            }
            drop(reading);
            // One of them has that memory next.
            let others: Vec<_> = (0..20).map(|_| vec![0; len]).collect();
            let writing = here.write(pattern(len).into());
            let (count, block) = there.read(vec![0; len].into()).wait();
            assert!(count.unwrap() == len && block[..] == pattern(len));
            writing.wait().0.unwrap();
            assert!(others.iter().flatten().all(|byte| *byte == 0));
        }
    }
    let forgotten = there.read(Block::zeroed(MIB).unwrap());
    std::mem::forget(forgotten); // leaks its memory, too
    assert_eq!(here.write(pattern(MIB).into()).wait().0.unwrap(), MIB);
}

#[test]
fn futures_of_one_connection_do_not_take_each_others_news() {
    let (here, there) = pair();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let there = there.clone();
            thread::spawn(move || {
                (0..200).map(|_| block_on(there.read(vec![0; 9].into())).0.unwrap()).sum::<usize>()
            })
        })
        .collect();
    for number in 0..800 {
        assert_eq!(block_on(here.write(vec![number as u8; 3].into())).0.unwrap(), 3);
    }
    let read: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(read, 2400);
}

#[test]
fn read_waits_while_another_task_has_not_looked_at_the_256th_before_it() {
    let (here, there) = pair();
    let held = there.read(vec![0; 9].into());
    assert_eq!(here.send(b"held").unwrap(), 4);
    for _ in 1..256 {
        assert_eq!(here.send(b"more").unwrap(), 4);
        assert_eq!(there.recv(&mut [0; 9]).unwrap(), 4);
    }
    let mut late = there.read(vec![0; 9].into());
    let poll = std::pin::Pin::new(&mut late).poll(&mut Context::from_waker(&waker()));
    assert!(poll.is_pending());
    assert_eq!(held.wait().0.unwrap(), 4);
    assert_eq!(here.send(b"the last").unwrap(), 8);
    assert_eq!(block_on(late).0.unwrap(), 8);
}

#[test]
fn listener_accepts_in_a_task_and_in_a_thread() {
    let name = format!("@adma-crate-{}", std::process::id());
    let listener = Listener::bind(&name).unwrap();
    let late = listener.accept_for(Duration::ZERO).err().unwrap();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    for in_task in [true, false] {
        let name = name.clone();
        let client = thread::spawn(move || Connection::connect_for(name, LIMIT).unwrap());
        let server =
            if in_task { block_on(listener.next_client()) } else { listener.accept() }.unwrap();
        client.join().unwrap().send(b"hello").unwrap();
        assert_eq!(server.wait_next().unwrap(), 5);
    }
    assert!(Connection::connect("/nonexistent/socket").is_err());
}

#[test]
fn library_is_loaded_once() {
    adma::copy(&[1], &mut [0]).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut files: Vec<_> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5).filter(|f| f.contains("libadma.so")))
        .collect();
    files.dedup();
    assert_eq!(files.len(), 1, "{files:?}");
}
