//! Scaffold of the behaviour tests: the built library, compiled programs, a run with a time limit.
//!
//! Tests run separate processes on purpose: they see the library as its users do, as a preloaded
//! shared object.
#![allow(dead_code, unused_imports, unused_macros)] // each suite uses a part

pub mod faults;
pub mod traps;

pub use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Defines one test for each row: `name: arguments;`, after the function that is called with them.
/// With `ignored`, only where tests are asked for that take long.
macro_rules! rows {
    ($judge:ident: ignored $why:literal: $($name:ident: $($argument:expr),+;)*) => { $(
        #[test]
        #[ignore = $why]
        fn $name() {
            $judge($($argument),+);
        }
    )* };
    ($judge:ident: $($name:ident: $($argument:expr),+;)*) => { $(
        #[test]
        fn $name() {
            $judge($($argument),+);
        }
    )* };
}

/// Ends a test that cannot run here; the condition has recorded why.
macro_rules! needs {
    ($there:expr) => {
        if !$there {
            return;
        }
    };
}

pub(crate) use {needs, rows};

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Returns the release library, which `tests/run` has built.
pub fn library() -> PathBuf {
    let so = target().join("release/libadma.so");
    assert!(so.exists(), "{} is missing: cargo build --release", so.display());
    so
}

/// Returns the command of the same build.
pub fn command() -> PathBuf {
    let exe = target().join("release/adma");
    assert!(exe.exists(), "{} is missing: cargo build --release --workspace", exe.display());
    exe
}

/// Compiles `tests/programs/NAME.c` once and returns the executable.
pub fn victim(name: &str) -> PathBuf {
    victim_with(name, &[])
}

/// Like `victim`, with further compiler flags; each set of flags is an executable of its own.
pub fn victim_with(name: &str, flags: &[&str]) -> PathBuf {
    let source = root().join(format!("tests/programs/{name}.c"));
    let folder = target().join("victims");
    std::fs::create_dir_all(&folder).unwrap();
    let suffix: String = flags.concat().chars().filter(char::is_ascii_alphanumeric).collect();
    let exe = folder.join(format!("{name}{suffix}"));
    let modified = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    // Any header may be included.
    let folders = ["tests/programs", "include"].map(|folder| root().join(folder));
    let headers = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap().flatten());
    let headers = headers.map(|entry| entry.path()).filter(|p| p.extension() == Some("h".as_ref()));
    let newest = headers.chain([source.clone()]).filter_map(|path| modified(&path)).max();
    if exe.exists() && modified(&exe) >= newest {
        return exe;
    }
    // Tests run in parallel, so it is built elsewhere and then renamed.
    let fresh = folder.join(format!("{name}{suffix}.{}.{:?}", std::process::id(), Instant::now()));
    let done = Command::new("gcc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-pthread", "-o"])
        .arg(&fresh)
        .arg(&source)
        .args(flags)
        .args(["-ldl", "-lm"])
        .output()
        .expect("gcc");
    assert!(done.status.success(), "{name}.c: {}", String::from_utf8_lossy(&done.stderr));
    std::fs::rename(&fresh, &exe).unwrap();
    exe
}

/// Returns compiler flags that link a program with the library. DT_RPATH precedes LD_LIBRARY_PATH,
/// which cargo points at target/debug, where a plain `cargo build` has left another library.
pub fn link_flags() -> [String; 4] {
    let folder = library().parent().unwrap().display().to_string();
    let rpath = format!("-Wl,-rpath,{folder}");
    [format!("-L{folder}"), "-ladma".into(), "-Wl,--disable-new-dtags".into(), rpath]
}

/// Returns a command that runs `program` under the library, with no ADMA_ knob of ours inherited.
pub fn preloaded(program: impl AsRef<OsStr>) -> Command {
    let mut command = plain(program);
    command.env("LD_PRELOAD", library());
    command
}

