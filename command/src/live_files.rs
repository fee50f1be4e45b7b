//! Reading of live files, which are untrusted input.
//!
//! They are read, never mapped, and only as what they should be: regular files of this user, of
//! exactly the right size, in a folder that only this user can write to. A number in them may be any
//! number. What is left of processes that have gone is removed on the way.

use crate::say;
use adma_shared::Counters;
use adma_shared::live::{self, LONGEST_COMMAND, Live, NO_STATUS, ended};
use adma_shared::messages::Messages;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// Most files that are looked at.
const MOST: usize = 4096;

/// A process as its live file describes it.
pub struct LiveProcess {
    pub path: PathBuf,
    /// User id.
    pub owner: u32,
    pub pid: i32,
    pub live: Box<Live>,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    /// Ended by returning from main or by exit.
    Exited(Option<i32>),
    /// Ended by `_exit` and the like.
    Left(Option<i32>),
    Aborted,
    /// Gone without notice.
    Killed,
    /// Has executed another program.
    Replaced,
    /// Runs in another pid namespace.
    Elsewhere,
}

impl LiveProcess {
    /// Returns the name of its program, safe for a terminal.
    pub fn program(&self) -> String {
        let path = self.path_of_program();
        let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("?");
        name.strip_suffix(" (deleted)").unwrap_or(name).to_owned()
    }

    /// Returns its arguments at its start; the name of its program where they are not known.
    pub fn command_line(&self) -> String {
        let mut room = [0; LONGEST_COMMAND];
        let words = self.live.head.command.get(&mut room);
        let line = String::from_utf8_lossy(words).trim_end_matches('\0').replace('\0', " ");
        let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match first.rsplit('/').next().filter(|first| !first.is_empty()) {
            Some(first) => say::printable(format!("{first} {rest}").trim_end()),
            None => self.program(),
        }
    }

    pub fn path_of_program(&self) -> String {
        let mut room = [0; 256];
        say::printable(&String::from_utf8_lossy(self.live.head.exe.get(&mut room)))
    }

    /// Returns its messages to and from other processes; `None`: there were none.
    pub fn messages(&self) -> Option<Messages> {
        self.live.messages.sums()
    }

    /// Returns whether it has counted anything.
    pub fn counted(&self) -> bool {
        let recorder = &self.live.recorder;
        recorder.total().1 > 0 || recorder.every_size.count() > 0 || self.messages().is_some()
    }

    /// Returns the seconds from its start to its end, or to now.
    pub fn seconds(&self) -> f64 {
        let head = &self.live.head;
        let end = match head.end_nanoseconds.load(Relaxed) {
            0 => now(),
            end => end,
        };
        end.saturating_sub(head.start_nanoseconds.load(Relaxed)) as f64 / 1e9
    }

    /// Returns the nanoseconds of a tick. All processes share the counter, so it can be compared
    /// with the clock since the start of this one.
    pub fn scale(&self) -> f64 {
        let head = &self.live.head;
        let passed = now().saturating_sub(head.start_nanoseconds.load(Relaxed));
        let ticks = ticks().saturating_sub(head.start_ticks.load(Relaxed));
        let scale = passed as f64 / ticks.max(1) as f64;
        if (0.01..100.0).contains(&scale) { scale } else { 1.0 } // no such processor: nonsense
    }
}

/// Returns the engine of a process, by name.
pub fn backend(live: &Live) -> String {
    let word = live.facts.backend.load(Relaxed).to_le_bytes();
    let name = String::from_utf8_lossy(&word);
    say::printable(name.trim_end_matches('\0'))
}

/// Returns bytes by channel, up to the last one in use.
pub fn channel_bytes(live: &Live) -> Vec<u64> {
    let channels = live.facts.channels.load(Relaxed) as usize;
    live.facts.channel_bytes.iter().take(channels).map(|bytes| bytes.load(Relaxed)).collect()
}

/// Returns folders that may hold live files of this user.
pub fn places() -> Vec<PathBuf> {
    let runtime = std::env::var("XDG_RUNTIME_DIR").ok();
    let mut places: Vec<PathBuf> = Vec::new();
    live::folders(user(), runtime.as_deref(), |path| places.push(path.to_string().into()));
    places.dedup();
    places
}

/// Makes a fresh folder for the files of one tree of processes, where there is room for one. Returns
/// what is wrong with the last place if none will do.
pub fn make_tree() -> Result<PathBuf, String> {
    let mut failed = Err("no folder".to_owned());
    for place in places() {
        failed = make_tree_in(&place);
        if failed.is_ok() {
            break;
        }
    }
    failed
}

