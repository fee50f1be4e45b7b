//! The kernel helper: its file, from opening to forgetting, and the calls it knows.
//!
//! No decisions about copies here. A descriptor is the program's as much as ours: the program may
//! close it and reuse its number for another file, whose answer to our calls is then an error like
//! any other.

use super::abi;
use crate::os::{brief_file, sys};
use crate::plan::PAGE;
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use zerocopy::FromZeros;

pub const PATH: &CStr = c"/dev/adma";

/// Counters of the module for all processes, since it was loaded. Others are hidden because they
/// would reveal copies of other users.
const COUNTED: [(&str, &CStr); 2] = [
    ("copies", c"/sys/class/misc/adma/stats/copies"),
    ("errors", c"/sys/class/misc/adma/stats/errors"),
];

/// Reads the module's counters, by name; `None` where they cannot be read.
pub fn counted(allowed: sys::NoNewFilter) -> Option<[(&'static str, u64); COUNTED.len()]> {
    let mut found = COUNTED.map(|(name, _)| (name, 0));
    for ((_, value), (_, path)) in found.iter_mut().zip(COUNTED) {
        let mut buffer = [0; 32];
        let text = core::str::from_utf8(brief_file::read(path, &mut buffer, allowed)?).ok()?;
        *value = text.trim().parse().ok()?;
    }
    Some(found)
}

/// Lowest descriptor numbers to ask for; the second is for a process with a low limit of descriptors.
const LOWEST_NUMBERS: [i32; 2] = [sys::LEAST_KEPT, 60];

#[derive(FromZeros)]
pub struct Helper {
    /// Descriptor; 0: not open.
    fd: AtomicI32,
    /// Device of the descriptor when it was opened.
    device: AtomicU64,
    #[cfg(test)]
    fake: core::sync::atomic::AtomicPtr<super::fake::Kernel>,
}

#[cfg(test)]
impl Helper {
    pub fn set_fake(&self, fake: &'static super::fake::Kernel) {
        self.fake.store((&raw const *fake).cast_mut(), Relaxed);
    }

    pub fn fake(&self) -> Option<&'static super::fake::Kernel> {
        // SAFETY: null, or a fake that `set_fake` has stored, which is never freed (`'static`).
        unsafe { self.fake.load(Relaxed).as_ref() }
    }
}

impl Helper {
    /// Opens the file and asks what it offers; returns an errno on failure.
    pub fn open(&self, allowed: sys::NoNewFilter) -> Result<abi::Info, i32> {
        #[cfg(test)]
        if self.fake().is_some() {
            return self.info();
        }
        let low = errno_or_value(sys::open(PATH, allowed))?;
        let high = LOWEST_NUMBERS
            .iter()
            .map(|&lowest| errno_or_value(sys::duplicate(low, lowest)))
            .find(|answer| *answer != Err(libc::EINVAL));
        sys::close(low);
        let fd = high.unwrap_or(Err(libc::EMFILE))?;
        self.fd.store(fd, Relaxed);
        let device = sys::device_of(fd).ok_or(libc::ENOTTY);
        let info = device.and_then(|device| {
            self.device.store(device, Relaxed);
            self.info()
        });
        if info.is_err() {
            self.fd.store(0, Relaxed);
            sys::close(fd);
        }
        info
    }

    fn ask(&self) -> Result<abi::Info, i32> {
        let mut info = abi::Info { size: size_of::<abi::Info>() as u32, ..Default::default() };
        match self.call(abi::IOC_INFO, &raw mut info as usize) {
            0 => Ok(info),
            errno => Err(errno),
        }
    }

    /// Returns the counters of this file, if it is still open.
    pub fn counts(&self) -> Option<abi::Info> {
        self.ask().ok()
    }

    /// Returns what the helper offers, if the version and the numbers are valid.
    fn info(&self) -> Result<abi::Info, i32> {
        let info = self.ask()?;
        let sound = info.abi == abi::ABI_VERSION
            && (1..=abi::MAX_CHANNELS as u32).contains(&info.channels)
            && info.src_align.is_power_of_two()
            && info.src_align as usize <= PAGE;
        match info.usable {
            _ if !sound => Err(libc::EPROTO),
            0 => Err(libc::ENODEV),
            _ => Ok(info),
        }
    }

