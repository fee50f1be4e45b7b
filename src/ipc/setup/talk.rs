//! One side of a conversation over a socket: greetings as bytes, said and heard without waiting.

use crate::ipc::claims::Role;
use crate::ipc::copy::proof::{Claimed, Reached, Secret};
use crate::ipc::os::blocking;
use crate::ipc::os::{self, Beside, Result};
use crate::os::lock::Lock;
use crate::os::text;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::future::poll_fn;
use core::task::Poll;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const MAGIC: u64 = u64::from_le_bytes(*b"adma-ipc");
const VERSION: u32 = 15;

/// Plain numbers without gaps, so any bytes are one and one is bytes. 0: no, or not known yet.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, Immutable, IntoBytes)]
pub struct Greeting {
    magic: u64,
    version: u32,
    pub step: u32,
    pub nonce: u64,
    pub page: u64,
    pub secret: Secret,
    /// Export of the page by the kernel helper, for a trial.
    pub pin: u64,
    pub region: u32,
    pub side: u32,
    pub flags: u32,
    reserved: u32,
}

pub const HELLO: u32 = 1;
pub const PAGE: u32 = 2;
pub const PROOF: u32 = 3;
pub const DONE: u32 = 4;
pub const NO_ROOM: u32 = 5;

pub mod flag {
    /// Both proofs are good as far as this side knows.
    pub const PROVEN: u32 = 1;
    /// This side copies by calls and uses blocks, where the proofs are good.
    pub const CALLS: u32 = 4;
    /// I have workers for large messages.
    pub const WORKERS: u32 = 8;
    /// The kernel helper has copied to and from your page.
    pub const HELPER: u32 = 16;
}

const _: () = assert!(size_of::<Greeting>() == 72);

impl Greeting {
    pub fn new() -> Self {
        Self { magic: MAGIC, version: VERSION, ..Self::default() }
    }

    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    pub fn add(&mut self, flag: u32, wanted: bool) {
        self.flags |= if wanted { flag } else { 0 };
    }
}

/// Page and secret of the peer, or why they cannot be reached.
pub type ReachResult = core::result::Result<(Reached, Secret), String>;

/// One side of a conversation.
pub struct Talk {
    pub socket: i32,
    pub wants: Arc<Lock<(i32, i16)>>,
    /// Set when something has come.
    pub heard: bool,
}

impl Talk {
    /// Tries until the descriptor is ready.
    async fn when_ready<T>(
        &self,
        fd: i32,
        events: i16,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        poll_fn(|_| {
            loop {
                match attempt() {
                    Err(libc::EINTR) => {}
                    Err(libc::EAGAIN) => {
                        *self.wants.lock() = (fd, events);
                        return Poll::Pending;
                    }
                    done => return Poll::Ready(done),
                }
            }
        })
        .await
    }

    /// Reads the other side's page and writes its mark, by a helper thread: its memory may block.
    pub async fn reach(&self, claimed: Claimed) -> ReachResult {
        let try_it = move || {
            let (reached, secret) = claimed.read()?;
            reached.probe(Role::Writer).map(|()| (reached, secret))
        };
        let [here, mut there] = os::unix_pair().map_err(text::meaning)?;
        there.shut_on_drop = true; // seen also where a child has a copy
        let result = Arc::new(Lock::new(None));
        let answer = result.clone();
        let taken = blocking::run(move || {
            *answer.lock() = Some(try_it().map_err(|why| why.to_string()));
            drop(there); // makes `here` readable
        });
        if !taken {
            return Err("there is no thread to try it".to_string());
        }
        let look = || result.lock().take().ok_or(libc::EAGAIN);
        self.when_ready(here.raw(), libc::POLLIN, look).await.map_err(text::meaning)?
    }

    pub async fn say(&mut self, mine: &mut Greeting, step: u32, fds: &[i32]) -> Result<()> {
        mine.step = step;
        let (bytes, mut sent, mut fds) = (mine.as_bytes(), 0, fds);
        while sent < bytes.len() {
            let send = || os::send(self.socket, &bytes[sent..], fds);
            sent += self.when_ready(self.socket, libc::POLLOUT, send).await?;
            fds = &[];
        }
        Ok(())
    }

    /// Receives exactly one greeting: what comes after may be the program's own.
    pub async fn hear(&mut self, step: u32, most_fds: usize) -> Result<(Greeting, Beside)> {
        let (mut theirs, mut beside, mut got) = (Greeting::default(), Beside::default(), 0);
        let known = Greeting::new();
        while got < size_of::<Greeting>() {
            let room = &mut theirs.as_mut_bytes()[got..];
            let receive = || os::receive(self.socket, room, &mut beside);
            got += match self.when_ready(self.socket, libc::POLLIN, receive).await? {
                0 => return Err(libc::ECONNRESET),
                _ if beside.fds.len() > most_fds => return Err(libc::EPROTO),
                count => count,
            };
            self.heard = true;
            // A prefix that differs is another protocol: nothing more is waited for.
            let same = got.min(core::mem::offset_of!(Greeting, step));
            if theirs.as_bytes()[..same] != known.as_bytes()[..same] {
                return Err(libc::EPROTO);
            }
        }
        match theirs.step {
            NO_ROOM => Err(libc::ENOBUFS),
            said if said == step => Ok((theirs, beside)),
            _ => Err(libc::EPROTO),
        }
    }
}
