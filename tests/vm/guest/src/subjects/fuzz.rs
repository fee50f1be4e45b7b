//! Calls with random arguments.
//!
//! Structures and pieces lie in an arena that the copies themselves write into, so the kernel sees
//! arguments that change while it reads them. The arena lies between guard pages, so no piece can
//! reach the test itself.

use super::*;
use std::mem::offset_of;

tests! {
    fuzz_random_bytes_survives = storm(1, 5000, Fuzzer::random_bytes).map(drop);
    fuzz_likely_requests_survives = storm(2, 5000, |fuzzer| {
        fuzzer.submit();
        if fuzzer.random.once_in(3) {
            fuzzer.wait();
        }
        fuzzer.ask_now_and_then();
    })
    .and_then(|fuzzer| fuzzer.expect_success_once_in(100));
    fuzz_likely_exports_survives = storm(3, 5000, |fuzzer| {
        match fuzzer.random.below(8) {
            0..3 => fuzzer.export(),
            3..6 => fuzzer.across(),
            6 => fuzzer.unexport(),
            _ => fuzzer.wait(),
        }
        fuzzer.ask_now_and_then();
    })
    .and_then(|fuzzer| fuzzer.expect_success_once_in(20));
    fuzz_random_sequences_in_threads_survives = in_threads(4, |number| {
        let step = |fuzzer: &mut Fuzzer| match fuzzer.random.below(14) {
            0 => fuzzer.random_bytes(),
            1 if fuzzer.random.once_in(4) => fuzzer.around_the_calls(),
            1..7 => fuzzer.submit(),
            7 => fuzzer.export(),
            8..10 => fuzzer.across(),
            10 => fuzzer.unexport(),
            _ => fuzzer.wait(),
        };
        storm(10 + number as u64, 2500, step).map(drop)
    });
}

/// Makes many calls; checks that a good request is still served afterwards, on a file of its own,
/// and that no other memory was written.
fn storm(seed: u64, calls: usize, step: impl Fn(&mut Fuzzer)) -> Outcome<Fuzzer> {
    kernel::announce_overlap();
    let canary = Canary::new(16 * PAGE)?;
    let mut fuzzer = Fuzzer::new(seed)?;
    for _ in 0..rounds(calls) {
        step(&mut fuzzer);
    }
    fuzzer.ask_for_all();
    println!("seed {seed}: {} calls, {} of them successful", fuzzer.calls, fuzzer.successes);
    let pair = Pair::new(4 * PAGE)?;
    pair.device.carry_in_turn(&mut [pair.whole()])?;
    pair.expect_copied().context("after the storm")?;
    canary.expect_alive()?;
    Ok(fuzzer)
}

