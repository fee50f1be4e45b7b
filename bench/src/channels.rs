//! Ways to send bytes to another process, each with one process at the other end.
//!
//! The other process is a fork of this one: it has the same buffers at the same addresses,
//! and waits for orders in a pipe, so it costs nothing while others are measured.

use crate::measure::now;
use crate::memory::Area;
use crate::options::MIB;
use libc::c_void;
use std::ffi::{CStr, CString};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(usize)]
pub enum Channel {
    Adma,
    /// The same with buffers of `adma_alloc`.
    Blocks,
    /// Both with another library, to compare: BENCH_BEFORE.
    Before,
    BeforeBlocks,
    Pipe,
    Socket,
    /// Two copies, pipelined through a ring of chunks.
    SharedMemory,
    /// The reader pulls all of it.
    ProcessVm,
    /// The reader pulls one half while the writer pushes the other, with nothing around it:
    /// the ceiling for what adma does.
    Halves,
    /// A flag and a buffer in shared memory, see `Slot`; spins, then sleeps.
    Futex,
    FutexOnly,
}

impl Channel {
    const ALL: [Channel; 11] = [
        Channel::Adma,
        Channel::Blocks,
        Channel::Before,
        Channel::BeforeBlocks,
        Channel::Pipe,
        Channel::Socket,
        Channel::SharedMemory,
        Channel::ProcessVm,
        Channel::Halves,
        Channel::Futex,
        Channel::FutexOnly,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Channel::Adma => "adma",
            Channel::Blocks => "adma_alloc",
            Channel::Before => "adma before",
            Channel::BeforeBlocks => "alloc before",
            Channel::Pipe => "pipe",
            Channel::Socket => "socket",
            Channel::SharedMemory => "shared memory",
            Channel::ProcessVm => "process_vm",
            Channel::Halves => "two halves",
            Channel::Futex => "futex",
            Channel::FutexOnly => "futex, no spinning",
        }
    }
}

const LARGEST: usize = 64 * MIB;
const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 8;

/// How long to spin before sleeping: what adma spins, about.
pub const SPIN_NS: u64 = 20_000;

/// A word that two processes wait on.
#[repr(align(128))]
struct Word(AtomicU32);

impl Word {
    fn set(&self, value: u32) {
        self.0.store(value, Ordering::SeqCst);
        // SAFETY: wakes; reads no memory.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE, 1) };
    }

    /// The other side spins at first: no call is needed while it does.
    fn set_quietly(&self, value: u32, asleep: &AtomicU32) {
        self.0.store(value, Ordering::SeqCst);
        if asleep.load(Ordering::SeqCst) != 0 {
            asleep.store(0, Ordering::SeqCst);
            self.set(value);
        }
    }

    fn sleep_while(&self, value: u32) {
        let limit = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        // SAFETY: `limit` lives through the call.
        unsafe {
            libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAIT, value, &limit);
        }
    }

    /// Waits until the word is `value`.
    fn wait_for(&self, value: u32, asleep: &AtomicU32) {
        loop {
            let now = self.0.load(Ordering::Acquire);
            if now == value {
                return;
            }
            self.wait_while(now, Some(asleep));
        }
    }

    /// Waits until the word is no longer `value`.
    fn wait_while(&self, value: u32, asleep: Option<&AtomicU32>) {
        if let Some(asleep) = asleep {
            let end = now() + SPIN_NS;
            loop {
                for _ in 0..64 {
                    if self.0.load(Ordering::Acquire) != value {
                        return;
                    }
                    std::hint::spin_loop();
                }
                if now() > end {
                    break;
                }
            }
            while self.0.load(Ordering::SeqCst) == value {
                asleep.store(1, Ordering::SeqCst);
                if self.0.load(Ordering::SeqCst) != value {
                    return;
                }
                self.sleep_while(value);
            }
        } else {
            while self.0.load(Ordering::SeqCst) == value {
                self.sleep_while(value);
            }
        }
    }
}

