//! One run of one job: time, CPU time, memory, and copies by path.

use super::jobs::{Job, UnderTest};
use super::memory::{Peak, Watch};
use super::needs::Place;
use super::statistics::Copies;
use crate::measure::now;
use crate::spawn;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Time limit, ten times what any job takes.
const LIMIT: Duration = Duration::from_secs(180);

/// Exit status of a job that cannot run here.
const SKIPPED: i32 = 77;

/// Preloaded library and knobs.
#[derive(Clone, Default)]
pub struct Surroundings<'a> {
    pub preload: Option<&'a str>,
    pub knobs: Vec<(&'a str, &'a str)>,
    /// Set to compare results; such a run is not timed.
    pub check: bool,
    /// Set to read how much memory all processes have; such a run is not timed.
    pub watch: bool,
}

/// Variable that has a job copy with threads of its own, if it can.
pub const OWN_THREADS: &str = "BENCH_THREADS";

pub struct Measured {
    /// Seconds from start to end, as seen from outside.
    pub whole: f64,
    /// Seconds of the working part, as the job reports them.
    pub work: f64,
    /// Seconds of CPU time, user and system, of all its processes.
    pub cpu: f64,
    /// Most resident memory of any of these processes, in MiB.
    pub rss: f64,
    /// Memory of all together, if it was watched.
    pub peak: Peak,
    pub copies: Copies,
}

pub enum Failure {
    Skipped(String),
    Failed(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Failed(error.to_string())
    }
}

/// A job that can run.
pub struct Run<'a> {
    pub job: &'a Job,
    pub place: &'a Place,
    /// Interpreter of its script.
    pub interpreter: &'a str,
    pub quick: bool,
}

pub fn once(run: &Run<'_>, around: &Surroundings<'_>) -> Result<Measured, Failure> {
    let reports = run.place.folder.join("reports");
    empty_for_all_users(&reports)?;
    let stderr = run.place.folder.join("stderr");
    let mut command = command(run, around, &reports);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&stderr)?);

    let start = now();
    let mut child = command.spawn()?;
    let watch = around.watch.then(|| Watch::start(child.id()));
    let output = output(&mut child);
    let peak = watch.map(Watch::stop).unwrap_or_default();
    let (status, cpu, rss) = wait(&child)?;
    let whole = (now() - start) as f64 / 1e9;

    let last_words = || {
        let text = fs::read_to_string(&stderr).unwrap_or_default();
        text.trim_end().lines().next_back().unwrap_or("no message").to_string()
    };
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == SKIPPED {
        return Err(Failure::Skipped(last_words()));
    }
    let Some(output) = output else {
        return Err(Failure::Failed(format!("no end after {} s", LIMIT.as_secs())));
    };
    if status != 0 {
        return Err(Failure::Failed(last_words()));
    }
    let work = output.lines().find_map(|line| line.strip_prefix("work ")?.trim().parse().ok());
    let work = work.ok_or(Failure::Failed("it does not tell its time".into()))?;
    Ok(Measured { whole, work, cpu, rss, peak, copies: Copies::read(&reports)? })
}

fn command(run: &Run<'_>, around: &Surroundings<'_>, reports: &Path) -> Command {
    let Run { job, place, interpreter, quick } = run;
    let count = job.count(*quick).to_string();
    let itself = around.preload.filter(|_| job.under_test == UnderTest::Job);
    let (script, name) = job.script;
    let mut command = if script.is_empty() {
        let mut command = spawn::itself(name, itself);
        command.args(["--handler", "--", &count]);
        command
    } else {
        let mut command = spawn::command(interpreter, itself);
        command.arg(place.scripts.join(script)).args([name, &count]);
        command
    };
    if let Some(lib) = around.preload.filter(|_| job.under_test == UnderTest::Servers) {
        command.env("BENCH_PRELOAD", lib);
    }
    if around.check {
        command.env("BENCH_CHECK", "1");
    }
    command.env_remove(OWN_THREADS).env("BENCH_FOLDER", &place.folder);
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", reports.join("%p.json"));
    command.envs(around.knobs.iter().copied());
    command
}

/// Makes an empty folder that servers of other users can write to.
fn empty_for_all_users(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir(folder)?,
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o1777))
}

/// Returns all output; `None` if it had to be killed.
fn output(child: &mut Child) -> Option<String> {
    let mut stdout = child.stdout.take()?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stdout.read_to_string(&mut text);
        let _ = send.send(text);
    });
    let text = receive.recv_timeout(LIMIT).ok();
    if text.is_none() {
        let _ = child.kill();
    }
    text
}

/// Returns its status, and of it and of all children that it has waited for the CPU time and the most
/// resident memory that one of them had, in MiB.
fn wait(child: &Child) -> io::Result<(i32, f64, f64)> {
    let mut status = 0;
    // SAFETY: zeros are a good rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both are ours; the child has not been waited for yet.
        let pid = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
        if pid >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    Ok((status, cpu, usage.ru_maxrss as f64 / 1024.0)) // which Linux gives in KiB
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_what_a_job_starts_is_counted() {
        let loops = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let mut child = Command::new("sh")
            .args(["-c", &format!("sh -c '{loops}'; echo work 1; exit 3")])
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        assert_eq!(output(&mut child).as_deref(), Some("work 1\n"));
        let (status, cpu, rss) = wait(&child).expect("it ends");
        assert_eq!(libc::WEXITSTATUS(status), 3);
        assert!(cpu > 0.02, "{cpu} s are a shell that does nothing");
        assert!((0.5..500.0).contains(&rss), "{rss} MiB are no shell");
    }
}
