//! Every knob in one table: name, default, what is wanted, what it means.
//!
//! The environment is read once, at start-up. A bad value costs one line on standard error;
//! the program always runs.

use crate::backend::copy_loop::CopyLoop;
use crate::backend::gpu;
use crate::backend::threads::workers::MOST_WORKERS;
use crate::functions::Op;
use crate::ipc;
use crate::os::text::say;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};

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
    /// `None`: standard error.
    pub stats_file: Option<Vec<u8>>,
    pub profile: bool,
    /// A path with %p in it.
    pub verify: u32,
    pub log: Level,
    pub ipc_offload: usize,
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
    Ioat,
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
            ops: EVERY_OP,
            stats: Formats::default(),
            stats_file: None,
            profile: false,
            verify: 0,
            log: Level::Warn,
            ipc_offload: 32 << 10,
            ipc_engine: ipc::Engines::Auto,
            ipc_ptracer: false,
            ipc_timeout: 10,
            check: false,
            live: LiveFiles::Auto,
            runtime_dir: None,
        }
    }
}

const EVERY_OP: u32 = (1 << Op::ALL.len()) - 1;

pub struct Knob {
    pub name: &'static str,
    /// As it would be written; the meaning of leaving the knob out.
    pub default: &'static str,
    pub want: &'static str,
    /// False: the value is not what is wanted, and nothing has been changed.
    set: fn(&mut Config, &str) -> bool,
}

pub const KNOBS: [Knob; 21] = [
    Knob {
        name: "ADMA_BACKEND",
        default: "auto",
        want: "auto, ioat, gpu, threads or libc",
        set: |config, value| {
            let names = [
                ("auto", Backend::Auto),
                ("ioat", Backend::Ioat),
                ("gpu", Backend::Gpu),
                ("threads", Backend::Threads),
                ("libc", Backend::Libc),
            ];
            choose(&mut config.backend, &names, value)
        },
    },
    Knob {
        name: "ADMA_GOAL",
        default: "time",
        want: "time or cpu",
        set: |config, value| {
            choose(&mut config.goal, &[("time", Goal::Time), ("cpu", Goal::Cpu)], value)
        },
    },
    Knob {
        name: "ADMA_MIN_BYTES",
        default: "auto",
        want: "auto, or bytes with an optional K, M or G suffix",
        set: |config, value| auto_or(&mut config.min_bytes, value, size),
    },
    Knob {
        name: "ADMA_CHANNELS",
        default: "auto",
        want: "auto, or a number from 1 to 64",
        set: |config, value| auto_or(&mut config.channels, value, |v| within(v, 1, MOST_WORKERS)),
    },
    Knob {
        name: "ADMA_CPU_SHARE",
        default: "auto",
        want: "auto, or a number from 0 to 1",
        set: |config, value| auto_or(&mut config.cpu_share, value, share),
    },
    Knob {
        name: "ADMA_STORES",
        default: "auto",
        want: "auto, ordinary or stream",
        set: |config, value| {
            let names = [
                ("auto", None),
                ("ordinary", Some(CopyLoop::Ordinary)),
                ("stream", Some(CopyLoop::Stream)),
            ];
            choose(&mut config.copy_loop, &names, value)
        },
    },
    Knob {
        name: "ADMA_KEEP",
        default: "auto",
        want: "auto, 0, or bytes with an optional K, M or G suffix",
        set: |config, value| auto_or(&mut config.keep, value, none_or_size),
    },
    Knob {
        name: "ADMA_OPS",
        default: "all",
        want: "all, or a comma list of memcpy, memmove, mempcpy, bcopy, wmemcpy, wmemmove, \
               memcpy_chk, memmove_chk, mempcpy_chk, process_vm_readv, process_vm_writev, \
               memset, memset_chk, bzero, wmemset, memcmp, bcmp, wmemcmp",
        set: |config, value| ops(value).map(|ops| config.ops = ops).is_some(),
    },
    Knob {
        name: "ADMA_STATS",
        default: "off",
        want: "off, or a comma list of text, json, hlog",
        set: |config, value| formats(value).map(|formats| config.stats = formats).is_some(),
    },
    Knob {
        name: "ADMA_STATS_FILE",
        default: "stderr",
        want: "stderr, or a path (%p: process number, %e: program)",
        set: |config, value| {
            if value.is_empty() || value.len() > 2048 {
                return false;
            }
            config.stats_file = (value != "stderr").then(|| value.as_bytes().to_vec());
            true
        },
    },
    Knob {
        name: "ADMA_LIVE",
        default: "auto",
        want: "auto, off, or the absolute path of a folder",
        set: |config, value| {
            config.live = match value {
                "auto" => LiveFiles::Auto,
                "off" => LiveFiles::Off,
                path if path.starts_with('/') && path.len() < 2048 => LiveFiles::In(path.into()),
                _ => return false,
            };
            true
        },
    },
    Knob {
        name: "ADMA_ONLY",
        default: "*",
        want: "a comma list of program names, in which * and ? stand for others",
        set: |_, value| is_list_of_programs(value), // see `leaves_out`
    },
    Knob {
        name: "ADMA_NOT",
        default: "none",
        want: "none, or a comma list of program names, in which * and ? stand for others",
        set: |_, value| is_list_of_programs(value), // see `leaves_out`
    },
    Knob {
        name: "ADMA_PROFILE",
        default: "0",
        want: "0 or 1",
        set: |config, value| choose(&mut config.profile, &SWITCH, value),
    },
    Knob {
        name: "ADMA_VERIFY",
        default: "0",
        want: "0, or n to compare every n-th carried copy",
        set: |config, value| {
            within(value, 0, u32::MAX as usize).map(|n| config.verify = n as u32).is_some()
        },
    },
    Knob {
        name: "ADMA_LOG",
        default: "warn",
        want: "error, warn, info or debug",
        set: |config, value| {
            let names = [
                ("error", Level::Error),
                ("warn", Level::Warn),
                ("info", Level::Info),
                ("debug", Level::Debug),
            ];
            choose(&mut config.log, &names, value)
        },
    },
    Knob {
        name: "ADMA_IPC_OFFLOAD",
        default: "32K",
        want: "bytes with an optional K, M or G suffix",
        set: |config, value| size(value).map(|bytes| config.ipc_offload = bytes).is_some(),
    },
    Knob {
        name: "ADMA_IPC_ENGINE",
        default: "auto",
        want: "auto, helper or shm",
        set: |config, value| {
            let names = [
                ("auto", ipc::Engines::Auto),
                ("helper", ipc::Engines::Helper),
                ("shm", ipc::Engines::SharedMemory),
            ];
            choose(&mut config.ipc_engine, &names, value)
        },
    },
    Knob {
        name: "ADMA_IPC_PTRACER",
        default: "0",
        want: "0 or 1",
        set: |config, value| choose(&mut config.ipc_ptracer, &SWITCH, value),
    },
    Knob {
        name: "ADMA_IPC_TIMEOUT",
        default: "10",
        want: "seconds, 1 to 86400",
        set: |config, value| {
            within(value, 1, 86400).map(|seconds| config.ipc_timeout = seconds).is_some()
        },
    },
    Knob {
        name: "ADMA_CHECK",
        default: "0",
        want: "0 or 1 (preload.sh --check)",
        set: |config, value| choose(&mut config.check, &SWITCH, value),
    },
];

