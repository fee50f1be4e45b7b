//! Every kind of page on either side.

use crate::device::*;
use crate::faults::Bench;
use crate::kernel::{Pagemap, Statistics};
use crate::memory::{HUGE, Kind, PAGE, Region, memory_file};
use crate::oracle::Watched;
use crate::process::{Gate, fork};
use crate::verdict::{Context, End, Outcome};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

tests! {
    page_kinds_in_all_pairs_copy_right
    page_untouched_source_reads_as_zeros
    page_untouched_destination_is_made
    page_swapped_out_is_brought_back
    page_locked_memory_copies_right
    page_shared_with_child_as_destination_child_keeps_the_old
    page_shared_with_parent_as_destination_parent_keeps_the_old
    page_shared_with_child_as_source_is_read
    page_of_private_file_leaves_the_file_alone
    page_of_shared_file_reaches_the_file
    page_written_back_under_way_reaches_the_disk
    page_of_device_memory_is_efault
    page_of_words_is_no_destination
    page_huge_copy_needs_few_descriptors
    page_small_copy_needs_no_more_descriptors_than_extents
}

fn page_kinds_in_all_pairs_copy_right() -> Outcome {
    const LEN: usize = 12 * PAGE;
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let mut regions = Vec::new();
    for kind in Kind::ALL {
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

fn page_untouched_source_reads_as_zeros() -> Outcome {
    const LEN: usize = 8 * PAGE;
    let device = Device::open()?;
    for kind in [Kind::Anonymous, Kind::SharedAnonymous, Kind::PrivateFile, Kind::SharedFile] {
        let (dst, src) = (Region::of_small_pages(LEN)?, Region::of_kind(kind, LEN)?);
        dst.fill(1);
        device.carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)])?;
        dst.expect_zero(0, LEN).context(format_args!("{kind:?}"))?;
        // The zero page was not written.
        Region::anonymous(LEN)?.expect_zero(0, LEN).context("the zero page")?;
    }
    // A huge one that is not there either.
    let (dst, src) = (Region::of_small_pages(LEN)?, Region::of_kind(Kind::Transparent, HUGE)?);
    ensure_eq!(src.get(0), 0, "untouched byte");
    dst.fill(1);
    device.carry(&mut [Piece::new(&dst, 0, &src, PAGE, LEN)])?;
    dst.expect_zero(0, LEN).context("transparent")?;
    Ok(())
}

fn page_untouched_destination_is_made() -> Outcome {
    const LEN: usize = 8 * PAGE;
    let device = Device::open()?;
    let src = Region::of_small_pages(LEN)?;
    src.fill(3);
    for kind in [Kind::Anonymous, Kind::SharedAnonymous, Kind::PrivateFile, Kind::SharedFile] {
        for read_before in [false, true] {
            let dst = Region::of_kind(kind, LEN + 2 * PAGE)?;
            if read_before {
                dst.expect_zero(0, dst.len())?;
            }
            device.carry(&mut [Piece::new(&dst, PAGE, &src, 0, LEN)])?;
            let place = format!("{kind:?}, read before: {read_before}");
            for at in (0..LEN).step_by(8) {
                ensure_eq!(dst.word(PAGE + at), src.word(at), "{place}, byte {at}");
            }
            dst.expect_zero(0, PAGE).context(&place)?;
            dst.expect_zero(PAGE + LEN, PAGE).context(&place)?;
        }
    }
    Ok(())
}

/// A swap device in compressed memory, for as long as this lives.
pub struct Swap;

impl Swap {
    const DEVICE: &str = "/dev/zram0";

    /// Of a size as 32M.
    pub fn of(size: &str) -> Outcome<Swap> {
        let _ = Command::new("modprobe").arg("zram").output();
        if fs::write("/sys/block/zram0/disksize", size).is_err() {
            skip!("this kernel has no zram to swap to");
        }
        let tool = |name: &str| Command::new(name).arg(Swap::DEVICE).output();
        for name in ["mkswap", "swapon"] {
            match tool(name) {
                Ok(done) if done.status.success() => {}
                Ok(done) => skip!("{name}: {}", String::from_utf8_lossy(&done.stderr).trim()),
                Err(error) => skip!("{name}: {error}"),
            }
        }
        Ok(Swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(Swap::DEVICE).output();
        let _ = fs::write("/sys/block/zram0/reset", "1");
    }
}

fn page_swapped_out_is_brought_back() -> Outcome {
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
        // Fresh ones: pages that were copied stay pinned for a while.
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

fn page_locked_memory_copies_right() -> Outcome {
    const LEN: usize = 8 * PAGE;
    let device = Device::open()?;
    let (dst, src) = (Region::anonymous(LEN)?, Region::anonymous(LEN)?);
    dst.lock()?;
    src.lock()?;
    let watched = Watched::new(&dst, 0, &src, 0, LEN, 0);
    device.carry(&mut [watched.piece()])?;
    watched.expect_copied()?;
    Ok(())
}

// ---- pages that two processes have ---------------------------------------------------

const SHARED: usize = 8 * PAGE;

fn page_shared_with_child_as_destination_child_keeps_the_old() -> Outcome {
    let device = Device::open()?;
    let (dst, src) = (Region::of_small_pages(SHARED)?, Region::of_small_pages(SHARED)?);
    dst.fill(1);
    src.fill(2);
    let copied = Gate::new()?;
    let child = fork(|| {
        copied.pass();
        dst.expect(1).context("the child's memory")
    })?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, SHARED)])?;
    dst.expect(2).context("the parent's memory")?;
    copied.open();
    child.succeed()
}

