//! The DSA function itself: registers, commands, queues, descriptors, completion records.
//!
//! Like `ioat` it knows no PCI and no QEMU. A descriptor comes as eight stores to the portal of its
//! queue, and the last of them submits it. Queues are dedicated; addresses are physical (no PASID).
//! A queue carries descriptors out in turn unless `Overtaken` was ordered, then every second one
//! comes late: the two engines of a group may do so at any time. With `Late` all of them do, as on a
//! DSA whose engines are shared with queues that block on page faults.

use crate::channel::{Channel, Channels, Engine, Next, Raise};
use crate::faults::{Counters, Fate, Fault, READ_ERROR, WRITE_ERROR};
use crate::memory::Memory;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

pub const MAX_QUEUES: usize = 8;
/// Bytes of BAR 2 for each queue.
pub const PORTAL: u32 = 0x4000;

// Registers.
const GENSTS: usize = 0x90;
const INTCAUSE: usize = 0x98;
const COMMAND: usize = 0xa0;
const CMDSTS: usize = 0xa8;
const SWERR: usize = 0xc0;
const GRPCFG: usize = 0x300;
const WQCFG: usize = 0x400;
const WQCFG_SIZE: usize = 0x20;
const END: usize = WQCFG + MAX_QUEUES * WQCFG_SIZE;

const ENABLED: u32 = 1;
const CAUSE_ERROR: u32 = 1;
const CAUSE_COMMAND: u32 = 2;
const ACTIVE: u32 = 1 << 31;
/// Entries of all queues together, as on Sapphire Rapids.
const ENTRIES: u64 = 128;
const OVERFLOW: u32 = 0x0d;

// Descriptor flags.
const RECORD: u64 = 0x4 | 0x8;
const INTERRUPT: u64 = 0x10;

// States of a completion record.
const SUCCESS: u8 = 0x01;
const PAGE_FAULT: u8 = 0x03;
const BAD_OPCODE: u8 = 0x10;
const BAD_SIZE: u8 = 0x13;
const HARDWARE_ERROR: u8 = 0x1a;

#[derive(Clone, Copy)]
struct Descriptor {
    opcode: u8,
    flags: u64,
    record: u64,
    source: u64,
    destination: u64,
    size: u64,
    vector: usize,
}

impl Descriptor {
    fn new(words: [u64; 8]) -> Descriptor {
        Descriptor {
            opcode: (words[0] >> 56) as u8,
            flags: words[0] >> 32 & 0xff_ffff,
            record: words[1],
            source: words[2],
            destination: words[3],
            size: words[4] & 0xffff_ffff,
            vector: (words[4] >> 32 & 0xffff) as usize,
        }
    }
}

#[derive(Default)]
struct Queue {
    /// Size of the queue; 0: it is disabled.
    entries: usize,
    max_size: u64,
    incoming: [u64; 8],
    waiting: VecDeque<Descriptor>,
    /// Fate of the next descriptor, once decided, its earliest time, and how late it is answered.
    fate: Option<(Instant, Fate, Option<Duration>)>,
    /// Delayed descriptors, which others overtake.
    late: VecDeque<(Instant, Descriptor)>,
    /// Set if the next one may be delayed.
    turn: bool,
}

pub struct Dsa {
    /// Reference for the thread of a command, which may have to wait.
    me: Weak<Dsa>,
    memory: Arc<Memory>,
    raise: Raise,
    queues: Channels<Queue>,
    registers: Mutex<Vec<u32>>,
}

impl Dsa {
    pub fn new(queues: usize, memory: Arc<Memory>, raise: Raise) -> Arc<Dsa> {
        assert!((1..=MAX_QUEUES).contains(&queues));
        let registers = Mutex::new(power_on(queues));
        let queues = Channels::new(queues);
        Arc::new_cyclic(|me| Dsa { me: Weak::clone(me), memory, raise, queues, registers })
    }

