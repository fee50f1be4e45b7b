//! Calls with random arguments.
//!
//! Structures and pieces lie in an arena that the copies themselves write into, so the
//! kernel sees arguments that change under its eyes. The arena lies between forbidden pages:
//! whatever a piece does, it cannot get past them to the test itself.

use crate::canary::Canary;
use crate::device::*;
use crate::effort::rounds;
use crate::kernel;
use crate::memory::{PAGE, Region};
use crate::random::Random;
use crate::verdict::{Context, Outcome};
use std::mem::size_of;
use std::time::Duration;

tests! {
    fuzz_random_bytes_survives
    fuzz_likely_requests_survives
    fuzz_likely_exports_survives
    fuzz_random_sequences_in_threads_survives
}

const ARENA: usize = 64 * PAGE;
/// Where structures are; the rest is for pieces to copy.
const ROOM: usize = 4 * PAGE;

struct Fuzzer {
    random: Random,
    arena: Region,
    devices: Vec<Device>,
    ports: Vec<Port>,
    words: Vec<Words>,
    channels: u32,
    last_id: u64,
    last_export: u64,
    calls: u64,
    successes: u64,
}

impl Fuzzer {
    fn new(seed: u64) -> Outcome<Fuzzer> {
        let arena = Region::of_small_pages(ARENA)?;
        arena.fill(seed);
        let device = Device::open()?;
        let channels = device.info()?.channels;
        Ok(Fuzzer {
            random: Random::new(seed),
            arena,
            devices: vec![device],
            ports: Vec::new(),
            words: Vec::new(),
            channels,
            last_id: 1,
            last_export: 1,
            calls: 0,
            successes: 0,
        })
    }

    fn device(&mut self) -> &Device {
        let which = self.random.below(self.devices.len() as u64) as usize;
        &self.devices[which]
    }

    fn call(&mut self, number: u64, pointer: u64) -> Result<(), Errno> {
        let fd = self.device().fd();
        self.call_at(fd, number, pointer)
    }

    fn call_at(&mut self, fd: i32, number: u64, pointer: u64) -> Result<(), Errno> {
        let result = ioctl(fd, number, pointer);
        self.calls += 1;
        self.successes += u64::from(result.is_ok());
        result
    }

    fn write<T: Copy>(&self, at: usize, value: T) {
        assert!(at.is_multiple_of(8) && at + size_of::<T>() <= ARENA);
        // SAFETY: inside the arena and aligned; memory law.
        unsafe { (self.arena.address(at) as *mut T).write_volatile(value) };
    }

    fn room(&mut self) -> usize {
        self.random.below((ROOM / 8) as u64) as usize * 8
    }

    // ---- things to choose from --------------------------------------------------------

