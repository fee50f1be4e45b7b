//! Pages that stay pinned from one copy to the next, and every way to lose them.

use crate::cgroup::ControlGroup;
use crate::device::*;
use crate::effort::{PATIENCE, eventually, rounds};
use crate::faults::{Bench, Fault, Kind};
use crate::kernel::{Pagemap, Parameter, Statistics, pinned_here};
use crate::memory::{PAGE, Region, memory_file};
use crate::modules;
use crate::process::{Gate, fork};
use crate::random::Random;
use crate::verdict::{Context, Outcome};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

tests! {
    kept_pages_are_not_pinned_again
    kept_pages_serve_as_source_when_they_were_destination
    kept_source_that_may_only_be_read_beside_a_destination_is_copied
    kept_pages_of_both_sides_in_one_line_are_not_pinned_again
    kept_pieces_over_the_edge_of_a_line_are_right
    kept_memory_that_changes_is_never_stale
    kept_pages_beyond_the_mark_are_let_go
    kept_pages_go_when_memory_is_short
    kept_pages_make_room_at_the_limit_of_locked_memory
    kept_pages_make_room_for_another_process_of_the_user
    kept_pages_beyond_the_mark_go_and_no_others
    kept_pages_of_processes_beyond_the_mark_are_right
    kept_pages_go_with_their_file
    kept_pages_nobody_uses_go_by_themselves
    kept_pages_go_when_their_control_group_is_short
    kept_pages_are_seen_as_pinned_by_the_process
    kept_neighbours_of_a_destination_are_left_alone
    kept_pages_that_the_kernel_does_not_pin_for_long_are_efault
    kept_pages_are_gone_for_a_fork_right_after_a_copy
    kept_lines_without_a_page_are_not_more_than_pages_may_be
}

/// Of the module's default.
const LINE: usize = 64 * PAGE;

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
        let out = device.carry(&mut Piece::new(&dst, 0, &src, 0, LEN).split(4, channels))?;
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
    // Each in a line of its own: neighbours are pinned as the line is.
    let device = Device::open()?;
    let (region, line) = with_whole_lines(3)?;
    let [a, b, third] = [line, line + LINE, line + 2 * LINE];
    region.fill(1);
    let carry = |to, from| device.carry(&mut [Piece::new(&region, to, &region, from, LINE)]);
    carry(a, b)?;
    ensure_eq!(carry(third, a)?.pinned, 64, "pages pinned for the third buffer alone");
    // What was pinned for reading is not written through: it is pinned anew.
    ensure_eq!(carry(b, third)?.pinned, 64, "pages pinned to write what was pinned to read");
    for at in (0..LINE).step_by(8) {
        ensure_eq!(region.word(a + at), region.word(third + at), "at byte {at} of the copies");
    }
    region.expect_part(b, LINE, 1).context("through three buffers")
}

/// A region, and where the first whole line of it begins.
fn with_whole_lines(lines: usize) -> Outcome<(Region, usize)> {
    let region = Region::of_small_pages((lines + 1) * LINE)?;
    let line = (LINE - region.address(0) as usize % LINE) % LINE;
    Ok((region, line))
}

fn kept_source_that_may_only_be_read_beside_a_destination_is_copied() -> Outcome {
    const HALF: usize = LINE / 2;
    let device = Device::open()?;
    let (region, line) = with_whole_lines(1)?;
    let (other, third) = pair(HALF)?;
    region.fill(2);
    region.protect(line + HALF, HALF, libc::PROT_READ)?;
    for round in 0..3 {
        device.carry(&mut [Piece::new(&region, line, &third, 0, HALF)])?;
        device
            .carry(&mut [Piece::new(&other, 0, &region, line + HALF, HALF)])
            .context(format_args!("from what may only be read, round {round}"))?;
        for at in (0..HALF).step_by(8) {
            ensure_eq!(other.word(at), region.word(line + HALF + at), "at byte {at}");
            ensure_eq!(region.word(line + at), third.word(at), "beside it, at byte {at}");
        }
    }
    Ok(())
}

