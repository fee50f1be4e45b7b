//! Paths of copies, with the real engines behind the dispatcher.

use super::*;
use crate::backend::threads::workers;
use crate::config::Formats;
use crate::learn::{STREAM_FROM, Way};

fn dispatcher(change: impl FnOnce(&mut Config)) -> Box<Dispatcher> {
    original::resolve();
    workers::init();
    let mut config = Config {
        backend: Backend::Threads,
        min_bytes: Some(1),
        channels: Some(2),
        stats: Formats { json: true, ..Formats::default() },
        ..Config::default()
    };
    change(&mut config);
    let dispatcher = Box::new(Dispatcher::new());
    dispatcher.configure(Box::leak(Box::new(config)));
    dispatcher
}

fn dispatch(
    dispatcher: &Dispatcher,
    work: Work,
    dst: usize,
    src: usize,
    len: usize,
) -> (Path, isize) {
    let config = dispatcher.config().unwrap();
    // SAFETY: memory of the tests' own.
    unsafe { dispatcher.dispatch(config, &Task { work, dst, src, len }, 0, 0) }
}

fn copy(dispatcher: &Dispatcher, len: usize) -> Path {
    let source: Vec<u8> = (0..len).map(|i| (i ^ i >> 8) as u8).collect();
    let mut target = vec![0u8; len];
    let (dst, src) = (target.as_mut_ptr() as usize, source.as_ptr() as usize);
    let (path, _) = dispatch(dispatcher, Work::Copy, dst, src, len);
    assert_eq!(source, target);
    path
}

#[test]
fn wrong_copy_is_repaired_and_ends_the_engine() {
    let dispatcher = dispatcher(|config| config.verify = 1);
    let (source, mut target) = (vec![7u8; 5000], vec![0u8; 5000]);
    // SAFETY: the vectors' own memory.
    unsafe { dispatcher.verify_some(target.as_mut_ptr() as usize, source.as_ptr() as usize, 5000) };
    assert_eq!(source, target);
    assert_eq!(dispatcher.recorder.counters().mismatched.load(Ordering::Relaxed), 1);
    assert_eq!(copy(&dispatcher, 100_000), Path::Libc(Fallback::Off));
}

/// Half of their time is page faults, which says nothing about copies between old buffers.
#[test]
fn fresh_memory_calls_do_not_change_the_learner_of_others() {
    let dispatcher = dispatcher(|config| config.min_bytes = None);
    let (len, source) = (4 << 20, vec![7u8; 4 << 20]);
    for (work, src, kind) in [
        (Work::Copy, source.as_ptr() as usize, Kind::Copies),
        (Work::Fill, 7 * (usize::MAX / 0xff), Kind::Fills),
    ] {
        let known = || dispatcher.learner(kind).known().map(|(_, cell)| cell.calls()).sum::<u32>();
        for _ in 0..8 {
            let fresh = sys::map(len).expect("no memory");
            let (path, _) = dispatch(&dispatcher, work, fresh as usize, src, len);
            assert!(matches!(path, Path::Engine | Path::Libc(Fallback::Busy)), "{path:?}");
            assert_eq!(known(), 0);
            // SAFETY: a mapping of our own, not used any more.
            unsafe { sys::unmap(fresh, len) };
        }
        let mut target = vec![1u8; len]; // written, so its pages are there
        // Other tests share the queue: after an overload nothing is asked for a while.
        while known() == 0 {
            dispatch(&dispatcher, work, target.as_mut_ptr() as usize, src, len);
        }
        assert_eq!(target, source);
    }
}

// ---- the kernel helper ---------------------------------------------------------------

use crate::backend::engine::CopyEngine;
use crate::backend::ioat::fake::{Kernel as Helper, Trouble};
use crate::backend::ioat::{self, abi};

fn helped(
    helper: &'static Helper,
    change: impl FnOnce(&mut Config),
) -> (Box<Dispatcher>, &'static ioat::Engine) {
    let dispatcher = dispatcher(|config| {
        config.backend = Backend::Auto;
        change(config);
    });
    let engine: &'static ioat::Engine = Box::leak(Box::new(ioat::Engine::new()));
    engine.helper.set_fake(helper);
    dispatcher.fakes.set(Box::leak(Box::new([engine as &dyn CopyEngine])));
    (dispatcher, engine)
}

fn refusing(errno: i32) -> Trouble {
    Trouble { refuse: Some((errno, 0)), ..Trouble::default() }
}