/// Returns a command that runs `program` without the library.
pub fn plain(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ADMA_") || name == "LD_PRELOAD" {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs to the end, or fails after five minutes: the limit turns a hang into a failure, on a machine
/// of any load.
pub fn finish(command: &mut Command) -> Output {
    finish_within(command, Duration::from_secs(300))
}

/// Like `finish`; also fails if a process left behind holds its output open.
pub fn finish_within(command: &mut Command, limit: Duration) -> Output {
    let limit = limit * slower();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id() as i32;
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    ended.recv_timeout(limit).unwrap_or_else(|_| {
        // SAFETY: a signal to a child that no thread has waited for, or that has ended.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let said = ended.recv_timeout(Duration::from_secs(10)).ok();
        let said = said.map(|done| text(&done.stdout) + &text(&done.stderr));
        panic!("{command:?} or a child of it still ran after {limit:?}: {said:?}");
    })
}

/// Returns what multiplies limits of time: TEST_SLOWER, in emulated guests.
pub fn slower() -> u32 {
    std::env::var("TEST_SLOWER").map_or(1, |factor| factor.parse().unwrap())
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes a script through another process: children of other tests would inherit files that this
/// process has open for writing, and those cannot be executed ("Text file busy").
pub fn executable(path: &Path, contents: &str) {
    let mut shell = plain("sh");
    shell.args(["-c", "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"", "sh"]);
    succeed(shell.arg(path).arg(contents));
}

/// Copies a program that is to be executed there; by another process, like [`executable`].
pub fn copy_program(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    succeed(plain("cp").arg(from).arg(to));
}

/// Runs and checks for exit status 0; returns standard output and standard error as text.
pub fn succeed(command: &mut Command) -> (String, String) {
    let done = finish(command);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(
        done.status.success(),
        "{command:?}: {} (signal {:?})\n{out}{err}",
        done.status,
        done.status.signal()
    );
    (out, err)
}

/// Runs under the library with JSON statistics and returns them, one value per reporting process.
pub fn statistics(command: &mut Command) -> Vec<Value> {
    let folder = scratch("stats");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("%p.json"));
    succeed(command);
    let all = reports_in(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
    all
}

/// Returns the JSON reports in a folder, one for each process.
pub fn reports_in(folder: &Path) -> Vec<Value> {
    let report = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    std::fs::read_dir(folder).unwrap().map(report).collect()
}

/// Returns a victim under a fixed threshold, with channels even on a small machine.
pub fn fixed(name: &str, arguments: &str) -> Command {
    let mut command = preloaded(victim(name));
    command.args(arguments.split_whitespace());
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
    command
}

/// Returns the statistics of a program that is one process.
pub fn only_report(command: &mut Command) -> Value {
    let mut all = statistics(command);
    assert_eq!(all.len(), 1, "{command:?}: one process, one report");
    all.remove(0)
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

/// Returns whether a program is installed.
pub fn found(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

pub fn is_root() -> bool {
    succeed(plain("id").arg("-u")).0.trim() == "0"
}

/// Exit status of a program whose subject cannot be shown on this machine.
pub const CANNOT_BE_SHOWN: i32 = 77;

/// Runs to exit status 0; `None`: skipped, because the program reports that it cannot run here.
pub fn shown(command: &mut Command) -> Option<Output> {
    let done = finish(command);
    let reason = text(&done.stderr);
    if done.status.code() == Some(CANNOT_BE_SHOWN) {
        skip_this(reason.trim());
        return None;
    }
    assert!(done.status.success(), "{command:?}: {}\n{}{reason}", done.status, text(&done.stdout));
    Some(done)
}

/// Makes a fresh folder under target/.
pub fn scratch(purpose: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = target().join(format!("scratch/{purpose}-{}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A fresh folder under target/, removed at the end of the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(purpose: &str) -> Self {
        Self(scratch(purpose))
    }

    /// Returns the names in it, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

impl std::ops::Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<OsStr> for Folder {
    fn as_ref(&self) -> &OsStr {
        self.0.as_ref()
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns whether these programs are installed; the test is skipped where one is not.
pub fn has(programs: &str) -> bool {
    let missing = programs.split(' ').find(|program| !found(program));
    missing.inspect(|name| skip_this(&format!("{name} is not installed"))).is_none()
}

/// Returns whether this is x86-64; a test of what its library is made of is skipped elsewhere.
pub fn is_x86() -> bool {
    if !cfg!(target_arch = "x86_64") {
        skip_this("it reads the library as it is on x86-64");
    }
    cfg!(target_arch = "x86_64")
}

/// Returns whether the machine has several CPUs; the test is skipped where it has not.
pub fn has_cpus() -> bool {
    let several = std::thread::available_parallelism().map_or(1, usize::from) > 1;
    if !several {
        skip_this("one CPU only");
    }
    several
}

/// Returns exit status, standard output and standard error.
pub fn ended(command: &mut Command) -> (Option<i32>, String, String) {
    let done = finish(command);
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

/// Records why the running test could not run here. Use as `return skip_this("reason")`.
pub fn skip_this(reason: &str) {
    let thread = std::thread::current();
    skip(thread.name().unwrap_or("main").rsplit("::").next().unwrap(), reason);
}

/// Records why a test could not run here, for the summary of `tests/run`.
/// Use as `return skip("name_of_test", "reason")`.
pub fn skip(test: &str, reason: &str) {
    println!("SKIP {test}: {reason}");
    if let Some(log) = std::env::var_os("SKIP_LOG") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}
