//! The command line.

use crate::function::{MAX_FUNCTIONS, Model};
use crate::ioat::{MAX_CHANNELS, TRANSFER_CAPACITY};
use std::time::Duration;

/// How long a guest may take when nobody says.
const TIME_LIMIT: Duration = Duration::from_secs(300);

pub const HELP: &str = "\
usage: adma-vm boot --kernel FILE --initrd FILE --log FILE [options]

boot starts a guest with an emulated device and waits for its verdicts:
  --dsa            the device is a DSA, its queues are the channels; not I/OAT
  --channels N     1 to 32 (default 4); 0: no device
  --per-function N channels of one PCI function at most, 1 to 4 (default 4)
  --nodes N        1 or 2 NUMA nodes with a half of the channels each (default 1)
  --capacity N     log of the longest transfer of one descriptor (default 20: 1 MiB)
  --processors N   (default 1)
  --memory MB      (default 1024)
  --time-limit S   0: none (default 300)
  --append WORDS   for the kernel's command line
  --verbose        show the console, which also goes to the log
  --shell          the console is the terminal; no verdicts
Exit status: 0 all passed, 1 not, 124 out of time.
";

#[derive(Debug, PartialEq)]
pub enum Task {
    Help,
    Boot(Boot),
}

#[derive(Debug, PartialEq)]
pub struct Boot {
    pub kernel: String,
    pub initrd: String,
    pub log: String,
    pub model: Model,
    pub channels: usize,
    pub per_function: usize,
    pub nodes: usize,
    pub capacity: u32,
    pub processors: u32,
    pub memory: u32,
    pub time_limit: Option<Duration>,
    pub append: String,
    pub verbose: bool,
    pub shell: bool,
}

pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Task, String> {
    match args.next().as_deref() {
        Some("boot") => boot(args).map(Task::Boot),
        Some("-h" | "--help") => Ok(Task::Help),
        Some(other) => Err(format!("{other}: want boot")),
        None => Err("want boot".into()),
    }
}

fn boot(mut args: impl Iterator<Item = String>) -> Result<Boot, String> {
    let mut boot = Boot {
        kernel: String::new(),
        initrd: String::new(),
        log: String::new(),
        model: Model::Ioat,
        channels: 4,
        per_function: MAX_CHANNELS,
        nodes: 1,
        capacity: TRANSFER_CAPACITY,
        processors: 1,
        memory: 1024,
        time_limit: Some(TIME_LIMIT),
        append: String::new(),
        verbose: false,
        shell: false,
    };
    while let Some(name) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{name} wants a value"));
        match name.as_str() {
            "--kernel" => boot.kernel = value()?,
            "--initrd" => boot.initrd = value()?,
            "--log" => boot.log = value()?,
            "--append" => boot.append = value()?,
            "--channels" => boot.channels = number(&name, &value()?)? as usize,
            "--per-function" => boot.per_function = number(&name, &value()?)? as usize,
            "--nodes" => boot.nodes = number(&name, &value()?)? as usize,
            "--capacity" => boot.capacity = number(&name, &value()?)?,
            "--processors" => boot.processors = number(&name, &value()?)?,
            "--memory" => boot.memory = number(&name, &value()?)?,
            "--time-limit" => {
                let seconds = number(&name, &value()?)?;
                boot.time_limit = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
            }
            "--dsa" => boot.model = Model::Dsa,
            "--verbose" => boot.verbose = true,
            "--shell" => boot.shell = true,
            _ => return Err(format!("{name}: unknown option")),
        }
    }
    if !(1..=MAX_CHANNELS).contains(&boot.per_function) {
        return Err(format!("--per-function {}: want 1 to {MAX_CHANNELS}", boot.per_function));
    }
    if !(1..=2).contains(&boot.nodes) || !boot.channels.is_multiple_of(boot.nodes) {
        return Err(format!("--nodes {}: want 1 or 2, and as many channels on each", boot.nodes));
    }
    if !(12..=20).contains(&boot.capacity) {
        return Err(format!("--capacity {}: want 12 to 20", boot.capacity));
    }
    let most = MAX_FUNCTIONS * boot.nodes * boot.per_function;
    if boot.channels > most {
        return Err(format!("--channels {}: at most {most}", boot.channels));
    }
    for (name, value) in
        [("--kernel", &boot.kernel), ("--initrd", &boot.initrd), ("--log", &boot.log)]
    {
        if value.is_empty() {
            return Err(format!("{name} is missing"));
        }
    }
    Ok(boot)
}

fn number(name: &str, text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{name}: {text} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<Task, String> {
        parse(text.split_whitespace().map(String::from))
    }

    #[test]
    fn boot_wants_its_files_and_refuses_what_it_does_not_know() {
        assert!(words("boot --kernel k --initrd i").is_err());
        assert!(words("boot --kernel k --initrd i --log l --channels 33").is_err());
        assert!(words("boot --kernel k --initrd i --log l --channels 9 --per-function 1").is_err());
        assert!(words("boot --kernel k --initrd i --log l --channels 5 --nodes 2").is_err());
        assert!(words("boot --kernel k --initrd i --log l --chanels 4").is_err());
        assert!(words("boot --kernel k --initrd i --log l --memory 1G").is_err());
        let Ok(Task::Boot(boot)) =
            words("boot --kernel k --initrd i --log l --channels 8 --time-limit 0")
        else {
            panic!()
        };
        assert_eq!((boot.channels, boot.time_limit), (8, None));
    }
}
