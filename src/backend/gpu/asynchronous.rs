//! Asynchronous copies.

use super::copy::Waiting;
use super::slots::SlotState;
use super::{Engine, SLOTS};
use crate::backend::Refused;
use crate::backend::engine::request::Request;
use crate::backend::engine::stretch::Stretch;
use crate::backend::engine::{CopyOptions, Requests};
use crate::os::signal_mask::SignalsHeld;
use crate::os::{process, sys};
use crate::plan::Piece;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Ticks, about 50 ms, after which a copy whose caller does not wait is taken back if the service
/// thread has not taken it.
const LONG_PATIENCE: u64 = 125_000_000;

impl Requests for Engine {
    unsafe fn begin(
        &self,
        request: &Request,
        Stretch { dst, src, len }: Stretch,
        _how: &CopyOptions,
    ) -> Result<Option<Piece>, Refused> {
        if !process::is_ours() {
            return Err(Refused::NotOurs);
        }
        // A handler that jumped out would leave a copy unknown to the table.
        let _held = SignalsHeld::all().ok_or(Refused::Busy)?;
        let index = self.take().ok_or(Refused::Busy)?;
        let number = self.post(index, dst, src, len);
        request.taken.store(len, Relaxed);
        request.since.store(sys::ticks(), Relaxed);
        request.id.store(u64::from(number) << 8 | index as u64, Release);
        Ok(Some(Piece { offset: 0, len }))
    }

    fn is_over(&self, request: &Request, nanos: u64) -> bool {
        let id = request.id.load(Acquire);
        let waiting = Waiting {
            index: (id & 0xff) as usize % SLOTS,
            number: (id >> 8) as u32,
            bytes: request.taken.load(Relaxed),
            since: request.since.load(Relaxed),
            patience: LONG_PATIENCE,
            naps: self.spare_cpus.load(Relaxed) != 0,
            spins: false,
        };
        self.wait(&waiting, nanos, false) != SlotState::UnderWay
    }

    fn left_over(&self, request: &Request, len: usize, copy: &mut dyn FnMut(usize, usize)) {
        let index = (request.id.load(Acquire) & 0xff) as usize % SLOTS;
        let look = self.look(index);
        self.release(index);
        if look != SlotState::Done {
            self.counts.caller_bytes.fetch_add(len as u64, Relaxed);
            copy(0, len);
        }
    }
}
