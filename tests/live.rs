//! Live statistics: files that tell what a process has counted while it runs and after it was
//! killed, and the one report of `adma program` for all its processes.
//!
//! The victim `live` does what it is told line by line, so nothing here waits for luck.

mod common;
#[path = "../src/stats/histogram.rs"]
#[allow(dead_code)]
mod histogram;
#[path = "../src/stats/live.rs"]
mod live;
#[path = "../src/ipc/counts.rs"]
mod messages;

use common::{finish, found, number, plain, preloaded, skip, succeed, victim};
use live::{Live, NO_STATUS, ended};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;

const MIB: u64 = 1 << 20;

/// A private folder in memory, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        use std::sync::atomic::AtomicU32;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let path = format!("/dev/shm/adma-tests-{}-{number}", std::process::id());
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path.into())
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn make(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The live files in a folder, by process and age.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Box<Live> {
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes.len(), Live::SIZE, "{}", path.display());
    // SAFETY: numbers only, of which any bytes are a value; aligned as numbers want it, since the
    // `Box` is made of zeros first.
    let live = unsafe {
        let mut live: Box<Live> = Box::new(std::mem::zeroed());
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut *live).cast(), size_of::<Live>());
        live
    };
    assert_eq!(live.fault(), None);
    live
}

fn only(folder: &Path) -> Box<Live> {
    let files = files(folder);
    assert_eq!(files.len(), 1, "{files:?}");
    read(&files[0])
}

/// Large copies and their bytes.
fn counted(live: &Live) -> (u64, u64) {
    let flows = [&live.recorder.engine, &live.recorder.libc];
    let calls = flows.iter().map(|flow| flow.sizes.count()).sum();
    (calls, live.recorder.engine_bytes() + live.recorder.libc_bytes())
}

