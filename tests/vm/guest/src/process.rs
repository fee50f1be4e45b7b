//! Children, signals, identities.

use crate::verdict::{End, Outcome, tell};
use std::io::{self, BufRead};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Removes Rust's own handlers: a fault kills, and the module sees no handler.
pub fn default_signals() {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGPIPE] {
        on_signal(signal, libc::SIG_DFL);
    }
}

/// Sets an action: `reaction` is SIG_DFL, SIG_IGN or the address of an `extern "C" fn(i32)`.
pub fn on_signal(signal: i32, reaction: usize) {
    // SAFETY: all zeros is a good sigaction; no SA_RESTART, so that calls are interrupted.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = reaction;
    // SAFETY: handlers given here do nothing.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

/// A handler that does nothing.
pub extern "C" fn nothing(_signal: i32) {}

pub fn die_after(limit: Duration) {
    // SAFETY: no pointers.
    unsafe { libc::alarm(limit.as_secs() as u32) };
}

/// Returns the CPU time of this thread, user and kernel.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a structure of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn leave(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ended {
    Exited(i32),
    Killed(i32),
}

/// A child process; it does not outlive its owner.
pub struct Child {
    pid: i32,
    ended: Option<Ended>,
}

/// Runs something in a child, which prints its own reason when it fails.
pub fn fork(run: impl FnOnce() -> Outcome) -> Outcome<Child> {
    // SAFETY: the child uses what fork makes usable: its own thread, files and memory.
    match unsafe { libc::fork() } {
        -1 => fail!("fork: {}", io::Error::last_os_error()),
        0 => {
            // SAFETY: no pointers. A child does not outlive its test.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            leave(tell(run()))
        }
        pid => Ok(Child { pid, ended: None }),
    }
}