fn kept_pages_of_both_sides_in_one_line_are_not_pinned_again() -> Outcome {
    const LEN: usize = 16 * PAGE;
    let device = Device::open()?;
    let (region, line) = with_whole_lines(1)?;
    let copy = || device.carry(&mut [Piece::new(&region, line + LEN, &region, line, LEN)]);
    ensure_eq!(copy()?.pinned as usize, 2 * LEN / PAGE, "pages pinned by the first copy");
    ensure_eq!(copy()?.pinned, 0, "pages pinned by the second copy");
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
        // A fork of another thread refuses what is just being submitted.
        self.device.carry_in_turn(&mut [Piece::new(dst, dst_at, src, src_at, len)])?;
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
        let info = arena.device.info()?;
        ensure!(info.invalidations > 0 && info.hits > info.misses, "{info:?}");
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
    ensure!(device.info()?.pages as usize >= 2 * LEN / PAGE, "not all is kept");
    for (mark, most) in [(128, 128), (0, 0)] {
        device.keep(mark)?;
        carry()?;
        let is_below = || device.info().is_ok_and(|info| info.pages <= most);
        ensure!(eventually(PATIENCE, is_below), "beyond {mark}: {:?}", device.info()?);
    }
    ensure!(device.info()?.evictions > 0, "nothing was evicted");
    dst.expect(1).context("copied")
}

fn kept_pages_go_when_memory_is_short() -> Outcome {
    let device = Device::open()?;
    let (dst, src) = pair(1 << 20)?;
    let carry = || device.carry(&mut [Piece::new(&dst, 0, &src, 0, 1 << 20)]);
    carry()?;
    ensure!(device.info()?.pages > 0, "nothing is kept");
    // Asks every shrinker for everything.
    let are_gone = || {
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "2");
        device.info().is_ok_and(|info| info.pages == 0)
    };
    ensure!(eventually(PATIENCE, are_gone), "{:?}", device.info()?);
    carry()?;
    dst.expect(1).context("copied after that")
}

/// Unpinning is not waited for: a copy that needs the room may be refused at first.
fn copy_when_there_is_room(device: &Device, dst: &Region, src: &Region) -> Outcome {
    let mut request = Submit::default();
    let is_taken = || {
        let Submitted { result, out } = device.submit(&mut [Piece::new(dst, 0, src, 0, dst.len())]);
        request = out;
        result != Err(ENOMEM)
    };
    ensure!(eventually(PATIENCE, is_taken), "there is no room");
    ensure_eq!((request.accepted, device.end(&request)?), (1, 0), "pieces taken, and failed");
    dst.expect(1).context("copied")
}

fn kept_pages_make_room_at_the_limit_of_locked_memory() -> Outcome {
    let child = fork(|| {
        let device = Device::with_limit(512 << 10)?;
        for round in 0..8 {
            let (dst, src) = pair(192 << 10)?;
            copy_when_there_is_room(&device, &dst, &src).context(format_args!("round {round}"))?;
            // Not given back: the next round needs the room that these take.
            std::mem::forget((dst, src));
        }
        ensure!(device.info()?.evictions > 0, "there was room without evictions");
        Ok(())
    })?;
    child.succeed()
}

/// The limit is the user's, so what is kept for one of his processes goes for another.
fn kept_pages_make_room_for_another_process_of_the_user() -> Outcome {
    const LEN: usize = 192 << 10;
    let (kept, copied) = (Gate::new()?, Gate::new()?);
    let as_nobody = |run: &dyn Fn(&Device) -> Outcome| -> Outcome {
        let device = Device::with_limit(512 << 10)?;
        let (dst, src) = pair(LEN)?;
        copy_when_there_is_room(&device, &dst, &src)?;
        run(&device)
    };
    let first = fork(|| {
        as_nobody(&|device| {
            kept.open();
            copied.pass();
            ensure!(device.info()?.evictions > 0, "nothing went for the other one");
            Ok(())
        })
    })?;
    kept.pass();
    let second = fork(|| as_nobody(&|_| Ok(())))?;
    let outcome = second.succeed();
    copied.open();
    outcome.and(first.succeed())
}

