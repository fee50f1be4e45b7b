//! Lists of segments (struct iovec), as the calls of the kernel that scatter and gather take them.
//!
//! Every byte of a list has a number, so that any range of numbers is a list again.

use crate::functions::Op;
use crate::os::{process, sys};
use core::mem::MaybeUninit;

/// struct iovec.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub base: usize,
    pub len: usize,
}

impl Segment {
    pub fn end(self) -> usize {
        self.base + self.len
    }
}

/// Address and number of the program's segments.
#[derive(Clone, Copy)]
pub struct SegmentList {
    pub at: usize,
    pub count: usize,
}

/// Lists up to this length fit on any stack.
pub const SHORT: usize = 64;
/// Most segments that are given to the kernel at once.
pub const AT_ONCE: usize = 32;
/// Most bytes that the kernel transfers with one call (MAX_RW_COUNT).
pub const MOST_BYTES: usize = 0x7fff_f000;
/// End of the addresses that every program may have.
pub const USER_END: usize = 1 << 47;
/// A list this close above our own frame lies on the caller's stack.
const NEAR: usize = 16 << 10;

impl SegmentList {
    pub fn bytes(self) -> usize {
        self.count * size_of::<Segment>()
    }

    /// Returns whether the list lies on the caller's stack, so that reading it cannot fault;
    /// `frame` is an address in our own frame.
    pub fn is_near(self, frame: usize) -> bool {
        self.at.wrapping_sub(frame) < NEAR && self.at.is_multiple_of(8)
    }

    /// Copies the list to `to`.
    ///
    /// # Safety
    /// The list is near, and `to` has room for it.
    pub unsafe fn read(self, to: usize) {
        for word in 0..self.bytes() / 8 {
            // SAFETY: a near list, so it can be read, and room for it. Volatile: not a call of memcpy.
            unsafe {
                let value = (self.at as *const usize).add(word).read_volatile();
                (to as *mut usize).add(word).write_volatile(value);
            }
        }
    }
}

/// Makes the system call of `op`, in a worker as well.
///
/// # Safety
/// The kernel may write to the segments that the call writes to.
pub unsafe fn transfer(
    op: Op,
    pid: usize,
    local: &[Segment],
    remote: &[Segment],
) -> sys::SysResult {
    let number = match op {
        Op::process_vm_writev => libc::SYS_process_vm_writev,
        _ => libc::SYS_process_vm_readv,
    };
    let [local_at, remote_at] = [local, remote].map(|list| list.as_ptr() as usize);
    // SAFETY: the kernel reads the two lists, and writes only to segments that the caller has let it write to.
    unsafe { sys::syscall(number, [pid, local_at, local.len(), remote_at, remote.len(), 0]) }
}

/// Copies lists, which may be unreadable, to `rooms`: the kernel does it, by a transfer within this
/// process. False: it cannot read them.
///
/// # Safety
/// Each room is long enough.
pub unsafe fn fetch<const N: usize>(op: Op, lists: [SegmentList; N], rooms: [usize; N]) -> bool {
    let ours =
        core::array::from_fn::<_, N, _>(|i| Segment { base: rooms[i], len: lists[i].bytes() });
    let theirs = lists.map(|list| Segment { base: list.at, len: list.bytes() });
    let (local, remote) = match op {
        Op::process_vm_writev => (&theirs, &ours),
        _ => (&ours, &theirs),
    };
    let wanted: usize = ours.iter().map(|segment| segment.len).sum();
    // SAFETY: each room is long enough for its list; both sides are this process.
    unsafe { transfer(op, process::pid() as usize, local, remote) == wanted as isize }
}

/// Returns the number of bytes of a list; `None`: the kernel may refuse it.
pub fn bytes_of(list: &[Segment]) -> Option<usize> {
    list.iter().try_fold(0, |total, segment| {
        let end = segment.base.checked_add(segment.len)?;
        (end <= USER_END).then_some(total + segment.len)
    })
}

/// Returns whether no two segments share a byte; false for a long list that does not ascend.
pub fn are_apart(list: &[Segment]) -> bool {
    let overlap =
        |a: &Segment, b: &Segment| a.len > 0 && b.len > 0 && a.base < b.end() && b.base < a.end();
    list.is_sorted_by(|a, b| a.end() <= b.base)
        || list.len() <= SHORT
            && list.iter().enumerate().all(|(i, a)| !list[i + 1..].iter().any(|b| overlap(a, b)))
}

/// Returns the segments of `len` bytes from number `from` on, as far as there is room for them.
pub fn stretch<'r, const N: usize>(
    list: &[Segment],
    from: usize,
    len: usize,
    room: &'r mut [MaybeUninit<Segment>; N],
) -> &'r [Segment] {
    let (mut skip, mut left, mut count) = (from, len, 0);
    for segment in list {
        if skip >= segment.len {
            skip -= segment.len;
            continue;
        }
        if left == 0 || count == N {
            break;
        }
        let len = (segment.len - skip).min(left);
        room[count].write(Segment { base: segment.base + skip, len });
        count += 1;
        left -= len;
        skip = 0;
    }
    // SAFETY: `count` were just written.
    unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), count) }
}
