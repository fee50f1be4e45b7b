//! Inside the guest: orders faults from the device and reads its counters.
//!
//! A guest test can as well write the words itself; see README.md.

use crate::faults::AREA;
use crate::function::{DEVICE, VENDOR};
use crate::options::Injection;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const CHANNELS: u32 = 4;

/// The configuration spaces of the functions, in order of their address.
fn functions() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let path = entry?.path();
        let is = |name: &str, number: u16| {
            fs::read_to_string(path.join(name))
                .is_ok_and(|text| text.trim() == format!("{number:#06x}"))
        };
        if is("vendor", VENDOR) && is("device", DEVICE) {
            found.push(path.join("config"));
        }
    }
    found.sort();
    match found.len() {
        0 => Err(io::Error::new(io::ErrorKind::NotFound, "no emulated I/OAT device here")),
        _ => Ok(found),
    }
}

fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// One 32-bit write; other sizes are not heard.
fn put(config: &File, offset: u32, word: u32) -> io::Result<()> {
    config.write_all_at(&word.to_le_bytes(), (AREA + offset).into())
}

pub fn fault(injection: &Injection) -> io::Result<()> {
    for (number, path) in functions()?.iter().enumerate() {
        if injection.function.is_some_and(|wanted| wanted as usize != number) {
            continue;
        }
        let config = open(path)?;
        put(&config, 0x08, injection.after)?;
        put(&config, 0x0c, injection.times)?;
        put(&config, 0x10, injection.value)?;
        let kind = injection.kind.map_or(0, |kind| kind as u32);
        put(&config, 0x04, kind | (injection.channels & 0xff) << 8)?;
    }
    Ok(())
}

/// One line per channel, in words that a shell can read.
pub fn counters() -> io::Result<()> {
    for (number, path) in functions()?.iter().enumerate() {
        let config = open(path)?;
        for channel in 0..CHANNELS {
            put(&config, 0x14, channel)?;
            let mut bytes = [0; 28];
            config.read_exact_at(&mut bytes, (AREA + 0x18).into())?;
            let word = |index: usize| {
                u32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().expect("four"))
            };
            let copied = u64::from(word(1)) | u64::from(word(2)) << 32;
            writeln!(
                io::stdout(),
                "function={number} channel={channel} data={} bytes={copied} null={} \
                 interrupts={} resets={} faults={}",
                word(0),
                word(3),
                word(4),
                word(5),
                word(6)
            )?;
        }
    }
    Ok(())
}
