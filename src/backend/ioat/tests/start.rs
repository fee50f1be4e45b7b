//! Start and fork: which helper is used, and what is forgotten.

use super::*;

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
        engine.helper.set_fake(Kernel::with(info));
        assert!(!engine.start(crate::os::sys::NoNewFilter::look().unwrap()), "{info:?}");
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
    assert!(engine.start(crate::os::sys::NoNewFilter::look().unwrap()));
    assert_eq!(copy(&engine, 100_000), Ok(()));
}

#[test]
fn helper_that_is_not_there_is_told_from_one_that_is() {
    if std::path::Path::new("/dev/adma").exists() {
        return;
    }
    let engine = Engine::new();
    assert!(!engine.start(crate::os::sys::NoNewFilter::look().unwrap()));
    assert_eq!(engine.why_not(), libc::ENOENT);
}
