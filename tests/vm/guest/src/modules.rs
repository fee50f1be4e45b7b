//! Unloads and loads the module, and restarts the driver beneath it.

use crate::device::{self, EAGAIN, EBUSY, EEXIST, ENOENT, Errno};
use crate::effort::{PATIENCE, eventually};
use crate::faults;
use crate::verdict::{Context, Outcome};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const NAME: &CStr = c"adma";
const PCI: &str = "/sys/bus/pci";

/// Unloads the module, unless it is in use.
pub fn unload() -> Result<(), Errno> {
    // SAFETY: a constant string.
    match unsafe { libc::syscall(libc::SYS_delete_module, NAME.as_ptr(), libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Returns a module's file, as tests/vm/run names it.
fn file(variable: &str) -> Outcome<String> {
    match std::env::var(variable).ok().filter(|path| !path.is_empty()) {
        Some(path) => Ok(path),
        None => skip!("{variable} does not say where the module lies"),
    }
}

/// Loads a module, unless it is there.
fn insert(variable: &str, parameters: &CStr) -> Outcome {
    let path = file(variable)?;
    let module = File::open(&path).context(&path)?;
    // SAFETY: an open file and a string.
    let done = unsafe {
        libc::syscall(libc::SYS_finit_module, module.as_raw_fd(), parameters.as_ptr(), 0)
    };
    ensure!(done == 0 || Errno::last() == EEXIST, "{path} does not load: {:?}", Errno::last());
    Ok(())
}

/// Loads the module again.
pub fn load() -> Outcome {
    load_with(c"")
}

/// Loads the module with parameters.
pub fn load_with(parameters: &CStr) -> Outcome {
    let always = std::env::var("GUEST_PARAMETERS").unwrap_or_default();
    let parameters = format!("{always} {}", parameters.to_string_lossy());
    insert("GUEST_MODULE", &CString::new(parameters).expect("no NUL"))?;
    let is_there = eventually(Duration::from_secs(5), || Path::new(device::PATH).exists());
    ensure!(is_there, "{} does not appear", device::PATH);
    Ok(())
}

/// Loads the client of one channel, which can also lock a page: see tests/vm/client.
pub fn load_client() -> Outcome {
    insert("GUEST_CLIENT", c"")
}

/// Unloads the module as soon as it is not in use.
pub fn take_out() -> Outcome {
    file("GUEST_MODULE")?;
    let begun = Instant::now();
    loop {
        match unload() {
            Ok(()) | Err(ENOENT) => return Ok(()),
            Err(EAGAIN | EBUSY) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(errno) => fail!("the module cannot be taken out: {errno:?}"),
        }
    }
}

/// Reloads the module, on the driver as it is.
pub fn load_again() -> Outcome {
    take_out()?;
    load()
}

/// A DSA, and where its own driver has it. idxd of 6.1 crashes by itself when the PCI function is
/// unbound while that driver has it, so this one is.
const DSA: [&str; 2] = ["/sys/bus/dsa/devices/dsa0", "/sys/bus/dsa/drivers/idxd/dsa0"];

pub fn is_bound(function: &str) -> bool {
    match Path::new(DSA[0]).exists() {
        true => Path::new(DSA[1]).exists(),
        false => Path::new(&format!("{PCI}/devices/{function}/driver")).exists(),
    }
}

/// Takes a function from its driver.
pub fn unbind(function: &str) -> Outcome {
    match Path::new(DSA[1]).exists() {
        true => fs::write("/sys/bus/dsa/drivers/idxd/unbind", "dsa0"),
        false => fs::write(format!("{PCI}/devices/{function}/driver/unbind"), function),
    }
    .context("unbind")
}

/// Gives a function to its driver, a DSA with queues.
pub fn bind(function: &str) -> Outcome {
    if !Path::new(DSA[0]).exists() {
        return fs::write(format!("{PCI}/drivers_probe"), function).context("bind");
    }
    let done = Command::new("tests/vm/configure-queues").status()?;
    ensure!(done.success(), "the queues cannot be configured: {done}");
    Ok(())
}

/// Reloads everything: no channel keeps its state.
pub fn reload() -> Outcome {
    take_out()?;
    for function in faults::functions()? {
        if is_bound(function.name()) {
            unbind(function.name())?;
        }
        bind(function.name())?;
    }
    load()
}
