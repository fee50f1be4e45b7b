//! Who the other process is, by the kernel's word, and whether it is our equal: of the same
//! user, in the same user namespace, with the same capabilities, and nothing of that only for
//! the time being.
//!
//! Whose words they are the kernel says of every byte (`SCM_PIDFD`; before Linux 6.5 its number in
//! `SCM_CREDENTIALS`, if it is there and repeats a number that was made after it was looked at),
//! for bytes can be somebody else's: of a process that was made to write them, like a `cat` of
//! root's into a socket of ours. So all greetings have one sender, from the first byte to the last,
//! and it shows that it takes part itself: the doorbell socket that came with them is a pair that it
//! has made, which nobody can write or forge for it; and the page that was asked for lies in its
//! memory (`consent`). Its rights are read in /proc, in files that are held open.
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
use core::ffi::CStr;

/// What decides over a process's rights, as its folder in /proc tells: its users and groups (real,
/// effective, saved, and for files), what it may and does use of capabilities, and where these hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    users: [u32; 4],
    groups: [u32; 4],
    permitted: u64,
    effective: u64,
    /// The name of the user namespace; `None`: it may not be looked at.
    namespace: Option<[u8; 32]>,
}

impl Standing {
    /// Of a status, which may end anywhere; a program's name, which stands there too, may be any
    /// bytes but a line of its own. With it whether the thread has ended.
    fn read(text: &[u8]) -> Option<(Self, bool)> {
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
        let ended = line("State:")?.starts_with(['Z', 'X']);
        let standing = Self {
            users: four(line("Uid:")?)?,
            groups: four(line("Gid:")?)?,
            permitted: set(line("CapPrm:")?)?,
            effective: set(line("CapEff:")?)?,
            namespace: None,
        };
        Some((standing, ended))
    }

    /// Whether it is that of such a process, and there is no other user that it could become again.
    fn is_settled_as(&self, Credentials { uid, gid, .. }: Credentials) -> bool {
        self.users == [uid; 4] && self.groups == [gid; 4]
    }
}

/// Whether a number, of ours, is that of one user, or group, alone. All that a namespace has no
/// numbers for are called alike there.
fn stands_for_one(number: u32, map: &CStr, called: &CStr) -> bool {
    let mut rooms = [[0; 64]; 2];
    let [map_room, called_room] = &mut rooms;
    let words = |text: Option<&[u8]>| {
        let text = core::str::from_utf8(text?).ok()?;
        let mut words = text.split_whitespace().map_while(|word| word.parse::<u32>().ok());
        Some([words.next(), words.next(), words.next()])
    };
    let allowed = sys::NoFilter::assumed().into();
    let all_have_numbers =
        words(sys::read_file(map, map_room, allowed)) == Some([Some(0), Some(0), Some(u32::MAX)]);
    let others = words(sys::read_file(called, called_room, allowed)).and_then(|words| words[0]);
    all_have_numbers || others.is_some_and(|others| others != number)
}

fn is_one_user(uid: u32) -> bool {
    stands_for_one(uid, c"/proc/self/uid_map", c"/proc/sys/kernel/overflowuid")
}

/// A process, or thread, in /proc: it stands for this one and no later one. Both are held open, for
/// there may be no numbers for descriptors later.
struct ProcFolder {
    folder: Fd,
    status: Fd,
}

impl ProcFolder {
    fn new(folder: Fd) -> Option<Self> {
        let status = os::open(Some(&folder), c"status", 0).ok()?;
        Some(Self { folder, status })
    }

    /// Of the thread that calls.
    fn own() -> Option<Self> {
        Self::new(os::open(None, c"/proc/thread-self", libc::O_DIRECTORY).ok()?)
    }

    fn status(&self) -> Option<(Standing, bool)> {
        Standing::read(os::read_again(&self.status, &mut [0; STATUS])?)
    }

