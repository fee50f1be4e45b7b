//! Submission of a copy to the card by the service thread: to one engine that reads and writes, or
//! through buffers on the card.

use super::{Channel, Flight, NEVER, Service};
use crate::backend::card::driver::{CuResult, INVALID_VALUE, NOT_SUPPORTED};
use crate::backend::gpu::driver::BatchParts;
use crate::backend::gpu::slots::slot;
use crate::backend::gpu::watch::Settled;
use crate::backend::gpu::{BUFFER, CHANNELS, QUICK_CHUNK, Unavailable};
use crate::os::sys;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Relaxed, Release};

/// Smallest chunk.
const LEAST_CHUNK: usize = 1 << 20;

/// Number of chunks of a copy, unless they would be too small or too large: while the card reads
/// the first one, nothing can be written.
const CHUNKS: usize = 12;

/// Size from which calls are judged by the CPU time they take.
const JUDGED: usize = 2 << 20;

/// Bytes per nanosecond that no CPU exceeds.
const QUICKEST_CPU: usize = 32;

/// Consecutive slow calls that are no accident.
const TOO_MANY: u32 = 8;

impl Service {
    pub fn submit(&mut self, index: usize) {
        let slot = &self.gpu.slots[index];
        let [dst, src, len] = [&slot.dst, &slot.src, &slot.len].map(|part| part.load(Relaxed));
        let number = slot.number.load(Relaxed);
        let mut registrations = Vec::new();
        // Wait until all changes are marked, then look at the registrations: see `watch`.
        let usable = self.is_settled()
            && self.registrations_of(src, len, &mut registrations).is_some()
            && self.registrations_of(dst, len, &mut registrations).is_some();
        if !usable {
            slot.state.store(slot::REFUSED, Release);
            return;
        }
        for &registration in &registrations {
            self.uses[registration] += 1;
        }
        let (since, channels) = (sys::ticks(), 0);
        self.flights.push(Flight { index, number, channels, registrations, since, bytes: len });
        let begun = match self.go_straight(dst, src, len) {
            Err(NOT_SUPPORTED | INVALID_VALUE) => self.go_by_buffers(dst, src, len),
            begun => begun,
        };
        match begun.and_then(|channels| self.write_words(index, number, channels)) {
            // From now on the copy is over when its words are written.
            Ok(channels) => {
                self.flights.last_mut().into_iter().for_each(|flight| flight.channels = channels);
                slot.channels.store(channels, Release);
            }
            Err(answer) => self.end(Unavailable::Driver(answer)),
        }
    }

    /// Writes a word on each of these channels, behind their queued work.
    fn write_words(&self, index: usize, number: u32, channels: u32) -> Result<u32, CuResult> {
        for which in (0..CHANNELS).filter(|which| channels >> which & 1 == 1) {
            let word = self.words + (index * 64 + which * 4) as u64;
            // SAFETY: a word of ours for this slot and channel. Flags of 0 ask for a barrier before
            // the word.
            unsafe { self.card.stream_write(self.channels[which].stream, word, number, 0)? };
        }
        Ok(channels)
    }

    /// Returns how many of `left` bytes from `at` on lie in one registration of the last flight.
    fn within(&self, at: usize, left: usize) -> usize {
        // Stale registrations count too: they stay registered while they are used.
        let registrations = self.flights.last().map_or(&[][..], |flight| &flight.registrations);
        let all = registrations.iter().map(|&index| self.gpu.registrations.get(index));
        let found = all.filter(|found| (found.start()..found.end()).contains(&at)).last();
        found.map_or(left, |registration| left.min(registration.end() - at))
    }

    /// Submits the last flight to one engine that reads and writes: one call, one channel. After an
    /// error nothing is in flight, and it is not tried again.
    fn go_straight(&mut self, dst: usize, src: usize, len: usize) -> Result<u32, CuResult> {
        if self.slow_calls == NEVER {
            return Err(NOT_SUPPORTED);
        }
        let (mut parts, mut at) = (BatchParts::default(), 0);
        while at < len {
            let part = self.within(dst + at, self.within(src + at, len - at));
            parts.add(dst + at, src + at, part);
            at += part;
        }
        let which = self.turn;
        let (stream, begun) = (self.channels[which].stream, cpu_time());
        // SAFETY: registrations of the flight, which stay while it uses them; the destination is
        // the copy's.
        if let Err(answer) = unsafe { self.card.straight(&parts, stream) } {
            self.slow_calls = NEVER;
            self.card.drain([stream].into_iter());
            return Err(answer);
        }
        // The driver does not promise that the CPU stays idle during the call.
        let took = cpu_time().saturating_sub(begun);
        let slow = len >= JUDGED && took as usize > len / QUICKEST_CPU;
        self.slow_calls = if slow { self.slow_calls + 1 } else { 0 };
        if self.slow_calls == TOO_MANY {
            self.slow_calls = NEVER;
        }
        self.turn = (which + 1) % CHANNELS;
        self.gpu.counts.channel_bytes[which].fetch_add(len as u64, Relaxed);
        Ok(1 << which)
    }

