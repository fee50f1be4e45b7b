//! Pages that stay pinned from one copy to the next, and every way to lose them.

use crate::device::*;
use crate::effort::{PATIENCE, eventually, rounds};
use crate::kernel::Statistics;
use crate::memory::{PAGE, Region, memory_file};
use crate::process::{become_nobody, fork, limit_locked_memory};
use crate::random::Random;
use crate::verdict::{Context, Outcome};
use std::os::fd::AsRawFd;

tests! {
    kept_pages_are_not_pinned_again
    kept_pages_serve_as_source_when_they_were_destination
    kept_first_page_is_under_way_before_the_second_is_pinned
    kept_neighbours_are_pinned_as_far_as_they_are_there
    kept_pieces_over_the_edge_of_a_line_are_right
    kept_memory_that_changes_is_never_stale
    kept_pages_beyond_the_mark_are_let_go
    kept_pages_go_when_memory_is_short
    kept_pages_make_room_at_the_limit_of_locked_memory
    kept_pages_of_processes_beyond_the_cache_are_right
    kept_pages_go_with_their_file
}

fn pair(len: usize) -> Outcome<(Region, Region)> {
    let (dst, src) = (Region::of_small_pages(len)?, Region::of_small_pages(len)?);
    src.fill(1);
    Ok((dst, src))
}

fn kept_pages_are_not_pinned_again() -> Outcome {
    const LEN: usize = 1 << 20;
    let device = Device::open()?;
    let (dst, src) = pair(LEN)?;
    let channels = device.info()?.channels;
    let mut costs = Vec::new();
    for round in 0..100 {
        src.fill_part(0, PAGE, round);
        let before = Statistics::now()?;
        let out =
            device.carry_with_costs(&mut Piece::new(&dst, 0, &src, 0, LEN).split(4, channels))?;
        let moved = Statistics::now()?.since(&before);
        costs.push((out.pinned as usize, moved.descriptors));
        dst.expect_part(0, PAGE, round).context(format_args!("round {round}"))?;
    }
    ensure_eq!(costs[0].0, 2 * LEN / PAGE, "pages pinned by the first copy");
    ensure_eq!(costs[1].0, 0, "pages pinned by the second copy");
    ensure_eq!(costs[99], costs[1], "pins and descriptors of the hundredth copy");
    Ok(())
}

fn kept_pages_serve_as_source_when_they_were_destination() -> Outcome {
    const LEN: usize = 64 * PAGE;
    let device = Device::open()?;
    let (a, b) = pair(LEN)?;
    device.carry(&mut [Piece::new(&a, 0, &b, 0, LEN)])?;
    let third = Region::of_small_pages(LEN)?;
    let out = device.carry_with_costs(&mut [Piece::new(&third, 0, &a, 0, LEN)])?;
    ensure_eq!(out.pinned as usize, LEN / PAGE, "pages pinned for the third buffer alone");
    // What was pinned for reading is not written through.
    let out = device.carry_with_costs(&mut [Piece::new(&b, 0, &third, 0, LEN)])?;
    ensure!(out.pinned > 0, "a source was written without a pin for writing");
    b.expect(1).context("through three buffers")
}

fn kept_first_page_is_under_way_before_the_second_is_pinned() -> Outcome {
    let device = Device::open()?;
    let channels = device.info()?.channels;
    for len in [64 << 10, 1 << 20, 4 << 20] {
        let (dst, src) = pair(len)?;
        let out =
            device.carry_with_costs(&mut Piece::new(&dst, 0, &src, 0, len).split(8, channels))?;
        ensure_eq!(out.pinned as usize, 2 * len / PAGE, "pages pinned for {len} bytes");
        ensure_eq!(out.pinned_first, 2, "pages pinned before the first transfer of {len} bytes");
        ensure!(out.pin_ns > 0 && out.kernel_ns >= out.pin_ns + out.map_ns, "{out:?}");
    }
    Ok(())
}

fn kept_neighbours_are_pinned_as_far_as_they_are_there() -> Outcome {
    // 64 pages of which the first half is there; the line is 64 pages long and aligned.
    let device = Device::open()?;
    let region = Region::anonymous(192 * PAGE)?;
    let line = (64 - (region.address(0) as usize / PAGE) % 64) % 64 * PAGE;
    let source = Region::of_small_pages(PAGE)?;
    (0..32).for_each(|page| region.set(line + page * PAGE, 1));
    let resident = || Some(region.residence()?.iter().filter(|page| **page).count());
    let before = resident();
    device.carry(&mut [Piece::new(&region, line, &source, 0, PAGE)])?;
    ensure_eq!(resident(), before, "pages in memory");
    let out = device.carry_with_costs(&mut [Piece::new(&region, line + PAGE, &source, 0, PAGE)])?;
    ensure_eq!(out.pinned, 0, "pages pinned for a neighbour");
    let out =
        device.carry_with_costs(&mut [Piece::new(&region, line + 40 * PAGE, &source, 0, PAGE)])?;
    ensure_eq!(out.pinned, 1, "pages pinned for one that was not there");
    Ok(())
}