/// Several requests that end together: each sees the others' pages go, too.
fn kept_pages_beyond_the_mark_go_and_no_others() -> Outcome {
    const REQUESTS: usize = 8;
    const MARK: u64 = 512;
    let bench = Bench::new()?;
    let device = Device::open()?;
    device.keep(MARK)?;
    let (dst, to) = with_whole_lines(REQUESTS)?;
    let (src, from) = with_whole_lines(REQUESTS)?;
    bench.arm_all(Fault::always(Kind::Slow).value(1000))?;
    let start = |number| {
        let at = number * LINE;
        device.start(&mut [Piece::new(&dst, to + at, &src, from + at, LINE)])
    };
    let requests: Vec<Submit> = (0..REQUESTS).map(start).collect::<Outcome<_>>()?;
    for request in &requests {
        ensure_eq!(device.end(request)?, 0, "failed pieces");
    }
    let kept = || device.info().map_or(0, |info| info.pages);
    ensure!(eventually(PATIENCE, || kept() <= MARK), "{} pages are kept", kept());
    ensure!(kept() > MARK - 128, "only {} pages are kept, and {MARK} may", kept());
    Ok(())
}

fn kept_pages_of_processes_beyond_the_mark_are_right() -> Outcome {
    // Four times 24 MiB, of which each keeps 16 MiB.
    const LEN: usize = 12 << 20;
    const PART: usize = 256 << 10;
    let children = (0..4).map(|seed| {
        fork(move || {
            let device = Device::open()?;
            device.keep((16 << 20) / PAGE as u64)?;
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
            let info = device.info()?;
            println!(
                "process {seed}: hits {} misses {} evictions {}",
                info.hits, info.misses, info.evictions
            );
            ensure!(info.misses > 0, "{info:?}");
            if rounds(300) > 2 * LEN / PART {
                ensure!(info.evictions > 0, "everything was kept: {info:?}");
            }
            Ok(())
        })
    });
    let children: Vec<_> = children.collect::<Outcome<_>>()?;
    children.into_iter().try_for_each(|child| child.succeed())?;
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

/// Those that are used stay, however long that goes on.
fn kept_pages_nobody_uses_go_by_themselves() -> Outcome {
    const LEN: usize = 1 << 20;
    let device = Device::open()?;
    let (dst, src) = pair(LEN)?;
    let carry = || device.carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)]);
    carry()?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        std::thread::sleep(Duration::from_millis(100));
        ensure_eq!(carry()?.pinned, 0, "pages pinned again after {:?}", begun.elapsed());
    }
    let kept = device.info()?.pages;
    ensure!(kept as usize >= 2 * LEN / PAGE, "{kept} pages are kept");
    let idle = Instant::now();
    let are_gone = || device.info().is_ok_and(|info| info.pages == 0);
    ensure!(eventually(PATIENCE, are_gone), "{:?}", device.info()?);
    println!("{kept} pages went after {:?}", idle.elapsed());
    carry()?;
    dst.expect(1).context("copied after that")
}

/// Before they would have gone by themselves.
fn kept_pages_go_when_their_control_group_is_short() -> Outcome {
    const LEN: usize = 1 << 20;
    let group = ControlGroup::new("adma-kept")?;
    let other = Device::open()?;
    let (dst, src) = pair(LEN)?;
    let carry = |device: &Device| device.carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)]);
    fork(|| {
        group.enter()?;
        let device = Device::open()?;
        let (dst, src) = pair(LEN)?;
        device.carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)])?;
        ensure!(device.info()?.pages > 0, "nothing is kept");
        let begun = Instant::now();
        let are_gone = || {
            let _ = group.reclaim(LEN);
            device.info().is_ok_and(|info| info.pages == 0)
        };
        let gone = eventually(Duration::from_secs(3), are_gone);
        println!("{:?} after {:?}", device.info()?, begun.elapsed());
        ensure!(gone, "{:?}", device.info()?);
        Ok(())
    })?
    .succeed()?;
    carry(&other)?;
    let before = other.info()?.pages;
    group.reclaim(LEN).ok();
    ensure_eq!(other.info()?.pages, before, "pages of a process that is not in the group");
    Ok(())
}

fn kept_pages_are_seen_as_pinned_by_the_process() -> Outcome {
    const LEN: usize = 1 << 20;
    let before = pinned_here()?;
    let device = Device::open()?;
    let (dst, src) = pair(LEN)?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)])?;
    let kept = device.info()?.pages as usize * PAGE;
    ensure_eq!(pinned_here()? - before, kept, "bytes in VmPin");
    drop(device);
    ensure_eq!(pinned_here()?, before, "bytes in VmPin after the close");
    Ok(())
}

