//! Where the pieces of a copy go, and how much the caller does itself.

use super::*;

#[test]
fn one_copy_spreads_over_channels_that_follow_from_its_place() {
    const LEN: usize = 64 << 10;
    let kernel = Kernel::new(4);
    let engine = engine(kernel);
    let source = vec![1u8; LEN];
    let mut target = vec![0u8; 7 * LINE];
    let line = (target.as_ptr() as usize).next_multiple_of(LINE);
    let mut used = |at: usize, how: &Options| {
        kernel.seen.lock().unwrap().clear();
        let dst = line - target.as_ptr() as usize + at;
        let (dst, src) = (target[dst..dst + LEN].as_mut_ptr() as usize, source.as_ptr() as usize);
        // SAFETY: inside both vectors.
        unsafe { engine.copy(dst, src, LEN, how) }.unwrap();
        channels(kernel)
    };
    let two = Options { channels: Some(2), ..HOW };
    for number in 0..5 {
        let next = |step: usize| ((line / LINE + number + step) % 4) as u32;
        for at in [number * LINE, number * LINE + PAGE, number * LINE] {
            assert_eq!(used(at, &HOW), [next(0), next(1), next(2), next(3)], "64 KiB spread");
            assert_eq!(used(at, &two), [next(0), next(1)]);
        }
    }
}

#[test]
fn channels_on_several_nodes_are_left_to_the_kernel() {
    let info = Kernel::new(4).info();
    let kernel = Kernel::with(abi::Info { features: info.features | abi::FEATURE_NODES, ..info });
    let engine = engine(kernel);
    copy_at(&engine, (0, 0), 64 << 10, &HOW).unwrap();
    // The fake one says that the first half is near.
    assert_eq!(channels(kernel), [0, 1, 0, 1]);
    // Who wants fewer names them himself.
    copy_at(&engine, (0, 0), 64 << 10, &Options { channels: Some(2), ..HOW }).unwrap();
    let named = &channels(kernel)[4..];
    assert!(matches!(named, [one, next] if *next == (one + 1) % 4), "{named:?}");
}

#[test]
fn with_one_channel_for_a_copy_it_stays_there() {
    let kernel = Kernel::new(3);
    let engine = engine(kernel);
    let one = Options { channels: Some(1), ..HOW };
    // Larger than a request may be.
    copy_at(&engine, (0, 0), 20 << 20, &one).unwrap();
    let used = channels(kernel);
    assert!(used.len() > 2 && used.iter().all(|&channel| channel == used[0]), "{used:?}");
}

#[test]
fn pieces_begin_at_destination_pages_and_are_not_small() {
    let kernel = Kernel::new(4);
    let engine = engine(kernel);
    copy_at(&engine, (100, 3), 500_000, &HOW).unwrap();
    let pieces = kernel.seen.lock().unwrap().clone();
    assert_eq!(pieces.len(), 4);
    assert!(pieces[1..].iter().all(|piece| piece.dst.is_multiple_of(PAGE as u64)));
    assert!(pieces[..pieces.len() - 1].iter().all(|piece| piece.len >= 16 << 10));
    let (first, last) = (&pieces[0], pieces.last().unwrap());
    assert!(pieces.windows(2).all(|two| two[0].dst + two[0].len == two[1].dst));
    assert!(last.dst + last.len - first.dst > 500_000 - 128, "only the edges are the caller's");
}

#[test]
fn requests_respect_the_limits_of_the_file() {
    let limited = |max_bytes, max_pages| {
        let kernel = Kernel::with(abi::Info { max_bytes, max_pages, ..Kernel::new(2).info() });
        let engine = engine(kernel);
        copy_at(&engine, (0, 0), 9_000_000, &HOW).unwrap();
        9_000_000 / count(&engine.counts.submits)
    };
    assert!(limited(2 << 20, 1 << 20) <= 1 << 20, "half of what may be under way");
    assert!(limited(1 << 30, 1024) <= (512 - 64) * PAGE as u64, "on both sides, in pages");
    assert_eq!(limited(1 << 30, 1 << 20), 9_000_000);
    assert!(limited(0, 0) > 0, "whatever the helper says");
}

#[test]
fn fixed_share_is_copied_by_the_caller() {
    for (share, least, most) in [(0.0, 0, 128), (0.5, 500_000, 500_128), (1.0, 1 << 20, 1 << 20)] {
        let engine = engine(Kernel::new(2));
        let len = if share == 1.0 { 1 << 20 } else { 1_000_000 };
        copy_at(&engine, (7, 7), len, &Options { share: Some(share), ..HOW }).unwrap();
        let own = count(&engine.counts.caller_bytes) as usize;
        assert!((least..=most).contains(&own), "{share}: {own}");
        let by_channels: u64 = engine.counts.channel_bytes.iter().map(count).sum();
        assert_eq!(own + by_channels as usize, len, "every byte is counted once");
    }
}

#[test]
fn share_of_the_caller_grows_while_it_waits_and_shrinks_while_it_does_not() {
    let kernel = Kernel::new(2);
    let engine = engine(kernel);
    let how = Options { share: None, ..HOW };
    // Words that never come: the caller has to wait however slow it is itself.
    kernel.make([Trouble { lost: !0, ..Trouble::default() }; 12]);
    (0..12).for_each(|_| copy_at(&engine, (0, 0), 1 << 20, &how).unwrap());
    let grown = engine.share.of(1 << 20);
    assert!(grown > 100_000, "{grown}");
    (0..8).for_each(|_| copy_at(&engine, (0, 0), 1 << 20, &how).unwrap());
    assert!(engine.share.of(1 << 20) < grown);
}

#[test]
fn addresses_the_engine_cannot_read_do_not_suit() {
    let kernel = Kernel::with(abi::Info { src_align: 8, ..Kernel::new(2).info() });
    let engine = engine(kernel);
    assert!(engine.suits(0x1000, 0x2008) && engine.suits(0x1001, 0x2009));
    assert!(!engine.suits(0x1000, 0x2001) && !engine.suits(0x1001, 0x2008));
    assert_eq!(copy_at(&engine, (3, 11), 100_000, &HOW), Ok(()));
    let kernel = Kernel::with(abi::Info { src_align: 4096, ..Kernel::new(2).info() });
    let engine = self::engine(kernel);
    assert_eq!(copy_at(&engine, (3, 3), 100_000, &HOW), Ok(()));
    assert!(lens(kernel).iter().all(|len| len.is_multiple_of(4096)));
}