fn kept_pieces_over_the_edge_of_a_line_are_right() -> Outcome {
    const PAGES: usize = 4;
    let device = Device::open()?;
    let (dst, src) = (Region::anonymous(192 * PAGE)?, Region::of_small_pages(PAGES * PAGE)?);
    let channels = device.info()?.channels;
    let edge = (64 - (dst.address(0) as usize / PAGE) % 64) % 64 * PAGE + 64 * PAGE;
    for before in 0..=PAGES {
        // Nothing lies behind the last piece.
        let from = edge - before * PAGE;
        dst.replace()?;
        dst.protect(from + PAGES * PAGE, PAGE, libc::PROT_NONE)?;
        src.fill(before as u64);
        for size in [PAGE / 2, PAGE, 2 * PAGE, PAGES * PAGE] {
            let whole = Piece::new(&dst, from, &src, 0, PAGES * PAGE);
            device.carry(&mut whole.split(PAGES * PAGE / size, channels.min(2)))?;
            for at in (0..PAGES * PAGE).step_by(8) {
                let (found, wanted) = (dst.word(from + at), src.word(at));
                ensure_eq!(found, wanted, "{before} pages before the edge, by {size}, at {at}");
            }
        }
    }
    Ok(())
}

// ---- what the program does to its memory ----------------------------------------------

const ARENA: usize = 24 * PAGE;

/// A thread's memory. The second region is a file's.
struct Arena {
    device: Device,
    regions: [Region; 3],
    file: std::fs::File,
    random: Random,
}

impl Arena {
    fn new(seed: u64) -> Outcome<Arena> {
        let file = memory_file(ARENA)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let shared = Region::map_file(file.as_raw_fd(), 0, ARENA, rights, libc::MAP_SHARED)?;
        let regions = [Region::of_small_pages(ARENA)?, shared, Region::of_small_pages(ARENA)?];
        Ok(Arena { device: Device::open()?, regions, file, random: Random::new(seed) })
    }

    /// Changes the mapping of one of the regions; its pages are zero or as before.
    fn change(&mut self) -> Outcome {
        let number = self.random.below(3) as usize;
        let region = &self.regions[number];
        match self.random.below(7) {
            0 if number != 1 => region.replace()?,
            1 => region.advise(0, ARENA, libc::MADV_DONTNEED)?,
            2 => fork(|| Ok(()))?.succeed()?,
            3 => {
                self.file.set_len(0)?;
                self.file.set_len(ARENA as u64)?;
            }
            4 => {
                region.protect(0, ARENA, libc::PROT_READ)?;
                region.protect(0, ARENA, libc::PROT_READ | libc::PROT_WRITE)?;
            }
            5 if number != 1 => {
                let moved = region.move_away()?;
                self.regions[number] = moved;
            }
            _ => {}
        }
        Ok(())
    }

    fn copy(&mut self, round: u64) -> Outcome {
        let from = self.random.below(3) as usize;
        let to = (from + 1 + self.random.below(2) as usize) % 3;
        let (src, dst) = (&self.regions[from], &self.regions[to]);
        let len = PAGE * (1 + self.random.below(4) as usize);
        let room =
            |random: &mut Random| PAGE * random.below(((ARENA - len) / PAGE) as u64) as usize;
        let (src_at, dst_at) = (room(&mut self.random), room(&mut self.random));
        // A word in every page, at a place of its own, and another one to be overwritten.
        let place = |page: usize| page * PAGE + (round as usize * 64 + page * 8) % PAGE;
        for page in 0..len / PAGE {
            src.set_word(src_at + place(page), round << 8 | page as u64);
            dst.set_word(dst_at + place(page), !0);
        }
        self.device.carry(&mut [Piece::new(dst, dst_at, src, src_at, len)])?;
        for page in 0..len / PAGE {
            let (found, wanted) = (dst.word(dst_at + place(page)), round << 8 | page as u64);
            ensure!(
                found == wanted,
                "region {from} at {src_at} to {to} at {dst_at}, page {page}: is {found:#x}, want \
                 {wanted:#x}"
            );
        }
        Ok(())
    }
}

