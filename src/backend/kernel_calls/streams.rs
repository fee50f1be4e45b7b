//! One large fread, of which workers read a part.
//!
//! The C library keeps a buffer for each stream, which only its public functions may touch. libc
//! reads the first and the last bytes of the request, so that buffer, position, end of file and
//! errors remain its own:
//!
//! ```text
//! libc's fread: what lies in the buffer or was pushed back, and a block -> the buffer is empty
//! shared reads from there on, past the buffer
//! lseek behind them, or fseeko where libc has noted the position
//! libc's fread: the rest, one byte at least
//! ```
//!
//! Programs that use the descriptor beside the stream have to flush and seek (POSIX, "Interaction of
//! File Descriptors and Standard I/O Streams"), but with an empty buffer libc simply reads on from the
//! descriptor's position. So a stream is left to libc where that is not the one that libc has noted.

use super::reads::FileRead;
use super::segments::{Segment, bytes_of};
use crate::backend::threads::{Seen, ShareOptions};
use crate::backend::{Refused, libc as original};
use crate::functions::Op;
use crate::os::file;
use crate::os::lookup::{self, Function};
use crate::os::sys::NoFilter;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

/// Arguments of the program's call.
pub struct StreamCall {
    pub op: Op,
    pub to: usize,
    pub size: usize,
    pub count: usize,
    pub stream: usize,
    /// Return address of the caller; 0: not known.
    pub site: usize,
}

/// Least number of bytes that libc reads at once.
const BLOCK: usize = 4096;

const FUNCTIONS: [Function; 14] = [
    Function::flockfile,
    Function::funlockfile,
    Function::fileno,
    Function::fwide,
    Function::feof_unlocked,
    Function::ferror_unlocked,
    Function::__freading,
    Function::__fwriting,
    Function::__fbufsize,
    Function::ftello64,
    Function::fseeko64,
    Function::_pthread_cleanup_push,
    Function::_pthread_cleanup_pop,
    Function::pthread_testcancel,
];

fn are_all_there() -> bool {
    FUNCTIONS.into_iter().all(|function| !lookup::found(function).is_null())
}

/// Calls a function of `FUNCTIONS`, all of which are there, with a stream and up to two more
/// arguments.
unsafe fn ask(function: Function, stream: usize, second: usize, third: usize) -> isize {
    type StdioFn = unsafe extern "C" fn(usize, usize, usize) -> isize;
    // SAFETY: a function of these arguments, or of the first of them.
    unsafe {
        let found = lookup::found(function);
        core::mem::transmute::<*mut c_void, StdioFn>(found)(stream, second, third)
    }
}

/// Like `ask`, for functions that return an int: the upper 32 bits of rax are undefined.
unsafe fn ask_int(function: Function, stream: usize, second: usize) -> i32 {
    // SAFETY: a function of `FUNCTIONS`, which is there, and a stream of the program's.
    unsafe { ask(function, stream, second, 0) as i32 }
}

/// Ends the calling thread if it was cancelled, as every read does. False: not known, so the read
/// is left to libc.
pub fn test_cancel() -> bool {
    let found = lookup::found(Function::pthread_testcancel);
    // SAFETY: null, which is `None`, or a function without arguments.
    let function: Option<unsafe extern "C" fn()> = unsafe { core::mem::transmute(found) };
    // SAFETY: pthread_testcancel has no arguments, and may be called by any thread.
    function.inspect(|function| unsafe { function() }).is_some()
}

/// glibc's struct _pthread_cleanup_buffer.
type CleanupBuffer = MaybeUninit<[usize; 4]>;

/// Guard that locks the stream. A thread that is cancelled in a read of libc's, or a handler that jumps
/// out of it, does not drop the guard: then the C library unlocks the stream (pthread_cleanup_push).
struct Locked<'a> {
    buffer: &'a mut CleanupBuffer,
}

