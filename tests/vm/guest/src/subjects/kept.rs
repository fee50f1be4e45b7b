//! Pages that stay pinned from one copy to the next, and every way to lose them.

use super::*;

pub fn kept_pages_are_not_pinned_again() -> Outcome {
    const LEN: usize = 1 << 20;
    let pair = Pair::new(LEN)?;
    let mut costs = Vec::new();
    for round in 0..100 {
        pair.src.fill_part(0, PAGE, round);
        let before = Statistics::now()?;
        let out = pair.carry(4)?;
        let moved = Statistics::now()?.since(&before);
        costs.push((out.pinned as usize, moved.descriptors));
        pair.dst.expect_part(0, PAGE, round).context(format_args!("round {round}"))?;
    }
    ensure_eq!(costs[0].0, 2 * LEN / PAGE, "pages pinned by the first copy");
    ensure_eq!(costs[1].0, 0, "pages pinned by the second copy");
    ensure_eq!(costs[99], costs[1], "pins and descriptors of the hundredth copy");
    Ok(())
}

pub fn kept_pages_serve_as_source_when_they_were_destination() -> Outcome {
    // Each in a line of its own, because neighbours are pinned with it.
    let device = Device::open()?;
    let (region, line) = with_whole_lines(3)?;
    let [a, b, third] = [line, line + RANGE, line + 2 * RANGE];
    region.fill(1);
    let carry = |to, from| device.carry(&mut [Piece::new(&region, to, &region, from, RANGE)]);
    carry(a, b)?;
    ensure_eq!(carry(third, a)?.pinned, 64, "pages pinned for the third buffer alone");
    // A range pinned for reading is not written through: it is pinned anew.
    ensure_eq!(carry(b, third)?.pinned, 64, "pages pinned to write what was pinned to read");
    region.expect_same(a, &region, third, RANGE).context("the copies")?;
    region.expect_part(b, RANGE, 1).context("through three buffers")
}

/// Returns a region, and the offset of its first whole line.
fn with_whole_lines(lines: usize) -> Outcome<(Region, usize)> {
    let region = Region::of_small_pages((lines + 1) * RANGE)?;
    let line = first_line(&region);
    Ok((region, line))
}

/// Returns the offset of the first whole line of a region.
pub(super) fn first_line(region: &Region) -> usize {
    (RANGE - region.address(0) as usize % RANGE) % RANGE
}

pub fn kept_source_that_may_only_be_read_beside_a_destination_is_copied() -> Outcome {
    const HALF: usize = RANGE / 2;
    let device = Device::open()?;
    let (region, line) = with_whole_lines(1)?;
    let Pair { dst: other, src: third, .. } = Pair::new(HALF)?;
    region.fill(2);
    region.protect(line + HALF, HALF, libc::PROT_READ)?;
    for round in 0..3 {
        device.carry(&mut [Piece::new(&region, line, &third, 0, HALF)])?;
        device
            .carry(&mut [Piece::new(&other, 0, &region, line + HALF, HALF)])
            .context(format_args!("from what may only be read, round {round}"))?;
        other.expect_same(0, &region, line + HALF, HALF)?;
        region.expect_same(line, &third, 0, HALF).context("beside it")?;
    }
    Ok(())
}

pub fn kept_pages_of_both_sides_in_one_line_are_not_pinned_again() -> Outcome {
    const LEN: usize = 16 * PAGE;
    let device = Device::open()?;
    let (region, line) = with_whole_lines(1)?;
    let copy = || device.carry(&mut [Piece::new(&region, line + LEN, &region, line, LEN)]);
    ensure_eq!(copy()?.pinned as usize, 2 * LEN / PAGE, "pages pinned by the first copy");
    ensure_eq!(copy()?.pinned, 0, "pages pinned by the second copy");
    Ok(())
}

