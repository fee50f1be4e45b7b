//! A second process with a port: it exports on request, and its parent copies.
//!
//! Orders and answers go through a shared page. Regions that exist before the partner is made are
//! at equal addresses in both; ordinary memory is each process's own, shared memory is common.

use crate::device::{Device, ENOMEM, Errno, Port};
use crate::memory::{PAGE, Region};
use crate::process::{Child, Ended, Gate, become_victim, fork, leave};
use crate::verdict::Outcome;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// Region, offset, length, and rights.
    Export(usize, usize, usize, u32),
    /// Number and milliseconds.
    Unexport(u64, u64),
    Fill(usize, u64),
    /// Checks whether a region holds what `Fill` makes.
    Expect(usize, u64),
    Unmap(usize),
    /// Replaces the memory, filled with a seed.
    Replace(usize, u64),
    /// Forks a child that ends at once.
    Fork,
    Exec,
    CloseDevice,
    ClosePort,
    KeepNothing,
    Leave,
}

/// The number of an export, or 0.
type Answer = Result<u64, Errno>;

/// Offsets of an order and its answer in the page.
const ORDER: usize = 0;
const ANSWER: usize = PAGE / 2;

pub struct Partner {
    control: Region,
    ask: Gate,
    answer: Gate,
    child: Child,
    port: OwnedFd,
}

/// The partner's side: carries out orders until it ends.
struct Servant<'a> {
    regions: &'a [&'a Region],
    device: Option<Device>,
    port: Option<Port>,
}

impl Servant<'_> {
    fn port(&self) -> &Port {
        self.port.as_ref().expect("no order for a closed port")
    }

    fn obey(&mut self, order: Order) -> Outcome<Answer> {
        match order {
            Order::Export(region, at, len, flags) => {
                return Ok(self.port().export(self.regions[region].address(at), len, flags));
            }
            Order::Unexport(id, millis) => {
                return Ok(self.port().unexport(id, Duration::from_millis(millis)).map(|()| 0));
            }
            Order::Fill(region, seed) => self.regions[region].fill(seed),
            Order::Expect(region, seed) => {
                if let Err(reason) = self.regions[region].expect(seed) {
                    eprintln!("the partner: {reason}");
                    return Ok(Err(ENOMEM));
                }
            }
            Order::Unmap(region) => {
                self.regions[region].unmap_part(0, self.regions[region].len())?
            }
            Order::Replace(region, seed) => {
                self.regions[region].replace()?;
                self.regions[region].fill(seed);
            }
            Order::Fork => fork(|| Ok(()))?.succeed()?,
            Order::Exec => return Err(become_victim("sleeper", &[])),
            Order::CloseDevice => self.device = None,
            Order::ClosePort => self.port = None,
            Order::KeepNothing => self.device.as_ref().map_or(Ok(()), |device| device.keep(0))?,
            Order::Leave => leave(0),
        }
        Ok(Ok(0))
    }
}

/// Duplicates a descriptor of another process.
fn take_descriptor(pid: i32, fd: RawFd) -> Outcome<OwnedFd> {
    // SAFETY: no pointers; the descriptors are new and have no other owner.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        ensure!(process >= 0, "pidfd_open: {}", io::Error::last_os_error());
        let process = OwnedFd::from_raw_fd(process as RawFd);
        let taken = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
        ensure!(taken >= 0, "pidfd_getfd: {}", io::Error::last_os_error());
        Ok(OwnedFd::from_raw_fd(taken as RawFd))
    }
}

impl Partner {
    pub fn new(regions: &[&Region]) -> Outcome<Partner> {
        let (ask, answer) = (Gate::new()?, Gate::new()?);
        let control = Region::shared(PAGE)?;
        let child = fork(|| {
            let device = Device::open()?;
            let port = device.port()?;
            control.set_word(0, port.fd() as u64);
            answer.open();
            let mut servant = Servant { regions, device: Some(device), port: Some(port) };
            loop {
                ask.pass();
                // SAFETY: `tell` has put it there, in the same program.
                let order = unsafe { control.load(ORDER) };
                control.store::<Answer>(ANSWER, servant.obey(order)?);
                answer.open();
            }
        })?;
        answer.pass();
        let port = take_descriptor(child.pid(), control.word(0) as RawFd)?;
        Ok(Partner { control, ask, answer, child, port })
    }

    pub fn port(&self) -> RawFd {
        self.port.as_raw_fd()
    }

    /// Sends an order and does not wait.
    pub fn tell(&self, order: Order) {
        self.control.store(ORDER, order);
        self.ask.open();
    }

    pub fn order(&self, order: Order) -> Answer {
        self.tell(order);
        self.answer.pass();
        // SAFETY: the partner has put it there, in the same program.
        unsafe { self.control.load(ANSWER) }
    }

    /// Sends an order, which must succeed.
    pub fn must(&self, order: Order) -> Outcome<u64> {
        match self.order(order) {
            Ok(value) => Ok(value),
            Err(errno) => fail!("{order:x?} of the partner: {errno:?}"),
        }
    }

    pub fn kill(&mut self) -> Ended {
        self.child.kill(libc::SIGKILL);
        self.wait()
    }

    pub fn wait(&mut self) -> Ended {
        self.child.wait()
    }
}
