//! Who the other process is, by the kernel's word, and whether it is our equal: of the same
//! user, in the same user namespace, with the same capabilities, and nothing of that only for
//! the time being.
//!
//! What cannot be found out is not equal.

use super::os::{self, Fd};
use crate::os::sys;
use alloc::ffi::CString;
use alloc::format;

const CAP_SYS_PTRACE: u32 = 19;

/// What decides over a process's rights, as lines of its /proc/N/status: its users and groups
/// (real, effective, saved, and for files), and what it may and does use of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing<'a>([&'a [u8]; 4]);

impl<'a> Standing<'a> {
    /// Also of a text that ends anywhere; a program's name, which stands there too, may be any
    /// bytes but a line of its own.
    fn read(text: &'a [u8]) -> Option<Self> {
        let whole_lines = &text[..text.iter().rposition(|&byte| byte == b'\n')?];
        let line = |name: &str| {
            whole_lines.split(|&byte| byte == b'\n').find_map(|l| l.strip_prefix(name.as_bytes()))
        };
        Some(Self([line("Uid:")?, line("Gid:")?, line("CapPrm:")?, line("CapEff:")?]))
    }

    /// Whether there is no other user that it could become again.
    fn is_settled(&self) -> bool {
        self.0[..2].iter().all(|line| {
            let mut ids = line.split(u8::is_ascii_whitespace).filter(|id| !id.is_empty());
            let first = ids.next();
            first.is_some() && ids.all(|id| Some(id) == first)
        })
    }

    /// Whether the kernel lets it reach any process's memory, and does not look after us.
    fn may_trace_all(&self) -> bool {
        let set = core::str::from_utf8(self.0[2]).ok();
        let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        set.is_none_or(|set| set >> CAP_SYS_PTRACE & 1 != 0)
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
    /// that has none to give, whoever has the number now. And whether it is our equal.
    pub fn meet(pid: i32, process: Option<Fd>) -> (Self, bool) {
        let process = process.or_else(|| (pid > 0).then(|| os::watch_process(pid).ok())?);
        let mut peer = Self { process, status: None };
        let equal = peer.compare().unwrap_or(false);
        (peer, equal)
    }

    /// A descriptor that becomes readable when the process ends.
    pub fn process(&self) -> Option<i32> {
        self.process.as_ref().map(Fd::raw)
    }

    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        self.process.iter().chain(&self.status).map(Fd::raw)
    }

    /// `None`: this cannot be found out.
    fn compare(&mut self) -> Option<bool> {
        let process = self.process()?;
        let number = number_in_proc(process)?;
        let file = |name| CString::new(format!("/proc/{number}/{name}")).ok();
        let status = os::open(&file("status")?, 0).ok()?;
        let [mut mine, mut theirs] = [[0; 64]; 2];
        let mine = sys::read_link(c"/proc/thread-self/ns/user", &mut mine)?;
        let same = sys::read_link(&file("ns/user")?, &mut theirs)? == mine;
        let (equal, may_trace_all) = compare_with(&status)?;
        self.status = Some(status).filter(|_| may_trace_all);
        // Alive now, so the number was its own all the time.
        Some(equal && same && os::poll_few([(process, libc::POLLIN)], 0) == [0])
    }

    /// Whether it still is: to be asked now and then. Where the kernel asks at every call, it is
    /// left to that.
    pub fn is_still_equal(&self) -> bool {
        let Some(status) = &self.status else { return true };
        compare_with(status).is_some_and(|(equal, _)| equal)
    }
}

/// Whether the thread that calls and another process have the same rights, and whether that thread
/// may trace everybody.
fn compare_with(status: &Fd) -> Option<(bool, bool)> {
    let [mut mine, mut theirs] = [[0; STATUS]; 2];
    let mine = Standing::read(sys::read_file(c"/proc/thread-self/status", &mut mine)?)?;
    let theirs = os::read_again(status, &mut theirs).and_then(Standing::read);
    Some((theirs == Some(mine) && mine.is_settled(), mine.may_trace_all()))
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
        let text = "Name:\tUid: \u{fffd}\nUid:\t1\t2\t3\t4\nGid:\t5\t5\t5\t5\nCapInh:\t0\n\
                    CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000010\n";
        let standing = Standing::read(text.as_bytes()).unwrap();
        let lines = ["\t1\t2\t3\t4", "\t5\t5\t5\t5", "\t000001ffffffffff", "\t0000000000000010"];
        assert_eq!(standing.0, lines.map(str::as_bytes));
        assert!(!standing.is_settled() && standing.may_trace_all());
        let settled = Standing([b"\t1\t1\t1\t1", standing.0[1], b"\t0000000000000010", b""]);
        assert!(settled.is_settled() && !settled.may_trace_all());
        for cut in 0..text.len() - 1 {
            assert_eq!(Standing::read(&text.as_bytes()[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn this_process_is_its_own_equal_and_a_dead_one_is_nobodys() {
        let (own, equal) = Peer::meet(sys::getpid(), None);
        assert!(equal && own.is_still_equal());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = os::watch_process(child.id() as i32).unwrap();
        child.wait().unwrap();
        assert!(!Peer::meet(child.id() as i32, Some(process)).1);
        assert!(!Peer::meet(0, None).1);
    }
}
