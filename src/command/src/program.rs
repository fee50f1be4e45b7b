//! A program: where it is, and becoming it.

use crate::say::{self, FAILED, NOT_EXECUTABLE, NOT_FOUND, fail};
use std::ffi::{CString, OsStr, OsString};
use std::io::Error;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// As a shell does it: a bare name is looked for in PATH only.
pub fn find(name: &OsStr) -> Result<PathBuf, (i32, &'static str)> {
    const NOWHERE: (i32, &str) = (NOT_FOUND, "not found");
    const UNUSABLE: (i32, &str) = (NOT_EXECUTABLE, "cannot be executed");
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match (is_executable(&path), path.exists()) {
            (true, _) => Ok(path),
            (false, true) => Err(UNUSABLE),
            (false, false) => Err(NOWHERE),
        };
    }
    if name.is_empty() {
        return Err(NOWHERE);
    }
    let folders = std::env::var_os("PATH").unwrap_or("/bin:/usr/bin".into());
    let mut refused = NOWHERE;
    for folder in std::env::split_paths(&folders) {
        // An empty entry is the current folder. A slash keeps execvp from searching again.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
        let path = folder.join(name);
        if is_executable(&path) {
            return Ok(path);
        }
        if path.is_file() {
            refused = UNUSABLE;
        }
    }
    Err(refused)
}

fn is_executable(path: &Path) -> bool {
    let Ok(terminated) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: a terminated string.
    path.is_file() && unsafe { libc::access(terminated.as_ptr(), libc::X_OK) } == 0
}

/// Not by `std::process::Command`, which changes the signals that the program would inherit.
pub fn become_program(program: &Path, words: Vec<OsString>) -> ! {
    let error = execute(program, words);
    let status = match error.raw_os_error() {
        Some(libc::ENOENT) => NOT_FOUND, // an interpreter that is not there
        Some(libc::E2BIG) => FAILED,
        _ => NOT_EXECUTABLE,
    };
    let name = say::printable(&program.to_string_lossy());
    if status == NOT_FOUND {
        fail(status, format_args!("{name}: the interpreter that it names is not there"));
    }
    fail(status, format_args!("{name}: {}", say::reason(&error)))
}

/// Returns only if that failed. `words`: the program's name for itself, and its arguments.
pub fn execute(program: &Path, words: Vec<OsString>) -> Error {
    let terminated = |text: OsString| CString::new(text.into_vec());
    let (Ok(program), Ok(words)) = (
        terminated(program.as_os_str().to_owned()),
        words.into_iter().map(terminated).collect::<Result<Vec<_>, _>>(),
    ) else {
        return Error::from_raw_os_error(libc::EINVAL);
    };
    let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: terminated strings, and a list of them that ends with null. execvp, because it
    // hands scripts without an interpreter's name to the shell.
    unsafe { libc::execvp(program.as_ptr(), pointers.as_ptr()) };
    Error::last_os_error()
}
