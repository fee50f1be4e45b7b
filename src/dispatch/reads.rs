//! Reads of files: large ones of regular files are decided about like other calls; all others are
//! passed to libc unchanged.

use super::Dispatcher;
use super::engine::life;
use super::operation::{Kind, Read};
use crate::backend::kernel_calls::reads::{FileRead, ReadCall};
use crate::backend::kernel_calls::streams::{self, StreamCall};
use crate::backend::libc as original;
use crate::config::Config;
use crate::functions::{KERNEL_CALLS_FROM, Op};
use core::sync::atomic::Ordering;

/// Bytes from which a read of a stream is shared where sizes are learned. Calls of stdio before and
/// after cost more than a read of 1 MiB gains.
const STREAMS_FROM: usize = 4 << 20;

/// Size from which reads are considered with one CPU, where only page faults are saved.
const ALONE_FROM: usize = 4 << 20;

impl Dispatcher {
    /// Performs read, pread, readv, preadv or preadv2; answer and errno are libc's.
    ///
    /// # Safety
    /// The program has made this call, with these arguments.
    pub unsafe fn read(&self, call: &ReadCall) -> isize {
        call.with_buffers(|buffers| {
            let config = self.large(call.op, buffers.map(|(_, total)| total));
            let learner = self.learner(Kind::Reads);
            if let Some((config, (_, total))) = config.zip(buffers)
                && !config.counts()
                && learner.passes(call.site, total)
            {
                // SAFETY: the program has made this call, with these arguments.
                return unsafe { call.pass_on() };
            }
            let read = config.zip(buffers).and_then(|(config, buffers)| {
                let read = FileRead::new(call, buffers, self.least(config))?;
                streams::test_cancel().then_some((config, read))
            });
            // SAFETY: the program has made this call, with these arguments.
            unsafe {
                match read {
                    Some((config, read)) => {
                        self.dispatch(config, &Read::Call(call, read), 0, call.site).1
                    }
                    None => call.pass_on(),
                }
            }
        })
    }

    /// Performs fread or fread_unlocked, a part of it by workers or all of it by libc.
    ///
    /// # Safety
    /// The program has made this call, with these arguments.
    pub unsafe fn read_stream(&self, call: &StreamCall) -> usize {
        let least = |config: &Config| self.entry_min(config, STREAMS_FROM).max(2);
        let large = self.large(call.op, call.bytes());
        let large = large.filter(|config| call.bytes().is_some_and(|bytes| bytes >= least(config)));
        // SAFETY: the program has made this call, with these arguments.
        unsafe {
            match large {
                Some(config) => call.carry_out(least(config), |read| {
                    self.dispatch(config, &Read::Stream(read), 0, call.site).1 as usize
                }),
                None => call.pass_on(),
            }
        }
    }

    /// Returns the size from which a read is considered.
    fn least(&self, config: &Config) -> usize {
        self.entry_min(config, KERNEL_CALLS_FROM).max(2)
    }

    /// Returns the configuration if the call is large enough to be shared.
    fn large(&self, op: Op, bytes: Option<usize>) -> Option<&'static Config> {
        let (config, bytes) = self.config().zip(bytes)?;
        if config.profile {
            self.recorder.profile(op, bytes);
        }
        let large = bytes >= self.least(config);
        // Looking at the file and its buffer costs some 3 us, a twentieth of a read of 1 MiB.
        let alone = self.engine.load(Ordering::Relaxed) == life::THREADS && self.workers() == 0;
        let in_vain = alone && bytes < ALONE_FROM && !config.counts();
        (large && !in_vain && !self.closed.load(Ordering::Relaxed) && original::is_libcs_read(op))
            .then_some(config)
    }
}
