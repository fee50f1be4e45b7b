//! What jobs need: Python modules in a virtual environment of ours, and Debian
//! packages. What is missing is fetched, if that is allowed and possible.

use super::jobs::Need::{self, Module, Program};
use super::jobs::{Job, SCRIPTS};
use crate::out::progress;
use crate::spawn;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder beside this program where everything lies that jobs need.
pub struct Place {
    pub folder: PathBuf,
    pub scripts: PathBuf,
    pub null_library: String,
    /// The interpreters there are: that of the virtual environment comes first.
    pythons: Vec<String>,
}

impl Place {
    pub fn new() -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let folder = program.parent().unwrap_or(Path::new("/")).join("programs");
        let scripts = folder.join("scripts");
        fs::create_dir_all(&scripts)?;
        for (name, text) in SCRIPTS {
            fs::write(scripts.join(name), text)?;
        }
        let null_library = folder.join("null.so");
        fs::write(&null_library, spawn::NULL_LIBRARY)?;
        let null_library = null_library.to_string_lossy().into_owned();
        let mut place = Place { folder, scripts, null_library, pythons: Vec::new() };
        place.find_pythons();
        Ok(place)
    }

    fn find_pythons(&mut self) {
        self.pythons = vec![self.venv("python"), system_python().into()];
        self.pythons.retain(|python| imports(python, "sys"));
    }

    /// Fetches what these jobs lack. What cannot be had is said by `interpreter`.
    pub fn fetch(&mut self, jobs: &[&Job]) {
        let needs = || jobs.iter().flat_map(|job| job.needs);
        let mut packages: Vec<&str> = Vec::new();
        for need in needs() {
            match need {
                Program(what, package) if !exists(what) => packages.push(package),
                Module(_) if !self.has_venv() && !has_ensurepip() => packages.push("python3-venv"),
                _ => {}
            }
        }
        packages.sort_unstable();
        packages.dedup();
        if !packages.is_empty() {
            self.install(&packages);
        }

        let venv = self.venv("python");
        let mut lacking: Vec<&str> = jobs.iter().flat_map(|job| modules(job)).collect();
        lacking.sort_unstable();
        lacking.dedup();
        lacking.retain(|module| !imports(&venv, module));
        if !lacking.is_empty() {
            self.pip(&lacking);
            self.find_pythons();
        }
    }

    /// What runs a job's script: node, or the first Python that has its modules. The error
    /// says what is missing.
    pub fn interpreter(&self, job: &Job) -> Result<&str, String> {
        for need in job.needs {
            match need {
                Program(what, package) if !exists(what) => {
                    return Err(format!("no {what} (apt-get install {package})"));
                }
                _ => {}
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

    /// A line for each Python that is used, with the versions of its modules.
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
            if names.is_empty() {
                continue;
            }
            let output = spawn::command(python, None).args(["-c", script]).args(names).output();
            text += &output.map_or_else(
                |error| error.to_string(),
                |output| String::from_utf8_lossy(&output.stdout).into_owned(),
            );
        }
        text
    }

    /// A program of the virtual environment.
    fn venv(&self, name: &str) -> String {
        self.folder.join("venv/bin").join(name).to_string_lossy().into_owned()
    }

    fn has_venv(&self) -> bool {
        Path::new(&self.venv("pip")).exists()
    }

    fn install(&self, packages: &[&str]) {
        // SAFETY: asks for a number.
        let root = unsafe { libc::geteuid() } == 0;
        if !root || !exists("apt-get") {
            progress(&format!("missing packages, some jobs are skipped: {}", packages.join(" ")));
            return;
        }
        progress(&format!("installing {} (log: {})", packages.join(" "), self.log_name()));
        let mut install = Command::new("apt-get");
        install.env("DEBIAN_FRONTEND", "noninteractive");
        install.args(["install", "-y", "--no-install-recommends"]).args(packages);
        if !(self.logged(Command::new("apt-get").arg("update")) && self.logged(&mut install)) {
            progress(&format!("not all packages could be installed, see {}", self.log_name()));
        }
    }

    fn pip(&self, modules: &[&str]) {
        let venv = self.folder.join("venv");
        if !self.has_venv() {
            progress(&format!("making a virtual environment in {}", venv.display()));
            let mut make = Command::new(system_python());
            if !self.logged(make.args(["-m", "venv"]).arg(&venv)) {
                progress(&format!("that did not work, see {}", self.log_name()));
                return;
            }
        }
        let packages: Vec<&str> = modules.iter().map(|name| distribution(name)).collect();
        progress(&format!("pip install {} (log: {})", packages.join(" "), self.log_name()));
        let pip = |packages: &[&str]| {
            self.logged(Command::new(self.venv("pip")).arg("install").args(packages))
        };
        // One by one if need be: one that cannot be had does not cost the others.
        if !pip(&packages) {
            for package in packages {
                if !pip(&[package]) {
                    progress(&format!("pip install {package} failed, see {}", self.log_name()));
                }
            }
        }
    }

    fn log_name(&self) -> String {
        self.folder.join("install.log").display().to_string()
    }

    fn logged(&self, command: &mut Command) -> bool {
        let log = OpenOptions::new().create(true).append(true).open(self.log_name());
        let both = log.and_then(|log: File| Ok((log.try_clone()?, log)));
        let Ok((out, err)) = both else { return false };
        command.env_remove("LD_PRELOAD").stdin(std::process::Stdio::null());
        command.stdout(out).stderr(err).status().is_ok_and(|status| status.success())
    }
}

fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn imports(python: &str, module: &str) -> bool {
    works(spawn::command(python, None).args(["-c", &format!("import {module}")]))
}

fn modules(job: &Job) -> impl Iterator<Item = &'static str> {
    let name = |need: &'static Need| match need {
        Module(name) => Some(*name),
        Program(..) => None,
    };
    job.needs.iter().filter_map(name)
}

/// Debian's own before any other: what its packages bring is there.
fn system_python() -> &'static str {
    if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" }
}

fn has_ensurepip() -> bool {
    works(spawn::command(system_python(), None).args(["-c", "import ensurepip, venv"]))
}

/// What pip calls a module.
fn distribution(module: &str) -> &str {
    if module == "zmq" { "pyzmq" } else { module }
}

/// Whether a command is in the path, or a file there; one name may be `*`.
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