/// A victim that waits for orders.
struct Victim {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Victim {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    fn end(mut self) -> std::process::ExitStatus {
        drop(self.child.stdin.take());
        self.child.wait().unwrap()
    }
}

/// Whether something comes true within a minute.
fn eventually(mut is_true: impl FnMut() -> bool) -> bool {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_true() {
        if std::time::Instant::now() > limit {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    true
}

/// A fixed threshold, so that every copy is carried.
fn fixed(command: &mut Command) -> &mut Command {
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "1")
}

/// Counts into `folder` for somebody who collects.
fn collected(folder: &Path) -> Command {
    let mut command = preloaded(victim("live"));
    fixed(&mut command).env("ADMA_LIVE", folder);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

// ---- the file ----------------------------------------------------------------------------

#[test]
fn file_is_made_by_the_first_large_copy_and_removed_at_exit() {
    let folder = Folder::new();
    let mut command = preloaded(victim("live"));
    fixed(&mut command).env("ADMA_STATS", "json").env("ADMA_STATS_FILE", "/dev/null");
    let mut victim = Victim::start(command.env("XDG_RUNTIME_DIR", &folder.0));
    let place = folder.join("adma");
    assert_eq!(victim.ask("copy 4096 10"), "copied");
    assert!(!place.exists(), "no large copy yet");
    victim.ask("copy 1000000 10");
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o7777, 0o700);
    let file = files(&place).remove(0);
    let about = fs::metadata(&file).unwrap();
    assert_eq!(about.permissions().mode() & 0o7777, 0o400, "cut off by nobody by mistake");
    assert_eq!(about.len(), Live::SIZE as u64);
    let live = read(&file);
    assert_eq!(counted(&live), (10, 10_000_000));
    assert_eq!(live.head.pid.load(Relaxed), victim.child.id());
    assert!(live.head.exe(&mut [0; 256]).ends_with(b"/live"));
    victim.ask("copy 2000000 3");
    assert_eq!(counted(&read(&file)), (13, 16_000_000), "while it runs");
    let shares = &read(&file).facts;
    let channel = shares.channel_bytes[0].load(Relaxed);
    assert!(shares.caller_bytes.load(Relaxed) + channel > 0);
    assert!(victim.end().success());
    assert_eq!(files(&place), [""; 0].map(PathBuf::from));
}

#[test]
fn statistics_that_are_off_make_no_file() {
    let folder = Folder::new();
    for (knob, value) in [("ADMA_LOG", "warn"), ("ADMA_LIVE", "off")] {
        let mut command = preloaded(victim("live"));
        fixed(&mut command).env(knob, value).env("XDG_RUNTIME_DIR", &folder.0);
        if knob == "ADMA_LIVE" {
            command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", "/dev/null");
        }
        let mut victim = Victim::start(&mut command);
        victim.ask("copy 1000000 10");
        assert!(!folder.join("adma").exists(), "{knob}");
        assert!(victim.end().success());
    }
}

#[test]
fn collected_file_tells_how_the_process_ended() {
    let expected = [
        ("exit 3", ended::EXIT, 3, Some(3)),
        ("_exit 4", ended::AT_ONCE, 4, Some(4)),
        ("kill", ended::NOT, NO_STATUS, None),
    ];
    for (order, how, status, code) in expected {
        let folder = Folder::new();
        let mut victim = Victim::start(&mut collected(&folder.0));
        victim.ask("copy 1048576 7");
        victim.order(order);
        assert_eq!(victim.end().code(), code, "{order}");
        let live = only(&folder.0);
        assert_eq!(counted(&live), (7, 7 * MIB), "{order}: nothing is lost");
        assert_eq!(live.head.ended.load(Relaxed), how, "{order}");
        assert_eq!(live.head.status.load(Relaxed), status, "{order}");
        let channels = live.facts.channel_bytes[0].load(Relaxed);
        let shares = live.facts.caller_bytes.load(Relaxed) + channels;
        // A busy machine leaves a copy to libc; who is killed has not told of the last one.
        let carried = live.recorder.engine_bytes();
        let told = shares == carried || (code.is_none() && shares <= carried);
        assert!(told, "{order}: shares of channels too: {shares} of {carried}");
    }
}

#[test]
fn descriptors_of_the_program_keep_their_numbers() {
    let folder = Folder::new();
    let mut victim = Victim::start(&mut collected(&folder.0));
    let before = victim.ask("descriptor");
    victim.ask("copy 1000000 2");
    assert_eq!(files(&folder.0).len(), 1);
    assert_eq!(victim.ask("descriptor"), before);
    assert!(victim.end().success());
}

#[test]
fn children_count_in_files_of_their_own() {
    let folder = Folder::new();
    let mut victim = Victim::start(&mut collected(&folder.0));
    victim.ask("copy 1048576 2");
    let child = victim.ask("fork 3");
    victim.ask("fork 0");
    victim.ask("copy 1048576 1");
    let pid = victim.child.id();
    assert!(victim.end().success());
    let all: Vec<Box<Live>> = files(&folder.0).iter().map(|path| read(path)).collect();
    let of = |pid: &str| -> Vec<(u64, u64)> {
        let is_his = |live: &&Live| live.head.pid.load(Relaxed).to_string() == pid;
        all.iter().map(Box::as_ref).filter(is_his).map(counted).collect()
    };
    assert_eq!(all.len(), 2, "a child without large copies has no file");
    assert_eq!(of(&pid.to_string()), [(3, 3 * MIB)]);
    assert_eq!(of(&child), [(3, 3 * MIB)]);
}

#[test]
fn child_that_ran_no_handler_never_counts_in_its_parents_file() {
    let folder = Folder::new();
    let mut victim = Victim::start(&mut collected(&folder.0));
    victim.ask("copy 1048576 2");
    victim.ask("rawfork 5");
    assert!(victim.end().success());
    assert_eq!(counted(&only(&folder.0)), (2, 2 * MIB));
}

#[test]
fn process_that_executes_another_program_gets_another_file() {
    let folder = Folder::new();
    let mut victim = Victim::start(&mut collected(&folder.0));
    victim.ask("copy 1048576 2");
    assert_eq!(victim.ask("exec"), "executing");
    victim.ask("copy 1048576 3");
    assert!(victim.end().success());
    let mut counts: Vec<_> = files(&folder.0).iter().map(|path| counted(&read(path))).collect();
    counts.sort_unstable();
    assert_eq!(counts, [(2, 2 * MIB), (3, 3 * MIB)]);
}

/// Messages and bytes in each direction.
fn messages(live: &Live) -> [(u64, u64); 2] {
    live.messages.told().unwrap().directions.map(|(_, messages, bytes)| (messages, bytes))
}

#[test]
fn messages_are_counted_in_the_file_and_outlive_a_killed_process() {
    let folder = Folder::new();
    let mut victim = Victim::start(&mut collected(&folder.0));
    assert_eq!(victim.ask("messages 7"), "sent");
    victim.ask("copy 1048576 2");
    assert_eq!(victim.ask("messages 3"), "sent");
    let pid = victim.child.id();
    victim.order("kill");
    victim.end();
    let all: Vec<Box<Live>> = files(&folder.0).iter().map(|path| read(path)).collect();
    assert_eq!(all.len(), 3, "two children");
    let (mine, children): (Vec<_>, Vec<_>) =
        all.iter().partition(|live| live.head.pid.load(Relaxed) == pid);
    assert_eq!(messages(mine[0]), [(10, 1_000_000), (0, 0)]);
    assert_eq!(counted(mine[0]), (2, 2 * MIB));
    let mut received: Vec<_> = children.iter().map(|live| messages(live)).collect();
    received.sort_unstable();
    assert_eq!(received, [[(0, 0), (3, 300_000)], [(0, 0), (7, 700_000)]]);
}

// ---- where no file is to be had ----------------------------------------------------------

/// The program runs, and its report at exit is whole.
fn goes_on_without(place: &Path, what: &str) {
    let mut command = collected(place);
    command.env("ADMA_STATS", "json").stderr(Stdio::piped());
    let mut victim = Victim::start(&mut command);
    assert_eq!(victim.ask("copy 1048576 4"), "copied", "{what}");
    drop(victim.child.stdin.take());
    let done = victim.child.wait_with_output().unwrap();
    assert!(done.status.success(), "{what}");
    let json: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(number(&json["paths"]["engine"]["calls"]), 4, "{what}: {json}");
}

#[test]
fn folder_that_is_not_private_is_not_used() {
    let folder = Folder::new();
    let real = folder.make("real");
    let link = folder.join("link");
    symlink(&real, &link).unwrap();
    goes_on_without(&link, "a link");
    let open = folder.make("open");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o770)).unwrap();
    goes_on_without(&open, "others may write to it");
    goes_on_without(&folder.join("no/such/folder"), "nothing");
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    goes_on_without(&file, "a file");
    if common::is_root() {
        let foreign = folder.make("foreign");
        std::os::unix::fs::chown(&foreign, Some(12345), None).unwrap();
        goes_on_without(&foreign, "somebody else's");
        assert!(files(&foreign).is_empty());
    }
    let disk = common::scratch("live-on-disk");
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o700)).unwrap();
    if fs::metadata(&disk).unwrap().dev() != fs::metadata("/dev/shm").unwrap().dev() {
        goes_on_without(&disk, "a disk, which may be full or slow");
    }
    assert!(files(&real).is_empty() && files(&open).is_empty());
}

