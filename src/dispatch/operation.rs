//! What can be shared, as deciding and learning see it: memory that is copied, filled or compared
//! (`Task`), and transfers between processes.

use crate::backend::Refused;
use crate::backend::threads::remote::{self, Transfer, TransferCall};
use crate::backend::threads::task::{Task, Work};
use crate::backend::threads::{self, Seen};
use crate::plan::{self, PAGE};
use crate::stats::Fallback;

/// By whose past an operation goes: what a byte costs differs between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Copies,
    Fills,
    Compares,
    /// Comparisons where the one before has found a difference.
    Differing,
    Transfers,
}

impl Kind {
    pub const ALL: [Kind; 5] =
        [Kind::Copies, Kind::Fills, Kind::Compares, Kind::Differing, Kind::Transfers];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Copies => "copies",
            Kind::Fills => "fills",
            Kind::Compares => "compares",
            Kind::Differing => "compares that differ",
            Kind::Transfers => "transfers between processes",
        }
    }
}

/// One large call. Who has it done promises what the program has promised to the function.
pub trait Operation {
    /// So many bytes at least the caller does alone before others are called.
    const FIRST: usize = 0;

    fn kind(&self) -> Kind;
    fn len(&self) -> usize;

    /// Whether the result is the same in whatever order the bytes are done.
    fn is_in_any_order(&self) -> bool;

    /// Destination and source of a copy within this process, which any engine can make.
    fn as_copy(&self) -> Option<(usize, usize)> {
        None
    }

    /// The memory that is written whole, if it is, and may never have been.
    fn written(&self) -> Option<usize> {
        None
    }

    /// Does `len` bytes alone, by libc. Or why nothing else should be done by others: then all
    /// is left to `alone`, again.
    ///
    /// # Safety
    /// See `Operation`.
    unsafe fn begin(&self, from: usize, len: usize) -> Result<(), Fallback>;

    /// Does the rest together with workers. After a refusal nothing of it is done.
    ///
    /// # Safety
    /// See `Operation`.
    unsafe fn share(&self, from: usize, how: &threads::Options) -> Result<(isize, Seen), Refused>;

    /// Does the rest by libc.
    ///
    /// # Safety
    /// See `Operation`.
    unsafe fn alone(&self, from: usize, fresh: bool) -> isize;

    /// Whether such an answer means that all bytes were done: only then the time tells something.
    fn is_whole(&self, answer: isize) -> bool;

    /// How many bytes are said to be done.
    fn bytes(&self, _answer: isize) -> usize {
        self.len()
    }
}

impl Operation for Task {
    fn kind(&self) -> Kind {
        match self.work {
            Work::Copy => Kind::Copies,
            Work::Fill => Kind::Fills,
            Work::Compare(_) => Kind::Compares,
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn is_in_any_order(&self) -> bool {
        let ends = |start: usize| start.checked_add(self.len).is_some();
        match self.work {
            Work::Copy => !plan::overlaps(self.dst, self.src, self.len),
            Work::Fill => ends(self.dst),
            Work::Compare(_) => ends(self.dst) && ends(self.src),
        }
    }

    fn as_copy(&self) -> Option<(usize, usize)> {
        (self.work == Work::Copy).then_some((self.dst, self.src))
    }

    fn written(&self) -> Option<usize> {
        matches!(self.work, Work::Copy | Work::Fill).then_some(self.dst)
    }

    unsafe fn begin(&self, from: usize, len: usize) -> Result<(), Fallback> {
        // SAFETY: part of the caller's ranges.
        match unsafe { self.part(from, len).alone() } {
            0 => Ok(()),
            _ => Err(Fallback::Early),
        }
    }

    unsafe fn share(&self, from: usize, how: &threads::Options) -> Result<(isize, Seen), Refused> {
        // SAFETY: part of the caller's ranges.
        unsafe { threads::share(&self.part(from, self.len - from), how) }
    }

    unsafe fn alone(&self, from: usize, fresh: bool) -> isize {
        let rest = self.part(from, self.len - from);
        // SAFETY: part of the caller's ranges.
        unsafe {
            if !fresh {
                return rest.alone();
            }
            rest.alone_into_fresh();
        }
        0
    }

    fn is_whole(&self, answer: isize) -> bool {
        answer == 0
    }
}

/// The answer is libc's, and so is errno.
impl Operation for (&TransferCall, Transfer<'_>) {
    /// A worker may have rights that this thread has not.
    const FIRST: usize = PAGE;

    fn kind(&self) -> Kind {
        Kind::Transfers
    }

    fn len(&self) -> usize {
        self.1.total()
    }

    fn is_in_any_order(&self) -> bool {
        self.1.is_in_any_order()
    }

    unsafe fn begin(&self, from: usize, len: usize) -> Result<(), Fallback> {
        // What may not be done, or not whole, is the kernel's to answer.
        if self.1.move_bytes(from, len) == len { Ok(()) } else { Err(Fallback::Refused) }
    }

    unsafe fn share(&self, from: usize, how: &threads::Options) -> Result<(isize, Seen), Refused> {
        let (done, seen) = self.1.share(from, how.workers, how.wait)?;
        Ok((done as isize, seen))
    }

    unsafe fn alone(&self, _from: usize, _fresh: bool) -> isize {
        // SAFETY: the program's own call.
        unsafe { remote::pass_on(self.0) }
    }

    fn is_whole(&self, answer: isize) -> bool {
        answer == self.len() as isize
    }

    fn bytes(&self, answer: isize) -> usize {
        usize::try_from(answer).unwrap_or(0)
    }
}
