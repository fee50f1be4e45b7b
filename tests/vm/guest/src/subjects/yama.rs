//! Messages between processes that Yama keeps out of each other's memory. Only root may say
//! how strict it is, and few hosts have it: this needs no engine, but a kernel of our own.

use super::traps::victim;
use crate::shim;
use crate::verdict::Outcome;
use std::fs;
use std::path::Path;

tests! {
    z_yama_keeps_processes_apart_and_messages_go_on
    z_yama_lets_in_who_is_asked_for
    z_yama_strictest_keeps_everybody_out_and_messages_go_on
}

const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Two processes of a user without rights, at one scope; they expect what is right there.
fn at(scope: u8, knobs: &[(&str, &str)]) -> Outcome {
    if !Path::new(SCOPE).exists() {
        skip!("this kernel has no Yama");
    }
    let mut command = shim::plain(victim("ipc_rights")?);
    command.args(["yama", &scope.to_string()]).envs(knobs.iter().copied());
    let done = command.output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "scope {scope}: {}: {}", done.status, said.trim());
    Ok(())
}

fn z_yama_keeps_processes_apart_and_messages_go_on() -> Outcome {
    for scope in [2, 1, 0] {
        at(scope, &[])?;
    }
    Ok(())
}

fn z_yama_lets_in_who_is_asked_for() -> Outcome {
    at(1, &[("ADMA_IPC_PTRACER", "1")])?;
    fs::write(SCOPE, "0")?;
    Ok(())
}

/// The kernel never takes 3 back: nothing comes after this.
fn z_yama_strictest_keeps_everybody_out_and_messages_go_on() -> Outcome {
    at(3, &[])
}
