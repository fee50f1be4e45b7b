//! Ways to send bytes, and to receive them.
//!
//! The law of this module: all buffers have `LARGEST` bytes and lanes stay mapped; in a ping-pong
//! only one side touches a buffer, a chunk or a slot at a time.

use super::lane::{CHUNK, CHUNKS, Lane, PAGE, SLOTS};
use super::library::Library;
use super::{Channel, Game};
use libc::c_void;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::atomic::Ordering;

/// This process's end of all channels.
pub(super) struct End {
    pub(super) lanes: [*mut Lane; 2],
    /// Lane that it writes.
    pub(super) side: usize,
    pub(super) counts: [u32; 2],
    /// Small messages so far in each of the slots.
    pub(super) slot_counts: [[u32; SLOTS]; 2],
    /// Slot of this turn.
    pub(super) slot: usize,
    pub(super) other: i32,
    pub(super) pipe: (PipeReader, PipeWriter),
    pub(super) socket: UnixStream,
    pub(super) library: Library,
    pub(super) out: *mut u8,
    pub(super) incoming: *mut u8,
    pub(super) game: Game,
}

impl End {
    /// Returns the buffer to send (0), or to receive (1).
    fn buffer(&self, channel: Channel, which: usize) -> *mut u8 {
        match channel {
            Channel::Blocks => self.library.blocks[which],
            _ => [self.out, self.incoming][which],
        }
    }

    pub(super) fn send(&mut self, channel: Channel, size: usize) {
        let out = self.buffer(channel, 0);
        if self.game == Game::Used {
            // SAFETY: the law of the module.
            unsafe { ptr::write_bytes(out, size as u8, size) };
        }
        // SAFETY: the law of the module.
        let (lane, bytes) = unsafe { (&*self.lanes[self.side], from_raw_parts(out, size)) };
        let count = &mut self.counts[self.side];
        match channel {
            Channel::Adma | Channel::Blocks => {
                let lib = &self.library;
                // SAFETY: the law of the module.
                let sent = unsafe { (lib.write)(lib.connection, out.cast(), size) };
                assert_eq!(sent, size as isize);
            }
            Channel::Pipe => self.pipe.1.write_all(bytes).expect("a pipe"),
            Channel::Socket => self.socket.write_all(bytes).expect("a socket"),
            Channel::SharedMemory => {
                for part in bytes.chunks(CHUNK) {
                    lane.taken.wait_while(count.wrapping_sub(CHUNKS as u32));
                    let chunk = lane.data[*count as usize % CHUNKS].as_ptr().cast_mut();
                    // SAFETY: the law of the module; the chunk is free.
                    unsafe { ptr::copy_nonoverlapping(part.as_ptr(), chunk, part.len()) };
                    *count = count.wrapping_add(1);
                    lane.sent.set(*count);
                }
            }
            Channel::ProcessVm => {
                lane.address.store(out as usize, Ordering::Relaxed);
                let before = *count;
                *count = count.wrapping_add(1);
                lane.sent.set(*count);
                lane.taken.wait_while(before);
            }
            Channel::Futex => {
                let slot = &lane.slots[self.slot];
                let count = &mut self.slot_counts[self.side][self.slot];
                assert!(size <= PAGE);
                // SAFETY: the law of the module.
                unsafe { ptr::copy_nonoverlapping(out, slot.data.0.as_ptr().cast_mut(), size) };
                *count = count.wrapping_add(1);
                slot.sent.set(*count);
            }
        }
    }

    pub(super) fn receive(&mut self, channel: Channel, size: usize) {
        let to = self.buffer(channel, 1);
        self.take(channel, to, size);
        if self.game == Game::Used {
            // SAFETY: the law of the module.
            let words = unsafe { from_raw_parts(to.cast::<u64>(), size / 8) };
            std::hint::black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
        }
    }

    fn take(&mut self, channel: Channel, to: *mut u8, size: usize) {
        let from = 1 - self.side;
        // SAFETY: the law of the module.
        let (lane, bytes) = unsafe { (&*self.lanes[from], from_raw_parts_mut(to, size)) };
        let count = &mut self.counts[from];
        match channel {
            Channel::Adma | Channel::Blocks => {
                let lib = &self.library;
                // SAFETY: the law of the module.
                let got = unsafe { (lib.read)(lib.connection, to.cast(), size) };
                assert_eq!(got, size as isize);
            }
            Channel::Pipe => self.pipe.0.read_exact(bytes).expect("a pipe"),
            Channel::Socket => self.socket.read_exact(bytes).expect("a socket"),
            Channel::SharedMemory => {
                for part in bytes.chunks_mut(CHUNK) {
                    lane.sent.wait_while(*count);
                    let chunk = lane.data[*count as usize % CHUNKS].as_ptr();
                    // SAFETY: the law of the module; the chunk was filled.
                    unsafe { ptr::copy_nonoverlapping(chunk, part.as_mut_ptr(), part.len()) };
                    *count = count.wrapping_add(1);
                    lane.taken.set(*count);
                }
            }
            Channel::ProcessVm => {
                lane.sent.wait_while(*count);
                pull(self.other, bytes, lane.address.load(Ordering::Relaxed));
                *count = count.wrapping_add(1);
                lane.taken.set(*count);
            }
            Channel::Futex => {
                let slot = &lane.slots[self.slot];
                let count = &mut self.slot_counts[from][self.slot];
                slot.sent.wait_while(*count);
                // SAFETY: the law of the module; the slot was filled.
                unsafe { ptr::copy_nonoverlapping(slot.data.0.as_ptr(), to, size) };
                *count = count.wrapping_add(1);
            }
        }
    }
}

/// Reads another process's memory by as many calls of process_vm_readv as it takes.
fn pull(pid: i32, mut ours: &mut [u8], mut theirs: usize) {
    while !ours.is_empty() {
        let here = libc::iovec { iov_base: ours.as_mut_ptr().cast(), iov_len: ours.len() };
        let there = libc::iovec { iov_base: theirs as *mut c_void, iov_len: ours.len() };
        // SAFETY: writes into the slice only.
        let got = unsafe { libc::process_vm_readv(pid, &here, 1, &there, 1, 0) };
        assert!(got > 0, "process_vm_readv is refused here");
        ours = &mut ours[got as usize..];
        theirs += got as usize;
    }
}
