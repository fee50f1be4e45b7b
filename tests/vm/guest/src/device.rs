//! /dev/adma, call by call: a thin wrapper of the library's mirror of kmod-c/adma_ioctl.h.
//!
//! The calls are safe functions because of the memory law (see `memory`): a piece names
//! bytes of regions, which no Rust reference covers, or addresses where nothing of ours
//! lies. Makers of pieces keep to that.

use crate::abi;
use crate::effort::PATIENCE;
use crate::memory::{PAGE, Region};
use crate::process::{become_nobody, limit_locked_memory};
use crate::verdict::{Context, Outcome};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

pub const PATH: &str = "/dev/adma";

pub use crate::abi::{
    ABI_VERSION, ALIGN, CHANNEL_ANY, EXPORT_READ, EXPORT_WRITE, Export, FEATURE_EXPORTS,
    FEATURE_WORDS, INFO_KEEP, Info, MAX_EXPORTS, MAX_PIECES, Piece, SLOTS, SUBMIT_PULL,
    SUBMIT_PUSH, Submit, WORD_STRIDE, Wait,
};

pub const MAX_CHANNELS: u32 = abi::MAX_CHANNELS as u32;

pub const INFO: u64 = abi::IOC_INFO as u64;
pub const SUBMIT: u64 = abi::IOC_SUBMIT as u64;
pub const WAIT: u64 = abi::IOC_WAIT as u64;
pub const PORT: u64 = abi::IOC_PORT as u64;
pub const EXPORT: u64 = abi::IOC_EXPORT as u64;
pub const UNEXPORT: u64 = abi::IOC_UNEXPORT as u64;

// ---- errors -------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

macro_rules! errnos {
    ($($name:ident)*) => {
        $(pub const $name: Errno = Errno(libc::$name);)*

        impl fmt::Debug for Errno {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $($name => out.write_str(stringify!($name)),)*
                    Errno(number) => write!(out, "errno {number}"),
                }
            }
        }
    };
}

errnos! {
    EPERM ENOENT EBADF EACCES EEXIST EMFILE ESHUTDOWN EINTR EIO E2BIG EAGAIN ENOMEM EFAULT EBUSY ENODEV
    EINVAL ENOTTY EOPNOTSUPP ETIMEDOUT
}

// ---- calls --------------------------------------------------------------------------

