//! Descriptor for programs with an event loop: `adma_event_fd`.
//!
//! An epoll set of sockets that tell of the peer, and an eventfd that threads of this process ring.
//! An epoll set can itself be polled, and is readable while one of its members is.

use crate::ipc::os::{self, Epoll, Fd};
use crate::os::sys;
use core::sync::atomic::{AtomicBool, Ordering};

pub struct Events {
    epoll: Epoll,
    bell: Fd,
    /// Set while the program waits for the next change.
    armed: AtomicBool,
    /// Set if there was a change since `arm` was called last.
    changed: AtomicBool,
}

impl Events {
    /// Makes a set of these descriptors, with their events.
    pub fn new<const N: usize>(members: [(i32, i16); N]) -> os::Result<Self> {
        let epoll = Epoll::new()?;
        let bell = os::new_event()?;
        epoll.watch(bell.raw(), libc::POLLIN, 0)?;
        for (fd, events) in members.into_iter().filter(|(fd, _)| *fd >= 0) {
            epoll.watch(fd, events, 0)?;
        }
        sys::raise_event(bell.raw()); // a program that has not armed it looks first
        Ok(Self { epoll, bell, armed: AtomicBool::new(false), changed: AtomicBool::new(false) })
    }

    pub fn raw(&self) -> i32 {
        self.epoll.raw()
    }

    /// Announces that the program will wait; look for changes after this. Returns whether other
    /// threads have reported one since the last call: the program may have looked before it.
    pub fn arm(&self) -> bool {
        os::drain_event(&self.bell);
        self.armed.store(true, Ordering::SeqCst);
        self.changed.swap(false, Ordering::SeqCst)
    }

    /// Makes the descriptor readable if the program waits; after a change and a full fence.
    pub fn ring(&self) {
        self.changed.store(true, Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::SeqCst) {
            sys::raise_event(self.bell.raw());
        }
    }
}
