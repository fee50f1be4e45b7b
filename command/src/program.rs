//! Finding a program, and becoming it.

use crate::options;
use crate::say::{self, FAILED, NOT_EXECUTABLE, NOT_FOUND, fail};
use std::ffi::{CString, OsStr, OsString};
use std::io::Error;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Returns the file of a named program, or ends this process. `words`: candidates for a misspelt
/// name.
pub fn named(name: &OsStr, words: &[&str]) -> PathBuf {
    find(name).unwrap_or_else(|(status, why)| {
        let name = say::printable(&name.to_string_lossy());
        let like = options::did_you_mean(&name, words.iter().copied());
        fail(status, format_args!("{name}: {why}{}", like.trim_end_matches(';')))
    })
}

/// Finds a program like a shell: a bare name is searched in PATH only.
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
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Becomes the program. `words`: its argv. Not by `std::process::Command`, which changes the
/// signals that the program would inherit.
pub fn become_program(program: &Path, words: Vec<OsString>) -> ! {
    let terminated = |text: OsString| CString::new(text.into_vec()).expect("came from the system");
    let file = terminated(program.into());
    let words: Vec<_> = words.into_iter().map(terminated).collect();
    let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: terminated strings, and a list of them that ends with null. execvp, because it
    // hands scripts without an interpreter's name to the shell.
    unsafe { libc::execvp(file.as_ptr(), pointers.as_ptr()) };
    let error = Error::last_os_error();
    let name = say::printable(&program.to_string_lossy());
    match error.raw_os_error() {
        Some(libc::ENOENT) => {
            fail(NOT_FOUND, format_args!("{name}: the interpreter that it names is not there"))
        }
        Some(libc::E2BIG) => fail(FAILED, say::about(program, &error)),
        _ => fail(NOT_EXECUTABLE, say::about(program, &error)),
    }
}