#[test]
fn limit_on_the_size_of_files_is_no_signal() {
    let folder = Folder::new();
    let mut victim = Victim::start(&mut collected(&folder.0));
    assert_eq!(victim.ask("fsize"), "limited");
    assert_eq!(victim.ask("copy 1048576 4"), "copied");
    assert!(victim.end().success());
    assert!(files(&folder.0).is_empty(), "and nothing is left");
}

#[test]
fn full_folder_is_no_signal() {
    let test = "full_folder_is_no_signal";
    let folder = Folder::new();
    let script = "mount -t tmpfs -o size=40k,mode=700 none \"$ADMA_LIVE\" && exec \"$@\"";
    let wrap = |program: &mut Command, name: &str| {
        let mut command = plain("unshare");
        command.args(["-m", "sh", "-c", script, "sh", "env", "--"]);
        command.arg(format!("LD_PRELOAD={}", common::library().display()));
        command.arg(program.get_program()).env("ADMA_LIVE", folder.make(name));
        fixed(&mut command).env("ADMA_STATS", "json");
        command
    };
    if !finish(&mut wrap(&mut plain("true"), "probe")).status.success() {
        return skip(test, "this system does not let us mount");
    }
    let mut command = wrap(&mut plain(victim("live")), "full");
    let mut victim = Victim::start(command.stderr(Stdio::piped()));
    assert_eq!(victim.ask("copy 1048576 4"), "copied");
    drop(victim.child.stdin.take());
    let done = victim.child.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let json: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(number(&json["paths"]["engine"]["calls"]), 4);
}

// ---- the report of a tree ----------------------------------------------------------------

/// `adma` in a world of its own: trees are kept in `folder`.
fn adma(folder: &Folder) -> Command {
    let mut command = plain(common::command());
    fixed(&mut command).env("XDG_RUNTIME_DIR", &folder.0);
    command
}

fn copies(size: u64, count: u64) -> String {
    format!("{} memcpy {size} {count}", victim("stats_copies").display())
}

fn nothing_is_left(folder: &Folder) {
    assert_eq!(files(&folder.join("adma")), [""; 0].map(PathBuf::from));
}

#[test]
fn one_report_tells_of_all_processes_also_of_killed_ones() {
    let folder = Folder::new();
    let killed = victim("stats_ends");
    let script = format!(
        "{}; {}; {} kill; {} _exit; exit 5",
        copies(4_000_000, 3),
        copies(2_000_000, 2),
        killed.display(),
        killed.display()
    );
    let done = finish(adma(&folder).args(["sh", "-c", &script]));
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(5), "{err}");
    // The shell has something to say as well.
    let report = err.lines().find(|line| line.starts_with("adma: ")).unwrap_or_default();
    assert!(report.starts_with("adma: 4 processes made large copies, within "), "{err}");
    let engine = err.lines().find(|line| line.contains("by the engine")).unwrap();
    assert!(engine.split_whitespace().nth(3) == Some("7"), "{err}");
    for part in ["stats_copies", "stats_ends", "exit 0", "killed", "saved", "17.3 MiB"] {
        assert!(err.contains(part), "{part} is missing: {err}");
    }
    assert_eq!(err.matches("adma: ").count(), 1, "one report: {err}");
    assert!(err.lines().all(|line| line.chars().count() <= 80), "{err}");
    nothing_is_left(&folder);
}

