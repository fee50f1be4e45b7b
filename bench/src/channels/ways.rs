//! Each way to send bytes, and to take them at the other end.

use super::lane::{CHUNK, CHUNKS, Lane, PAGE, SLOTS};
use super::library::Library;
use super::{Channel, Game};
use libc::c_void;
use std::ptr;
use std::sync::atomic::Ordering;

/// This process's end of everything.
pub(super) struct End {
    pub(super) lanes: [*mut Lane; 2],
    /// Which lane it writes.
    pub(super) side: usize,
    pub(super) counts: [u32; 2],
    /// Small messages so far in each of the slots.
    pub(super) slot_counts: [[u32; SLOTS]; 2],
    /// Which of them it is this time.
    pub(super) slot: usize,
    pub(super) other: i32,
    pub(super) pipe: [i32; 2],
    pub(super) socket: i32,
    pub(super) library: Library,
    pub(super) out: *mut u8,
    pub(super) incoming: *mut u8,
    pub(super) game: Game,
}

impl End {
    /// What is sent, or what is received.
    fn buffer(&self, channel: Channel, which: usize) -> *mut u8 {
        match channel {
            Channel::Blocks => self.library.blocks[which],
            _ => [self.out, self.incoming][which],
        }
    }

    /// All of these: SAFETY: `out` and `incoming` have `LARGEST` bytes, lanes are mapped.
    pub(super) fn send(&mut self, channel: Channel, size: usize) {
        if self.game == Game::Used {
            let out = self.buffer(channel, 0);
            // SAFETY: see above.
            unsafe { ptr::write_bytes(out, size as u8, size) };
        }
        // SAFETY: mapped for as long as we live.
        let lane = unsafe { &*self.lanes[self.side] };
        let count = &mut self.counts[self.side];
        match channel {
            Channel::Adma | Channel::Blocks => {
                let (lib, out) = (&self.library, self.buffer(channel, 0));
                // SAFETY: see above.
                let sent = unsafe { (lib.write)(lib.connection, out.cast(), size) };
                assert_eq!(sent, size as isize);
            }
            Channel::Pipe => write_all(self.pipe[1], self.out, size),
            Channel::Socket => write_all(self.socket, self.out, size),
            Channel::SharedMemory => {
                for at in (0..size).step_by(CHUNK) {
                    let full = count.wrapping_sub(CHUNKS as u32);
                    lane.taken.wait_while(full, &lane.taken_asleep);
                    let chunk = lane.data[*count as usize % CHUNKS].as_ptr().cast_mut();
                    let len = CHUNK.min(size - at);
                    // SAFETY: see above; the chunk is free.
                    unsafe { ptr::copy_nonoverlapping(self.out.add(at), chunk, len) };
                    *count = count.wrapping_add(1);
                    lane.sent.set_quietly(*count, &lane.sent_asleep);
                }
            }
            Channel::ProcessVm => {
                lane.address.store(self.out as usize, Ordering::Relaxed);
                *count = count.wrapping_add(1);
                lane.sent.set_quietly(*count, &lane.sent_asleep);
                let before = count.wrapping_sub(1);
                lane.taken.wait_while(before, &lane.taken_asleep);
            }
            Channel::Futex => {
                let slot = &lane.slots[self.slot];
                let count = &mut self.slot_counts[self.side][self.slot];
                let buffer = slot.data.0.as_ptr().cast_mut();
                assert!(size <= PAGE);
                // SAFETY: see above; in a ping-pong the buffer is free.
                unsafe { ptr::copy_nonoverlapping(self.out, buffer, size) };
                *count = count.wrapping_add(1);
                slot.sent.set_quietly(*count, &slot.asleep.0);
            }
        }
    }

    pub(super) fn receive(&mut self, channel: Channel, size: usize) {
        self.take(channel, size);
        if self.game == Game::Used {
            let to = self.buffer(channel, 1);
            // SAFETY: see above.
            let words = unsafe { std::slice::from_raw_parts(to.cast::<u64>(), size / 8) };
            std::hint::black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
        }
    }

    fn take(&mut self, channel: Channel, size: usize) {
        let from = 1 - self.side;
        // SAFETY: mapped for as long as we live.
        let lane = unsafe { &*self.lanes[from] };
        let count = &mut self.counts[from];
        match channel {
            Channel::Adma | Channel::Blocks => {
                let (lib, to) = (&self.library, self.buffer(channel, 1));
                // SAFETY: see above.
                let got = unsafe { (lib.read)(lib.connection, to.cast(), size) };
                assert_eq!(got, size as isize);
            }
            Channel::Pipe => read_all(self.pipe[0], self.incoming, size),
            Channel::Socket => read_all(self.socket, self.incoming, size),
            Channel::SharedMemory => {
                for at in (0..size).step_by(CHUNK) {
                    lane.sent.wait_while(*count, &lane.sent_asleep);
                    let chunk = lane.data[*count as usize % CHUNKS].as_ptr();
                    let len = CHUNK.min(size - at);
                    // SAFETY: see above; the chunk was filled.
                    unsafe { ptr::copy_nonoverlapping(chunk, self.incoming.add(at), len) };
                    *count = count.wrapping_add(1);
                    lane.taken.set_quietly(*count, &lane.taken_asleep);
                }
            }
            Channel::ProcessVm => {
                lane.sent.wait_while(*count, &lane.sent_asleep);
                let from = lane.address.load(Ordering::Relaxed);
                across(libc::process_vm_readv, self.other, self.incoming, from, size);
                *count = count.wrapping_add(1);
                lane.taken.set_quietly(*count, &lane.taken_asleep);
            }
            Channel::Futex => {
                let slot = &lane.slots[self.slot];
                let count = &mut self.slot_counts[from][self.slot];
                slot.sent.wait_while(*count, &slot.asleep.0);
                // SAFETY: see above; the buffer was filled.
                unsafe { ptr::copy_nonoverlapping(slot.data.0.as_ptr(), self.incoming, size) };
                *count = count.wrapping_add(1);
            }
        }
    }
}

type Across = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

fn across(call: Across, pid: i32, ours: *mut u8, theirs: usize, size: usize) {
    let mut done = 0;
    while done < size {
        // SAFETY: see `End::send`.
        let ours = libc::iovec { iov_base: unsafe { ours.add(done) }.cast(), iov_len: size - done };
        let theirs = libc::iovec { iov_base: (theirs + done) as *mut c_void, iov_len: size - done };
        // SAFETY: see `End::send`.
        let got = unsafe { call(pid, &ours, 1, &theirs, 1, 0) };
        assert!(got > 0, "process_vm is refused here");
        done += got as usize;
    }
}

fn write_all(fd: i32, from: *mut u8, size: usize) {
    let mut done = 0;
    while done < size {
        // SAFETY: see `End::send`.
        let sent = unsafe { libc::write(fd, from.add(done).cast(), size - done) };
        assert!(sent > 0);
        done += sent as usize;
    }
}

fn read_all(fd: i32, to: *mut u8, size: usize) {
    let mut done = 0;
    while done < size {
        // SAFETY: see `End::send`.
        let got = unsafe { libc::read(fd, to.add(done).cast(), size - done) };
        assert!(got > 0);
        done += got as usize;
    }
}
