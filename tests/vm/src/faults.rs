//! Faults that a guest can order from the device, and what it may count.
//!
//! A guest speaks to this area through the configuration space of the
//! function, from `AREA` up, in 32-bit words (see README.md for the table). It
//! sets AFTER, TIMES and VALUE, then writes a kind and the channels to ORDER.

use crate::orders::{AFTER, COUNTERS, ORDER, SELECT, TIMES, VALUE};
pub use crate::orders::{AREA, Kind};
use std::time::Duration;

pub const READ_ERROR: u32 = 0x100;
pub const WRITE_ERROR: u32 = 0x200;

/// What "other error" is when the guest names none: a bad next descriptor.
const SOME_ERROR: u32 = 0x4;

/// One fault, armed on one channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub kind: Kind,
    /// Data descriptors that still go through.
    pub after: u32,
    /// Occurrences that are left; 0 for ever.
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
            Kind::Stall | Kind::Overtaken => Duration::from_millis(self.value.into()),
            Kind::Slow => Duration::from_micros(self.value.into()),
            _ => Duration::ZERO,
        }
    }
}

/// What becomes of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    Run,
    Fail(u32),
    Hang,
}

/// The faults that wait on one channel.
#[derive(Default)]
pub struct Faults {
    armed: Vec<Fault>,
    pub counters: Counters,
}

impl Faults {
    /// One more fault; none: no fault any more.
    pub fn arm(&mut self, fault: Option<Fault>) {
        match fault {
            Some(fault) => self.armed.push(fault),
            None => self.armed.clear(),
        }
    }

    /// A data descriptor is about to run: after how long, and how it ends.
    pub fn on_data(&mut self) -> (Duration, Fate) {
        let (mut delay, mut fate) = (Duration::ZERO, Fate::Run);
        for index in 0..self.armed.len() {
            let fault = &mut self.armed[index];
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            if matches!(fault.kind, Kind::Lost | Kind::Overtaken) || fate != Fate::Run {
                continue;
            }
            delay += fault.delay();
            fate = match fault.kind {
                Kind::Hang => Fate::Hang,
                Kind::Stall | Kind::Slow | Kind::Lost | Kind::Overtaken => Fate::Run,
                Kind::Read | Kind::Write | Kind::Other | Kind::Dead => Fate::Fail(fault.error()),
            };
            self.fire(index);
        }
        self.armed.retain(|fault| fault.times != SPENT);
        (delay, fate)
    }

    /// A null descriptor, which starts a channel: only a dead one fails here.
    pub fn on_null(&mut self) -> Fate {
        let Some(index) = self.ready(Kind::Dead) else { return Fate::Run };
        let fate = Fate::Fail(self.armed[index].error());
        self.fire(index);
        self.armed.retain(|fault| fault.times != SPENT);
        fate
    }

    /// An interrupt is due: is it lost?
    pub fn on_interrupt(&mut self) -> bool {
        let Some(index) = self.ready(Kind::Lost) else { return false };
        self.fire(index);
        self.armed.retain(|fault| fault.times != SPENT);
        true
    }

