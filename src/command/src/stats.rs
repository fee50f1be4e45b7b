//! What the command has in common with the library: the layout of live files, and how reports
//! look. The library's own source files.
#![allow(dead_code)] // each of the two uses its own part

#[path = "../../stats/histogram.rs"]
pub mod histogram;
#[path = "../../stats/live.rs"]
pub mod live;
#[path = "../../ipc/counts.rs"]
pub mod messages;
#[path = "../../stats/samples.rs"]
pub mod samples;
#[path = "../../stats/sites.rs"]
pub mod sites;
#[path = "../../stats/tables.rs"]
pub mod tables;
#[path = "../../stats/timeline.rs"]
pub mod timeline;
#[path = "../../stats/units.rs"]
pub mod units;
#[path = "../../stats/worth.rs"]
pub mod worth;
