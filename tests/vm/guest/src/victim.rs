//! Roles that the program itself plays, as a child of a test: under the library, or as what
//! a copying process turns into.

use crate::device::{Device, EPERM, INFO, Info, Piece, SUBMIT, Submit, WAIT, Wait, call};
use crate::kernel::Pagemap;
use crate::memory::{PAGE, Region};
use crate::oracle::Watched;
use crate::random::Random;
use crate::trace;
use crate::verdict::{Context, Outcome};
use std::time::{Duration, Instant};

pub fn play(role: &str, arguments: &[&str]) -> Outcome {
    let numbers: Result<Vec<usize>, _> = arguments.iter().map(|text| text.parse()).collect();
    match (role, numbers.as_deref()) {
        ("nothing", Ok([])) => Ok(()),
        ("sleeper", Ok([])) => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        ("stranger", Ok([fd])) => expect_eperm(*fd as i32),
        ("copies", Ok([count, len])) => copies(*count, *len, Region::of_small_pages),
        ("scattered", Ok([count, len])) => copies(*count, *len, Region::of_scattered_pages),
        ("large", Ok([count, len])) => copies(*count, *len, Region::anonymous),
        ("steady", Ok([len])) => steady(*len),
        ("oracle", Ok([seed])) => oracle(*seed as u64),
        _ => fail!("no role {role} with {arguments:?}"),
    }
}

/// memcpy as a program has it: by its name, through the dynamic linker.
fn memcpy(dst: &Region, dst_at: usize, src: &Region, src_at: usize, len: usize) {
    assert!(dst_at + len <= dst.len() && src_at + len <= src.len());
    let (to, from) = (dst.address(dst_at), src.address(src_at));
    // SAFETY: inside two regions that do not overlap; memory law.
    unsafe { libc::memcpy(to as *mut _, from as *const _, len) };
}

/// Has the open file of another process, or of what it was: every call must be refused.
pub fn expect_eperm(fd: i32) -> Outcome {
    let dst = Region::of_small_pages(PAGE)?;
    dst.fill(1);
    let mut pieces = [Piece::new(&dst, 0, &Region::of_small_pages(PAGE)?, 0, PAGE)];
    ensure_eq!(call(fd, INFO, &mut Info::new()), Err(EPERM), "INFO of another's file");
    ensure_eq!(call(fd, SUBMIT, &mut Submit::new(&mut pieces)), Err(EPERM), "SUBMIT");
    ensure_eq!(call(fd, WAIT, &mut Wait::new(1, Duration::ZERO)), Err(EPERM), "WAIT");
    let mapped = Region::map_file(fd, 0, PAGE, libc::PROT_READ, libc::MAP_SHARED);
    ensure!(mapped.is_err(), "the words of another's file are mapped");
    dst.expect(1).context("copied for another process")?;
    // A file that this process opens serves it.
    Device::open()?.info().map(drop)
}

/// Copies between two regions, each copy between marks. Says first of how many physical extents they
/// are, or 0 if they are not all there; they need not fit into memory.
fn copies(count: usize, len: usize, region: fn(usize) -> Outcome<Region>) -> Outcome {
    let (dst, src) = (region(len)?, region(len)?);
    println!("{}", Pagemap::new()?.extents(&[Piece::new(&dst, 0, &src, 0, len)]).unwrap_or(0));
    for round in 0..count {
        let seed = round as u64 + 1;
        src.fill(seed);
        trace::mark_begin();
        memcpy(&dst, 0, &src, 0, len);
        trace::mark_end();
        dst.expect(seed).context(format_args!("copy {round} of {len} bytes"))?;
    }
    Ok(())
}

/// Copies again and again until standard input ends. Says how often, and how long the longest
/// copy took.
fn steady(len: usize) -> Outcome {
    let (dst, src) = (Region::of_small_pages(len)?, Region::of_small_pages(len)?);
    let mut end = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    let (mut copies, mut longest) = (0, Duration::ZERO);
    // SAFETY: one valid element.
    while unsafe { libc::poll(&mut end, 1, 0) } == 0 {
        copies += 1;
        src.fill(copies);
        let begun = Instant::now();
        memcpy(&dst, 0, &src, 0, len);
        longest = longest.max(begun.elapsed());
        dst.expect(copies).context(format_args!("copy {copies} of {len} bytes"))?;
    }
    println!("{copies} copies, the longest took {longest:?}");
    Ok(())
}

/// All offsets of interest and random ones, above and below the threshold.
fn oracle(seed: u64) -> Outcome {
    const LARGEST: usize = 512 << 10;
    let (dst, src) =
        (Region::anonymous(LARGEST + 4 * PAGE)?, Region::anonymous(LARGEST + 4 * PAGE)?);
    let copy = |dst_at: usize, src_at: usize, len: usize| -> Outcome {
        let watched = Watched::new(&dst, dst_at, &src, src_at, len, PAGE);
        memcpy(&dst, dst_at, &src, src_at, len);
        watched.expect_copied().context(format_args!("to {dst_at} from {src_at}, {len} bytes"))
    };
    let offsets = [0, 1, 63, 64, 65, 2048, 4095];
    for (dst_at, src_at) in offsets.into_iter().flat_map(|d| offsets.map(|s| (d, s))) {
        copy(PAGE + dst_at, PAGE + src_at, (64 << 10) + dst_at)?;
    }
    for len in (0..130).map(|odd| (64 << 10) - 65 + odd).step_by(13) {
        copy(PAGE + 7, PAGE, len)?;
        copy(PAGE, PAGE + 9, len)?;
    }
    let mut random = Random::new(seed);
    for _ in 0..12 {
        let mut below = |limit: usize| random.below(limit as u64) as usize;
        let (dst_at, src_at) = (PAGE + below(PAGE), PAGE + below(PAGE));
        copy(dst_at, src_at, below(LARGEST - (64 << 10)) + (64 << 10))?;
    }
    Ok(())
}
