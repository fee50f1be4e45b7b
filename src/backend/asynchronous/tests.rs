//! Copies that the kernel helper carries while their caller does something else; those of workers are
//! tested by `tests/api.rs`.

use super::*;
use crate::backend::copy_loop::CopyLoop;
use crate::backend::engine::{CopyEngine, CopyOptions, Handle};
use crate::backend::ioat::fake::{Kernel as Fake, Trouble};
use crate::backend::ioat::{self, ASK_AGAIN, LOST_AFTER};
use crate::backend::libc as original;
use crate::backend::threads::workers;
use crate::os::sys;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn helper(fake: &'static Fake) -> Option<By> {
    original::resolve();
    workers::init();
    init();
    let engine: &'static ioat::Engine = Box::leak(Box::new(ioat::Engine::new()));
    engine.helper.set_fake(fake);
    assert!(engine.open(sys::NoNewFilter::look().unwrap()));
    workers::start(3);
    let engines: &'static [&'static dyn CopyEngine] = Box::leak(Box::new([engine as _]));
    let engine = Handle::all(engines).next()?;
    Some(By::Engine(engine, CopyOptions::default(), CopyLoop::Ordinary))
}

/// Two buffers, and the stretch of them that is copied.
struct Pair {
    source: Vec<u8>,
    target: Vec<u8>,
    copy: Copy,
}

impl Pair {
    fn new(len: usize, offset: usize) -> Self {
        let source: Vec<u8> = (0..len + 200).map(|i| (i * 31 + i / 251) as u8 | 1).collect();
        let mut target = vec![0u8; len + 200];
        let copy = Copy {
            src: source.as_ptr() as usize + offset,
            dst: target.as_mut_ptr() as usize + offset + 7,
            len,
        };
        Self { source, target, copy }
    }

    fn check(&self) {
        let (len, to) = (self.copy.len, self.copy.dst - self.target.as_ptr() as usize);
        let from = self.copy.src - self.source.as_ptr() as usize;
        assert!(self.target[to..to + len] == self.source[from..from + len], "{len} bytes");
        assert!(self.target[..to].iter().all(|&byte| byte == 0), "before");
        assert!(self.target[to + len..].iter().all(|&byte| byte == 0), "after");
    }
}

const SIZES: [usize; 9] =
    [0, 1, 4095, FLOOR - 1, FLOOR, 65_537, 300_001, 2 << 20, (17 << 20) + 123];

fn start(copies: &[Copy], by: Option<By>) -> Cookie {
    // SAFETY: the pairs outlive the waiting.
    unsafe { begin(copies, by, Wanted::default()) }.expect("room").cookie
}

fn look(cookie: Cookie) -> CookieState {
    // SAFETY: as in `start`.
    unsafe { check(cookie) }
}

fn wait_by_looking(cookie: Cookie) {
    loop {
        match look(cookie) {
            CookieState::Over(()) => break,
            CookieState::UnderWay(()) => std::thread::yield_now(),
            CookieState::Unknown => panic!("lost"),
        }
    }
}

fn wait_for(cookie: Cookie) {
    // SAFETY: as in `start`.
    let wait = || unsafe { wait(cookie) };
    assert_eq!((wait(), wait()), (CookieState::Over(()), CookieState::Unknown));
    assert_eq!(look(cookie), CookieState::Unknown);
}

#[test]
fn every_size_and_batch_is_right_by_the_helper() {
    let fake = Fake::new(3);
    let by = helper(fake);
    for (round, len) in SIZES.into_iter().enumerate() {
        for ends in [wait_for, wait_by_looking] {
            let pair = Pair::new(len, round);
            ends(start(&[pair.copy], by));
            pair.check();
        }
    }
    let pairs: Vec<_> = SIZES.into_iter().map(|len| Pair::new(len, 3)).collect();
    let copies: Vec<_> = pairs.iter().map(|pair| pair.copy).collect();
    wait_for(start(&copies, by));
    pairs.iter().for_each(Pair::check);
    wait_for(start(&[], by));
    assert!(fake.submits.load(Ordering::Relaxed) > 5);
    assert_eq!(fake.under_way(), 0);
}

