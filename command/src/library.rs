//! Finds the library: beside us in the source tree, or in the library folder of the same
//! installation or Python wheel; and makes a path that the loader accepts.

use crate::say::{FAILED, fail};
use object::elf::{self, FileHeader64};
use object::read::elf::FileHeader;
use object::{Endian, Endianness, ReadCache};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const TRIPLET: &str = "x86_64-linux-gnu";
/// Name that programs are linked with, and the plain one of a source tree.
const NAMES: [&str; 2] = ["libadma.so.0", "libadma.so"];

pub fn find() -> PathBuf {
    let me = myself();
    let folder = me.parent().unwrap_or(Path::new("/"));
    let places = places(folder);
    let library = places
        .iter()
        .flat_map(|place| NAMES.map(|name| place.join(name)))
        .find(|library| library.is_file());
    library.unwrap_or_else(|| {
        let folder = folder.display();
        fail(FAILED, format_args!("no libadma.so for {folder}/adma; install or build adma again"))
    })
}

/// Returns our own executable, with links resolved.
pub fn myself() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|error| {
        fail(FAILED, format_args!("cannot find my own executable, so not the library: {error}"))
    })
}

/// Returns folders that may hold the library of a command in `folder`, the nearest first.
fn places(folder: &Path) -> Vec<PathBuf> {
    let above = folder.parent().unwrap_or(folder);
    vec![
        folder.to_owned(),
        above.join("lib").join(TRIPLET),
        above.join("lib"),
        above.join("lib64"),
        above.to_owned(), // a folder of libraries with one for the command
    ]
}

/// Returns a path under which the library can be preloaded: its own, or that of a copy.
pub fn preloadable(library: PathBuf) -> PathBuf {
    if !unpreloadable(&library) {
        return library;
    }
    let user = rustix::process::getuid().as_raw();
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = variable("XDG_RUNTIME_DIR").or_else(|| variable("TMPDIR")).unwrap_or("/tmp".into());
    let mut folder = Path::new(&base).join(format!("adma-{user}"));
    if unpreloadable(&folder) || !folder.is_absolute() {
        folder = Path::new("/tmp").join(format!("adma-{user}"));
    }
    copy(&library, &folder, user)
        .unwrap_or_else(|why| fail(FAILED, format_args!("{}: {why}", folder.display())))
}

/// Returns whether LD_PRELOAD cannot hold a path: it splits at blanks and colons, and expands $LIB.
pub fn unpreloadable(path: &Path) -> bool {
    path.as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| byte.is_ascii_whitespace() || b":$".contains(byte))
}

/// Returns whether a file is a shared library, or a program, of this processor.
pub fn is_shared(path: &Path) -> bool {
    let read = || -> Option<bool> {
        let file = path.is_file().then(|| fs::File::open(path).ok())??;
        let header = *FileHeader64::<Endianness>::parse(&ReadCache::new(file)).ok()?;
        let endian = header.endian().ok()?;
        let is_ours = endian.is_little_endian() && header.e_machine(endian) == elf::EM_X86_64;
        Some(is_ours && header.e_type(endian) == elf::ET_DYN)
    };
    read().unwrap_or(false)
}

fn copy(library: &Path, folder: &Path, user: u32) -> Result<PathBuf, String> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        // Another process may have made it at this moment.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error.to_string());
        }
        _ => {}
    }
    let found = fs::symlink_metadata(folder).map_err(|error| error.to_string())?;
    if !found.is_dir() || found.uid() != user {
        let advice = "move adma to a path without blanks, : and $";
        return Err(format!("not a folder of our own; {advice}"));
    }
    let cannot = |error: io::Error| format!("cannot copy the library there: {error}");
    let bytes = fs::read(library).map_err(cannot)?;
    let place = folder.join("libadma.so");
    if fs::read(&place).ok().as_ref() != Some(&bytes) {
        // By renaming: running programs keep the former copy.
        let fresh = folder.join(format!("libadma.so.{}", std::process::id()));
        fs::write(&fresh, &bytes).and_then(|()| fs::rename(&fresh, &place)).map_err(cannot)?;
    }
    Ok(place)
}