const ARENA: usize = 64 * PAGE;
/// Room for structures; the rest is for pieces to copy.
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

    fn expect_success_once_in(&self, times: u64) -> Outcome {
        ensure!(
            self.successes > self.calls / times,
            "hardly anything succeeded: nothing was shown"
        );
        Ok(())
    }

    // ---- things to choose from --------------------------------------------------------

    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit as u64) as usize
    }

    fn device(&mut self) -> &Device {
        let which = self.below(self.devices.len());
        &self.devices[which]
    }

    fn room(&mut self) -> usize {
        self.below(ROOM / 8) * 8
    }

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

    /// Returns an address that hits nothing of ours but the arena.
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

    fn bad_pointer(&mut self) -> u64 {
        let end = self.arena.address(0) + ARENA as u64;
        self.random.pick(&[0, 1, end, end - 4, end - 40, 1 << 47, 1 << 63, u64::MAX - 15])
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

    /// Returns a port of ours, most often, or something like one.
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
                let which = self.below(self.ports.len());
                self.ports[which].fd()
            }
        }
    }

    fn export_number(&mut self) -> u64 {
        match self.random.below(12) {
            0 => self.odd_number(),
            1..4 => self.last_export.wrapping_sub(self.random.below(8)),
            _ => self.last_export,
        }
    }

    // ---- calls ------------------------------------------------------------------------

    fn call(&mut self, fd: i32, number: u64, pointer: u64) -> Result<(), Errno> {
        let result = ioctl(fd, number, pointer);
        self.calls += 1;
        self.successes += u64::from(result.is_ok());
        result
    }

    /// Makes a call with a structure, now and then with an odd size or odd flags: its first two
    /// fields. Returns its place.
    fn call_with<T: Copy>(&mut self, fd: i32, number: u64, value: T) -> (Result<(), Errno>, usize) {
        let at = self.room();
        self.arena.store(at, value);
        match self.random.below(30) {
            0 => self.arena.store(at, self.random.below(5000) as u32),
            1 => {
                let flags = self.odd_number();
                self.arena.set_word(at, size_of::<T>() as u64 | flags << 32);
            }
            _ => {}
        }
        (self.call(fd, number, self.arena.address(at)), at)
    }

    fn random_bytes(&mut self) {
        const ALL: [u64; 7] = [INFO, SUBMIT, WAIT, PORT, EXPORT, UNEXPORT, INFO + 6];
        let at = self.room();
        for i in 0..size_of::<Submit>() / 8 {
            self.arena.set_word(at + 8 * i, self.random.next());
        }
        let number =
            if self.random.once_in(8) { self.odd_number() } else { self.random.pick(&ALL) };
        self.arena.store(at, self.random.below(200) as u32);
        let pointer =
            if self.random.once_in(8) { self.bad_pointer() } else { self.arena.address(at) };
        let fd = match number {
            // The call may have made a descriptor that stays open.
            PORT => -1,
            EXPORT | UNEXPORT => self.port(),
            _ => self.device().fd(),
        };
        let _ = self.call(fd, number, pointer);
    }

    fn export(&mut self) {
        let (addr, len, flags) = (self.address(), self.length(), self.random.below(4) as u32);
        let port = self.port();
        let (result, at) = self.call_with(port, EXPORT, Export::new(addr, len as usize, flags));
        if result.is_ok() {
            self.last_export = self.arena.word(at + offset_of!(Export, id));
        }
    }

    fn unexport(&mut self) {
        let timeout = Duration::from_micros(self.random.below(500));
        let (port, number) = (self.port(), self.export_number());
        let _ = self.call_with(port, UNEXPORT, Wait::new(number, timeout));
    }

    fn wait(&mut self) {
        let id = match self.random.below(10) {
            0 => self.odd_number(),
            1 => self.last_id.wrapping_add(self.random.below(40)).wrapping_sub(20),
            _ => self.last_id,
        };
        let timeout = Duration::from_micros(self.random.below(500));
        let file = self.device().fd();
        let _ = self.call_with(file, WAIT, Wait::new(id, timeout));
    }

    fn call_submit(&mut self, submit: Submit) {
        let file = self.device().fd();
        let (_, at) = self.call_with(file, SUBMIT, submit);
        // The engine may have written here since; any number will do.
        self.last_id = self.arena.word(at + offset_of!(Submit, id));
    }

    /// Submits pieces between our memory and an export.
    fn across(&mut self) {
        let way = match self.random.below(12) {
            0 => self.random.below(8) as u32,
            1..6 => SUBMIT_PULL,
            _ => SUBMIT_PUSH,
        };
        let count = 1 + self.below(4);
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
            self.arena.store(ROOM + i * size_of::<Piece>(), piece);
        }
        let (port, export) = (self.port(), self.export_number());
        let (pieces, count) = (self.arena.address(ROOM), count as u32);
        let size = size_of::<Submit>() as u32;
        self.call_submit(Submit {
            size,
            flags: way,
            pieces,
            count,
            port,
            export,
            ..Submit::default()
        });
    }

    fn submit(&mut self) {
        let room = self.room();
        let pieces = self.random.pick(&[ROOM, ROOM + 64, ARENA - 64 * size_of::<Piece>(), room]);
        let count = match self.random.below(12) {
            0 => self.odd_number() as u32,
            1 => self.random.below(70) as u32,
            _ => 1 + self.random.below(6) as u32,
        };
        for i in 0..(count as usize).min(MAX_PIECES) {
            let piece = self.piece();
            let place = pieces + i * size_of::<Piece>();
            if place + size_of::<Piece>() <= ARENA {
                self.arena.store(place, piece);
            }
        }
        let size = size_of::<Submit>() as u32;
        let pieces = self.arena.address(pieces);
        let mut submit = Submit { size, pieces, count, ..Submit::default() };
        match self.random.below(40) {
            0 => submit.pieces = self.bad_pointer(),
            1 => submit.port = 1,
            2 => submit.flags = SUBMIT_PULL,
            _ => {}
        }
        self.call_submit(submit);
    }

    /// Asks for every request that may still be known, to free slots.
    fn ask_for_all(&mut self) {
        for device in &self.devices {
            for back in 0..2 * SLOTS as u64 {
                let _ = device.wait(self.last_id.wrapping_sub(back), Duration::from_millis(1));
            }
        }
    }

    fn ask_now_and_then(&mut self) {
        if self.random.once_in(200) {
            self.ask_for_all();
        }
    }

    fn around_the_calls(&mut self) {
        match self.random.below(6) {
            0 if self.devices.len() < 4 => self.devices.extend(Device::open().ok()),
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
                let page = self.below(ARENA / PAGE) * PAGE;
                let _ = self.arena.advise(page, PAGE, libc::MADV_DONTNEED);
            }
            _ => self.ask_for_all(),
        }
    }
}
