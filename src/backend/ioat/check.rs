//! `adma check` of the kernel helper.

use super::{Engine, helper, queues};
use crate::os::lookup::rare;
use crate::os::sys::{self, syscall};
use crate::os::text;
use core::ffi::{CStr, c_char};
use core::fmt::{Result, Write};

impl Engine {
    /// Reports whether the helper is loaded and permitted, and what to do about it.
    pub(super) fn describe(&self, is_wanted: bool, out: &mut dyn Write) -> Result {
        write!(out, "  DMA         ")?;
        if !is_wanted {
            return writeln!(out, "not tried (ADMA_BACKEND)");
        }
        match self.why_not() {
            0 => {
                let (held, usable) = (self.channels(), self.usable());
                writeln!(out, "helper loaded, {usable} of {held} channels usable")?;
                let mut room = [0; queues::ROOM];
                let held = sys::NoNewFilter::look().map(|allowed| queues::held(&mut room, allowed));
                for (driver, count, first, last) in queues::drivers(held.unwrap_or_default()) {
                    writeln!(out, "              {count} of {driver}: {first} to {last}")?;
                }
                Ok(())
            }
            libc::ENOENT => writeln!(
                out,
                "helper not loaded (no /dev/adma); worker threads serve instead.\n              \
                 With such hardware: package adma-dkms, see adma(7)."
            ),
            libc::EACCES => {
                let mut room = [0; 1024];
                let group = group_of_helper(&mut room).unwrap_or("of /dev/adma");
                writeln!(out, "helper loaded, but no permission for /dev/adma: join the group")?;
                writeln!(out, "              {group} (usermod -a -G {group} USER), and log in again.")
            }
            libc::ENODEV => {
                writeln!(out, "helper loaded, but no channel is usable: see the kernel's log")
            }
            libc::ENOTTY => writeln!(out, "/dev/adma is not the helper; worker threads serve instead"),
            libc::EPROTO => {
                writeln!(out, "helper loaded, but of another version: build and load it again")
            }
            errno => {
                let why = text::meaning(errno);
                writeln!(out, "/dev/adma cannot be used:\n              {why} (errno {errno})")
            }
        }
    }
}

rare! {
    fn getgrgid_r(u32, *mut libc::group, *mut c_char, usize, *mut *mut libc::group) -> i32;
}

/// Returns the name of the group that may use the helper.
fn group_of_helper(room: &mut [u8]) -> Option<&str> {
    // SAFETY: all zeros is a valid `stat` and a valid `group`.
    let (mut stat, mut group): (libc::stat, libc::group) = unsafe { core::mem::zeroed() };
    let mut found = core::ptr::null_mut();
    // SAFETY: a terminated path; the results are written where there is room for them.
    unsafe {
        let (path, at) = (helper::PATH.as_ptr(), &raw mut stat);
        if syscall!(SYS_newfstatat, libc::AT_FDCWD, path, at, 0) != 0 {
            return None;
        }
        let (start, len) = (room.as_mut_ptr().cast(), room.len());
        getgrgid_r()?(stat.st_gid, &mut group, start, len, &mut found);
    }
    if found.is_null() {
        return None;
    }
    // SAFETY: the group was found, so its name is terminated and lies in `room`.
    unsafe { CStr::from_ptr(group.gr_name) }.to_str().ok()
}