    /// Starts the threads that run the queues.
    pub fn start(self: &Arc<Self>) {
        Channels::start(self, |device| &device.queues, Dsa::step);
    }

    fn registers(&self) -> MutexGuard<'_, Vec<u32>> {
        self.registers.lock()
    }

    fn interrupt(&self, cause: u32) {
        self.registers()[INTCAUSE / 4] |= cause;
        (self.raise)(0);
    }

    /// Carries out a command; waits for descriptors where it has to.
    fn command(&self, command: u32) {
        let operand = command & 0xf_ffff;
        let queues = (0..self.queues.len()).filter(|i| operand & 0xffff & 1 << i != 0);
        let error = match command >> 20 & 0x1f {
            1 => mem::replace(&mut self.registers()[GENSTS / 4], ENABLED) * 0x10,
            2 => {
                self.registers()[GENSTS / 4] = 0;
                (0..self.queues.len()).for_each(|index| self.disable(index));
                0
            }
            5 => {
                *self.registers() = power_on(self.queues.len());
                (0..self.queues.len()).for_each(|index| self.disable(index));
                0
            }
            6 => self.enable(operand as usize),
            7 | 8 => {
                queues.clone().for_each(|index| self.drain(index));
                if command >> 20 & 0x1f == 7 {
                    queues.for_each(|index| self.disable(index));
                }
                0
            }
            9 | 10 => {
                queues.for_each(|index| {
                    self.disable(index);
                    self.queues.lock(index).faults.counters.resets += 1;
                });
                0
            }
            _ => 1,
        };
        self.registers()[CMDSTS / 4] = error;
        if command & ACTIVE != 0 {
            self.interrupt(CAUSE_COMMAND);
        }
    }

    /// Returns the error code of the command.
    fn enable(&self, index: usize) -> u32 {
        let registers = self.registers();
        let config = (WQCFG + index * WQCFG_SIZE) / 4;
        if index >= self.queues.len() {
            return 0x02;
        }
        if registers[GENSTS / 4] != ENABLED {
            return 0x20;
        }
        let entries = registers[config] as usize & 0xffff;
        if entries == 0 || entries > ENTRIES as usize {
            return 0x22;
        }
        // Shared queues want a PASID.
        if registers[config + 2] & 1 == 0 {
            return 0x26;
        }
        let group = (0..4).map(|group| (GRPCFG + 64 * group) / 4);
        if !group.into_iter().any(|at| registers[at] & 1 << index != 0 && registers[at + 8] != 0) {
            return 0x16;
        }
        let max_size = 1 << (registers[config + 3] & 0x1f);
        drop(registers);
        let mut queue = self.queues.lock(index);
        queue.state = Queue { entries, max_size, turn: true, ..Queue::default() };
        drop(queue);
        self.registers()[config + 6] |= ENABLED << 30;
        0
    }

    /// Drops what the queue still has: after this it writes nothing more.
    fn disable(&self, index: usize) {
        self.queues.lock(index).state = Queue::default();
        self.registers()[(WQCFG + index * WQCFG_SIZE) / 4 + 6] &= !(3 << 30);
        self.queues.wake(index);
    }

    fn drain(&self, index: usize) {
        let mut queue = self.queues.lock(index);
        while !queue.waiting.is_empty() || !queue.late.is_empty() {
            self.queues.wait(index, &mut queue);
        }
    }

    fn step(&self, index: usize, queue: &mut Channel<Queue>, now: Instant) -> Next {
        let due = queue.late.front().map(|(due, _)| *due);
        if due.is_some_and(|due| due <= now) {
            let (_, late) = queue.late.pop_front().expect("looked at");
            return self.carry_out(index, queue, &late);
        }
        let Some(&descriptor) = queue.waiting.front() else {
            return due.map_or(Next::Sleep, Next::SleepUntil);
        };
        let (when, fate, late) = queue.fate.unwrap_or_else(|| {
            // First: this one is among those that go through.
            let late = queue.faults.on_late();
            let (delay, fate) = queue.faults.on_data();
            (now + delay, fate, late)
        });
        queue.fate = Some((when, fate, late));
        if now < when {
            return Next::SleepUntil(due.map_or(when, |due| due.min(when)));
        }
        queue.fate = None;
        queue.waiting.pop_front();
        match fate {
            Fate::Run => {
                queue.turn = !queue.turn;
                let overtaken = if queue.turn { queue.faults.on_unfenced() } else { None };
                let delay = late.or(overtaken);
                match delay {
                    Some(delay) => queue.late.push_back((now + delay, descriptor)),
                    None => return self.carry_out(index, queue, &descriptor),
                }
                Next::Step
            }
            Fate::Fail(error) => {
                let half = if error & WRITE_ERROR != 0 { descriptor.size / 2 } else { 0 };
                self.memory.copy(descriptor.source, descriptor.destination, half);
                let is_named = error & (READ_ERROR | WRITE_ERROR) == 0;
                let status = if is_named { error as u8 } else { HARDWARE_ERROR };
                self.complete(index, queue, &descriptor, status, half)
            }
            // No record and no interrupt, ever.
            Fate::Hang => {
                self.queues.wake(index);
                Next::Step
            }
        }
    }

    fn carry_out(&self, index: usize, queue: &mut Channel<Queue>, what: &Descriptor) -> Next {
        let counters = &mut queue.faults.counters;
        let status = match what.opcode {
            0 | 2 => {
                counters.null += 1;
                SUCCESS
            }
            3 if what.size == 0 || what.size > queue.state.max_size => BAD_SIZE,
            3 if self.memory.copy(what.source, what.destination, what.size) => {
                counters.data += 1;
                counters.bytes += what.size;
                SUCCESS
            }
            3 => PAGE_FAULT,
            _ => BAD_OPCODE,
        };
        self.complete(index, queue, what, status, 0)
    }

    /// Writes the record, its status last, and interrupts.
    fn complete(
        &self,
        index: usize,
        queue: &mut Channel<Queue>,
        what: &Descriptor,
        status: u8,
        done: u64,
    ) -> Next {
        if what.flags & RECORD == RECORD && what.record.is_multiple_of(32) {
            self.memory.store(what.record + 8, what.source);
            self.memory.store(what.record, u64::from(status) | done << 32);
        }
        if what.flags & INTERRUPT != 0 && !queue.faults.on_interrupt() {
            queue.faults.counters.interrupts += 1;
            (self.raise)(what.vector);
        }
        self.queues.wake(index); // wakes `drain`
        Next::Step
    }
}

