//! `adma top`: its output, and changes of a running process.

use super::*;

/// Returns whether a process has a row; there may be others of this user.
fn is_shown(table: &str, pid: u32) -> bool {
    table.lines().any(|line| line.split_whitespace().next() == Some(&pid.to_string()))
}

#[test]
fn top_has_metrics_for_prometheus() {
    let folder = in_memory();
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 3");
    victim.ask("read 1048576 4");
    let metrics = top(&folder, &["--metrics"]);
    let names = "program=\"live\",name=\"live\",command=\"live\"";
    let whose = format!("{{pid=\"{}\",{names}", victim.child.id());
    for line in [
        format!("adma_copies_total{whose},path=\"engine\"}} 7"),
        format!("adma_bytes_total{whose},path=\"engine\"}} 7340032"),
        format!("adma_reads_total{whose},path=\"engine\"}} 4"),
        format!("adma_read_bytes_total{whose},path=\"engine\"}} 4194304"),
        format!("adma_threshold_bytes{whose}}} 65536"),
        format!("adma_channels{whose},backend=\"threads\"}} 1"),
        "# TYPE adma_copies_total counter".to_owned(),
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line} is missing: {metrics}");
    }
    let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().is_ok();
    assert!(metrics.lines().all(|line| line.starts_with("# ") || value(line)), "{metrics}");
    assert!(victim.end().success());
}

#[test]
fn top_shows_a_quiet_service_that_keeps_statistics_in_a_folder() {
    let folder = in_memory();
    let place = made(folder.join("service"));
    let mut service = adma(&folder);
    service.arg("-q").arg(victim("live")).env("ADMA_LIVE", &place);
    let mut service = Victim::start(&mut service);
    service.ask("copy 1048576 3");
    let pid = service.child.id();
    assert!(!is_shown(&top(&folder, &["--once"]), pid));
    assert!(is_shown(&top(&folder, &["--once", "--folder", place.to_str().unwrap()]), pid));
    assert!(service.end().success());
}

#[test]
fn top_of_root_shows_processes_of_other_users_if_asked() {
    use std::os::unix::process::CommandExt;
    if !common::is_root() {
        return skip_this("not root");
    }
    // A user id without a name.
    const OTHER: u32 = 64321;
    let folder = in_memory();
    let mut command = preloaded(victim("live"));
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", "/dev/null").uid(OTHER).gid(OTHER);
    let mut victim = Victim::start(carrying(&mut command).env_remove("XDG_RUNTIME_DIR"));
    victim.ask("copy 1048576 3");
    let pid = victim.child.id();
    let all = top(&folder, &["--once", "--all"]);
    if !is_shown(&all, pid) && !Path::new(&format!("/dev/shm/adma-{OTHER}")).exists() {
        return skip_this("another user cannot reach the library here");
    }
    let row = all.lines().find(|line| line.trim_start().starts_with(&pid.to_string())).expect(&all);
    assert_eq!(row.split_whitespace().nth(1), Some("64321"), "{all}");
    assert!(!is_shown(&top(&folder, &["--once"]), pid));
    assert!(victim.end().success());
    let _ = fs::remove_dir_all(format!("/dev/shm/adma-{OTHER}"));
}

#[test]
fn top_shows_what_processes_have_copied() {
    let folder = in_memory();
    let (mut first, mut second) = (watched(&folder), watched(&folder));
    first.ask("copy 1048576 5");
    second.ask("copy 2097152 3");
    let json = seen(&folder, first.child.id());
    assert_eq!((number(&json["copies"]), number(&json["bytes"])), (5, 5 * MIB), "{json}");
    assert_eq!(json["state"], "Running");
    assert_eq!(json["backend"], "threads");
    let is_known = json["saved"]["seconds"].is_number();
    assert_eq!(is_known, json["saved"]["low"].is_number() && json["saved"]["high"].is_number());
    assert_eq!(is_known, json["saved"]["reason"].is_null(), "{json}");
    first.ask("read 1048576 2");
    let json = seen(&folder, first.child.id());
    assert_eq!(number(&json["reads"]["engine"]["calls"]), 2, "{json}");
    assert!(json["reads_per_second"].as_f64() > Some(0.0), "{json}");
    let table = top(&folder, &["--once"]);
    assert!(table.starts_with("    PID PROGRAM"), "{table}");
    assert!(is_shown(&table, first.child.id()), "{table}");
    assert!(table.contains(&format!("{:>7} live", second.child.id())), "{table}");
    let (offered, _) = succeed(adma(&folder).args(["--complete", "top", ""]));
    let pid = format!("{}\tlive", second.child.id());
    assert!(offered.lines().any(|line| line == pid), "a shell offers {pid}: {offered}");
    assert!(table.lines().any(|line| line.contains(" 64 KiB ")), "its threshold: {table}");
    // A tree's processes are seen too.
    let mut inside = Victim::start(adma(&folder).arg(victim("live")));
    inside.ask("copy 1048576 2");
    let tree = files(&folder.join("adma")).into_iter().find(|path| path.is_dir()).unwrap();
    let name = files(&tree).remove(0).file_name().unwrap().to_str().unwrap().to_owned();
    let pid = name.split('-').next().unwrap().parse().unwrap();
    assert!(is_shown(&top(&folder, &["--once"]), pid));
    for victim in [first, second, inside] {
        assert!(victim.end().success());
    }
    // A process that does not exist is an error.
    let (status, out, err) = ended(&mut top_command(&folder, &["4194305", "--once"]));
    assert_eq!((status, &*out), (Some(1), ""));
    assert!(err.contains("process 4194305"), "{err}");
}

