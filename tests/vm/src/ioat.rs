//! The I/OAT function itself: registers, channels, descriptors, completions.
//!
//! It knows no PCI and no QEMU. The transport reads and writes registers. Suspend and reset take
//! effect between two descriptors, and after them the channel writes nothing more.

use crate::channel::{Channels, Engine, Next, Raise};
use crate::faults::{Counters, Fate, Fault, WRITE_ERROR};
use crate::memory::Memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Instant;

/// Most channels that the driver accepts.
pub const MAX_CHANNELS: usize = 4;

const VERSION: u64 = 0x32;

// Interrupt control of the whole function.
const MASTER: u8 = 1;

// Channel control.
const IN_SERVICE: u16 = 0x1;
const ERROR_COMPLETION: u16 = 0x4;
const ERROR_INTERRUPT: u16 = 0x10;

// Channel commands.
const SUSPEND: u8 = 0x4;
const RESUME: u8 = 0x10;
const RESET: u8 = 0x20;

// Descriptor control.
const INTERRUPT: u64 = 0x1;
const COMPLETION: u64 = 0x8;
const FENCE: u64 = 0x10;
const NULL: u64 = 0x20;

/// Transfers up to this size, as that of a notification word, may overtake others.
const SMALL: u64 = 64;

// Errors that need no injection.
const BAD_SOURCE: u32 = 0x1;
const BAD_DESTINATION: u32 = 0x2;
const BAD_NEXT: u32 = 0x4;
const BAD_CONTROL: u32 = 0x400;
const BAD_LENGTH: u32 = 0x800;
const BAD_COMPLETION: u32 = 0x1000;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Status {
    Active = 0,
    Done = 1,
    Suspended = 2,
    #[default]
    Halted = 3,
}

#[derive(Default)]
struct State {
    control: u16,
    status: Status,
    /// Descriptors of this chain: a running total, modulo 65536, as is `processed`.
    count: u16,
    processed: u16,
    chain: u64,
    /// Set when a new chain address was written and nothing of it was requested.
    fresh: bool,
    next: u64,
    /// Last good descriptor; 0 at the start of a chain.
    done: u64,
    completion: u64,
    error: u32,
    error_mask: u32,
    dca: u32,
    /// Set while a raised interrupt is not rearmed; and another one is due then.
    in_service: bool,
    latched: bool,
    hung: bool,
    /// Fate of the next descriptor, once decided, and its earliest time.
    fate: Option<(Instant, Fate)>,
    late: Late,
}

type Channel = crate::channel::Channel<State>;

/// Delayed transfers without a fence, and what waits for them.
#[derive(Default)]
struct Late {
    /// Source, destination, size.
    transfers: Vec<(u64, u64, u64)>,
    /// Time at which they are made up for at the end of a chain.
    due: Option<Instant>,
    completion: bool,
    interrupt: bool,
}

pub struct Ioat {
    memory: Arc<Memory>,
    raise: Raise,
    channels: Channels<State>,
    capacity: u32,
    interrupt_control: AtomicU8,
    /// Channels that have raised an interrupt since this was read.
    attention: AtomicU32,
}

impl Ioat {
    pub fn new(channels: usize, capacity: u32, memory: Arc<Memory>, raise: Raise) -> Ioat {
        assert!((1..=MAX_CHANNELS).contains(&channels));
        Ioat {
            memory,
            raise,
            channels: Channels::new(channels),
            capacity,
            interrupt_control: AtomicU8::new(0),
            attention: AtomicU32::new(0),
        }
    }

    /// Starts the threads that run the channels.
    pub fn start(self: &Arc<Self>) {
        Channels::start(self, |engine| &engine.channels, Ioat::step);
    }

    // ---- registers --------------------------------------------------------------

    fn global(&self, offset: u32, size: u32) -> u64 {
        match offset & !7 {
            0x00 => {
                let control = u64::from(self.interrupt_control.load(Ordering::SeqCst));
                let attention = match offset % 8 + size {
                    5.. => self.attention.swap(0, Ordering::SeqCst),
                    _ => self.attention.load(Ordering::SeqCst),
                };
                self.channels.len() as u64
                    | u64::from(self.capacity) << 8
                    | control << 24
                    | u64::from(attention) << 32
            }
            0x08 => VERSION,
            _ => 0, // no capability beyond copying
        }
    }

    fn channel_at(&self, offset: u32) -> Option<(usize, u32)> {
        let index = (offset / 0x80).checked_sub(1)? as usize;
        (index < self.channels.len()).then_some((index, offset % 0x80))
    }

    fn write_interrupt_control(&self, value: u8) {
        self.interrupt_control.store(value, Ordering::SeqCst);
        for index in 0..self.channels.len() {
            self.raise_latched(index, &mut self.channels.lock(index));
        }
    }

