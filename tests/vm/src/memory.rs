//! The guest's memory, as the device sees it.
//!
//! The law: the guest changes these bytes at any time. So no Rust reference is ever made to them;
//! every access goes through `at`, which finds the whole range in one region, and copies by raw
//! pointer. A file that was mapped once stays mapped until the process ends, so that a pointer from
//! `at` stays good when QEMU sends a new map in the middle of a copy.

use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A range of guest-physical addresses and the file that holds it.
pub struct Piece {
    pub address: u64,
    pub size: u64,
    pub offset: u64,
    pub file: File,
}

struct Region {
    address: u64,
    size: u64,
    base: usize,
}

/// Address and length of a mapped file.
type Mapped = (usize, u64);

#[derive(Default)]
pub struct Memory {
    regions: RwLock<Vec<Region>>,
    /// Mapped files by device and inode: QEMU sends the same memory many times.
    files: Mutex<HashMap<(u64, u64), Mapped>>,
}

impl Memory {
    /// Replaces the guest's memory map.
    pub fn set(&self, pieces: &[Piece]) -> io::Result<()> {
        let mut regions = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let (base, size) = self.mapped(&piece.file)?;
            if piece.offset.checked_add(piece.size).is_none_or(|end| end > size) {
                let text = format!("{:#x}+{:#x} of {size:#x}", piece.offset, piece.size);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            let base = base + piece.offset as usize;
            regions.push(Region { address: piece.address, size: piece.size, base });
        }
        *self.regions.write() = regions;
        Ok(())
    }

    fn mapped(&self, file: &File) -> io::Result<Mapped> {
        let about = file.metadata()?;
        let mut files = self.files.lock();
        if let Some(known) = files.get(&(about.dev(), about.ino())) {
            return Ok(*known);
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches
        // nothing that exists.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                about.size() as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = (base as usize, about.size());
        files.insert((about.dev(), about.ino()), mapped);
        Ok(mapped)
    }

    /// Returns the address of `size` bytes of the guest; `None` if not all are memory.
    fn at(&self, address: u64, size: u64) -> Option<*mut u8> {
        let end = address.checked_add(size)?;
        let regions = self.regions.read();
        let region = regions
            .iter()
            .find(|region| region.address <= address && end <= region.address + region.size)?;
        Some((region.base + (address - region.address) as usize) as *mut u8)
    }

    pub fn is_memory(&self, address: u64, size: u64) -> bool {
        self.at(address, size).is_some()
    }

    /// Copies within the guest; false if one of the ranges is not memory.
    pub fn copy(&self, source: u64, destination: u64, size: u64) -> bool {
        let (Some(from), Some(to)) = (self.at(source, size), self.at(destination, size)) else {
            return false;
        };
        // SAFETY: the law above: both ranges are mapped; they may overlap.
        unsafe { ptr::copy(from, to, size as usize) };
        true
    }

    /// Reads words of 64 bits, each once.
    pub fn load<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let from = self.at(address, 8 * N as u64)?.cast::<u64>();
        if !from.is_aligned() {
            return None;
        }
        // SAFETY: the law above: mapped and aligned; volatile, for the guest
        // may write meanwhile.
        Some(std::array::from_fn(|i| unsafe { from.add(i).read_volatile() }))
    }

    /// Stores 64 bits, which the guest sees after everything copied before.
    pub fn store(&self, address: u64, value: u64) -> bool {
        let Some(to) = self.at(address, 8).map(|to| to.cast::<u64>()) else { return false };
        if !to.is_aligned() {
            return false;
        }
        // SAFETY: the law above: mapped and aligned; the guest, too, reads it
        // with one load.
        unsafe { AtomicU64::from_ptr(to) }.store(value, Ordering::Release);
        true
    }
}

#[cfg(test)]
pub mod fake {
    use super::*;
    use std::os::fd::FromRawFd;

    pub fn file(size: u64) -> File {
        // SAFETY: the name is a C string; the descriptor is new and ours.
        let file =
            unsafe { File::from_raw_fd(libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(size).unwrap();
        file
    }

    /// Returns memory from address 0 up, like a guest of that size.
    pub fn memory(size: u64) -> Memory {
        let memory = Memory::default();
        memory.set(&[Piece { address: 0, size, offset: 0, file: file(size) }]).unwrap();
        memory
    }

    impl Memory {
        pub fn write(&self, address: u64, bytes: &[u8]) {
            let to = self.at(address, bytes.len() as u64).expect("inside");
            // SAFETY: the law above.
            unsafe { ptr::copy(bytes.as_ptr(), to, bytes.len()) };
        }

        pub fn read(&self, address: u64, size: usize) -> Vec<u8> {
            let from = self.at(address, size as u64).expect("inside");
            let mut bytes = vec![0; size];
            // SAFETY: the law above.
            unsafe { ptr::copy(from, bytes.as_mut_ptr(), size) };
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::{file, memory};
    use super::*;

    #[test]
    fn ranges_across_the_end_are_no_memory() {
        let memory = memory(0x2000);
        assert!(memory.is_memory(0x1ff8, 8));
        assert!(!memory.is_memory(0x1ff9, 8));
        assert!(!memory.is_memory(u64::MAX - 3, 8));
        assert!(!memory.copy(0, 0x1800, 0x1000));
        assert!(!memory.store(0x2000, 1));
        assert!(memory.load::<8>(0x1fc8).is_none());
    }

    #[test]
    fn new_map_moves_the_file() {
        let (memory, file) = (Memory::default(), file(0x4000));
        let piece = |address, offset| {
            let file = file.try_clone().unwrap();
            Piece { address, size: 0x1000, offset, file }
        };
        memory.set(&[piece(0, 0), piece(0x10_0000, 0x1000)]).unwrap();
        memory.write(0x10_0010, b"here");
        memory.set(&[piece(0x20_0000, 0x1000)]).unwrap();
        assert_eq!(memory.read(0x20_0010, 4), b"here");
        assert!(!memory.is_memory(0, 1));
        assert_eq!(memory.files.lock().len(), 1);
    }

    #[test]
    fn a_piece_beyond_its_file_is_refused() {
        let piece = Piece { address: 0, size: 0x2000, offset: 0x1000, file: file(0x2000) };
        assert!(Memory::default().set(&[piece]).is_err());
    }
}