impl<'a> Locked<'a> {
    /// `None`: the program has called a function that does not lock.
    unsafe fn new(call: &StreamCall, buffer: &'a mut CleanupBuffer) -> Option<Self> {
        if !matches!(call.op, Op::fread | Op::fread_chk) {
            return None;
        }
        let unlock = lookup::found(Function::funlockfile) as usize;
        // SAFETY: the program's stream; the C library links the buffer into a list of this thread until
        // `drop`, and unlinks it when the stack is unwound.
        unsafe {
            ask(Function::flockfile, call.stream, 0, 0);
            ask(Function::_pthread_cleanup_push, buffer.as_mut_ptr() as usize, unlock, call.stream);
        }
        Some(Self { buffer })
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        const EXECUTE: usize = 1;
        // SAFETY: the last that was pushed, by this thread; it unlocks the stream.
        unsafe {
            ask(Function::_pthread_cleanup_pop, self.buffer.as_mut_ptr() as usize, EXECUTE, 0)
        };
    }
}

/// The part of an fread that can be shared.
pub struct StreamRead<'a> {
    stream: usize,
    fd: usize,
    to: usize,
    start: usize,
    /// Unit of libc's reads, and so of the descriptor's position.
    block: usize,
    read: FileRead<'a>,
    /// Set when libc's fread has found the end of the file, or an error.
    ended: AtomicBool,
}

impl StreamCall {
    /// Returns the bytes of the request. `None`: more than there are addresses.
    pub fn bytes(&self) -> Option<usize> {
        self.size.checked_mul(self.count)
    }

    /// Passes the call on as the program has made it.
    ///
    /// # Safety
    /// The program's own call.
    pub unsafe fn pass_on(&self) -> usize {
        let op = match self.op {
            Op::fread | Op::fread_chk => Op::fread,
            _ => Op::fread_unlocked,
        };
        // SAFETY: libc's function of these arguments.
        unsafe { fread(op, self.to, self.size, self.count, self.stream) }
    }

