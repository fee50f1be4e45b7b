//! Registration of memory with the driver by the service thread, and its end.

use super::Service;
use crate::backend::gpu::registrations::LINE;
use crate::backend::gpu::{Unavailable, watch};
use crate::os::sys;
use crate::plan::PAGE;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Milliseconds without use after which a registration is dropped.
const IDLE_MS: u64 = 10_000;

/// Copies by the card after which a registration has paid: it takes about as long as the CPU takes
/// for half a copy.
const WORTH_IT: u32 = 3;

impl Service {
    /// Unregisters stale ranges, and those that no copy has used for a while.
    pub fn evict_unused(&mut self) {
        if self.registered == 0 {
            return;
        }
        let (now, ticks) = (sys::nanoseconds(), sys::ticks());
        let old = IDLE_MS * self.gpu.clock.ticks_per_ms();
        let look_through = now.saturating_sub(self.looked) > 500_000_000;
        if look_through {
            self.looked = now;
            self.gpu.clock.measure();
        }
        let gpu = self.gpu;
        for (index, registration) in gpu.registrations.all() {
            let is_old = || ticks.wrapping_sub(registration.used()) as i64 > old as i64;
            if registration.is_stale() && !self.is_used(index) {
                gpu.counts.invalidations.fetch_add(1, Relaxed);
                self.drop_registration(index);
            } else if look_through && registration.is_live() && is_old() && !self.is_used(index) {
                self.evict(index);
            }
        }
    }

    /// Evicts a registration that was not used; false: a call of the program has begun with it.
    fn evict(&mut self, index: usize) -> bool {
        self.gpu.registrations.retire(index);
        let is_free = !self.is_used(index);
        if is_free {
            self.gpu.counts.evictions.fetch_add(1, Relaxed);
            self.drop_registration(index);
        }
        is_free
    }

    /// Drops a registration that no flight uses and no copy begins with.
    pub fn drop_registration(&mut self, index: usize) {
        let registration = self.gpu.registrations.get(index);
        let (start, end) = (registration.start(), registration.end());
        if core::mem::take(&mut self.uses[index]) >= WORTH_IT {
            self.gpu.forgive_misses(start, end);
        }
        self.gpu.watch.remove(start, end);
        self.registered -= end - start;
        // SAFETY: registered by us; no flight uses it and no copy begins with it, as the caller has ensured.
        let done = unsafe { self.card.host_unregister(start as *mut c_void) };
        self.gpu.registrations.remove(index);
        if let Err(answer) = done {
            self.end(Unavailable::Driver(answer));
        }
    }

    /// Registers one range that copies have asked for.
    pub fn grant(&mut self) {
        if !self.gpu.is_up() {
            return;
        }
        let wished = self.gpu.wishes.iter().find(|wish| wish.state.load(Acquire) == 2);
        let Some(wish) = wished else { return };
        let (start, len) = (wish.start.load(Relaxed), wish.len.load(Relaxed));
        wish.state.store(0, Release);
        let (mut from, mut end) = (start & !(PAGE - 1), (start + len).next_multiple_of(PAGE));
        if end - from < LINE
            && let Some(found) = watch::anonymous(from)
        {
            // Small requests fill a line: what lies beside is likely to be asked for next.
            from = found.start.max(from & !(LINE - 1));
            end = end.max(found.end.min(end.next_multiple_of(LINE)));
        }
        if !self.register_missing(from, end) {
            self.gpu.counts.refused.fetch_add(1, Relaxed);
        }
    }

    /// Registers the whole pages of a range that are not registered yet. False: some were refused.
    fn register_missing(&mut self, mut at: usize, end: usize) -> bool {
        while at < end {
            if let Some(index) = self.gpu.registrations.find(at) {
                at = self.gpu.registrations.get(index).end();
                continue;
            }
            let stop = self.gpu.registrations.next_start(at, end);
            let Some(found) = watch::anonymous(at) else { return false };
            let to = stop.min(found.end);
            if !self.gpu.is_up() || to <= at || !self.register(at, to) {
                return false;
            }
            at = to;
        }
        true
    }

    /// Registers one range. False: it was refused.
    fn register(&mut self, start: usize, end: usize) -> bool {
        let (gpu, len) = (self.gpu, end - start);
        if !self.make_room(len) {
            return false;
        }
        let Some(index) = gpu.registrations.begin(start, end, sys::ticks()) else { return false };
        // From here on a change makes the registration stale, so only now the kind of memory is certain.
        let watched = gpu.watch.add(start, end);
        let fits = watch::anonymous(start).is_some_and(|found| found.end >= end);
        let registered = watched
            && fits
            && self.card.register(start, len).unwrap_or_else(|answer| {
                self.end(Unavailable::Driver(answer));
                false
            });
        if !registered {
            gpu.watch.remove(start, end);
            gpu.registrations.remove(index);
            return false;
        }
        self.registered += len;
        gpu.counts.most_bytes.fetch_max(self.registered as u64, Relaxed);
        gpu.counts.registrations.fetch_add(1, Relaxed);
        // If it went stale meanwhile, `evict_unused` drops it.
        gpu.registrations.publish(index)
    }

    /// Drops the least recently used until this many more bytes may be registered, and there is a
    /// place for one more.
    fn make_room(&mut self, len: usize) -> bool {
        let keep = self.gpu.keep.load(Relaxed);
        if len > keep {
            return false;
        }
        loop {
            if self.registered + len <= keep && !self.gpu.registrations.is_full() {
                return true;
            }
            let idle = self.gpu.registrations.all().filter(|(index, registration)| {
                (registration.is_live() || registration.is_stale()) && !self.is_used(*index)
            });
            match idle.min_by_key(|(_, registration)| registration.used()).map(|(index, _)| index) {
                Some(index) if self.evict(index) => {}
                _ => return false,
            }
        }
    }
}
