//! Every kind of page on either side.

use super::*;
use std::os::unix::fs::FileExt;
use std::process::Command;

tests! {
    page_of_private_file_leaves_the_file_alone = into_file(libc::MAP_PRIVATE);
    page_of_shared_file_reaches_the_file = into_file(libc::MAP_SHARED);
}

pub fn page_kinds_in_all_pairs_copy_right() -> Outcome {
    const LEN: usize = 12 * PAGE;
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let mut regions = Vec::new();
    for kind in PageKind::ALL {
        match (Region::of_kind(kind, LEN + 4 * PAGE), Region::of_kind(kind, LEN + 4 * PAGE)) {
            (Ok(dst), Ok(src)) => regions.push((kind, dst, src)),
            (Err(End::Skipped(reason)), _) | (_, Err(End::Skipped(reason))) => println!("{reason}"),
            (Err(end), _) | (_, Err(end)) => return Err(end),
        }
    }
    for (to, dst, _) in &regions {
        for (from, _, src) in &regions {
            let watched = Watched::new(dst, PAGE + 64, src, PAGE + 33, LEN, 2 * ALIGN);
            device.carry(&mut watched.piece().split(3, channels))?;
            watched.expect_copied().context(format_args!("from {from:?} to {to:?}"))?;
        }
    }
    Ok(())
}

pub fn page_untouched_source_reads_as_zeros() -> Outcome {
    const LEN: usize = 8 * PAGE;
    let device = Device::open()?;
    for kind in [
        PageKind::Anonymous,
        PageKind::SharedAnonymous,
        PageKind::PrivateFile,
        PageKind::SharedFile,
    ] {
        let (dst, src) = (Region::of_small_pages(LEN)?, Region::of_kind(kind, LEN)?);
        dst.fill(1);
        device.carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)])?;
        dst.expect_zero(0, LEN).context(format_args!("{kind:?}"))?;
        // The zero page was not written.
        Region::anonymous(LEN)?.expect_zero(0, LEN).context("the zero page")?;
    }
    // A huge one that is not there either.
    let (dst, src) = (Region::of_small_pages(LEN)?, Region::of_kind(PageKind::Transparent, HUGE)?);
    ensure_eq!(src.get(0), 0, "untouched byte");
    dst.fill(1);
    device.carry(&mut [Piece::new(&dst, 0, &src, PAGE, LEN)])?;
    dst.expect_zero(0, LEN).context("transparent")?;
    Ok(())
}

pub fn page_untouched_destination_is_made() -> Outcome {
    const LEN: usize = 8 * PAGE;
    let device = Device::open()?;
    let src = Region::of_small_pages(LEN)?;
    src.fill(3);
    for kind in [
        PageKind::Anonymous,
        PageKind::SharedAnonymous,
        PageKind::PrivateFile,
        PageKind::SharedFile,
    ] {
        for read_before in [false, true] {
            let dst = Region::of_kind(kind, LEN + 2 * PAGE)?;
            if read_before {
                dst.expect_zero(0, dst.len())?;
            }
            device.carry(&mut [Piece::new(&dst, PAGE, &src, 0, LEN)])?;
            let place = format!("{kind:?}, read before: {read_before}");
            dst.expect_same(PAGE, &src, 0, LEN).context(&place)?;
            dst.expect_zero(0, PAGE).context(&place)?;
            dst.expect_zero(PAGE + LEN, PAGE).context(&place)?;
        }
    }
    Ok(())
}

/// Runs the lines, which fail on a system without the tools or drivers.
fn tools<const N: usize>(lines: [&[&str]; N]) -> Outcome {
    for line in lines {
        match Command::new(line[0]).args(&line[1..]).output() {
            Ok(done) if done.status.success() => {}
            Ok(done) => skip!("{line:?}: {}", String::from_utf8_lossy(&done.stderr).trim()),
            Err(error) => skip!("{}: {error}", line[0]),
        }
    }
    Ok(())
}

/// A swap device in compressed memory, removed on drop.
pub struct Swap;

impl Swap {
    const DEVICE: &str = "/dev/zram0";