const SWITCH: [(&str, bool); 2] = [("0", false), ("1", true)];

fn choose<T: Copy>(field: &mut T, names: &[(&str, T)], value: &str) -> bool {
    let found = names.iter().find(|(name, _)| *name == value);
    found.map(|(_, chosen)| *field = *chosen).is_some()
}

fn auto_or<T>(field: &mut Option<T>, value: &str, parse: fn(&str) -> Option<T>) -> bool {
    if value == "auto" {
        *field = None;
        return true;
    }
    parse(value).map(|parsed| *field = Some(parsed)).is_some()
}

/// Digits, then nothing or one of K, M, G in either case. Nothing else, no sign, no blank.
fn size(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = whole(digits)?;
    let bytes = number.checked_mul(1 << shift)?;
    (bytes > 0).then_some(bytes)
}

fn none_or_size(text: &str) -> Option<usize> {
    if text == "0" { Some(0) } else { size(text) }
}

/// `str::parse` would take a plus sign.
fn whole(digits: &str) -> Option<usize> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn within(text: &str, least: usize, most: usize) -> Option<usize> {
    whole(text).filter(|number| (least..=most).contains(number))
}

fn share(text: &str) -> Option<f32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f32 = plain.then(|| text.parse().ok())??;
    (0.0..=1.0).contains(&number).then_some(number)
}

fn ops(text: &str) -> Option<u32> {
    if text == "all" {
        return Some(EVERY_OP);
    }
    text.split(',').try_fold(0, |ops, name| {
        let op = Op::ALL.iter().find(|op| op.name() == name)?;
        Some(ops | 1 << *op as u32)
    })
}

