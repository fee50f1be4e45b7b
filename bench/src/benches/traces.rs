//! Real copies for the translation cache of `pins`: where numpy, Redis and MPI copy from and to, as a
//! preloaded library writes it down (trace.c).

use super::mpi;
use crate::options::Options;
use crate::out::progress;
use crate::programs::jobs;
use crate::programs::needs::Place;
use crate::programs::run::{Failure, Run, Surroundings, once};
use crate::spawn::Scratch;
use std::fs;
use std::path::Path;

/// Where the library writes.
pub const VARIABLE: &str = "BENCH_TRACE";

/// Numbers of a record.
const NUMBERS: usize = 5;

/// Programs, by their jobs; the last name is that of the ranks.
const JOBS: [&str; 2] = ["numpy-slices", "redis-1M"];
const RANKS: &str = "mpi-collectives";

/// One side of a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Side {
    pub process: u64,
    pub at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copy {
    pub dst: Side,
    pub src: Side,
    pub len: u64,
}

/// Returns the copies of each program that can run here, in their order; prints why another cannot.
pub fn all(options: &Options) -> Vec<(&'static str, Vec<Copy>)> {
    let mut found = Vec::new();
    for name in JOBS.into_iter().chain([RANKS]) {
        progress(&format!("pins: {name}"));
        match trace(name, options) {
            Ok(copies) => found.push((name, copies)),
            Err(why) => println!("{name} skipped: {why}"),
        }
    }
    found
}

fn trace(name: &str, options: &Options) -> Result<Vec<Copy>, String> {
    let library = Scratch::tracing().ok_or("no folder for files of a run")?;
    let place = Place::new().map_err(|error| error.to_string())?;
    let file = place.folder.join(format!("trace-{}", std::process::id()));
    let _ = fs::remove_file(&file);
    let around = Surroundings {
        preload: Some(&library.0),
        knobs: vec![(VARIABLE, file.to_str().ok_or("a folder whose name is no text")?)],
        ..Surroundings::default()
    };
    match jobs::JOBS.iter().find(|job| job.name == name) {
        Some(job) => {
            let interpreter = place.interpreter(job)?;
            let run = Run { job, place: &place, interpreter, quick: options.quick };
            once(&run, &around).map_err(|(Failure::Skipped(why) | Failure::Failed(why))| why)?;
        }
        None => mpi::traced(&around, options)?,
    }
    let copies = read(&file)?;
    let _ = fs::remove_file(&file);
    // Otherwise it would seem that none of its pages is missed.
    if copies.is_empty() { Err("its copies were not written down".to_owned()) } else { Ok(copies) }
}

fn read(file: &Path) -> Result<Vec<Copy>, String> {
    let bytes = fs::read(file).map_err(|error| format!("its trace: {error}"))?;
    let (records, _) = bytes.as_chunks::<{ 8 * NUMBERS }>();
    Ok(records.iter().map(copy).collect())
}

fn copy(record: &[u8; 8 * NUMBERS]) -> Copy {
    let (words, _) = record.as_chunks::<8>();
    let number = |index: usize| u64::from_le_bytes(words[index]);
    let side = |index: usize| Side { process: number(index), at: number(index + 1) };
    Copy { dst: side(0), src: side(2), len: number(4) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_the_library_is_a_copy() {
        let mut bytes = [0; 8 * NUMBERS];
        for (at, number) in [7u64, 0x1000, 8, 0x2000, 65536].into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let [dst, src] = [(7, 0x1000), (8, 0x2000)].map(|(process, at)| Side { process, at });
        assert_eq!(copy(&bytes), Copy { dst, src, len: 65536 });
    }
}
