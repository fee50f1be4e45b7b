//! Buffers that the kernel helper knows, from the post of a message to its end.

use super::engine::Engine;
use super::half::{Half, Role};
use super::link::Link;
use super::lock::Held;
use super::os::Way;

/// What the helper knows a buffer by, until the message has it. When this goes the buffer is
/// taken back, and nobody uses it any more.
pub struct Lent<'a> {
    engine: &'a Engine,
    /// 0: it is not known.
    pub post: u64,
}

impl<'a> Lent<'a> {
    pub fn nothing(engine: &'a Engine) -> Self {
        Self { engine, post: 0 }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(across) = self.engine.across().filter(|_| self.post != 0) {
            across.unpost(self.post);
        }
    }
}

impl Link {
    /// Makes a buffer known, if there is a helper and the message will be large enough.
    pub fn lend(&self, role: Role, addr: usize, len: usize) -> Lent<'_> {
        let large = len > 0 && len >= self.offload && (role == Role::Reader || len > self.eager);
        let across = self.engine.across().filter(|across| large && across.is_on());
        let way = match role {
            Role::Writer => Way::Pull,
            Role::Reader => Way::Push,
        };
        let post = across.map_or(0, |across| across.post(&[way], addr, len));
        Lent { engine: &self.engine, post }
    }

    /// Takes the result of a message that is over. Afterwards the buffer is the program's.
    pub fn collected(&self, mut half: Held<'_, Half>, number: u32) -> isize {
        let (result, post) = half.collect(number);
        let place_wanted = half.take_place_wanted();
        drop(half);
        self.ring();
        if place_wanted {
            self.mine().bell.0.ring();
        }
        drop(Lent { engine: &self.engine, post });
        result
    }

    /// When nothing is under way any more.
    pub fn take_everything_back(&self) {
        for role in [Role::Writer, Role::Reader] {
            let posts = self.half(role).0.lock().take_posts();
            posts.into_iter().for_each(|post| drop(Lent { engine: &self.engine, post }));
        }
    }
}
