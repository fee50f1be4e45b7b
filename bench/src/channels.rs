//! Two processes that exchange messages, over each of the channels that are compared.
//!
//! The other process is a fork of this one: it has the same buffers at the same addresses,
//! and waits for orders in a pipe, so it costs nothing while others are measured.

mod lane;
mod library;
mod ways;

pub use lane::SPIN_NS;

use crate::measure::now;
use crate::memory::Area;
use crate::options::MIB;
use lane::{Lane, SLOTS, shared};
use library::Library;
use std::ptr;
use ways::End;

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(usize)]
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
    const ALL: [Channel; 7] = [
        Channel::Adma,
        Channel::Blocks,
        Channel::Pipe,
        Channel::Socket,
        Channel::SharedMemory,
        Channel::ProcessVm,
        Channel::Futex,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Channel::Adma => "adma",
            Channel::Blocks => "adma_alloc",
            Channel::Pipe => "pipe",
            Channel::Socket => "socket",
            Channel::SharedMemory => "shared memory",
            Channel::ProcessVm => "process_vm",
            Channel::Futex => "futex",
        }
    }

    /// As a field of a figure's key.
    pub fn key(self) -> String {
        self.name().replace([' ', ','], "_")
    }
}

const LARGEST: usize = 64 * MIB;
/// What the two processes do with messages.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(usize)]
pub enum Game {
    /// Back and forth; the bytes are neither written nor read.
    PingPong,
    /// Back and forth; what is sent is written before and what was received is read.
    Used,
    /// One way, with an answer after the last one.
    Stream,
}

impl Game {
    const ALL: [Game; 3] = [Game::PingPong, Game::Used, Game::Stream];
}

pub struct Peer {
    end: End,
    orders: i32,
    child: i32,
    about: String,
    _areas: [Area; 2],
}

#[repr(C)]
struct Order {
    channel: usize,
    size: usize,
    rounds: usize,
    slot: usize,
    game: usize,
}

fn close(fd: i32) {
    // SAFETY: a descriptor of ours that is not used any more.
    unsafe { libc::close(fd) };
}

fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: both numbers are ours to fill.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: no memory.
    unsafe { libc::fcntl(ends[0], libc::F_SETPIPE_SZ, 1 << 20) };
    ends
}

fn socket_pair() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: both numbers are ours to fill.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) };
    assert_eq!(made, 0);
    ends
}

/// Binds this process to a CPU.
fn pin(cpu: usize) {
    // SAFETY: all zeros is a set without CPUs; the kernel reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

impl Peer {
    /// Forks; there must be no other thread. `cpus`: where the two processes are bound.
    pub fn start(lib: &str, cpus: Option<[usize; 2]>) -> Self {
        let areas = [Area::new(LARGEST), Area::new(LARGEST)];
        let lanes: *mut Lane = shared(2);
        // SAFETY: two lanes were mapped.
        let lanes = unsafe { [lanes, lanes.add(1)] };
        let (orders, pipes, sockets) = (pipe(), [pipe(), pipe()], socket_pair());
        let greet = socket_pair();
        let mut end = End {
            lanes,
            side: 0,
            counts: [0; 2],
            slot_counts: [[0; SLOTS]; 2],
            slot: 0,
            // SAFETY: no arguments.
            other: unsafe { libc::getpid() },
            pipe: [0; 2],
            socket: 0,
            library: Library::open(lib),
            out: areas[0].at(0),
            incoming: areas[1].at(0),
            game: Game::PingPong,
        };
        // SAFETY: there is no other thread; the child only serves and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no memory; the child dies with us.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::close(orders[1]);
            }
            end.side = 1;
            cpus.into_iter().for_each(|cpus| pin(cpus[1]));
            end.pipe = [pipes[0][0], pipes[1][1]];
            end.socket = sockets[1];
            end.library.connect(greet[1]);
            serve(&mut end, orders[0]);
        }
        end.other = child;
        cpus.into_iter().for_each(|cpus| pin(cpus[0]));
        end.pipe = [pipes[1][0], pipes[0][1]];
        end.socket = sockets[0];
        // What the child has of these hides that it may have left.
        close(greet[1]);
        close(orders[0]);
        end.library.connect(greet[0]);
        let about = end.library.about();
        Peer { end, orders: orders[1], child, about, _areas: areas }
    }

    pub fn about(&self) -> &str {
        &self.about
    }

    /// Nanoseconds of half a round trip, or of one message of a stream.
    pub fn play(&mut self, game: Game, channel: Channel, size: usize, rounds: usize) -> f64 {
        let slot = (self.end.slot + 1) % SLOTS;
        self.end.slot = slot;
        self.end.game = game;
        let order = Order {
            channel: channel as usize,
            size,
            rounds: rounds + 2,
            slot,
            game: game as usize,
        };
        // SAFETY: a plain structure, written whole: it is shorter than a pipe's page.
        unsafe { libc::write(self.orders, (&raw const order).cast(), size_of::<Order>()) };
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
        // SAFETY: our own descriptor and child.
        unsafe {
            libc::close(self.orders);
            libc::kill(self.child, libc::SIGKILL);
            libc::waitpid(self.child, ptr::null_mut(), 0);
        }
    }
}

fn serve(end: &mut End, orders: i32) -> ! {
    let mut order = Order { channel: 0, size: 0, rounds: 0, slot: 0, game: 0 };
    loop {
        // SAFETY: filled whole: orders are written whole.
        let got = unsafe { libc::read(orders, (&raw mut order).cast(), size_of::<Order>()) };
        if got != size_of::<Order>() as isize {
            // SAFETY: leaves without running what belongs to the parent.
            unsafe { libc::_exit(0) };
        }
        let channel = Channel::ALL[order.channel];
        end.slot = order.slot;
        end.game = Game::ALL[order.game];
        for round in 0..order.rounds {
            end.receive(channel, order.size);
            if end.game != Game::Stream || round + 1 == order.rounds {
                end.send(channel, order.size);
            }
        }
    }
}