/// Pages beside a destination, in the same range, are left alone: they are not pinned, not
/// brought into memory, and not held back from the kernel, which may take them (MADV_FREE).
fn kept_neighbours_of_a_destination_are_left_alone() -> Outcome {
    let device = Device::open()?;
    let pagemap = Pagemap::new()?;
    let region = Region::anonymous(2 * LINE)?;
    let line = (LINE - region.address(0) as usize % LINE) % LINE;
    // Half of the line is there.
    (0..32).for_each(|page| region.set(line + page * PAGE, 1));
    let resident = || Some(region.residence()?.iter().filter(|page| **page).count());
    let before = resident();
    let source = Region::of_small_pages(PAGE)?;
    let dirty = |page: usize| pagemap.is_dirty(region.address(line + page * PAGE));
    ensure!(!dirty(3)? && !dirty(4)?, "fresh memory is dirty already");
    device.carry(&mut [Piece::new(&region, line + 3 * PAGE, &source, 0, PAGE)])?;
    ensure_eq!(device.info()?.pages, 2, "pages that are kept");
    ensure_eq!(resident(), before, "pages in memory");
    device.keep(0)?;
    // When the call returns: a fork may follow.
    ensure_eq!(device.info()?.pages, 0, "pages that are kept when none are to be");
    ensure!(dirty(3)?, "the destination is clean");
    for page in (0..32).filter(|page| *page != 3) {
        ensure!(!dirty(page)?, "page {page} was not copied to, and is dirty");
    }
    Ok(())
}

/// Every pin is for long, for a channel may be silent for ever: what the kernel does not pin so,
/// as pages of a file that are to be written since 6.5, the processor copies.
fn kept_pages_that_the_kernel_does_not_pin_for_long_are_efault() -> Outcome {
    if !std::path::Path::new("/sys/kernel/debug/kprobes").exists() {
        skip!("this kernel has no kprobes");
    }
    modules::load_client()?;
    let _refused = Parameter::set("adma_client", "refuse_longterm", 1)?;
    let device = Device::open()?;
    let (dst, src) = pair(PAGE)?;
    let Submitted { result, out } = device.submit(&mut [Piece::new(&dst, 0, &src, 0, PAGE)]);
    ensure_eq!((result, out.accepted), (Err(EFAULT), 0), "without long-term pins");
    Ok(())
}

/// The words tell the program that its copy is over, and the helper may not know it yet when the
/// program goes on to fork: here because no interrupt comes.
fn kept_pages_are_gone_for_a_fork_right_after_a_copy() -> Outcome {
    const LEN: usize = 64 << 10;
    let bench = Bench::new()?;
    bench.arm_all(Fault::always(Kind::Lost))?;
    let device = Device::open()?;
    let words = device.all_words()?;
    let (dst, src) = pair(LEN)?;
    for round in 0..rounds(50) {
        device.keep(u64::MAX)?;
        let request = device.start(&mut [Piece::new(&dst, 0, &src, 0, LEN)])?;
        if !wait_by_words(&words, &request)? {
            device.end(&request)?;
        }
        device.keep(0)?;
        ensure_eq!(device.info()?.pages, 0, "pages that are pinned in round {round}");
    }
    Ok(())
}

/// A line that could not be pinned is remembered too, and costs the kernel as much memory.
fn kept_lines_without_a_page_are_not_more_than_pages_may_be() -> Outcome {
    const MARK: u64 = 64;
    const TRIED: usize = 512;
    let device = Device::open()?;
    device.keep(MARK)?;
    let region = Region::anonymous(TRIED * LINE)?;
    let source = Region::of_small_pages(PAGE)?;
    region.protect(0, region.len(), libc::PROT_NONE)?;
    for number in 0..TRIED {
        let piece = Piece::new(&region, number * LINE, &source, 0, PAGE);
        let Submitted { result, out } = device.submit(&mut [piece]);
        ensure_eq!((result, out.accepted), (Err(EFAULT), 0), "line {number}");
    }
    let evicted = || device.info().map_or(0, |info| info.evictions);
    // Before they are let go for their age.
    let most = eventually(Duration::from_secs(2), || evicted() >= TRIED as u64 - 2 * MARK);
    ensure!(most, "{} of {TRIED} lines without a page were let go", evicted());
    Ok(())
}
