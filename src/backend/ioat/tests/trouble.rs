//! Requests that are refused, taken in part, or end badly: the copy is right nevertheless.

use super::*;

#[test]
fn refused_request_is_left_to_libc_and_says_why() {
    let reasons = [
        (libc::EAGAIN, Refused::Busy),
        (libc::EBUSY, Refused::Busy),
        (libc::ENOMEM, Refused::Busy),
        (libc::EIO, Refused::Busy),
        (libc::ENODEV, Refused::NoChannels),
        (libc::EINVAL, Refused::System),
        (libc::EBADF, Refused::System),
        (libc::ENOTTY, Refused::System),
        (libc::EPERM, Refused::System),
        (libc::ENOSYS, Refused::System),
        // Another file that answers everything with 0.
        (0, Refused::System),
    ];
    for (errno, refused) in reasons {
        let kernel = Kernel::new(2);
        let engine = engine(kernel);
        kernel.make([Trouble { refuse: Some((errno, 0)), ..Trouble::default() }]);
        assert_eq!(copy(&engine, 300_000), Err(refused), "errno {errno}");
        assert_eq!(copy(&engine, 300_000), Ok(()), "the next one is asked again");
    }
}

#[test]
fn refused_request_in_the_middle_of_a_copy_is_done_by_the_caller() {
    for errno in [libc::EAGAIN, libc::EBADF, libc::ENODEV, libc::EFAULT, libc::ENOMEM] {
        let kernel = Kernel::new(2);
        let engine = engine(kernel);
        let fine = Trouble::default();
        kernel.make([fine, Trouble { refuse: Some((errno, 0)), ..fine }, fine]);
        assert_eq!(copy(&engine, 40 << 20), Ok(()), "errno {errno}");
        assert!(count(&engine.counts.caller_bytes) > 1 << 20);
    }
}

#[test]
fn bad_page_at_the_beginning_is_the_callers() {
    let kernel = Kernel::new(2);
    let engine = engine(kernel);
    kernel.make([Trouble { refuse: Some((libc::EFAULT, 0)), ..Trouble::default() }]);
    assert_eq!(copy(&engine, 300_000), Ok(()));
    assert_eq!(count(&engine.counts.faults), 1);
    assert_eq!(count(&engine.counts.caller_bytes), 300_000);
}

#[test]
fn request_taken_in_part_is_waited_for_and_the_rest_copied() {
    for errno in [libc::EFAULT, libc::EAGAIN, libc::EBUSY, libc::ENOMEM, libc::ENODEV] {
        for taken in [1, 2, 3] {
            let kernel = Kernel::new(4);
            let engine = engine(kernel);
            let refuse = Some((errno, taken));
            kernel.make([Trouble { refuse, late: LATE, ..Trouble::default() }]);
            assert_eq!(copy(&engine, 600_000), Ok(()), "errno {errno} after {taken} pieces");
            assert_eq!(lens(kernel).len(), taken);
            assert!(count(&engine.counts.redone) > 0);
            assert_eq!(count(&engine.counts.faults), u64::from(errno == libc::EFAULT));
            let by_channels: usize = lens(kernel).iter().sum();
            assert_eq!(count(&engine.counts.caller_bytes) as usize + by_channels, 600_000);
        }
    }
}

#[test]
fn failed_pieces_are_copied_again() {
    for failed in [1, 0b1010, u64::MAX] {
        for late in [Duration::ZERO, LATE] {
            let kernel = Kernel::new(3);
            let engine = engine(kernel);
            kernel.make([Trouble { failed, late, ..Trouble::default() }]);
            assert_eq!(copy(&engine, 600_000), Ok(()));
            let expected = (failed & low_bits(lens(kernel).len())).count_ones();
            assert_eq!(count(&engine.counts.redone), u64::from(expected));
            assert!(count(&engine.counts.waits) > 0, "only the kernel knows");
            assert_eq!(copy(&engine, 600_000), Ok(()));
        }
    }
}

#[test]
fn lost_word_is_asked_for() {
    for spins in [false, true] {
        let kernel = Kernel::new(4);
        let engine = engine(kernel);
        kernel.make([Trouble { lost: 0b100, ..Trouble::default() }]);
        assert_eq!(copy_at(&engine, (1, 2), 300_000, &Options { spins, ..HOW }), Ok(()));
        assert_eq!(count(&engine.counts.waits), 1, "{spins}");
        assert_eq!(count(&engine.counts.redone), 0);
    }
}

#[test]
fn silent_channel_is_asked_for_at_once() {
    for silent in [0b10, !0] {
        let kernel = Kernel::new(4);
        let engine = engine(kernel);
        kernel.make([Trouble { silent, late: LATE, ..Trouble::default() }]);
        assert_eq!(copy(&engine, 300_000), Ok(()));
        assert_eq!(count(&engine.counts.waits), 1);
    }
}

#[test]
fn helper_without_words_is_asked_for_every_copy() {
    let kernel = Kernel::with(abi::Info { features: 0, ..Kernel::new(2).info() });
    let engine = engine(kernel);
    (0..5).for_each(|_| copy(&engine, 300_000).unwrap());
    assert_eq!(count(&engine.counts.waits), 5);
}

#[test]
fn status_call_that_is_interrupted_or_too_early_is_made_again() {
    for errno in [libc::EINTR, libc::ETIMEDOUT, libc::EAGAIN] {
        let kernel = Kernel::new(2);
        let engine = engine(kernel);
        let status = Some((errno, 7));
        kernel.make([Trouble { silent: !0, status, late: LATE, ..Trouble::default() }]);
        assert_eq!(copy(&engine, 300_000), Ok(()));
        assert_eq!(count(&kernel.waits), 8);
    }
}

#[test]
fn descriptor_closed_during_a_copy_leaves_the_words_to_tell_its_end() {
    let kernel = Kernel::new(2);
    let engine = engine(kernel);
    let status = Some((libc::EBADF, u32::MAX));
    kernel.make([Trouble { status, late: VERY_LATE, ..Trouble::default() }]);
    assert_eq!(copy(&engine, 300_000), Ok(()));
    assert!(count(&engine.counts.waits) > 1);
}

#[test]
fn request_that_found_no_memory_makes_the_next_ones_smaller_for_a_while() {
    let kernel = Kernel::new(2);
    let engine = engine(kernel);
    kernel.make([Trouble { refuse: Some((libc::ENOMEM, 4)), ..Trouble::default() }]);
    copy(&engine, 16 << 20).unwrap();
    let taken: usize = lens(kernel).iter().sum();
    let next = engine.limit.part_of(1 << 30);
    assert!(next <= taken && next + PAGE > taken.min(16 << 20), "{next} after {taken}");
    copy(&engine, 16 << 20).unwrap();
    assert!(engine.limit.part_of(1 << 30) > next, "and larger again");
}

#[test]
fn no_list_free_refuses_the_copy_and_recovers() {
    let engine = engine(Kernel::new(2));
    let all: Vec<_> = (0..abi::SLOTS).map(|_| engine.lists.take().unwrap()).collect();
    assert!(engine.lists.take().is_none());
    let (source, mut target) = (vec![1u8; 100_000], vec![0u8; 100_000]);
    let (dst, src) = (target.as_mut_ptr() as usize, source.as_ptr() as usize);
    // SAFETY: the vectors' own memory.
    assert_eq!(unsafe { engine.copy(dst, src, 100_000, &HOW) }, Err(Refused::Busy));
    drop(all);
    assert_eq!(copy(&engine, 100_000), Ok(()));
}
