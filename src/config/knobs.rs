//! Every knob in one table: name, default, what is wanted, what it sets.

use super::programs::is_list_of_programs;
use super::values::{auto_or, choose, formats, none_or_size, ops, share, size, within};
use super::{Backend, Config, Goal, Level, LiveFiles};
use crate::backend::copy_loop::CopyLoop;
use crate::backend::threads::workers::MOST_WORKERS;
use crate::ipc;

pub struct Knob {
    pub name: &'static str,
    /// As it would be written; the meaning of leaving the knob out.
    pub default: &'static str,
    pub want: &'static str,
    /// False: the value is not what is wanted, and nothing has been changed.
    pub set: fn(&mut Config, &str) -> bool,
}

pub const KNOBS: [Knob; 20] = [
    Knob {
        name: "ADMA_BACKEND",
        default: "auto",
        want: "auto, dma (or ioat), gpu, threads or libc",
        set: |config, value| {
            let names = [
                ("auto", Backend::Auto),
                ("dma", Backend::Dma),
                ("ioat", Backend::Dma), // as it was called before DSA
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
        set: |_, value| is_list_of_programs(value), // see `programs`
    },
    Knob {
        name: "ADMA_NOT",
        default: "none",
        want: "none, or a comma list of program names, in which * and ? stand for others",
        set: |_, value| is_list_of_programs(value), // see `programs`
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

#[cfg(test)]
mod tests {
    use super::*;

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
