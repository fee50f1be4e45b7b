//! What the knobs mean: the settings of this process.
//!
//! `knobs` is their table, `values` how their values are written, `environment` reads them at
//! start-up, `programs` tells which programs are left out.

mod environment;
mod knobs;
mod programs;
mod values;

use crate::backend::copy_loop::CopyLoop;
use crate::backend::gpu;
use crate::ipc;
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
    pub hlog: bool,
}

impl Formats {
    pub fn any(self) -> bool {
        self.count() > 0
    }

    pub fn count(self) -> usize {
        [self.text, self.json, self.hlog].iter().filter(|&&on| on).count()
    }
}

impl Config {
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
            ops: values::EVERY_OP,
            stats: Formats::default(),
            stats_file: None,
            profile: false,
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
