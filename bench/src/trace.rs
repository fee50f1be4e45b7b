//! Watches a child with ptrace: exact instruction counts on the real CPU where
//! no counter can be had.

use std::process::{Child, Command};

/// The child's side: stops here for its tracer.
pub fn marker() {
    // SAFETY: no memory involved; without a tracer the first call makes our
    // parent one.
    unsafe {
        libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
        libc::raise(libc::SIGSTOP);
    }
}

/// Instructions that the child executes between its two markers. A repeated
/// string instruction counts once for each step.
pub fn instructions(mut command: Command) -> Option<u64> {
    let mut child = command.spawn().ok()?;
    let count = count_between_markers(child.id() as i32);
    reap(&mut child);
    count
}

fn count_between_markers(pid: i32) -> Option<u64> {
    if wait_stop(pid)? != libc::SIGSTOP {
        return None;
    }
    for count in 0..50_000_000 {
        request(libc::PTRACE_SINGLESTEP, pid)?;
        match wait_stop(pid)? {
            libc::SIGTRAP => {}
            libc::SIGSTOP => return Some(count),
            _ => return None,
        }
    }
    None
}

/// The signal that stopped the child; none when it has ended.
fn wait_stop(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    let found = unsafe { libc::waitpid(pid, &mut status, 0) };
    (found == pid && libc::WIFSTOPPED(status)).then(|| libc::WSTOPSIG(status))
}

fn request(request: u32, pid: i32) -> Option<()> {
    // SAFETY: resumes a stopped child of ours; no memory of ours is named.
    (unsafe { libc::ptrace(request, pid, 0, 0) } == 0).then_some(())
}

/// Ends the child; `wait_stop` may have taken its status already.
fn reap(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
