//! Faults that a guest can order from the device, and counters that it can read.
//!
//! A guest speaks to this area through the configuration space of the
//! function, from `AREA` up, in 32-bit words (see README.md for the table). It
//! sets AFTER, TIMES and VALUE, then writes a kind and the channels to ORDER.

use crate::orders::{AFTER, COUNTERS, ORDER, SELECT, TIMES, VALUE};
pub use crate::orders::{AREA, Kind};
use std::time::Duration;

pub const READ_ERROR: u32 = 0x100;
pub const WRITE_ERROR: u32 = 0x200;

/// Error bit for "other error" when the guest names none: a bad next descriptor.
const SOME_ERROR: u32 = 0x4;

/// One fault, armed on one channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub kind: Kind,
    /// Data descriptors that still go through.
    pub after: u32,
    /// Occurrences that are left; 0: no limit.
    pub times: u32,
    pub value: u32,
}

impl Fault {
    fn error(&self) -> u32 {
        match self.kind {
            Kind::Read => READ_ERROR,
            Kind::Write => WRITE_ERROR,
            _ if self.value == 0 => SOME_ERROR,
            _ => self.value,
        }
    }

    fn delay(&self) -> Duration {
        match self.kind {
            Kind::Stall | Kind::Overtaken | Kind::Late => Duration::from_millis(self.value.into()),
            Kind::Slow => Duration::from_micros(self.value.into()),
            _ => Duration::ZERO,
        }
    }
}

/// Result of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    Run,
    Fail(u32),
    Hang,
}

/// Armed faults of one channel.
#[derive(Default)]
pub struct Faults {
    armed: Vec<Fault>,
    pub counters: Counters,
}

impl Faults {
    /// Adds a fault; `None` removes all.
    pub fn arm(&mut self, fault: Option<Fault>) {
        match fault {
            Some(fault) => self.armed.push(fault),
            None => self.armed.clear(),
        }
    }

    /// Returns the delay and the result of a data descriptor.
    pub fn on_data(&mut self) -> (Duration, Fate) {
        let (mut delay, mut fate) = (Duration::ZERO, Fate::Run);
        for index in 0..self.armed.len() {
            let fault = &mut self.armed[index];
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            if matches!(fault.kind, Kind::Lost | Kind::Overtaken | Kind::Late) || fate != Fate::Run
            {
                continue;
            }
            delay += fault.delay();
            fate = match fault.kind {
                Kind::Hang => Fate::Hang,
                Kind::Stall | Kind::Slow | Kind::Lost | Kind::Overtaken | Kind::Late => Fate::Run,
                Kind::Read | Kind::Write | Kind::Other | Kind::Dead => Fate::Fail(fault.error()),
            };
            self.fire(index);
        }
        self.armed.retain(|fault| fault.times != SPENT);
        (delay, fate)
    }

    /// Returns the result of a null descriptor, which starts a channel: only a dead one fails here.
    pub fn on_null(&mut self) -> Fate {
        let Some(index) = self.ready(Kind::Dead) else { return Fate::Run };
        let fate = Fate::Fail(self.armed[index].error());
        self.fire(index);
        self.armed.retain(|fault| fault.times != SPENT);
        fate
    }

    /// Returns whether an interrupt that is due is lost.
    pub fn on_interrupt(&mut self) -> bool {
        let Some(index) = self.ready(Kind::Lost) else { return false };
        self.fire(index);
        self.armed.retain(|fault| fault.times != SPENT);
        true
    }

    /// Returns the delay of a descriptor that may be overtaken, if it is.
    pub fn on_unfenced(&mut self) -> Option<Duration> {
        self.delayed(Kind::Overtaken)
    }

    /// Returns the delay of a descriptor of a queue that is late.
    pub fn on_late(&mut self) -> Option<Duration> {
        self.delayed(Kind::Late)
    }

    fn delayed(&mut self, kind: Kind) -> Option<Duration> {
        let index = self.ready(kind)?;
        let delay = self.armed[index].delay();
        self.fire(index);
        self.armed.retain(|fault| fault.times != SPENT);
        Some(delay)
    }

    fn ready(&self, kind: Kind) -> Option<usize> {
        self.armed.iter().position(|fault| fault.kind == kind && fault.after == 0)
    }

    fn fire(&mut self, index: usize) {
        self.counters.faults += 1;
        let times = &mut self.armed[index].times;
        *times = match *times {
            0 => 0,
            1 => SPENT,
            more => more - 1,
        };
    }
}

/// Replaces a 0, which would mean no limit.
const SPENT: u32 = u32::MAX;

/// Counters of a channel since power-on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    pub data: u32,
    pub bytes: u64,
    pub null: u32,
    pub interrupts: u32,
    pub resets: u32,
    pub faults: u32,
}

impl Counters {
    fn words(&self) -> [u32; 7] {
        let (low, high) = (self.bytes as u32, (self.bytes >> 32) as u32);
        [self.data, low, high, self.null, self.interrupts, self.resets, self.faults]
    }
}

/// Request of the guest, by a write to the area.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    Arm { channels: u32, fault: Option<Fault> },
    Select(usize),
}

/// The registers of the area.
#[derive(Default)]
pub struct Area {
    after: u32,
    times: u32,
    value: u32,
    select: u32,
    counters: Counters,
}

impl Area {
    /// Reads a register; `offset` is relative to `AREA`.
    pub fn read(&self, offset: u32) -> u32 {
        match offset {
            // A vendor-specific capability, the last in the list, of 64 bytes.
            0 => 0x0140_0009,
            AFTER => self.after,
            TIMES => self.times,
            VALUE => self.value,
            SELECT => self.select,
            COUNTERS.. => {
                let words = self.counters.words();
                words.get((offset - COUNTERS) as usize / 4).copied().unwrap_or(0)
            }
            _ => 0,
        }
    }

    pub fn write(&mut self, offset: u32, word: u32) -> Option<Order> {
        match offset {
            ORDER => return self.order(word),
            AFTER => self.after = word,
            TIMES => self.times = word,
            VALUE => self.value = word,
            SELECT => {
                self.select = word;
                return Some(Order::Select(word as usize));
            }
            _ => {}
        }
        None
    }

    fn order(&self, word: u32) -> Option<Order> {
        let Area { after, times, value, .. } = *self;
        let fault = match word & 0xff {
            0 => None,
            number => {
                let is_it = |kind: &&(Kind, &str)| kind.0 as u32 == number;
                let (kind, _) = *Kind::ALL.iter().find(is_it)?;
                Some(Fault { kind, after, times, value })
            }
        };
        Some(Order::Arm { channels: word >> 8 & 0xff, fault })
    }

    /// Shows the counters of the selected channel, all of one moment.
    pub fn show(&mut self, counters: Counters) {
        self.counters = counters;
    }
}