#[test]
fn threads_serve_where_the_helper_has_no_channels_or_is_not_wanted() {
    let info = abi::Info { usable: 0, ..Helper::new(4).info() };
    let cases =
        [(Helper::with(info), Backend::Auto, libc::ENODEV), (Helper::new(4), Backend::Threads, 0)];
    for (helper, backend, why_not) in cases {
        let (dispatcher, engine) = helped(helper, |config| config.backend = backend);
        copy(&dispatcher, 50_000);
        assert_eq!(dispatcher.backend(), ("threads", 2));
        assert_eq!(engine.why_not(), why_not);
    }
}

#[test]
fn helper_that_fails_for_good_is_not_asked_again_and_a_busy_one_is() {
    use libc::{EBADF, EINVAL, ENODEV, ENOSYS, ENOTTY, EPERM};
    for errno in [ENODEV, EBADF, ENOTTY, EPERM, ENOSYS, EINVAL] {
        let helper = Helper::new(2);
        let (dispatcher, _) = helped(helper, |_| {});
        assert_eq!(copy(&dispatcher, 50_000), Path::Engine);
        helper.make([refusing(errno)]);
        let why = if errno == ENODEV { Fallback::NoChannels } else { Fallback::Refused };
        for _ in 0..3 {
            assert_eq!(copy(&dispatcher, 50_000), Path::Libc(why), "{errno}");
        }
        assert_eq!(helper.submits.load(Ordering::Relaxed), 2, "not asked again");
        assert_eq!((dispatcher.backend().0, dispatcher.why_not()), ("ioat", Some(why.name())));
    }
    let helper = Helper::new(2);
    let (dispatcher, _) = helped(helper, |_| {});
    helper.make([refusing(libc::EAGAIN), refusing(libc::EBUSY)]);
    assert_eq!(copy(&dispatcher, 50_000), Path::Libc(Fallback::Busy));
    assert_eq!(copy(&dispatcher, 50_000), Path::Libc(Fallback::Busy));
    assert_eq!(copy(&dispatcher, 50_000), Path::Engine);
}

#[test]
fn addresses_that_do_not_suit_the_helper_stay_with_libc() {
    let info = abi::Info { src_align: 64, ..Helper::new(2).info() };
    let (dispatcher, _) = helped(Helper::with(info), |_| {});
    let (source, mut target) = (vec![7u8; 100_000], vec![0u8; 100_000]);
    let (dst, src) = (target.as_mut_ptr() as usize, source.as_ptr() as usize);
    for shift in [1, 32, 63] {
        let src = src + (dst.wrapping_sub(src) + shift) % 64;
        let (path, _) = dispatch(&dispatcher, Work::Copy, dst, src, 99_000);
        assert_eq!(path, Path::Libc(Fallback::Unaligned), "{shift}");
    }
    let src = src + dst.wrapping_sub(src) % 64;
    assert_eq!(dispatch(&dispatcher, Work::Copy, dst, src, 99_000).0, Path::Engine);
    assert!(target[..99_000] == source[..99_000]);
}

#[test]
fn learning_with_the_helper_tries_it_and_never_streams() {
    let helper = Helper::new(2);
    let (dispatcher, _) = helped(helper, |config| config.min_bytes = None);
    for _ in 0..60 {
        copy(&dispatcher, STREAM_FROM + 12_345);
    }
    assert!(helper.submits.load(Ordering::Relaxed) >= 3, "it was never tried");
    let streamed = |way: &Way| matches!(way, Way::Alone | Way::Streamed);
    let mut best = dispatcher.learner(Kind::Copies).known().filter_map(|(_, cell)| cell.best());
    assert!(!best.any(|way| streamed(&way)));
}

/// The engine copies only: the rest goes to libc, and the report says why.
#[test]
fn fills_and_comparisons_stay_with_the_cpu_beside_the_helper() {
    let (dispatcher, _) = helped(Helper::new(2), |_| {});
    assert_eq!(copy(&dispatcher, 50_000), Path::Engine);
    let (mut a, b) = (vec![1u8; 100_000], vec![7u8; 100_000]);
    let (dst, src) = (a.as_mut_ptr() as usize, b.as_ptr() as usize);
    let unsupported = Path::Libc(Fallback::Unsupported);
    let compare = Work::Compare(Op::memcmp);
    let (path, answer) = dispatch(&dispatcher, compare, dst, src, 100_000);
    assert!(path == unsupported && answer < 0);
    assert_eq!(
        dispatch(&dispatcher, Work::Fill, dst, 7 * (usize::MAX / 0xff), 100_000).0,
        unsupported
    );
    assert_eq!(dispatch(&dispatcher, compare, dst, src, 100_000), (unsupported, 0));
    assert_eq!(a, b);
    assert!(dispatcher.recorder.counters().fallbacks().any(|reason| reason == ("unsupported", 3)));
}