fn make_tree_in(place: &Path) -> Result<PathBuf, String> {
    let why = |error: io::Error| say::about(place, &error);
    let made = fs::DirBuilder::new().mode(0o700).create(place);
    made.or_else(|error| if place.is_dir() { Ok(()) } else { Err(why(error)) })?;
    usable(place)?;
    remove_old_trees(place);
    let tree = place.join(format!("{}{}-{:x}", live::TREE, std::process::id(), ticks()));
    fs::DirBuilder::new().mode(0o700).create(&tree).map_err(why)?;
    room_for_file(&tree).map(|()| tree.clone()).map_err(|error| {
        remove_tree(&tree);
        why(error)
    })
}

/// Returns what keeps processes from having live files in a folder.
pub fn usable(folder: &Path) -> Result<(), String> {
    let about = fs::symlink_metadata(folder).map_err(|error| say::about(folder, &error))?;
    let why = match about.uid() == user() && is_closed(&about) {
        true if is_in_memory(folder) => return Ok(()),
        true => "not a file system in memory (tmpfs)",
        false => "not a folder of this user with mode 0700",
    };
    Err(format!("{}: {why}", say::printable(&folder.to_string_lossy())))
}

/// Returns what keeps this user from reading live files in a folder; those of others are root's.
pub fn readable(folder: &Path) -> Result<(), String> {
    match owner(folder) {
        Some(owner) if owner != user() && user() == 0 => Ok(()),
        _ => usable(folder),
    }
}

/// Returns an error if there is no room for a live file.
pub fn room_for_file(folder: &Path) -> io::Result<()> {
    let path = folder.join("room");
    let written = fs::write(&path, vec![0; Live::SIZE]);
    let _ = fs::remove_file(&path); // fails where it could not be made
    written
}

/// Returns the number of processes that could not keep what they counted in a folder: of these there
/// are files with a valid name which are not live files.
pub fn not_kept(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MOST);
    let named = entries.filter(|entry| pid_of(&entry.file_name()).is_some());
    named.filter(|entry| read(&entry.path(), user()).is_none()).count()
}

/// Returns every process of this user that keeps a live file. Files of processes that have gone are
/// removed, unless a command is about to collect them. With `all_users`, also those of other users,
/// as far as this user may read them (root).
pub fn all(all_users: bool, folder: Option<&Path>) -> Vec<LiveProcess> {
    let mut all = Vec::new();
    let mut places = places();
    places.extend(folder.map(Path::to_owned));
    if all_users {
        places.extend(places_of_others());
    }
    for place in places.into_iter().filter(|place| owner(place).is_some()) {
        let is_ours = is_private(&place);
        if is_ours {
            remove_old_trees(&place);
        }
        all.extend(in_folder(&place, is_ours));
        for (tree, _) in trees(&place) {
            all.extend(in_folder(&tree, false));
        }
    }
    all.sort_by_key(|process| process.pid);
    all.dedup_by(|a, b| a.path == b.path);
    all
}

/// Returns every process with a file in one folder.
pub fn in_folder(folder: &Path, removes_gone: bool) -> Vec<LiveProcess> {
    let mut found = Vec::new();
    let Some(owner) = owner(folder) else { return found };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(MOST) {
        let Some(pid) = pid_of(&entry.file_name()) else { continue };
        let path = entry.path();
        let live = read(&path, owner);
        let state = live.as_ref().map(|live| state(live, pid));
        let has_gone = match state {
            Some(state) => !matches!(state, State::Running | State::Elsewhere),
            // Of a process that died while it made the file, or of another version.
            None => !exists(pid),
        };
        if removes_gone && has_gone {
            let _ = fs::remove_file(&path); // another command may have been quicker
        } else if let (Some(live), Some(state)) = (live, state) {
            found.push(LiveProcess { path, owner, pid, live, state });
        }
    }
    // A process that executes another program keeps its number; the file made last counts.
    let made = |process: &LiveProcess| process.live.head.made.load(Relaxed);
    found.sort_by_key(|process| (process.pid, made(process)));
    for index in 1..found.len() {
        let (before, after) = found.split_at_mut(index);
        let (before, after) = (&mut before[index - 1], &after[0]);
        if before.pid == after.pid && matches!(before.state, State::Running | State::Killed) {
            before.state = State::Replaced;
        }
    }
    found
}

/// Parses names like `4711-1f0a33b2c4`, and nothing else.
pub fn pid_of(name: &OsStr) -> Option<i32> {
    let (pid, unique) = name.to_str()?.split_once('-')?;
    let digits = |text: &str, radix| !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
    (digits(pid, 10) && digits(unique, 16)).then(|| pid.parse().ok())?
}

