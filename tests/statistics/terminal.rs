//! `adma top` and `adma program` on a terminal.

use super::*;

/// A program on a terminal of its own, as session leader.
struct Terminal {
    child: Child,
    master: fs::File,
    said: String,
}

impl Terminal {
    fn start(command: &mut Command) -> Self {
        Self::of(command, 100, "xterm-256color")
    }

    fn of(command: &mut Command, columns: u16, term: &str) -> Self {
        use std::os::fd::FromRawFd;
        use std::os::unix::process::CommandExt;
        let (mut master, mut slave) = (0, 0);
        let size = libc::winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let null = std::ptr::null_mut();
        // SAFETY: two places for descriptors, which become ours.
        let (master, slave) = unsafe {
            assert_eq!(libc::openpty(&mut master, &mut slave, null, null.cast(), &size), 0);
            libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
            (fs::File::from_raw_fd(master), fs::File::from_raw_fd(slave))
        };
        let end = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", term);
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

    /// Types keys and reads until the wanted answer is there.
    fn answers(&mut self, keys: &str, wanted: &str) -> String {
        self.type_in(keys);
        self.expect(wanted)
    }

    /// Reads until this appears; what was read before it is dropped.
    fn expect(&mut self, wanted: &str) -> String {
        use std::io::Read;
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.said.find(wanted) {
                let rest = self.said.split_off(at + wanted.len());
                return std::mem::replace(&mut self.said, rest);
            }
            assert!(Instant::now() < limit, "no {wanted:?} in {:?}", self.said);
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
    let folder = in_memory();
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 5");
    let pid = victim.child.id().to_string();
    let mut top = Terminal::start(&mut top_command(&folder, &[&pid]));
    top.expect("adma top: 1 process,");
    top.expect(&pid);
    top.expect("engine"); // below the table, and between jumps over blanks
    top.type_in(" ");
    // The key is answered when it was handled; the next copy obeys.
    let obeys = || {
        victim.ask("copy 1048576 1");
        seen(&folder, victim.child.id())["off"] == true
    };
    assert!(eventually(obeys), "still on");
    top.expect("OFF");
    top.answers("h", "PgDn");
    top.answers("h/zz", "matches"); // none does
    top.answers("\u{1b}", "engine");
    top.type_in("sq");
    assert!(top.child.wait().unwrap().success());
    top.expect("\u{1b}[?1049l"); // the screen is as it was
    assert!(victim.end().success());
}

#[test]
fn top_names_the_lines_of_a_running_script() {
    needs!(has("/usr/bin/python3"));
    let folder = in_memory();
    let mut command = preloaded("/usr/bin/python3");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", "/dev/null");
    carrying(&mut command).env("XDG_RUNTIME_DIR", &folder.0);
    let mut script = command.arg(script_that_copies(&folder, 120.0)).spawn().unwrap();
    let pid = script.id();
    let is_shown = || {
        let table = top(&folder, &["--once"]);
        table.lines().any(|line| line.trim_start().starts_with(&format!("{pid} ")))
    };
    assert!(eventually(is_shown));
    // Each second a line of JSON; the first sample is taken before anything was looked for.
    let mut objects = Victim::start(&mut top_command(&folder, &["--json", &pid.to_string()]));
    let names_it = || objects.answer().contains("\"name\":\"train.py:4 load_batch, ");
    assert!(eventually(names_it));
    objects.child.kill().unwrap();
    let _ = objects.child.wait();
    let mut screen = Terminal::start(&mut top_command(&folder, &[&pid.to_string()]));
    screen.expect("train.py:4"); // what is the same as before is not drawn again
    screen.type_in("q");
    assert!(screen.child.wait().unwrap().success());
    script.kill().unwrap();
    script.wait().unwrap();
}

#[test]
fn top_drops_columns_where_there_is_no_room_and_prints_lines_on_a_dumb_terminal() {
    let folder = in_memory();
    let mut victim = watched(&folder);
    victim.ask("copy 1048576 5");
    let pid = victim.child.id().to_string();
    // Columns of the terminal, and the last of the table.
    for (columns, last) in [(200, "READS/S"), (75, "SAVED"), (40, "ENGINE"), (30, "BYTES/S")] {
        let mut command = top_command(&folder, &[&pid, "--once"]);
        let mut top = Terminal::of(&mut command, columns, "dumb");
        let head = top.expect("\n");
        assert!(head.trim_end().ends_with(last), "{columns}: {head}");
        let row = top.expect("\n");
        for line in [&head, &row] {
            assert!(line.trim_end().chars().count() <= columns.into(), "{columns}: {line}");
        }
        assert!(row.contains(&format!("{pid} live")), "{row}");
        assert!(top.child.wait().unwrap().success());
    }
    let mut top = Terminal::of(&mut top_command(&folder, &[&pid]), 80, "dumb");
    for _ in 0..2 {
        assert!(!top.expect("PID PROGRAM").contains('\u{1b}'));
    }
    assert!(victim.end().success());
    assert_eq!(top.child.wait().unwrap().code(), Some(1), "there is nothing left to show");
}

#[test]
fn program_without_a_large_copy_costs_a_line_on_a_terminal_only() {
    let folder = in_memory();
    let mut terminal = Terminal::start(adma(&folder).args(["-m", "auto", "echo", "hello"]));
    let said = terminal.expect("was recorded");
    assert!(
        said.starts_with("hello") && said.contains("adma: no call of 256 KiB or more"),
        "{said}"
    );
    assert!(terminal.child.wait().unwrap().success());
    let mut terminal = Terminal::start(adma(&folder).args(["-m", "1M", "true"]));
    terminal.expect("adma: no call of 1 MiB or more was recorded");
    assert!(terminal.child.wait().unwrap().success());
}

/// Starts a shell with the prompt `prompt> `, if there is one.
fn shell() -> Option<(Folder, Terminal)> {
    has("bash").then_some(())?;
    let folder = in_memory();
    let mut command = plain("bash");
    command.args(["--norc", "--noprofile", "-i"]).env("XDG_RUNTIME_DIR", &folder.0);
    command.env("PS1", "prompt> ").env_remove("PROMPT_COMMAND");
    let mut shell = Terminal::start(&mut command);
    shell.expect("prompt> ");
    Some((folder, shell))
}

#[test]
fn terminal_interrupts_program_and_command_together() {
    let Some((folder, mut shell)) = shell() else { return };
    // Ctrl-C: the program's handler decides, and gets one signal.
    start_victim(&mut shell);
    shell.answers("terminal\n", "handled");
    shell.answers("\u{3}", "interrupted");
    assert!(!shell.answers("copy 4096 1\n", "copied").contains("interrupted"));
    shell.answers("exit\n", "prompt> ");
    // Without a handler both end. Also if the program is in a group of its own, to which the
    // terminal sends nothing.
    for order in ["copy 4096 1", "leave"] {
        start_victim(&mut shell);
        shell.answers(&format!("{order}\n"), if order == "leave" { "left" } else { "copied" });
        shell.answers("\u{3}", "prompt> ");
        shell.answers("echo status $?\n", "status 130");
    }
    // Programs of adma bench are ended as well, even if they have left the terminal.
    for program in ["sleep 1000", "setsid -w sleep 1000"] {
        shell.type_in(&format!("{} bench {program}\n", common::command().display()));
        shell.expect("warm-up 1 of 1");
        shell.answers("\u{3}", "adma: interrupted before a round was complete");
        shell.answers("echo status $?\n", "status 130");
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
    let Some((folder, mut shell)) = shell() else { return };
    start_victim(&mut shell);
    shell.answers("terminal\n", "handled");
    for round in 0..10 {
        shell.type_in("\u{1a}");
        // The shell has its terminal back when the program has stopped, not before.
        let before = shell.expect("Stopped");
        assert!(before.contains("tidied up"), "round {round}: {before}");
        shell.expect("prompt> ");
        shell.answers("fg\n", "went on");
        shell.answers("copy 4096 1\n", "copied");
    }
    // In the background it stops when it wants to read.
    shell.answers("\u{1a}", "prompt> ");
    shell.answers("bg\n", "went on");
    let is_stopped = || shell.answers("jobs\n", "prompt> ").contains("Stopped");
    assert!(eventually(is_stopped), "goes on");
    shell.answers("fg\n", "went on");
    shell.answers("exit 7\n", "prompt> ");
    shell.answers("echo status $?\n", "status 7");
    shell.type_in("exit\n");
    shell.child.wait().unwrap();
    nothing_is_left(&folder);
}
