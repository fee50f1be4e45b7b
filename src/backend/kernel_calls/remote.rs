//! One call of process_vm_readv or process_vm_writev, shared between caller and workers.
//!
//! MPI libraries move large messages between the ranks of one machine with these two: one call for
//! each message. The kernel walks two lists of segments, ours (local) and the other process's
//! (remote), and copies as many bytes as the shorter has. So every byte of the transfer has a
//! number, and any range of numbers can be transferred by a call of its own:
//!
//! ```text
//! fetch the lists; any call that is not plain and well-formed -> libc's function, as it is
//! the caller transfers the first bytes -> it is permitted, and the process exists
//! pieces that keep to page tables of the remote side are claimed like those of a copy
//! a piece that falls short -> when nothing is under way, the caller goes on from there, alone
//! ```
//!
//! The answer is the kernel's. Bytes behind a bad page may have been transferred too, as with
//! memcpy.

use super::kernel_work::{self, Claims};
use super::segments::{
    self, AT_ONCE, MOST_BYTES, SHORT, Segment, SegmentList, are_apart, bytes_of, stretch,
};
use super::table_threads::TableThreads;
use crate::backend::threads::{self, Seen};
use crate::backend::{Refused, libc as original};
use crate::functions::Op;
use crate::os::lock::TryLock;
use crate::os::mapped::{Mapped, zeroed};
use crate::os::signal_mask::SignalsHeld;
use crate::os::{process, sys};
use crate::plan::{self, Cut, Piece};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use zerocopy::FromZeros;

static THREADS: TableThreads = zeroed();

/// Arguments of the program's call.
pub struct TransferCall {
    pub op: Op,
    pub pid: usize,
    pub local: SegmentList,
    pub remote: SegmentList,
    pub flags: usize,
    /// Return address of the caller; 0: not known.
    pub site: usize,
}

/// Longer lists than `SHORT` lie in memory of their own, one at a time, up to what the kernel
/// takes (UIO_MAXIOV).
const MOST_SEGMENTS: usize = 1024;
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow: every child looks at it
static LONG: Mapped<TryLock<Lists<MOST_SEGMENTS>>> = Mapped::new();
/// Room for both lists. Not cleared: that would be a call of memset.
#[derive(FromZeros)]
struct Lists<const N: usize> {
    local: [MaybeUninit<Segment>; N],
    remote: [MaybeUninit<Segment>; N],
}

impl<const N: usize> Lists<N> {
    #[inline(always)]
    const fn new() -> Self {
        let local = [const { MaybeUninit::uninit() }; N];
        Self { local, remote: [const { MaybeUninit::uninit() }; N] }
    }

    /// Takes the program's lists as they are now. False: the kernel cannot read them, and is left
    /// to report that.
    fn fetch(&mut self, call: &TransferCall) -> bool {
        let room = [&raw mut self.local as usize, &raw mut self.remote as usize];
        let lists = [call.local, call.remote];
        if lists.iter().all(|list| list.is_near(room[0])) {
            // SAFETY: both lists lie on the caller's stack (`is_near`), and `room` is ours and long enough.
            room.into_iter().zip(lists).for_each(|(to, list)| unsafe { list.read(to) });
            return true;
        }
        // Elsewhere it may not be readable; fetched by the call that the program is making.
        // SAFETY: `room` is long enough.
        unsafe { segments::fetch(call.op, lists, room) }
    }
}

/// Frees the long lists in the child of a fork: their holder was a thread of the parent.
pub fn forget_after_fork() {
    LONG.get().inspect(|long| long.forget_after_fork());
}

/// Calls `then` with the parsed call; `None`: it is passed to the kernel unchanged.
pub fn understand<R>(call: &TransferCall, then: impl FnOnce(Option<Transfer<'_>>) -> R) -> R {
    if call.local.count.max(call.remote.count) <= SHORT {
        let mut lists = Lists::<SHORT>::new();
        return then(Transfer::new(call, &mut lists));
    }
    // No handler jumps out with the lock taken, and no child of vfork is killed with it.
    let held = if process::is_ours() { SignalsHeld::handled() } else { None };
    let mut lists = held.as_ref().and_then(|held| LONG.get_or_map()?.try_take(held));
    then(lists.as_mut().and_then(|lists| Transfer::new(call, lists)))
}

/// A well-formed call: its bytes can be transferred in any order, with the same result.
pub struct Transfer<'a> {
    op: Op,
    pid: usize,
    local: &'a [Segment],
    remote: &'a [Segment],
    total: usize,
}