pub fn kept_pieces_over_the_edge_of_a_line_are_right() -> Outcome {
    const PAGES: usize = 4;
    let device = Device::open()?;
    let (dst, src) = (Region::anonymous(192 * PAGE)?, Region::of_small_pages(PAGES * PAGE)?);
    let channels = device.info()?.channels;
    let edge = first_line(&dst) + RANGE;
    for before in 0..=PAGES {
        // Nothing lies behind the last piece.
        let from = edge - before * PAGE;
        dst.replace()?;
        dst.protect(from + PAGES * PAGE, PAGE, libc::PROT_NONE)?;
        src.fill(before as u64);
        for size in [PAGE / 2, PAGE, 2 * PAGE, PAGES * PAGE] {
            let whole = Piece::new(&dst, from, &src, 0, PAGES * PAGE);
            device.carry(&mut whole.split(PAGES * PAGE / size, channels.min(2)))?;
            dst.expect_same(from, &src, 0, PAGES * PAGE)
                .context(format_args!("{before} pages before the edge, by {size}"))?;
        }
    }
    Ok(())
}

// ---- what the program does to its memory ----------------------------------------------

const ARENA: usize = 24 * PAGE;

/// Memory of a thread. The second region is a file's.
struct Arena {
    device: Device,
    regions: [Region; 3],
    file: fs::File,
    random: Random,
}

impl Arena {
    fn new(seed: u64) -> Outcome<Arena> {
        let file = memory_file(ARENA)?;
        let shared = Region::of_file(&file, libc::MAP_SHARED)?;
        let regions = [Region::of_small_pages(ARENA)?, shared, Region::of_small_pages(ARENA)?];
        Ok(Arena { device: Device::open()?, regions, file, random: Random::new(seed) })
    }