    /// It is that of the first thread: one that changes alone shares its memory with those that do
    /// not. When the first has ended all others count, and have the same.
    fn standing(&self) -> Option<Standing> {
        let (mut standing, ended) = self.status()?;
        if ended {
            let threads = os::open(Some(&self.folder), c"task", libc::O_DIRECTORY).ok()?;
            let mut all = [None; 2];
            os::for_each_name(&threads, |name| {
                let thread = os::open(Some(&threads), name, libc::O_DIRECTORY).ok();
                // The first is there, too, as ended, and again as `..`.
                let thread = thread.and_then(Self::new).and_then(|thread| thread.status());
                if let Some((standing, false)) = thread {
                    all[usize::from(all[0].is_some_and(|first| first != standing))] =
                        Some(standing);
                }
            });
            let [Some(only), None] = all else { return None };
            standing = only;
        }
        // After that: in a namespace of its own it could look as it likes, and never come back.
        standing.namespace = os::link_in(&self.folder, c"ns/user");
        Some(standing)
    }
}

/// What an equal is known by.
struct Known {
    folder: ProcFolder,
    standing: Standing,
}

/// The other process: who has sent the first byte.
pub struct Peer {
    credentials: Credentials,
    /// Becomes readable when it ends; none where the kernel gives none.
    process: Option<Fd>,
    /// What it is known by, if the kernel has given that descriptor with the byte.
    identity: Option<Identity>,
    /// None: it is not our equal.
    known: Option<Known>,
}

impl Peer {
    pub fn new(credentials: Credentials, process: Option<Fd>) -> Self {
        let identity = process.as_ref().and_then(|process| identity(process).ok());
        Self { credentials, process, identity, known: None }
    }

    /// Its number; 0: it is not to be seen from here.
    pub fn pid(&self) -> i32 {
        self.credentials.pid
    }

    /// Makes sure that it has sent this, too: for numbers are its own while it is there. Who has
    /// ended meanwhile is nobody's equal, and nothing follows from it.
    pub fn check_sender(&self, credentials: Credentials, process: Option<&Fd>) -> os::Result<()> {
        let sender = process.and_then(|process| identity(process).ok());
        match self.credentials == credentials {
            true if self.identity == sender || self.has_ended() => Ok(()),
            // For want of a descriptor, now or before, or of one to look it up.
            true if sender.is_none() || self.identity.is_none() => Err(libc::EMFILE),
            _ => Err(libc::EPROTO),
        }
    }

    /// Makes sure that a socket is one of a pair that it has made.
    pub fn check_maker(&self, pair: &Fd) -> os::Result<()> {
        let numbered = os::maker_of(pair.raw()).is_ok_and(|maker| maker.pid == self.pid());
        if !numbered || os::are_nameless(pair.raw()) != [true; 2] {
            return Err(libc::EPROTO);
        }
        if self.identity.is_none() || self.has_ended() {
            return Ok(());
        }
        match os::process_of_maker(pair.raw()).and_then(|maker| identity(&maker)) {
            Ok(maker) if Some(maker) == self.identity => Ok(()),
            Err(errno @ (libc::EMFILE | libc::ENFILE)) => Err(errno),
            _ => Err(libc::EPROTO),
        }
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
        let number = number_in_proc(self.process.as_ref()?).ok()?;
        let path = CString::new(format!("/proc/{number}")).ok()?;
        let folder = ProcFolder::new(os::open(None, &path, libc::O_DIRECTORY).ok()?)?;
        let standing = folder.standing()?;
        let Credentials { uid, gid, .. } = self.credentials;
        let equal = standing.is_settled_as(self.credentials)
            && standing == ProcFolder::own()?.standing()?
            && standing.namespace.is_some()
            && is_one_user(uid)
            && stands_for_one(gid, c"/proc/self/gid_map", c"/proc/sys/kernel/overflowgid");
        // Alive now, so the number was its own all the time.
        (equal && !self.has_ended()).then_some(Known { folder, standing })
    }

