//! Verdicts of the guest about its tests, and their sum.
//!
//! One line each: `adma-vm: ok NAME`, `adma-vm: not ok NAME: reason`, `adma-vm: skip NAME: reason`,
//! and `adma-vm: end` after the last. A guest that does not reach its end has failed, whatever it
//! reported before.

use std::fmt::Write;

#[derive(Debug, PartialEq)]
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

#[derive(Default)]
pub struct Verdicts {
    tests: Vec<(String, Verdict)>,
    ended: bool,
}

impl Verdicts {
    /// Parses one line of the guest; other lines are ignored.
    pub fn line(&mut self, line: &str) {
        let Some(line) = line.trim_end().strip_prefix("adma-vm: ") else { return };
        let split = |rest: &str| {
            let (name, reason) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
            (name.to_string(), reason.to_string())
        };
        let test = if line == "end" {
            self.ended = true;
            return;
        } else if let Some(name) = line.strip_prefix("ok ") {
            (name.to_string(), Verdict::Passed)
        } else if let Some(rest) = line.strip_prefix("not ok ") {
            let (name, reason) = split(rest);
            (name, Verdict::Failed(reason))
        } else if let Some(rest) = line.strip_prefix("skip ") {
            let (name, reason) = split(rest);
            (name, Verdict::Skipped(reason))
        } else {
            (line.to_string(), Verdict::Failed("no verdict that we know".into()))
        };
        self.tests.push(test);
    }

    /// Adds a failure that no test of the guest could report.
    pub fn fail(&mut self, name: &str, reason: &str) {
        self.tests.push((name.into(), Verdict::Failed(reason.into())));
    }

    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Returns the skipped tests, as `name: reason` lines.
    pub fn skips(&self) -> String {
        let mut text = String::new();
        for (name, verdict) in &self.tests {
            if let Verdict::Skipped(reason) = verdict {
                let _ = writeln!(text, "{name}: {reason}");
            }
        }
        text
    }

    pub fn passed(&self) -> bool {
        let failed = |verdict: &Verdict| matches!(verdict, Verdict::Failed(_));
        !self.tests.is_empty() && !self.tests.iter().any(|(_, verdict)| failed(verdict))
    }

    /// Returns the report, in the form of `cargo test`. A caller that keeps a list of skipped tests
    /// counts them as passed, as there, and subtracts them again.
    pub fn report(&self, skipped_are_listed: bool) -> String {
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        let mut text = String::new();
        for (name, verdict) in &self.tests {
            let result = match verdict {
                Verdict::Passed => {
                    passed += 1;
                    "ok".into()
                }
                Verdict::Failed(reason) => {
                    failed += 1;
                    format!("FAILED: {reason}")
                }
                Verdict::Skipped(reason) => {
                    skipped += 1;
                    format!("skipped: {reason}")
                }
            };
            let _ = writeln!(text, "test {name} ... {result}");
        }
        if skipped_are_listed {
            passed += skipped;
        }
        let result = if self.passed() { "ok" } else { "FAILED" };
        let _ = writeln!(
            text,
            "\ntest result: {result}. {passed} passed; {failed} failed; {skipped} skipped"
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(lines: &[&str]) -> Verdicts {
        let mut verdicts = Verdicts::default();
        lines.iter().for_each(|line| verdicts.line(line));
        verdicts
    }

    #[test]
    fn report_counts_and_names_reasons() {
        let verdicts = verdicts(&[
            "[    1.2] some noise",
            "adma-vm: ok one\r",
            "adma-vm: not ok two: bytes differ: 3",
            "adma-vm: skip three: no module",
            "adma-vm: end",
        ]);
        assert!(verdicts.ended() && !verdicts.passed());
        let report = verdicts.report(false);
        assert!(report.contains("test one ... ok\n"));
        assert!(report.contains("test two ... FAILED: bytes differ: 3\n"));
        assert!(report.contains("test result: FAILED. 1 passed; 1 failed; 1 skipped"));
        assert!(verdicts.report(true).contains(" 2 passed; 1 failed;"));
        assert_eq!(verdicts.skips(), "three: no module\n");
    }

    #[test]
    fn nothing_said_is_not_passed() {
        assert!(!verdicts(&["adma-vm: end"]).passed());
        assert!(!verdicts(&["adma-vm: okay then"]).passed());
        assert!(verdicts(&["adma-vm: ok one", "adma-vm: end"]).passed());
    }
}