/// Has a program killed when the thread that starts it ends.
pub fn die_with_parent(command: &mut Command) {
    let ask = || {
        // SAFETY: no pointers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: between fork and exec it only makes a system call.
    unsafe { command.pre_exec(ask) };
}

/// Runs something in a child, which must succeed.
pub fn in_child(run: impl FnOnce() -> Outcome) -> Outcome {
    fork(run)?.succeed()
}

/// Runs something in several threads at once, each of which must succeed.
pub fn in_threads(count: usize, run: impl Fn(usize) -> Outcome + Sync) -> Outcome {
    std::thread::scope(|scope| {
        let start = |number| {
            scope.spawn({
                let run = &run;
                move || run(number)
            })
        };
        let all: Vec<_> = (0..count).map(start).collect();
        all.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// Runs something in a child until it ends in any way. Returns the last line that it wrote to
/// standard error as well.
pub fn confined(run: impl FnOnce() -> i32) -> (Ended, String) {
    let Ok((reader, writer)) = io::pipe() else { return (Ended::Exited(1), "no pipe".into()) };
    // SAFETY: as in `fork`; the child leaves by exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: an open descriptor becomes standard error.
        unsafe { libc::dup2(writer.as_raw_fd(), libc::STDERR_FILENO) };
        drop(writer);
        std::process::exit(run());
    }
    drop(writer);
    let mut child = Child { pid, ended: None };
    let mut last = String::new();
    // Until no process has it open; a line that is not text is no reason.
    for line in io::BufReader::new(reader).lines().map_while(Result::ok) {
        eprintln!("{line}");
        if !line.trim().is_empty() {
            last = line;
        }
    }
    (child.wait(), last)
}

impl Child {
    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub fn kill(&self, signal: i32) {
        if self.ended.is_none() {
            // SAFETY: no pointers; the child is not reaped, so the number is still its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Checks whether it has ended, or waits for it.
    fn reap(&mut self, options: i32) -> Option<Ended> {
        while self.ended.is_none() {
            let mut status = 0;
            // SAFETY: `status` is ours.
            match unsafe { libc::waitpid(self.pid, &mut status, options) } {
                0 => break,
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => self.ended = Some(Ended::Exited(-1)),
                _ if libc::WIFEXITED(status) => {
                    self.ended = Some(Ended::Exited(libc::WEXITSTATUS(status)));
                }
                _ if libc::WIFSIGNALED(status) => {
                    self.ended = Some(Ended::Killed(libc::WTERMSIG(status)));
                }
                _ => {}
            }
        }
        self.ended
    }

    pub fn wait(&mut self) -> Ended {
        self.reap(0).expect("waitpid waits")
    }

    pub fn wait_within(&mut self, limit: Duration) -> Option<Ended> {
        let begun = Instant::now();
        loop {
            let ended = self.reap(libc::WNOHANG);
            if ended.is_some() || begun.elapsed() > limit {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Checks that it succeeded.
    pub fn succeed(mut self) -> Outcome {
        match self.wait() {
            Ended::Exited(0) => Ok(()),
            Ended::Exited(77) => Err(End::Skipped("the child says so".into())),
            // The child has printed its reason, which is the last line then.
            Ended::Exited(1) => Err(End::Failed(String::new())),
            ended => fail!("the child: {ended:?}"),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.kill(libc::SIGKILL);
            self.wait();
        }
    }
}

/// Signals the parent of a child.
pub fn signal_parent(signal: i32) {
    // SAFETY: no pointers.
    unsafe { libc::kill(libc::getppid(), signal) };
}

/// Gate that one process opens for another, once.
pub struct Gate([i32; 2]);

impl Gate {
    pub fn new() -> Outcome<Gate> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        match unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } {
            0 => Ok(Gate(ends)),
            _ => fail!("pipe: {}", io::Error::last_os_error()),
        }
    }

    pub fn open(&self) {
        // SAFETY: one byte of a constant.
        unsafe { libc::write(self.0[1], c"!".as_ptr().cast(), 1) };
    }

    pub fn pass(&self) {
        let mut byte = 0u8;
        // SAFETY: room for one byte.
        while unsafe { libc::read(self.0[0], std::ptr::from_mut(&mut byte).cast(), 1) } < 0 {}
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        for fd in self.0 {
            // SAFETY: our own descriptors.
            unsafe { libc::close(fd) };
        }
    }
}

/// Drops root for good.
pub fn become_nobody() -> Outcome {
    const NOBODY: u32 = 65534;
    // SAFETY: no pointers but an empty list.
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(NOBODY, NOBODY, NOBODY) == 0
            && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
    };
    ensure!(done, "cannot leave root: {}", io::Error::last_os_error());
    Ok(())
}

pub fn limit_locked_memory(bytes: u64) -> Outcome {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: `limit` is ours.
    let done = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
    ensure!(done == 0, "RLIMIT_MEMLOCK: {}", io::Error::last_os_error());
    Ok(())
}

/// Executes the program itself, in the role of a victim. Returns only on failure.
pub fn become_victim(role: &str, arguments: &[&str]) -> End {
    use std::os::unix::process::CommandExt;
    let mut command = std::process::Command::new("/proc/self/exe");
    End::from(command.arg("--victim").arg(role).args(arguments).exec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn children_end_as_they_should() {
        assert_eq!(fork(|| Ok(())).unwrap().wait(), Ended::Exited(0));
        assert_eq!(fork(|| fail!("on purpose")).unwrap().wait(), Ended::Exited(1));
        assert_eq!(fork(|| skip!("on purpose")).unwrap().wait(), Ended::Exited(77));
        let mut child = fork(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        })
        .unwrap();
        assert_eq!(child.wait_within(Duration::from_millis(20)), None);
        child.kill(libc::SIGKILL);
        assert_eq!(child.wait(), Ended::Killed(libc::SIGKILL));
    }

    #[test]
    fn confined_test_is_heard_and_survived() {
        let said = confined(|| {
            // Bypasses the harness, which would capture eprintln.
            let _ = io::stderr().write_all(b"first\nsecond\n\n");
            7
        });
        assert_eq!(said, (Ended::Exited(7), "second".into()));
        let died = confined(|| {
            die_after(Duration::from_secs(1));
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        assert_eq!(died, (Ended::Killed(libc::SIGALRM), String::new()));
    }
}
