//! The command line.

use crate::function::MAX_FUNCTIONS;
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use std::time::Duration;

/// Starts a guest with an emulated device and waits for its verdicts.
///
/// Exit status: 0 all passed, 1 not, 124 out of time.
#[derive(Debug, Parser)]
#[command(args_override_self = true)]
pub struct Boot {
    #[arg(long)]
    pub kernel: String,
    #[arg(long)]
    pub initrd: String,
    /// What the console says goes there
    #[arg(long)]
    pub log: String,
    /// The device is a DSA, its queues are the channels; not I/OAT
    #[arg(long)]
    pub dsa: bool,
    /// 0: no device
    #[arg(long, default_value_t = 4)]
    pub channels: usize,
    /// Channels of one PCI function at most
    #[arg(long, default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4))]
    pub per_function: usize,
    /// NUMA nodes, with a half of the channels each
    #[arg(long, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=2))]
    pub nodes: usize,
    /// Log of the longest transfer of one descriptor
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(12..=20))]
    pub capacity: u32,
    #[arg(long, default_value_t = 1)]
    pub processors: u32,
    /// Model of the processors, and features, as QEMU names them
    #[arg(long, default_value = "max")]
    pub cpu: String,
    /// MiB
    #[arg(long, default_value_t = 1024)]
    pub memory: u32,
    /// Seconds; 0: none
    #[arg(long, default_value_t = 300)]
    pub time_limit: u64,
    /// Words for the kernel's command line
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub append: String,
    /// An IOMMU, and a PCI device behind it that does nothing
    #[arg(long)]
    pub iommu: bool,
    /// Show the console
    #[arg(long)]
    pub verbose: bool,
    /// The console is the terminal; no verdicts
    #[arg(long)]
    pub shell: bool,
}

impl Boot {
    /// Checks options that are only wrong in combination.
    pub fn check(&self) -> Result<(), String> {
        let most = MAX_FUNCTIONS * self.nodes * self.per_function;
        if self.channels > most || !self.channels.is_multiple_of(self.nodes) {
            return Err(format!(
                "--channels {}: at most {most}, as many on each node",
                self.channels
            ));
        }
        Ok(())
    }

    pub fn limit(&self) -> Option<Duration> {
        (self.time_limit > 0).then(|| Duration::from_secs(self.time_limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        for (words, good) in [
            ("--channels 8 --time-limit 9 --time-limit 0", true),
            ("--channels 33", false),
            ("--channels 9 --per-function 1", false),
            ("--channels 5 --nodes 2", false),
            ("--capacity 21", false),
            ("--chanels 4", false),
            ("--memory 1G", false),
        ] {
            let all = format!("adma-vm --kernel k --initrd i --log l {words}");
            let boot = Boot::try_parse_from(all.split_whitespace());
            assert_eq!(boot.is_ok_and(|boot| boot.check().is_ok()), good, "{words}");
        }
        assert!(Boot::try_parse_from(["adma-vm", "--kernel", "k"]).is_err());
    }
}