/// Returns the registers after a reset.
fn power_on(queues: usize) -> Vec<u32> {
    let mut words = vec![0; END / 4];
    let mut put = |at: usize, value: u64| {
        words[at / 4] = value as u32;
        words[at / 4 + 1] = (value >> 32) as u32;
    };
    put(0x00, 0x100);
    // As Sapphire Rapids: configurable, no command capabilities, transfers up to 2 GiB.
    put(0x10, 0x40_915f_0107);
    // Shared and dedicated queues, with priorities.
    put(0x20, ENTRIES | (queues as u64) << 16 | 0xb << 48);
    put(0x30, 4 | 96 << 8);
    put(0x38, 4);
    // No-op, drain, copy.
    put(0x40, 0xd);
    // In units of 256 bytes: GRPCFG, WQCFG, permissions of MSI-X.
    put(0x60, 0x0002_0004_0003);
    words
}

impl Engine for Dsa {
    fn read(&self, offset: u32, size: u32) -> u64 {
        let registers = self.registers();
        let word = |at: u32| u64::from(registers.get(at as usize / 4).copied().unwrap_or(0));
        match size {
            8 => word(offset) | word(offset + 4) << 32,
            _ => word(offset) >> (8 * (offset % 4)) & ((1 << (8 * size)) - 1),
        }
    }

