//! The exported symbols. No logic here: `entry` decides by size with three instructions,
//! `slow` brings the arguments into one form.

mod entry;
mod slow;
