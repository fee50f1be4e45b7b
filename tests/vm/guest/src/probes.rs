//! Counts how often this thread reaches a place in the kernel, by histograms of trace events.

use crate::verdict::{Context, Outcome};
use std::fs;
use std::path::{Path, PathBuf};

const TRACING: &str = "/sys/kernel/tracing";
const BY_THREAD: &str = "hist:keys=common_pid";

/// Filter of `security_capable(cred, namespace, capability, options)`: checks for the right to lock
/// memory (CAP_IPC_LOCK).
pub const MAY_LOCK: &str = "cap == 14";
/// Filter of those checks whose denial is audited.
pub const MAY_LOCK_AUDITED: &str = "cap == 14 && opts == 0";

/// Probe of a kernel function or event; removed on drop.
pub struct Probe {
    /// Name of a function for which we have made an event.
    function: Option<String>,
    event: PathBuf,
    trigger: String,
}

impl Probe {
    /// Probes a function; skipped where the kernel cannot count.
    pub fn function(name: &str) -> Outcome<Probe> {
        Self::at(format!("adma_{name}"), name, BY_THREAD.into())
    }

    /// Probes checks of capabilities for which `condition` holds.
    pub fn capable(name: &str, condition: &str) -> Outcome<Probe> {
        let place = "security_capable cap=%dx:u32 opts=%cx:u32";
        Self::at(format!("adma_capable_{name}"), place, format!("{BY_THREAD} if {condition}"))
    }

    fn at(function: String, place: &str, trigger: String) -> Outcome<Probe> {
        let events = Path::new(TRACING).join("kprobe_events");
        if !events.exists() {
            skip!("this kernel has no events for functions");
        }
        append(&events, &format!("p:{function} {place}")).context(place)?;
        let event = Path::new(TRACING).join("events/kprobes").join(&function);
        Probe { function: Some(function), event, trigger }.armed()
    }

    /// Probes an event like `kmem/kmalloc`; `None` where this kernel lacks it.
    pub fn event(name: &str) -> Outcome<Option<Probe>> {
        let event = Path::new(TRACING).join("events").join(name);
        if !event.exists() {
            return Ok(None);
        }
        Probe { function: None, event, trigger: BY_THREAD.into() }.armed().map(Some)
    }

    fn armed(self) -> Outcome<Probe> {
        if !self.event.join("hist").exists() {
            skip!("this kernel has no histograms of events");
        }
        fs::write(self.event.join("trigger"), &self.trigger).context(self.event.display())?;
        Ok(self)
    }

    /// Returns how often this thread was there since the probe was armed.
    pub fn count(&self) -> Outcome<u64> {
        // SAFETY: no arguments.
        self.count_of(unsafe { libc::gettid() })
    }

    /// Returns how often any thread was there.
    pub fn count_of_all(&self) -> Outcome<u64> {
        let text = fs::read_to_string(self.event.join("hist")).context(self.event.display())?;
        Ok(total(&text))
    }

    /// Returns how often that thread was there; it may be gone.
    pub fn count_of(&self, thread: i32) -> Outcome<u64> {
        let text = fs::read_to_string(self.event.join("hist")).context(self.event.display())?;
        Ok(hits(&text, thread))
    }
}

/// Parses lines like `{ common_pid:       1234 } hitcount:         57`.
fn hits(histogram: &str, thread: i32) -> u64 {
    let of_line = |line: &str| {
        let (key, count) = line.strip_prefix("{ common_pid:")?.split_once('}')?;
        let count = count.trim().strip_prefix("hitcount:")?;
        (key.trim().parse() == Ok(thread)).then(|| count.trim().parse::<u64>().ok())?
    };
    histogram.lines().find_map(of_line).unwrap_or(0)
}

/// Parses the line `    Hits: 64` below the others.
fn total(histogram: &str) -> u64 {
    let of_line = |line: &str| line.trim().strip_prefix("Hits:")?.trim().parse().ok();
    histogram.lines().find_map(of_line).unwrap_or(0)
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().append(true).open(path)?.write_all(line.as_bytes())
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = fs::write(self.event.join("trigger"), format!("!{}", self.trigger));
        if let Some(function) = &self.function {
            let _ = append(&Path::new(TRACING).join("kprobe_events"), &format!("-:{function}"));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn hits_are_found_by_the_whole_number_of_the_thread() {
        let text = "# event histogram\n#\n\n{ common_pid:         12 } hitcount:          7\n\
                    { common_pid:        123 } hitcount:         57\n\nTotals:\n    Hits: 64\n";
        assert_eq!([12, 123, 1, 3].map(|thread| super::hits(text, thread)), [7, 57, 0, 0]);
        assert_eq!(super::total(text), 64);
    }
}
