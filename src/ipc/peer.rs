//! Who the other process is, by the kernel's word, and whether it is our equal: of the same
//! user, in the same user namespace, with the same capabilities, and nothing of that only for
//! the time being.
//!
//! What cannot be found out is not equal.

use super::os::{self, Fd};
use crate::os::sys;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;

/// Who has it may reach any process's memory: the kernel does not look after us then.
const CAP_SYS_PTRACE: u32 = 19;

/// What decides over a process's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    /// Real, effective, saved, and for files.
    users: [u32; 4],
    groups: [u32; 4],
    permitted: u64,
    effective: u64,
}

impl Standing {
    /// Out of the text of /proc/N/status; a program's name, which stands there too, may be any
    /// bytes.
    fn read(text: &[u8]) -> Option<Self> {
        let text = &*String::from_utf8_lossy(text);
        fn four(rest: &str) -> Option<[u32; 4]> {
            let mut numbers = rest.split_ascii_whitespace().map(str::parse);
            let mut next = || numbers.next()?.ok();
            Some([next()?, next()?, next()?, next()?])
        }
        let whole_lines = &text[..text.rfind('\n')?];
        let field = |name: &str| whole_lines.lines().find_map(|line| line.strip_prefix(name));
        let set = |name| u64::from_str_radix(field(name)?.trim(), 16).ok();
        Some(Self {
            users: four(field("Uid:")?)?,
            groups: four(field("Gid:")?)?,
            permitted: set("CapPrm:")?,
            effective: set("CapEff:")?,
        })
    }

    /// Whether there is no other user that it could become again.
    fn is_settled(&self) -> bool {
        let alike = |ids: [u32; 4]| ids.iter().all(|id| *id == ids[0]);
        alike(self.users) && alike(self.groups)
    }
}

/// The other process.
#[derive(Debug)]
pub struct Peer {
    /// Becomes readable when it ends; none where the kernel gives none.
    process: Option<Fd>,
    /// Its /proc/N/status, which stands for this process and no later one: kept where the kernel
    /// would let us reach it whatever becomes of it.
    status: Option<Fd>,
}

impl Peer {
    /// Of a process that has just sent something: with a descriptor from the kernel, or, where
    /// that has none to give, whoever has the number now.
    pub fn new(pid: i32, process: Option<Fd>) -> Self {
        let process = process.or_else(|| (pid > 0).then(|| os::watch_process(pid).ok())?);
        Self { process, status: None }
    }

    /// A descriptor that becomes readable when the process ends.
    pub fn process(&self) -> Option<i32> {
        self.process.as_ref().map(Fd::raw)
    }

    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        self.process.iter().chain(&self.status).map(Fd::raw)
    }

    /// Looks once whether it is our equal; `None`: it is not.
    pub fn meet(&mut self) -> Option<()> {
        let process = self.process()?;
        let number = number_in_proc(process)?;
        let file = |name| CString::new(format!("/proc/{number}/{name}")).ok();
        let status = os::open(&file("status")?, 0).ok()?;
        let [mut mine, mut theirs] = [[0; 64]; 2];
        let mine = sys::read_link(c"/proc/thread-self/ns/user", &mut mine)?;
        let same = sys::read_link(&file("ns/user")?, &mut theirs)? == mine;
        let ours = own_standing()?;
        let equal = same && is_equal(&ours, &status);
        if ours.permitted >> CAP_SYS_PTRACE & 1 != 0 {
            self.status = Some(status);
        }
        // Alive now, so the number was its own all the time.
        (equal && os::poll([(process, libc::POLLIN)], 0) == [0]).then_some(())
    }

    /// Whether it still is: to be asked now and then. Where the kernel asks at every call, it is
    /// left to that.
    pub fn is_still_equal(&self) -> bool {
        let Some(status) = &self.status else { return true };
        own_standing().is_some_and(|ours| is_equal(&ours, status))
    }
}

fn is_equal(ours: &Standing, status: &Fd) -> bool {
    let mut room = [0; STATUS];
    let theirs = os::read_again(status, &mut room).and_then(Standing::read);
    theirs.is_some_and(|theirs| theirs == *ours && ours.is_settled())
}

/// Of the thread that calls.
fn own_standing() -> Option<Standing> {
    let mut room = [0; STATUS];
    sys::read_file(c"/proc/thread-self/status", &mut room).and_then(Standing::read)
}

/// As long as a status gets with some hundred groups.
const STATUS: usize = 8192;

/// What a process is called under /proc, which may be mounted for another namespace than ours.
fn number_in_proc(process: i32) -> Option<i32> {
    let (mut room, path) = ([0; 256], CString::new(format!("/proc/self/fdinfo/{process}")).ok()?);
    let text = core::str::from_utf8(sys::read_file(&path, &mut room)?).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    number.trim().parse().ok().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standing_is_read_and_unsettled_users_are_seen() {
        let text = "Name:\tUid: x\nUid:\t1\t2\t3\t4\nGid:\t5\t5\t5\t5\nCapInh:\t0\n\
                    CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000010\n";
        let standing = Standing::read(text.as_bytes()).unwrap();
        assert_eq!((standing.users, standing.groups), ([1, 2, 3, 4], [5; 4]));
        assert_eq!((standing.permitted, standing.effective), (0x1ff_ffff_ffff, 16));
        assert!(!standing.is_settled());
        assert!(Standing { users: [1; 4], ..standing }.is_settled());
        for cut in 0..text.len() - 1 {
            assert_eq!(Standing::read(&text.as_bytes()[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn this_process_is_its_own_equal_and_a_dead_one_is_nobodys() {
        let mut own = Peer::new(sys::getpid(), None);
        assert!(own.meet().is_some() && own.is_still_equal());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let mut other = Peer::new(child.id() as i32, None);
        child.wait().unwrap();
        assert!(other.meet().is_none());
        assert!(Peer::new(0, None).meet().is_none());
    }
}
