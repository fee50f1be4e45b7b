//! Buffers that the kernel helper knows, from the post of a message to its end.

use super::across::Lent;
use super::half::{Half, Role};
use super::link::Link;
use super::lock::Held;
use super::os::Way;

impl Link {
    /// Makes a buffer known, if there is a helper and the message will be large enough.
    pub fn lend(&self, role: Role, addr: usize, len: usize) -> Lent<'_> {
        let large = len > 0 && len >= self.offload && (role == Role::Reader || len > self.eager);
        let across = self.engine.across().filter(|across| large && across.is_on());
        let way = match role {
            Role::Writer => Way::Pull,
            Role::Reader => Way::Push,
        };
        Lent::new(across, &[way], addr, len)
    }

    /// Takes the result of a message that is over. Afterwards the buffer is the program's.
    pub fn collected(&self, mut half: Held<'_, Half>, number: u32) -> isize {
        let (result, post) = half.collect(number);
        let place_wanted = half.take_place_wanted();
        self.let_go(half);
        if place_wanted {
            self.mine().bell.0.ring();
        }
        drop(Lent::known(self.engine.across(), post));
        result
    }

    /// When nothing is under way any more.
    pub fn take_everything_back(&self) {
        for role in [Role::Writer, Role::Reader] {
            let posts = self.half(role).0.lock().take_posts();
            posts.into_iter().for_each(|post| drop(Lent::known(self.engine.across(), post)));
        }
    }
}
