//! A control group for memory and processors, such as a container is.

use crate::verdict::{Context, Outcome};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";

/// Removed with its owner, once no process is in it.
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Skipped where the kernel has none.
    pub fn new(name: &str) -> Outcome<ControlGroup> {
        let controllers = Path::new(ROOT).join("cgroup.controllers");
        if !controllers.exists() {
            // SAFETY: constant strings.
            unsafe {
                libc::mount(
                    c"none".as_ptr(),
                    c"/sys/fs/cgroup".as_ptr(),
                    c"cgroup2".as_ptr(),
                    0,
                    std::ptr::null(),
                )
            };
        }
        if !fs::read_to_string(&controllers).is_ok_and(|all| all.contains("memory")) {
            skip!("this kernel has no control groups for memory");
        }
        let control = Path::new(ROOT).join("cgroup.subtree_control");
        fs::write(&control, "+memory").context("+memory")?;
        // Not every kernel can share processors out: `quota` looks.
        let _ = fs::write(&control, "+cpu");
        let path = Path::new(ROOT).join(name);
        fs::create_dir(&path).context(path.display())?;
        Ok(ControlGroup(path))
    }

    /// A process is in it from now on; 0: this one.
    pub fn take_in(&self, pid: i32) -> Outcome {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).context("cgroup.procs")
    }

    /// The processor's time for all of it: microseconds of a period, as `cpu.max` has them. Skipped
    /// where the kernel does not share processors out.
    pub fn quota(&self, words: &str) -> Outcome {
        let path = self.0.join("cpu.max");
        if !path.exists() {
            skip!("this kernel has no control groups for processors");
        }
        fs::write(path, words).context("cpu.max")
    }

    /// A number of `cpu.stat`.
    pub fn processor(&self, name: &str) -> Outcome<u64> {
        let text = fs::read_to_string(self.0.join("cpu.stat")).context("cpu.stat")?;
        let number = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        number.ok_or_else(|| format!("no {name} in {text:?}").into())
    }

    /// Bytes that are charged to it.
    pub fn memory(&self) -> Outcome<u64> {
        let text = fs::read_to_string(self.0.join("memory.current")).context("memory.current")?;
        text.trim().parse().map_err(|_| format!("not a number: {text:?}").into())
    }

    /// More than this is swapped out, or kills.
    pub fn limit(&self, bytes: u64) -> Outcome {
        fs::write(self.0.join("memory.max"), bytes.to_string()).context("memory.max")
    }

    /// As if it was at its limit; refused when so much is not to be had.
    pub fn reclaim(&self, bytes: usize) -> io::Result<()> {
        fs::write(self.0.join("memory.reclaim"), bytes.to_string())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