    /// Maps the words of a channel. Returns their address; 0: not possible.
    pub fn words(&self, channel: usize) -> usize {
        #[cfg(test)]
        if let Some(fake) = self.fake() {
            return fake.words(channel);
        }
        let offset = abi::words_offset(channel, PAGE);
        usize::try_from(sys::map_page(self.fd.load(Relaxed), offset)).unwrap_or(0)
    }

    /// Sets how many pages stay pinned. Returns 0 or an errno.
    pub fn keep(&self, keep_pages: u64) -> i32 {
        let (size, flags) = (size_of::<abi::Info>() as u32, abi::INFO_KEEP);
        let mut info = abi::Info { size, flags, keep_pages, ..Default::default() };
        self.call(abi::IOC_INFO, &raw mut info as usize)
    }

    /// Starts a request. Returns 0 or an errno; `request` holds the part that was begun, also after an error.
    pub fn submit(&self, request: &mut abi::Submit) -> i32 {
        self.call(abi::IOC_SUBMIT, &raw mut *request as usize)
    }

    /// Waits for a request inside the kernel.
    pub fn wait(&self, wait: &mut abi::Wait) -> i32 {
        self.call(abi::IOC_WAIT, &raw mut *wait as usize)
    }

    /// Makes a port for what this process exports; its descriptor is closed by exec.
    pub fn port(&self) -> Result<i32, i32> {
        let fd = self.fd.load(Relaxed);
        // Another file's answer may be a number that is no descriptor of ours.
        if sys::device_of(fd) != Some(self.device.load(Relaxed)) {
            return Err(libc::EPROTO);
        }
        errno_or_value(ioctl(fd, abi::IOC_PORT, 0))
    }

    /// Closes the parent's file in the child of a fork, if the number still refers to a file of the
    /// same device.
    pub fn forget_after_fork(&self) {
        let fd = self.fd.swap(0, Relaxed);
        if fd != 0 && sys::device_of(fd) == Some(self.device.load(Relaxed)) {
            sys::close(fd);
        }
    }

    /// Calls the helper; `argument` is the address of the structure that belongs to `request`.
    fn call(&self, request: usize, argument: usize) -> i32 {
        #[cfg(test)]
        if let Some(fake) = self.fake() {
            return fake.ioctl(request, argument);
        }
        call(self.fd.load(Relaxed), request, argument)
    }
}

/// Makes an ioctl; `argument` is the address of the structure for `request`, or 0 if it has none.
fn ioctl(fd: i32, request: usize, argument: usize) -> sys::SysResult {
    // SAFETY: the kernel reads and writes the structure, which states its own size, and the lists
    // that it names. The thread that copies keeps the ranges that the engine writes.
    unsafe { sys::syscall(libc::SYS_ioctl, [fd as usize, request, argument, 0, 0, 0]) }
}

fn call(fd: i32, request: usize, argument: usize) -> i32 {
    match ioctl(fd, request, argument) {
        // The helper returns no such value: the number stands for another file.
        1.. => libc::EPROTO,
        errno => -errno as i32,
    }
}

/// Lets processes that have the port reach a buffer: `flags` are `abi::EXPORT_*`. Returns the number
/// of the export, or an errno.
pub fn export(port: i32, addr: usize, len: usize, flags: u32) -> Result<u64, i32> {
    let (size, addr, len) = (size_of::<abi::Export>() as u32, addr as u64, len as u64);
    let mut export = abi::Export { size, flags, addr, len, ..Default::default() };
    match call(port, abi::IOC_EXPORT, &raw mut export as usize) {
        0 => Ok(export.id),
        errno => Err(errno),
    }
}

/// Revokes an export, and waits until no process uses the buffer any more. Transfers end by
/// themselves, so it never gives up.
pub fn unexport(port: i32, id: u64) {
    const ONE_SECOND: u64 = 1_000_000_000;
    let size = size_of::<abi::Wait>() as u32;
    let mut unexport = abi::Wait { size, id, timeout_ns: ONE_SECOND, ..Default::default() };
    while let libc::EINTR | libc::ETIMEDOUT =
        call(port, abi::IOC_UNEXPORT, &raw mut unexport as usize)
    {}
}

fn errno_or_value(answer: sys::SysResult) -> Result<i32, i32> {
    if answer < 0 { Err(-answer as i32) } else { Ok(answer as i32) }
}
