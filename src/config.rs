//! What the knobs mean: the settings of this process.
//!
//! `knobs` is their table and how their values are written, `environment` reads them at start-up,
//! `programs` tells which programs are left out.

mod environment;
mod programs;

use crate::backend::copy_loop::CopyLoop;
use crate::backend::gpu;
use crate::backend::threads::workers::MOST_WORKERS;
use crate::ipc;
use adma_record::knobs::{self, Value};
use alloc::vec::Vec;

// Of `runtime`, which test executables do not have.
#[cfg(not(test))]
pub use {environment::from_environment, programs::leaves_this_program_out};

#[derive(Clone, Debug)]
pub struct Config {
    pub backend: Backend,
    pub goal: Goal,
    /// `None`: learned.
    pub min_bytes: Option<usize>,
    /// `None`: as many as the machine leaves room for.
    pub channels: Option<usize>,
    /// Processes of this MPI job on this machine, as its launcher tells; 1 where there is none.
    pub ranks: usize,
    pub cpu_share: Option<f32>,
    pub copy_loop: Option<CopyLoop>,
    /// In bytes. `None`: as much as the kernel helper allows.
    pub keep: Option<usize>,
    /// One bit per `Op`.
    pub ops: u32,
    pub stats: Formats,
    /// A path that may have %p and %e in it; `None`: standard error.
    pub stats_file: Option<Vec<u8>>,
    pub profile: bool,
    /// Every so many carried copies one is compared; 0: none.
    pub huge_pages: bool,
    pub verify: u32,
    pub log: Level,
    pub ipc_engine: ipc::Engines,
    pub ipc_ptracer: bool,
    /// In seconds.
    pub ipc_timeout: usize,
    pub check: bool,
    pub live: LiveFiles,
    /// XDG_RUNTIME_DIR, which is no knob of ours.
    pub runtime_dir: Option<Vec<u8>>,
}

/// Where counters are kept that others can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveFiles {
    /// In a folder of the user's, wherever statistics are on.
    Auto,
    Off,
    /// In this folder, of whoever collects them there; that alone turns statistics on.
    In(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Auto,
    /// The kernel helper, whichever driver its channels are of.
    Dma,
    Gpu,
    Threads,
    Libc,
}

/// What copies are to save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    Time,
    /// Engines that leave CPUs free are preferred, also over more threads.
    Cpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    pub text: bool,
    pub json: bool,
}

impl Formats {
    pub fn any(self) -> bool {
        self.count() > 0
    }

    pub fn count(self) -> usize {
        [self.text, self.json].iter().filter(|&&on| on).count()
    }
}

const EVERY_OP: u32 = (1 << knobs::OPS.len()) - 1;
const _: () = assert!(knobs::MOST_CHANNELS == MOST_WORKERS);

impl Config {
    /// Takes a value into account that the table has accepted.
    fn set(&mut self, knob: &str, value: Value<'_>) {
        let number = match value {
            Value::Number(number) => Some(number),
            _ => None,
        };
        let word = match value {
            Value::Word(word) => word,
            _ => "",
        };
        let text = match value {
            Value::Text(text) => text.as_bytes(),
            _ => b"",
        };
        match knob {
            "ADMA_BACKEND" => {
                self.backend = match word {
                    "dma" | "ioat" => Backend::Dma, // ioat: as it was called before DSA
                    "gpu" => Backend::Gpu,
                    "threads" => Backend::Threads,
                    "libc" => Backend::Libc,
                    _ => Backend::Auto,
                }
            }
            "ADMA_GOAL" => self.goal = if word == "cpu" { Goal::Cpu } else { Goal::Time },
            "ADMA_MIN_BYTES" => self.min_bytes = number,
            "ADMA_CHANNELS" => self.channels = number,
            "ADMA_CPU_SHARE" => {
                self.cpu_share = match value {
                    Value::Share(share) => Some(share),
                    _ => None,
                }
            }
            "ADMA_STORES" => {
                self.copy_loop = match word {
                    "ordinary" => Some(CopyLoop::Ordinary),
                    "stream" => Some(CopyLoop::Stream),
                    _ => None,
                }
            }
            "ADMA_HUGE_PAGES" => self.huge_pages = word == "1",
            "ADMA_KEEP" => self.keep = number,
            "ADMA_OPS" => self.ops = if let Value::Words(ops) = value { ops } else { EVERY_OP },
            "ADMA_STATS" => {
                let bits = if let Value::Words(bits) = value { bits } else { 0 };
                let has = |format: u32| bits >> format & 1 == 1;
                self.stats = Formats { text: has(0), json: has(1) };
            }
            "ADMA_STATS_FILE" => self.stats_file = (text != b"stderr").then(|| text.to_vec()),
            "ADMA_LIVE" => {
                self.live = match word {
                    "auto" => LiveFiles::Auto,
                    "off" => LiveFiles::Off,
                    _ => LiveFiles::In(text.to_vec()),
                }
            }
            "ADMA_PROFILE" => self.profile = word == "1",
            "ADMA_VERIFY" => self.verify = number.unwrap_or(0) as u32,
            "ADMA_LOG" => {
                self.log = match word {
                    "error" => Level::Error,
                    "info" => Level::Info,
                    "debug" => Level::Debug,
                    _ => Level::Warn,
                }
            }
            "ADMA_IPC_ENGINE" => {
                self.ipc_engine = match word {
                    "helper" => ipc::Engines::Helper,
                    "shm" => ipc::Engines::SharedMemory,
                    _ => ipc::Engines::Auto,
                }
            }
            "ADMA_IPC_PTRACER" => self.ipc_ptracer = word == "1",
            "ADMA_IPC_TIMEOUT" => self.ipc_timeout = number.unwrap_or(10),
            "ADMA_CHECK" => self.check = word == "1",
            _ => {} // ADMA_ONLY, ADMA_NOT: see `programs`
        }
    }