fn page_shared_with_parent_as_destination_parent_keeps_the_old() -> Outcome {
    let (dst, src) = (Region::of_small_pages(SHARED)?, Region::of_small_pages(SHARED)?);
    dst.fill(1);
    src.fill(2);
    let child = fork(|| {
        let device = Device::open()?;
        device.carry(&mut [Piece::new(&dst, 0, &src, 0, SHARED)])?;
        dst.expect(2).context("the child's memory")
    })?;
    child.succeed()?;
    dst.expect(1).context("the parent's memory")
}

fn page_shared_with_child_as_source_is_read() -> Outcome {
    let device = Device::open()?;
    let (dst, src) = (Region::of_small_pages(SHARED)?, Region::of_small_pages(SHARED)?);
    src.fill(2);
    let (copied, written) = (Gate::new()?, Gate::new()?);
    let child = fork(|| {
        copied.pass();
        src.expect(2).context("the child's source")?;
        src.fill(3);
        written.open();
        Ok(())
    })?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, SHARED)])?;
    dst.expect(2)?;
    copied.open();
    written.pass();
    src.expect(2).context("the parent's source, after the child wrote its own")?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, SHARED)])?;
    dst.expect(2)?;
    child.succeed()
}

fn page_of_private_file_leaves_the_file_alone() -> Outcome {
    let device = Device::open()?;
    let file = memory_file(SHARED)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let dst = Region::map_file(file.as_raw_fd(), 0, SHARED, rights, libc::MAP_PRIVATE)?;
    let src = Region::of_small_pages(SHARED)?;
    src.fill(2);
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, SHARED)])?;
    dst.expect(2)?;
    let mut bytes = vec![1; SHARED];
    file.read_exact_at(&mut bytes, 0)?;
    ensure!(bytes.iter().all(|byte| *byte == 0), "the file was written");
    Ok(())
}

fn page_of_shared_file_reaches_the_file() -> Outcome {
    let device = Device::open()?;
    let file = memory_file(SHARED)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let dst = Region::map_file(file.as_raw_fd(), 0, SHARED, rights, libc::MAP_SHARED)?;
    let src = Region::of_small_pages(SHARED)?;
    src.fill(2);
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, SHARED)])?;
    let mut bytes = vec![0; SHARED];
    file.read_exact_at(&mut bytes, 0)?;
    let differs = (0..SHARED).find(|&at| bytes[at] != src.get(at));
    ensure_eq!(differs, None, "first byte of the file that is wrong");
    Ok(())
}

/// A disk in memory with a file system on it, for as long as this lives.
struct Disk;

impl Disk {
    const DEVICE: &str = "/dev/ram0";
    const PLACE: &str = "/run/adma-disk";

