//! Facts that the kernel reports: the module's counters, pins, physical memory.

use crate::device::Piece;
use crate::effort::{PATIENCE, eventually};
use crate::memory::PAGE;
use crate::verdict::{Context, Outcome};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Counters for every user.
pub const STATISTICS: &str = "/sys/class/misc/adma/stats";
/// Counters for root.
pub const ALL_STATISTICS: &str = "/sys/class/misc/adma/stats/all";

/// Returns whether this kernel has checkers, which are slow.
pub fn has_checkers() -> bool {
    Path::new("/proc/lockdep_stats").exists() || Path::new("/proc/self/fail-nth").exists()
}

/// Skips where a long-term pin does not wait for a page of userfaultfd: before Linux 6.3 it is
/// refused at once (EFAULT), and a kernel with checkers says so in its log.
pub fn pins_must_wait_for_pages() -> Outcome {
    const RELEASE: &str = "/proc/sys/kernel/osrelease";
    let release = fs::read_to_string(RELEASE).context(RELEASE)?;
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(6), Some(3)) {
        skip!("Linux {} refuses such a page at once, EFAULT", release.trim());
    }
    Ok(())
}

/// Writes a line to the kernel's log, for judge-log.awk.
pub fn note(words: &str) {
    // One write is one message; a failure matters only where there is a judge.
    let _ = fs::write("/dev/kmsg", format!("<6>adma-vm: {words}\n"));
}

/// Announces messages that this test provokes.
pub fn announce(regex: &str) {
    note(&format!("expect {regex}"));
}

/// Announces that a page is the destination of two transfers at once: the test's fault, not the
/// module's, but a kernel that checks mappings reports each place.
pub fn announce_overlap() {
    announce("overlapping mappings (aren't supported|of cacheline)");
    announce("^DMA-API: Mapped at:");
    announce(r"^ [a-z_0-9.]+\+0x[0-9a-f]+/0x[0-9a-f]+( |$)");
}

fn number(path: &str) -> Outcome<u64> {
    let text = fs::read_to_string(path).context(path)?;
    text.trim().parse().map_err(|_| format!("{path}: not a number: {text:?}").into())
}

// ---- the module's counters ----------------------------------------------------------

macro_rules! statistics {
    ($($name:ident)*) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct Statistics {
            $(pub $name: u64,)*
        }

        impl Statistics {
            pub fn now() -> Outcome<Statistics> {
                let text = fs::read_to_string(ALL_STATISTICS).context(ALL_STATISTICS)?;
                let number = |name| match counter(&text, name) {
                    Some(number) => Ok(number),
                    None => fail!("no {name} in {text:?}"),
                };
                Ok(Statistics { $($name: number(stringify!($name))?,)* })
            }

            /// Returns the difference; a module that was reloaded has begun to count at 0.
            pub fn since(&self, before: &Statistics) -> Statistics {
                Statistics { $($name: self.$name.checked_sub(before.$name).unwrap_or(self.$name),)* }
            }
        }
    };
}

statistics! {
    copies bytes descriptors pins overlapped pinned_pages errors timeouts ring_full quarantined
    exports export_bytes
}

// ---- parameters ---------------------------------------------------------------------

/// A parameter of a module, restored at the end.
pub struct Parameter(String, String);

impl Parameter {
    /// Sets a parameter; skipped where the module has none of that name.
    pub fn set(module: &str, name: &str, value: u64) -> Outcome<Parameter> {
        let path = format!("/sys/module/{module}/parameters/{name}");
        if !Path::new(&path).exists() {
            skip!("{module} has no parameter {name} here");
        }
        let old = fs::read_to_string(&path).context(&path)?;
        fs::write(&path, value.to_string()).context(&path)?;
        Ok(Parameter(path, old))
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, self.1.trim());
    }
}

// ---- pins ---------------------------------------------------------------------------

/// Returns the bytes that are pinned in this process, by its own status.
pub fn pinned_here() -> Outcome<usize> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    match number {
        Some(kilobytes) => Ok(kilobytes << 10),
        None => fail!("no VmPin in {text}"),
    }
}

/// Returns the pages that are pinned in this machine.
pub fn pins_outstanding() -> Outcome<i64> {
    // Counts per CPU are summed up now and then, or on request.
    let _ = fs::read("/proc/sys/vm/stat_refresh");
    let text = fs::read_to_string("/proc/vmstat")?;
    match (counter(&text, "nr_foll_pin_acquired"), counter(&text, "nr_foll_pin_released")) {
        (Some(acquired), Some(released)) => Ok(acquired as i64 - released as i64),
        _ => skip!("this kernel does not count pins"),
    }
}