/// Makes any call with any argument.
pub fn ioctl(fd: RawFd, number: u64, argument: u64) -> Result<(), Errno> {
    // SAFETY: the kernel checks whatever it is given; what it writes is covered by the
    // memory law, since the argument is one of our own structures, of a region, or bad.
    match unsafe { libc::ioctl(fd, number, argument) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Makes a call with one of the structures above.
pub fn call<T>(fd: RawFd, number: u64, argument: &mut T) -> Result<(), Errno> {
    ioctl(fd, number, std::ptr::from_mut(argument) as u64)
}

impl Piece {
    /// Makes a piece between two regions, on any channel.
    pub fn new(dst: &Region, dst_at: usize, src: &Region, src_at: usize, len: usize) -> Piece {
        let (dst, src) = (dst.address(dst_at), src.address(src_at));
        Piece { dst, src, len: len as u64, channel: CHANNEL_ANY, flags: 0 }
    }

    pub fn on(self, channel: u32) -> Piece {
        Piece { channel, ..self }
    }

    /// Like `split`, on any channel.
    pub fn spread(self, parts: usize) -> Vec<Piece> {
        self.split(parts, 1).into_iter().map(|piece| piece.on(CHANNEL_ANY)).collect()
    }

    /// Cuts it into at most `parts` pieces of about the same length, in turn on
    /// `channels` channels.
    pub fn split(self, parts: usize, channels: u32) -> Vec<Piece> {
        let step = (self.len as usize).div_ceil(parts).next_multiple_of(ALIGN) as u64;
        let starts = (0..self.len).step_by(step as usize);
        let part = |(number, at): (usize, u64)| Piece {
            dst: self.dst + at,
            src: self.src + at,
            len: step.min(self.len - at),
            channel: number as u32 % channels,
            flags: 0,
        };
        starts.enumerate().map(part).collect()
    }
}

impl Submit {
    pub fn new(pieces: &mut [Piece]) -> Submit {
        Submit {
            size: size_of::<Submit>() as u32,
            pieces: pieces.as_mut_ptr() as u64,
            count: pieces.len() as u32,
            ..Submit::default()
        }
    }
}

impl Export {
    pub fn new(addr: u64, len: usize, flags: u32) -> Export {
        let size = size_of::<Export>() as u32;
        Export { size, flags, addr, len: len as u64, ..Export::default() }
    }
}

impl Info {
    pub fn new() -> Info {
        Info { size: size_of::<Info>() as u32, ..Info::default() }
    }
}

impl Wait {
    pub fn new(id: u64, timeout: Duration) -> Wait {
        let timeout_ns = timeout.as_nanos() as u64;
        Wait { size: size_of::<Wait>() as u32, id, timeout_ns, ..Wait::default() }
    }
}

/// Result of a submission.
#[derive(Clone, Copy, Debug)]
pub struct Submitted {
    pub result: Result<(), Errno>,
    pub out: Submit,
}

pub struct Device {
    file: File,
}

impl Device {
    pub fn open() -> Outcome<Device> {
        let file = OpenOptions::new().read(true).write(true).open(PATH).context(PATH)?;
        Ok(Device { file })
    }

    /// Opens the device so that every copy pins its own pages and gives them back.
    pub fn keeping_nothing() -> Outcome<Device> {
        let device = Device::open()?;
        device.keep(0)?;
        Ok(device)
    }

    /// Opens the device for a process that may lock `bytes`, and runs as user nobody from now on.
    pub fn with_limit(bytes: usize) -> Outcome<Device> {
        let device = Device::open()?;
        limit_locked_memory(bytes as u64)?;
        become_nobody()?;
        Ok(device)
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub fn info(&self) -> Outcome<Info> {
        let mut info = Info::new();
        ensure_eq!(call(self.fd(), INFO, &mut info), Ok(()), "ADMA_IOC_INFO");
        Ok(info)
    }

    /// Returns the last offset up to `at` from which a channel can read.
    pub fn source(&self, at: usize) -> Outcome<usize> {
        Ok(at - at % self.info()?.src_align as usize)
    }

    pub fn submit(&self, pieces: &mut [Piece]) -> Submitted {
        let mut out = Submit::new(pieces);
        let result = call(self.fd(), SUBMIT, &mut out);
        Submitted { result, out }
    }

    /// Submits pieces between our memory and an export of another process: `way` is SUBMIT_PULL or
    /// SUBMIT_PUSH, and the side of the export is an offset.
    pub fn submit_across(
        &self,
        pieces: &mut [Piece],
        way: u32,
        port: RawFd,
        export: u64,
    ) -> Submitted {
        let mut out = Submit { flags: way, port, export, ..Submit::new(pieces) };
        let result = call(self.fd(), SUBMIT, &mut out);
        Submitted { result, out }
    }

    /// Checks that a piece is refused, and that nothing of it is in flight.
    pub fn refuse(&self, piece: Piece, errno: Errno, what: impl fmt::Display) -> Outcome {
        let Submitted { result, out } = self.submit(&mut [piece]);
        ensure_eq!((result, out.accepted, out.id), (Err(errno), 0, 0), "{what}: {piece:x?}");
        Ok(())
    }

    pub fn port(&self) -> Result<Port, Errno> {
        // SAFETY: no argument; a new descriptor with no other owner.
        unsafe {
            match libc::ioctl(self.fd(), PORT, 0) {
                -1 => Err(Errno::last()),
                fd => Ok(Port(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    /// Waits. Returns the pieces that failed, as bits.
    pub fn wait(&self, id: u64, timeout: Duration) -> Result<u64, Errno> {
        let mut wait = Wait::new(id, timeout);
        call(self.fd(), WAIT, &mut wait).map(|()| wait.failed)
    }

    /// Submits all pieces and checks that they are in flight.
    pub fn start(&self, pieces: &mut [Piece]) -> Outcome<Submit> {
        let Submitted { result, out } = self.submit(pieces);
        if let Err(errno) = result {
            let piece = pieces.get(out.accepted as usize);
            fail!("{} of {} pieces accepted, then {errno:?}: {piece:x?}", out.accepted, out.count);
        }
        ensure_eq!(out.accepted, out.count, "pieces accepted");
        ensure!(out.id != 0, "a request has number 0");
        ensure!((out.slot as usize) < SLOTS, "slot {}", out.slot);
        Ok(out)
    }

    /// Waits for the end of a request; returns the pieces that failed, as bits.
    pub fn end(&self, request: &Submit) -> Outcome<u64> {
        match self.wait(request.id, PATIENCE) {
            Ok(failed) => Ok(failed),
            Err(errno) => fail!("waiting for {request:x?}: {errno:?}"),
        }
    }

    /// Waits for the end of a request of which no piece may fail.
    pub fn finish(&self, request: &Submit) -> Outcome {
        ensure_eq!(self.end(request)?, 0, "failed pieces of {request:x?}");
        Ok(())
    }

    /// Makes a whole request on a healthy device.
    pub fn carry(&self, pieces: &mut [Piece]) -> Outcome<Submit> {
        let request = self.start(pieces)?;
        self.finish(&request)?;
        Ok(request)
    }

    pub fn keep(&self, pages: u64) -> Outcome {
        let mut info = Info { flags: INFO_KEEP, keep_pages: pages, ..Info::new() };
        ensure_eq!(call(self.fd(), INFO, &mut info), Ok(()), "keeping {pages} pages");
        Ok(())
    }

    /// Like `carry`, beside other work: temporary refusals are retried.
    pub fn carry_in_turn(&self, mut pieces: &mut [Piece]) -> Outcome {
        let begun = Instant::now();
        while !pieces.is_empty() {
            let Submitted { result, out } = self.submit(pieces);
            match result {
                Ok(()) | Err(EAGAIN | EBUSY) => {}
                Err(errno) => fail!("{errno:?} at {:x?}", pieces.get(out.accepted as usize)),
            }
            if out.accepted > 0 {
                self.finish(&out)?;
            } else {
                ensure!(begun.elapsed() < PATIENCE, "{result:?} for {PATIENCE:?}");
                std::thread::yield_now();
            }
            pieces = &mut pieces[out.accepted as usize..];
        }
        Ok(())
    }

    /// Maps the words of one channel.
    pub fn words(&self, channel: u32) -> Outcome<Words> {
        let offset = channel as usize * PAGE;
        let page = Region::map_file(self.fd(), offset, PAGE, libc::PROT_READ, libc::MAP_SHARED);
        Ok(Words(page.context(format_args!("words of channel {channel}"))?))
    }

    pub fn all_words(&self) -> Outcome<Vec<Words>> {
        (0..self.info()?.channels).map(|channel| self.words(channel)).collect()
    }
}

/// A port, through which others reach exports.
pub struct Port(OwnedFd);

impl Port {
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn export(&self, addr: u64, len: usize, flags: u32) -> Result<u64, Errno> {
        let mut export = Export::new(addr, len, flags);
        call(self.fd(), EXPORT, &mut export).map(|()| export.id)
    }

    pub fn unexport(&self, id: u64, timeout: Duration) -> Result<(), Errno> {
        call(self.fd(), UNEXPORT, &mut Wait::new(id, timeout))
    }
}

/// Page of words in which a channel reports its progress.
pub struct Words(Region);

impl Words {
    pub fn of(&self, slot: u32) -> u64 {
        self.0.word(slot as usize * WORD_STRIDE)
    }

    pub fn region(&self) -> &Region {
        &self.0
    }
}

/// Waits by polling the words, without a call. A channel that was late already promises no word;
/// then returns false, and the end of the request has to be asked for.
pub fn wait_by_words(words: &[Words], request: &Submit) -> Outcome<bool> {
    let begun = Instant::now();
    let waiting = |channel: &usize| {
        request.channels & 1 << channel != 0 && words[*channel].of(request.slot) != request.id
    };
    while let Some(channel) = (0..words.len()).find(waiting) {
        ensure!(
            begun.elapsed() < PATIENCE,
            "word {} of channel {channel} is {} and not {}",
            request.slot,
            words[channel].of(request.slot),
            request.id
        );
        std::hint::spin_loop();
    }
    Ok(request.channels != 0)
}
