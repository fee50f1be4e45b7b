//! Channels that the kernel helper holds, by driver, and queues of a DSA that it cannot have.
//!
//! For reports and `adma check`, never in the hook: it reads files.

use crate::os::{brief_file, sys};
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use core::ffi::CStr;
use core::fmt::{Result, Write};

/// A line for each channel: its name, its driver, its device and its state.
const HELD: &CStr = c"/sys/class/misc/adma/stats/channels";

/// idxd's queues.
const DSA: &str = "/sys/bus/dsa/devices";

/// Room for the lines of all channels.
pub const ROOM: usize = 2048;

/// Reads the lines of the helper; empty if it reports none.
pub fn held(room: &mut [u8; ROOM], allowed: sys::NoNewFilter) -> &str {
    let found = brief_file::read(HELD, room, allowed).unwrap_or_default();
    core::str::from_utf8(found).unwrap_or_default()
}

/// Returns name and driver of each channel; one that was given back has no name any more.
pub fn channels(held: &str) -> impl Iterator<Item = (&str, &str)> {
    held.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let name = words.next().filter(|name| *name != "-")?;
        Some((name, words.next()?))
    })
}

/// Returns the channels of each driver: its name, their number, the first and the last.
pub fn drivers(held: &str) -> impl Iterator<Item = (&str, usize, &str, &str)> {
    let mut rest = channels(held).peekable();
    core::iter::from_fn(move || {
        let (first, driver) = rest.next()?;
        let (mut last, mut count) = (first, 1);
        while let Some((name, _)) = rest.next_if(|(_, next)| *next == driver) {
            (last, count) = (name, count + 1);
        }
        Some((driver, count, first, last))
    })
}

/// Writes a line, for `adma check`, for each run of DSA queues that the helper cannot have for one
/// reason; nothing where there is no DSA.
pub fn write_unusable(out: &mut dyn Write) -> Result {
    let mut run: Option<(String, String, &str)> = None;
    // Numbers are shared with other accelerators, and may have gaps.
    for (dsa, queue) in (0..32).flat_map(|dsa| (0..16).map(move |queue| (dsa, queue))) {
        let name = format!("wq{dsa}.{queue}");
        let why = read(&format!("dsa{dsa}/state")).and_then(|_| why_not(&name));
        if let (Some((_, last, same)), Some(why)) = (&mut run, why)
            && *same == why
        {
            *last = name;
            continue;
        }
        if queue == 0 || why.is_some() {
            write_run(run.take(), out)?;
            run = why.map(|why| (name.clone(), name, why));
        }
    }
    write_run(run, out)
}

fn write_run(run: Option<(String, String, &str)>, out: &mut dyn Write) -> Result {
    match run {
        Some((first, last, why)) if first == last => {
            writeln!(out, "  DSA         {first}: {why}")
        }
        Some((first, last, why)) => writeln!(out, "  DSA         {first} to {last}: {why}"),
        None => Ok(()),
    }
}

/// Returns why the helper cannot have a queue; `None`: it can, or there is no such queue.
fn why_not(name: &str) -> Option<&'static str> {
    let state = read(&format!("{name}/state"))?;
    let kind = read(&format!("{name}/type"))?;
    match (&*state, &*kind) {
        ("enabled", "kernel") => None,
        (_, "user") => Some("of type user, adma wants kernel (kmod-c/README.md)"),
        _ => Some("not configured (kmod-c/README.md)"),
    }
}

fn read(name: &str) -> Option<String> {
    let path = CString::new(format!("{DSA}/{name}")).ok()?;
    let mut room = [0; 32];
    let found = brief_file::read(&path, &mut room, sys::NoNewFilter::look()?)?;
    let text = core::str::from_utf8(found).ok()?;
    Some(text.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_of_a_driver_are_reported_together() {
        let held = "dma0chan0 ioatdma 0000:00:04.0 up\ndma2chan0 idxd 0000:6a:01.0 up\n\
                    dma2chan1 idxd 0000:6a:01.0 out\n- idxd 0000:6f:01.0 gone\n";
        let found: std::vec::Vec<_> = drivers(held).collect();
        let one = ("ioatdma", 1, "dma0chan0", "dma0chan0");
        assert_eq!(found, [one, ("idxd", 2, "dma2chan0", "dma2chan1")]);
        assert_eq!(drivers("").count(), 0);
    }
}
