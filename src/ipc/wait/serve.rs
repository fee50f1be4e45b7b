//! Serving connections: what the service thread does with messages that no thread waits for.

use crate::ipc::handles;
use crate::ipc::link::{Link, other};
use crate::ipc::messages::{Role, Step};
use crate::ipc::os;
use crate::ipc::setup::accept;
use crate::ipc::wake::doorbell::how;
use crate::ipc::wake::service::{self, CONNECTION, GREETING, Work};

/// Rounds over the messages of one connection before the others have their turn: a peer that always
/// has something to do cannot keep the thread.
const ROUNDS: usize = 16;

/// Hands this module's work to the service thread.
pub fn begin() {
    service::set_work(Work { serve, look, join_all });
}

fn serve(keys: &[u64]) {
    for &key in keys {
        match key & !u64::from(u32::MAX) {
            GREETING => accept::advance(key as u32),
            CONNECTION => _ = handles::find(key as i32).map(|link| link.serve()),
            _ => {}
        }
    }
}

fn look() {
    accept::drop_late();
    for link in handles::all() {
        if !link.look_for_end() {
            link.leave_service();
        }
    }
}

fn join_all() {
    accept::join_all();
    handles::all().for_each(|link| link.join_service());
}

impl Link {
    /// Does everything there is to do for a connection whose peer has rung, or that a thread of this
    /// process has called for.
    pub fn serve(&self) {
        let is_alive = self.note_events(os::poll(self.descriptors(), 0).unwrap_or_default());
        self.drain();
        if !is_alive || self.end_of_other() == other::BROKEN {
            self.leave_service(); // it would be ready for ever
        }
        for _ in 0..ROUNDS {
            if self.needs_service() {
                self.mine().doorbell.0.announce(how::BYTE); // before the look
            }
            if !self.move_unattended() {
                return self.ring_if_news();
            }
        }
        service::call(self.key());
        self.ring_if_news();
    }

    /// Takes every message that no thread waits for a step further. True: something was done.
    fn move_unattended(&self) -> bool {
        let mut any = false;
        for role in Role::BOTH {
            let (lock, _) = self.endpoint(role);
            let under_way = lock.lock().under_way();
            for number in under_way {
                if self.end_of_other() == other::BROKEN {
                    return false; // its cookies find out
                }
                let mut endpoint = lock.lock();
                if !endpoint.is_unattended(number) {
                    continue;
                }
                match self.step(role, number, true, endpoint) {
                    None => {}
                    Some((_, Ok(Step::Idle(_) | Step::Cancelled))) => continue,
                    Some((endpoint, Ok(_))) => self.let_go(endpoint),
                    Some((_, Err(_))) => {
                        self.broken();
                        return false;
                    }
                }
                any = true;
            }
        }
        any
    }

    /// Makes the event descriptor readable if the program waits and has something to look at.
    fn ring_if_news(&self) {
        if let Some(events) = self.armed_events()
            && self.has_news()
        {
            events.ring();
        }
    }
}