#[test]
fn report_of_one_process_is_as_ever_and_silence_stays_silence() {
    let folder = Folder::new();
    let (_, err) =
        succeed(adma(&folder).arg(victim("stats_copies")).args(["memcpy", "1000000", "50"]));
    assert!(err.starts_with("adma: stats_copies (pid "), "{err}");
    for part in ["beside the caller", "channel shares", "p50", "#####"] {
        assert!(err.contains(part), "{part} is missing: {err}");
    }
    let (out, err) = succeed(adma(&folder).args(["echo", "hello"]));
    assert_eq!((out.as_str(), err.as_str()), ("hello\n", ""));
    nothing_is_left(&folder);
}

#[test]
fn report_of_processes_that_send_messages_tells_of_these() {
    let folder = Folder::new();
    let mut sender = Victim::start(adma(&folder).arg(victim("live")).stderr(Stdio::piped()));
    assert_eq!(sender.ask("messages 5"), "sent");
    let table = top(&folder, &["--once"]);
    assert!(table.lines().nth(1).is_some_and(|line| !line.ends_with(" 0.0")), "{table}");
    let json: Value = serde_json::from_str(&top(&folder, &["--once", "--json"])).unwrap();
    let told = json["processes"].as_array().unwrap().iter().map(|process| &process["messages"]);
    let sent: u64 = told.map(|told| number(&told["sent"]["messages"])).sum();
    assert_eq!(sent, 5, "{json}");
    drop(sender.child.stdin.take());
    let done = sender.child.wait_with_output().unwrap();
    let err = text(&done.stderr);
    assert!(err.starts_with("adma: 2 processes sent messages, within "), "{err}");
    assert!(!err.contains("large copies"), "{err}");
    for part in ["  sent                     5      488 KiB", "  received                 5"] {
        assert!(err.contains(part), "{part} is missing: {err}");
    }
    assert!(err.lines().all(|line| line.chars().count() <= 80), "{err}");
    nothing_is_left(&folder);
}

#[test]
fn each_gives_one_report_per_process() {
    let folder = Folder::new();
    let script = format!("{}; {}", copies(2_000_000, 3), copies(2_000_000, 2));
    let (_, err) = succeed(adma(&folder).args(["--each", "sh", "-c", &script]));
    assert_eq!(err.matches("adma: stats_copies (pid ").count(), 2, "{err}");
    // One command inside another: the outer one reports.
    let inner = format!("{} {}", common::command().display(), copies(2_000_000, 3));
    let (_, err) = succeed(adma(&folder).args(["sh", "-c", &inner]));
    assert_eq!(err.matches("adma: ").count(), 1, "{err}");
    nothing_is_left(&folder);
}

#[test]
fn children_of_multiprocessing_are_in_the_report() {
    let test = "children_of_multiprocessing_are_in_the_report";
    if !found("python3") {
        return skip(test, "python3 is not installed");
    }
    let folder = Folder::new();
    let script = "import multiprocessing as m\n\
        def copy(_): return len(bytes(bytearray(8 << 20)))\n\
        if __name__ == '__main__':\n    \
            with m.get_context('fork').Pool(2) as p: p.map(copy, range(8), 1)";
    let (_, err) = succeed(adma(&folder).args(["python3", "-c", script]));
    // The pool kills its workers when it is left.
    let total = err.lines().filter(|line| line.starts_with("  by ")).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[words.iter().position(|word| word.parse::<u64>().is_ok()).unwrap()]
            .parse::<u64>()
            .unwrap()
    });
    assert!(total.sum::<u64>() >= 8, "{err}");
    nothing_is_left(&folder);
}

#[test]
fn status_and_signals_are_the_programs() {
    let folder = Folder::new();
    let script = |line: &str| finish(adma(&folder).args(["sh", "-c", line])).status;
    assert_eq!(script("exit 9").code(), Some(9));
    assert_eq!(script("kill -TERM $$").signal(), Some(15));
    assert_eq!(script("kill -KILL $$").signal(), Some(9));
    assert_eq!(finish(adma(&folder).arg("/no/such/program")).status.code(), Some(127));
    nothing_is_left(&folder);
}