    fn odd_number(&mut self) -> u64 {
        let bit = 1 << self.random.below(64);
        match self.random.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => bit,
            3 => bit - 1,
            4 => 0u64.wrapping_sub(bit),
            _ => self.random.next(),
        }
    }

    /// Never where anything of ours lies but the arena.
    fn address(&mut self) -> u64 {
        let arena = self.arena.address(0);
        match self.random.below(20) {
            0 => self.random.pick(&[0, 4096, 1 << 47, 1 << 63, !4095, 0xffff_8880_0000_0000]),
            1 => self.random.next() | 1 << 63,
            2 => arena + self.random.below(ARENA as u64),
            3 => arena - self.random.below(PAGE as u64),
            _ => arena + self.random.below((ARENA / ALIGN) as u64) * ALIGN as u64,
        }
    }

    fn length(&mut self) -> u64 {
        match self.random.below(16) {
            0 => self.odd_number(),
            1 => self.random.below(1 << 30),
            2 => self.random.below(ARENA as u64),
            _ => self.random.below(1 + (8 * PAGE / ALIGN) as u64) * ALIGN as u64,
        }
    }

    fn piece(&mut self) -> Piece {
        let (channel, flags) = match self.random.below(10) {
            0 => (self.random.next() as u32, 0),
            1 => (CHANNEL_ANY, self.odd_number() as u32),
            2..5 => (self.random.below(self.channels.into()) as u32, 0),
            _ => (CHANNEL_ANY, 0),
        };
        Piece { dst: self.address(), src: self.address(), len: self.length(), channel, flags }
    }

    // ---- calls ------------------------------------------------------------------------

    /// One of the helper's, and one more.
    fn known_number(&mut self) -> u64 {
        const ALL: [u64; 7] = [INFO, SUBMIT, WAIT, PORT, EXPORT, UNEXPORT, INFO + 6];
        ALL[self.random.below(7) as usize]
    }

    fn random_bytes(&mut self) {
        let at = self.room();
        for i in 0..size_of::<Submit>() / 8 {
            let word = self.random.next();
            self.write(at + 8 * i, word);
        }
        let number = if self.random.once_in(8) { self.odd_number() } else { self.known_number() };
        let size = self.random.below(200) as u32;
        self.write(at, size);
        let pointer =
            if self.random.once_in(8) { self.bad_pointer() } else { self.arena.address(at) };
        let _ = match number {
            // It may have made a descriptor that stays open.
            PORT => ioctl(-1, number, pointer),
            EXPORT | UNEXPORT => {
                let port = self.port();
                self.call_at(port, number, pointer)
            }
            _ => self.call(number, pointer),
        };
    }

    /// A port of ours, most often, or what looks like one.
    fn port(&mut self) -> i32 {
        if self.ports.is_empty() || (self.ports.len() < 4 && self.random.once_in(50)) {
            let port = self.device().port();
            self.ports.extend(port);
        }
        if self.ports.len() > 1 && self.random.once_in(200) {
            self.ports.swap_remove(0);
        }
        match self.random.below(20) {
            0 => self.odd_number() as i32,
            1 => self.device().fd(),
            _ if self.ports.is_empty() => -1,
            _ => {
                let which = self.random.below(self.ports.len() as u64) as usize;
                self.ports[which].fd()
            }
        }
    }

    fn export(&mut self) {
        let at = self.room();
        let (addr, len, flags) = (self.address(), self.length(), self.random.below(4) as u32);
        let mut export = Export::new(addr, len as usize, flags);
        match self.random.below(30) {
            0 => export.size = self.random.below(5000) as u32,
            1 => export.flags = self.odd_number() as u32,
            _ => {}
        }
        self.write(at, export);
        let (port, pointer) = (self.port(), self.arena.address(at));
        if self.call_at(port, EXPORT, pointer).is_ok() {
            self.last_export = self.arena.word(at + std::mem::offset_of!(Export, id));
        }
    }

    fn export_number(&mut self) -> u64 {
        match self.random.below(12) {
            0 => self.odd_number(),
            1..4 => self.last_export.wrapping_sub(self.random.below(8)),
            _ => self.last_export,
        }
    }

    fn unexport(&mut self) {
        let at = self.room();
        let timeout = Duration::from_micros(self.random.below(500));
        let mut unexport = Wait::new(self.export_number(), timeout);
        match self.random.below(30) {
            0 => unexport.size = self.random.below(5000) as u32,
            1 => unexport.flags = self.odd_number() as u32,
            _ => {}
        }
        self.write(at, unexport);
        let (port, pointer) = (self.port(), self.arena.address(at));
        let _ = self.call_at(port, UNEXPORT, pointer);
    }

    /// Between our memory and an export.
    fn across(&mut self) {
        let at = self.room();
        let way = match self.random.below(12) {
            0 => self.random.below(8) as u32,
            1..6 => SUBMIT_PULL,
            _ => SUBMIT_PUSH,
        };
        let count = 1 + self.random.below(4) as usize;
        for i in 0..count {
            let mut piece = self.piece();
            let offset = match self.random.below(12) {
                0 => self.odd_number(),
                1 => self.random.below(ARENA as u64),
                _ => self.random.below(64) * ALIGN as u64,
            };
            if self.random.once_in(3) {
                piece.len = 1 + self.random.below(2 * PAGE as u64);
            }
            match way {
                SUBMIT_PULL => piece.src = offset,
                _ => piece.dst = offset,
            }
            self.write(ROOM + i * size_of::<Piece>(), piece);
        }
        let mut none: [Piece; 0] = [];
        let (port, export) = (self.port(), self.export_number());
        let mut across = Submit::across(&mut none, way, port, export);
        across.pieces = self.arena.address(ROOM);
        across.count = count as u32;
        if self.random.once_in(40) {
            across.size = self.random.below(5000) as u32;
        }
        self.write(at, across);
        let pointer = self.arena.address(at);
        let _ = self.call(SUBMIT, pointer);
        self.last_id = self.arena.word(at + std::mem::offset_of!(Submit, id));
    }

    fn bad_pointer(&mut self) -> u64 {
        let end = self.arena.address(0) + ARENA as u64;
        self.random.pick(&[0, 1, end, end - 4, end - 40, 1 << 47, 1 << 63, u64::MAX - 15])
    }

    fn submit(&mut self) {
        let at = self.room();
        let pieces = self.random.pick(&[ROOM, ROOM + 64, ARENA - 64 * size_of::<Piece>(), at]);
        let count = match self.random.below(12) {
            0 => self.odd_number() as u32,
            1 => self.random.below(70) as u32,
            _ => 1 + self.random.below(6) as u32,
        };
        for i in 0..(count as usize).min(MAX_PIECES) {
            let piece = self.piece();
            let place = pieces + i * size_of::<Piece>();
            if place + size_of::<Piece>() <= ARENA {
                self.write(place, piece);
            }
        }
        let mut submit = Submit {
            size: size_of::<Submit>() as u32,
            pieces: self.arena.address(pieces),
            count,
            ..Submit::default()
        };
        match self.random.below(40) {
            0 => submit.size = self.random.below(5000) as u32,
            1 => submit.flags = self.odd_number() as u32,
            2 => submit.pieces = self.bad_pointer(),
            3 => submit.port = 1,
            4 => submit.flags = SUBMIT_PULL,
            _ => {}
        }
        self.write(at, submit);
        let pointer = self.arena.address(at);
        let _ = self.call(SUBMIT, pointer);
        // The engine may have written here since; any number will do.
        self.last_id = self.arena.word(at + std::mem::offset_of!(Submit, id));
    }

    fn wait(&mut self) {
        let at = self.room();
        let id = match self.random.below(10) {
            0 => self.odd_number(),
            1 => self.last_id.wrapping_add(self.random.below(40)).wrapping_sub(20),
            _ => self.last_id,
        };
        let timeout = Duration::from_micros(self.random.below(500));
        let mut wait = Wait::new(id, timeout);
        match self.random.below(30) {
            0 => wait.size = self.random.below(5000) as u32,
            1 => wait.flags = self.odd_number() as u32,
            _ => {}
        }
        self.write(at, wait);
        let pointer = self.arena.address(at);
        let _ = self.call(WAIT, pointer);
    }

    /// Every request that can still be known is asked for, so that slots come free.
    fn ask_for_all(&mut self) {
        for device in &self.devices {
            for back in 0..2 * SLOTS as u64 {
                let _ = device.wait(self.last_id.wrapping_sub(back), Duration::from_millis(1));
            }
        }
    }

    fn around_the_calls(&mut self) -> Outcome {
        match self.random.below(6) {
            0 if self.devices.len() < 4 => self.devices.push(Device::open()?),
            1 if self.devices.len() > 1 => {
                self.devices.swap_remove(0);
            }
            2 => {
                let channel = self.random.below(u64::from(self.channels) + 1) as u32;
                let mapped = self.device().words(channel);
                self.words.extend(mapped.ok());
            }
            3 => self.words.clear(),
            4 => {
                let page = self.random.below((ARENA / PAGE) as u64) as usize * PAGE;
                self.arena.advise(page, PAGE, libc::MADV_DONTNEED)?;
            }
            _ => self.ask_for_all(),
        }
        Ok(())
    }

    fn end(mut self, name: &str) -> Outcome {
        self.ask_for_all();
        println!("{name}: {} calls, {} of them successful", self.calls, self.successes);
        // And a good request is still served, on a file of its own.
        let device = Device::open()?;
        let (dst, src) = (Region::of_small_pages(4 * PAGE)?, Region::of_small_pages(4 * PAGE)?);
        src.fill(1);
        device.carry_in_turn(&mut [Piece::new(&dst, 0, &src, 0, 4 * PAGE)])?;
        dst.expect(1).context("after the storm")
    }
}

