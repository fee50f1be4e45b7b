//! The faults that a guest can order, by the number that it writes: what the emulated device and the
//! programs in the guest have in common. VALUE is the order's last word.
#![forbid(unsafe_code)]

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The source could not be read: nothing is copied.
    Read = 1,
    /// The destination could not be written: half of it is.
    Write = 2,
    /// Any other error bit of the channel, as VALUE says, which the driver only finds by its timer.
    Other = 3,
    /// The channel stops and stays active until it is reset.
    Hang = 4,
    /// The channel stops for VALUE milliseconds, then goes on.
    Stall = 5,
    /// Each descriptor takes VALUE microseconds.
    Slow = 6,
    /// The channel's interrupts are swallowed.
    Lost = 7,
    /// Every descriptor fails, also the first one after each reset.
    Dead = 8,
    /// Descriptors without a fence are overtaken by small ones, by VALUE milliseconds.
    Overtaken = 9,
    /// Each descriptor of a DSA's queue is carried out and answered VALUE milliseconds after its turn;
    /// others do not wait for it. A reset, disable or abort drops what is held.
    Late = 10,
}

impl Kind {
    /// Kinds by name.
    pub const ALL: [(Kind, &str); 10] = [
        (Kind::Read, "read"),
        (Kind::Write, "write"),
        (Kind::Other, "other"),
        (Kind::Hang, "hang"),
        (Kind::Stall, "stall"),
        (Kind::Slow, "slow"),
        (Kind::Lost, "lost"),
        (Kind::Dead, "dead"),
        (Kind::Overtaken, "overtaken"),
        (Kind::Late, "late"),
    ];
}

/// Offset of the area for orders in configuration space; it ends at 0x100.
pub const AREA: u32 = 0xc0;

/// Words of the area. A write to ORDER, bits 0 to 7 the kind and bits 8 to 15 the channels, arms a fault; one
/// to SELECT, a number, shows the counters of that channel: data descriptors, their bytes (two words), null
/// descriptors, interrupts, resets, and how often a fault took effect.
pub const ORDER: u32 = 0x04;
pub const AFTER: u32 = 0x08;
pub const TIMES: u32 = 0x0c;
pub const VALUE: u32 = 0x10;
pub const SELECT: u32 = 0x14;
pub const COUNTERS: u32 = 0x18;
