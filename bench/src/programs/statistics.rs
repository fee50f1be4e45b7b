//! Statistics of the library about the processes of one run (ADMA_STATS=json).

use serde_json::Value;
use std::path::Path;
use std::{fs, io};

/// Sums over all processes.
#[derive(Default, Debug, PartialEq)]
pub struct Copies {
    pub engine_bytes: u64,
    pub libc_bytes: u64,
    /// Nanoseconds spent in large copies by libc.
    pub libc_ns: f64,
}

impl Copies {
    /// Reads all reports in a folder; a process that made no large copy has none.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut copies = Copies::default();
        for entry in fs::read_dir(folder)? {
            let text = fs::read_to_string(entry?.path())?;
            text.lines().for_each(|line| copies.add(line));
        }
        Ok(copies)
    }

    fn add(&mut self, report: &str) {
        // A process that was killed while it wrote leaves half a report.
        let Ok(report) = serde_json::from_str::<Value>(report) else { return };
        let (engine, libc) = (&report["paths"]["engine"], &report["paths"]["libc"]);
        self.engine_bytes += engine["bytes"].as_u64().unwrap_or(0);
        self.libc_bytes += libc["bytes"].as_u64().unwrap_or(0);
        let buckets = libc["latency_ns"]["buckets"].as_array().map_or(&[][..], Vec::as_slice);
        // A bucket is narrow: three percent.
        let total = |bucket: &Value| -> Option<f64> {
            let middle = (bucket[0].as_f64()? + bucket[1].as_f64()?) / 2.0;
            Some(middle * bucket[2].as_f64()?)
        };
        self.libc_ns += buckets.iter().filter_map(total).sum::<f64>();
    }

    /// Returns the part of all bytes that the engine carried; `None` without large copies.
    pub fn engine_part(&self) -> Option<f64> {
        let bytes = self.engine_bytes + self.libc_bytes;
        (bytes > 0).then(|| self.engine_bytes as f64 / bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_several_processes_are_added() {
        let report = |engine: u64, libc: u64| {
            format!(
                "{{\"paths\":{{\"engine\":{{\"bytes\":{engine},\"latency_ns\":{{\"buckets\":[[5,5,1]]}}}},\
                 \"libc\":{{\"bytes\":{libc},\"latency_ns\":{{\"buckets\":[[90,110,2],[1000,1000,1]]}}}}}}}}"
            )
        };
        let mut copies = Copies::default();
        assert_eq!(copies.engine_part(), None);
        copies.add(&report(100, 200));
        copies.add(&report(200, 100));
        copies.add("{\"paths\":{\"engine\":{\"by");
        assert_eq!(copies, Copies { engine_bytes: 300, libc_bytes: 300, libc_ns: 2400.0 });
        assert_eq!(copies.engine_part(), Some(0.5));
    }
}