    fn new() -> Outcome<Disk> {
        fs::create_dir_all(Disk::PLACE)?;
        for line in [
            ["modprobe", "brd", "rd_nr=1", "rd_size=16384"],
            ["mkfs.ext4", "-q", "-F", Disk::DEVICE],
            ["mount", "-text4", Disk::DEVICE, Disk::PLACE],
        ] {
            match Command::new(line[0]).args(&line[1..]).output() {
                Ok(done) if done.status.success() => {}
                Ok(done) => skip!("{line:?}: {}", String::from_utf8_lossy(&done.stderr).trim()),
                Err(error) => skip!("{}: {error}", line[0]),
            }
        }
        Ok(Disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(Disk::PLACE).output();
        let _ = Command::new("rmmod").arg("brd").output();
    }
}

/// A page that was written back counts as clean: the engine has written all of it by that
/// time, or the module says that it did so later.
fn page_written_back_under_way_reaches_the_disk() -> Outcome {
    let _disk = Disk::new()?;
    let bench = Bench::new()?;
    for round in 0..5 {
        let path = format!("{}/file{round}", Disk::PLACE);
        if reaches_the_disk_under_way(&bench, &path)? {
            return Ok(());
        }
    }
    fail!("the copy was over too early each time");
}

/// Whether the copy was under way when it began to be written back: a guest that the host holds up
/// is late for that. To write back waits for the transfers (see adma_range_invalidate), so it may be
/// over in the end.
fn reaches_the_disk_under_way(bench: &Bench, path: &str) -> Outcome<bool> {
    const LEN: usize = 64 * PAGE;
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.set_len(LEN as u64)?;
    let src = Region::of_small_pages(LEN)?;
    src.fill(2);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let dst = Region::map_file(file.as_raw_fd(), 0, LEN, rights, libc::MAP_SHARED)?;
    dst.fill(1);
    let device = Device::open()?;
    let channels = device.info()?.channels;
    bench.slow_down()?;
    let request = device.start(&mut Piece::new(&dst, 0, &src, 0, LEN).split(16, channels))?;
    let under_way = device.wait(request.id, Duration::ZERO) == Err(EAGAIN);
    file.sync_all()?;
    ensure_eq!(device.end(&request)?, 0, "failed pieces");
    drop((dst, device));
    bench.clear()?;
    file.sync_all()?;
    // What is read now comes from the disk.
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    let mut bytes = vec![0; LEN];
    file.read_exact_at(&mut bytes, 0)?;
    let differs = (0..LEN).find(|&at| bytes[at] != src.get(at));
    ensure_eq!(differs, None, "first byte on the disk that is wrong");
    Ok(under_way)
}

// ---- memory that is none --------------------------------------------------------------

/// The page with the kernel's clock, which every program has: mapped, but not memory of ours.
fn page_of_device_memory_is_efault() -> Outcome {
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
        let Submitted { result, out } = device.submit(&mut [piece]);
        ensure_eq!((result, out.accepted), (Err(EFAULT), 0), "{piece:x?}");
    }
    memory.expect(1).context("written, but refused")
}

/// A program cannot make a request look finished that is not.
fn page_of_words_is_no_destination() -> Outcome {
    let device = Device::open()?;
    let words = device.words(0)?;
    let memory = Region::of_small_pages(PAGE)?;
    memory.fill(1);
    let before: Vec<u64> = (0..SLOTS as u32).map(|slot| words.of(slot)).collect();
    let piece = Piece::new(words.region(), 0, &memory, 0, PAGE);
    let Submitted { result, out } = device.submit(&mut [piece]);
    ensure_eq!((result, out.accepted), (Err(EFAULT), 0), "a copy into the words");
    let after: Vec<u64> = (0..SLOTS as u32).map(|slot| words.of(slot)).collect();
    ensure_eq!(after, before, "the words");
    Ok(())
}

// ---- descriptors ------------------------------------------------------------------------

/// Copies, and returns how many descriptors that took.
/// Of a copy whose pages are pinned: while they are being pinned, each chunk may cut a
/// stretch that lies together.
fn descriptors(device: &Device, pieces: &mut [Piece]) -> Outcome<u64> {
    device.carry(pieces)?;
    let before = Statistics::now()?;
    device.carry(pieces)?;
    Ok(Statistics::now()?.since(&before).descriptors)
}

fn page_huge_copy_needs_few_descriptors() -> Outcome {
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let (dst, src) = (Region::of_kind(Kind::Huge, HUGE)?, Region::of_kind(Kind::Huge, HUGE)?);
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

fn page_small_copy_needs_no_more_descriptors_than_extents() -> Outcome {
    const LEN: usize = 64 * PAGE;
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let map = Pagemap::new()?;
    // Pages in the order in which they came, and thoroughly mixed.
    let (plain_dst, plain_src) = (Region::of_small_pages(LEN)?, Region::of_small_pages(LEN)?);
    let (dst, src) = (Region::anonymous(LEN)?, Region::anonymous(LEN)?);
    for at in (0..LEN).step_by(PAGE) {
        let at = at * 29 % LEN;
        dst.set(at, 1);
        src.set((at + 7 * PAGE) % LEN, 1);
    }
    for (dst, src, src_at, len) in [
        (&plain_dst, &plain_src, 0, LEN),
        (&plain_dst, &plain_src, 100, LEN - PAGE),
        (&dst, &src, 0, LEN),
        (&dst, &src, 4095, LEN - PAGE),
    ] {
        let mut pieces = Piece::new(dst, 0, src, src_at, len).split(channels as usize, channels);
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
