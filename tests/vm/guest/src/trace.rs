//! Counts the system calls that a program makes between marks it sets itself.
//!
//! A mark is a call too, one that no program makes by chance: close of a number that no
//! descriptor has.

use crate::device::Errno;
use crate::verdict::Outcome;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const BEGIN: i32 = -0x0ad_0001;
const END: i32 = -0x0ad_0002;

pub fn mark_begin() {
    // SAFETY: no such descriptor.
    unsafe { libc::close(BEGIN) };
}

pub fn mark_end() {
    // SAFETY: no such descriptor.
    unsafe { libc::close(END) };
}

fn ptrace(request: u32, pid: i32, data: usize) -> Result<(), Errno> {
    // SAFETY: `data` is a number or the address of a structure of the caller's.
    match unsafe { libc::ptrace(request, pid, 0usize, data) } {
        -1 => Err(Errno::last()),
        _ => Ok(()),
    }
}

/// Runs a program that must end with status 0. Returns, for each pair of marks, the calls of the
/// program's first thread between them, by number.
pub fn calls_between_marks(command: &mut Command) -> Outcome<Vec<Vec<u64>>> {
    // SAFETY: one system call, which touches nothing.
    unsafe {
        command.pre_exec(|| match ptrace(libc::PTRACE_TRACEME, 0, 0) {
            Ok(()) => Ok(()),
            Err(_) => Err(io::Error::last_os_error()),
        });
    }
    let child = command.stdin(Stdio::null()).spawn()?;
    let pid = child.id() as i32;
    let (mut inside, mut at_entry) = (None, true);
    let mut found = Vec::new();
    let mut pass_on = 0;
    let mut is_new = true;
    loop {
        let mut status = 0;
        // SAFETY: `status` is ours.
        if unsafe { libc::waitpid(pid, &mut status, 0) } != pid {
            fail!("waiting for a traced program: {:?}", Errno::last());
        }
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            ensure!(status == 0, "the traced program ended with status {status:#x}");
            return Ok(found);
        }
        if is_new {
            is_new = false;
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
            if let Err(errno) = ptrace(libc::PTRACE_SETOPTIONS, pid, options as usize) {
                fail!("ptrace: {errno:?}");
            }
        } else if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 {
            if at_entry {
                let (number, first) = entered(pid)?;
                match (number, first) {
                    (libc::SYS_close, BEGIN) => inside = Some(Vec::new()),
                    (libc::SYS_close, END) => found.extend(inside.take()),
                    _ => {
                        if let Some(calls) = &mut inside {
                            calls.push(number as u64);
                        }
                    }
                }
            }
            at_entry = !at_entry;
            pass_on = 0;
        } else {
            pass_on = libc::WSTOPSIG(status) as usize;
        }
        // A process that was killed meanwhile is reaped by the next round.
        let _ = ptrace(libc::PTRACE_SYSCALL, pid, std::mem::take(&mut pass_on));
    }
}

/// Returns number and first argument of the call that is about to be made.
fn entered(pid: i32) -> Outcome<(i64, i32)> {
    // SAFETY: all zeros is a good set of registers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    match ptrace(libc::PTRACE_GETREGS, pid, std::ptr::from_mut(&mut registers) as usize) {
        Ok(()) => Ok((registers.orig_rax as i64, registers.rdi as i32)),
        Err(errno) => fail!("registers of a traced program: {errno:?}"),
    }
}
