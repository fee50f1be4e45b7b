//! Requirements of jobs: Python modules in a virtual environment of ours, and Debian packages.
//! `bench/programs/install` fetches them.

use super::jobs::Need::{self, Module, Program};
use super::jobs::{Job, SCRIPTS};
use crate::spawn::{self, Scratch};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Folder beside this program with everything that jobs need.
pub struct Place {
    pub folder: PathBuf,
    pub scripts: PathBuf,
    /// The empty library.
    pub empty: Option<Scratch>,
    /// Interpreters: that of the virtual environment comes first.
    pythons: Vec<String>,
}

impl Place {
    /// Returns that folder.
    pub fn folder() -> io::Result<PathBuf> {
        let program = std::env::current_exe()?;
        Ok(program.parent().unwrap_or(Path::new("/")).join("programs"))
    }

    pub fn new() -> io::Result<Self> {
        let folder = Self::folder()?;
        let scripts = folder.join("scripts");
        fs::create_dir_all(&scripts)?;
        for (name, text) in SCRIPTS {
            fs::write(scripts.join(name), text)?;
        }
        let own = folder.join("venv/bin/python").to_string_lossy().into_owned();
        // Debian's own first, which has the modules of its packages.
        let debian = Some("/usr/bin/python3").filter(|python| Path::new(python).exists());
        let mut pythons = vec![own, debian.unwrap_or("python3").into()];
        pythons.retain(|python| imports(python, "sys"));
        Ok(Place { folder, scripts, empty: Scratch::empty(), pythons })
    }

    /// Returns the interpreter of a job's script: node, or the first Python that has its modules.
    /// The error says what is missing.
    pub fn interpreter(&self, job: &Job) -> Result<&str, String> {
        for need in job.needs {
            if let Program(what, package) = need
                && !exists(what)
            {
                return Err(format!("no {what} (apt-get install {package})"));
            }
        }
        match job.script.0.rsplit_once('.') {
            Some((_, "js")) => return Ok("node"),
            None => return Ok(""), // this program itself
            _ => {}
        }
        let mut reason = "no python3".to_string();
        for python in &self.pythons {
            match modules(job).find(|module| !imports(python, module)) {
                None => return Ok(python),
                Some(module) => reason = format!("no Python module {module}"),
            }
        }
        Err(reason)
    }

    /// Returns the first Python that has a module.
    pub fn python_with(&self, module: &str) -> Option<&str> {
        self.pythons.iter().find(|python| imports(python, module)).map(String::as_str)
    }

    /// Returns a line for each Python that is used, with the versions of its modules.
    pub fn versions(&self, jobs: &[&Job]) -> String {
        let script = "import importlib, platform, sys\n\
                      print('python', platform.python_version(), end='')\n\
                      for name in sys.argv[1:]:\n    \
                          print(',', name, importlib.import_module(name).__version__, end='')\n\
                      print()";
        let mut text = String::new();
        for python in &self.pythons {
            let mut names: Vec<&str> = Vec::new();
            for job in jobs.iter().filter(|job| self.interpreter(job) == Ok(python)) {
                names.extend(modules(job));
            }
            names.sort_unstable();
            names.dedup();
            if !names.is_empty()
                && let Ok(output) =
                    spawn::command(python, None).args(["-c", script]).args(names).output()
            {
                text += &String::from_utf8_lossy(&output.stdout);
            }
        }
        text
    }
}

/// Returns whether this Python runs and has the module.
fn imports(python: &str, module: &str) -> bool {
    let tried = spawn::command(python, None).args(["-c", &format!("import {module}")]).output();
    tried.is_ok_and(|output| output.status.success())
}

fn modules(job: &Job) -> impl Iterator<Item = &'static str> {
    let name = |need: &'static Need| match need {
        Module(name) => Some(*name),
        Program(..) => None,
    };
    job.needs.iter().filter_map(name)
}

/// Returns whether a command is in the path, or a file there; one name may be `*`.
fn exists(what: &str) -> bool {
    if let Some((before, after)) = what.split_once("/*/") {
        let entries = fs::read_dir(before).into_iter().flatten().flatten();
        return entries.into_iter().any(|entry| entry.path().join(after).exists());
    }
    if what.starts_with('/') {
        return Path::new(what).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(what).is_file())
}

#[cfg(test)]
mod tests {
    use super::exists;

    #[test]
    fn what_exists_may_be_a_command_a_file_or_any_of_several() {
        assert!(exists("sh") && exists("/bin/sh"));
        assert!(exists("/proc/*/status"));
        for not in ["no-such-command-here", "/bin/no-such-file", "/proc/*/no-such-file", ""] {
            assert!(!exists(not), "{not}");
        }
    }
}
