//! Settings of this process, as the knobs determine them.
//!
//! `knobs` has their table and the forms of their values, `environment` reads them at start-up,
//! `programs` lists programs that are left out.

mod environment;
mod programs;

use crate::backend::ENGINES;
use crate::backend::copy_loop::CopyLoop;
use crate::backend::engine::{self, Choice, CopyOptions};
use crate::backend::threads::workers::MOST_WORKERS;
use crate::ipc;
use adma_shared::knobs::{self, Value};
use alloc::vec::Vec;

// Used by `runtime`, which test executables do not have.
#[cfg(not(test))]
pub use {environment::from_environment, programs::leaves_this_program_out};

#[derive(Clone, Debug)]
pub struct Config {
    pub backend: Backend,
    pub goal: Goal,
    /// Fixed threshold; `None`: learned.
    pub min_bytes: Option<usize>,
    /// Channels; `None`: as many as the CPUs allow.
    pub channels: Option<usize>,
    /// Processes of this MPI job on this machine, as its launcher reports; 1 without one.
    pub ranks: usize,
    pub cpu_share: Option<f32>,
    pub copy_loop: Option<CopyLoop>,
    /// Bytes that may stay pinned or registered. `None`: as much as the kernel helper allows.
    pub keep: Option<usize>,
    /// Functions that are intercepted, one bit per `Op`.
    pub ops: u64,
    pub stats: Formats,
    /// A path that may have %p and %e in it; `None`: standard error.
    pub stats_file: Option<Vec<u8>>,
    pub profile: bool,
    pub huge_pages: bool,
    /// Interval of carried copies that are compared; 0: none is.
    pub verify: u32,
    pub log: Level,
    pub ipc_engine: ipc::Engines,
    /// Largest eager message, in KiB.
    pub ipc_eager: usize,
    pub ipc_ptracer: bool,
    /// Seconds for greetings, and for last pieces at close.
    pub ipc_timeout: usize,
    pub check: bool,
    pub live: LiveFiles,
    /// XDG_RUNTIME_DIR, which is no knob of ours.
    pub runtime_dir: Option<Vec<u8>>,
}