    /// Changes the mapping of one of the regions, which leaves its pages zero or as before.
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
                region.protect(0, ARENA, READ_WRITE)?;
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
        // A fork of another thread refuses what is being submitted.
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

pub fn kept_memory_that_changes_is_never_stale() -> Outcome {
    let each = rounds(6_000) as u64;
    in_threads(3, |seed| {
        let mut arena = Arena::new(1 + seed as u64)?;
        for round in 1..=each {
            if arena.random.once_in(3) {
                arena.change()?;
            }
            arena.copy(round).context(format_args!("thread {seed}, round {round}"))?;
        }
        let info = arena.device.info()?;
        ensure!(info.invalidations > 0 && info.hits > info.misses, "{info:?}");
        Ok(())
    })
}

// ---- making room -------------------------------------------------------------------------

/// Waits until a file keeps no more than this.
fn expect_at_most(device: &Device, pages: u64, limit: Duration) -> Outcome {
    let is_below = || device.info().is_ok_and(|info| info.pages <= pages);
    ensure!(eventually(limit, is_below), "more than {pages} pages: {:?}", device.info()?);
    Ok(())
}

pub fn kept_pages_beyond_the_mark_are_let_go() -> Outcome {
    const LEN: usize = 2 << 20;
    let pair = Pair::new(LEN)?;
    pair.carry(8)?;
    ensure!(pair.device.info()?.pages as usize >= 2 * LEN / PAGE, "not all is kept");
    for mark in [128, 0] {
        pair.device.keep(mark)?;
        pair.carry(8)?;
        expect_at_most(&pair.device, mark, PATIENCE)?;
    }
    ensure!(pair.device.info()?.evictions > 0, "nothing was evicted");
    pair.expect_copied()
}

pub fn kept_pages_go_when_memory_is_short() -> Outcome {
    let pair = Pair::new(1 << 20)?;
    pair.carry(1)?;
    ensure!(pair.device.info()?.pages > 0, "nothing is kept");
    // Asks every shrinker for everything.
    let are_gone = || {
        let _ = fs::write("/proc/sys/vm/drop_caches", "2");
        pair.device.info().is_ok_and(|info| info.pages == 0)
    };
    ensure!(eventually(PATIENCE, are_gone), "{:?}", pair.device.info()?);
    pair.carry(1)?;
    pair.expect_copied()
}

/// Copies as user nobody, with a limit of 512 KiB. Unpinning is asynchronous: a copy that needs the
/// room may be refused at first.
fn copy_when_there_is_room(device: &Device) -> Outcome<(Region, Region)> {
    let (dst, src) = (Region::of_small_pages(192 << 10)?, Region::of_small_pages(192 << 10)?);
    src.fill(1);
    let mut request = Submit::default();
    let is_taken = || {
        let Submitted { result, out } =
            device.submit(&mut [Piece::new(&dst, 0, &src, 0, dst.len())]);
        request = out;
        result != Err(ENOMEM)
    };
    ensure!(eventually(PATIENCE, is_taken), "there is no room");
    ensure_eq!((request.accepted, device.end(&request)?), (1, 0), "pieces taken, and failed");
    dst.expect(1).context("copied")?;
    Ok((dst, src))
}

pub fn kept_pages_make_room_at_the_limit_of_locked_memory() -> Outcome {
    in_child(|| {
        let device = Device::with_limit(512 << 10)?;
        // Not given back: the next copy needs the room that these take.
        let copies = (0..8).map(|_| copy_when_there_is_room(&device));
        let _kept = copies.collect::<Outcome<Vec<_>>>()?;
        ensure!(device.info()?.evictions > 0, "there was room without evictions");
        Ok(())
    })
}

/// The limit is the user's, so ranges of one process are evicted for another.
pub fn kept_pages_make_room_for_another_process_of_the_user() -> Outcome {
    let (kept, copied) = (Gate::new()?, Gate::new()?);
    let first = fork(|| {
        let device = Device::with_limit(512 << 10)?;
        let _kept = copy_when_there_is_room(&device)?;
        kept.open();
        copied.pass();
        ensure!(device.info()?.evictions > 0, "nothing went for the other one");
        Ok(())
    })?;
    kept.pass();
    let second = in_child(|| copy_when_there_is_room(&Device::with_limit(512 << 10)?).map(drop));
    copied.open();
    second.and(first.succeed())
}

/// Several requests end together, and each may evict the others' pages.
pub fn kept_pages_beyond_the_mark_go_and_no_others() -> Outcome {
    const REQUESTS: usize = 8;
    const MARK: u64 = 512;
    let bench = Bench::new()?;
    let device = Device::open()?;
    device.keep(MARK)?;
    let (dst, to) = with_whole_lines(REQUESTS)?;
    let (src, from) = with_whole_lines(REQUESTS)?;
    bench.arm_all(Fault::always(Kind::Slow).value(1000))?;
    let start = |number| {
        let at = number * RANGE;
        device.start(&mut [Piece::new(&dst, to + at, &src, from + at, RANGE)])
    };
    let requests: Vec<Submit> = (0..REQUESTS).map(start).collect::<Outcome<_>>()?;
    for request in &requests {
        device.finish(request)?;
    }
    let kept = || device.info().map_or(0, |info| info.pages);
    ensure!(eventually(PATIENCE, || kept() <= MARK), "{} pages are kept", kept());
    ensure!(kept() > MARK - 128, "only {} pages are kept, and {MARK} may", kept());
    Ok(())
}

pub fn kept_pages_of_processes_beyond_the_mark_are_right() -> Outcome {
    // Four times 24 MiB, of which each keeps 16 MiB.
    const LEN: usize = 12 << 20;
    const PART: usize = 256 << 10;
    const PARTS: usize = LEN / PART;
    let process = |seed: u64| -> Outcome {
        let pair = Pair::new(LEN)?;
        pair.device.keep((16 << 20) / PAGE as u64)?;
        let mut random = Random::new(seed);
        for round in 1..=rounds(300) {
            // Front to back at first, so that all of it has been used.
            let part = match round <= PARTS {
                true => round - 1,
                false => random.below(PARTS as u64) as usize,
            };
            let word = part * PART + 8 * (round % 500);
            pair.src.set_word(word, round as u64);
            let mut pieces = pair.part(part * PART, PART).split(2, pair.channels);
            pair.device.carry_in_turn(&mut pieces)?;
            ensure_eq!(pair.dst.word(word), round as u64, "process {seed}, part {part}");
        }
        let info = pair.device.info()?;
        println!("process {seed}: {info:?}");
        ensure!(info.misses > 0, "{info:?}");
        ensure!(info.evictions > 0 || rounds(300) <= 2 * PARTS, "everything was kept: {info:?}");
        Ok(())
    };
    let children = (0..4).map(|seed| fork(|| process(seed))).collect::<Outcome<Vec<_>>>()?;
    children.into_iter().try_for_each(|child| child.succeed())
}

pub fn kept_pages_go_with_their_file() -> Outcome {
    let before = Statistics::now()?.pinned_pages;
    let pair = Pair::new(1 << 20)?;
    pair.carry(1)?;
    ensure!(Statistics::now()?.pinned_pages >= before + 512, "not kept");
    drop(pair.device);
    ensure_eq!(Statistics::now()?.pinned_pages, before, "pages pinned after the close");
    Ok(())
}

/// Ranges in use stay, however long that goes on.
pub fn kept_pages_that_are_unused_go_by_themselves() -> Outcome {
    const LEN: usize = 1 << 20;
    let pair = Pair::new(LEN)?;
    pair.carry(1)?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        sleep(Duration::from_millis(100));
        ensure_eq!(pair.carry(1)?.pinned, 0, "pages pinned again after {:?}", begun.elapsed());
    }
    let kept = pair.device.info()?.pages;
    ensure!(kept as usize >= 2 * LEN / PAGE, "{kept} pages are kept");
    let idle = Instant::now();
    expect_at_most(&pair.device, 0, PATIENCE)?;
    println!("{kept} pages went after {:?}", idle.elapsed());
    pair.carry(1)?;
    pair.expect_copied()
}

