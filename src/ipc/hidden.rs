//! Sockets that belong to no connection yet. A child that is forked meanwhile has them as well,
//! and would hide the end of its parent from the other side: it closes them. Whoever is at their
//! other end cannot hold up who closes them.

use super::blocking::User;
use super::os::{self, Fd};
use crate::os::sys;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicI32, Ordering};

/// So many at a time; others are not looked after.
const MOST: usize = 512;

/// The numbers, and one; 0: nothing.
static ALL: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

#[derive(Debug)]
pub struct Hidden {
    socket: ManuallyDrop<Fd>,
    /// Who has the other end.
    pub user: User,
    place: Option<&'static AtomicI32>,
}

impl Hidden {
    pub fn new(socket: Fd, user: User) -> Self {
        let number = socket.raw() + 1;
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let free = |place: &&AtomicI32| place.compare_exchange(0, number, success, failure).is_ok();
        Self { socket: ManuallyDrop::new(socket), user, place: ALL.iter().find(free) }
    }

    /// Closes a socket that the other side goes on with: only we could put something into it.
    pub fn close_our_copy(self) {
        self.reveal();
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it is not used again.
        drop(unsafe { ManuallyDrop::take(&mut this.socket) });
    }

    /// Somebody else looks after it from now on.
    pub fn reveal(&self) {
        // As long as it is open nobody else has the number.
        let (number, relaxed) = (self.socket.raw() + 1, Ordering::Relaxed);
        if let Some(place) = self.place {
            let _ = place.compare_exchange(number, 0, Ordering::Release, relaxed);
        }
    }
}

impl core::ops::Deref for Hidden {
    type Target = Fd;

    fn deref(&self) -> &Fd {
        &self.socket
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // A child that is forked from now on has it, and must not hide the end from the other side.
        if self.is_there() {
            os::shut_down(self.raw(), libc::SHUT_RDWR);
        }
        self.reveal(); // before it is closed: another file might get the number
        // SAFETY: nobody uses it any more.
        os::close_socket(unsafe { ManuallyDrop::take(&mut self.socket) }, self.user);
    }
}

/// In the child of a fork.
pub fn forget_after_fork() {
    for place in &ALL {
        match place.swap(0, Ordering::AcqRel) {
            0 => {}
            number => sys::close(number - 1),
        }
    }
}
