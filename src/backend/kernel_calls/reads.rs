//! One large read of a file, shared between caller and workers.
//!
//! Reading what is in the page cache is a copy that the kernel makes with one CPU. Workers make
//! parts of it by preadv2 with RWF_NOWAIT, which answers with fewer bytes, or EAGAIN, where the
//! page cache ends. So only what is cached is shared, and a disk sees the order of one reader:
//!
//! ```text
//! a large request, a regular file that has as many bytes -> otherwise libc's function, as it is
//! the caller reads the first bytes, without waiting -> they are in the page cache
//! read, readv: the file position is claimed
//! pieces are claimed in order; behind one that falls short none is begun
//! the caller goes on alone from the first byte that is missing, by libc's preadv
//! ```
//!
//! - **The file position** is claimed by one lseek over all bytes that the file has for the request,
//!   before the first shared piece. Threads and processes that share it (dup, fork) get other bytes, as
//!   the kernel's lock on the position would have it; they need not even wait. Two calls, lseek before
//!   and after, would give them the same bytes. Where fewer bytes can be read than were claimed (the
//!   file was truncated meanwhile, or the buffer has a hole), the rest is given back. Another reader of
//!   the position sees it advance when the read starts, not when it ends.
//! - Bytes behind a bad page, or behind the end of a file that is truncated meanwhile, may have
//!   been written too. The answer does not count them.
//! - A read is not atomic: a write to the same file may be seen in part. Most file systems promise
//!   no more. A buffer that is a shared mapping of the bytes that are read may get others than by
//!   one read: to recognise it, each read would have to open a file.
//! - Workers may have another table of descriptors than the caller (unshare). They look whether
//!   the number stands for the same file.
//! - The kernel reads on from the file that it has begun with when another thread closes or replaces
//!   the descriptor. A duplicate of ours would keep the file, but closing it would drop the program's
//!   locks (fcntl). So the call then returns fewer bytes: those read while the number was seen to refer
//!   to the file.

use super::kernel_work::{self, Claims};
use super::segments::{
    self, MOST_BYTES, SHORT, Segment, SegmentList, are_apart, bytes_of, stretch,
};
use crate::backend::threads::task::{STEP, make_whole_pages};
use crate::backend::threads::workers;
use crate::backend::threads::{Seen, ShareOptions, chunk_of};
use crate::backend::{Refused, libc as original};
use crate::functions::Op;
use crate::os::file::{self, RegularFile};
use crate::os::sys::NoFilter;
use crate::plan::{Cut, PAGE, Piece};
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Arguments of the program's call.
pub struct ReadCall {
    pub op: Op,
    pub fd: usize,
    pub buffers: Buffers,
    /// `None`: from the file position on.
    pub offset: Option<usize>,
    /// Flags, as for preadv2.
    pub flags: usize,
    /// All arguments, as the original takes them.
    pub arguments: [usize; 5],
    /// Return address of the caller; 0: not known.
    pub site: usize,
}

pub enum Buffers {
    One(Segment),
    List(SegmentList),
}

/// Calls, after one that has read much, for which lists outside the stack are fetched. Such lists
/// may be unreadable, so only the kernel can fetch them, which costs too much for a short read.
const FETCHES: u32 = 16;
static FETCHES_LEFT: AtomicU32 = AtomicU32::new(0);

/// Segments that are given to the kernel at once. Few: a handler may have a stack of 8 KiB, of which
/// its frame takes nearly half.
const AT_ONCE: usize = 8;

/// Room for a list. Not cleared: that would be a call of memset.
type ListRoom = [MaybeUninit<Segment>; SHORT];

impl ReadCall {
    /// Calls `then` with the buffers and their bytes; `None`: the kernel should see them first.
    pub fn with_buffers<R>(&self, then: impl FnOnce(Option<(&[Segment], usize)>) -> R) -> R {
        let then =
            |list: Option<&[Segment]>| then(list.and_then(|list| Some((list, bytes_of(list)?))));
        match self.buffers {
            Buffers::One(segment) => then(Some(&[segment])),
            Buffers::List(list) => with_room(list, then),
        }
    }