    pub fn disown(&mut self) {
        let folder = self.known.iter_mut().map(|known| &mut known.folder);
        let in_proc = folder.flat_map(|folder| [&mut folder.folder, &mut folder.status]);
        in_proc.chain(&mut self.process).for_each(Fd::disown);
    }

    /// Whether an equal still is: to be asked now and then. Of others there is nothing to be said.
    pub fn is_as_it_was(&self) -> bool {
        self.known.as_ref().is_none_or(|Known { folder, standing }| {
            // Who keeps tracers out from now on does not show its namespace; without capabilities
            // it can do no more in one than in another.
            let hidden = Standing { namespace: None, ..*standing };
            let now = folder.standing();
            now.is_some_and(|now| now == *standing || (now == hidden && now.permitted == 0))
        })
    }

    pub fn has_ended(&self) -> bool {
        self.process().is_some_and(|process| os::poll_few([(process, libc::POLLIN)], 0) != [0])
    }

    /// A descriptor that becomes readable when the process ends.
    pub fn process(&self) -> Option<i32> {
        self.process.as_ref().map(Fd::raw)
    }
}

/// Whether descriptors are sent over a socket: not to who has come to us from another user. Those
/// that it does not take count for our user, who can send only so many. Without having `accepted`
/// it ourselves we know by our end's name; of two that have names either could be the server's.
pub fn gets_descriptors(socket: i32, accepted: bool) -> bool {
    let ours = |maker: Credentials| {
        maker.uid == 0 || (maker.uid == sys::geteuid() as u32 && is_one_user(maker.uid))
    };
    let has_come = accepted || os::are_nameless(socket) == [false, true];
    !has_come || os::maker_of(socket).ok().is_none_or(ours)
}

/// As long as a status gets with some hundred groups.
const STATUS: usize = 8192;

/// What a process is called under /proc, which may be mounted for another namespace than ours.
/// One that has ended has none.
fn number_in_proc(process: &Fd) -> os::Result<i32> {
    let path = CString::new(format!("/proc/self/fdinfo/{}", process.raw()));
    let (file, mut room) = (os::open(None, &path.map_err(|_| libc::EINVAL)?, 0)?, [0; 256]);
    let text = os::read_again(&file, &mut room).and_then(|text| core::str::from_utf8(text).ok());
    let number = text.and_then(|text| text.lines().find_map(|line| line.strip_prefix("Pid:")));
    let number = number.and_then(|number| number.trim().parse().ok());
    number.filter(|number| *number > 0).ok_or(libc::ESRCH)
}

/// What a process is called under /proc, and its file: since Linux 6.9 each process has one, whoever
/// gets its number later.
type Identity = (i32, Option<(u64, u64)>);

fn identity(process: &Fd) -> os::Result<Identity> {
    number_in_proc(process).map(|number| (number, sys::file_of(process.raw())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standing_is_read_and_unsettled_users_are_seen() {
        let text = "Name:\tUid: \u{fffd}\nState:\tS (sleeping)\nUid:\t1\t2\t3\t4\nGid:\t5\t5\t5\t5\nCapInh:\t0\n\
                    CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000010\n";
        let (standing, ended) = Standing::read(text.as_bytes()).unwrap();
        let (users, groups, namespace) = ([1, 2, 3, 4], [5; 4], None);
        let (permitted, effective) = (0x1ff_ffff_ffff, 16);
        assert!(!ended && Standing::read(text.replace("\tS (", "\tZ (").as_bytes()).unwrap().1);
        assert_eq!(standing, Standing { users, groups, permitted, effective, namespace });
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

    #[test]
    fn this_process_is_its_own_equal_and_a_dead_one_is_nobodys() {
        let [pair, _other] = os::unix_pair().unwrap();
        let meets = |credentials, process, by_number| {
            let mut peer = Peer::new(credentials, process);
            peer.meet(pair.raw(), by_number) && peer.is_as_it_was() && !peer.has_ended()
        };
        let own = os::maker_of(pair.raw()).unwrap();
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
}