/// Before they would have gone by themselves.
pub fn kept_pages_go_when_their_control_group_is_short() -> Outcome {
    const LEN: usize = 1 << 20;
    let group = ControlGroup::new("adma-kept")?;
    let other = Pair::new(LEN)?;
    in_child(|| {
        group.take_in(0)?;
        let pair = Pair::new(LEN)?;
        pair.carry(1)?;
        ensure!(pair.device.info()?.pages > 0, "nothing is kept");
        let are_gone = || {
            let _ = group.reclaim(LEN);
            pair.device.info().is_ok_and(|info| info.pages == 0)
        };
        ensure!(eventually(Duration::from_secs(3), are_gone), "{:?}", pair.device.info()?);
        Ok(())
    })?;
    other.carry(1)?;
    let before = other.device.info()?.pages;
    group.reclaim(LEN).ok();
    ensure_eq!(other.device.info()?.pages, before, "pages of a process that is not in the group");
    Ok(())
}

pub fn kept_pages_are_seen_as_pinned_by_the_process() -> Outcome {
    let before = kernel::pinned_here()?;
    let pair = Pair::new(1 << 20)?;
    pair.carry(1)?;
    let kept = pair.device.info()?.pages as usize * PAGE;
    ensure_eq!(kernel::pinned_here()? - before, kept, "bytes in VmPin");
    drop(pair.device);
    ensure_eq!(kernel::pinned_here()?, before, "bytes in VmPin after the close");
    Ok(())
}

