//! Memory of a job's processes while it runs. Reading it holds locks of these processes, so such runs
//! are not timed.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time between two samples: a job works for a tenth of a second at least.
const INTERVAL: Duration = Duration::from_millis(5);

/// Highest sums over a process and all that it started, in MiB.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Peak {
    /// Resident memory; of pages that several processes have, each counts its part (PSS).
    pub pss: f64,
    /// What of it is anonymous memory in huge pages.
    pub huge: f64,
}

impl Peak {
    fn add(&mut self, other: Peak) {
        self.pss += other.pss;
        self.huge += other.huge;
    }

    fn raise(&mut self, other: Peak) {
        self.pss = self.pss.max(other.pss);
        self.huge = self.huge.max(other.huge);
    }
}

/// A thread that takes samples.
pub struct Watch {
    over: Arc<AtomicBool>,
    sampler: JoinHandle<Peak>,
}

impl Watch {
    pub fn start(pid: u32) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let flag = over.clone();
        let sampler = thread::spawn(move || {
            let mut peak = Peak::default();
            while !flag.load(Relaxed) {
                peak.raise(sample(pid));
                thread::sleep(INTERVAL);
            }
            peak
        });
        Watch { over, sampler }
    }

    pub fn stop(self) -> Peak {
        self.over.store(true, Relaxed);
        self.sampler.join().unwrap_or_default()
    }
}

/// Returns the sums over a process and all that it started.
fn sample(pid: u32) -> Peak {
    let mut sum = Peak::default();
    let mut left = vec![pid];
    while let Some(pid) = left.pop() {
        if let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
            sum.add(parse(&text));
        }
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            left.extend(children.split_whitespace().flat_map(str::parse::<u32>));
        }
    }
    sum
}

fn parse(rollup: &str) -> Peak {
    let mib = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()? / 1024.0)
    };
    Peak { pss: mib("Pss:").unwrap_or(0.0), huge: mib("AnonHugePages:").unwrap_or(0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn rollup_of_a_process_is_read_in_mebibytes() {
        let text = "55d0-7ffe ---p 00000000 00:00 0    [rollup]\n\
                    Rss:             8192 kB\nPss:             5120 kB\nPss_Anon:        4096 kB\n\
                    AnonHugePages:   2048 kB\n";
        assert_eq!(parse(text), Peak { pss: 5.0, huge: 2.0 });
        assert_eq!(parse("Pss: many kB\n"), Peak::default());
    }

    #[test]
    fn memory_of_what_a_job_starts_is_counted() {
        let mut child = Command::new("sh")
            .args(["-c", "sh -c \"$HOLDS\"; exit 0"])
            .env("HOLDS", "x=$(head -c 16777216 /dev/zero | tr '\\0' x); echo ready; read line")
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let mut answer = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut answer).expect("it answers");
        let peak = sample(child.id());
        drop(child.stdin.take());
        child.wait().expect("it ends with its input");
        assert_eq!(answer, "ready\n");
        assert!(peak.pss > 16.0, "{peak:?} of a shell that holds 16 MiB");
    }
}
