//! A control group for memory and CPUs, as of a container.

use crate::verdict::{Context, Outcome};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";

/// A group, removed with its owner, once no process is in it.
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes a group; skipped where the kernel has none.
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
        // Not every kernel has the cpu controller: `quota` checks.
        let _ = fs::write(&control, "+cpu");
        let path = Path::new(ROOT).join(name);
        fs::create_dir(&path).context(path.display())?;
        Ok(ControlGroup(path))
    }

    /// Moves a process into it; 0: this one.
    pub fn take_in(&self, pid: i32) -> Outcome {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).context("cgroup.procs")
    }

    /// Limits its CPU time: microseconds of a period, as in `cpu.max`. Skipped where the kernel has
    /// no cpu controller.
    pub fn quota(&self, words: &str) -> Outcome {
        let path = self.0.join("cpu.max");
        if !path.exists() {
            skip!("this kernel has no control groups for processors");
        }
        fs::write(path, words).context("cpu.max")
    }

    /// Returns a number of `cpu.stat`.
    pub fn processor(&self, name: &str) -> Outcome<u64> {
        let text = fs::read_to_string(self.0.join("cpu.stat")).context("cpu.stat")?;
        let number = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        number.ok_or_else(|| format!("no {name} in {text:?}").into())
    }

    /// Returns the bytes that are charged to it.
    pub fn memory(&self) -> Outcome<u64> {
        let text = fs::read_to_string(self.0.join("memory.current")).context("memory.current")?;
        text.trim().parse().map_err(|_| format!("not a number: {text:?}").into())
    }

    /// Sets the limit beyond which memory is swapped out, or processes are killed.
    pub fn limit(&self, bytes: u64) -> Outcome {
        fs::write(self.0.join("memory.max"), bytes.to_string()).context("memory.max")
    }

    /// Reclaims as at its limit; fails if that is not possible.
    pub fn reclaim(&self, bytes: usize) -> io::Result<()> {
        fs::write(self.0.join("memory.reclaim"), bytes.to_string())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