#[test]
fn signals_sent_to_the_command_reach_the_program() {
    let folder = Folder::new();
    for (name, number) in [("TERM", 15), ("INT", 2), ("USR1", 10), ("HUP", 1)] {
        let script = format!("trap 'echo caught; exit 7' {name}; echo ready; read line");
        let mut victim = Victim::start(adma(&folder).args(["bash", "-c", &script]));
        assert_eq!(victim.answer(), "ready");
        // SAFETY: a signal to a child of ours.
        unsafe { libc::kill(victim.child.id() as i32, number) };
        // bash runs a trap when `read` was interrupted.
        assert_eq!(victim.answer(), "caught", "{name}");
        assert_eq!(victim.end().code(), Some(7));
    }
    // One that it does not handle kills both.
    let mut victim = Victim::start(adma(&folder).args(["sh", "-c", "echo ready; read line"]));
    assert_eq!(victim.answer(), "ready");
    let stdin = victim.child.stdin.take(); // which waiting would close
    // SAFETY: as above.
    unsafe { libc::kill(victim.child.id() as i32, libc::SIGTERM) };
    assert_eq!(victim.child.wait().unwrap().signal(), Some(15));
    drop(stdin);
    nothing_is_left(&folder);
}

/// The command's parent is in another group, as a shell's jobs are, and says what it hears of.
fn heard_by_the_parent(folder: &Folder, orders: &str) -> String {
    let script = format!(
        "trap 'echo HEARD TERM' TERM; trap 'echo HEARD USR1' USR1; set -m; \
         {} {} <<<$'{orders}'; echo status $?",
        common::command().display(),
        victim("live").display()
    );
    let mut command = plain("bash");
    command.args(["-c", &script]).env("XDG_RUNTIME_DIR", &folder.0);
    succeed(&mut command).0
}

#[test]
fn signal_of_the_program_to_its_group_does_not_reach_the_commands_parent() {
    let folder = Folder::new();
    let heard = heard_by_the_parent(&folder, "signal 15\\nexit 3\\n");
    assert_eq!(heard, "signalled\nstatus 3\n");
    // One that tells a parent something does.
    let heard = heard_by_the_parent(&folder, "tell 10\\nexit 4\\n");
    assert!(heard.contains("HEARD USR1") && heard.contains("status 4"), "{heard}");
}

#[test]
fn program_that_stops_stops_the_command_and_goes_on_with_it() {
    let folder = Folder::new();
    let mut stopped = Victim::start(adma(&folder).arg(victim("live")));
    stopped.order("stop");
    let pid = stopped.child.id() as i32;
    let mut status = 0;
    // SAFETY: waits for a child of ours to stop.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) }, pid);
    assert!(libc::WIFSTOPPED(status), "{status:x}");
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    assert_eq!(stopped.answer(), "went on");
    assert!(stopped.end().success());
}

#[test]
fn what_a_killed_command_left_is_removed_by_the_next() {
    let folder = Folder::new();
    let mut killed = Victim::start(adma(&folder).arg(victim("live")));
    killed.ask("copy 1048576 2");
    let tree = files(&folder.join("adma")).remove(0);
    let file = files(&tree).remove(0);
    killed.child.kill().unwrap();
    assert_eq!(killed.child.wait().unwrap().signal(), Some(9));
    // The program goes with it.
    let name = file.file_name().unwrap().to_str().unwrap();
    let stat = format!("/proc/{}/stat", name.split('-').next().unwrap());
    let is_gone = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    assert!(eventually(is_gone), "{stat} is still there");
    succeed(adma(&folder).arg("true"));
    nothing_is_left(&folder);
}

// ---- only where it is wanted ---------------------------------------------------------------