/// Pages beside a destination, in the same range, are not pinned, not faulted in, and can still be
/// reclaimed by the kernel (MADV_FREE).
pub fn kept_neighbours_of_a_destination_are_left_alone() -> Outcome {
    let device = Device::open()?;
    let pagemap = Pagemap::new()?;
    let region = Region::anonymous(2 * RANGE)?;
    let line = first_line(&region);
    // Half of the line is present.
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

/// Every pin is long-term, because a channel may be silent for ever. Pages that the kernel refuses
/// to pin so (of files, for writing, since 6.5) are copied by the CPU.
pub fn kept_pages_that_the_kernel_does_not_pin_for_long_are_efault() -> Outcome {
    if !fs::exists("/sys/kernel/debug/kprobes")? {
        skip!("this kernel has no kprobes");
    }
    modules::load_client()?;
    let _refused = Parameter::set("adma_client", "refuse_longterm", 1)?;
    let pair = Pair::new(PAGE)?;
    pair.refuse(pair.whole(), EFAULT, "without long-term pins")
}

/// The words show the program that its copy is over, but the helper may not know it yet when the
/// program forks: here because no interrupt comes.
pub fn kept_pages_are_gone_for_a_fork_right_after_a_copy() -> Outcome {
    let bench = Bench::new()?;
    bench.arm_all(Fault::always(Kind::Lost))?;
    let pair = Pair::new(64 << 10)?;
    let words = pair.device.all_words()?;
    for round in 0..rounds(50) {
        pair.device.keep(u64::MAX)?;
        let request = pair.start(1)?;
        if !wait_by_words(&words, &request)? {
            pair.device.end(&request)?;
        }
        pair.device.keep(0)?;
        ensure_eq!(pair.device.info()?.pages, 0, "pages that are pinned in round {round}");
    }
    Ok(())
}

/// A line that could not be pinned is kept too, and costs the kernel as much memory.
pub fn kept_lines_without_a_page_are_not_more_than_pages_may_be() -> Outcome {
    const MARK: u64 = 64;
    const TRIED: usize = 512;
    let device = Device::open()?;
    device.keep(MARK)?;
    let region = Region::anonymous(TRIED * RANGE)?;
    let source = Region::of_small_pages(PAGE)?;
    region.protect(0, region.len(), libc::PROT_NONE)?;
    for number in 0..TRIED {
        let piece = Piece::new(&region, number * RANGE, &source, 0, PAGE);
        device.refuse(piece, EFAULT, format_args!("line {number}"))?;
    }
    let evicted = || device.info().map_or(0, |info| info.evictions);
    // Before they are retired for their age.
    let most = eventually(Duration::from_secs(2), || evicted() >= TRIED as u64 - 2 * MARK);
    ensure!(most, "{} of {TRIED} lines without a page were let go", evicted());
    Ok(())
}

/// Making room takes a walk over the file's own ranges, whatever others keep.
pub fn kept_eviction_walks_no_list_of_other_processes() -> Outcome {
    const IDLE: usize = 20;
    const RANGES: usize = 32;
    let (kept, over) = (Gate::new()?, Gate::new()?);
    let idle = || -> Outcome {
        let device = Device::open()?;
        let region = Region::anonymous(2 * RANGES * RANGE)?;
        let piece = |at| Piece::new(&region, at * RANGE, &region, (RANGES + at) * RANGE, PAGE);
        device.carry(&mut (0..RANGES).map(piece).collect::<Vec<_>>())?;
        kept.open();
        over.pass();
        Ok(())
    };
    let children = (0..IDLE).map(|_| fork(idle)).collect::<Outcome<Vec<_>>>()?;
    (0..IDLE).for_each(|_| kept.pass());
    let device = Device::open()?;
    device.keep(16 * 64)?;
    let region = Region::anonymous(2 * 64 * RANGE)?;
    let walks = Probe::function("list_lru_walk_node")?;
    let before = (walks.count_of_all()?, device.info()?.evictions);
    for round in 0..300 {
        let at = round % 64;
        device.carry(&mut [Piece::new(&region, at * RANGE, &region, (64 + at) * RANGE, PAGE)])?;
    }
    let walks = walks.count_of_all()? - before.0;
    let evictions = device.info()?.evictions - before.1;
    (0..IDLE).for_each(|_| over.open());
    children.into_iter().try_for_each(|child| child.succeed())?;
    println!("{evictions} evictions, {walks} walks over the lists of all processes");
    ensure!(evictions > 100, "only {evictions} ranges were let go");
    ensure_eq!(walks, 0, "walks over the lists of all processes");
    Ok(())
}
