//! Why a program cannot be helped: read from its file before it is executed.
//!
//! What cannot be read is taken to be fine: the loader complains, if need be.

use crate::program;
use crate::say::printable;
use std::ffi::{CString, OsStr};
use std::fmt::{Display, Formatter, Result as Written};
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Obstacle {
    program: PathBuf,
    /// The program is a script, and this is what executes it.
    interpreter: Option<PathBuf>,
    why: Why,
}

#[derive(Debug, PartialEq, Eq)]
enum Why {
    Static,
    SetUserId,
    Capabilities,
    /// With the loader that it asks for.
    OtherLibc(String),
    Bits32,
    OtherProcessor,
}

impl Obstacle {
    /// Whether our library is of no use to the program: its loader may complain of it, too.
    pub fn refuses_preloading(&self) -> bool {
        matches!(self.why, Why::OtherLibc(_) | Why::Bits32 | Why::OtherProcessor)
    }
}

impl Display for Obstacle {
    fn fmt(&self, out: &mut Formatter<'_>) -> Written {
        let name = |path: &Path| printable(&path.to_string_lossy());
        write!(out, "warning: {} ", name(&self.program))?;
        if let Some(interpreter) = &self.interpreter {
            write!(out, "is executed by {}, which ", name(interpreter))?;
        }
        match &self.why {
            Why::Static => write!(out, "is statically linked")?,
            Why::SetUserId => write!(out, "is set-user-id: the loader ignores LD_PRELOAD")?,
            Why::Capabilities => write!(out, "has capabilities: the loader ignores LD_PRELOAD")?,
            Why::OtherLibc(loader) => write!(out, "has another C library ({})", printable(loader))?,
            Why::Bits32 => write!(out, "is a 32-bit program")?,
            Why::OtherProcessor => write!(out, "is made for another processor")?,
        }
        write!(out, "; its copies stay as they are")
    }
}

/// `None`: nothing is known against it.
pub fn of(program: &Path) -> Option<Obstacle> {
    let mut file = program.to_owned();
    // As deep as the kernel goes.
    for depth in 0..5 {
        let opened = File::open(&file).ok();
        let mut start = [0; 256];
        let length = opened.as_ref().and_then(|file| file.read_at(&mut start, 0).ok()).unwrap_or(0);
        let start = &start[..length];
        if let Some(next) = interpreter(start) {
            file = next;
            continue;
        }
        let why = rights(&file).or_else(|| contents(&opened?, &file, start))?;
        let interpreter = (depth > 0).then_some(file);
        return Some(Obstacle { program: program.to_owned(), interpreter, why });
    }
    None
}

/// What a script names in its first line; with `env`, the program that this would find.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| b" \t\r".contains(byte)).filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    if first.file_name() != Some("env".as_ref()) {
        return Some(first.to_owned());
    }
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    program::find(OsStr::from_bytes(name)).ok()
}

/// A program that gets rights which its caller lacks is started by the loader without us.
fn rights(file: &Path) -> Option<Why> {
    let found = file.metadata().ok()?;
    let path = CString::new(file.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeros is a valid `statvfs`, which the call fills for a terminated path; the
    // others ask for numbers.
    let (is_honoured, is_confined, user, group) = unsafe {
        let mut system: libc::statvfs = core::mem::zeroed();
        let failed = libc::statvfs(path.as_ptr(), &mut system) != 0;
        let confined = libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;
        (!failed && system.f_flag & libc::ST_NOSUID == 0, confined, libc::getuid(), libc::getgid())
    };
    if is_confined || !is_honoured {
        return None; // its rights are not given
    }
    if changes_user(&found, user, group) {
        return Some(Why::SetUserId);
    }
    // SAFETY: terminated strings; no room, so that only the length is told.
    let length = unsafe {
        let name = c"security.capability".as_ptr();
        libc::getxattr(path.as_ptr(), name, core::ptr::null_mut(), 0)
    };
    (length > 0 && user != 0).then_some(Why::Capabilities)
}

fn changes_user(found: &Metadata, user: u32, group: u32) -> bool {
    let has = |bits: u32| found.mode() & bits == bits;
    (has(libc::S_ISUID) && found.uid() != user)
        // Without the right to execute the bit means something else.
        || (has(libc::S_ISGID | libc::S_IXGRP) && found.gid() != group)
}

/// What the file's headers tell.
fn contents(opened: &File, file: &Path, start: &[u8]) -> Option<Why> {
    const BITS: usize = 4;
    const ORDER: usize = 5;
    if !start.starts_with(b"\x7fELF") || start.len() < 64 {
        return None;
    }
    if start[BITS] == 1 {
        return Some(Why::Bits32);
    }
    let (kind, machine) = (number(start, 16, 2), number(start, 18, 2));
    if start[ORDER] != 1 || machine != u64::from(libc::EM_X86_64) {
        return Some(Why::OtherProcessor);
    }
    let (table, size, count) =
        (number(start, 32, 8), number(start, 54, 2), number(start, 56, 2).min(512));
    if size < 56 || !matches!(kind, 2 | 3) {
        return None;
    }
    for index in 0..count {
        let mut header = [0; 56];
        opened.read_exact_at(&mut header, table.checked_add(index * size)?).ok()?;
        if number(&header, 0, 4) == u64::from(libc::PT_INTERP) {
            let mut name = vec![0; number(&header, 32, 8).min(4096) as usize];
            opened.read_exact_at(&mut name, number(&header, 8, 8)).ok()?;
            let name = String::from_utf8_lossy(name.split(|&byte| byte == 0).next()?).into_owned();
            return (!is_glibc(&name)).then_some(Why::OtherLibc(name));
        }
    }
    // The loader itself, called with a program, has no loader either, and heeds LD_PRELOAD.
    let real = file.canonicalize().ok()?;
    let is_loader = real.file_name()?.as_bytes().starts_with(b"ld-") || real.ends_with("ld.so");
    (!is_loader).then_some(Why::Static)
}

fn is_glibc(loader: &str) -> bool {
    let name = loader.rsplit('/').next().unwrap_or(loader);
    name == "ld-linux-x86-64.so.2" || name.starts_with("ld-2.") || name == "ld.so"
}

/// Little-endian, at `at`; callers look inside what they have.
fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