#[test]
fn programs_are_left_out_by_name() {
    let folder = Folder::new();
    let script = format!("{}; exec {} exit", copies(2_000_000, 3), victim("stats_ends").display());
    let reports = |knob: &str, list: &str| {
        let mut command = adma(&folder);
        command.args(["--each", "--stats", "json", "sh", "-c", &script]).env(knob, list);
        let done = finish(&mut command);
        let lines = text(&done.stderr);
        let mut names: Vec<String> = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect(line))
            .map(|json| json["exe"].as_str().unwrap().rsplit('/').next().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(reports("ADMA_LOG", "warn"), ["stats_copies", "stats_ends"]);
    assert_eq!(reports("ADMA_ONLY", "stats_c*,python3"), ["stats_copies"]);
    assert_eq!(reports("ADMA_NOT", "stats_copies,sh"), ["stats_ends"]);
    assert_eq!(reports("ADMA_ONLY", "nothing"), [""; 0]);
}

#[test]
fn program_that_is_left_out_starts_no_thread_and_copies_rightly() {
    let mut command = preloaded(victim("live"));
    let mut victim = Victim::start(fixed(&mut command).env("ADMA_ONLY", "somebody-else"));
    victim.ask("copy 8388608 5");
    let pid = victim.child.id();
    assert_eq!(fs::read_dir(format!("/proc/{pid}/task")).unwrap().count(), 1);
    assert!(victim.end().success());
}

// ---- adma top ------------------------------------------------------------------------------

fn top(folder: &Folder, arguments: &[&str]) -> String {
    let mut command = plain(common::command());
    command.env("XDG_RUNTIME_DIR", &folder.0).arg("top").args(arguments);
    succeed(&mut command).0
}

fn seen(folder: &Folder, pid: u32) -> Value {
    let out = top(folder, &["--once", "--json", &pid.to_string()]);
    let json: Value = serde_json::from_str(&out).unwrap();
    json["processes"][0].clone()
}

/// A victim that keeps live statistics where `top` looks for them.
fn watched(folder: &Folder) -> Victim {
    let mut command = preloaded(victim("live"));
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", "/dev/null");
    Victim::start(fixed(&mut command).env("XDG_RUNTIME_DIR", &folder.0))
}

#[test]
fn top_shows_what_processes_have_copied() {
    let folder = Folder::new();
    let (mut first, mut second) = (watched(&folder), watched(&folder));
    first.ask("copy 1048576 5");
    second.ask("copy 2097152 3");
    let json = seen(&folder, first.child.id());
    assert_eq!((number(&json["copies"]), number(&json["bytes"])), (5, 5 * MIB), "{json}");
    assert_eq!(json["state"], "Running");
    assert_eq!(json["backend"], "threads");
    let table = top(&folder, &["--once"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.starts_with("    PID PROGRAM"), "{table}");
    assert!(table.contains(&format!("{:>7} live", second.child.id())), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    // A tree's processes are seen too.
    let mut inside = Victim::start(adma(&folder).arg(victim("live")));
    inside.ask("copy 1048576 2");
    assert_eq!(top(&folder, &["--once"]).lines().count(), 4);
    for victim in [first, second, inside] {
        assert!(victim.end().success());
    }
    assert_eq!(top(&folder, &["--once"]).lines().count(), 1);
    // Who asks for one process is told that there is none.
    let mut command = plain(common::command());
    let done = finish(command.env("XDG_RUNTIME_DIR", &folder.0).args(["top", "4194305", "--once"]));
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(1), String::new()));
    assert!(text(&done.stderr).contains("process 4194305"), "{}", text(&done.stderr));
}

#[test]
fn top_removes_what_killed_processes_left_and_believes_nothing_strange() {
    let folder = Folder::new();
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 2");
    victim.order("kill");
    victim.end();
    let place = folder.join("adma");
    assert_eq!(files(&place).len(), 1);
    // What is no live file is neither shown nor followed; of a process that is alive it stays.
    let me = std::process::id();
    fs::write(place.join(format!("{me}-1")), vec![0xff; Live::SIZE]).unwrap();
    fs::write(place.join(format!("{me}-2")), "short").unwrap();
    symlink("/etc/passwd", place.join(format!("{me}-3"))).unwrap();
    succeed(plain("mkfifo").arg(place.join(format!("{me}-4"))));
    assert_eq!(top(&folder, &["--once"]).lines().count(), 1);
    assert_eq!(files(&place).len(), 4);
    // In a folder that others can write to nothing is believed at all.
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 2");
    assert_eq!(top(&folder, &["--once"]).lines().count(), 2);
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(top(&folder, &["--once"]).lines().count(), 1);
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(victim.end().success());
}

#[test]
fn hostile_numbers_are_shown_without_harm() {
    let folder = Folder::new();
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 2");
    let file = files(&folder.join("adma")).remove(0);
    let head = fs::read(&file).unwrap()[..std::mem::offset_of!(Live, facts)].to_vec();
    let mut bytes = vec![0xff; Live::SIZE];
    bytes[..head.len()].copy_from_slice(&head);
    // As many channels as there can be, or it would be refused.
    let channels = std::mem::offset_of!(Live, facts) + std::mem::offset_of!(live::Facts, channels);
    bytes[channels..channels + 4].copy_from_slice(&64u32.to_ne_bytes());
    let name = file.file_name().unwrap().to_str().unwrap();
    let other = folder.join("adma").join(format!("{name}0"));
    fs::write(&other, &bytes).unwrap();
    for arguments in [&["--once"][..], &["--once", "--json"]] {
        assert!(top(&folder, arguments).len() > 10);
    }
    assert!(victim.end().success());
}

#[test]
fn running_process_is_switched_off_and_on_and_changed() {
    let folder = Folder::new();
    let mut victim = watched(&folder);
    let pid = victim.child.id();
    let set = |words: &[&str]| {
        let pid = pid.to_string();
        let mut arguments = vec!["--set", &pid];
        arguments.extend(words);
        top(&folder, &arguments);
    };
    let engine = || number(&seen(&folder, pid)["paths"]["engine"]["calls"]);
    victim.ask("copy 1048576 3");
    assert_eq!(engine(), 3);
    set(&["off"]);
    victim.ask("copy 1048576 1"); // the copy that sees it
    let before = engine();
    victim.ask("copy 1048576 10");
    let json = seen(&folder, pid);
    assert_eq!((engine(), &json["off"]), (before, &Value::Bool(true)), "{json}");
    assert!(number(&json["fallbacks"]["off"]) >= 10, "{json}");
    let file = files(&folder.join("adma")).remove(0);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o400);

    set(&["on", "min=2M", "channels=3"]);
    victim.ask("copy 1048576 1");
    let before = number(&seen(&folder, pid)["copies"]);
    victim.ask("copy 1048576 10");
    let json = seen(&folder, pid);
    assert_eq!(number(&json["copies"]), before, "below the threshold: {json}");
    victim.ask("copy 4194304 5");
    let json = seen(&folder, pid);
    assert_eq!(number(&json["copies"]), before + 5, "{json}");
    assert_eq!((number(&json["min_bytes"]), number(&json["channels"])), (2 * MIB, 3), "{json}");

    set(&["min=auto", "channels=auto"]);
    victim.ask("copy 4194304 1");
    let before = number(&seen(&folder, pid)["copies"]);
    victim.ask("copy 1048576 10");
    assert_eq!(number(&seen(&folder, pid)["copies"]), before + 10, "as configured again");
    assert!(victim.end().success());
}

