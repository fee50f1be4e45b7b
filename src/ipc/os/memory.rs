//! Memory that two processes map: made, sealed, found and mapped.

use super::{Fd, Result, call, fd};
use crate::ipc::blocking::{SEALERS, User};
use crate::os::sys;
use crate::plan::PAGE;
use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;

/// Nobody can make it smaller or larger.
pub const SIZE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Nor map it anew to write, nor take pages away; nor change any of this. Who has it mapped keeps
/// that.
const FINAL_SEALS: i32 = SIZE_SEALS | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;

/// Since Linux 6.3; a system may demand it.
const MFD_NOEXEC_SEAL: u32 = 8;

/// Fresh memory for two processes, all zeros, under a name for /proc.
pub fn sealed_memory(name: &CStr, size: usize, seals: i32) -> Result<Fd> {
    // Asked for more than RLIMIT_FSIZE, the kernel sends SIGXFSZ as well.
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    let (what, at) = (libc::RLIMIT_FSIZE as usize, &raw mut limit as usize);
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the kernel fills the limits, or leaves them alone; a terminated name; the other
    // calls take no memory.
    unsafe {
        let _ = call(libc::SYS_prlimit64, [0, what, 0, at]);
        if size > limit.rlim_cur as usize {
            return Err(libc::EFBIG);
        }
        let create =
            |flags| fd(call(libc::SYS_memfd_create, [name.as_ptr() as usize, flags as usize]));
        let memory = match create(flags | MFD_NOEXEC_SEAL) {
            Err(libc::EINVAL) => create(flags)?,
            memory => memory?,
        };
        call(libc::SYS_ftruncate, [memory.raw() as usize, size])?;
        add_seals(&memory, seals)?;
        Ok(memory)
    }
}

fn add_seals(memory: &Fd, seals: i32) -> Result<usize> {
    let (number, command) = (memory.raw() as usize, libc::F_ADD_SEALS as usize);
    // SAFETY: no memory of ours.
    unsafe { call(libc::SYS_fcntl, [number, command, seals as usize]) }
}

/// The seals of memory, and nothing is asked of what is not: a file may be such that it never
/// answers. An error: it is something else.
pub(super) fn seals(fd: i32) -> Result<i32> {
    // SAFETY: no memory of ours.
    unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_GET_SEALS as usize]) }
        .map(|seals| seals as i32)
}

/// When both have mapped it: from now on its pages stay where they are. The other side may have
/// been faster, and nothing is added then. Waits for the memory's lock.
pub fn seal_for_good(memory: &Fd) -> Result<()> {
    let added = add_seals(memory, FINAL_SEALS);
    match seals(memory.raw())? & FINAL_SEALS {
        FINAL_SEALS => Ok(()),
        _ => Err(added.err().unwrap_or(libc::EPROTO)),
    }
}

/// The same for memory that a user has got as well who is not our equal: it can hold its lock for as
/// long as it likes, by a write(2) of bytes that never come. So a thread does it, and is waited for
/// a second.
pub fn seal_with_stranger(memory: &Fd, user: User) -> Result<()> {
    if is_sealed_for_good(memory) {
        return Ok(());
    }
    let same = fd(Ok(sys::duplicate(memory.raw(), 0).try_into().map_err(|_| libc::EMFILE)?))?;
    let done = SEALERS.within(user, 1_000_000_000, move || seal_for_good(&same));
    done.flatten().unwrap_or(Err(libc::ETIMEDOUT))
}

/// Where the first page is missing, or the size. Of what is sealed for good none goes away any more,
/// but such as were only asked for, by fallocate(2): they count as missing. Their number would tell
/// nothing, for some may lie behind the end; and to look at one would make it, at our cost. Waits
/// for the memory's lock.
pub fn first_hole(memory: &Fd) -> Result<usize> {
    // SAFETY: no memory of ours.
    unsafe { call(libc::SYS_lseek, [memory.raw() as usize, 0, libc::SEEK_HOLE as usize]) }
}

pub fn is_sealed_for_good(memory: &Fd) -> bool {
    seals(memory.raw()).is_ok_and(|seals| seals & FINAL_SEALS == FINAL_SEALS)
}

/// What a process gets a block for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// It is our equal.
    Everything,
    Read,
    /// It is not our equal, and may write it all the same.
    Lent,
}

