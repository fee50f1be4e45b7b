//! Copies of the program between its memory and a graphics card (`staging`), and what is common to all
//! that calls a card's `driver`. The card as an engine, which carries copies in loopback, is `gpu`.

pub mod driver;
pub mod staging;