fn kept_memory_that_changes_is_never_stale() -> Outcome {
    let each = rounds(6_000) as u64;
    let worker = |seed: u64| -> Outcome {
        let mut arena = Arena::new(seed)?;
        for round in 1..=each {
            if arena.random.once_in(3) {
                arena.change()?;
            }
            arena.copy(round).context(format_args!("thread {seed}, round {round}"))?;
        }
        let info = arena.device.info_of_pins()?;
        ensure!(info.invalidations > 0 && info.hits > info.cold_misses, "{info:?}");
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=3).map(|seed| scope.spawn(move || worker(seed))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

// ---- making room -------------------------------------------------------------------------

fn kept_pages_beyond_the_mark_are_let_go() -> Outcome {
    const LEN: usize = 2 << 20;
    let device = Device::open()?;
    let (dst, src) = pair(LEN)?;
    let channels = device.info()?.channels;
    let carry = || device.carry(&mut Piece::new(&dst, 0, &src, 0, LEN).split(8, channels));
    carry()?;
    ensure!(device.info_of_pins()?.pages as usize >= 2 * LEN / PAGE, "not all is kept");
    for (mark, most) in [(128, 128), (0, 0)] {
        if let Err(errno) = device.keep(mark) {
            fail!("ADMA_IOC_KEEP: {errno:?}");
        }
        carry()?;
        let is_below = || device.info_of_pins().is_ok_and(|info| info.pages <= most);
        ensure!(eventually(PATIENCE, is_below), "beyond {mark}: {:?}", device.info_of_pins()?);
    }
    ensure!(device.info_of_pins()?.evictions > 0, "nothing was evicted");
    let mut odd = Keep { size: size_of::<Keep>() as u32, flags: 1, pages: 0 };
    ensure_eq!(call(device.fd(), KEEP, &mut odd), Err(EOPNOTSUPP), "an unknown flag");
    dst.expect(1).context("copied")
}

fn kept_pages_go_when_memory_is_short() -> Outcome {
    let device = Device::open()?;
    let (dst, src) = pair(1 << 20)?;
    let carry = || device.carry(&mut [Piece::new(&dst, 0, &src, 0, 1 << 20)]);
    carry()?;
    ensure!(device.info_of_pins()?.pages > 0, "nothing is kept");
    // Asks every shrinker for everything.
    let are_gone = || {
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "2");
        device.info_of_pins().is_ok_and(|info| info.pages == 0)
    };
    ensure!(eventually(PATIENCE, are_gone), "{:?}", device.info_of_pins()?);
    carry()?;
    dst.expect(1).context("copied after that")
}

fn kept_pages_make_room_at_the_limit_of_locked_memory() -> Outcome {
    let child = fork(|| {
        let device = Device::open()?;
        limit_locked_memory(512 << 10)?;
        become_nobody()?;
        for round in 0..8 {
            let (dst, src) = pair(192 << 10)?;
            let piece = Piece::new(&dst, 0, &src, 0, 192 << 10);
            device.carry(&mut [piece]).context(format_args!("round {round}"))?;
            dst.expect(1).context("copied")?;
            // Not given back: the next round needs the room that these take.
            std::mem::forget((dst, src));
        }
        ensure!(device.info_of_pins()?.evictions > 0, "there was room without evictions");
        Ok(())
    })?;
    child.succeed()
}

fn kept_pages_of_processes_beyond_the_cache_are_right() -> Outcome {
    // Four times 24 MiB, and the cache knows 64 MiB.
    const LEN: usize = 12 << 20;
    const PART: usize = 256 << 10;
    let before = Statistics::now()?;
    let children = (0..4).map(|seed| {
        fork(move || {
            let device = Device::open()?;
            let (dst, src) = (Region::of_small_pages(LEN)?, Region::of_small_pages(LEN)?);
            let channels = device.info()?.channels;
            let mut random = Random::new(seed);
            for round in 1..=rounds(300) as u64 {
                // Front to back at first, so that all of it has been used.
                let part = if round <= (LEN / PART) as u64 {
                    round as usize - 1
                } else {
                    random.below((LEN / PART) as u64) as usize
                };
                let at = part * PART;
                src.set_word(at + 8 * (round as usize % 500), round);
                let mut pieces = Piece::new(&dst, at, &src, at, PART).split(2, channels);
                device.carry_in_turn(&mut pieces)?;
                let found = dst.word(at + 8 * (round as usize % 500));
                ensure_eq!(found, round, "process {seed}, part {part}");
            }
            let info = device.info_of_pins()?;
            println!(
                "process {seed}: hits {} cold misses {} other misses {} evictions {}",
                info.hits, info.cold_misses, info.other_misses, info.evictions
            );
            ensure!(info.cold_misses > 0, "{info:?}");
            Ok(())
        })
    });
    let children: Vec<_> = children.collect::<Outcome<_>>()?;
    children.into_iter().try_for_each(|child| child.succeed())?;
    println!("in all: {:?}", Statistics::now()?.since(&before));
    Ok(())
}

fn kept_pages_go_with_their_file() -> Outcome {
    let before = Statistics::now()?.pinned_pages;
    let device = Device::open()?;
    let (dst, src) = pair(1 << 20)?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, 1 << 20)])?;
    ensure!(Statistics::now()?.pinned_pages >= before + 512, "not kept");
    drop(device);
    ensure_eq!(Statistics::now()?.pinned_pages, before, "pages pinned after the close");
    Ok(())
}