    /// Passes the call on as the program has made it.
    ///
    /// # Safety
    /// The program's own call.
    pub unsafe fn pass_on(&self) -> isize {
        let [first, second, third, fourth, fifth] = self.arguments;
        // SAFETY: libc's function of these arguments, or of the first of them.
        let answer = unsafe {
            let function =
                core::mem::transmute::<*mut c_void, original::ReadFn>(original::next(self.op));
            function(first, second, third, fourth, fifth)
        };
        let is_list = matches!(self.buffers, Buffers::List(_));
        if is_list && answer >= crate::functions::KERNEL_CALLS_FROM as isize {
            FETCHES_LEFT.store(FETCHES, Ordering::Relaxed);
        }
        answer
    }
}

/// Fetches a list. Not inlined: reads into one buffer do not need the room.
#[inline(never)]
fn with_room<R>(list: SegmentList, then: impl FnOnce(Option<&[Segment]>) -> R) -> R {
    let mut room: ListRoom = [const { MaybeUninit::uninit() }; SHORT];
    then(fetch(list, &mut room))
}

/// Reads the program's list as it is now.
fn fetch(list: SegmentList, room: &mut ListRoom) -> Option<&[Segment]> {
    if list.count == 0 || list.count > SHORT {
        return None;
    }
    let to = room.as_mut_ptr() as usize;
    if list.is_near(to) {
        // SAFETY: the list lies on the caller's stack (`is_near`), and `room` has space for `SHORT` segments.
        unsafe { list.read(to) };
    } else {
        let left = FETCHES_LEFT.load(Ordering::Relaxed);
        if left == 0 {
            return None;
        }
        NoFilter::look()?;
        FETCHES_LEFT.store(left - 1, Ordering::Relaxed); // a lost update costs nothing
        // SAFETY: `to` is room for the whole list, and the kernel checks the list's address.
        if !unsafe { segments::fetch(Op::process_vm_readv, [list], [to]) } {
            return None;
        }
    }
    // SAFETY: the kernel has just filled `count` elements of the room.
    Some(unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), list.count) })
}

/// A read that can be shared.
pub struct FileRead<'a> {
    fd: usize,
    file: RegularFile,
    list: &'a [Segment],
    /// File offset of the first byte.
    start: AtomicUsize,
    /// Bytes that the file has for the request, and bytes that were asked for.
    len: usize,
    asked: usize,
    uses_position: bool,
    /// Set if some of it was not cached, so that its time does not count for sharing.
    went_on_alone: AtomicBool,
    /// Set if the descriptor was seen to be closed or another file's.
    was_replaced: AtomicBool,
}

