//! Who the other process is, by the kernel's word, and whether it is our equal: of the same
//! user, in the same user namespace, with the same capabilities, and nothing of that only for
//! the time being.
//!
//! Whose words they are the kernel says of every byte, for bytes can be somebody else's: of a
//! process that was made to write them, like a `cat` of root's into a socket of ours. So all
//! greetings have one sender, from the first byte to the last, and it shows that it takes part
//! itself: the doorbell socket that came with them is a pair that it has made, which nobody can
//! write or forge for it; and the page that was asked for lies in its memory (`consent`).
//!
//! Nor must anybody else be between the two, who could listen: the socket of the greetings was
//! made by the same user, or by root. The kernel knows that (`SO_PEERCRED`) of one that was
//! accepted or connected to a listener, and of a pair, whoever has inherited or got it since. Who
//! is handed such a socket by a process of another user, which has it too, is not an equal.
//!
//! What cannot be found out is not equal.

use super::os::{self, Credentials, Fd};
use crate::os::sys;
use alloc::ffi::CString;
use alloc::format;

/// What decides over a process's rights, as its /proc/N/status tells: its users and groups (real,
/// effective, saved, and for files), and what it may and does use of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    users: [u32; 4],
    groups: [u32; 4],
    permitted: u64,
    effective: u64,
}

impl Standing {
    /// Also of a text that ends anywhere; a program's name, which stands there too, may be any
    /// bytes but a line of its own.
    fn read(text: &[u8]) -> Option<Self> {
        let whole_lines = &text[..text.iter().rposition(|&byte| byte == b'\n')?];
        let mut lines = whole_lines.split(|&byte| byte == b'\n');
        let mut line = |name: &str| {
            let rest = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
            core::str::from_utf8(rest).ok().map(str::trim)
        };
        let four = |line: &str| {
            let mut ids = line.split_whitespace().map_while(|id| id.parse().ok());
            Some([ids.next()?, ids.next()?, ids.next()?, ids.next()?])
        };
        let set = |line: &str| u64::from_str_radix(line, 16).ok();
        // In the order in which they stand there.
        Some(Self {
            users: four(line("Uid:")?)?,
            groups: four(line("Gid:")?)?,
            permitted: set(line("CapPrm:")?)?,
            effective: set(line("CapEff:")?)?,
        })
    }

    /// Of the thread that calls.
    fn own() -> Option<Self> {
        Self::read(sys::read_file(c"/proc/thread-self/status", &mut [0; STATUS])?)
    }

    fn of(status: &Fd) -> Option<Self> {
        Self::read(os::read_again(status, &mut [0; STATUS])?)
    }

    /// Whether it is that of such a process, and there is no other user that it could become again.
    fn is_settled_as(&self, Credentials { uid, gid, .. }: Credentials) -> bool {
        self.users == [uid; 4] && self.groups == [gid; 4]
    }
}

/// What an equal is known by.
#[derive(Debug)]
struct Known {
    /// Its /proc/N/status, which stands for this process and no later one.
    status: Fd,
    standing: Standing,
}

/// The other process: who has sent the first byte.
#[derive(Debug)]
pub struct Peer {
    credentials: Credentials,
    /// Becomes readable when it ends; none where the kernel gives none.
    process: Option<Fd>,
    /// What it is called under /proc, if the kernel has given that descriptor with the byte.
    number: Option<i32>,
    /// None: it is not our equal.
    known: Option<Known>,
}

impl Peer {
    pub fn new(credentials: Credentials, process: Option<Fd>) -> Self {
        let number = process.as_ref().and_then(number_in_proc);
        Self { credentials, process, number, known: None }
    }

    /// Its number; 0: it is not to be seen from here.
    pub fn pid(&self) -> i32 {
        self.credentials.pid
    }

    /// Makes sure that it has sent this, too: for numbers are its own while it is there. Who has
    /// ended meanwhile is nobody's equal, and nothing follows from it.
    pub fn check_sender(&self, credentials: Credentials, process: Option<&Fd>) -> os::Result<()> {
        let number = process.and_then(number_in_proc);
        match self.credentials == credentials {
            true if self.number == number || self.has_ended() => Ok(()),
            // For want of a descriptor, or of one to look it up.
            true if number.is_none() || self.number.is_none() => Err(libc::EMFILE),
            _ => Err(libc::EPROTO),
        }
    }

    /// Whether a socket is one of a pair that it has made.
    pub fn has_made(&self, pair: &Fd) -> bool {
        let maker = || os::process_of_maker(pair.raw()).as_ref().and_then(number_in_proc);
        os::maker_of(pair.raw()).is_ok_and(|maker| maker.pid == self.pid())
            && (self.pid() > 0 || self.number == maker())
            && os::is_nameless(pair.raw())
    }

    /// Whether it is our equal, by what it has said over a socket so far. `by_number`: the kernel
    /// gives no descriptors of processes. Then whoever has the number now is looked at, and has to
    /// say something afterwards that nobody can have said before.
    pub fn meet(&mut self, socket: i32, by_number: bool) -> bool {
        if by_number && self.pid() > 0 {
            self.process = os::watch_process(self.pid()).ok();
        }
        // Made by its user, or by who can do anything in its name.
        let near = |maker: Credentials| [self.credentials.uid, 0].contains(&maker.uid);
        self.known = if os::maker_of(socket).is_ok_and(near) { self.compare() } else { None };
        self.known.is_some()
    }