/// Before it is sent: nobody is to change its seals, and who is not our equal is to be sure that
/// its pages stay. Who borrows it maps it first, and then seals it.
pub fn seal_block(memory: &Fd, share: Share) -> Result<()> {
    let is_sealed = seals(memory.raw())? & FINAL_SEALS & !SIZE_SEALS != 0;
    match share {
        // Who has it already may hold its lock.
        Share::Read if is_sealed_for_good(memory) => Ok(()),
        Share::Read => seal_for_good(memory),
        Share::Lent if is_sealed => Err(libc::EBUSY),
        Share::Everything if !is_sealed => add_seals(memory, libc::F_SEAL_SEAL).map(drop),
        _ => Ok(()),
    }
}

/// Finds all pages of a mapping now; later nobody is killed for want of one. Kernels before 5.14
/// do not know how: there they are touched one by one.
///
/// # Safety
/// Mapped, to be written, with at least this size.
pub unsafe fn find_pages(at: usize, size: usize) -> Result<()> {
    loop {
        // SAFETY: the caller's promise; nothing is changed.
        match unsafe { call(libc::SYS_madvise, [at, size, libc::MADV_POPULATE_WRITE as usize]) } {
            Err(libc::EINTR | libc::EAGAIN) => {}
            Ok(_) => return Ok(()),
            Err(libc::EINVAL) => break,
            Err(_) => return Err(libc::ENOMEM),
        }
    }
    for page in (at..at + size).step_by(PAGE) {
        // SAFETY: the caller's promise.
        unsafe { (page as *const u8).read_volatile() };
    }
    Ok(())
}

/// What there is to know of memory that somebody else has made.
pub struct Sealed {
    pub size: usize,
    /// It has as many pages, wherever they are.
    pub whole: bool,
    /// And stay; it can be mapped only to read.
    pub fixed: bool,
}

/// Memory that somebody else made as `sealed_memory` makes it. From any other its maker could
/// cut pages off, and we would die of SIGBUS; also from such of huge pages, of which there may be
/// none left.
pub fn sealed_memory_of_others(memory: &Fd) -> Option<Sealed> {
    let seals = seals(memory.raw()).ok().filter(|seals| seals & SIZE_SEALS == SIZE_SEALS)?;
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    let (fd, at) = (memory.raw() as usize, system.as_mut_ptr() as usize);
    // SAFETY: the kernel fills `system`, which is read only after it has.
    let kind = unsafe { call(libc::SYS_fstatfs, [fd, at]).map(|_| system.assume_init().f_type) };
    kind.ok().filter(|kind| *kind == libc::TMPFS_MAGIC)?;
    let size = sys::stat(memory.raw(), |stat| stat.st_size as usize)?;
    let whole = sys::stat(memory.raw(), |stat| stat.st_blocks as usize >= size / 512)?;
    Some(Sealed { size, whole, fixed: seals & FINAL_SEALS == FINAL_SEALS })
}

/// Finds all its pages now: nobody will be killed later for want of one.
///
/// In steps: until Linux 6.12 a signal that comes meanwhile is the end of it, and what was
/// found is given back.
pub fn fill_with_pages(memory: &Fd, size: usize) -> Result<()> {
    const STEP: usize = 256 << 10;
    let mut from = 0;
    while from < size {
        let range = [memory.raw() as usize, 0, from, STEP.min(size - from)];
        // SAFETY: no memory of ours.
        match unsafe { call(libc::SYS_fallocate, range) } {
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => from += STEP,
        }
    }
    Ok(())
}

/// Gives the pages back of memory that is mapped to be written, whoever else has it mapped; it
/// reads as zeros from then on. It needs no descriptor: that may not be ours any more.
///
/// # Safety
/// Mapped with this size, and nobody wants what is there.
pub unsafe fn take_pages_away(at: *mut c_void, size: usize) {
    // SAFETY: the caller's promise. Pages that are locked would stay.
    unsafe {
        let _ = call(libc::SYS_munlock, [at as usize, size]);
        let _ = call(libc::SYS_madvise, [at as usize, size, libc::MADV_REMOVE as usize]);
    }
}

/// Maps memory where the kernel chooses; a child of a fork gets it, too.
pub fn map_inherited(memory: &Fd, size: usize, writable: bool) -> Result<*mut c_void> {
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let (flags, number) = (libc::MAP_SHARED as usize, memory.raw() as usize);
    // SAFETY: a fresh mapping.
    unsafe { call(libc::SYS_mmap, [0, size, protection as usize, flags, number]) }
        .map(|at| at as *mut c_void)
}

/// The same, but a child of a fork does not get it.
pub fn map_shared(memory: &Fd, size: usize, writable: bool) -> Result<*mut c_void> {
    let at = map_inherited(memory, size, writable)?;
    // SAFETY: advice about a mapping of ours.
    let _ = unsafe { call(libc::SYS_madvise, [at as usize, size, libc::MADV_DONTFORK as usize]) };
    Ok(at)
}
