//! Who has come to a listener and has not finished the handshake. They are looked after together,
//! by whoever accepts, so that one who says nothing keeps nobody else out.

use super::handshake::{Established, Handshake};
use super::hidden::Hidden;
use super::lock::Lock;
use super::os;
use super::settings::Settings;
use crate::os::sys;
use alloc::vec;
use alloc::vec::Vec;

/// So many of them; others stay in the listener's queue.
const MOST: usize = 128;

struct Incoming {
    /// Which file it is.
    listener: (u64, u64),
    /// Goes before its socket does.
    handshake: Handshake,
    _socket: Hidden,
}

static BACKLOG: Lock<Vec<Incoming>> = Lock::new(Vec::new());

/// Waits for the next whose handshake is over, well or not.
pub fn accept(listener: i32, settings: Settings) -> os::Result<Established> {
    if !os::is_listener(listener) {
        return os::accept(listener).and(Err(libc::EINVAL)); // what accept says
    }
    let file = sys::file_of(listener).ok_or(libc::EBADF)?;
    loop {
        let (mut events, mut limit) = (vec![(listener, libc::POLLIN)], i32::MAX);
        let mut backlog = BACKLOG.lock();
        for index in 0..backlog.len() {
            if backlog[index].listener != file {
                continue;
            }
            let handshake = &mut backlog[index].handshake;
            if let Some(done) = handshake.go_on() {
                backlog.remove(index);
                return done;
            }
            events.push(handshake.events());
            limit = limit.min(handshake.milliseconds());
        }
        drop(backlog);
        let alone = events.len() == 1;
        if events.len() > MOST {
            events[0].0 = -1;
        }
        // With nobody else to look after it waits here, as accept(2) does.
        if alone || os::poll(events, limit)[0] != 0 {
            let _socket = Hidden::new(os::accept(listener)?);
            let handshake = Handshake::new(_socket.raw(), settings);
            BACKLOG.lock().push(Incoming { listener: file, handshake, _socket });
        }
    }
}

/// A listener is closed.
pub fn forget(listener: i32) {
    if let Some(file) = sys::file_of(listener) {
        BACKLOG.lock().retain(|incoming| incoming.listener != file);
    }
}

/// In the child of a fork: they are the parent's.
pub fn forget_after_fork() {
    BACKLOG.renew();
}
