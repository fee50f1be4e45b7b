//! Pinned buffers: a ring of slots for each thread that copies at once, in the primary context of a
//! card. A ring is given back when it was not used for some seconds.

use super::Here;
use crate::backend::card::driver::{CopyFunctions, CuResult, Event, Stream};
use crate::os::lock::{Held, Lock};
use crate::os::{process, sys, thread};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a ring.
pub const RING: usize = 32 << 20;
/// Slots of a ring, at most.
pub const SLOTS: usize = 8;
/// Threads that can copy at once; together they pin 256 MiB at most.
const RINGS: usize = 8;

/// Time without a copy after which a ring is given back, and the interval at which rings are checked for it.
const IDLE_NANOS: u64 = 5_000_000_000;
const LOOK_NANOS: u64 = 1_000_000_000;

/// Flag of cuMemHostRegister: for every context.
const PORTABLE: u32 = 1;
/// Flag of cuEventCreate: takes no time stamp.
const WITHOUT_TIME: u32 = 2;

static ALL: [Lock<Ring>; RINGS] = [const { Lock::new(Ring::new()) }; RINGS];
/// Set while a thread looks for rings that are idle.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
pub struct Ring {
    /// Id of the context, the context and its card; 0: the ring is closed.
    id: u64,
    context: usize,
    device: i32,
    memory: usize,
    events: [usize; SLOTS],
    /// Slots whose event was recorded, and not waited for.
    recorded: [bool; SLOTS],
    used: u64,
}

/// Returns a ring that no other thread uses, pinned if need be. `None`: all are in use, or the
/// context is not the card's primary one.
pub fn take(driver: &CopyFunctions, here: &Here) -> Option<Held<'static, Ring>> {
    let is_ours = |ring: &Held<Ring>| ring.id == here.id;
    if let Some(ring) = ALL.iter().filter_map(Lock::try_lock).find(is_ours) {
        return Some(ring);
    }
    // A context that was reset has lost what was pinned in it, but is still retained.
    let is_free = |ring: &Held<Ring>| ring.id == 0 || ring.context == here.context as usize;
    let mut ring = ALL.iter().filter_map(Lock::try_lock).find(is_free)?;
    if ring.id != 0 {
        // SAFETY: `open` has retained it once.
        let _ = unsafe { driver.primary_release(ring.device) };
    }
    ring.forget();
    ring.open(driver, here).then_some(ring)
}

impl Ring {
    const fn new() -> Self {
        Self {
            id: 0,
            context: 0,
            device: 0,
            memory: 0,
            events: [0; SLOTS],
            recorded: [false; SLOTS],
            used: 0,
        }
    }

    /// Pins memory and makes events, in the current context. False: that is not possible.
    fn open(&mut self, driver: &CopyFunctions, here: &Here) -> bool {
        let mut primary = null_mut();
        // SAFETY: results are written where there is room; what was begun is undone.
        unsafe {
            if driver.primary_retain(&mut primary, here.device).is_err() {
                return false;
            }
            self.device = here.device;
            if primary != here.context || !self.fill(driver) {
                self.empty(driver);
                let _ = driver.primary_release(here.device);
                return false;
            }
        }
        (self.id, self.context) = (here.id, here.context as usize);
        self.used = sys::nanoseconds();
        if !IS_WATCHED.swap(true, Ordering::SeqCst) && thread::spawn(256 << 10, watch).is_err() {
            IS_WATCHED.store(false, Ordering::SeqCst); // pinned until the process ends
        }
        true
    }

    unsafe fn fill(&mut self, driver: &CopyFunctions) -> bool {
        let Some(memory) = sys::map(RING) else { return false };
        self.memory = memory as usize;
        // SAFETY: memory of ours, which stays until it is unregistered.
        if unsafe { driver.host_register(memory, RING, PORTABLE) }.is_err() {
            // SAFETY: mapped above; no other thread and no card has its address.
            unsafe { sys::unmap(memory, RING) };
            self.memory = 0;
            return false;
        }
        self.events.iter_mut().all(|place| {
            let mut event = null_mut();
            // SAFETY: `event` is writable.
            let made = unsafe { driver.event_create(&mut event, WITHOUT_TIME) }.is_ok();
            *place = event as usize;
            made
        })
    }