    fn write_channel(&self, index: usize, register: u32, size: u32, value: u64) {
        let mut state = self.channels.lock(index);
        let low = |old: u64| old & !0xffff_ffff | value & 0xffff_ffff;
        let high = |old: u64| old & 0xffff_ffff | value << 32;
        match (register, size) {
            (0x00, 2) => {
                state.control = value as u16 & !IN_SERVICE;
                if value as u16 & IN_SERVICE != 0 {
                    state.in_service = false;
                    self.raise_latched(index, &mut state);
                }
            }
            (0x04, 1) => state.command(value as u8),
            (0x06, 2) => state.doorbell(value as u16),
            (0x10, 4) => state.chain = low(state.chain),
            (0x14, 4) => {
                state.chain = high(state.chain);
                state.new_chain();
            }
            (0x10, 8) => {
                state.chain = value;
                state.new_chain();
            }
            (0x18, 4) => state.completion = low(state.completion),
            (0x1c, 4) => state.completion = high(state.completion),
            (0x18, 8) => state.completion = value,
            (0x28, 4) => state.error &= !(value as u32),
            (0x2c, 4) => state.error_mask = value as u32,
            (0x30, 4) => state.dca = value as u32,
            _ => {}
        }
        drop(state);
        self.channels.wake(index);
    }

    // ---- descriptors ------------------------------------------------------------

    /// Runs at most one descriptor.
    fn step(&self, index: usize, state: &mut Channel, now: Instant) -> Next {
        if state.status != Status::Active || state.hung {
            return Next::Sleep;
        }
        if state.processed == state.count {
            if let Some(due) = state.late.due.filter(|due| now < *due) {
                return Next::SleepUntil(due);
            }
            state.status = Status::Done;
            self.make_up(index, state);
            return Next::Sleep;
        }
        let address = state.next;
        let Some([size_control, source, destination, next]) = self.memory.load(address) else {
            self.fail(index, state, BAD_NEXT);
            return Next::Sleep;
        };
        let (size, control) = (size_control & 0xffff_ffff, size_control >> 32);

        let (when, fate) = state.fate.unwrap_or_else(|| match control & NULL {
            0 => {
                let (delay, fate) = state.faults.on_data();
                (now + delay, fate)
            }
            _ => (now, state.faults.on_null()),
        });
        state.fate = Some((when, fate));
        if now < when {
            return Next::SleepUntil(when);
        }
        state.fate = None;
        let error = match fate {
            Fate::Run if state.put_off(now, control, (source, destination, size)) => 0,
            Fate::Run => {
                // Only small transfers overtake.
                if size > SMALL || control & (FENCE | NULL) != 0 {
                    self.make_up(index, state);
                }
                self.execute(state, size, control, source, destination)
            }
            Fate::Fail(error) => {
                if error & WRITE_ERROR != 0 {
                    // A destination is undefined after a write error.
                    self.memory.copy(source, destination, size / 2);
                }
                error
            }
            Fate::Hang => {
                state.hung = true;
                return Next::Sleep;
            }
        };
        if error != 0 {
            self.fail(index, state, error);
            return Next::Sleep;
        }

        state.done = address;
        state.next = next;
        state.processed = state.processed.wrapping_add(1);
        if !state.late.transfers.is_empty() {
            state.late.completion |= control & COMPLETION != 0;
            state.late.interrupt |= control & INTERRUPT != 0;
            return Next::Step;
        }
        if state.processed == state.count {
            state.status = Status::Done;
        }
        if control & COMPLETION != 0 && !self.memory.store(state.completion, state.report()) {
            self.fail(index, state, BAD_COMPLETION);
            return Next::Sleep;
        }
        if control & INTERRUPT != 0 {
            self.interrupt(index, state);
        }
        Next::Step
    }

    /// Makes up for delayed transfers, and reports what has waited for them.
    fn make_up(&self, index: usize, state: &mut Channel) {
        let late = std::mem::take(&mut state.late);
        for (from, to, size) in late.transfers {
            let error = self.execute(state, size, 0, from, to);
            if error != 0 {
                return self.fail(index, state, error);
            }
        }
        if late.completion {
            self.memory.store(state.completion, state.report());
        }
        if late.interrupt {
            self.interrupt(index, state);
        }
    }

    /// Executes a valid descriptor; returns error bits for an invalid one.
    fn execute(&self, state: &mut Channel, size: u64, control: u64, from: u64, to: u64) -> u32 {
        if size == 0 || size > 1 << self.capacity {
            return BAD_LENGTH;
        }
        if control >> 24 != 0 {
            return BAD_CONTROL; // an operation other than copy
        }
        if control & NULL != 0 {
            state.faults.counters.null += 1;
            return 0;
        }
        if !self.memory.is_memory(from, size) {
            return BAD_SOURCE;
        }
        if !self.memory.copy(from, to, size) {
            return BAD_DESTINATION;
        }
        state.faults.counters.data += 1;
        state.faults.counters.bytes += size;
        0
    }