    /// Submits the last flight through the buffers on the card, chunk by chunk, on channels in turn.
    fn go_by_buffers(&mut self, dst: usize, src: usize, len: usize) -> Result<u32, CuResult> {
        self.furnish_buffers()?;
        let spares = self.gpu.spare_cpus.load(Relaxed) != 0;
        let chunk = chunk_of(len, if spares { BUFFER } else { QUICK_CHUNK });
        let count = len.div_ceil(chunk);
        let (first, used) = (self.turn, count.min(CHANNELS));
        self.turn = (first + used) % CHANNELS;
        for i in 0..count {
            let (from, which) = (i * chunk, (first + i) % CHANNELS);
            let part = chunk.min(len - from);
            self.loop_back(dst + from, src + from, part, which)?;
            self.gpu.counts.channel_bytes[which].fetch_add(part as u64, Relaxed);
        }
        Ok((0..used).fold(0, |all, i| all | 1 << ((first + i) % CHANNELS)))
    }

    /// Submits one chunk of the last flight, to the card and back. The memory of each driver call
    /// lies in one registration.
    fn loop_back(&self, dst: usize, src: usize, len: usize, which: usize) -> Result<(), CuResult> {
        let Channel { stream, buffer } = self.channels[which];
        let mut done = 0;
        while done < len {
            let part = self.within(src + done, len - done);
            // SAFETY: the registrations of the flight, which stay while it uses them; the chunk
            // fits the buffer, and what was in it has been read: same stream.
            unsafe {
                let from = (src + done) as *const c_void;
                self.card.host_to_card(buffer + done as u64, from, part, stream)?;
            }
            done += part;
        }
        let mut done = 0;
        while done < len {
            let part = self.within(dst + done, len - done);
            // SAFETY: the flight's registrations stay while it uses them; the buffer was filled by the same stream;
            // the destination is the copy's.
            unsafe {
                let to = (dst + done) as *mut c_void;
                self.card.card_to_host(to, buffer + done as u64, part, stream)?;
            }
            done += part;
        }
        Ok(())
    }

    /// Returns the registrations that a range lies in; `None`: not all of it does.
    fn registrations_of(&self, start: usize, len: usize, found: &mut Vec<usize>) -> Option<()> {
        let (mut at, end) = (start, start + len);
        while at < end {
            let index = self.gpu.registrations.find(at)?;
            found.push(index);
            at = self.gpu.registrations.get(index).end();
        }
        Some(())
    }

    /// Waits a little for threads that are just unmapping something.
    fn is_settled(&mut self) -> bool {
        for _ in 0..1000 {
            match self.gpu.watch.is_settled() {
                Settled::Yes => return true,
                Settled::NotYet => sys::yield_now(),
                Settled::Never => {
                    self.end(Unavailable::Watch(libc::EBADF));
                    return false;
                }
            }
        }
        false
    }
}

/// Returns the CPU time of this thread, in nanoseconds.
fn cpu_time() -> u64 {
    sys::nanoseconds_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the size of a chunk, in whole 64 KiB.
fn chunk_of(len: usize, most: usize) -> usize {
    (len / CHUNKS).next_multiple_of(64 << 10).clamp(LEAST_CHUNK, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_fits_the_buffer_and_large_copies_have_many() {
        let chunk = |len| chunk_of(len, BUFFER);
        assert_eq!(chunk(1), LEAST_CHUNK);
        assert_eq!(chunk(4 << 20), LEAST_CHUNK);
        assert!(chunk(24 << 20) <= 2 << 20 && chunk(24 << 20) > 1 << 20);
        assert_eq!((chunk(1 << 30), chunk_of(64 << 20, QUICK_CHUNK)), (BUFFER, QUICK_CHUNK));
    }
}
