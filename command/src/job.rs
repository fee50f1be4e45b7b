//! The program as a child of this process, which behaves as if it were the program.
//!
//! Both are in one process group, so a terminal's signals reach both. This process takes none of
//! them: it waits until the program has done something, and then does the same.
//!
//! ```text
//! the program stops          this process stops: a shell that waits for it gets its terminal back
//!                            when the program has let go of that, not before
//! this process is let go on  so is the program, where it was not meant by that signal itself
//! a signal is sent to this   it is sent on to the program; what a terminal sends to the group the
//!   process                  program has got already
//! the program ends           this process ends so, by the same status or the same signal
//! ```
//!
//! # Why no process stays stopped
//!
//! Stop signals stay blocked here: one that acted by itself, just when this process has looked at
//! the program, would be followed by our own stop behind the continuation, and nothing would undo
//! that. `SIGSTOP` acts where it is sent and nowhere else. A shell lets the group go on only after
//! it has seen this process stopped, and the kernel reaches the youngest of a group first: when
//! this process goes on, the program does already, or was not meant.

use std::fmt::{Display, Formatter, Result as Written};
use std::io::Error;
use std::time::{Duration, Instant};

/// Ways in which the program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Signal(i32),
}

impl End {
    /// Decodes a status of `wait`.
    pub fn of(status: i32) -> Self {
        if libc::WIFEXITED(status) {
            End::Exit(libc::WEXITSTATUS(status))
        } else {
            End::Signal(libc::WTERMSIG(status))
        }
    }
}

/// `exit 3`, `killed by SIGTERM`.
impl Display for End {
    fn fmt(&self, out: &mut Formatter<'_>) -> Written {
        match self {
            End::Exit(status) => write!(out, "exit {status}"),
            End::Signal(signal) => match SIGNALS.get(*signal as usize) {
                Some(name) if !name.is_empty() => write!(out, "killed by SIG{name}"),
                _ => write!(out, "killed by signal {signal}"),
            },
        }
    }
}

