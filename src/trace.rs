//! ADMA_TRACE: the addresses of large copies in a file, for studies (`bench/run pins`).
//!
//! A line of text that fills 64 bytes, then destination, source and length of each copy as
//! 64-bit numbers. The file has its full length, and its blocks, before anything is recorded,
//! and is mapped: recording is three stores, and a full disk can fault nobody. Where it
//! cannot be made, nothing is recorded.

use crate::os::sys::{self, Text};
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use once_cell::race::OnceRef;

const HEAD: usize = 64;
const RECORD: usize = 3 * size_of::<u64>();
/// Copies of one process that are recorded; 6 MiB of them.
const MOST: usize = 1 << 18;

/// `Trace::file` before the first copy, and where there will be none.
const UNTRIED: usize = 0;
const NONE: usize = 1;

pub struct Trace {
    /// The path, with %p for the process.
    pattern: OnceRef<'static, Vec<u8>>,
    /// Where the file is mapped, or one of the above.
    file: AtomicUsize,
    next: AtomicUsize,
}

impl Trace {
    pub const fn new() -> Self {
        Self { pattern: OnceRef::new(), file: AtomicUsize::new(UNTRIED), next: AtomicUsize::new(0) }
    }

    pub fn configure(&self, pattern: &[u8]) {
        let pattern = Box::leak(Box::new(pattern.to_vec()));
        let _ = self.pattern.set(pattern); // an error only means: was configured
    }

    pub fn note(&self, dst: usize, src: usize, len: usize) {
        let file = match self.file.load(Relaxed) {
            UNTRIED => self.start(),
            file => file,
        };
        if file == NONE {
            return;
        }
        let number = self.next.fetch_add(1, Relaxed);
        if number >= MOST {
            return;
        }
        let record = (file + HEAD + number * RECORD) as *const AtomicU64;
        for (index, word) in [dst, src, len].into_iter().enumerate() {
            // SAFETY: inside the mapping, which is never taken away, and aligned.
            unsafe { &*record.add(index) }.store(word as u64, Relaxed);
        }
    }

    /// By whoever comes first; others are not recorded meanwhile.
    #[cold]
    fn start(&self) -> usize {
        if self.file.compare_exchange(UNTRIED, NONE, Relaxed, Relaxed).is_err() {
            return NONE;
        }
        let mut room = [0; 4096];
        let file = sys::map_new_file(self.path(&mut room), HEAD + MOST * RECORD);
        let Ok(file) = usize::try_from(file) else { return NONE };
        let head = b"adma trace 1\ndst, src, len: 64-bit, little-endian\n";
        for (index, byte) in head.iter().enumerate() {
            // SAFETY: the beginning of the mapping.
            unsafe { (file as *mut u8).add(index).write_volatile(*byte) };
        }
        self.file.store(file, Relaxed);
        file
    }

    /// In the child of a fork: the file is the parent's, the next copy makes another one.
    pub fn forget_after_fork(&self) {
        self.file.store(UNTRIED, Relaxed);
        self.next.store(0, Relaxed);
    }

    /// There was something to record, and nowhere to.
    pub fn has_failed(&self) -> bool {
        self.file.load(Relaxed) == NONE
    }

    /// Leaves the file as long as what is in it.
    pub fn end(&self) {
        if self.file.load(Relaxed) > NONE {
            let used = self.next.load(Relaxed).min(MOST);
            let mut room = [0; 4096];
            sys::truncate(self.path(&mut room), HEAD + used * RECORD);
        }
    }

    /// Ends in a zero byte.
    fn path<'a>(&self, room: &'a mut [u8]) -> &'a [u8] {
        let mut path = Text::over(room);
        let mut rest = self.pattern.get().map_or(&[][..], Vec::as_slice);
        while let Some((&byte, after)) = rest.split_first() {
            rest = match (byte, after) {
                (b'%', [b'p', after @ ..]) => {
                    let _ = write!(path, "{}", sys::getpid()); // a `Text` takes what fits
                    after
                }
                _ => {
                    path.push(&[byte]);
                    after
                }
            };
        }
        path.push(b"\0");
        path.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_in_the_file_and_the_file_is_no_longer_than_they_are() {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("adma-trace-test-{}", std::process::id()));
        let trace = Trace::new();
        trace.configure(folder.join("adma-trace-test-%p").to_str().unwrap().as_bytes());
        trace.note(1, 2, 3);
        trace.note(4, 5, usize::MAX);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), (HEAD + MOST * RECORD) as u64);
        trace.end();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(bytes.starts_with(b"adma trace 1\n"));
        let words: Vec<u64> = bytes[HEAD..]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [1, 2, 3, 4, 5, u64::MAX]);
    }

    #[test]
    fn file_that_cannot_be_made_records_nothing() {
        let trace = Trace::new();
        trace.configure(b"/nowhere/at/all/%p");
        trace.note(1, 2, 3);
        trace.note(1, 2, 3);
        assert!(trace.has_failed());
        trace.end();
    }
}