    fn write(&self, offset: u32, size: u32, value: u64) {
        if size == 8 {
            self.write(offset, 4, value & 0xffff_ffff);
            return self.write(offset + 4, 4, value >> 32);
        }
        let (at, value) = (offset as usize, value as u32);
        let mut registers = self.registers();
        match at {
            INTCAUSE | SWERR => registers[at / 4] &= !value,
            COMMAND => {
                registers[CMDSTS / 4] = ACTIVE;
                let device = self.me.upgrade().expect("called on it");
                thread::spawn(move || device.command(value));
            }
            0x80 | 0x88 | 0x200..END if size == 4 => registers[at / 4] = value,
            _ => {}
        }
    }

    fn submit(&self, offset: u32, value: u64) {
        let (index, at) = ((offset / PORTAL) as usize, (offset % 64 / 8) as usize);
        if index >= self.queues.len() {
            return;
        }
        let mut queue = self.queues.lock(index);
        queue.incoming[at] = value;
        if at < 7 || queue.entries == 0 {
            return;
        }
        let descriptor = Descriptor::new(queue.incoming);
        // Delayed descriptors have left the queue: an engine has taken them.
        if queue.waiting.len() < queue.entries {
            queue.waiting.push_back(descriptor);
            drop(queue);
            return self.queues.wake(index);
        }
        drop(queue);
        self.registers()[SWERR / 4] = 1 | 8 | OVERFLOW << 8 | (index as u32) << 16;
        self.interrupt(CAUSE_ERROR);
    }

    fn reset(&self) {
        self.queues.reset();
        *self.registers() = power_on(self.queues.len());
    }

    fn arm(&self, channels: u32, fault: Option<Fault>) {
        self.queues.arm(channels, fault);
    }