    /// Makes a device of a size like 32M.
    pub fn of(size: &str) -> Outcome<Swap> {
        let _ = Command::new("modprobe").arg("zram").output();
        if fs::write("/sys/block/zram0/disksize", size).is_err() {
            skip!("this kernel has no zram to swap to");
        }
        tools([&["mkswap", Swap::DEVICE], &["swapon", Swap::DEVICE]])?;
        Ok(Swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(Swap::DEVICE).output();
        let _ = fs::write("/sys/block/zram0/reset", "1");
    }
}

pub fn page_swapped_out_is_brought_back() -> Outcome {
    const LEN: usize = 16 * PAGE;
    let _swap = Swap::of("32M")?;
    let device = Device::open()?;
    let map = Pagemap::new()?;
    let swap_out = |region: &Region, name: &str| -> Outcome {
        region.advise(0, region.len(), libc::MADV_PAGEOUT).context("MADV_PAGEOUT")?;
        let pages = (0..region.len()).step_by(PAGE);
        let gone = pages.filter(|&at| map.is_swapped(region.address(at))).count();
        println!("{name}: {gone} pages are swapped out");
        if gone == 0 {
            skip!("the kernel swaps nothing out");
        }
        Ok(())
    };
    for (out_dst, out_src) in [(false, true), (true, false), (true, true)] {
        // Fresh pages, because copied ones stay pinned for a while.
        let (dst, src) = (Region::of_small_pages(LEN + PAGE)?, Region::of_small_pages(LEN + PAGE)?);
        let watched = Watched::new(&dst, 64, &src, 1, LEN, ALIGN);
        if out_dst {
            swap_out(&dst, "destination")?;
        }
        if out_src {
            swap_out(&src, "source")?;
        }
        device.carry(&mut [watched.piece()])?;
        watched.expect_copied()?;
    }
    Ok(())
}

pub fn page_locked_memory_copies_right() -> Outcome {
    let pair = Pair::new(8 * PAGE)?;
    pair.dst.lock()?;
    pair.src.lock()?;
    pair.carry(1)?;
    pair.expect_copied()
}

// ---- pages that two processes have ---------------------------------------------------

const SHARED: usize = 8 * PAGE;

pub fn page_shared_with_child_as_destination_child_keeps_the_old() -> Outcome {
    let pair = Pair::new(SHARED)?;
    let copied = Gate::new()?;
    let child = fork(|| {
        copied.pass();
        pair.dst.expect(1).context("the child's memory")
    })?;
    pair.carry(1)?;
    pair.expect_copied().context("the parent's memory")?;
    copied.open();
    child.succeed()
}

pub fn page_shared_with_parent_as_destination_parent_keeps_the_old() -> Outcome {
    let Pair { dst, src, .. } = Pair::new(SHARED)?;
    in_child(|| {
        Device::open()?.carry(&mut [Piece::new(&dst, 0, &src, 0, SHARED)])?;
        dst.expect(2).context("the child's memory")
    })?;
    dst.expect(1).context("the parent's memory")
}

pub fn page_shared_with_child_as_source_is_read() -> Outcome {
    let pair = Pair::new(SHARED)?;
    let (copied, written) = (Gate::new()?, Gate::new()?);
    let child = fork(|| {
        copied.pass();
        pair.src.expect(2).context("the child's source")?;
        pair.src.fill(3);
        written.open();
        Ok(())
    })?;
    pair.carry(1)?;
    pair.expect_copied()?;
    copied.open();
    written.pass();
    pair.src.expect(2).context("the parent's source, after the child wrote its own")?;
    pair.carry(1)?;
    pair.expect_copied()?;
    child.succeed()
}

/// Returns the first byte of a file that differs from memory.
fn differs(file: &File, memory: &Region) -> Outcome<Option<usize>> {
    let mut bytes = vec![0; memory.len()];
    file.read_exact_at(&mut bytes, 0)?;
    Ok((0..bytes.len()).find(|&at| bytes[at] != memory.get(at)))
}

/// Copies into a mapped file, and checks that the file has the bytes.
fn into_file(flags: i32) -> Outcome {
    let file = memory_file(SHARED)?;
    let old = Region::anonymous(SHARED)?;
    let dst = Region::of_file(&file, flags)?;
    let src = Region::of_small_pages(SHARED)?;
    src.fill(2);
    Device::open()?.carry(&mut [Piece::new(&dst, 0, &src, 0, SHARED)])?;
    dst.expect(2)?;
    let wanted = if flags == libc::MAP_SHARED { &src } else { &old };
    ensure_eq!(differs(&file, wanted)?, None, "first byte of the file that is wrong");
    Ok(())
}

/// A disk in memory with a file system on it, removed on drop.
struct Disk;

impl Disk {
    const DEVICE: &str = "/dev/ram0";
    const PLACE: &str = "/run/adma-disk";