/// Opens a live file of this owner, and no other file with its name.
pub fn open(path: &Path, owner: u32) -> io::Result<fs::File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    match about.is_file() && about.uid() == owner && about.len() == Live::SIZE as u64 {
        true => Ok(file),
        false => Err(io::Error::other("its live file is not what it was")),
    }
}

fn read(path: &Path, owner: u32) -> Option<Box<Live>> {
    let mut live = Box::new(Live::ZERO);
    open(path, owner).ok()?.read_exact(live.bytes_mut()).ok()?;
    live.is_valid().then_some(live)
}

fn state(live: &Live, pid: i32) -> State {
    let head = &live.head;
    let status = match head.status.load(Relaxed) {
        NO_STATUS => None,
        status => Some(status as i32 & 0xff),
    };
    match head.ended.load(Relaxed) {
        ended::EXIT => return State::Exited(status),
        ended::AT_ONCE => return State::Left(status),
        ended::ABORT => return State::Aborted,
        _ => {}
    }
    let namespace = head.pid_namespace.load(Relaxed);
    if namespace != 0 && namespace != own_namespace() {
        return State::Elsewhere;
    }
    match started(pid) {
        // The kernel reports the start in hundredths of a second.
        Some(start) if start <= head.made.load(Relaxed).saturating_add(20_000_000) => {
            State::Running
        }
        _ => State::Killed,
    }
}

fn exists(pid: i32) -> bool {
    started(pid).is_some()
}

/// Returns the start of a process, in nanoseconds since boot; `None`: there is no such process.
fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything; what follows its last parenthesis does not.
    let rest = stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    let ticks: u64 = fields.get(19)?.parse().ok()?;
    Some(ticks.saturating_mul(1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)))
}

fn own_namespace() -> u64 {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect::<String>();
    digits.parse().unwrap_or(0)
}

/// Returns the folders of trees, each with the process of its command. Their names are `tree-` and
/// the name of a live file.
fn trees(place: &Path) -> Vec<(PathBuf, i32)> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let tree = |entry: fs::DirEntry| {
        let name = entry.file_name();
        Some((entry.path(), pid_of(OsStr::new(name.to_str()?.strip_prefix(live::TREE)?))?))
    };
    entries.filter_map(tree).take(MOST).collect()
}

/// Removes trees whose command was killed, or has left while processes went on: when the last of
/// these has gone, nothing will be collected.
fn remove_old_trees(place: &Path) {
    let old = trees(place).into_iter().filter(|(_, command)| !exists(*command));
    old.for_each(|(tree, _)| remove_tree(&tree));
}

/// Removes a tree's folder; files in use stay.
pub fn remove_tree(tree: &Path) {
    in_folder(tree, true);
    let _ = fs::remove_dir(tree); // not empty: a process lives
}

/// Returns whether a folder belongs to this user, is closed to others, and is no link.
fn is_private(path: &Path) -> bool {
    owner(path) == Some(user())
}

/// Returns the user of a folder that is closed to others and is no link.
fn owner(path: &Path) -> Option<u32> {
    let about = fs::symlink_metadata(path).ok()?;
    is_closed(&about).then_some(about.uid())
}

fn is_closed(about: &fs::Metadata) -> bool {
    about.is_dir() && about.permissions().mode() & 0o077 == 0
}

/// Returns the folders of live files of other users, which are named after their owner.
fn places_of_others() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (folder, before, after) in live::FOLDERS {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(MOST) {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(before)?.parse().ok());
            let path = PathBuf::from(format!("{}{after}", entry.path().display()));
            if number.is_some_and(|number: u32| number != user() && owner(&path) == Some(number)) {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the name of a user, or the number.
pub fn name_of(user: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let is_wanted = |line: &&str| line.split(':').nth(2) == Some(&user.to_string());
    let name = users.lines().find(is_wanted).and_then(|line| line.split(':').next());
    name.map_or(user.to_string(), say::printable)
}

fn is_in_memory(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|about| about.f_type == libc::TMPFS_MAGIC)
}

pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the nanoseconds of the clock that live files are dated by.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub fn ticks() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_live_files_are_recognised() {
        assert_eq!(pid_of(OsStr::new("4711-1f0a")), Some(4711));
        for odd in ["4711", "-1f", "4711-", "4711-xyz", "+1-1", "tree-1-2", "99999999999-1"] {
            assert_eq!(pid_of(OsStr::new(odd)), None, "{odd}");
        }
    }
}