    /// A descriptor that may be overtaken: by how much, if it is.
    pub fn on_unfenced(&mut self) -> Option<Duration> {
        let index = self.ready(Kind::Overtaken)?;
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

/// Instead of the 0 that would mean for ever.
const SPENT: u32 = u32::MAX;

/// What a channel has done since power-on.
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

/// What the guest asks for by a write to the area.
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
    /// `offset` is from `AREA`.
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

    /// The counters of the selected channel, all of one moment.
    pub fn show(&mut self, counters: Counters) {
        self.counters = counters;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(kind: Kind, after: u32, times: u32, value: u32) -> Faults {
        let mut faults = Faults::default();
        faults.arm(Some(Fault { kind, after, times, value }));
        faults
    }

    fn fates(faults: &mut Faults, count: usize) -> Vec<Fate> {
        (0..count).map(|_| faults.on_data().1).collect()
    }

    #[test]
    fn fault_begins_after_n_and_lasts_for_m() {
        use Fate::*;
        let mut read = faults(Kind::Read, 2, 1, 0);
        assert_eq!(fates(&mut read, 4), [Run, Run, Fail(0x100), Run]);
        let mut write = faults(Kind::Write, 0, 2, 0);
        assert_eq!(fates(&mut write, 3), [Fail(0x200), Fail(0x200), Run]);
        let mut other = faults(Kind::Other, 1, 0, 0x8);
        assert_eq!(fates(&mut other, 3), [Run, Fail(8), Fail(8)]);
        assert_eq!([read, write, other].map(|it| it.counters.faults), [1, 2, 2]);
    }

    #[test]
    fn delays_add_up_and_do_not_fail() {
        let mut faults = faults(Kind::Slow, 0, 0, 50);
        faults.arm(Some(Fault { kind: Kind::Stall, after: 1, times: 1, value: 3 }));
        let delays: Vec<_> = (0..3).map(|_| faults.on_data().0.as_micros()).collect();
        assert_eq!(delays, [50, 3050, 50]);
    }

    #[test]
    fn only_the_dead_fail_at_a_null_descriptor() {
        assert_eq!(faults(Kind::Other, 0, 0, 0).on_null(), Fate::Run);
        let mut dead = faults(Kind::Dead, 1, 0, 0);
        assert_eq!(dead.on_null(), Fate::Run);
        assert_eq!(fates(&mut dead, 2), [Fate::Run, Fate::Fail(4)]);
        assert_eq!((dead.on_null(), dead.on_null()), (Fate::Fail(4), Fate::Fail(4)));
    }

    #[test]
    fn lost_interrupts_are_counted_by_interrupts() {
        let mut lost = faults(Kind::Lost, 1, 2, 0);
        assert!(!lost.on_interrupt());
        assert_eq!(lost.on_data(), (Duration::ZERO, Fate::Run));
        assert_eq!([0; 3].map(|_| lost.on_interrupt()), [true, true, false]);
    }

    #[test]
    fn overtaking_is_counted_by_descriptors_that_allow_it() {
        let mut overtaken = faults(Kind::Overtaken, 1, 1, 20);
        assert_eq!(overtaken.on_unfenced(), None);
        assert_eq!(overtaken.on_data(), (Duration::ZERO, Fate::Run));
        assert_eq!(overtaken.on_data(), (Duration::ZERO, Fate::Run));
        assert_eq!(overtaken.on_unfenced(), Some(Duration::from_millis(20)));
        assert_eq!((overtaken.on_unfenced(), overtaken.counters.faults), (None, 1));
    }

    #[test]
    fn area_arms_clears_and_refuses_unknown_kinds() {
        let mut area = Area::default();
        for (offset, word) in [(AFTER, 5), (TIMES, 2), (VALUE, 300)] {
            assert_eq!(area.write(offset, word), None);
            assert_eq!(area.read(offset), word);
        }
        let fault = Some(Fault { kind: Kind::Stall, after: 5, times: 2, value: 300 });
        assert_eq!(area.write(ORDER, 0x305), Some(Order::Arm { channels: 3, fault }));
        let none = Some(Order::Arm { channels: 15, fault: None });
        assert_eq!(area.write(ORDER, 0xf00), none);
        assert_eq!(area.write(ORDER, 0x10a), None);
    }

    #[test]
    fn area_shows_counters_word_by_word() {
        let mut area = Area::default();
        assert_eq!(area.write(SELECT, 2), Some(Order::Select(2)));
        area.show(Counters {
            data: 1,
            bytes: 3 << 32 | 2,
            null: 4,
            interrupts: 5,
            resets: 6,
            faults: 7,
        });
        let words: Vec<_> = (0..8).map(|i| area.read(COUNTERS + 4 * i)).collect();
        assert_eq!(words, [1, 2, 3, 4, 5, 6, 7, 0]);
    }
}