/// Places of counters that other processes can read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LiveFiles {
    /// Files in a folder of the user's, wherever statistics are on.
    #[default]
    Auto,
    Off,
    /// Files in this folder, for the process that collects them; that alone turns statistics on.
    In(Vec<u8>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    #[default]
    Auto,
    /// The engine of this name.
    Engine(&'static str),
    Threads,
    Libc,
}

/// Resource that copies are to save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    #[default]
    Time,
    /// Prefers engines that leave CPUs free, even over more threads.
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

const EVERY_OP: u64 = u64::MAX >> (u64::BITS as usize - knobs::OPS.len());
const _: () = assert!(knobs::MOST_CHANNELS == MOST_WORKERS);

impl Config {
    /// Applies a value that the table has accepted.
    fn set(&mut self, knob: &str, value: Value<'_>) {
        let (mut number, mut word, mut text, mut bits, mut share) =
            (None, "", &b""[..], None, None);
        match value {
            Value::Auto => {}
            Value::Number(value) => number = Some(value),
            Value::Word(value) => word = value,
            Value::Text(value) => text = value.as_bytes(),
            Value::Words(value) => bits = Some(value),
            Value::Share(value) => share = Some(value),
        }
        match (knob, word) {
            ("ADMA_BACKEND", "threads") => self.backend = Backend::Threads,
            ("ADMA_BACKEND", "libc") => self.backend = Backend::Libc,
            ("ADMA_BACKEND", _) => {
                let mut names = ENGINES.iter().map(|engine| engine.words());
                let found =
                    names.find(|words| words.contains(&word)).and_then(|words| words.first());
                self.backend = found.map_or(Backend::Auto, |name| Backend::Engine(name));
            }
            ("ADMA_GOAL", _) => self.goal = if word == "cpu" { Goal::Cpu } else { Goal::Time },
            ("ADMA_MIN_BYTES", _) => self.min_bytes = number,
            ("ADMA_CHANNELS", _) => self.channels = number,
            ("ADMA_CPU_SHARE", _) => self.cpu_share = share,
            ("ADMA_STORES", "ordinary") => self.copy_loop = Some(CopyLoop::Ordinary),
            ("ADMA_STORES", "stream") => self.copy_loop = Some(CopyLoop::Stream),
            ("ADMA_STORES", _) => self.copy_loop = None,
            ("ADMA_HUGE_PAGES", _) => self.huge_pages = word == "1",
            ("ADMA_KEEP", _) => self.keep = number,
            ("ADMA_OPS", _) => self.ops = bits.unwrap_or(EVERY_OP),
            ("ADMA_STATS", _) => {
                let has = |format: u32| bits.unwrap_or(0) >> format & 1 == 1;
                self.stats = Formats { text: has(0), json: has(1) };
            }
            ("ADMA_STATS_FILE", _) => self.stats_file = (text != b"stderr").then(|| text.to_vec()),
            ("ADMA_LIVE", "auto") => self.live = LiveFiles::Auto,
            ("ADMA_LIVE", "off") => self.live = LiveFiles::Off,
            ("ADMA_LIVE", _) => self.live = LiveFiles::In(text.to_vec()),
            ("ADMA_PROFILE", _) => self.profile = word == "1",
            ("ADMA_VERIFY", _) => self.verify = number.unwrap_or(0) as u32,
            ("ADMA_LOG", "error") => self.log = Level::Error,
            ("ADMA_LOG", "info") => self.log = Level::Info,
            ("ADMA_LOG", "debug") => self.log = Level::Debug,
            ("ADMA_LOG", _) => self.log = Level::Warn,
            ("ADMA_IPC_ENGINE", "helper") => self.ipc_engine = ipc::Engines::Helper,
            ("ADMA_IPC_ENGINE", "shm") => self.ipc_engine = ipc::Engines::SharedMemory,
            ("ADMA_IPC_ENGINE", _) => self.ipc_engine = ipc::Engines::Auto,
            ("ADMA_IPC_EAGER", _) => self.ipc_eager = number.unwrap_or(32),
            ("ADMA_IPC_PTRACER", _) => self.ipc_ptracer = word == "1",
            ("ADMA_IPC_TIMEOUT", _) => self.ipc_timeout = number.unwrap_or(10),
            ("ADMA_CHECK", _) => self.check = word == "1",
            _ => {} // ADMA_ONLY, ADMA_NOT: see `programs`
        }
    }

    /// Returns what engines need to know.
    pub fn engine_settings(&self) -> engine::Settings {
        let choice = match self.backend {
            Backend::Auto => Choice::Any,
            Backend::Engine(name) => Choice::Named(name),
            Backend::Threads | Backend::Libc => Choice::None,
        };
        let spare_cpus = self.goal == Goal::Cpu;
        engine::Settings { choice, spare_cpus, min_bytes: self.min_bytes, keep: self.keep }
    }

    /// Returns how engines are to copy, over this many channels.
    pub fn copy_options(&self, channels: Option<usize>) -> CopyOptions {
        CopyOptions {
            channels,
            share: self.cpu_share,
            spins: self.spins(),
            spare_cpus: self.goal == Goal::Cpu,
        }
    }

    /// Returns whether a caller stays awake while an engine copies: a share is fixed, at 0 above all,
    /// so that what is in the CPU's cache stays there, and a caller that sleeps gives its CPU to
    /// others.
    pub fn spins(&self) -> bool {
        self.cpu_share.is_some() && self.goal == Goal::Time
    }

    /// Returns whether large copies are counted.
    pub fn counts(&self) -> bool {
        self.stats.any() || matches!(self.live, LiveFiles::In(_))
    }

    /// Returns whether there may be anything to write when the process ends.
    pub fn speaks_at_exit(&self) -> bool {
        self.stats.any() || self.profile || self.verify > 0 || self.log >= Level::Info
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            goal: Goal::default(),
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
            ipc_eager: 32,
            ipc_ptracer: false,
            ipc_timeout: 10,
            check: false,
            live: LiveFiles::default(),
            runtime_dir: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how a value of a knob changes the defaults.
    fn set(knob: &knobs::Knob, value: &str) -> String {
        let mut config = Config::default();
        config.set(knob.name, knob.form.parse(value).expect(knob.name));
        format!("{config:?}")
    }

    #[test]
    fn defaults_set_nothing_and_every_other_value_does() {
        let untouched = format!("{:?}", Config::default());
        for knob in &knobs::KNOBS {
            assert_eq!(set(knob, knob.default), untouched, "{}", knob.name);
            let values = match knob.form {
                knobs::Form::Word(words) | knobs::Form::List(_, words) => words,
                knobs::Form::Path | knobs::Form::Folder => &["/there"],
                knobs::Form::Share => &["0.5"],
                knobs::Form::Programs => continue, // see `programs`
                knobs::Form::Number(8.., _) => &["64"],
                _ => &["7"],
            };
            for value in values.iter().filter(|value| **value != knob.default) {
                assert_ne!(set(knob, value), untouched, "{}={value}", knob.name);
            }
        }
    }
}