impl<'a> Transfer<'a> {
    /// Parses a call. `None`: it is not well-formed.
    fn new<const N: usize>(call: &TransferCall, lists: &'a mut Lists<N>) -> Option<Self> {
        let lengths = 1..=N;
        if call.flags != 0
            || !lengths.contains(&call.local.count)
            || !lengths.contains(&call.remote.count)
            || !lists.fetch(call)
        {
            return None;
        }
        // SAFETY: `fetch` has just filled as many elements of both lists.
        let [local, remote]: [&[Segment]; 2] = unsafe {
            [
                core::slice::from_raw_parts(lists.local.as_ptr().cast(), call.local.count),
                core::slice::from_raw_parts(lists.remote.as_ptr().cast(), call.remote.count),
            ]
        };
        let total = bytes_of(local)?.min(bytes_of(remote)?).min(MOST_BYTES);
        Some(Self { op: call.op, pid: call.pid, local, remote, total })
    }

    /// Returns how many bytes the kernel would transfer.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns whether the result does not depend on the order: no byte is written twice, or is
    /// read here and written there.
    pub fn is_in_any_order(&self) -> bool {
        let written = if self.op == Op::process_vm_writev { self.remote } else { self.local };
        are_apart(written) && (!self.may_alias() || is_other_process(self.pid))
    }

    /// Returns whether order would matter if the other process were this one.
    fn may_alias(&self) -> bool {
        if let ([local], [remote]) = (self.local, self.remote) {
            // A range onto itself is right in any order. A child of fork has the same addresses.
            return local.base != remote.base
                && plan::overlaps(local.base, remote.base, self.total);
        }
        let bounds = |list: &[Segment]| {
            let used = || list.iter().filter(|segment| segment.len > 0);
            let start = used().map(|segment| segment.base).min().unwrap_or(0);
            (start, used().map(|segment| segment.end()).max().unwrap_or(0))
        };
        let (local, remote) = (bounds(self.local), bounds(self.remote));
        local.0 < remote.1 && remote.0 < local.1
    }

    /// Transfers the bytes from number `from` on, at most `len`. Returns how many: fewer, where
    /// the kernel met a bad page.
    pub fn move_bytes(&self, from: usize, len: usize) -> usize {
        let mut done = 0;
        while done < len {
            let mut room = [[const { MaybeUninit::uninit() }; AT_ONCE]; 2];
            let [local, remote] = &mut room;
            let local = stretch(self.local, from + done, len - done, local);
            let remote = stretch(self.remote, from + done, len - done, remote);
            let sum = |list: &[Segment]| list.iter().map(|segment| segment.len).sum::<usize>();
            let wanted = sum(local).min(sum(remote));
            // SAFETY: writes only to buffers of the program's call, which has not returned.
            let answer = unsafe { segments::transfer(self.op, self.pid, local, remote) };
            let answer = usize::try_from(answer).unwrap_or(0);
            done += answer;
            if answer < wanted {
                break;
            }
        }
        done
    }

    /// Shares the bytes from number `from` on with up to `workers`. Returns how many bytes of
    /// the whole transfer are done then. After a refusal nothing is under way.
    pub fn share(&self, from: usize, workers: usize) -> Result<(usize, Seen), Refused> {
        let helpers = workers.min(THREADS.of(self.total - from) - 1);
        let cut = Cut::for_tables(self.remote_place(from), self.total - from, helpers + 1);
        let part = |piece: Piece| self.move_bytes(from + piece.offset, piece.len) == piece.len;
        let (short, seen) =
            kernel_work::share(cut, workers, helpers, Claims::Spread, || (), None, &part)?;
        let Some(offset) = short else {
            THREADS.note(seen.own);
            return Ok((self.total, seen));
        };
        threads::FAULTS.fetch_add(1, Ordering::Relaxed);
        let done = from + offset;
        Ok((done + self.move_bytes(done, self.total - done), seen))
    }

    /// Returns a number that grows with `from` and has the alignment of most remote bytes.
    fn remote_place(&self, from: usize) -> usize {
        let (mut start, mut longest, mut place) = (0, 0, 0);
        for segment in self.remote {
            if segment.len > longest {
                longest = segment.len;
                place = segment.base.wrapping_sub(start);
            }
            start += segment.len;
        }
        place.wrapping_add(from)
    }
}

/// Passes the call on as the program has made it.
///
/// # Safety
/// The program's own call.
pub unsafe fn pass_on(call: &TransferCall) -> isize {
    let TransferCall { op, pid, local, remote, flags, .. } = call;
    type TransferFn = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;
    let next = original::next(*op);
    // SAFETY: libc's function of these arguments, or the bootstrap's.
    unsafe {
        let function = core::mem::transmute::<*mut core::ffi::c_void, TransferFn>(next);
        function(*pid, local.at, local.count, remote.at, remote.count, *flags)
    }
}

/// Returns whether `pid`, the number of a process or thread, is none of ours. False where that
/// cannot be asked.
fn is_other_process(pid: usize) -> bool {
    let own = process::pid() as usize;
    // SAFETY: signal 0 is delivered to no thread; the kernel only checks that there is such a thread.
    let ask = || unsafe { sys::syscall(libc::SYS_tgkill, [own, pid, 0, 0, 0, 0]) };
    pid as u32 != own as u32 && sys::NoFilter::look().is_some() && ask() == -libc::ESRCH as isize
}
