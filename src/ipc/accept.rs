//! Who has come to a listener and has not finished its greetings. They are looked after together,
//! by whoever accepts, so that one who says nothing keeps nobody else out.

use super::handshake::{Handshake, Met};
use super::hidden::Hidden;
use super::lock::Lock;
use super::os::{self, Fd, Identity};
use super::settings::Settings;
use alloc::vec;
use alloc::vec::Vec;

/// So many of them; others stay in the listener's queue.
const MOST: usize = 128;

struct Guest {
    listener: Identity,
    /// Goes before its socket does.
    greeting: Handshake,
    _hidden: Hidden,
    _socket: Fd,
}

static GUESTS: Lock<Vec<Guest>> = Lock::new(Vec::new());

/// Waits for the next who has greeted, well or not.
pub fn accept(listener: i32, settings: &Settings) -> os::Result<Met> {
    if !os::is_listener(listener) {
        return os::accept(listener).and(Err(libc::EINVAL)); // what accept says
    }
    let identity = os::identity(listener).ok_or(libc::EBADF)?;
    loop {
        if let Some(met) = go_on(identity) {
            return met;
        }
        let waiting = watched(identity);
        let mut ready = waiting.is_empty();
        if !ready {
            // The listener first, unless there is no room.
            let mut all = vec![(if waiting.len() < MOST { listener } else { -1 }, libc::POLLIN)];
            all.extend(waiting.iter().map(|(event, _)| *event));
            let limit = waiting.iter().map(|(_, limit)| *limit).min().unwrap_or(0);
            ready = os::poll_events(&all, limit)[0] != 0;
        }
        // With nobody else to look after it waits here, as accept(2) does.
        if ready {
            let socket = os::accept(listener)?;
            let greeting = Handshake::new(socket.raw(), *settings);
            let mut hidden = Hidden::default();
            hidden.add(&socket);
            let guest = Guest { listener: identity, greeting, _hidden: hidden, _socket: socket };
            GUESTS.lock().push(guest);
        }
    }
}

fn go_on(listener: Identity) -> Option<os::Result<Met>> {
    let mut guests = GUESTS.lock();
    for index in 0..guests.len() {
        if guests[index].listener == listener
            && let Some(met) = guests[index].greeting.go_on()
        {
            guests.remove(index);
            return Some(met);
        }
    }
    None
}

/// What to poll for, and for how long.
fn watched(listener: Identity) -> Vec<((i32, i16), i32)> {
    let guests = GUESTS.lock();
    let own = guests.iter().filter(|guest| guest.listener == listener);
    own.map(|guest| (guest.greeting.events(), guest.greeting.milliseconds())).collect()
}

/// A listener is closed.
pub fn forget(listener: i32) {
    if let Some(identity) = os::identity(listener) {
        GUESTS.lock().retain(|guest| guest.listener != identity);
    }
}

/// In the child of a fork: they are the parent's guests.
pub fn forget_after_fork() {
    GUESTS.renew(Vec::new());
}