#[test]
fn helper_in_every_trouble_leaves_the_right_bytes() {
    let late = Duration::from_millis(3);
    let troubles = [
        Trouble { late, ..Default::default() },
        Trouble { failed: 0b101, ..Default::default() },
        Trouble { failed: !0, late, ..Default::default() },
        Trouble { lost: 1, ..Default::default() },
        Trouble { silent: 2, late, ..Default::default() },
        Trouble { refuse: Some((libc::EAGAIN, 0)), ..Default::default() },
        Trouble { refuse: Some((libc::EBUSY, 2)), ..Default::default() },
        Trouble { refuse: Some((libc::ENOMEM, 1)), late, ..Default::default() },
        Trouble { refuse: Some((libc::EFAULT, 0)), ..Default::default() },
        Trouble { refuse: Some((libc::EFAULT, 3)), late, ..Default::default() },
        Trouble { status: Some((libc::EINTR, 3)), silent: 1, late, ..Default::default() },
    ];
    for (number, trouble) in troubles.into_iter().enumerate() {
        for looks in [false, true] {
            let fake = Fake::new(2);
            let by = helper(fake);
            fake.make([trouble]);
            let pair = Pair::new(1_000_003, number);
            let ends = if looks { wait_by_looking } else { wait_for };
            ends(start(&[pair.copy], by));
            pair.check();
            assert_eq!(fake.under_way(), 0, "trouble {number}");
        }
    }
}

#[test]
fn looking_at_a_request_asks_the_kernel_only_when_it_is_overdue() {
    let fake = Fake::new(2);
    let by = helper(fake);
    fake.make([Trouble { late: Duration::from_millis(2), ..Default::default() }]);
    let pair = Pair::new(1 << 20, 0);
    let begun = sys::ticks();
    let cookie = start(&[pair.copy], by);
    while look(cookie) == CookieState::UnderWay(()) {}
    let took = sys::ticks() - begun;
    pair.check();
    // On a busy machine the helper is late indeed: then it is asked, and not all the time.
    let most = if took < LOST_AFTER { 0 } else { 1 + (took - LOST_AFTER) / ASK_AGAIN };
    let asked = fake.waits.load(Ordering::Relaxed);
    assert!(asked <= most, "asked {asked} times in {took} ticks");
}

#[test]
fn words_of_a_later_request_end_an_earlier_one() {
    let fake = Fake::new(1);
    let by = helper(fake);
    let first = Pair::new(1 << 20, 0);
    let cookie = start(&[first.copy], by);
    for _ in 0..40 {
        let next = Pair::new(100_000, 0);
        wait_for(start(&[next.copy], by));
        next.check();
    }
    let waits = fake.waits.load(Ordering::Relaxed);
    assert_eq!(look(cookie), CookieState::Over(()));
    assert_eq!(fake.waits.load(Ordering::Relaxed), waits);
    first.check();
}

/// The kernel reports failures once. The thread that gets the report may be slow, and meanwhile the
/// words of the next request show that this one is over.
#[test]
fn failure_reported_to_one_thread_is_seen_by_all() {
    let fake = Fake::new(1);
    let by = helper(fake);
    let (reported, was_reported) = std::sync::mpsc::channel();
    fake.at_answer(move || {
        reported.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    });
    fake.make([Trouble { failed: 1, ..Default::default() }]);
    let pair = Pair::new(100_000, 0);
    let cookie = start(&[pair.copy], by);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            while look(cookie) == CookieState::UnderWay(()) {
                std::thread::yield_now();
            }
        });
        was_reported.recv().unwrap();
        let next = Pair::new(100_000, 0);
        wait_for(start(&[next.copy], by));
        next.check();
        if look(cookie) == CookieState::Over(()) {
            pair.check();
        }
        other.join().unwrap();
        pair.check();
    });
}