fn fuzz_random_bytes_survives() -> Outcome {
    kernel::announce_overlap();
    let canary = Canary::new(16 * PAGE)?;
    let mut fuzzer = Fuzzer::new(1)?;
    for _ in 0..rounds(5000) {
        fuzzer.random_bytes();
    }
    fuzzer.end("random bytes")?;
    canary.expect_alive()
}

fn fuzz_likely_requests_survives() -> Outcome {
    kernel::announce_overlap();
    let canary = Canary::new(16 * PAGE)?;
    let mut fuzzer = Fuzzer::new(2)?;
    for round in 0..rounds(5000) {
        fuzzer.submit();
        if fuzzer.random.once_in(3) {
            fuzzer.wait();
        }
        if round % 200 == 0 {
            fuzzer.ask_for_all();
        }
    }
    ensure!(fuzzer.successes > fuzzer.calls / 100, "hardly anything succeeded: nothing was shown");
    fuzzer.end("likely requests")?;
    canary.expect_alive()
}

fn fuzz_likely_exports_survives() -> Outcome {
    kernel::announce_overlap();
    let canary = Canary::new(16 * PAGE)?;
    let mut fuzzer = Fuzzer::new(3)?;
    for round in 0..rounds(5000) {
        match fuzzer.random.below(8) {
            0..3 => fuzzer.export(),
            3..6 => fuzzer.across(),
            6 => fuzzer.unexport(),
            _ => fuzzer.wait(),
        }
        if round % 200 == 0 {
            fuzzer.ask_for_all();
        }
    }
    ensure!(fuzzer.successes > fuzzer.calls / 20, "hardly anything succeeded: nothing was shown");
    fuzzer.end("likely exports")?;
    canary.expect_alive()
}

fn sequence(seed: u64) -> Outcome {
    let mut fuzzer = Fuzzer::new(seed)?;
    for _ in 0..rounds(2500) {
        match fuzzer.random.below(14) {
            0 => fuzzer.random_bytes(),
            1 if fuzzer.random.once_in(4) => fuzzer.around_the_calls()?,
            1..7 => fuzzer.submit(),
            7 => fuzzer.export(),
            8..10 => fuzzer.across(),
            10 => fuzzer.unexport(),
            _ => fuzzer.wait(),
        }
    }
    fuzzer.end(&format!("sequence {seed}"))
}

fn fuzz_random_sequences_in_threads_survives() -> Outcome {
    kernel::announce_overlap();
    let canary = Canary::new(16 * PAGE)?;
    std::thread::scope(|scope| {
        let all: Vec<_> = (10..14).map(|seed| scope.spawn(move || sequence(seed))).collect();
        all.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    canary.expect_alive()
}