#[test]
fn nonsense_in_the_control_part_is_not_obeyed() {
    use std::os::unix::fs::FileExt;
    let folder = Folder::new();
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 3");
    let file = files(&folder.join("adma")).remove(0);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let control = std::mem::offset_of!(Live, control);
    let bytes = vec![0xff; size_of::<live::Control>()];
    fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .write_all_at(&bytes, control as u64)
        .unwrap();
    victim.ask("copy 1048576 20");
    let json = seen(&folder, victim.child.id());
    assert_eq!(number(&json["paths"]["engine"]["calls"]), 23, "{json}");
    assert!(victim.end().success());
}

#[test]
fn set_refuses_what_it_does_not_know() {
    let folder = Folder::new();
    let set = |words: &[&str]| {
        let mut command = plain(common::command());
        command.env("XDG_RUNTIME_DIR", &folder.0).args(["top", "--set"]).args(words);
        let done = finish(&mut command);
        assert!(done.status.code().is_some_and(|code| code > 0), "{words:?}");
        assert_eq!(text(&done.stderr).lines().count(), 1, "{}", text(&done.stderr));
        text(&done.stderr)
    };
    assert!(set(&[]).contains("wants a process number"));
    assert!(set(&["1", "off"]).contains("keeps no live statistics"));
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 3");
    let pid = victim.child.id().to_string();
    for word in ["min=1", "channels=0", "channels=65", "sideways"] {
        assert!(set(&[&pid, word]).contains(word), "{word}");
    }
    assert!(victim.end().success());
}

// ---- a terminal ----------------------------------------------------------------------------

/// A program on a terminal of its own, as its session's leader.
struct Terminal {
    child: Child,
    master: fs::File,
    said: String,
}

impl Terminal {
    fn start(command: &mut Command) -> Self {
        use std::os::fd::FromRawFd;
        use std::os::unix::process::CommandExt;
        let (mut master, mut slave) = (0, 0);
        let size = libc::winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let null = std::ptr::null_mut();
        // SAFETY: two places for descriptors, which become ours.
        let (master, slave) = unsafe {
            assert_eq!(libc::openpty(&mut master, &mut slave, null, null.cast(), &size), 0);
            libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
            (fs::File::from_raw_fd(master), fs::File::from_raw_fd(slave))
        };
        let end = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color");
        // SAFETY: calls that are allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        Self { child, master, said: String::new() }
    }

    fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until this is there; what was read before it is forgotten.
    fn expect(&mut self, wanted: &str) -> String {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            if let Some(at) = self.said.find(wanted) {
                let rest = self.said.split_off(at + wanted.len());
                return std::mem::replace(&mut self.said, rest);
            }
            assert!(std::time::Instant::now() < limit, "no {wanted:?} in {:?}", self.said);
            let mut ready =
                libc::pollfd { fd: self.master.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let mut room = [0; 65536];
            // SAFETY: one descriptor to look at.
            if unsafe { libc::poll(&mut ready, 1, 1000) } == 1 {
                match self.master.read(&mut room) {
                    Ok(0) | Err(_) => panic!("the end, and no {wanted:?} in {:?}", self.said),
                    Ok(count) => self.said += &String::from_utf8_lossy(&room[..count]),
                }
            }
        }
    }
}

