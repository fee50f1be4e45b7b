//! Changes settings of a running process, through the control part of its live file.
//!
//! The file's mode is 0400, so that it is not truncated by mistake: it is opened for reading, made
//! writable for a moment, and a few numbers are written in place. The library checks each of them.
//! The process is not notified; its next large copy sees the change.

use crate::live_files::{self, LiveProcess, State};
use crate::say::{self, FAILED, fail};
use adma_shared::knobs;
use adma_shared::live::{Control, Live, MOST_CHANNELS};
use std::fs::{OpenOptions, Permissions};
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::Ordering::Relaxed;

/// Settings; zeros: as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    pub off: bool,
    pub min_bytes: u64,
    pub channels: u32,
}

impl Setting {
    pub fn of(process: &LiveProcess) -> Self {
        let Control { off, min_bytes, channels, .. } = &process.live.control;
        Self {
            off: off.load(Relaxed) == 1,
            min_bytes: min_bytes.load(Relaxed),
            channels: channels.load(Relaxed),
        }
    }

    /// Applies one word; false: it is unknown.
    fn apply(&mut self, word: &str) -> bool {
        match word.split_once('=') {
            None if word == "off" || word == "on" => self.off = word == "off",
            Some(("min", "auto")) => self.min_bytes = 0,
            Some(("channels", "auto")) => self.channels = 0,
            Some(("min", size)) => match knobs::size(size).map(|bytes| bytes as u64) {
                Some(bytes) if Control::BYTES.contains(&bytes) => self.min_bytes = bytes,
                _ => return false,
            },
            Some(("channels", number)) => match number.parse() {
                Ok(channels) if (1..=MOST_CHANNELS as u32).contains(&channels) => {
                    self.channels = channels;
                }
                _ => return false,
            },
            _ => return false,
        }
        true
    }
}

/// `adma top --set PID WHAT ...`
pub fn command(pid: i32, wanted: &[String]) -> i32 {
    let processes = live_files::all(false, None);
    let found = processes.iter().rfind(|p| p.pid == pid && p.state == State::Running);
    let Some(process) = found else {
        fail(1, format_args!("process {pid} keeps no live statistics that you could change"))
    };
    let mut setting = Setting::of(process);
    if wanted.is_empty() {
        fail(FAILED, "top --set: off, on, min=SIZE, min=auto, channels=N or channels=auto?");
    }
    for word in wanted {
        if !setting.apply(word) {
            let word = say::printable(word);
            let least = Control::BYTES.start();
            fail(
                FAILED,
                format_args!(
                    "{word}: want off, on, min=SIZE from {least} on, channels=1 to {MOST_CHANNELS}, \
                     min=auto or channels=auto"
                ),
            );
        }
    }
    match write(process, setting) {
        Ok(()) => 0,
        Err(error) => fail(1, format_args!("process {pid}: {error}")),
    }
}

pub fn write(process: &LiveProcess, setting: Setting) -> io::Result<()> {
    let file = live_files::open(&process.path, process.owner)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    // By descriptor: another file may have the name by now.
    let writable =
        OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let restored = file.set_permissions(Permissions::from_mode(0o400));
    let writable = writable?;
    let base = offset_of!(Live, control) as u64;
    let put = |bytes: &[u8], at: usize| writable.write_all_at(bytes, base + at as u64);
    put(&u32::from(setting.off).to_ne_bytes(), offset_of!(Control, off))?;
    put(&setting.min_bytes.to_ne_bytes(), offset_of!(Control, min_bytes))?;
    put(&setting.channels.to_ne_bytes(), offset_of!(Control, channels))?;
    // Stored last: from now on the numbers above are valid.
    let change = process.live.control.change.load(Relaxed).wrapping_add(1);
    put(&change.to_ne_bytes(), offset_of!(Control, change))?;
    restored
}