    /// Does the call; `dispatch` does the part that can be shared, of `least` bytes at least, and
    /// returns how many bytes it has done.
    ///
    /// # Safety
    /// The program's own call.
    pub unsafe fn carry_out(
        &self,
        least: usize,
        dispatch: impl FnOnce(&StreamRead<'_>) -> usize,
    ) -> usize {
        let Some((total, allowed)) = self.bytes().zip(NoFilter::look()).filter(|_| are_all_there())
        else {
            // SAFETY: the program's own call, with its own arguments.
            return unsafe { self.pass_on() };
        };
        test_cancel();
        // SAFETY: the program's own call: its stream is open, and its buffer writable.
        unsafe {
            let mut buffer = CleanupBuffer::uninit();
            let locked = Locked::new(self, &mut buffer);
            let done = self.carry_out_locked(total, least, allowed, dispatch);
            drop(locked);
            match done {
                Some(done) if done == total => self.count,
                Some(done) => done / self.size,
                None => self.pass_on(),
            }
        }
    }

    /// Returns how many bytes were read; `None`: none of it can be shared, and libc reads all.
    unsafe fn carry_out_locked(
        &self,
        total: usize,
        least: usize,
        allowed: NoFilter,
        dispatch: impl FnOnce(&StreamRead<'_>) -> usize,
    ) -> Option<usize> {
        // SAFETY: the program's buffer, as far as it has asked for, and its stream.
        let by_libc = |from: usize, len: usize| unsafe {
            fread(Op::fread_unlocked, self.to + from, 1, len, self.stream)
        };
        // SAFETY: the address of this thread's errno; the program's stream.
        let (fd, position, buffered) = unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            let found = self.position();
            *errno = before;
            found?
        };
        // libc reads multiples of its buffer's size directly, so the buffer stays empty; 0: there is no buffer
        // yet.
        // SAFETY: the program's stream.
        let buffer_size = unsafe { ask(Function::__fbufsize, self.stream, 0, 0) as usize };
        let block = BLOCK.next_multiple_of(buffer_size.max(1));
        let first = buffered.saturating_add(block);
        let is_short = first.saturating_add(block).saturating_add(least) >= total;
        if is_short || buffered > buffer_size {
            return None;
        }
        let start = position + first;
        let rest = [Segment { base: self.to + first, len: total - first }];
        bytes_of(&rest)?; // where the kernel refuses the buffer, libc fails before the first byte
        let read = FileRead::at(fd, start, &rest, total - first, allowed)?;
        let len = read.len().min(total - first - 1) / block * block;
        if len < least.max(2 * block) {
            return None;
        }
        let done = by_libc(0, first);
        if done < first {
            return Some(done);
        }
        // A buffer that the stream had before should be empty now, and the descriptor at `start`: if it is
        // elsewhere, libc has just filled the buffer, or read farther. A new buffer may hold bytes.
        let is_behind = buffer_size == 0 || file::seek_by(fd, 0) == start as isize;
        // SAFETY: the program's stream.
        let is_where_expected = is_behind
            && unsafe {
                ask_int(Function::__freading, self.stream, 0) != 0
                    && ask(Function::ftello64, self.stream, 0, 0) == start as isize
            };
        if !is_where_expected {
            return Some(first + by_libc(first, total - first));
        }
        let shared = StreamRead {
            stream: self.stream,
            fd,
            to: self.to + first,
            start,
            block,
            read: read.shortened(len),
            ended: AtomicBool::new(false),
        };
        let done = first + dispatch(&shared);
        if shared.ended.load(Ordering::Relaxed) {
            return Some(done);
        }
        Some(done + by_libc(done, total - done))
    }

    /// Descriptor, position and bytes in the buffer of a stream that is only read, from a file.
    unsafe fn position(&self) -> Option<(usize, usize, usize)> {
        let stream = self.stream;
        // SAFETY: the program's stream.
        unsafe {
            if ask_int(Function::fwide, stream, 0) > 0
                || ask_int(Function::__fwriting, stream, 0) != 0
                || ask_int(Function::feof_unlocked, stream, 0) != 0
                || ask_int(Function::ferror_unlocked, stream, 0) != 0
            {
                return None;
            }
            let fd = usize::try_from(ask_int(Function::fileno, stream, 0)).ok()?;
            let position = usize::try_from(ask(Function::ftello64, stream, 0, 0)).ok()?;
            let behind_buffer = usize::try_from(file::seek_by(fd, 0)).ok()?;
            Some((fd, position, behind_buffer.checked_sub(position)?))
        }
    }
}

unsafe fn fread(op: Op, to: usize, size: usize, count: usize, stream: usize) -> usize {
    type FreadFn = unsafe extern "C" fn(usize, usize, usize, usize) -> usize;
    // SAFETY: libc's function of these arguments.
    unsafe {
        let next = original::next(op);
        core::mem::transmute::<*mut c_void, FreadFn>(next)(to, size, count, stream)
    }
}

impl<'a> StreamRead<'a> {
    pub fn file(&self) -> &FileRead<'a> {
        &self.read
    }

    /// Shares the bytes from number `from` on, which the caller has begun. Returns how many are
    /// done; the stream goes on behind them.
    pub fn share(&self, from: usize, how: &ShareOptions) -> Result<(usize, Seen), Refused> {
        let (done, seen) = self.read.share_cached(from, how)?;
        let done = done / self.block * self.block;
        let target = self.start + done;
        let is_there = |position: isize| position == target as isize;
        // fseeko would note a position that misleads ftell when the program moves the descriptor.
        // SAFETY: the program's stream.
        let moved = unsafe {
            is_there(file::seek_by(self.fd, done as isize))
                && is_there(ask(Function::ftello64, self.stream, 0, 0))
                || ask_int(Function::fseeko64, self.stream, target) == 0
        };
        Ok((if moved { done } else { 0 }, seen))
    }

    /// Reads all of it by libc. Returns how many bytes.
    pub fn by_libc(&self) -> usize {
        // SAFETY: the program's buffer and stream.
        let done = unsafe { fread(Op::fread_unlocked, self.to, 1, self.read.len(), self.stream) };
        self.ended.store(done < self.read.len(), Ordering::Relaxed);
        done
    }
}