impl<'a> FileRead<'a> {
    /// Returns the read that a call asks for. `None`: pass it to the kernel unchanged. `least`: fewer bytes are
    /// not worth sharing.
    pub fn new(
        call: &ReadCall,
        (list, total): (&'a [Segment], usize),
        least: usize,
    ) -> Option<Self> {
        // A filter may not allow our system calls.
        let allowed = NoFilter::look()?;
        if call.flags != 0 || !are_apart(list) {
            return None;
        }
        let start = match call.offset {
            Some(offset) => isize::try_from(offset).ok()? as usize,
            None => usize::try_from(file::seek_by(call.fd, 0)).ok()?,
        };
        let read = Self::at(call.fd, start, list, total.min(MOST_BYTES), allowed)?;
        let read = Self { uses_position: call.offset.is_none(), ..read };
        (read.len >= least.max(2)).then_some(read)
    }

    /// Returns a read from `start` on that leaves the file position alone.
    pub fn at(
        fd: usize,
        start: usize,
        list: &'a [Segment],
        asked: usize,
        allowed: NoFilter,
    ) -> Option<Self> {
        let file = RegularFile::of(fd, allowed)?;
        let len = asked.min(file.size.checked_sub(start)?);
        Some(Self {
            fd,
            file,
            list,
            start: AtomicUsize::new(start),
            len,
            asked,
            uses_position: false,
            went_on_alone: AtomicBool::new(false),
            was_replaced: AtomicBool::new(false),
        })
    }

    /// Shortens the request.
    pub fn shortened(self, len: usize) -> Self {
        Self { len, asked: len, ..self }
    }

    /// Returns how many bytes the file has for the request.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the destination of all of it, if that is one buffer.
    pub fn buffer(&self) -> Option<usize> {
        if let [one] = self.list { Some(one.base) } else { None }
    }

    pub fn went_on_alone(&self) -> bool {
        self.went_on_alone.load(Ordering::Relaxed)
    }

    /// Returns whether the descriptor still refers to the file.
    fn is_still_here(&self) -> bool {
        let is_here = || NoFilter::look().is_none_or(|allowed| self.file.is_here(self.fd, allowed));
        let here = !self.was_replaced.load(Ordering::Relaxed) && is_here();
        if !here {
            self.was_replaced.store(true, Ordering::Relaxed);
            self.went_on_alone.store(true, Ordering::Relaxed);
        }
        here
    }

    /// Reads bytes from number `from` on, without waiting for a disk. Returns how many.
    pub fn read_cached(&self, from: usize, len: usize) -> usize {
        let flags = if self.file.is_memory { 0 } else { libc::RWF_NOWAIT as usize };
        self.read_by(from, len, |list, at| {
            // SAFETY: writes only to buffers of the program's call, which has not returned.
            unsafe { file::read(self.fd, list.as_ptr() as usize, list.len(), at, flags) }
        })
        .0
    }

    /// Reads bytes from number `from` on by libc, for as long as it takes. Returns how many, and
    /// the last answer.
    fn read_by_libc(&self, from: usize, len: usize) -> (usize, isize) {
        self.went_on_alone.store(true, Ordering::Relaxed);
        self.read_by(from, len, |list, at| {
            // SAFETY: libc's preadv has these arguments; it writes only to buffers of the program's call.
            unsafe {
                let next = original::next(Op::preadv);
                let preadv = core::mem::transmute::<*mut c_void, original::ReadFn>(next);
                preadv(self.fd, list.as_ptr() as usize, list.len(), at, 0)
            }
        })
    }

    fn read_by(
        &self,
        from: usize,
        len: usize,
        read: impl Fn(&[Segment], usize) -> isize,
    ) -> (usize, isize) {
        let (mut done, mut answer) = (0, 0);
        while done < len {
            let mut room = [const { MaybeUninit::uninit() }; AT_ONCE];
            let list = stretch(self.list, from + done, len - done, &mut room);
            let at = self.start.load(Ordering::Relaxed) + from + done;
            answer = read(list, at);
            if answer <= 0 {
                break;
            }
            done += answer as usize;
        }
        (done, answer)
    }

    /// Reads a piece, after making the pages of a fresh buffer.
    fn read_piece(&self, from: usize, len: usize, fresh: bool) -> bool {
        // A filter of all threads applies to workers, but descriptors may be the caller's alone.
        let here = 0u8;
        if workers::is_worker_stack(&raw const here as usize)
            && !NoFilter::look().is_some_and(|allowed| self.file.is_here(self.fd, allowed))
        {
            return false;
        }
        let buffer = self.buffer().filter(|_| fresh);
        let mut done = 0;
        while done < len {
            let step = match buffer {
                // Steps end at pages, so that none is made twice.
                Some(to) => (STEP - (to + from + done) % PAGE).min(len - done),
                None => len,
            };
            if let Some(to) = buffer {
                make_whole_pages(to + from + done, step);
            }
            if self.read_cached(from + done, step) < step {
                return false;
            }
            done += step;
        }
        true
    }

    /// Shares the bytes from number `from` on, which the caller has begun. Returns how many of the
    /// whole are done, in order from the first, and what was measured. After a refusal no more is
    /// done than before, and the file position is where it was.
    pub fn share_cached(&self, from: usize, how: &ShareOptions) -> Result<(usize, Seen), Refused> {
        let (mut at, mut seen, began_at) =
            (from, Seen::default(), self.start.load(Ordering::Relaxed));
        while at < self.len {
            let len = chunk_of(self.len - at, how.workers);
            // The place of pieces in memory matters for one buffer.
            let place = self.buffer().map_or(0, |to| to + at);
            let cut = match how.fresh {
                true => Cut::for_fresh(place, len, how.workers + 1),
                false => Cut::for_reads(place, len, how.workers + 1),
            };
            let claim = || {
                if at == from && self.uses_position {
                    self.claim_position();
                }
            };
            let huge = how.huge.map(|region| (region, place, len));
            let part = |piece: Piece| self.read_piece(at + piece.offset, piece.len, how.fresh);
            let (workers, order) = (how.workers, Claims::InOrder);
            match kernel_work::share(cut, workers, workers, order, claim, huge, &part) {
                Ok((short, measured)) => {
                    seen.add(&measured);
                    if !self.is_still_here() {
                        break;
                    }
                    if at == from
                        && self.start.load(Ordering::Relaxed) != began_at
                        && self.read_cached(0, from) < from
                    {
                        return Ok((0, seen)); // it was moved before it was claimed
                    }
                    at += short.unwrap_or(len);
                    if short.is_some() {
                        break;
                    }
                }
                Err(refused) if at == from => return Err(refused),
                Err(_) => break,
            }
        }
        Ok((at, seen))
    }

    /// Shares the bytes from number `from` on and does what is left of the program's call. Returns
    /// the answer.
    pub fn share(&self, from: usize, how: &ShareOptions) -> Result<(isize, Seen), Refused> {
        let (mut done, seen) = self.share_cached(from, how)?;
        if self.was_replaced.load(Ordering::Relaxed) {
            return Ok((done as isize, seen));
        }
        // SAFETY: the address of this thread's errno.
        let errno = unsafe { &mut *libc::__errno_location() };
        let (before, mut answer) = (*errno, 0);
        if done < self.len {
            let more;
            (more, answer) = self.read_by_libc(done, self.len - done);
            if done > 0 && !self.is_still_here() {
                *errno = before;
                return Ok((done as isize, seen));
            }
            done += more;
            if done < self.len && self.uses_position {
                file::seek_by(self.fd, done as isize - self.len as isize);
            }
        }
        if done == self.len && done < self.asked {
            done += self.read_grown();
        }
        if done == 0 && answer < 0 {
            return Ok((answer, seen));
        }
        *errno = before; // an answer is no error
        Ok((done as isize, seen))
    }

    /// Reads bytes by which the file may have grown since its size was read; the kernel's answer shows
    /// the end. Returns their number.
    fn read_grown(&self) -> usize {
        let more = self.read_by_libc(self.len, self.asked - self.len).0;
        self.went_on_alone.store(more > 0, Ordering::Relaxed);
        if more == 0 || !self.is_still_here() {
            return 0;
        }
        if !self.uses_position {
            return more;
        }
        // Claimed if no other thread or process has read it meanwhile.
        let end = self.start.load(Ordering::Relaxed) + self.len + more;
        if file::seek_by(self.fd, more as isize) == end as isize {
            return more;
        }
        file::seek_by(self.fd, -(more as isize));
        0
    }

    fn claim_position(&self) {
        let end = file::seek_by(self.fd, self.len as isize);
        if !self.is_still_here() {
            file::seek_by(self.fd, -(self.len as isize));
            return;
        }
        if let Some(start) = usize::try_from(end).ok().and_then(|end| end.checked_sub(self.len)) {
            self.start.store(start, Ordering::Relaxed);
        }
    }
}
