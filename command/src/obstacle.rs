//! Obstacles to preloading: read from a program's file before it is executed.
//!
//! Unreadable files are assumed to be fine: the loader complains if need be.

use crate::program;
use crate::say::printable;
use memchr::memchr;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endian, Endianness, FileKind, ReadCache, elf, elf::FileHeader64};
use rustix::fs::StatVfsMountFlags;
use rustix::process::{getgid, getuid};
use std::ffi::OsStr;
use std::fmt::{Display, Formatter, Result as Written};
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Obstacle {
    program: PathBuf,
    /// Interpreter, if the program is a script.
    interpreter: Option<PathBuf>,
    why: Why,
}

#[derive(Debug, PartialEq, Eq)]
enum Why {
    Static,
    SetUserId,
    Capabilities,
    /// Names the loader that it asks for.
    OtherLibc(String),
    Bits32,
    OtherProcessor,
}

impl Obstacle {
    /// Returns whether our library is of no use to the program: its loader may complain of it, too.
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

/// Examines a program. `None`: there is no known obstacle.
pub fn of(program: &Path) -> Option<Obstacle> {
    let mut file = program.to_owned();
    // As many levels as the kernel allows.
    for depth in 0..5 {
        let opened = File::open(&file).ok();
        let mut start = [0; 256];
        let length = opened.as_ref().and_then(|file| file.read_at(&mut start, 0).ok()).unwrap_or(0);
        let start = &start[..length];
        if let Some(next) = interpreter(start) {
            file = next;
            continue;
        }
        let why = rights(&file).or_else(|| contents(&opened?, &file))?;
        let interpreter = (depth > 0).then_some(file);
        return Some(Obstacle { program: program.to_owned(), interpreter, why });
    }
    None
}

/// Returns the interpreter in a script's first line; with `env`, the program it would find.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?;
    let line = &line[..memchr(b'\n', line).unwrap_or(line.len())];
    let mut words = line.split(|byte| b" \t\r".contains(byte)).filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    if first.file_name() != Some("env".as_ref()) {
        return Some(first.to_owned());
    }
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    program::find(OsStr::from_bytes(name)).ok()
}

/// Returns the obstacle of a program that gains rights: its loader ignores LD_PRELOAD.
fn rights(file: &Path) -> Option<Why> {
    let found = file.metadata().ok()?;
    let is_confined = rustix::thread::no_new_privs().unwrap_or(false);
    let system = rustix::fs::statvfs(file);
    let is_honoured = system.is_ok_and(|s| !s.f_flag.contains(StatVfsMountFlags::NOSUID));
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    if is_confined || !is_honoured {
        return None; // its rights are not given
    }
    if changes_user(&found, user, group) {
        return Some(Why::SetUserId);
    }
    let length = rustix::fs::getxattr(file, c"security.capability", &mut [0; 64]);
    (length.is_ok_and(|length| length > 0) && user != 0).then_some(Why::Capabilities)
}

fn changes_user(found: &Metadata, user: u32, group: u32) -> bool {
    let has = |bits: u32| found.mode() & bits == bits;
    (has(libc::S_ISUID) && found.uid() != user)
        // Without the execute bit the bit means something else.
        || (has(libc::S_ISGID | libc::S_IXGRP) && found.gid() != group)
}

/// Returns the obstacle that the file's headers show.
fn contents(opened: &File, file: &Path) -> Option<Why> {
    let data = &ReadCache::new(opened);
    match FileKind::parse(data).ok()? {
        FileKind::Elf32 => return Some(Why::Bits32),
        FileKind::Elf64 => {}
        _ => return None,
    }
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if endian.is_big_endian() || header.e_machine(endian) != elf::EM_X86_64 {
        return Some(Why::OtherProcessor);
    }
    if ![elf::ET_EXEC, elf::ET_DYN].contains(&header.e_type(endian)) {
        return None;
    }
    for segment in header.program_headers(endian, data).ok()? {
        if let Some(name) = segment.interpreter(endian, data).ok()? {
            let name = String::from_utf8_lossy(name).into_owned();
            return (!is_glibc(&name)).then_some(Why::OtherLibc(name));
        }
    }
    // The loader itself, run with a program as argument, has no loader, and honours LD_PRELOAD.
    let real = file.canonicalize().ok()?;
    let is_loader = real.file_name()?.as_bytes().starts_with(b"ld-") || real.ends_with("ld.so");
    (!is_loader).then_some(Why::Static)
}

fn is_glibc(loader: &str) -> bool {
    let name = loader.rsplit('/').next().unwrap_or(loader);
    name == "ld-linux-x86-64.so.2" || name.starts_with("ld-2.") || name == "ld.so"
}