    /// Whether a graphics card may be used: never by itself, for that starts a context there.
    pub fn gpu(&self) -> Option<gpu::Settings> {
        let spare_cpus = self.goal == Goal::Cpu;
        let wanted = self.backend == Backend::Gpu || (self.backend == Backend::Auto && spare_cpus);
        let floor = self.min_bytes.unwrap_or(gpu::FLOOR);
        wanted.then_some(gpu::Settings { floor, keep: self.keep, spare_cpus })
    }

    /// Whether a caller stays awake while an engine copies: a share is fixed, at 0 above all, so
    /// that what is in the CPU's cache stays there, and a caller that sleeps gives its CPU to others.
    pub fn spins(&self) -> bool {
        self.cpu_share.is_some() && self.goal == Goal::Time
    }

    /// Whether large copies are counted.
    pub fn counts(&self) -> bool {
        self.stats.any() || matches!(self.live, LiveFiles::In(_))
    }

    /// Whether there may be anything to write when the process ends.
    pub fn speaks_at_exit(&self) -> bool {
        self.stats.any() || self.profile || self.verify > 0 || self.log >= Level::Info
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            backend: Backend::Auto,
            goal: Goal::Time,
            min_bytes: None,
            channels: None,
            ranks: 1,
            cpu_share: None,
            copy_loop: None,
            keep: None,
            ops: EVERY_OP,
            stats: Formats::default(),
            stats_file: None,
            profile: false,
            huge_pages: true,
            verify: 0,
            log: Level::Warn,
            ipc_engine: ipc::Engines::Auto,
            ipc_ptracer: false,
            ipc_timeout: 10,
            check: false,
            live: LiveFiles::Auto,
            runtime_dir: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::Op;

    #[test]
    fn every_default_in_the_table_is_what_leaving_the_knob_out_means() {
        let untouched = format!("{:?}", Config::default());
        for knob in &knobs::KNOBS {
            let mut config = Config::default();
            config.set(knob.name, knob.form.parse(knob.default).expect(knob.name));
            assert_eq!(format!("{config:?}"), untouched, "{}", knob.name);
        }
    }

    #[test]
    fn every_value_but_the_default_sets_something() {
        let untouched = format!("{:?}", Config::default());
        for knob in knobs::KNOBS.iter().filter(|knob| !knob.name.ends_with("NOT")) {
            let values: Vec<&str> = match knob.form {
                knobs::Form::Word(words) | knobs::Form::List(_, words) => words.to_vec(),
                knobs::Form::Path | knobs::Form::Folder => vec!["/there"],
                knobs::Form::Share => vec!["0.5"],
                knobs::Form::Programs => continue, // see `programs`
                _ => vec!["7"],
            };
            for value in values.into_iter().filter(|value| *value != knob.default) {
                let mut config = Config::default();
                config.set(knob.name, knob.form.parse(value).expect(knob.name));
                assert_ne!(format!("{config:?}"), untouched, "{}={value}", knob.name);
            }
        }
    }

    #[test]
    fn names_of_functions_in_the_table_are_those_of_the_operations() {
        assert_eq!(knobs::OPS, Op::ALL.map(Op::name));
    }

    #[test]
    fn manual_names_every_knob() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/man/adma.7");
        let text = std::fs::read_to_string(page).unwrap();
        for knob in knobs::KNOBS.iter().filter(|knob| !knob.about.is_empty()) {
            assert!(text.contains(knob.name), "{}", knob.name);
        }
    }
}