#[test]
fn top_on_a_terminal_shows_processes_and_obeys_keys() {
    let folder = Folder::new();
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 5");
    let mut command = plain(common::command());
    let mut top = Terminal::start(command.env("XDG_RUNTIME_DIR", &folder.0).arg("top"));
    top.expect("adma top: 1 process,");
    top.expect(&victim.child.id().to_string());
    top.expect("engine"); // below the table, and between jumps over blanks
    top.type_in(" ");
    // The key is answered when it is; the copy after that obeys.
    let obeys = || {
        victim.ask("copy 1048576 1");
        seen(&folder, victim.child.id())["off"] == true
    };
    assert!(eventually(obeys), "still on");
    top.expect("OFF");
    top.type_in("sq");
    assert!(top.child.wait().unwrap().success());
    top.expect("\u{1b}[?1049l"); // the screen is as it was
    assert!(victim.end().success());
}

/// A shell that says `prompt> ` when it waits for a line.
fn shell(folder: &Folder) -> Terminal {
    let mut command = plain("bash");
    command.args(["--norc", "--noprofile", "-i"]).env("XDG_RUNTIME_DIR", &folder.0);
    command.env("PS1", "prompt> ").env_remove("PROMPT_COMMAND");
    let mut shell = Terminal::start(&mut command);
    shell.expect("prompt> ");
    shell
}

#[test]
fn terminal_interrupts_program_and_command_together() {
    let test = "terminal_interrupts_program_and_command_together";
    if !found("bash") {
        return skip(test, "bash is not installed");
    }
    let folder = Folder::new();
    let mut shell = shell(&folder);
    // Ctrl-C: the program's handler decides, and sees one signal.
    start_victim(&mut shell);
    shell.type_in("terminal\n");
    shell.expect("handled");
    shell.type_in("\u{3}");
    shell.expect("interrupted");
    shell.type_in("copy 4096 1\n");
    assert!(!shell.expect("copied").contains("interrupted"));
    shell.type_in("exit\n");
    shell.expect("prompt> ");
    // Without a handler: both are gone. Also if the program is in a group of its own, to which the
    // terminal sends nothing.
    for order in ["copy 4096 1", "leave"] {
        start_victim(&mut shell);
        shell.type_in(&format!("{order}\n"));
        shell.expect(if order == "leave" { "left" } else { "copied" });
        shell.type_in("\u{3}");
        shell.expect("prompt> ");
        shell.type_in("echo status $?\n");
        shell.expect("status 130");
    }
    shell.type_in("exit\n");
    shell.child.wait().unwrap();
    nothing_is_left(&folder);
}

/// Has the shell run the victim by `adma`, until it is about to read: what is typed before that may
/// be bash's.
fn start_victim(shell: &mut Terminal) {
    let script = format!("echo RE\"\"ADY; exec {}", victim("live").display());
    shell.type_in(&format!("{} bash -c '{script}'\n", common::command().display()));
    shell.expect("READY");
}

#[test]
fn terminal_suspends_program_and_command_together() {
    let test = "terminal_suspends_program_and_command_together";
    if !found("bash") {
        return skip(test, "bash is not installed");
    }
    let folder = Folder::new();
    let mut shell = shell(&folder);
    start_victim(&mut shell);
    shell.type_in("terminal\n");
    shell.expect("handled");
    for round in 0..10 {
        shell.type_in("\u{1a}");
        // The shell has its terminal back when the program has let go of it, not before.
        let before = shell.expect("Stopped");
        assert!(before.contains("tidied up"), "round {round}: {before}");
        shell.expect("prompt> ");
        shell.type_in("fg\n");
        shell.expect("went on");
        shell.type_in("copy 4096 1\n");
        shell.expect("copied");
    }
    // In the background it stops when it wants to read.
    shell.type_in("\u{1a}");
    shell.expect("prompt> ");
    shell.type_in("bg\n");
    shell.expect("went on");
    let is_stopped = || {
        shell.type_in("jobs\n");
        shell.expect("prompt> ").contains("Stopped")
    };
    assert!(eventually(is_stopped), "goes on");
    shell.type_in("fg\n");
    shell.expect("went on");
    shell.type_in("exit 7\n");
    shell.expect("prompt> ");
    shell.type_in("echo status $?\n");
    shell.expect("status 7");
    shell.type_in("exit\n");
    shell.child.wait().unwrap();
    nothing_is_left(&folder);
}