fn formats(text: &str) -> Option<Formats> {
    let mut formats = Formats::default();
    if text == "off" {
        return Some(formats);
    }
    for name in text.split(',') {
        match name {
            "text" => formats.text = true,
            "json" => formats.json = true,
            "hlog" => formats.hlog = true,
            _ => return None,
        }
    }
    Some(formats)
}

/// Names of programs without their folders.
fn is_list_of_programs(value: &str) -> bool {
    value.split(',').all(|pattern| !pattern.is_empty() && !pattern.contains('/'))
}

/// Whether one of a comma list of patterns is this name.
fn is_among(patterns: &[u8], name: &[u8]) -> bool {
    patterns.split(|&byte| byte == b',').any(|pattern| matches(pattern, name))
}

/// `*` stands for any bytes, `?` for one. As many steps as the product of the two lengths at most.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // Where to go on with the last star when something does not fit.
    let mut star = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_name));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => {
                let Some((of_star, from)) = star else { return false };
                star = Some((of_star, from + 1));
                (at, in_name) = (of_star + 1, from + 1);
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

/// What is wrong with one ADMA_ variable.
#[derive(Debug, PartialEq)]
enum Complaint<'a> {
    BadValue(&'a Knob, &'a [u8]),
    Unknown(&'a [u8]),
}

impl PartialEq for Knob {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl core::fmt::Debug for Knob {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str(self.name)
    }
}

impl Complaint<'_> {
    fn say(&self) {
        let show = |bytes| String::from_utf8_lossy(bytes).escape_debug().to_string();
        match self {
            Complaint::BadValue(knob, given) => say(format_args!(
                "{}={}: want {}; using {}",
                knob.name,
                show(given),
                knob.want,
                knob.default
            )),
            Complaint::Unknown(name) => say(format_args!(
                "{}: no such knob, ignored; preload.sh --help lists them",
                show(name)
            )),
        }
    }
}

/// How launchers tell a rank how many it has beside itself: Open MPI's, and MPICH's and Intel's.
const RANKS: [&[u8]; 2] = [b"OMPI_COMM_WORLD_LOCAL_SIZE", b"MPI_LOCALNRANKS"];

/// Takes one `NAME=value` of the environment into account.
fn apply<'a>(config: &mut Config, variable: &'a [u8]) -> Option<Complaint<'a>> {
    let at = variable.iter().position(|&byte| byte == b'=').unwrap_or(variable.len());
    let (name, value) = (&variable[..at], variable.get(at + 1..).unwrap_or(b""));
    if RANKS.contains(&name) {
        let ranks = core::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
        config.ranks = ranks.unwrap_or(1).max(1);
    }
    if !name.starts_with(b"ADMA_") {
        return None;
    }
    let Some(knob) = KNOBS.iter().find(|knob| knob.name.as_bytes() == name) else {
        return Some(Complaint::Unknown(name));
    };
    let set = core::str::from_utf8(value).is_ok_and(|value| (knob.set)(config, value));
    (!set).then_some(Complaint::BadValue(knob, value))
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The names of this program: of the file that was executed, which may be a script, and what it
/// was told to be called. The file behind links would be a third, but redis-server is
/// redis-check-rdb that way.
fn names_of_program() -> [&'static [u8]; 2] {
    // SAFETY: terminated strings that the kernel and the C library have put there for good, or
    // null. The second is looked up: most programs never need it of us.
    let [file, called] = unsafe {
        let file = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        let called = libc::dlsym(libc::RTLD_DEFAULT, c"program_invocation_name".as_ptr());
        let called = called.cast::<*const c_char>().as_ref();
        [file, called.copied().unwrap_or(core::ptr::null())]
            .map(|name| if name.is_null() { &b""[..] } else { CStr::from_ptr(name).to_bytes() })
    };
    [file, called].map(|name| {
        let name = name.iter().rposition(|&byte| byte == b'/').map_or(name, |at| &name[at + 1..]);
        name.strip_prefix(b"-").unwrap_or(name) // a login shell
    })
}

/// What begins in another way is not for us.
const BEGINNINGS: [&[u8]; 4] = [b"ADMA_", RUNTIME_DIR, RANKS[0], RANKS[1]];
const RUNTIME_DIR: &[u8] = b"XDG_RUNTIME_DIR=";