    /// Halts the channel; the completion stays at the last good descriptor.
    fn fail(&self, index: usize, state: &mut Channel, error: u32) {
        state.error |= error;
        state.status = Status::Halted;
        if state.control & ERROR_COMPLETION != 0 {
            self.memory.store(state.completion, state.report());
        }
        if state.control & ERROR_INTERRUPT != 0 {
            self.interrupt(index, state);
        }
    }

    fn interrupt(&self, index: usize, state: &mut Channel) {
        if state.faults.on_interrupt() {
            return;
        }
        self.attention.fetch_or(1 << index, Ordering::SeqCst);
        state.latched = true;
        self.raise_latched(index, state);
    }

    fn raise_latched(&self, index: usize, state: &mut Channel) {
        let enabled = self.interrupt_control.load(Ordering::SeqCst) & MASTER != 0;
        if enabled && state.latched && !state.in_service {
            state.latched = false;
            state.in_service = true;
            state.faults.counters.interrupts += 1;
            (self.raise)(index);
        }
    }
}

impl Engine for Ioat {
    fn read(&self, offset: u32, size: u32) -> u64 {
        let word = match self.channel_at(offset) {
            Some((index, register)) => self.channels.lock(index).register(register & !7),
            None => self.global(offset, size),
        };
        let bits = word >> (8 * (offset % 8));
        if size >= 8 { bits } else { bits & ((1 << (8 * size)) - 1) }
    }

    fn write(&self, offset: u32, size: u32, value: u64) {
        match self.channel_at(offset) {
            Some((index, register)) => self.write_channel(index, register, size, value),
            None if offset == 0x03 => self.write_interrupt_control(value as u8),
            None => {}
        }
    }

    fn reset(&self) {
        self.interrupt_control.store(0, Ordering::SeqCst);
        self.attention.store(0, Ordering::SeqCst);
        self.channels.reset();
    }

    fn arm(&self, channels: u32, fault: Option<Fault>) {
        self.channels.arm(channels, fault);
    }

    fn counters(&self, index: usize) -> Option<Counters> {
        self.channels.counters(index)
    }
}

impl State {
    /// Returns completed descriptor and status, as in register and completion.
    fn report(&self) -> u64 {
        self.done | self.status as u64
    }

    fn register(&self, register: u32) -> u64 {
        match register {
            0x00 => {
                let control = self.control | if self.in_service { IN_SERVICE } else { 0 };
                // Commands clear themselves; compatible with version 2.
                u64::from(control) | 0x2 << 16 | u64::from(self.count) << 48
            }
            0x08 => self.report(),
            0x10 => self.chain,
            0x18 => self.completion,
            0x20 => self.next,
            0x28 => u64::from(self.error) | u64::from(self.error_mask) << 32,
            0x30 => self.dca.into(),
            _ => 0,
        }
    }

    fn new_chain(&mut self) {
        self.fresh = true;
        self.next = self.chain;
        (self.count, self.processed, self.done) = (0, 0, 0);
        (self.fate, self.late) = (None, Late::default());
    }

    /// Adds descriptors. A stopped channel needs a new chain first.
    fn doorbell(&mut self, count: u16) {
        self.count = count;
        if self.count != self.processed && (self.fresh || self.status == Status::Done) {
            self.fresh = false;
            self.status = Status::Active;
        }
    }
}

impl Channel {
    /// Delays a transfer that may be overtaken, if that was ordered.
    fn put_off(&mut self, now: Instant, control: u64, transfer: (u64, u64, u64)) -> bool {
        if control & (FENCE | NULL) != 0 || transfer.2 <= SMALL {
            return false;
        }
        let Some(delay) = self.faults.on_unfenced() else { return false };
        self.late.transfers.push(transfer);
        self.late.due = Some(now + delay);
        true
    }

    fn command(&mut self, command: u8) {
        match command {
            RESET => {
                self.faults.counters.resets += 1;
                self.status = Status::Halted;
                (self.count, self.processed, self.done) = (0, 0, 0);
                (self.fresh, self.hung, self.fate) = (false, false, None);
                self.late = Late::default();
                (self.in_service, self.latched) = (false, false);
                self.error = 0;
            }
            SUSPEND if matches!(self.status, Status::Active | Status::Done) => {
                self.status = Status::Suspended;
            }
            RESUME if self.status == Status::Suspended => {
                // The next step sees whether there is anything to do.
                self.status = Status::Active;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