const SIGNALS: [&str; 32] = [
    "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Signals of this process as they were found, and those that are waited for instead of taken.
pub struct Signals {
    mask: libc::sigset_t,
    ignores_children: bool,
    waited_for: libc::sigset_t,
}

/// Signals that are not waited for: faults of our own raise them.
const FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
/// Signals that are waited for even if ignored: they show what the program and its terminal do.
const JOB_CONTROL: [i32; 5] =
    [libc::SIGCHLD, libc::SIGCONT, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Signals that ask a process to end.
pub const INTERRUPTS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

impl Signals {
    /// Blocks signals: from now on they are pending until `next` or `wait_for` takes them.
    pub fn held() -> Self {
        // SAFETY: sets of this function's own, filled before they are read; asking for the action
        // of a signal changes nothing.
        unsafe {
            let mut waited_for = std::mem::zeroed();
            libc::sigemptyset(&mut waited_for);
            for signal in (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)) {
                // Signals ignored from the start stay ignored, as nohup needs it.
                if action(signal) != libc::SIG_IGN || JOB_CONTROL.contains(&signal) {
                    libc::sigaddset(&mut waited_for, signal);
                }
            }
            let ignores_children = action(libc::SIGCHLD) == libc::SIG_IGN;
            if ignores_children {
                // Otherwise there would be nothing to wait for.
                libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            }
            let mut mask = std::mem::zeroed();
            libc::sigprocmask(libc::SIG_BLOCK, &waited_for, &mut mask);
            Self { mask, ignores_children, waited_for }
        }
    }

    /// Restores signals for the program, as if we had not been there.
    pub fn as_found(&self) {
        // SAFETY: restores what was there.
        unsafe {
            if self.ignores_children {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
    }

    /// Follows the program until it has ended. Meanwhile calls `look` now and then; it returns the time
    /// until the next call.
    pub fn wait_for(&self, child: i32, mut look: impl FnMut() -> Duration) -> End {
        let mut program = Program { child, is_stopped: false };
        let mut next = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next {
                next = now + look();
            }
            let Some(signal) = self.next_within(child, next.saturating_duration_since(now)) else {
                continue;
            };
            if let Some(end) = program.follow(signal == libc::SIGCONT) {
                return end;
            }
        }
    }

    /// Waits for a signal, and passes it on to the child if it was meant for that.
    pub fn next(&self, child: i32) -> i32 {
        loop {
            if let Some(signal) = self.next_within(child, Duration::from_secs(3600)) {
                return signal;
            }
        }
    }

    /// Like `next`, for a time; `None`: no signal came.
    fn next_within(&self, child: i32, limit: Duration) -> Option<i32> {
        let limit = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: a set, a place for the answer, and a time.
        let (signal, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::sigtimedwait(&self.waited_for, &mut info, &limit), info)
        };
        let is_late = signal < 0 && Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
        if signal > 0 && ![libc::SIGCHLD, libc::SIGCONT].contains(&signal) {
            pass_on(signal, &info, child);
        }
        (!is_late).then_some(signal)
    }

    /// Takes a pending signal that asks this process to end, if it came while there was no child.
    pub fn interrupt(&self) -> Option<i32> {
        INTERRUPTS.into_iter().find(|signal| has_come(*signal))
    }

    /// Lets SIGTTOU act, by which a terminal stops background processes that write.
    pub fn before_writing(&self) {
        let_act(libc::SIGTTOU);
    }

    /// Ends this process as the program has ended.
    pub fn end_as(&self, end: End) -> ! {
        let signal = match end {
            End::Exit(status) => std::process::exit(status),
            End::Signal(signal) => signal,
        };
        // SAFETY: this process's own signals; no second core is wanted.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        let_act(signal);
        std::process::exit(128 + signal)
    }
}

/// State of the program.
struct Program {
    child: i32,
    is_stopped: bool,
}

/// Result of a look at the program.
enum News {
    None,
    StoppedOrGoesOn,
    Ended(End),
}

impl Program {
    /// Does what the program has done; `None`: the program goes on. `let_go_on`: this process was
    /// continued.
    fn follow(&mut self, mut let_go_on: bool) -> Option<End> {
        if let News::Ended(end) = self.look() {
            return Some(end);
        }
        while self.is_stopped {
            if let_go_on || has_come(libc::SIGCONT) {
                // The continuation was meant for the program.
                // SAFETY: a signal to a child that was not waited for.
                unsafe { libc::kill(self.child, libc::SIGCONT) };
                self.is_stopped = false;
                break;
            }
            // SAFETY: stops this process.
            unsafe { libc::raise(libc::SIGSTOP) };
            match self.look() {
                // The program goes on, or did and has been stopped again.
                News::StoppedOrGoesOn => {}
                News::None => let_go_on = true,
                News::Ended(end) => return Some(end),
            }
        }
        None
    }

    /// Collects all that has happened to the program since the last look.
    fn look(&mut self) -> News {
        let mut news = News::None;
        let mut status = 0;
        let which = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
        // SAFETY: a place for the answer.
        while unsafe { libc::waitpid(self.child, &mut status, which) } == self.child {
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                return News::Ended(End::of(status));
            }
            self.is_stopped = libc::WIFSTOPPED(status);
            news = News::StoppedOrGoesOn;
        }
        news
    }
}

/// Passes a signal on to the program, unless a terminal has sent it to the whole group and the
/// program is still in that.
fn pass_on(signal: i32, info: &libc::siginfo_t, child: i32) {
    let is_sent = info.si_code <= 0;
    // SAFETY: a signal that was sent has a sender; the others ask for numbers.
    let (is_its_own, has_got_it, parent) = unsafe {
        (
            is_sent && info.si_pid() == child,
            !is_sent && libc::getpgid(child) == libc::getpgrp(),
            libc::getppid(),
        )
    };
    // A program may notify its parent that it is ready, which is our parent's business. Any other
    // signal of the program went to its group, of which our parent is no member.
    let is_news = || [libc::SIGUSR1, libc::SIGUSR2].contains(&signal) || signal >= libc::SIGRTMIN();
    let to = match is_its_own {
        true if is_news() && parent > 1 => parent,
        false if !has_got_it => child,
        _ => return,
    };
    // SAFETY: a signal to another process.
    unsafe { libc::kill(to, signal) };
}

fn action(signal: i32) -> libc::sighandler_t {
    // SAFETY: a null new action only reads the old one.
    unsafe {
        let mut found: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut found);
        found.sa_sigaction
    }
}

/// Takes a pending signal; returns whether there was one.
fn has_come(signal: i32) -> bool {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a set of one signal; no details are asked for.
    unsafe { libc::sigtimedwait(&only(signal), std::ptr::null_mut(), &at_once) == signal }
}

/// Lets a pending signal act before this returns, and others like it at once.
fn let_act(signal: i32) {
    // SAFETY: this process's own signals.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &only(signal), std::ptr::null_mut()) };
}

fn only(signal: i32) -> libc::sigset_t {
    // SAFETY: a set of this function's own, emptied before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        set
    }
}
