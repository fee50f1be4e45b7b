//! A second process with a port: it exports what it is told to, and its parent copies.
//!
//! Orders go through a page that both have, answers come back the same way. Regions that
//! exist before the partner is made are at the same addresses in both; of ordinary memory
//! each has its own, of shared memory both have the same.

use crate::device::{Device, EINVAL, ENOMEM, EXPORT, Errno, Export, Port, call};
use crate::memory::{PAGE, Region};
use crate::process::{Child, Ended, Gate, become_victim, fork};
use crate::verdict::{End, Outcome};
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
    /// Whether a region holds what `Fill` makes.
    Expect(usize, u64),
    Unmap(usize),
    /// Other memory in its place, filled with a seed.
    Replace(usize, u64),
    /// A child of its own that ends at once.
    Fork,
    Exec,
    CloseDevice,
    ClosePort,
    KeepNothing,
    Leave,
}

pub struct Partner {
    control: Region,
    ask: Gate,
    answer: Gate,
    child: Child,
    port: OwnedFd,
}

/// Its side: carries orders out until it ends.
struct Servant<'a> {
    regions: &'a [&'a Region],
    device: Option<Device>,
    port: Option<Port>,
}

impl Servant<'_> {
    fn obey(&mut self, order: Order) -> Outcome<Result<[u64; 2], Errno>> {
        let port = self.port.as_ref().ok_or(End::from(String::from("no port")));
        let done = Ok([0, 0]);
        Ok(match order {
            Order::Export(region, at, len, flags) => {
                let mut export = Export::new(self.regions[region].address(at), len, flags);
                match call(port?.fd(), EXPORT, &mut export) {
                    Ok(()) => Ok([export.id, 0]),
                    Err(errno) => return Ok(Err(errno)),
                }
            }
            Order::Unexport(id, millis) => {
                port?.unexport(id, Duration::from_millis(millis)).map(|()| [0, 0])
            }
            Order::Fill(region, seed) => {
                self.regions[region].fill(seed);
                done
            }
            Order::Expect(region, seed) => match self.regions[region].expect(seed) {
                Ok(()) => done,
                Err(reason) => {
                    eprintln!("the partner: {reason}");
                    Err(ENOMEM)
                }
            },
            Order::Unmap(region) => {
                self.regions[region].unmap_part(0, self.regions[region].len())?;
                done
            }
            Order::Replace(region, seed) => {
                self.regions[region].replace()?;
                self.regions[region].fill(seed);
                done
            }
            Order::Fork => {
                fork(|| Ok(()))?.succeed()?;
                done
            }
            Order::Exec => return Err(become_victim("sleeper", &[])),
            Order::CloseDevice => {
                self.device = None;
                done
            }
            Order::ClosePort => {
                self.port = None;
                done
            }
            Order::KeepNothing => match &self.device {
                Some(device) => device.keep(0).map_err(|_| EINVAL).map(|()| [0, 0]),
                None => done,
            },
            Order::Leave => crate::process::leave(0),
        })
    }
}

/// Orders as words: which, and up to four numbers.
fn words_of(order: Order) -> [u64; 5] {
    match order {
        Order::Export(region, at, len, flags) => {
            [0, region as u64, at as u64, len as u64, flags.into()]
        }
        Order::Unexport(id, millis) => [1, id, millis, 0, 0],
        Order::Fill(region, seed) => [2, region as u64, seed, 0, 0],
        Order::Expect(region, seed) => [3, region as u64, seed, 0, 0],
        Order::Unmap(region) => [4, region as u64, 0, 0, 0],
        Order::Replace(region, seed) => [5, region as u64, seed, 0, 0],
        Order::Fork => [6, 0, 0, 0, 0],
        Order::Exec => [7, 0, 0, 0, 0],
        Order::CloseDevice => [8, 0, 0, 0, 0],
        Order::ClosePort => [9, 0, 0, 0, 0],
        Order::KeepNothing => [10, 0, 0, 0, 0],
        Order::Leave => [11, 0, 0, 0, 0],
    }
}

fn order_of([which, a, b, c, d]: [u64; 5]) -> Order {
    match which {
        0 => Order::Export(a as usize, b as usize, c as usize, d as u32),
        1 => Order::Unexport(a, b),
        2 => Order::Fill(a as usize, b),
        3 => Order::Expect(a as usize, b),
        4 => Order::Unmap(a as usize),
        5 => Order::Replace(a as usize, b),
        6 => Order::Fork,
        7 => Order::Exec,
        8 => Order::CloseDevice,
        9 => Order::ClosePort,
        10 => Order::KeepNothing,
        _ => Order::Leave,
    }
}

/// A descriptor of another process becomes ours too.
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
            let port = device.port();
            let Ok(port) = port else { fail!("no port") };
            control.set_word(0, port.fd() as u64);
            answer.open();
            let mut servant = Servant { regions, device: Some(device), port: Some(port) };
            loop {
                ask.pass();
                let order = order_of([0, 1, 2, 3, 4].map(|i| control.word(8 * i)));
                let (errno, [value, more]) = match servant.obey(order)? {
                    Ok(values) => (0, values),
                    Err(errno) => (errno.0, [0, 0]),
                };
                control.set_word(40, errno as u64);
                control.set_word(48, value);
                control.set_word(56, more);
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

    /// Tells it to do something and does not wait.
    pub fn tell(&self, order: Order) {
        for (i, word) in words_of(order).into_iter().enumerate() {
            self.control.set_word(8 * i, word);
        }
        self.ask.open();
    }

    pub fn told(&self) -> Result<u64, Errno> {
        self.answer.pass();
        match self.control.word(40) as i32 {
            0 => Ok(self.control.word(48)),
            errno => Err(Errno(errno)),
        }
    }

    pub fn order(&self, order: Order) -> Result<u64, Errno> {
        self.tell(order);
        self.told()
    }

    /// Insists.
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
