//! Side effects of the helper that a program must not see: protection keys, copy-on-write, dirty
//! pages, seals, and the memory of a small control group.

use super::kept::first_line;
use super::pages::Swap;
use super::*;
use std::io::Write;
use std::os::fd::FromRawFd;

/// Sets the thread's rights to all keys; two bits for each, the lower one forbids any access.
fn set_key_rights(rights: u32) {
    // SAFETY: an instruction of processors that have keys; no memory of ours has one.
    unsafe { std::arch::asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0) };
}

/// A thread without access to memory does not read it through pages that another copy has pinned.
pub fn visible_protection_key_refuses_kept_pages_too() -> Outcome {
    let pair = Pair::new(PAGE)?;
    // SAFETY: no pointers.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
    if key < 0 {
        skip!("no protection keys here");
    }
    let (source, rights) = (pair.src.address(0), READ_WRITE);
    // SAFETY: memory of a region.
    let done = unsafe { libc::syscall(libc::SYS_pkey_mprotect, source, PAGE, rights, key) };
    ensure_eq!(done, 0, "pkey_mprotect: {:?}", Errno::last());
    for _ in 0..3 {
        pair.carry(1)?;
    }
    pair.dst.fill(1);
    set_key_rights(1 << (2 * key));
    let refused = pair.refuse(pair.whole(), EFAULT, "from memory that may not be read");
    set_key_rights(0);
    refused
}

/// A source in the range of a destination: a private page stays the file's, a shared one clean.
pub fn visible_source_beside_a_destination_is_not_written() -> Outcome {
    let device = Device::open()?;
    let map = Pagemap::new()?;
    let other = Region::of_small_pages(PAGE)?;
    for kind in [PageKind::PrivateFile, PageKind::SharedFile] {
        let region = Region::of_kind(kind, 2 * RANGE)?;
        let near = first_line(&region);
        let source = near + 8 * PAGE;
        // Present, and only read.
        let _ = region.get(source);
        let before = map.physical(region.address(source));
        device.carry(&mut [Piece::new(&region, near, &other, 0, PAGE)])?;
        for _ in 0..2 {
            device.carry(&mut [Piece::new(&other, 0, &region, source, PAGE)])?;
        }
        ensure_eq!(map.physical(region.address(source)), before, "the page of a {kind:?}");
        device.keep(0).and(device.keep(1 << 14))?;
        if kind == PageKind::SharedFile {
            let dirty = |at| map.is_dirty(region.address(at));
            ensure!(dirty(near)?, "a destination is clean");
        }
    }
    // On a file whose pages can be clean.
    let region = Region::of_kind(PageKind::LayeredFile, 2 * RANGE)?;
    let line = first_line(&region);
    let source = region.address(line + 8 * PAGE);
    let _ = region.get(line + 8 * PAGE);
    if map.is_dirty(source)? {
        return Ok(());
    }
    let Submitted { result, out } =
        device.submit(&mut [Piece::new(&region, line, &other, 0, PAGE)]);
    if result.is_ok() {
        device.end(&out)?;
    }
    device.carry(&mut [Piece::new(&other, 0, &region, line + 8 * PAGE, PAGE)])?;
    device.keep(0).and(device.keep(1 << 14))?;
    ensure!(!map.is_dirty(source)?, "a page that was only read is dirty");
    Ok(())
}

/// F_SEAL_WRITE waits 0.1 s or so for pins, and fails then.
pub fn visible_memory_file_can_be_sealed_after_a_copy() -> Outcome {
    let device = Device::open()?;
    let other = Region::of_small_pages(RANGE)?;
    // SAFETY: a constant string; the descriptor is new and has no other owner.
    let mut file = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = libc::memfd_create(c"adma-guest".as_ptr(), flags);
        ensure!(fd >= 0, "memfd_create: {:?}", Errno::last());
        File::from_raw_fd(fd)
    };
    file.write_all(&vec![7; RANGE])?;
    let flags = libc::MAP_PRIVATE;
    let source = Region::map_file(file.as_raw_fd(), 0, RANGE, libc::PROT_READ, flags)?;
    for _ in 0..2 {
        device.carry(&mut [Piece::new(&other, 0, &source, 0, RANGE)])?;
    }
    // SAFETY: no pointers.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    ensure_eq!(done, 0, "F_SEAL_WRITE: {:?}", Errno::last());
    // A file that cannot be sealed any more is kept.
    let never = memory_file(RANGE)?;
    let source = Region::map_file(never.as_raw_fd(), 0, RANGE, libc::PROT_READ, flags)?;
    device.carry(&mut [Piece::new(&other, 0, &source, 0, RANGE)])?;
    let again = device.carry(&mut [Piece::new(&other, 0, &source, 0, RANGE)])?;
    ensure_eq!(again.pinned, 0, "pages of an ordinary memory file pinned again");
    Ok(())
}

/// More memory than the group may have, in swap: libc swaps pages in and out again.
pub fn visible_control_group_smaller_than_a_request_is_not_killed() -> Outcome {
    const LIMIT: u64 = 16 << 20;
    kernel::announce("ioat");
    let _swap = Swap::of("160M")?;
    let group = ControlGroup::new("adma-small")?;
    let mut child = fork(|| {
        group.take_in(0)?;
        group.limit(LIMIT)?;
        shim::finish(&mut shim::victim("large", &["2", "20971520"])?).map(drop)
    })?;
    let ended = child.wait();
    ensure_eq!(ended, Ended::Exited(0), "a program that copies in a group of {LIMIT} bytes");
    // The group is empty only then.
    let empty = || group.memory().is_ok_and(|bytes| bytes < LIMIT);
    ensure!(eventually(PATIENCE, empty), "memory is left in the group");
    Ok(())
}