fn counter(vmstat: &str, name: &str) -> Option<u64> {
    let line = vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// Waits until no more pages are pinned than there were, and none by the module.
pub fn settle(before: i64) -> Outcome {
    let mut found = (0, 0);
    let settled = eventually(PATIENCE, || {
        let ours = Statistics::now().map_or(0, |counted| counted.pinned_pages);
        found = (pins_outstanding().unwrap_or(i64::MAX), ours);
        found.0 <= before && found.1 == 0
    });
    ensure!(
        settled,
        "pages are still pinned after {PATIENCE:?}: {} (before the test {before}), {} of them by \
         the module's own count",
        found.0,
        found.1
    );
    Ok(())
}

// ---- physical memory ----------------------------------------------------------------

/// Makes sure that `count` huge pages are free; skipped where that is impossible.
pub fn reserve_huge_pages(count: usize) -> Outcome {
    const POOL: &str = "/proc/sys/vm/nr_hugepages";
    let free = || -> Outcome<usize> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let pages = |name| -> usize {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
        };
        // Reserved ones are still counted as free.
        Ok(pages("HugePages_Free:") - pages("HugePages_Rsvd:"))
    };
    let missing = count.saturating_sub(free()?);
    if missing > 0 {
        let Ok(total) = number(POOL) else { skip!("this kernel has no reserved huge pages") };
        fs::write(POOL, format!("{}", total as usize + missing)).context(POOL)?;
    }
    if free()? < count {
        skip!("no {count} huge pages are to be had");
    }
    Ok(())
}

/// The longest transfer of one descriptor of the engine.
pub const TRANSFER: u64 = 1 << 20;

pub struct Pagemap(File);

impl Pagemap {
    pub fn new() -> Outcome<Pagemap> {
        Ok(Pagemap(File::open("/proc/self/pagemap").context("/proc/self/pagemap")?))
    }

    fn entry(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        let at = address / PAGE as u64 * 8;
        self.0.read_exact_at(&mut bytes, at).map_or(0, |()| u64::from_le_bytes(bytes))
    }

    pub fn is_swapped(&self, address: u64) -> bool {
        self.entry(address) >> 62 & 1 != 0
    }

    /// Returns the physical address, if there is memory and we may know it.
    pub fn physical(&self, address: u64) -> Option<u64> {
        let entry = self.entry(address);
        let frame = entry & ((1 << 55) - 1);
        (entry >> 63 != 0 && frame != 0).then(|| frame * PAGE as u64 + address % PAGE as u64)
    }

    /// Returns whether the kernel has to write the page back before it can reclaim it.
    pub fn is_dirty(&self, address: u64) -> Outcome<bool> {
        Ok(self.flags(address)? & 1 << 4 != 0)
    }

    pub fn is_locked(&self, address: u64) -> Outcome<bool> {
        Ok(self.flags(address)? & 1 != 0)
    }

    fn flags(&self, address: u64) -> Outcome<u64> {
        const FLAGS: &str = "/proc/kpageflags";
        let Some(physical) = self.physical(address) else { fail!("no page at {address:#x}") };
        let mut bytes = [0; 8];
        let at = physical / PAGE as u64 * 8;
        File::open(FLAGS).and_then(|file| file.read_exact_at(&mut bytes, at)).context(FLAGS)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Returns how many descriptors the pieces need at least: stretches that are contiguous on both
    /// sides.
    pub fn extents(&self, pieces: &[Piece]) -> Outcome<u64> {
        let mut count = 0;
        for piece in pieces {
            match extents(piece, |address| self.physical(address)) {
                Some(more) => count += more,
                None => fail!("no physical address for {piece:x?}"),
            }
        }
        Ok(count)
    }
}

fn extents(piece: &Piece, physical: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    const SIZE: u64 = PAGE as u64;
    let (mut count, mut at) = (0, 0);
    let mut run: Option<(u64, u64, u64)> = None;
    while at < piece.len {
        let (dst, src) = (piece.dst + at, piece.src + at);
        let len = (SIZE - dst % SIZE).min(SIZE - src % SIZE).min(piece.len - at);
        let (dst, src) = (physical(dst)?, physical(src)?);
        run = match run {
            Some((d, s, n)) if d + n == dst && s + n == src && n + len <= TRANSFER => {
                Some((d, s, n + len))
            }
            _ => {
                count += 1;
                Some((dst, src, len))
            }
        };
        at += len;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(dst: u64, src: u64, len: u64, frames: impl Fn(u64) -> u64) -> Option<u64> {
        let piece = Piece { dst, src, len, ..Piece::default() };
        extents(&piece, |address| Some(frames(address / 4096) * 4096 + address % 4096))
    }

    #[test]
    fn extents_end_where_either_side_is_not_contiguous() {
        let straight = |frame| frame;
        assert_eq!(count(0, 1 << 30, 64, straight), Some(1));
        assert_eq!(count(0, (1 << 30) + 33, 16 * 4096, straight), Some(1));
        assert_eq!(count(0, 1 << 30, 1 << 20, straight), Some(1));
        assert_eq!(count(0, 1 << 30, 2 << 20, straight), Some(2));
        // Every second frame: nothing is contiguous.
        assert_eq!(count(0, 1 << 30, 4 * 4096, |frame| 2 * frame), Some(4));
        assert_eq!(count(0, (1 << 30) + 64, 4 * 4096, |frame| 2 * frame), Some(8));
    }
}
