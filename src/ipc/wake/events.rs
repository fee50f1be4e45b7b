//! Descriptor for programs with an event loop: `adma_event_fd`. The service thread, and threads of this
//! process that have changed something, make it readable.

use crate::ipc::os::{self, Fd};
use crate::os::sys;
use core::sync::atomic::{AtomicBool, Ordering};

pub struct Events {
    bell: Fd,
    /// Set while the program waits for the next change.
    armed: AtomicBool,
    /// Set if there was a change since `arm` was called last.
    changed: AtomicBool,
}

impl Events {
    pub fn new() -> os::Result<Self> {
        let bell = os::new_event()?;
        sys::raise_event(bell.raw()); // a program that has not armed it looks first
        Ok(Self { bell, armed: AtomicBool::new(false), changed: AtomicBool::new(false) })
    }

    pub fn raw(&self) -> i32 {
        self.bell.raw()
    }

    /// Announces that the program will wait; look for changes after this. Returns whether other
    /// threads have reported one since the last call: the program may have looked before it.
    pub fn arm(&self) -> bool {
        os::drain_event(&self.bell);
        self.armed.store(true, Ordering::SeqCst);
        self.changed.swap(false, Ordering::SeqCst)
    }

    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    /// Makes the descriptor readable if the program waits; after a change and a full fence.
    pub fn ring(&self) {
        self.changed.store(true, Ordering::SeqCst);
        if self.is_armed() && self.armed.swap(false, Ordering::SeqCst) {
            sys::raise_event(self.bell.raw());
        }
    }
}
