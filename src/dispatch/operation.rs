//! Operations that can be shared, as `decide` and `learn_from` see them: memory that is copied,
//! filled or compared (`Task`), transfers between processes, and reads of files. A copy to or from a
//! card is one too, see `card`.

use crate::backend::Refused;
use crate::backend::kernel_calls::reads::{FileRead, ReadCall};
use crate::backend::kernel_calls::remote::{self, Transfer, TransferCall};
use crate::backend::kernel_calls::streams::StreamRead;
use crate::backend::threads::task::{Task, Work};
use crate::backend::threads::{self, Seen};
use crate::os::huge_pages::Region;
use crate::plan::{self, PAGE};
use crate::stats::Fallback;
use adma_shared::samples::KINDS;

/// Kind of an operation. Each has a learner of its own, because its bytes have another cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Copies,
    Fills,
    Compares,
    /// Comparisons where the one before has found a difference.
    Differing,
    Transfers,
    /// Reads of files.
    Reads,
    /// Copies to the memory of a graphics card, and from it.
    ToCard,
    FromCard,
}

impl Kind {
    pub const ALL: [Kind; KINDS] = [
        Kind::Copies,
        Kind::Fills,
        Kind::Compares,
        Kind::Differing,
        Kind::Transfers,
        Kind::Reads,
        Kind::ToCard,
        Kind::FromCard,
    ];

    /// Returns whether the kernel copies, by system calls that cannot be taken back from a worker.
    pub fn is_by_kernel(self) -> bool {
        matches!(self, Kind::Transfers | Kind::Reads)
    }

    /// Returns whether the program's time after a call counts; calls of the kernel are judged without it.
    pub fn counts_afterwards(self) -> bool {
        matches!(self, Kind::Copies | Kind::Fills)
    }

    /// Returns whether the time of a part stands for the whole: a card's short copy is mostly waiting.
    pub fn is_timed_by_parts(self) -> bool {
        !matches!(self, Kind::ToCard | Kind::FromCard)
    }

    /// Returns the size below which most calls that libc performs pass without a decision. Looking
    /// at a file and its buffer takes seven system calls, a fiftieth of a read of 1 MiB.
    pub fn passes_below(self) -> usize {
        match self {
            Kind::Copies | Kind::Fills => 1 << 20,
            Kind::Reads => 4 << 20,
            Kind::Compares | Kind::Differing | Kind::Transfers | Kind::ToCard | Kind::FromCard => 0,
        }
    }

    /// Returns the number of a kind that reports list by itself, see `names_apart`.
    pub fn apart(self) -> Option<usize> {
        match self {
            Kind::Reads => Some(0),
            Kind::ToCard => Some(1),
            Kind::FromCard => Some(2),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Copies => "copies",
            Kind::Fills => "fills",
            Kind::Compares => "compares",
            Kind::Differing => "compares that differ",
            Kind::Transfers => "transfers between processes",
            Kind::Reads => "reads of files",
            Kind::ToCard => "copies to a card",
            Kind::FromCard => "copies from a card",
        }
    }
}

/// One large call. Callers of its unsafe functions promise what the program has promised to the
/// function that it called.
pub trait Operation {
    /// Least bytes that the caller does alone before workers are called.
    const FIRST: usize = 0;

    fn kind(&self) -> Kind;
    fn len(&self) -> usize;

    /// Returns whether the bytes may be done in any order.
    fn is_in_any_order(&self) -> bool;

    /// Returns the task, if it is work on memory of this process.
    fn as_task(&self) -> Option<&Task> {
        None
    }

    /// Returns destination and source of a copy within this process, which any engine can make.
    fn as_copy(&self) -> Option<(usize, usize)> {
        None
    }

    /// Returns the address of memory that is written whole, and may be fresh; `None`: there is none.
    fn written(&self) -> Option<usize> {
        None
    }

    /// Does `len` bytes alone, by libc. An error says why no worker should do any of the rest:
    /// then all of it, these bytes too, is left to `by_libc`.
    ///
    /// # Safety
    /// See `Operation`.
    unsafe fn begin(&self, from: usize, len: usize) -> Result<(), Fallback>;

    /// Does the rest together with workers. After a refusal nothing of the rest has been done.
    ///
    /// # Safety
    /// See `Operation`.
    unsafe fn share(
        &self,
        from: usize,
        how: &threads::ShareOptions,
    ) -> Result<(isize, Seen), Refused>;

    /// Does the rest by libc: into fresh memory, if `fresh`; with huge pages, if `huge` is their region.
    ///
    /// # Safety
    /// See `Operation`.
    unsafe fn by_libc(&self, from: usize, fresh: bool, huge: Option<Region>) -> isize;

    /// Returns whether this answer means that all bytes were done: only then is its time a
    /// measurement.
    fn is_whole(&self, answer: isize) -> bool;

