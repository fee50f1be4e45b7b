//! Messages between processes that Yama keeps out of each other's memory. Only root may say
//! how strict it is, and few hosts have it: this needs no engine, but a kernel of our own.

use super::*;

tests! {
    z_yama_keeps_processes_apart_and_messages_go_on =
        [2, 1, 0].into_iter().try_for_each(|scope| at(scope, &[]));
    z_yama_lets_in_who_is_asked_for =
        at(1, &[("ADMA_IPC_PTRACER", "1")]).and_then(|()| Ok(fs::write(SCOPE, "0")?));
    // The kernel never takes 3 back: nothing comes after this.
    z_yama_strictest_keeps_everybody_out_and_messages_go_on = at(3, &[]);
}

const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Two processes of a user without rights, at one scope; they expect what is right there.
fn at(scope: u8, knobs: &[(&str, &str)]) -> Outcome {
    if !fs::exists(SCOPE)? {
        skip!("this kernel has no Yama");
    }
    let mut command = shim::host_program(&format!("ipc_rights yama {scope}"))?;
    shim::finish(command.envs(knobs.iter().copied())).map(drop)
}
