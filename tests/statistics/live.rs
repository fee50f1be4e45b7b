//! The live file of a process, and processes that cannot have one.

use super::*;

#[test]
fn file_is_made_by_the_first_large_copy_and_removed_at_exit() {
    let folder = in_memory();
    let mut command = preloaded(victim("live"));
    carrying(&mut command).env("ADMA_STATS", "json").env("ADMA_STATS_FILE", "/dev/null");
    let mut victim = Victim::start(command.env("XDG_RUNTIME_DIR", &folder.0));
    let place = folder.join("adma");
    assert_eq!(victim.ask("copy 4096 10"), "copied");
    assert!(!place.exists(), "no large copy yet");
    victim.ask("copy 1000000 10");
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o7777, 0o700);
    let file = files(&place).remove(0);
    let about = fs::metadata(&file).unwrap();
    assert_eq!(about.permissions().mode() & 0o7777, 0o400, "not cut off by mistake");
    assert_eq!(about.len(), Live::SIZE as u64);
    let live = read(&file);
    assert_eq!(counted(&live), (10, 10_000_000));
    assert_eq!(live.head.pid.load(Relaxed), victim.child.id());
    assert!(live.head.exe.get(&mut [0; 256]).ends_with(b"/live"));
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
    let folder = in_memory();
    for (knob, value) in [("ADMA_LOG", "warn"), ("ADMA_LIVE", "off")] {
        let mut command = preloaded(victim("live"));
        carrying(&mut command).env(knob, value).env("XDG_RUNTIME_DIR", &folder.0);
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
fn collected_file_holds_how_the_process_ended() {
    let expected = [
        ("exit 3", how_ended::EXIT, 3, Some(3)),
        ("_exit 4", how_ended::AT_ONCE, 4, Some(4)),
        ("kill", how_ended::NOT, NO_STATUS, None),
    ];
    for (order, how, status, code) in expected {
        let folder = in_memory();
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
        // A busy machine leaves a copy to libc; a killed process has not counted the last one.
        let carried = live.recorder.engine_bytes();
        let told = shares == carried || (code.is_none() && shares <= carried);
        assert!(told, "{order}: shares of channels too: {shares} of {carried}");
    }
}

#[test]
fn each_process_and_program_counts_in_a_file_of_its_own() {
    // Orders, and the copies in each file. A child without large copies makes none, and one that
    // ran no handler of ours counts nowhere.
    let table: [(&[&str], &[u64]); 3] = [
        (&["copy 1048576 2", "fork 3", "fork 0", "copy 1048576 1"], &[3, 3]),
        (&["copy 1048576 2", "rawfork 5"], &[2]),
        (&["copy 1048576 2", "exec", "copy 1048576 3"], &[2, 3]),
    ];
    for (orders, expected) in table {
        let folder = in_memory();
        let mut victim = Victim::start(&mut collected(&folder.0));
        let before = victim.ask("descriptor");
        for order in orders {
            victim.ask(order);
        }
        assert_eq!(victim.ask("descriptor"), before, "descriptors keep their numbers");
        assert!(victim.end().success());
        let mut counts: Vec<_> = files(&folder.0).iter().map(|path| counted(&read(path))).collect();
        counts.sort_unstable();
        let expected: Vec<_> = expected.iter().map(|copies| (*copies, copies * MIB)).collect();
        assert_eq!(counts, expected, "{orders:?}");
    }
}

/// Returns messages and bytes in each direction.
fn messages(live: &Live) -> [(u64, u64); 2] {
    live.messages.sums().unwrap().directions.map(|(_, messages, bytes)| (messages, bytes))
}

#[test]
fn messages_are_counted_in_the_file_and_outlive_a_killed_process() {
    let folder = in_memory();
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

/// Checks that the program runs, and that its report at exit is complete.
fn goes_on_without(place: &Path, what: &str) {
    reports_whole(collected(place).env("ADMA_STATS", "json"), what);
}

fn reports_whole(command: &mut Command, what: &str) {
    let mut victim = Victim::start(command.stderr(Stdio::piped()));
    assert_eq!(victim.ask("copy 1048576 4"), "copied", "{what}");
    drop(victim.child.stdin.take());
    let done = victim.child.wait_with_output().unwrap();
    assert!(done.status.success(), "{what}");
    let json: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(number(&json["paths"]["engine"]["calls"]), 4, "{what}: {json}");
}

#[test]
fn folder_that_is_not_private_is_not_used() {
    let folder = in_memory();
    let real = made(folder.join("real"));
    let link = folder.join("link");
    symlink(&real, &link).unwrap();
    goes_on_without(&link, "a link");
    let open = made(folder.join("open"));
    fs::set_permissions(&open, fs::Permissions::from_mode(0o770)).unwrap();
    goes_on_without(&open, "others may write to it");
    goes_on_without(&folder.join("no/such/folder"), "nothing");
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    goes_on_without(&file, "a file");
    if common::is_root() {
        let foreign = made(folder.join("foreign"));
        std::os::unix::fs::chown(&foreign, Some(12345), None).unwrap();
        goes_on_without(&foreign, "another user's");
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
    let folder = in_memory();
    let mut victim = Victim::start(&mut collected(&folder.0));
    assert_eq!(victim.ask("fsize"), "limited");
    assert_eq!(victim.ask("copy 1048576 4"), "copied");
    assert!(victim.end().success());
    assert!(files(&folder.0).is_empty(), "and nothing is left");
}

#[test]
fn full_folder_is_no_signal() {
    let folder = in_memory();
    let script = "mount -t tmpfs -o size=40k,mode=700 none \"$ADMA_LIVE\" && exec \"$@\"";
    let wrap = |program: &mut Command, name: &str| {
        let mut command = plain("unshare");
        command.args(["-m", "sh", "-c", script, "sh", "env", "--"]);
        command.arg(format!("LD_PRELOAD={}", common::library().display()));
        command.arg(program.get_program()).env("ADMA_LIVE", made(folder.join(name)));
        carrying(&mut command).env("ADMA_STATS", "json");
        command
    };
    if !finish(&mut wrap(&mut plain("true"), "probe")).status.success() {
        return skip_this("this system does not let us mount");
    }
    reports_whole(&mut wrap(&mut plain(victim("live")), "full"), "a full folder");
}
