//! Two processes that exchange messages, over each of the channels that are compared.
//!
//! The other process is a fork of this one: it has these buffers at these addresses, and waits for
//! orders on a pipe, so it costs nothing while others are measured.

mod lane;
mod library;
mod ways;

pub use lane::SPIN_NS;

use crate::machine;
use crate::measure::now;
use crate::memory::Area;
use crate::options::MIB;
use lane::{Lane, SLOTS};
use library::Library;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::{mem, ptr};
use ways::End;

#[derive(Clone, Copy, PartialEq)]
pub enum Channel {
    Adma,
    /// adma with buffers of `adma_alloc`.
    Blocks,
    Pipe,
    Socket,
    /// Two copies, pipelined through a ring of chunks.
    SharedMemory,
    /// The reader pulls all of it.
    ProcessVm,
    /// A flag and a buffer in shared memory, see `Slot`; spins, then sleeps.
    Futex,
}

impl Channel {
    const ALL: [(Channel, &str); 7] = [
        (Channel::Adma, "adma"),
        (Channel::Blocks, "adma_alloc"),
        (Channel::Pipe, "pipe"),
        (Channel::Socket, "socket"),
        (Channel::SharedMemory, "shared memory"),
        (Channel::ProcessVm, "process_vm"),
        (Channel::Futex, "futex"),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns a field of a figure's key.
    pub fn key(self) -> String {
        self.name().replace(' ', "_")
    }
}

const LARGEST: usize = 64 * MIB;

/// Use of messages by the two processes.
#[derive(Clone, Copy, PartialEq)]
pub enum Game {
    /// Back and forth; the bytes are neither written nor read.
    PingPong,
    /// Back and forth; data is written before it is sent and read when received.
    Used,
    /// One way, with an answer after the last one.
    Stream,
}

impl Game {
    const ALL: [Game; 3] = [Game::PingPong, Game::Used, Game::Stream];
}

pub struct Peer {
    end: End,
    orders: PipeWriter,
    child: i32,
    pub about: String,
    _areas: [Area; 3],
}

fn pipe() -> (PipeReader, PipeWriter) {
    let ends = std::io::pipe().expect("a pipe");
    // SAFETY: no memory.
    unsafe { libc::fcntl(ends.0.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20) };
    ends
}

impl Peer {
    /// Forks; there must be no other thread. `cpus`: CPUs of the two processes.
    pub fn start(lib: &str, cpus: Option<[usize; 2]>) -> Self {
        let lanes = Area::shared(2 * size_of::<Lane>());
        let areas = [Area::new(LARGEST), Area::new(LARGEST), lanes];
        let (orders, order_writer) = pipe();
        let [(up, to_parent), (down, to_child)] = [pipe(), pipe()];
        let [sockets, greetings] = [(); 2].map(|()| UnixStream::pair().expect("sockets"));
        let mut ours = (up, to_child, sockets.0, greetings.0);
        let mut theirs = (down, to_parent, sockets.1, greetings.1);
        let mut library = Library::open(lib);
        // SAFETY: there is no other thread; the child only serves and leaves.
        let (parent, child) = unsafe { (libc::getpid(), libc::fork()) };
        let side = usize::from(child == 0);
        if child == 0 {
            // SAFETY: no memory; the child dies with its parent.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            mem::swap(&mut ours, &mut theirs);
        }
        // Open ends of the other process would hide its exit.
        drop(theirs);
        cpus.into_iter().for_each(|cpus| machine::bind(0, &[cpus[side]]).unwrap_or_default());
        let (reader, writer, socket, greeting) = ours;
        library.connect(greeting.into_raw_fd());
        let about = library.about();
        let mut end = End {
            lanes: [0, size_of::<Lane>()].map(|at| areas[2].at(at).cast()),
            side,
            counts: [0; 2],
            slot_counts: [[0; SLOTS]; 2],
            slot: 0,
            other: if child == 0 { parent } else { child },
            pipe: (reader, writer),
            socket,
            library,
            out: areas[0].at(0),
            incoming: areas[1].at(0),
            game: Game::PingPong,
        };
        if child == 0 {
            drop(order_writer);
            serve(&mut end, orders);
        }
        Peer { end, orders: order_writer, child, about, _areas: areas }
    }

    /// Returns the nanoseconds of half a round trip, or of one message of a stream.
    pub fn play(&mut self, game: Game, channel: Channel, size: usize, rounds: usize) -> f64 {
        self.end.slot = (self.end.slot + 1) % SLOTS;
        self.end.game = game;
        let order = [channel as usize, size, rounds + 2, self.end.slot, game as usize];
        let order = order.map(usize::to_ne_bytes);
        self.orders.write_all(order.as_flattened()).expect("the other process lives");
        let mut begun = 0;
        for round in 0..rounds + 2 {
            if round == 2 {
                begun = now();
            }
            self.end.send(channel, size);
            if game != Game::Stream || round == rounds + 1 {
                self.end.receive(channel, size);
            }
        }
        let ways = if game == Game::Stream { 1.0 } else { 2.0 };
        (now() - begun) as f64 / rounds as f64 / ways
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: our own child.
        unsafe {
            libc::kill(self.child, libc::SIGKILL);
            libc::waitpid(self.child, ptr::null_mut(), 0);
        }
    }
}

fn serve(end: &mut End, mut orders: PipeReader) -> ! {
    let mut order = [[0; size_of::<usize>()]; 5];
    while orders.read_exact(order.as_flattened_mut()).is_ok() {
        let [channel, size, rounds, slot, game] = order.map(usize::from_ne_bytes);
        let channel = Channel::ALL[channel].0;
        (end.slot, end.game) = (slot, Game::ALL[game]);
        for round in 0..rounds {
            end.receive(channel, size);
            if end.game != Game::Stream || round + 1 == rounds {
                end.send(channel, size);
            }
        }
    }
    // SAFETY: leaves without running what belongs to the parent.
    unsafe { libc::_exit(0) }
}
