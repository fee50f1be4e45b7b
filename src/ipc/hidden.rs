//! Sockets that belong to no connection yet. A child that is forked meanwhile has them as well,
//! and would hide the end of its parent from the other side: it closes them.

use super::os::Fd;
use crate::os::sys;
use core::sync::atomic::{AtomicI32, Ordering};

/// So many at a time; others are not looked after.
const MOST: usize = 512;

/// The numbers, and one; 0: nothing.
static ALL: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

/// Some of them. Goes before the sockets do: another file might get the number.
#[derive(Debug, Default)]
pub struct Hidden([Option<usize>; 3]);

impl Hidden {
    pub fn add(&mut self, socket: &Fd) {
        let number = socket.raw() + 1;
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let free = |place: &AtomicI32| place.compare_exchange(0, number, success, failure).is_ok();
        if let Some(own) = self.0.iter_mut().find(|own| own.is_none()) {
            *own = ALL.iter().position(free);
        }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.0.iter().flatten().for_each(|&place| ALL[place].store(0, Ordering::Release));
    }
}

/// In the child of a fork.
pub fn forget_after_fork() {
    for place in &ALL {
        match place.load(Ordering::Acquire) {
            0 => {}
            number => {
                sys::close(number - 1);
                place.store(0, Ordering::Release);
            }
        }
    }
}
