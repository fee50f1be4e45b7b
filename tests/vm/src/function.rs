//! An engine as a PCI function: configuration space, BARs, MSI-X.
//!
//! The transport forwards every access here. MSI-X is ours as well: an interrupt is a write of the
//! table's data to the table's address, which the transport performs (`Message`).

use crate::channel::Engine;
use crate::dsa::{self, Dsa};
use crate::faults::{self, Area, Order};
use crate::ioat::Ioat;
use crate::memory::Memory;
use parking_lot::Mutex;
use std::sync::Arc;

pub const VENDOR: u16 = 0x8086;

/// Model of the function, with its PCI device number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    /// The I/OAT engine of Skylake and Cascade Lake servers.
    Ioat = 0x2021,
    /// The Data Streaming Accelerator of Sapphire Rapids.
    Dsa = 0x0b25,
}

/// Functions of one device.
pub const MAX_FUNCTIONS: usize = 8;

/// Size of BAR 0: registers, then the MSI-X table and its pending bits.
const BAR_SIZE: u32 = 0x4000;
const TABLE: u32 = 0x2000;
const PENDING: u32 = 0x3000;

const COMMAND: usize = 0x04;
const BAR: usize = 0x10;
/// BAR 2, a DSA's portals.
const PORTALS: usize = 0x18;
const PORTALS_SIZE: u32 = dsa::MAX_QUEUES as u32 * dsa::PORTAL;
const EXPRESS: usize = 0x40;
const MSIX: usize = 0x80;
const MSIX_ENABLE: u16 = 0x8000;
const MSIX_MASK: u16 = 0x4000;

/// Delivers an interrupt message: address and data.
pub type Message = Box<dyn Fn(u64, u32) + Send + Sync>;

pub struct Function {
    model: Model,
    engine: Arc<dyn Engine>,
    msix: Arc<Msix>,
    config: Mutex<Config>,
}

struct Config {
    bytes: [u8; 256],
    area: Area,
}

impl Function {
    /// Makes a function of a device.
    pub fn new(
        model: Model,
        several: bool,
        channels: usize,
        capacity: u32,
        memory: Arc<Memory>,
        message: Message,
    ) -> Function {
        // The first vector of a DSA is for its commands and errors.
        let vectors = channels + usize::from(model == Model::Dsa);
        let msix = Arc::new(Msix::new(vectors, message));
        let table = Arc::clone(&msix);
        let raise = Box::new(move |vector| table.raise(vector));
        let engine: Arc<dyn Engine> = match model {
            Model::Ioat => {
                let engine = Arc::new(Ioat::new(channels, capacity, memory, raise));
                engine.start();
                engine
            }
            Model::Dsa => {
                let engine = Dsa::new(channels, memory, raise);
                engine.start();
                engine
            }
        };
        let config = Config { bytes: power_on(model, vectors, several), area: Area::default() };
        Function { model, engine, msix, config: Mutex::new(config) }
    }

    pub fn reset(&self) {
        self.engine.reset();
        self.msix.reset();
        let mut config = self.config.lock();
        config.bytes[COMMAND..COMMAND + 2].fill(0);
        config.bytes[BAR..PORTALS + 4].fill(0);
        config.bytes[MSIX + 3] &= 0x3f;
    }

    // ---- configuration space ----------------------------------------------------

    pub fn config_read(&self, address: u32, size: u32) -> u32 {
        let config = self.config.lock();
        if address >= 256 || size > 4 {
            return u32::MAX;
        }
        let aligned = address & !3;
        let word = match aligned {
            faults::AREA.. => config.area.read(aligned - faults::AREA),
            _ => word_at(&config.bytes, aligned as usize),
        };
        let bits = word >> (8 * (address % 4));
        if size == 4 { bits } else { bits & ((1 << (8 * size)) - 1) }
    }

    pub fn config_write(&self, address: u32, size: u32, value: u32) {
        let mut config = self.config.lock();
        if (faults::AREA..256).contains(&address) {
            if size == 4 && address.is_multiple_of(4) {
                let order = config.area.write(address - faults::AREA, value);
                self.obey(&mut config.area, order);
            }
            return;
        }
        for (index, byte) in value.to_le_bytes().into_iter().take(size as usize).enumerate() {
            let at = address as usize + index;
            let mask = writable(self.model, at);
            if let Some(old) = config.bytes.get_mut(at) {
                *old = *old & !mask | byte & mask;
            }
        }
        let control = u16::from_le_bytes([config.bytes[MSIX + 2], config.bytes[MSIX + 3]]);
        drop(config);
        self.msix.control(control);
    }

    fn obey(&self, area: &mut Area, order: Option<Order>) {
        match order {
            Some(Order::Arm { channels, fault }) => self.engine.arm(channels, fault),
            Some(Order::Select(channel)) => {
                area.show(self.engine.counters(channel).unwrap_or_default());
            }
            None => {}
        }
    }

    // ---- BARs -------------------------------------------------------------------

    pub fn bar_read(&self, address: u64, size: u32) -> u64 {
        match address as u32 % BAR_SIZE {
            offset @ PENDING.. => self.msix.read_pending(offset - PENDING),
            offset @ TABLE.. => self.msix.read(offset - TABLE, size),
            offset => self.engine.read(offset, size),
        }
    }