/// What stands in the environment now, as far as it may be for us: every program pays for what is
/// done with each variable. Only for start-up.
fn environment() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: at start-up no other thread changes the environment; it is a null-terminated
    // list of terminated strings, or null after clearenv.
    let mut at = unsafe { environ };
    // SAFETY: as above.
    core::iter::from_fn(move || unsafe { next_variable(&mut at) })
}

/// # Safety
/// In a list as `environ` is, not behind its end; or null.
#[unsafe(link_section = ".text.start")] // see `intercept::entry`
unsafe fn next_variable(at: &mut *const *const c_char) -> Option<&'static [u8]> {
    // SAFETY: the caller's promise.
    unsafe {
        loop {
            let variable = *at.as_ref().filter(|variable| !variable.is_null())?;
            *at = at.add(1);
            if BEGINNINGS.iter().any(|beginning| begins(variable, beginning)) {
                return Some(CStr::from_ptr(variable).to_bytes());
            }
        }
    }
}

/// Whether a string begins so.
///
/// # Safety
/// A terminated string; a beginning without zeros.
unsafe fn begins(string: *const c_char, beginning: &[u8]) -> bool {
    // SAFETY: nothing behind the first difference is read, and the end of the string is one.
    beginning.iter().enumerate().all(|(i, &byte)| unsafe { string.add(i).read() } as u8 == byte)
}

/// Whether ADMA_ONLY or ADMA_NOT leaves this program out. Asked before anything else, and without
/// allocating: a program that is left out has nothing to do with us.
pub fn leaves_this_program_out() -> bool {
    // SAFETY: reads a value the kernel has given the process.
    let raised = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    !raised && leaves_out(environment(), names_of_program)
}

fn leaves_out<'a>(
    environment: impl Iterator<Item = &'a [u8]>,
    names: impl Fn() -> [&'a [u8]; 2],
) -> bool {
    let (mut only, mut not, mut check) = (None, None, false);
    for variable in environment.filter(|variable| variable.starts_with(b"ADMA_")) {
        let good = |list: &&[u8]| core::str::from_utf8(list).is_ok_and(is_list_of_programs);
        only = variable.strip_prefix(b"ADMA_ONLY=").filter(good).or(only);
        not = variable.strip_prefix(b"ADMA_NOT=").filter(good).or(not);
        check |= variable == b"ADMA_CHECK=1";
    }
    let is_among = |list: &[u8]| names().iter().any(|name| is_among(list, name));
    !check && (only.is_some_and(|list| !is_among(list)) || not.is_some_and(is_among))
}

