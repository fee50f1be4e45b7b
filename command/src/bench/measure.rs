//! One run of the program: times, memory, how it ended, what it wrote.

use super::arm::Arm;
use crate::job::{End, INTERRUPTS, Signals};
use crate::{options, program, say};
use std::ffi::{OsString, c_int};
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

pub struct Invocation<'a> {
    pub program: &'a Path,
    pub words: &'a [OsString],
    pub input: Option<&'a Path>,
    pub keeps_output: bool,
    pub arm: &'a Arm,
    /// Folder of its processes' live files.
    pub tree: Option<&'a Path>,
}

/// Times in seconds, of the program and the children that it has waited for.
pub struct Run {
    pub wall: f64,
    pub user: f64,
    pub system: f64,
    /// Peak memory of its largest process.
    pub peak: u64,
    pub end: End,
    /// A hash of what it wrote to standard output.
    pub output: Option<u64>,
    /// End of its standard error, if it failed.
    pub complaint: String,
}

/// Reason why no more runs are made.
pub enum Stop {
    Signal(i32),
    Failed(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Failed(say::reason(&error))
    }
}

/// Lines of standard error that are shown after a failure.
const LAST_LINES: usize = 5;

pub fn run(invocation: &Invocation<'_>, signals: &Signals) -> Result<Run, Stop> {
    let input = invocation.input.unwrap_or(Path::new("/dev/null"));
    let input = File::open(input).map_err(|error| Stop::Failed(say::about(input, &error)))?;
    let null = || File::options().write(true).open("/dev/null");
    let mut out = if invocation.keeps_output { memory()? } else { null()? };
    let mut err = memory()?;
    let begun = Instant::now();
    let (status, usage) = child(signals, || {
        for (number, file) in [&input, &out, &err].into_iter().enumerate() {
            // SAFETY: open descriptors.
            unsafe { libc::dup2(file.as_raw_fd(), number as c_int) };
        }
        for (name, value) in &invocation.arm.environment {
            options::set(name, value);
        }
        if let Some(tree) = invocation.tree {
            options::set("ADMA_LIVE", tree.as_os_str());
        }
        program::become_program(invocation.program, invocation.words.to_vec())
    })?;
    let wall = begun.elapsed().as_secs_f64();
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let end = End::of(status);
    Ok(Run {
        wall,
        user: seconds(usage.ru_utime),
        system: seconds(usage.ru_stime),
        peak: (usage.ru_maxrss as u64).saturating_mul(1024),
        end,
        output: if invocation.keeps_output { Some(hash(&mut out)?) } else { None },
        complaint: if end == End::Exit(0) { String::new() } else { last_lines(&mut err)? },
    })
}

/// Runs a command line in sh, with our own input and output.
pub fn shell(line: &str, what: &str, signals: &Signals) -> Result<(), Stop> {
    let words = ["sh", "-c", line].map(OsString::from).to_vec();
    let run = || program::become_program(Path::new("/bin/sh"), words.clone());
    match End::of(child(signals, run)?.0) {
        End::Exit(0) => Ok(()),
        end => Err(Stop::Failed(format!("the {what} command fails: {end}"))),
    }
}

/// Runs a child and waits for it. A signal that asks us to end is passed to the child, and a second
/// one kills it.
fn child(signals: &Signals, become_program: impl Fn()) -> Result<(c_int, libc::rusage), Stop> {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        signals.as_found();
        become_program(); // which does not return
        std::process::exit(say::FAILED);
    }
    if child < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // Signals of a terminal before the fork have not reached the child.
    let mut interrupted = signals.interrupt();
    if let Some(signal) = interrupted {
        // SAFETY: a signal to a child that was not waited for.
        unsafe { libc::kill(child, signal) };
    }
    loop {
        let signal = signals.next(child);
        if INTERRUPTS.contains(&signal) && interrupted.replace(signal).is_some() {
            // SAFETY: a signal to a child that was not waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        if [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal) {
            // SAFETY: stops this process, as the terminal has stopped the child.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        let mut status = 0;
        // SAFETY: all zeros is a valid `rusage`; places for the answers.
        let (done, usage) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::wait4(child, &mut status, libc::WNOHANG, &mut usage), usage)
        };
        if done == child {
            return match interrupted {
                Some(signal) => Err(Stop::Signal(signal)),
                None => Ok((status, usage)),
            };
        }
    }
}

/// Makes a file without a name.
fn memory() -> io::Result<File> {
    Ok(rustix::fs::memfd_create(c"adma-bench", rustix::fs::MemfdFlags::CLOEXEC)?.into())
}

fn hash(file: &mut File) -> io::Result<u64> {
    file.rewind()?;
    let (mut hasher, mut part) = (DefaultHasher::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok(hasher.finish()),
            length => hasher.write(&part[..length]),
        }
    }
}

fn last_lines(file: &mut File) -> io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(io::SeekFrom::Start(length.saturating_sub(4096)))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"))
}