    /// Returns how many bytes were done, by this answer.
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

    fn as_task(&self) -> Option<&Task> {
        Some(self)
    }

    fn as_copy(&self) -> Option<(usize, usize)> {
        (self.work == Work::Copy).then_some((self.dst, self.src))
    }

    fn written(&self) -> Option<usize> {
        matches!(self.work, Work::Copy | Work::Fill).then_some(self.dst)
    }

    unsafe fn begin(&self, from: usize, len: usize) -> Result<(), Fallback> {
        // SAFETY: the program has called the task's function on ranges that include this part.
        match unsafe { self.part(from, len).call_libc() } {
            0 => Ok(()),
            _ => Err(Fallback::Early),
        }
    }

    unsafe fn share(
        &self,
        from: usize,
        how: &threads::ShareOptions,
    ) -> Result<(isize, Seen), Refused> {
        // SAFETY: the program has called the task's function on ranges that include this part.
        unsafe { threads::share(&self.part(from, self.len - from), how) }
    }

    unsafe fn by_libc(&self, from: usize, fresh: bool, huge: Option<Region>) -> isize {
        let rest = self.part(from, self.len - from);
        // SAFETY: the program has called the task's function on ranges that include this part.
        unsafe {
            if !fresh {
                return rest.call_libc();
            }
            rest.alone_into_fresh(huge);
        }
        0
    }

    fn is_whole(&self, answer: isize) -> bool {
        answer == 0
    }
}

/// A transfer between processes; answer and errno are libc's.
impl Operation for (&TransferCall, Transfer<'_>) {
    /// This thread moves the first page: workers may have rights that it lacks, so the kernel
    /// checks its rights first.
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
        // Errors and partial transfers are left to the kernel to report.
        if self.1.move_bytes(from, len) == len { Ok(()) } else { Err(Fallback::Refused) }
    }

    unsafe fn share(
        &self,
        from: usize,
        how: &threads::ShareOptions,
    ) -> Result<(isize, Seen), Refused> {
        let (done, seen) = self.1.share(from, how.workers)?;
        Ok((done as isize, seen))
    }

    unsafe fn by_libc(&self, _: usize, _: bool, _: Option<Region>) -> isize {
        // SAFETY: the program has made this call, with these arguments.
        unsafe { remote::pass_on(self.0) }
    }

    fn is_whole(&self, answer: isize) -> bool {
        answer == self.len() as isize
    }

    fn bytes(&self, answer: isize) -> usize {
        usize::try_from(answer).unwrap_or(0)
    }
}

/// Bytes that the caller reads first: a file that is not cached is not shared.
const FIRST_READ: usize = 16 * PAGE;

/// A read of a file: by a call that reads descriptors, or the part of an fread that can be shared.
pub enum Read<'a, 'b> {
    Call(&'a ReadCall, FileRead<'b>),
    Stream(&'a StreamRead<'b>),
}

impl<'b> Read<'_, 'b> {
    fn file(&self) -> &FileRead<'b> {
        match self {
            Self::Call(_, read) => read,
            Self::Stream(read) => read.file(),
        }
    }
}

/// The answer and errno are libc's; the answer for a stream is the number of bytes.
impl Operation for Read<'_, '_> {
    const FIRST: usize = FIRST_READ;

    fn kind(&self) -> Kind {
        Kind::Reads
    }

    fn len(&self) -> usize {
        self.file().len()
    }

    fn is_in_any_order(&self) -> bool {
        true
    }

    fn written(&self) -> Option<usize> {
        self.file().buffer()
    }

    unsafe fn begin(&self, from: usize, len: usize) -> Result<(), Fallback> {
        let done = self.file().read_cached(from, len);
        if done == len { Ok(()) } else { Err(Fallback::NotCached) }
    }

    unsafe fn share(
        &self,
        from: usize,
        how: &threads::ShareOptions,
    ) -> Result<(isize, Seen), Refused> {
        match self {
            Self::Call(_, read) => read.share(from, how),
            Self::Stream(read) => read.share(from, how).map(|(done, seen)| (done as isize, seen)),
        }
    }

    unsafe fn by_libc(&self, from: usize, _: bool, huge: Option<Region>) -> isize {
        if let Some((region, to)) = huge.zip(self.written()) {
            region.make_pages(to + from, self.len() - from);
        }
        match self {
            // SAFETY: the program has made this call, with these arguments.
            Self::Call(call, _) => unsafe { call.pass_on() },
            Self::Stream(read) => read.by_libc() as isize,
        }
    }

    fn is_whole(&self, answer: isize) -> bool {
        match self {
            Self::Call(_, read) => answer >= self.len() as isize && !read.went_on_alone(),
            Self::Stream(_) => answer == self.len() as isize,
        }
    }

    fn bytes(&self, answer: isize) -> usize {
        usize::try_from(answer).unwrap_or(0)
    }
}