/// Reads the environment. In a program with raised privileges (AT_SECURE) the environment is
/// somebody else's: everything stays at its default.
pub fn from_environment() -> Config {
    let mut config = Config::default();
    // SAFETY: reads a value the kernel has given the process.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return config;
    }
    let mut complaints = Vec::new();
    for variable in environment() {
        complaints.extend(apply(&mut config, variable));
        if let Some(path) = variable.strip_prefix(RUNTIME_DIR) {
            config.runtime_dir = path.starts_with(b"/").then(|| path.to_vec());
        }
    }
    if config.log >= Level::Warn {
        complaints.iter().for_each(Complaint::say);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_by_the_launcher() {
        for (variable, ranks) in [
            (&b"OMPI_COMM_WORLD_LOCAL_SIZE=16"[..], 16),
            (b"MPI_LOCALNRANKS=4", 4),
            (b"MPI_LOCALNRANKS=0", 1),
            (b"MPI_LOCALNRANKS=many", 1),
            (b"MPI_LOCALNRANKS", 1),
            (b"MPI_LOCALNRANKSX=4", 1),
        ] {
            let mut config = Config::default();
            assert!(apply(&mut config, variable).is_none());
            assert_eq!(config.ranks, ranks, "{variable:?}");
        }
    }

    #[test]
    fn size_accepts_suffixes_and_nothing_else() {
        let good = [
            ("1", 1),
            ("65536", 65536),
            ("64K", 65536),
            ("64k", 65536),
            ("1M", 1 << 20),
            ("2G", 2 << 30),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "0", "K", "64KB", "-1", "+1", " 1", "1 ", "1.5M", "0x10", "١", "64Kk"] {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!(size("99999999999999999999"), None);
        assert_eq!(size("18446744073709551615G"), None);
    }

    #[test]
    fn every_default_in_the_table_is_what_leaving_the_knob_out_means() {
        let untouched = format!("{:?}", Config::default());
        for knob in &KNOBS {
            let mut config = Config::default();
            assert!((knob.set)(&mut config, knob.default), "{}", knob.name);
            assert_eq!(format!("{config:?}"), untouched, "{}", knob.name);
        }
    }

    #[test]
    fn bad_value_names_the_knob_and_changes_nothing() {
        let untouched = format!("{:?}", Config::default());
        // For these any text is a name.
        let names = ["ADMA_STATS_FILE", "ADMA_ONLY", "ADMA_NOT"];
        for knob in KNOBS.iter().filter(|knob| !names.contains(&knob.name)) {
            for value in ["", "nonsense", "64KB", "-1", ",", "text,,json", "\u{7f}"] {
                let variable = format!("{}={value}", knob.name);
                let mut config = Config::default();
                let complaint = apply(&mut config, variable.as_bytes());
                assert_eq!(complaint, Some(Complaint::BadValue(knob, value.as_bytes())));
                assert_eq!(format!("{config:?}"), untouched, "{variable}");
            }
        }
    }

    #[test]
    fn unknown_names_are_reported_and_others_passed_over() {
        let mut config = Config::default();
        let apply = |config: &mut Config, text: &'static [u8]| apply(config, text);
        assert_eq!(
            apply(&mut config, b"ADMA_MINBYTES=1"),
            Some(Complaint::Unknown(b"ADMA_MINBYTES"))
        );
        assert_eq!(apply(&mut config, b"ADMA_"), Some(Complaint::Unknown(b"ADMA_")));
        assert_eq!(apply(&mut config, b"PATH=/bin"), None);
        assert_eq!(apply(&mut config, b""), None);
        assert!(apply(&mut config, b"ADMA_LOG=\xff").is_some());
    }

    #[test]
    fn patterns_match_as_a_shell_would() {
        let good = [
            ("redis-server", "redis-server"),
            ("python3*", "python3"),
            ("python3*", "python3.11"),
            ("*", ""),
            ("*sh", "bash"),
            ("a*b*c", "aXbYbZc"),
            ("?ash", "dash"),
            ("**x", "x"),
        ];
        for (pattern, name) in good {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        let bad = [("python3", "python3.11"), ("a*b", "ac"), ("?", ""), ("", "x"), ("*a", "b")];
        for (pattern, name) in bad {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        // No pattern takes long.
        assert!(!matches("*a".repeat(100).as_bytes(), "b".repeat(4000).as_bytes()));
    }

    #[test]
    fn programs_are_left_out_by_name() {
        let decide = |environment: &[&str], names: [&'static str; 2]| {
            let environment = environment.iter().map(|variable| variable.as_bytes());
            leaves_out(environment, || names.map(str::as_bytes))
        };
        let python = ["script.py", "python3"];
        assert!(!decide(&["PATH=/bin"], python));
        assert!(!decide(&["ADMA_ONLY=python3*,redis-server"], python));
        assert!(!decide(&["ADMA_ONLY=script.py"], python));
        assert!(decide(&["ADMA_ONLY=redis-server"], python));
        assert!(decide(&["ADMA_NOT=py*"], python));
        assert!(decide(&["ADMA_ONLY=python3", "ADMA_NOT=script*"], python));
        assert!(!decide(&["ADMA_ONLY=redis-server", "ADMA_CHECK=1"], python));
        for bad in ["", ",", "a,,b", "/usr/bin/a", "a,b/c"] {
            assert!(!decide(&[&format!("ADMA_ONLY={bad}")], python), "{bad}: said, and not obeyed");
        }
    }

    #[test]
    fn any_bytes_are_taken_without_panic() {
        // A small fuzz: every knob with random bytes. Seeded, so a failure repeats.
        let mut state = 1u64;
        for round in 0..20_000 {
            let knob = &KNOBS[round % KNOBS.len()];
            let mut variable = format!("{}=", knob.name).into_bytes();
            for _ in 0..round % 9 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                variable.push((state >> 56) as u8);
            }
            apply(&mut Config::default(), &variable);
        }
    }

    #[test]
    fn manual_and_help_name_every_knob() {
        let root = env!("CARGO_MANIFEST_DIR");
        for file in ["man/adma.7", "src/command/src/knobs.txt"] {
            let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap();
            for knob in KNOBS.iter().filter(|knob| knob.name != "ADMA_CHECK") {
                assert!(text.contains(knob.name), "{file} does not mention {}", knob.name);
            }
        }
    }
}