/// Where a small message lies for `Futex`: as well as one can, the flag, who sleeps, and the
/// bytes each begin a line of their own.
#[repr(C, align(4096))]
struct Slot {
    sent: Word,
    asleep: Word,
    data: Page,
}

#[repr(C, align(4096))]
struct Page([u8; PAGE]);

const PAGE: usize = 4096;

/// Two cores exchange some lines twice as fast as others, by where in the machine such a line
/// has its home. So every turn takes another of these.
const SLOTS: usize = 32;

/// One direction in shared memory.
#[repr(C, align(4096))]
struct Lane {
    /// Messages, or chunks, that are there, and that were taken.
    sent: Word,
    taken: Word,
    sent_asleep: AtomicU32,
    taken_asleep: AtomicU32,
    address: AtomicUsize,
    data: [[u8; CHUNK]; CHUNKS],
    /// Halves that the writer has pushed, and that the reader has pulled.
    halves: [Word; 2],
    halves_asleep: [AtomicU32; 2],
    slots: [Slot; SLOTS],
}

type Lend = unsafe extern "C" fn(i32, *mut c_void) -> i32;
type Transfer = unsafe extern "C" fn(i32, *mut c_void, usize) -> isize;

/// This process's end of everything.
struct End {
    lanes: [*mut Lane; 2],
    /// Which lane it writes.
    side: usize,
    counts: [u32; 2],
    /// Small messages so far in each of the slots.
    slot_counts: [[u32; SLOTS]; 2],
    /// Which of them it is this time.
    slot: usize,
    other: i32,
    pipe: [i32; 2],
    socket: i32,
    /// The library, and the one to compare it with.
    libraries: Vec<Library>,
    out: *mut u8,
    incoming: *mut u8,
    game: Game,
}

/// What the two processes do with messages.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(usize)]
pub enum Game {
    /// Back and forth; nobody looks at the bytes.
    PingPong,
    /// The same, but what is sent is written before and what was received is read.
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
    // SAFETY: a descriptor of ours that nobody uses any more.
    unsafe { libc::close(fd) };
}

fn shared<T>(count: usize) -> *mut T {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), count * size_of::<T>(), access, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
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

/// Each process on a CPU of its own, where BENCH_PIN is set: on a busy machine the kernel
/// would put both on one, and nothing could be seen.
fn pin(cpu: usize) {
    if std::env::var_os("BENCH_PIN").is_none() {
        return;
    }
    // SAFETY: all zeros is a set without CPUs; the kernel reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a terminated name.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is not in the library");
    found
}

/// What the two processes may do to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rights {
    /// Whatever the system gives a child and its parent.
    Usual,
    /// Neither lets itself be traced: as two processes of one user under Yama 1.
    Untraced,
    /// They are in different user namespaces.
    Namespaces,
    /// The same, and have lent each other what they read into.
    Lent,
}

impl Rights {
    /// Before a connection is made. False: not to be had here.
    fn take_on(self, child: bool) -> bool {
        // SAFETY: no memory; a child has one thread.
        unsafe {
            match self {
                Rights::Usual => true,
                Rights::Untraced => libc::prctl(libc::PR_SET_DUMPABLE, 0) == 0,
                Rights::Namespaces | Rights::Lent => {
                    !child || libc::unshare(libc::CLONE_NEWUSER) == 0
                }
            }
        }
    }
}