    /// `None`: it has not the same rights, or this cannot be found out.
    fn compare(&self) -> Option<Known> {
        let process = self.process.as_ref()?;
        let number = number_in_proc(process)?;
        let file = |name| CString::new(format!("/proc/{number}/{name}")).ok();
        let status = os::open(&file("status")?, 0).ok()?;
        let [mut mine, mut theirs] = [[0; 64]; 2];
        let mine = sys::read_link(c"/proc/thread-self/ns/user", &mut mine)?;
        let standing = Standing::of(&status)?;
        // After that: in a namespace of its own it could look as it likes, and never come back.
        let same = sys::read_link(&file("ns/user")?, &mut theirs)? == mine;
        let equal =
            same && standing.is_settled_as(self.credentials) && standing == Standing::own()?;
        // Alive now, so the number was its own all the time.
        (equal && !self.has_ended()).then_some(Known { status, standing })
    }

    /// Whether an equal still is: to be asked now and then. Of others there is nothing to be said.
    pub fn is_as_it_was(&self) -> bool {
        let same = |known: &Known| Standing::of(&known.status) == Some(known.standing);
        self.known.as_ref().is_none_or(same)
    }

    pub fn has_ended(&self) -> bool {
        self.process().is_some_and(|process| os::poll_few([(process, libc::POLLIN)], 0) != [0])
    }

    /// A descriptor that becomes readable when the process ends.
    pub fn process(&self) -> Option<i32> {
        self.process.as_ref().map(Fd::raw)
    }

    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        let status = self.known.iter().map(|known| &known.status);
        self.process.iter().chain(status).map(Fd::raw)
    }
}

/// As long as a status gets with some hundred groups.
const STATUS: usize = 8192;

/// What a process is called under /proc, which may be mounted for another namespace than ours.
fn number_in_proc(process: &Fd) -> Option<i32> {
    let path = CString::new(format!("/proc/self/fdinfo/{}", process.raw())).ok()?;
    let mut room = [0; 256];
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
        let (users, groups) = ([1, 2, 3, 4], [5; 4]);
        assert_eq!(standing, Standing { users, groups, permitted: 0x1ff_ffff_ffff, effective: 16 });
        let credentials = |uid, gid| Credentials { pid: 1, uid, gid };
        assert!(!standing.is_settled_as(credentials(1, 5)));
        let settled = Standing { users: [7; 4], ..standing };
        assert!(settled.is_settled_as(credentials(7, 5)));
        assert!(
            !settled.is_settled_as(credentials(7, 6)) && !settled.is_settled_as(credentials(1, 5))
        );
        for cut in 0..text.len() - 1 {
            assert_eq!(Standing::read(&text.as_bytes()[..cut]), None, "{cut}");
        }
    }

    fn own_credentials() -> Credentials {
        let [pair, _] = os::unix_pair().unwrap();
        os::maker_of(pair.raw()).unwrap()
    }

    #[test]
    fn this_process_is_its_own_equal_and_a_dead_one_is_nobodys() {
        let [pair, _other] = os::unix_pair().unwrap();
        let meets = |credentials, process, by_number| {
            let mut peer = Peer::new(credentials, process);
            peer.meet(pair.raw(), by_number) && peer.is_as_it_was() && !peer.has_ended()
        };
        let own = own_credentials();
        let process = |pid: i32| os::watch_process(pid).ok();
        assert!(meets(own, process(own.pid), false) && meets(own, None, true));
        assert!(!meets(own, None, false), "a number is nobody where there are descriptors");
        assert!(!meets(Credentials { gid: own.gid + 1, ..own }, process(own.pid), false));
        assert!(!meets(Credentials { pid: 0, ..own }, None, true));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (pid, ended) = (child.id() as i32, process(child.id() as i32));
        child.wait().unwrap();
        assert!(!meets(Credentials { pid, ..own }, ended, false));
    }

    #[test]
    fn all_that_was_sent_was_sent_by_one_and_only_pairs_are_its_own() {
        let own = own_credentials();
        let process = |pid: i32| os::watch_process(pid).ok();
        let peer = Peer::new(own, process(own.pid));
        let check = |credentials, pid| peer.check_sender(credentials, process(pid).as_ref());
        assert_eq!(check(own, own.pid), Ok(()));
        assert_eq!(check(own, -1), Err(libc::EMFILE));
        assert_eq!(check(own, 1), Err(libc::EPROTO));
        assert_eq!(check(Credentials { pid: 1, ..own }, own.pid), Err(libc::EPROTO));
        assert_eq!(check(Credentials { uid: own.uid + 1, ..own }, own.pid), Err(libc::EPROTO));

        let [pair, _other] = os::unix_pair().unwrap();
        assert!(peer.has_made(&pair));
        assert!(!Peer::new(Credentials { pid: 1, ..own }, process(1)).has_made(&pair));
        let name = format!("@adma-test-peer-{}", own.pid);
        let address = os::unix_address(name.as_bytes()).unwrap();
        let (listener, client) = (os::unix_socket().unwrap(), os::unix_socket().unwrap());
        os::bind(&listener, &address).unwrap();
        os::listen(&listener).unwrap();
        os::connect(&client, &address, sys::nanoseconds() + 1_000_000_000).unwrap();
        let accepted = os::accept(listener.raw()).unwrap();
        assert!(![listener, client, accepted].iter().any(|socket| peer.has_made(socket)));
    }
}
