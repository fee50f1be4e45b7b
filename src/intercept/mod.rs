//! The exported symbols. No logic here: `entry` decides by size with three instructions,
//! `slow` brings the arguments into one form; `signals` decides by the number of the signal;
//! `alone` passes calls on before which workers leave; `leave` has a report written before the
//! process ends; `remote` are the calls that copy between processes; `memory` those after which
//! a graphics card must not use memory as before.

mod alone;
mod entry;
mod leave;
mod memory;
mod remote;
mod signals;
mod slow;
