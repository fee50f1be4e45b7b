//! Other processes: timed runs with and without the shim, and busy ones.

use crate::machine;
use crate::measure::now;
use crate::options::Options;
use libc::c_char;
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{fs, io, ptr};

/// A program and its arguments, ready to be started with or without a preloaded library.
pub struct Program {
    path: CString,
    args: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    pub fn new(args: &[&str], preload: Option<&str>) -> Self {
        let text = |text: String| CString::new(text).expect("no NUL in arguments");
        let mut env: Vec<CString> = std::env::vars()
            .filter(|(name, _)| name != "LD_PRELOAD")
            .map(|(name, value)| text(format!("{name}={value}")))
            .collect();
        env.extend(preload.map(|lib| text(format!("LD_PRELOAD={lib}"))));
        Program {
            path: text(args[0].into()),
            args: args.iter().map(|arg| text((*arg).into())).collect(),
            env,
        }
    }

    /// Runs it to its end by posix_spawn; returns the time in nanoseconds.
    pub fn time(&self) -> Option<u64> {
        let list = |items: &[CString]| -> Vec<*mut c_char> {
            items.iter().map(|item| item.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
        };
        let (args, env) = (list(&self.args), list(&self.env));
        let (mut pid, mut status) = (0, 0);
        let start = now();
        // SAFETY: both lists end in NULL and their strings live in `self`.
        let ended = unsafe {
            libc::posix_spawn(
                &mut pid,
                self.path.as_ptr(),
                ptr::null(),
                ptr::null(),
                args.as_ptr(),
                env.as_ptr(),
            ) == 0
                && libc::waitpid(pid, &mut status, 0) == pid
        };
        let time = now() - start;
        (ended && status == 0).then_some(time)
    }
}

/// An empty library, made by build.rs: the cost of preloading itself.
const EMPTY_LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/null.so"));

/// A library that writes down where copies are (trace.c), made by build.rs.
const TRACING_LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.so"));

/// A library for this run only.
pub struct Scratch(pub String);

impl Scratch {
    fn new(name: &str, write: impl Fn(&Path) -> io::Result<()>) -> Option<Self> {
        let path = std::env::temp_dir().join(format!("adma-{name}-{}.so", std::process::id()));
        write(&path).ok()?;
        path.to_str().map(|path| Self(path.to_owned()))
    }

    pub fn empty() -> Option<Self> {
        Self::new("empty", |path| fs::write(path, EMPTY_LIBRARY))
    }

    pub fn tracing() -> Option<Self> {
        Self::new("trace", |path| fs::write(path, TRACING_LIBRARY))
    }

    /// Copies a library, as an installation does: a linker's output through a mapping lies in the
    /// page cache page by page, and every fault then maps fewer pages.
    pub fn copy_of(name: &str, lib: &str) -> Option<Self> {
        Self::new(name, |path| fs::copy(lib, path).map(drop))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns a command without the preload of our own process, or with one.
pub fn command(program: &str, preload: Option<&str>) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_PRELOAD");
    if let Some(lib) = preload {
        command.env("LD_PRELOAD", lib);
    }
    command
}

/// Returns a command for this program in one of its inner roles.
pub fn itself(role: &str, preload: Option<&str>) -> Command {
    let program = std::env::current_exe().expect("/proc is mounted");
    let mut command = command(&program.to_string_lossy(), preload);
    command.args(["--inner", role]);
    command
}

/// Like `itself`, with the options of the caller.
pub fn again(role: &str, preload: Option<&str>, options: &Options) -> Command {
    let mut command = itself(role, preload);
    // The caller's own role is among the given options; the last one counts, unless it came behind the caller's
    // own `--`.
    let given = options.given.iter().take_while(|word| *word != "--");
    command.args(given).args(["--inner", role]);
    command
}

/// Runs `again` on these CPUs only, in a process of its own that prints for the caller.
pub fn on_cpus(role: &str, options: &Options, cpus: &[usize], rest: &[&str]) {
    let mut command = again(role, options.library(), options);
    command.arg("--").args(rest);
    let cpus = cpus.to_vec();
    // SAFETY: `bind` is async-signal-safe; the closure has the numbers.
    unsafe { command.pre_exec(move || machine::bind(0, &cpus)) };
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => println!("ended early: {status}"),
        Err(error) => println!("skipped: {error}"),
    }
}

/// A process that is killed when this is dropped.
pub struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that answers each line of its input with a line.
pub struct Server {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Killed,
}

impl Server {
    pub fn start(command: &mut Command) -> Option<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (orders, answers) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        Some(Server { orders, answers, _process: Killed(child) })
    }

    pub fn ask(&mut self, order: &str) -> io::Result<String> {
        self.tell(order)?;
        self.answer()
    }

    pub fn tell(&mut self, order: &str) -> io::Result<()> {
        writeln!(self.orders, "{order}")
    }

    pub fn answer(&mut self) -> io::Result<String> {
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }
}

/// Processes that keep CPUs busy at ordinary priority, until dropped.
pub fn hogs(count: usize) -> Vec<Killed> {
    let hog = |_| {
        let mut command = itself("hog", None);
        command.stdout(Stdio::null());
        // SAFETY: prctl is async-signal-safe; the hog dies with us.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        Killed(command.spawn().expect("own program starts"))
    };
    let hogs = (0..count).map(hog).collect();
    if count > 0 {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    hogs
}