    /// Undoes `fill`, in the same context.
    unsafe fn empty(&mut self, driver: &CopyFunctions) {
        for event in core::mem::take(&mut self.events) {
            if event != 0 {
                // SAFETY: made by `fill`, and used no more.
                let _ = unsafe { driver.event_destroy(event as Event) };
            }
        }
        if self.memory != 0 {
            // SAFETY: registered by `fill`; no transfer uses it.
            let _ = unsafe { driver.host_unregister(self.memory as *mut c_void) };
        }
        self.forget();
    }

    /// Forgets memory and events that their context has released, or that have ended with it.
    fn forget(&mut self) {
        if self.memory != 0 {
            // SAFETY: mapped by `fill`; the context that pinned it has ended, or has let it go.
            unsafe { sys::unmap(self.memory as *mut c_void, RING) };
        }
        *self = Self::new();
    }

    /// Releases memory, events and context. Called in a thread without a current context.
    fn close(&mut self, driver: &CopyFunctions) {
        let device = self.device;
        // SAFETY: the context is retained by `open`; where it was reset this fails, and nothing is left.
        unsafe {
            if driver.push(self.context as *mut c_void).is_ok() {
                self.settle(driver);
                self.empty(driver);
                let _ = driver.pop(&mut null_mut());
            }
            let _ = driver.primary_release(device);
        }
        self.forget();
    }

    /// Returns the address of a slot, if each has `len` bytes.
    pub fn slot(&self, slot: usize, len: usize) -> usize {
        self.memory + slot * len
    }

    /// Waits until no transfer uses a slot.
    pub fn wait_for(&mut self, driver: &CopyFunctions, slot: usize) -> Result<(), CuResult> {
        if core::mem::take(&mut self.recorded[slot]) {
            // SAFETY: an event of this ring.
            unsafe { driver.event_synchronize(self.events[slot] as Event)? };
        }
        Ok(())
    }

    /// Notes that a transfer uses the slot until the stream has passed this point.
    pub fn record(
        &mut self,
        driver: &CopyFunctions,
        slot: usize,
        stream: Stream,
    ) -> Result<(), CuResult> {
        // SAFETY: an event of this ring, and a stream of its context.
        unsafe { driver.event_record(self.events[slot] as Event, stream)? };
        self.recorded[slot] = true;
        Ok(())
    }

    /// Waits until no transfer uses the ring. A card that answers with errors writes no more.
    pub fn settle(&mut self, driver: &CopyFunctions) {
        for slot in 0..SLOTS {
            let _ = self.wait_for(driver, slot);
        }
    }

    pub fn note_use(&mut self, now: u64) {
        self.used = now;
    }
}

/// Gives back unused rings, and ends when there are none.
fn watch() {
    let Some(driver) = super::FUNCTIONS.get().and_then(Option::as_ref) else { return };
    loop {
        sys::sleep(LOOK_NANOS);
        if !process::is_ours() {
            return;
        }
        let now = sys::nanoseconds();
        for mut ring in ALL.iter().filter_map(Lock::try_lock) {
            if ring.id != 0 && now.saturating_sub(ring.used) >= IDLE_NANOS {
                ring.close(driver);
            }
        }
        if ALL.iter().all(|ring| ring.try_lock().is_some_and(|ring| ring.id == 0)) {
            IS_WATCHED.store(false, Ordering::SeqCst);
            return;
        }
    }
}

/// The child of a fork cannot use the card, and has no thread that watches.
pub fn forget_after_fork() {
    IS_WATCHED.store(false, Ordering::Relaxed);
    ALL.iter().for_each(Lock::renew);
}
