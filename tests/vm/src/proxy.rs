//! The transport: x-pci-proxy-dev of QEMU 5.2 to 8.1, and qtest for interrupts.
//!
//! QEMU forwards each access of the guest as a message on a socket and waits
//! for the answer. Its own interrupts need KVM, so MSI-X goes another way: a
//! qtest socket, through which the interrupt message is written to memory.

use crate::function::Function;
use crate::memory::{Memory, Piece};
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::Arc;
use std::thread;

// Commands, in the order of QEMU's MPQemuCmd.
const SYNC_MEMORY: u32 = 0;
const REPLY: u32 = 1;
const CONFIG_WRITE: u32 = 2;
const CONFIG_READ: u32 = 3;
const BAR_WRITE: u32 = 4;
const BAR_READ: u32 = 5;
const SET_IRQ: u32 = 6;
const RESET: u32 = 7;

/// {i32 command, padding, u64 size of what follows}
const HEADER: usize = 16;
const MAX_FILES: usize = 8;
/// The longest payload: three arrays of eight words.
const MAX_PAYLOAD: u64 = 192;

/// Serves one function until QEMU closes the socket.
pub fn serve(mut socket: UnixStream, function: &Function, memory: &Memory) -> io::Result<()> {
    while let Some(message) = Message::receive(&mut socket)? {
        let (word, half) = (|at| message.u64_at(at), |at| message.u32_at(at));
        let answer = match message.command {
            SYNC_MEMORY => {
                memory.set(&message.pieces()?)?;
                continue;
            }
            SET_IRQ => continue,
            CONFIG_READ => function.config_read(half(0)?, half(8)?).into(),
            CONFIG_WRITE => {
                function.config_write(half(0)?, half(8)?, half(4)?);
                0
            }
            BAR_READ => function.bar_read(word(0)?, half(16)?),
            BAR_WRITE => {
                function.bar_write(word(0)?, half(16)?, word(8)?);
                0
            }
            RESET => {
                function.reset();
                0
            }
            other => return Err(bad(format!("unknown command {other}"))),
        };
        reply(&mut socket, answer)?;
    }
    Ok(())
}

fn bad(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn reply(socket: &mut UnixStream, answer: u64) -> io::Result<()> {
    let mut bytes = [0; HEADER + 8];
    bytes[..4].copy_from_slice(&REPLY.to_le_bytes());
    bytes[8..16].copy_from_slice(&8u64.to_le_bytes());
    bytes[16..].copy_from_slice(&answer.to_le_bytes());
    socket.write_all(&bytes)
}

struct Message {
    command: u32,
    payload: Vec<u8>,
    files: Vec<File>,
}

impl Message {
    /// Receives the next message; `None` at the end.
    fn receive(socket: &mut UnixStream) -> io::Result<Option<Message>> {
        let mut header = [0; HEADER];
        let (mut got, files) = receive_with_files(socket.as_raw_fd(), &mut header)?;
        if got == 0 {
            return Ok(None);
        }
        while got < HEADER {
            got += match socket.read(&mut header[got..])? {
                0 => return Err(bad(format!("{got} bytes of a header"))),
                more => more,
            };
        }
        let mut message = Message { command: 0, payload: header.to_vec(), files };
        let (command, size) = (message.u32_at(0)?, message.u64_at(8)?);
        if size > MAX_PAYLOAD {
            return Err(bad(format!("command {command} with {size} bytes")));
        }
        message.command = command;
        message.payload = vec![0; size as usize];
        socket.read_exact(&mut message.payload)?;
        Ok(Some(message))
    }

    fn u32_at(&self, at: usize) -> io::Result<u32> {
        let bytes = self.payload.get(at..at + 4).ok_or_else(|| self.short())?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    fn u64_at(&self, at: usize) -> io::Result<u64> {
        Ok(u64::from(self.u32_at(at)?) | u64::from(self.u32_at(at + 4)?) << 32)
    }

    fn short(&self) -> io::Error {
        bad(format!("command {} with {} bytes", self.command, self.payload.len()))
    }

    /// Parses the memory map: addresses, sizes and offsets, eight of each.
    fn pieces(mut self) -> io::Result<Vec<Piece>> {
        let files = mem::take(&mut self.files);
        let piece = |(index, file)| {
            let column = |number: usize| self.u64_at(64 * number + 8 * index);
            Ok(Piece { address: column(0)?, size: column(1)?, offset: column(2)?, file })
        };
        files.into_iter().enumerate().map(piece).collect()
    }
}

/// Reads once, with the descriptors attached.
fn receive_with_files(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<File>)> {
    // Words, so that the control messages are aligned; room for MAX_FILES.
    let mut control = [0u64; 2 + MAX_FILES];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeroes is a valid msghdr.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = mem::size_of_val(&control);
    let got = loop {
        // SAFETY: the header points at `part`, `buffer` and `control`, which
        // live, with their true sizes.
        let got = unsafe { libc::recvmsg(socket, &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        if got >= 0 {
            break got as usize;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let mut files = Vec::new();
    // SAFETY: recvmsg has left well-formed control messages in `control`, and
    // each descriptor in them is new and ours.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&raw const header);
        while !message.is_null() {
            if (*message).cmsg_level == libc::SOL_SOCKET && (*message).cmsg_type == libc::SCM_RIGHTS
            {
                let bytes = (*message).cmsg_len - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(message).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    files.push(File::from_raw_fd(ptr::read_unaligned(first.add(index))));
                }
            }
            message = libc::CMSG_NXTHDR(&raw const header, message);
        }
    }
    Ok((got, files))
}

/// Path of interrupts into the guest.
pub struct Qtest(Mutex<UnixStream>);

impl Qtest {
    pub fn new(socket: UnixStream) -> io::Result<Arc<Qtest>> {
        let mut answers = socket.try_clone()?;
        // Every line is answered with OK. We do not wait for that, but QEMU
        // would stop when the socket is full.
        thread::Builder::new().name("qtest answers".into()).spawn(move || {
            let mut buffer = [0; 4096];
            while answers.read(&mut buffer).is_ok_and(|got| got > 0) {}
        })?;
        Ok(Arc::new(Qtest(Mutex::new(socket))))
    }

    /// Writes an interrupt message. Fails only when QEMU is gone.
    pub fn message(&self, address: u64, data: u32) {
        let line = format!("writel {address:#x} {data:#x}\n");
        let _ = self.0.lock().write_all(line.as_bytes());
    }
}
