//! The exported symbols. There is no logic here: `entry` decides by size, with three instructions;
//! `slow` converts arguments; `signals` decides by the number of the signal; `alone` dismisses
//! workers before calls that need it; `leave` writes a report before the process ends; `remote`
//! holds the calls that copy between processes, `reads` those that read files; `memory` holds those
//! after which a graphics card may no longer use memory as before; `card` holds those that copy to a card
//! and from it; `filters` notes seccomp filters.

mod alone;
mod card;
mod entry;
mod filters;
mod leave;
mod memory;
mod reads;
mod remote;
mod signals;
mod slow;
