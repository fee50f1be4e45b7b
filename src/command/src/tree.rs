//! `adma program`, with one report for the program and all its descendants.
//!
//! This process stays, as the parent of the program, until the program has ended: somebody has to
//! be there to report what processes have counted that were killed. It behaves as if it were the
//! program: same process group, so that a terminal's signals and job control reach both; signals
//! sent to this process are passed on; what stops the program stops this process; the exit status
//! is the program's, and a program that is killed by a signal takes this process along.
//!
//! Whoever wants the program to have this very process uses `--quiet` or `--each`.

use crate::live::{self, LiveProcess, State};
use crate::options;
use crate::run;
use crate::stats::live::Recorder;
use crate::stats::units::{Bytes, Time};
use crate::stats::{tables, worth};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The processes that are named.
const NAMED: usize = 3;

/// Runs the program, reports, and ends as it has ended. Returns only where no files can be kept,
/// and nothing has been done.
pub fn run(program: &Path, words: &[OsString]) {
    let Some(tree) = live::make_tree() else { return };
    options::set("ADMA_LIVE", tree.as_os_str());
    options::set("ADMA_STATS", "off".as_ref());
    let begun = Instant::now();
    let signals = Signals::held();
    // SAFETY: this process has one thread; the child only executes.
    let child = unsafe { libc::fork() };
    if child == 0 {
        signals.as_found();
        // The program does not outlive a command that is killed, as it would not without us.
        // SAFETY: changes what becomes of this process.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        run::become_program(program, words.to_vec());
    }
    if child < 0 {
        signals.as_found();
        live::remove_tree(&tree);
        return;
    }
    let end = signals.wait_for(child);
    let seconds = begun.elapsed().as_secs_f64();
    let report = report(live::in_folder(&tree, false), child, end, seconds);
    live::remove_tree(&tree);
    // One write, so that it does not mix with what others say. Nobody to tell if that fails.
    let _ = std::io::stderr().write_all(report.as_bytes());
    signals.end_as(end)
}

/// How the program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exit(i32),
    Signal(i32),
}

/// The signals of this process as they were found, and those that are waited for instead of taken.
struct Signals {
    mask: libc::sigset_t,
    ignores_children: bool,
    waited_for: libc::sigset_t,
}

/// Left to the kernel: what stops and continues this process with its group, what a fault of our
/// own raises, and what has no effect on a program that does not ask for it.
const NOT_PASSED_ON: [i32; 11] = [
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGCONT,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGCHLD,
];

impl Signals {
    fn held() -> Self {
        // SAFETY: sets of this function's own, filled before they are read; asking for the action
        // of a signal changes nothing.
        unsafe {
            let mut waited_for = std::mem::zeroed();
            libc::sigemptyset(&mut waited_for);
            for signal in (1..=libc::SIGRTMAX()).filter(|signal| !NOT_PASSED_ON.contains(signal)) {
                // What was ignored from the start stays so, as nohup wants it.
                if action(signal) != libc::SIG_IGN {
                    libc::sigaddset(&mut waited_for, signal);
                }
            }
            libc::sigaddset(&mut waited_for, libc::SIGCHLD);
            let ignores_children = action(libc::SIGCHLD) == libc::SIG_IGN;
            if ignores_children {
                // Else there would be nothing to wait for.
                libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            }
            let mut mask = std::mem::zeroed();
            libc::sigprocmask(libc::SIG_BLOCK, &waited_for, &mut mask);
            Self { mask, ignores_children, waited_for }
        }
    }

    /// For the program: as if we had not been there.
    fn as_found(&self) {
        // SAFETY: restores what was there.
        unsafe {
            if self.ignores_children {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
    }

    fn wait_for(&self, child: i32) -> End {
        loop {
            // SAFETY: a set and a place for the answer.
            let (signal, info) = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                (libc::sigwaitinfo(&self.waited_for, &mut info), info)
            };
            match signal {
                libc::SIGCHLD => {
                    if let Some(end) = look_at(child) {
                        return end;
                    }
                }
                1.. => pass_on(signal, &info, child),
                _ => {} // this process was stopped and goes on
            }
        }
    }

    /// Ends this process as the program has ended.
    fn end_as(&self, end: End) -> ! {
        let signal = match end {
            End::Exit(status) => std::process::exit(status),
            End::Signal(signal) => signal,
        };
        // SAFETY: this process's own signals; no second core is wanted.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::signal(signal, libc::SIG_DFL);
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal);
            libc::raise(signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        }
        std::process::exit(128 + signal)
    }
}

fn action(signal: i32) -> libc::sighandler_t {
    // SAFETY: a null new action only reads the old one.
    unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut found);
        found.sa_sigaction
    }
}

/// A signal for this process was meant for the program, unless a terminal or the kernel has sent
/// it to the whole group. What the program sends to its parent is for ours.
fn pass_on(signal: i32, info: &libc::siginfo_t, child: i32) {
    let is_sent = info.si_code <= 0;
    if !is_sent {
        return;
    }
    // SAFETY: a signal that was sent has a sender; the rest are numbers.
    unsafe {
        let to = if info.si_pid() == child { libc::getppid() } else { child };
        if to > 1 {
            libc::kill(to, signal);
        }
    }
}

