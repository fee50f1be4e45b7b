//! The exported symbols. No logic here: `entry` decides by size with three instructions,
//! `slow` brings the arguments into one form; `signals` decides by the number of the signal;
//! `alone` passes calls on before which workers leave; `leave` has a report written before the
//! process ends; `remote` are the calls that copy between processes.

mod alone;
mod entry;
mod leave;
mod remote;
mod signals;
mod slow;
