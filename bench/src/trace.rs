//! Watches a child with ptrace: exact instruction counts on the real CPU where
//! no counter can be had, and the files and threads that a start-up makes.

use libc::c_long;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::ptr;

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

pub struct Startup {
    pub opened: Vec<String>,
    pub threads: usize,
}

/// The files that a program opens and the threads it makes until it ends.
pub fn startup(mut command: Command) -> Option<Startup> {
    // SAFETY: ptrace is a system call and nothing else.
    unsafe {
        command.pre_exec(|| {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            Ok(())
        });
    }
    let mut child = command.spawn().ok()?;
    let startup = watch(child.id() as i32);
    reap(&mut child);
    startup
}

fn watch(pid: i32) -> Option<Startup> {
    const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
    wait_stop(pid)?; // the exec
    // SAFETY: sets an option of the stopped child.
    unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_TRACESYSGOOD) };
    let mut startup = Startup { opened: Vec::new(), threads: 0 };
    let mut entering = true;
    loop {
        request(libc::PTRACE_SYSCALL, pid)?;
        match wait_stop(pid) {
            None => return Some(startup),
            Some(SYSCALL_STOP) => {}
            Some(_) => continue,
        }
        if !entering {
            entering = true;
            let regs = registers(pid)?;
            let done = (regs.rax as i64) >= 0;
            match regs.orig_rax as c_long {
                libc::SYS_openat if done => startup.opened.extend(string(pid, regs.rsi)),
                libc::SYS_open if done => startup.opened.extend(string(pid, regs.rdi)),
                libc::SYS_clone | libc::SYS_clone3 if done => startup.threads += 1,
                _ => {}
            }
        } else {
            entering = false;
        }
    }
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

fn registers(pid: i32) -> Option<libc::user_regs_struct> {
    // SAFETY: plain numbers, zero is valid for all.
    let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the struct of ours.
    let got = unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, ptr::from_mut(&mut regs)) };
    (got == 0).then_some(regs)
}

fn string(pid: i32, address: u64) -> Option<String> {
    let mut text = vec![0u8; 256];
    let here = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() };
    // Not beyond the page: the next one may be missing.
    let len = text.len().min(4096 - address as usize % 4096);
    let there = libc::iovec { iov_base: address as *mut _, iov_len: len };
    // SAFETY: writes at most 256 bytes into `text`.
    let got = unsafe { libc::process_vm_readv(pid, &here, 1, &there, 1, 0) };
    text.truncate(usize::try_from(got).ok()?);
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Some(String::from_utf8_lossy(&text[..end]).into_owned())
}

/// Ends the child; `wait_stop` may have taken its status already.
fn reap(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