    fn counters(&self, index: usize) -> Option<Counters> {
        self.queues.counters(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Kind;
    use crate::memory::fake;
    use std::time::Duration;

    const RECORDS: u64 = 0x8000;

    /// A device whose only queue is enabled, with 4 entries; no threads.
    fn device() -> (Arc<Dsa>, Arc<Memory>, Arc<Mutex<Vec<usize>>>) {
        let memory = Arc::new(fake::memory(0x1_0000));
        let raised = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&raised);
        let raise = Box::new(move |vector| log.lock().push(vector));
        let device = Dsa::new(1, Arc::clone(&memory), raise);
        for (at, word) in [(GRPCFG, 1), (GRPCFG + 32, 1), (WQCFG, 4), (WQCFG + 12, 12)] {
            device.write(at as u32, 4, word);
        }
        let error = |command| {
            device.command(command);
            device.read(CMDSTS as u32, 4)
        };
        assert_eq!(error(6 << 20), 0x20, "the device is not enabled");
        assert_eq!(error(1 << 20), 0);
        assert_eq!(error(6 << 20), 0x26, "a shared queue wants a PASID");
        device.write(WQCFG as u32 + 8, 4, 1);
        assert_eq!(error(6 << 20 | ACTIVE), 0);
        assert_eq!(device.read(INTCAUSE as u32, 4), 2);
        assert_eq!(device.read(WQCFG as u32 + 24, 4) >> 30, 1);
        assert_eq!(mem::take(&mut *raised.lock()), [0]);
        (device, memory, raised)
    }

    /// Descriptor `number` copies 0x100 bytes; its record and vector have its number.
    fn submit(device: &Dsa, number: u64) {
        let (from, to) = (0x1000 + 0x100 * number, 0x4000 + 0x100 * number);
        let words = [(3 << 24 | 0x1c) << 32, RECORDS + 32 * number, from, to, 0x100 | number << 32];
        for at in 0..8 {
            device.submit(0x1000 + 8 * at, words.get(at as usize).copied().unwrap_or(0));
        }
    }

    fn run(device: &Dsa, at: Instant) {
        while device.step(0, &mut device.queues.lock(0), at) == Next::Step {}
    }

    /// Runs four descriptors with a fault on the second: records, bytes copied, order of vectors.
    fn outcome(kind: Kind, value: u32) -> ([u64; 4], [usize; 4], Vec<usize>) {
        let (device, memory, raised) = device();
        memory.write(0x1000, &[7; 0x400]);
        device.arm(1, Some(Fault { kind, after: 1, times: 1, value }));
        (0..4).for_each(|number| submit(&device, number));
        let now = Instant::now();
        run(&device, now);
        run(&device, now + Duration::from_secs(1));
        let record = |at: u64| memory.load::<1>(RECORDS + 32 * at).unwrap()[0];
        let copied = |at: u64| {
            let bytes = memory.read(0x4000 + 0x100 * at, 0x100);
            bytes.iter().filter(|byte| **byte == 7).count()
        };
        let vectors = raised.lock().clone();
        ([0, 1, 2, 3].map(record), [0, 1, 2, 3].map(copied), vectors)
    }

    #[test]
    fn faults_strike_one_descriptor_and_no_other() {
        let all = [0x100; 4];
        let nothing = [0x100, 0, 0x100, 0x100];
        for (kind, value, record, copied, vectors) in [
            (Kind::Slow, 1, 1, all, vec![0, 1, 2, 3]),
            (Kind::Overtaken, 5, 1, all, vec![0, 2, 3, 1]),
            (Kind::Late, 5, 1, all, vec![0, 2, 3, 1]),
            (Kind::Read, 0, 0x1a, nothing, vec![0, 1, 2, 3]),
            (Kind::Write, 0, 0x1a | 0x80 << 32, [0x100, 0x80, 0x100, 0x100], vec![0, 1, 2, 3]),
            (Kind::Other, 0x13, 0x13, nothing, vec![0, 1, 2, 3]),
            (Kind::Hang, 0, 0, nothing, vec![0, 2, 3]),
            // The first descriptor is counted before its own interrupt.
            (Kind::Lost, 0, 1, all, vec![1, 2, 3]),
        ] {
            let expected = ([1, record, 1, 1], copied, vectors);
            assert_eq!(outcome(kind, value), expected, "{kind:?}");
        }
    }

    #[test]
    fn full_queue_is_an_error_and_a_reset_one_writes_nothing() {
        let (device, memory, raised) = device();
        (0..5).for_each(|number| submit(&device, number));
        assert_eq!(device.read(SWERR as u32, 4), 0x0d09);
        assert_eq!((device.read(INTCAUSE as u32, 4), &*raised.lock()), (3, &vec![0]));
        device.command(10 << 20 | 1);
        run(&device, Instant::now());
        assert_eq!(memory.load::<1>(RECORDS).unwrap(), [0]);
        assert_eq!(device.read(WQCFG as u32 + 24, 4) >> 30, 0);
        assert_eq!(device.counters(0).unwrap().resets, 1);
    }

    #[test]
    fn late_queue_answers_after_its_delay_unless_it_is_reset() {
        let (device, memory, raised) = device();
        let record = |at: u64| memory.load::<1>(RECORDS + 32 * at).unwrap()[0];
        device.arm(1, Some(Fault { kind: Kind::Late, after: 1, times: 0, value: 500 }));
        let now = Instant::now();
        (0..3).for_each(|number| submit(&device, number));
        run(&device, now);
        run(&device, now + Duration::from_millis(499));
        assert_eq!([0, 1, 2].map(record), [1, 0, 0]);
        run(&device, now + Duration::from_millis(500));
        assert_eq!(([0, 1, 2].map(record), &*raised.lock()), ([1, 1, 1], &vec![0, 1, 2]));
        submit(&device, 3);
        run(&device, now + Duration::from_millis(600));
        device.command(10 << 20 | 1);
        run(&device, now + Duration::from_secs(9));
        assert_eq!(record(3), 0);
    }
}