impl Peer {
    /// Forks; there must be no other thread. `None`: there are no such rights here.
    pub fn start(lib: &str, rights: Rights) -> Option<Self> {
        let before = std::env::var("BENCH_BEFORE").ok().filter(|_| rights == Rights::Usual);
        let mut libraries = vec![Library::open(lib)];
        libraries.extend(before.as_deref().map(Library::open));
        let areas = [Area::new(LARGEST), Area::new(LARGEST)];
        let lanes: *mut Lane = shared(2);
        // SAFETY: two lanes were mapped.
        let lanes = unsafe { [lanes, lanes.add(1)] };
        let (orders, pipes, sockets) = (pipe(), [pipe(), pipe()], socket_pair());
        let greet: Vec<[i32; 2]> = libraries.iter().map(|_| socket_pair()).collect();
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
            libraries,
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
            if !rights.take_on(true) {
                // SAFETY: leaves without running what belongs to the parent.
                unsafe { libc::_exit(1) };
            }
            end.side = 1;
            pin(1);
            end.pipe = [pipes[0][0], pipes[1][1]];
            end.socket = sockets[1];
            for (lib, ends) in end.libraries.iter_mut().zip(&greet) {
                assert!(lib.connect(ends[1], rights), "no connection");
            }
            serve(&mut end, orders[0]);
        }
        end.other = child;
        pin(0);
        end.pipe = [pipes[1][0], pipes[0][1]];
        end.socket = sockets[0];
        // What the child has of these hides that it may have left.
        greet.iter().for_each(|ends| close(ends[1]));
        close(orders[0]);
        rights.take_on(false);
        let met =
            end.libraries.iter_mut().zip(&greet).all(|(lib, ends)| lib.connect(ends[0], rights));
        if rights == Rights::Untraced {
            // SAFETY: no memory; other connections are made as before.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
        }
        let about = end.libraries[0].about();
        let peer = Peer { end, orders: orders[1], child, about, _areas: areas };
        met.then_some(peer)
    }

    /// Whether there is another library to compare with.
    pub fn has_before(&self) -> bool {
        self.end.libraries.len() > 1
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

/// A libadma.so, and its connection with the other process.
struct Library {
    read: Transfer,
    write: Transfer,
    attach: unsafe extern "C" fn(i32) -> i32,
    alloc: unsafe extern "C" fn(usize) -> *mut c_void,
    info: Transfer,
    /// Of older libraries not to be had.
    lend: Option<Lend>,
    connection: i32,
    /// For what is sent, and for what is received.
    blocks: [*mut u8; 2],
}

impl Library {
    fn open(path: &str) -> Self {
        let name = CString::new(path).expect("a path");
        // SAFETY: a terminated path.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{path} cannot be opened");
        let symbol = |name| symbol(handle, name);
        // SAFETY: the functions have these types, see include/adma.h.
        unsafe {
            Self {
                read: transmute::<*mut c_void, Transfer>(symbol(c"adma_read")),
                write: transmute::<*mut c_void, Transfer>(symbol(c"adma_write")),
                attach: transmute::<*mut c_void, unsafe extern "C" fn(i32) -> i32>(symbol(
                    c"adma_attach",
                )),
                alloc: transmute::<*mut c_void, unsafe extern "C" fn(usize) -> *mut c_void>(
                    symbol(c"adma_alloc"),
                ),
                info: transmute::<*mut c_void, Transfer>(symbol(c"adma_connection_info")),
                lend: transmute::<*mut c_void, Option<Lend>>(libc::dlsym(
                    handle,
                    c"adma_lend".as_ptr(),
                )),
                connection: 0,
                blocks: [ptr::null_mut(); 2],
            }
        }
    }

    /// False: the other side has left.
    fn connect(&mut self, socket: i32, rights: Rights) -> bool {
        // SAFETY: a connected socket.
        self.connection = unsafe { (self.attach)(socket) };
        if self.connection == -libc::ECONNRESET || self.connection == -libc::EPIPE {
            return false;
        }
        assert!(self.connection > 0, "attach: {}", self.connection);
        self.blocks = [(); 2].map(|()| {
            // SAFETY: a new block, which nobody frees.
            let block: *mut u8 = unsafe { (self.alloc)(LARGEST) }.cast();
            assert!(!block.is_null(), "no memory for a block");
            block
        });
        if let Some(lend) = self.lend.filter(|_| rights == Rights::Lent) {
            // SAFETY: a block.
            assert_eq!(unsafe { lend(self.connection, self.blocks[1].cast()) }, 0, "not lent");
        }
        true
    }

    fn about(&self) -> String {
        let mut text = [0u8; 300];
        // SAFETY: the text has this room.
        unsafe { (self.info)(self.connection, text.as_mut_ptr().cast(), text.len()) };
        CStr::from_bytes_until_nul(&text).unwrap_or(c"?").to_string_lossy().into()
    }
}

impl End {
    fn library(&self, channel: Channel) -> &Library {
        let before = matches!(channel, Channel::Before | Channel::BeforeBlocks);
        &self.libraries[usize::from(before)]
    }

    /// What is sent, or what is received.
    fn buffer(&self, channel: Channel, which: usize) -> *mut u8 {
        match channel {
            Channel::Blocks | Channel::BeforeBlocks => self.library(channel).blocks[which],
            _ => [self.out, self.incoming][which],
        }
    }

    /// All of these: SAFETY: `out` and `incoming` have `LARGEST` bytes, lanes are mapped.
    fn send(&mut self, channel: Channel, size: usize) {
        if self.game == Game::Used {
            let out = self.buffer(channel, 0);
            // SAFETY: see above.
            unsafe { ptr::write_bytes(out, size as u8, size) };
        }
        // SAFETY: mapped for as long as we live.
        let lane = unsafe { &*self.lanes[self.side] };
        let count = &mut self.counts[self.side];
        match channel {
            Channel::Adma | Channel::Blocks | Channel::Before | Channel::BeforeBlocks => {
                let (lib, out) = (self.library(channel), self.buffer(channel, 0));
                // SAFETY: see above.
                let sent = unsafe { (lib.write)(lib.connection, out.cast(), size) };
                assert_eq!(sent, size as isize);
            }
            Channel::Pipe => write_all(self.pipe[1], self.out, size),
            Channel::Socket => write_all(self.socket, self.out, size),
            Channel::SharedMemory => {
                for at in (0..size).step_by(CHUNK) {
                    let full = count.wrapping_sub(CHUNKS as u32);
                    lane.taken.wait_while(full, Some(&lane.taken_asleep));
                    let chunk = lane.data[*count as usize % CHUNKS].as_ptr().cast_mut();
                    let len = CHUNK.min(size - at);
                    // SAFETY: see above; the chunk is free.
                    unsafe { ptr::copy_nonoverlapping(self.out.add(at), chunk, len) };
                    *count = count.wrapping_add(1);
                    lane.sent.set_quietly(*count, &lane.sent_asleep);
                }
            }
            Channel::ProcessVm => {
                lane.address.store(self.out as usize, Ordering::Relaxed);
                *count = count.wrapping_add(1);
                lane.sent.set_quietly(*count, &lane.sent_asleep);
                let before = count.wrapping_sub(1);
                lane.taken.wait_while(before, Some(&lane.taken_asleep));
            }
            Channel::Halves => {
                let before = *count;
                *count = before.wrapping_add(1);
                lane.sent.set_quietly(*count, &lane.sent_asleep);
                lane.taken.wait_while(before, Some(&lane.taken_asleep));
                // The other process has its buffers where we have ours.
                let half = size / 2;
                // SAFETY: see above.
                let (from, to) = (unsafe { self.out.add(half) }, self.incoming as usize + half);
                across(libc::process_vm_writev, self.other, from, to, size - half);
                lane.halves[0].set_quietly(*count, &lane.halves_asleep[0]);
                lane.halves[1].wait_for(*count, &lane.halves_asleep[1]);
            }
            Channel::Futex | Channel::FutexOnly => {
                let slot = &lane.slots[self.slot];
                let count = &mut self.slot_counts[self.side][self.slot];
                let buffer = slot.data.0.as_ptr().cast_mut();
                assert!(size <= PAGE);
                // SAFETY: see above; in a ping-pong the buffer is free.
                unsafe { ptr::copy_nonoverlapping(self.out, buffer, size) };
                *count = count.wrapping_add(1);
                if channel == Channel::Futex {
                    slot.sent.set_quietly(*count, &slot.asleep.0);
                } else {
                    slot.sent.set(*count);
                }
            }
        }
    }

    fn receive(&mut self, channel: Channel, size: usize) {
        self.take(channel, size);
        if self.game == Game::Used {
            let to = self.buffer(channel, 1);
            // SAFETY: see above.
            let words = unsafe { std::slice::from_raw_parts(to.cast::<u64>(), size / 8) };
            std::hint::black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
        }
    }

    fn take(&mut self, channel: Channel, size: usize) {
        let from = 1 - self.side;
        // SAFETY: mapped for as long as we live.
        let lane = unsafe { &*self.lanes[from] };
        let count = &mut self.counts[from];
        match channel {
            Channel::Adma | Channel::Blocks | Channel::Before | Channel::BeforeBlocks => {
                let (lib, to) = (self.library(channel), self.buffer(channel, 1));
                // SAFETY: see above.
                let got = unsafe { (lib.read)(lib.connection, to.cast(), size) };
                assert_eq!(got, size as isize);
            }
            Channel::Pipe => read_all(self.pipe[0], self.incoming, size),
            Channel::Socket => read_all(self.socket, self.incoming, size),
            Channel::SharedMemory => {
                for at in (0..size).step_by(CHUNK) {
                    lane.sent.wait_while(*count, Some(&lane.sent_asleep));
                    let chunk = lane.data[*count as usize % CHUNKS].as_ptr();
                    let len = CHUNK.min(size - at);
                    // SAFETY: see above; the chunk was filled.
                    unsafe { ptr::copy_nonoverlapping(chunk, self.incoming.add(at), len) };
                    *count = count.wrapping_add(1);
                    lane.taken.set_quietly(*count, &lane.taken_asleep);
                }
            }
            Channel::ProcessVm => {
                lane.sent.wait_while(*count, Some(&lane.sent_asleep));
                let from = lane.address.load(Ordering::Relaxed);
                across(libc::process_vm_readv, self.other, self.incoming, from, size);
                *count = count.wrapping_add(1);
                lane.taken.set_quietly(*count, &lane.taken_asleep);
            }
            Channel::Halves => {
                let before = *count;
                lane.sent.wait_while(before, Some(&lane.sent_asleep));
                *count = before.wrapping_add(1);
                lane.taken.set_quietly(*count, &lane.taken_asleep);
                let from = self.out as usize;
                across(libc::process_vm_readv, self.other, self.incoming, from, size / 2);
                lane.halves[1].set_quietly(*count, &lane.halves_asleep[1]);
                lane.halves[0].wait_for(*count, &lane.halves_asleep[0]);
            }
            Channel::Futex | Channel::FutexOnly => {
                let slot = &lane.slots[self.slot];
                let count = &mut self.slot_counts[from][self.slot];
                let asleep = (channel == Channel::Futex).then_some(&slot.asleep.0);
                slot.sent.wait_while(*count, asleep);
                // SAFETY: see above; the buffer was filled.
                unsafe { ptr::copy_nonoverlapping(slot.data.0.as_ptr(), self.incoming, size) };
                *count = count.wrapping_add(1);
            }
        }
    }
}

type Across = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

fn across(call: Across, pid: i32, ours: *mut u8, theirs: usize, size: usize) {
    let mut done = 0;
    while done < size {
        // SAFETY: see `End::send`.
        let ours = libc::iovec { iov_base: unsafe { ours.add(done) }.cast(), iov_len: size - done };
        let theirs = libc::iovec { iov_base: (theirs + done) as *mut c_void, iov_len: size - done };
        // SAFETY: see `End::send`.
        let got = unsafe { call(pid, &ours, 1, &theirs, 1, 0) };
        assert!(got > 0, "process_vm is refused here");
        done += got as usize;
    }
}

fn write_all(fd: i32, from: *mut u8, size: usize) {
    let mut done = 0;
    while done < size {
        // SAFETY: see `End::send`.
        let sent = unsafe { libc::write(fd, from.add(done).cast(), size - done) };
        assert!(sent > 0);
        done += sent as usize;
    }
}

fn read_all(fd: i32, to: *mut u8, size: usize) {
    let mut done = 0;
    while done < size {
        // SAFETY: see `End::send`.
        let got = unsafe { libc::read(fd, to.add(done).cast(), size - done) };
        assert!(got > 0);
        done += got as usize;
    }
}
