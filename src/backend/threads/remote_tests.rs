//! The arithmetic of lists against a list of single bytes, and transfers from this process.

use super::super::segments::USER_END;
use super::super::workers;
use super::*;

fn segment(base: usize, len: usize) -> Segment {
    Segment { base, len }
}

/// The addresses of all bytes of a list, in order.
fn bytes(list: &[Segment]) -> Vec<usize> {
    list.iter().flat_map(|segment| segment.base..segment.end()).collect()
}

fn random(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) as usize % below
}

#[test]
fn stretch_is_the_same_bytes_as_far_as_there_is_room() {
    let mut state = 1;
    for _ in 0..5000 {
        let count = 1 + random(&mut state, 40);
        let list: Vec<Segment> =
            (0..count).map(|_| segment(random(&mut state, 1000), random(&mut state, 9))).collect();
        let all = bytes(&list);
        let from = random(&mut state, all.len() + 1);
        let len = random(&mut state, all.len() - from + 1);
        let mut room = [const { MaybeUninit::uninit() }; AT_ONCE];
        let got = stretch(&list, from, len, &mut room);
        assert!(got.iter().all(|segment| segment.len > 0));
        let shown = bytes(got);
        assert_eq!(shown, all[from..from + shown.len()]);
        assert!(shown.len() == len || got.len() == AT_ONCE && shown.len() < len);
    }
}

#[test]
fn segments_that_share_a_byte_are_found_in_any_order() {
    let mut state = 2;
    for _ in 0..5000 {
        let count = 1 + random(&mut state, 6);
        let list: Vec<Segment> =
            (0..count).map(|_| segment(random(&mut state, 60), random(&mut state, 9))).collect();
        let mut all = bytes(&list);
        let before = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(are_apart(&list), all.len() == before, "{list:?}");
    }
}

#[test]
fn lists_the_kernel_would_refuse_are_not_summed_up() {
    assert_eq!(bytes_of(&[segment(4096, 10), segment(0, 0), segment(9, 5)]), Some(15));
    assert_eq!(bytes_of(&[segment(4096, usize::MAX)]), None);
    assert_eq!(bytes_of(&[segment(4096, 1 << 63)]), None);
    assert_eq!(bytes_of(&[segment(usize::MAX, 0), segment(4096, 1)]), None);
    assert_eq!(bytes_of(&[segment(USER_END - 1, 1)]), Some(1));
    assert_eq!(bytes_of(&[segment(USER_END - 1, 2)]), None);
}

#[test]
fn this_process_and_its_threads_are_not_another() {
    workers::init();
    assert!(!is_other_process(sys::getpid() as usize));
    std::thread::spawn(|| assert!(!is_other_process(sys::gettid() as usize))).join().unwrap();
    assert!(is_other_process(1) || sys::getpid() == 1);
}

#[test]
fn order_matters_only_where_a_byte_is_written_twice_or_read_after() {
    workers::init();
    let own = sys::getpid() as usize;
    let free = |op, pid, local: &[Segment], remote: &[Segment]| {
        let total = bytes_of(local).unwrap().min(bytes_of(remote).unwrap());
        Transfer { op, pid, local, remote, total }.is_in_any_order()
    };
    let (read, write) = (Op::ProcessVmReadv, Op::ProcessVmWritev);
    let twice = [segment(1000, 10), segment(1009, 10)];
    let apart = [segment(2000, 10), segment(2010, 10)];
    assert!(!free(read, 1, &twice, &apart));
    assert!(free(write, 1, &twice, &apart));
    assert!(!free(write, 1, &apart, &twice));
    assert!(free(read, 1, &apart, &twice));
    assert!(free(read, own, &[segment(1000, 100)], &[segment(1000, 100)]));
    assert!(free(read, own, &[segment(1000, 100)], &[segment(1100, 100)]));
    assert!(!free(read, own, &[segment(1000, 100)], &[segment(1001, 100)]));
    assert!(!free(write, own, &apart, &[segment(2005, 30)]));
}

#[test]
fn lists_on_the_stack_and_elsewhere_are_fetched_alike() {
    workers::init();
    let near = [segment(1 << 20, 5), segment(2 << 20, 6)];
    let far = near.to_vec();
    for op in [Op::ProcessVmReadv, Op::ProcessVmWritev] {
        for at in [near.as_ptr(), far.as_ptr()] {
            let list = SegmentList { at: at as usize, count: 2 };
            let call = TransferCall { op, pid: 1, local: list, remote: list, flags: 0, site: 0 };
            let mut lists = Lists::<SHORT>::new();
            let transfer = Transfer::new(&call, &mut lists).unwrap();
            assert_eq!((transfer.local, transfer.remote), (&near[..], &near[..]));
            assert_eq!(transfer.total, 11);
        }
        // Address 8 is nobody's.
        let (bad, good) =
            (SegmentList { at: 8, count: 2 }, SegmentList { at: far.as_ptr() as usize, count: 2 });
        for (local, remote) in [(bad, good), (good, bad)] {
            let call = TransferCall { op, pid: 1, local, remote, flags: 0, site: 0 };
            assert!(Transfer::new(&call, &mut Lists::<SHORT>::new()).is_none());
        }
    }
}

#[test]
fn shared_transfer_is_right_at_every_kind_of_border() {
    original::resolve();
    workers::init();
    workers::start(3);
    let mut state = 3;
    for round in 0..60 {
        let len = 1 + random(&mut state, 9 << 20);
        let source: Vec<u8> = (0..len).map(|i| (i * 31 + i / 4096 + round) as u8).collect();
        let mut target = vec![0u8; len];
        let cut = |state: &mut u64, base: usize| {
            let (mut list, mut at) = (Vec::new(), 0);
            while at < len {
                let part = (1 + random(state, len / 7 + 1)).min(len - at);
                list.push(segment(base + at, part));
                at += part;
            }
            list
        };
        let local = cut(&mut state, target.as_mut_ptr() as usize);
        let remote = cut(&mut state, source.as_ptr() as usize);
        let (op, pid) = (Op::ProcessVmReadv, sys::getpid() as usize);
        let transfer = Transfer { op, pid, local: &local, remote: &remote, total: len };
        let first = random(&mut state, len.min(5000));
        assert_eq!(transfer.move_bytes(0, first), first);
        match transfer.share(first, 3) {
            Ok((done, _)) => assert_eq!(done, len),
            Err(refused) => {
                assert_eq!(refused, Refused::Busy);
                assert_eq!(transfer.move_bytes(first, len - first), len - first);
            }
        }
        assert!(target == source, "round {round}, {len} bytes");
    }
}