    /// Writes to a BAR; addresses are the guest's, and the address determines the BAR.
    pub fn bar_write(&self, address: u64, size: u32, value: u64) {
        if self.model == Model::Dsa {
            let base = word_at(&self.config.lock().bytes, PORTALS);
            let offset = (address as u32).wrapping_sub(base);
            if base != 0 && offset < PORTALS_SIZE {
                return self.engine.submit(offset, value);
            }
        }
        match address as u32 % BAR_SIZE {
            PENDING.. => {}
            offset @ TABLE.. => self.msix.write(offset - TABLE, size, value),
            offset => self.engine.write(offset, size, value),
        }
    }
}

fn word_at(bytes: &[u8; 256], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Returns the writable bits of a configuration byte.
fn writable(model: Model, at: usize) -> u8 {
    match at {
        0x1a if model == Model::Dsa => 0xff << (PORTALS_SIZE >> 16).trailing_zeros(),
        0x1b if model == Model::Dsa => 0xff,
        COMMAND => 0x06,            // memory, bus master
        0x05 => 0x04,               // interrupt disable
        0x11 => 0xc0,               // BAR 0 is aligned to its 16 KiB
        0x12 | 0x13 | 0x3c => 0xff, // the rest of it; interrupt line
        0x48 | 0x49 => 0xff,        // device control
        0x83 => 0xc0,               // MSI-X enable and mask
        _ => 0,
    }
}

fn power_on(model: Model, vectors: usize, several: bool) -> [u8; 256] {
    let mut bytes = [0; 256];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0x00, &VENDOR.to_le_bytes());
    put(0x02, &(model as u16).to_le_bytes());
    put(0x06, &[0x10]); // there is a list of capabilities
    put(0x08, &[0x04, 0x00, 0x80, 0x08]); // a system peripheral
    put(0x0e, &[if several { 0x80 } else { 0 }]);
    put(0x2c, &VENDOR.to_le_bytes());
    put(0x34, &[EXPRESS as u8]);
    // PCI Express, version 2, endpoint integrated into the root complex.
    put(EXPRESS, &[0x10, MSIX as u8, 0x92, 0x00]);
    put(MSIX, &[0x11, faults::AREA as u8, vectors as u8 - 1, 0]);
    put(MSIX + 4, &TABLE.to_le_bytes());
    put(MSIX + 8, &PENDING.to_le_bytes());
    bytes
}

// ---- MSI-X ----------------------------------------------------------------------

struct Msix {
    state: Mutex<MsixState>,
    message: Message,
}

struct MsixState {
    control: u16,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    address: u64,
    data: u32,
    masked: bool,
    pending: bool,
}

const POWER_ON: Entry = Entry { address: 0, data: 0, masked: true, pending: false };

impl Msix {
    fn new(vectors: usize, message: Message) -> Msix {
        let state = MsixState { control: 0, entries: vec![POWER_ON; vectors] };
        Msix { state: Mutex::new(state), message }
    }

    fn reset(&self) {
        let mut state = self.state.lock();
        state.control = 0;
        state.entries.fill(POWER_ON);
    }

    fn raise(&self, vector: usize) {
        let mut state = self.state.lock();
        state.entries[vector].pending = true;
        self.deliver(&mut state);
    }

    fn control(&self, control: u16) {
        let mut state = self.state.lock();
        state.control = control;
        self.deliver(&mut state);
    }

    fn deliver(&self, state: &mut MsixState) {
        if state.control & (MSIX_ENABLE | MSIX_MASK) != MSIX_ENABLE {
            return;
        }
        for entry in &mut state.entries {
            if entry.pending && !entry.masked {
                entry.pending = false;
                (self.message)(entry.address, entry.data);
            }
        }
    }

    fn read(&self, offset: u32, size: u32) -> u64 {
        let state = self.state.lock();
        let Some(entry) = state.entries.get(offset as usize / 16) else { return 0 };
        match (offset % 16, size) {
            (0, 8) => entry.address,
            (0, _) => entry.address & 0xffff_ffff,
            (4, _) => entry.address >> 32,
            (8, 8) => u64::from(entry.data) | u64::from(entry.masked) << 32,
            (8, _) => entry.data.into(),
            (12, _) => entry.masked.into(),
            _ => 0,
        }
    }

    fn read_pending(&self, offset: u32) -> u64 {
        let state = self.state.lock();
        let bit = |(i, entry): (usize, &Entry)| u64::from(entry.pending) << i;
        let bits: u64 = state.entries.iter().enumerate().map(bit).sum();
        if offset == 0 { bits } else { 0 }
    }

    fn write(&self, offset: u32, size: u32, value: u64) {
        let mut state = self.state.lock();
        let Some(entry) = state.entries.get_mut(offset as usize / 16) else { return };
        match (offset % 16, size) {
            (0, 8) => entry.address = value,
            (0, 4) => entry.address = entry.address & !0xffff_ffff | value,
            (4, 4) => entry.address = entry.address & 0xffff_ffff | value << 32,
            (8, 8) => {
                entry.data = value as u32;
                entry.masked = value >> 32 & 1 != 0;
            }
            (8, 4) => entry.data = value as u32,
            (12, 4) => entry.masked = value & 1 != 0,
            _ => {}
        }
        self.deliver(&mut state);
    }
}