    fn new() -> Outcome<Disk> {
        fs::create_dir_all(Disk::PLACE)?;
        tools([
            &["modprobe", "brd", "rd_nr=1", "rd_size=16384"],
            &["mkfs.ext4", "-q", "-F", Disk::DEVICE],
            &["mount", "-text4", Disk::DEVICE, Disk::PLACE],
        ])?;
        Ok(Disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(Disk::PLACE).output();
        let _ = Command::new("rmmod").arg("brd").output();
    }
}

/// A file system counts a page as clean once it was written back, and expects to hear of the next
/// change: no engine may write it. Its pages can be read.
pub fn page_of_a_file_on_a_disk_is_a_source_only() -> Outcome {
    const LEN: usize = 64 * PAGE;
    let _disk = Disk::new()?;
    let path = format!("{}/file", Disk::PLACE);
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.set_len(LEN as u64)?;
    let device = Device::open()?;
    let mapped = Region::of_file(&file, libc::MAP_SHARED)?;
    let memory = Region::of_small_pages(LEN)?;
    memory.fill(1);
    let refused = || device.refuse(Piece::new(&mapped, 0, &memory, 0, LEN), EFAULT, "on a disk");
    refused().context("pages that are not there yet")?;
    mapped.fill(2);
    refused().context("pages that are dirty")?;
    mapped.expect(2).context("written, but refused")?;
    device.carry(&mut [Piece::new(&memory, 0, &mapped, 0, LEN)])?;
    memory.expect(2)?;
    // The copy of a private mapping is no page of the file.
    let private = Region::of_file(&file, libc::MAP_PRIVATE)?;
    memory.fill(3);
    device.carry(&mut [Piece::new(&private, 0, &memory, 0, LEN)])?;
    private.expect(3)?;
    mapped.expect(2).context("the file, after a copy into a private mapping of it")
}

// ---- memory that is none --------------------------------------------------------------

/// The page with the kernel's clock, which every program has: mapped, but not memory of ours.
pub fn page_of_device_memory_is_efault() -> Outcome {
    let device = Device::open()?;
    let maps = fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.ends_with("[vvar]")).unwrap_or_default();
    let Some(Ok(clock)) = line.split('-').next().map(|text| u64::from_str_radix(text, 16)) else {
        skip!("there is no [vvar] here");
    };
    let memory = Region::of_small_pages(PAGE)?;
    memory.fill(1);
    let good = Piece::new(&memory, 0, &memory, 0, PAGE);
    for piece in [Piece { dst: clock, ..good }, Piece { src: clock, ..good }] {
        device.refuse(piece, EFAULT, format_args!("{piece:x?}"))?;
    }
    memory.expect(1).context("written, but refused")
}

/// A program cannot fake the end of a request.
pub fn page_of_words_is_no_destination() -> Outcome {
    let device = Device::open()?;
    let words = device.words(0)?;
    let memory = Region::of_small_pages(PAGE)?;
    memory.fill(1);
    let all = || (0..SLOTS as u32).map(|slot| words.of(slot)).collect::<Vec<_>>();
    let before = all();
    device.refuse(Piece::new(words.region(), 0, &memory, 0, PAGE), EFAULT, "the words")?;
    ensure_eq!(all(), before, "the words");
    Ok(())
}

// ---- descriptors ------------------------------------------------------------------------

/// Returns the descriptors of a copy whose pages are pinned: while they are being pinned, each
/// chunk may split a contiguous stretch.
fn descriptors(device: &Device, pieces: &mut [Piece]) -> Outcome<u64> {
    device.carry(pieces)?;
    let before = Statistics::now()?;
    device.carry(pieces)?;
    Ok(Statistics::now()?.since(&before).descriptors)
}

pub fn page_huge_copy_needs_few_descriptors() -> Outcome {
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let (dst, src) =
        (Region::of_kind(PageKind::Huge, HUGE)?, Region::of_kind(PageKind::Huge, HUGE)?);
    dst.fill(1);
    src.fill(2);
    for (src_at, len) in [(0, HUGE), (4096 + 64, HUGE - 8192), (1, HUGE - 64)] {
        let whole = Piece::new(&dst, 0, &src, src_at, len);
        let (mut one, mut split) = ([whole.on(0)], whole.split(channels as usize, channels));
        // Two of 1 MiB each, and the word.
        let found = descriptors(&device, &mut one)?;
        println!("{len} bytes in one piece: {found} descriptors");
        ensure!(found <= 3, "{found} descriptors for {len} bytes of a huge page, want 3");
        let found = descriptors(&device, &mut split)?;
        let most = 2.max(u64::from(channels)) + u64::from(channels);
        ensure!(found <= most, "{found} descriptors on all channels, want at most {most}");
    }
    Ok(())
}

pub fn page_small_copy_needs_no_more_descriptors_than_extents() -> Outcome {
    const LEN: usize = 64 * PAGE;
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let map = Pagemap::new()?;
    // Pages in the order of allocation, and thoroughly shuffled.
    for (region, src_at, len) in [
        (Region::of_small_pages as fn(usize) -> Outcome<Region>, 0, LEN),
        (Region::of_small_pages, 100, LEN - PAGE),
        (Region::of_scattered_pages, 0, LEN),
        (Region::of_scattered_pages, 4095, LEN - PAGE),
    ] {
        let (dst, src) = (region(LEN)?, region(LEN)?);
        let mut pieces = Piece::new(&dst, 0, &src, src_at, len).split(channels as usize, channels);
        let extents = map.extents(&pieces)?;
        let found = descriptors(&device, &mut pieces)?;
        println!("{len} bytes from {src_at}: {extents} extents, {found} descriptors");
        ensure!(
            found <= extents + u64::from(channels),
            "{found} descriptors for {extents} extents on {channels} channels"
        );
    }
    Ok(())
}
