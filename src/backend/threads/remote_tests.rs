//! The arithmetic of lists against a list of single bytes, and when the order of bytes matters.

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