#[test]
fn top_removes_what_killed_processes_left_and_believes_nothing_strange() {
    let folder = in_memory();
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 2");
    victim.order("kill");
    victim.end();
    let place = folder.join("adma");
    assert_eq!(files(&place).len(), 1);
    // Other files are neither shown nor followed, and are kept while their process is alive.
    let me = std::process::id();
    fs::write(place.join(format!("{me}-1")), vec![0xff; Live::SIZE]).unwrap();
    fs::write(place.join(format!("{me}-2")), "short").unwrap();
    fs::write(place.join(format!("{me}-5")), vec![0; Live::SIZE]).unwrap();
    symlink("/etc/passwd", place.join(format!("{me}-3"))).unwrap();
    succeed(plain("mkfifo").arg(place.join(format!("{me}-4"))));
    assert!(!is_shown(&top(&folder, &["--once"]), me));
    assert_eq!(files(&place).len(), 5);
    // In a folder that others can write to nothing is trusted.
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 2");
    let pid = victim.child.id();
    assert!(is_shown(&top(&folder, &["--once"]), pid));
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(!is_shown(&top(&folder, &["--once"]), pid));
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(victim.end().success());
}

#[test]
fn hostile_numbers_are_shown_without_harm() {
    let folder = in_memory();
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 2");
    let file = files(&folder.join("adma")).remove(0);
    let head = fs::read(&file).unwrap()[..std::mem::offset_of!(Live, facts)].to_vec();
    let mut bytes = vec![0xff; Live::SIZE];
    bytes[..head.len()].copy_from_slice(&head);
    // As many channels as there can be, or it would be refused.
    let channels = std::mem::offset_of!(Live, facts) + std::mem::offset_of!(Facts, channels);
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
    let folder = in_memory();
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

    set(&["on", "min=64M", "channels=3"]);
    victim.ask("copy 1048576 1");
    let before = seen(&folder, pid);
    victim.ask("copy 1048576 10");
    let json = seen(&folder, pid);
    let below = |json: &Value| number(&json["fallbacks"]["below_min"]);
    assert_eq!(below(&json), below(&before) + 10, "{json}");
    assert_eq!(number(&json["copies"]), number(&before["copies"]) + 10, "{json}");
    victim.ask("copy 67108864 1");
    let json = seen(&folder, pid);
    assert_eq!(below(&json), below(&before) + 10, "{json}");
    assert_eq!((number(&json["min_bytes"]), number(&json["channels"])), (64 * MIB, 3), "{json}");

    // Calls below the threshold see that it is undone.
    set(&["min=auto", "channels=auto"]);
    victim.ask("copy 1048576 1");
    let before = seen(&folder, pid);
    victim.ask("copy 1048576 10");
    let json = seen(&folder, pid);
    assert_eq!(below(&json), below(&before), "as configured again: {json}");
    assert_eq!(number(&json["copies"]), number(&before["copies"]) + 10, "{json}");
    assert!(victim.end().success());
}

#[test]
fn nonsense_in_the_control_part_is_not_obeyed() {
    use std::os::unix::fs::FileExt;
    let folder = in_memory();
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 3");
    let file = files(&folder.join("adma")).remove(0);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let control = std::mem::offset_of!(Live, control);
    let bytes = vec![0xff; size_of::<Control>()];
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
    let folder = in_memory();
    let set = |words: &[&str]| {
        let (status, _, err) = ended(&mut top_command(&folder, &[&["--set"], words].concat()));
        assert!(status.is_some_and(|code| code > 0), "{words:?}");
        assert_eq!(err.lines().count(), 1, "{err}");
        err
    };
    assert!(set(&[]).contains("<PID> is missing"));
    assert!(set(&["1", "off"]).contains("keeps no live statistics"));
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 3");
    let pid = victim.child.id().to_string();
    for word in
        ["sideways", "", "OFF", "min=", "min=1", "min=-5", "min=1T", "channels=0", "channels=65"]
    {
        assert!(set(&[&pid, word]).contains(&format!("adma: {word}: want ")), "{word}");
    }
    assert!(victim.end().success());
}
