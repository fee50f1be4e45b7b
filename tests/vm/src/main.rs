//! adma-vm: a guest with an emulated I/OAT or DSA device, and its verdict.
//!
//! The engines (`ioat`, `dsa`, and `channel`, `faults` for both) know nothing of PCI, the PCI
//! function (`function`) nothing of QEMU; `proxy` connects them. `qemu` runs a guest, `verdicts`
//! parses its output. `orders` is the part of `faults` that programs in the guest use too.

mod channel;
mod dsa;
mod faults;
mod function;
mod ioat;
mod memory;
mod options;
mod orders;
mod proxy;
mod qemu;
mod verdicts;

use clap::Parser;
use options::Boot;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::process::ExitCode;

const TIMED_OUT: u8 = 124;

fn main() -> ExitCode {
    let boot = Boot::parse();
    let done = boot.check().map_err(io::Error::other).and_then(|()| guest(&boot));
    done.unwrap_or_else(|error| {
        eprintln!("adma-vm: {error}");
        ExitCode::FAILURE
    })
}

fn guest(boot: &Boot) -> io::Result<ExitCode> {
    let qemu::GuestRun { mut verdicts, timed_out, status } = qemu::boot(boot)?;
    if boot.shell {
        return Ok(ExitCode::SUCCESS);
    }
    if timed_out {
        let limit = boot.time_limit;
        verdicts.fail("guest", &format!("not at its end after {limit} s, see {}", boot.log));
    } else if !verdicts.ended() {
        verdicts.fail("guest", &format!("went down before its end, see {}", boot.log));
    } else if !status.success() {
        verdicts.fail("guest", &format!("QEMU ended with {status}, see {}", boot.log));
    }
    let skip_log = std::env::var_os("SKIP_LOG").filter(|path| !path.is_empty());
    if let Some(path) = &skip_log {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        file.write_all(verdicts.skips().as_bytes())?;
    }
    print!("{}", verdicts.report(skip_log.is_some()));
    Ok(match (timed_out, verdicts.passed()) {
        (true, _) => ExitCode::from(TIMED_OUT),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}