/// What has become of the program; `None`: it goes on.
fn look_at(child: i32) -> Option<End> {
    let mut stopped = false;
    loop {
        match changed(child) {
            Some(status) if libc::WIFEXITED(status) => {
                return Some(End::Exit(libc::WEXITSTATUS(status)));
            }
            Some(status) if libc::WIFSIGNALED(status) => {
                return Some(End::Signal(libc::WTERMSIG(status)));
            }
            Some(status) if libc::WIFSTOPPED(status) => {
                // A group is stopped, and let go on, one process after the other. If that is
                // happening now we are stopped with it, or the program goes on in a moment; who
                // stopped himself behind that would not be woken by anybody.
                stopped = true;
                std::thread::sleep(Duration::from_millis(20));
            }
            Some(_) => stopped = false,
            None if stopped => {
                // It alone has stopped; the shell that waits for us is to see that. When the
                // shell lets us go on it means the program.
                // SAFETY: signals to this process and to the program.
                unsafe {
                    libc::raise(libc::SIGSTOP);
                    libc::kill(child, libc::SIGCONT);
                }
                stopped = false;
            }
            None => return None,
        }
    }
}

/// A change of the program's state that nobody has seen yet.
fn changed(child: i32) -> Option<i32> {
    let mut status = 0;
    let which = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
    // SAFETY: a place for the answer.
    (unsafe { libc::waitpid(child, &mut status, which) } == child).then_some(status)
}

/// Empty where nobody has made a large copy.
fn report(mut processes: Vec<LiveProcess>, child: i32, end: End, seconds: f64) -> String {
    let mut out = String::new();
    processes.retain(|process| process.bytes() > 0);
    processes.sort_by_key(|process| std::cmp::Reverse(process.bytes()));
    // A `String` takes everything.
    let _ = write_report(&processes, child, end, seconds, &mut out);
    out
}

fn write_report(
    processes: &[LiveProcess],
    child: i32,
    end: End,
    seconds: f64,
    out: &mut String,
) -> std::fmt::Result {
    let Some(first) = processes.first() else { return Ok(()) };
    let scale = first.scale();
    let floor = first.live.facts.floor.load(Relaxed);
    let channels = first.channel_bytes();
    let caller = first.live.facts.caller_bytes.load(Relaxed);
    let name = if first.backend() == "ioat" { "ioat" } else { "adma" };
    let mismatched: u64 = processes
        .iter()
        .map(|p| p.live.recorder.mismatched.load(Relaxed))
        .fold(0, u64::saturating_add);
    let short = |name: String| name.chars().take(20).collect::<String>();
    let rows: Vec<_> = processes
        .iter()
        .map(|process| {
            (short(process.program()), process.pid, process.bytes(), ended(process, child, end))
        })
        .collect();
    if let [(program, pid, _, how)] = &rows[..] {
        let (backend, channels) = (first.backend(), channels.len());
        let plural = if channels == 1 { "" } else { "s" };
        write!(out, "adma: {program} (pid {pid}), ")?;
        writeln!(out, "{backend}, {channels} channel{plural} beside the caller{}", unusual(how))?;
    } else {
        let time = Time((seconds * 1e9) as u64);
        writeln!(out, "adma: {} processes made large copies, within {time}", rows.len())?;
    }
    let total = Recorder::new();
    processes.iter().for_each(|process| total.absorb(&process.live.recorder));
    tables::paths(&total, out)?;
    if rows.len() == 1 {
        tables::channels(caller, name, &channels, out)?;
    }
    worth::saved(&total, scale, seconds).write(out)?;
    worth::not_helped(&total, floor, out)?;
    if mismatched > 0 {
        writeln!(out, "  VERIFY: {mismatched} copies were wrong and have been repaired")?;
    }
    if rows.len() > 1 {
        for (number, (program, pid, bytes, how)) in rows.iter().take(NAMED).enumerate() {
            let title = if number == 0 { "most by" } else { "" };
            let who = format!("{program} (pid {pid})");
            writeln!(out, "  {title:<9}{who:<34}{:>10}  {how}", Bytes(*bytes))?;
        }
        let rest = &rows[rows.len().min(NAMED)..];
        if !rest.is_empty() {
            let bytes = rest.iter().fold(0u64, |sum, row| sum.saturating_add(row.2));
            let who = format!("{} more", rest.len());
            let odd = rest.iter().filter(|row| !unusual(&row.3).is_empty()).count();
            let odd = if odd > 0 { format!("  {odd} killed or failed") } else { String::new() };
            writeln!(out, "  {:<9}{who:<34}{:>10}{odd}", "", Bytes(bytes))?;
        }
    }
    tables::sizes(&total, out)?;
    tables::percentiles(&total, scale, out)
}

/// As far as can be known: how a process has ended that is not our child only it could tell.
fn ended(process: &LiveProcess, child: i32, end: End) -> String {
    let status = |how: &str, status: Option<i32>| match status {
        Some(status) => format!("{how} {status}"),
        None => how.to_owned(),
    };
    let is_child = process.pid == child;
    match (process.state, end) {
        (State::Replaced, _) => "became another program".into(),
        (_, End::Signal(signal)) if is_child => format!("killed by signal {signal}"),
        (_, End::Exit(code)) if is_child => format!("exit {code}"),
        (State::Running, _) => "still runs".into(),
        (State::Elsewhere, _) => "not known".into(),
        (State::Exited(code), _) => status("exit", code),
        (State::Left(code), _) => status("_exit", code),
        (State::Aborted, _) => "aborted".into(),
        (State::Killed, _) => "killed".into(),
    }
}

/// The same for a heading, where a usual end is not worth a word.
fn unusual(how: &str) -> String {
    match how {
        "exit 0" | "_exit 0" | "exit" | "_exit" | "still runs" | "not known" => String::new(),
        _ if how.starts_with("became") => String::new(),
        _ => format!("; {how}"),
    }
}

/// Where this process is inside the tree of another command, that one reports.
pub fn is_inside_another() -> bool {
    std::env::var_os("ADMA_LIVE").is_some_and(|path| PathBuf::from(path).is_dir())
}
