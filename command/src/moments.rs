//! `adma check --moments`: moments at which an interposed memcpy could break a program, each played
//! by a small program under the library of this installation.
//!
//! The programs are those of the tests (`tests/programs`), compiled into this executable by
//! `build.rs`. One is played by executing ourselves again, with `moment:PROGRAM` for a name. It
//! checks itself, and ends with a status that is known.

use crate::say::{FAILED, fail, out, printable};
use crate::{library, options};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};
use std::env::ArgsOs;
use std::ffi::{CString, c_char, c_int};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time after which a moment hangs; most take a tenth of a second.
const LIMIT: Duration = Duration::from_secs(20);

/// Status of a program that cannot show its moment on this machine.
const CANNOT_BE_SHOWN: i32 = 77;

/// Status of ourselves where the library was to be loaded and is not.
const NOT_LOADED: i32 = FAILED;

/// Beginning of the name under which this executable plays a program.
const NAME: &str = "moment:";

type Main = unsafe extern "C" fn(c_int, *mut *mut c_char) -> c_int;

/// Declares the former `main` of each program, and the table of them by name.
macro_rules! programs {
    ($($name:literal $function:ident)*) => {
        unsafe extern "C" {
            $(fn $function(count: c_int, words: *mut *mut c_char) -> c_int;)*
        }
        const PROGRAMS: &[(&str, Main)] = &[$(($name, $function)),*];
    };
}

programs! {
    "outlive" moment_outlive
    "signal_handlers" moment_signal_handlers
    "trap_ends" moment_trap_ends
    "trap_forks" moment_trap_forks
    "trap_signals" moment_trap_signals
    "trap_surroundings" moment_trap_surroundings
    "trap_workers" moment_trap_workers
}

struct Moment {
    about: &'static str,
    /// The program, its scene, and arguments of that.
    words: &'static str,
    ends: Ends,
}

#[derive(Clone, Copy)]
enum Ends {
    With(i32),
    BySignal(i32),
}

const WELL: Ends = Ends::With(0);
const WORKERS: &str = "trap_workers live";

#[rustfmt::skip] // a table
const MOMENTS: [Moment; 24] = [
    Moment { about: "workers come with large copies, and leave", words: WORKERS, ends: WELL },
    Moment { about: "signal: a handler copies during a copy", words: "trap_signals storm", ends: WELL },
    Moment { about: "signal: one that is blocked stays pending", words: "trap_signals pending", ends: WELL },
    Moment { about: "signal: the first copy in a handler, small stack", words: "trap_signals handler", ends: WELL },
    Moment { about: "signal: a bad page in the handler of a bad page", words: "signal_handlers nested", ends: WELL },
    Moment { about: "signal: handlers change between copies", words: "signal_handlers between", ends: WELL },
    Moment { about: "jump: out of copies, no byte comes later", words: "trap_signals jump", ends: WELL },
    Moment { about: "jump: no file stays open", words: "outlive files 1", ends: WELL },
    Moment { about: "jump: out of a read, its stream is unlocked", words: "outlive stream", ends: WELL },
    Moment { about: "cancel: a thread in the middle of a copy", words: "trap_signals cancel", ends: WELL },
    Moment { about: "fork: while other threads copy", words: "trap_forks fork", ends: WELL },
    Moment { about: "fork: by a bare system call", words: "trap_forks bare", ends: WELL },
    Moment { about: "fork: a child of vfork copies", words: "trap_forks vfork", ends: WELL },
    Moment { about: "fork: a child of vfork is killed", words: "trap_forks vfork-killed", ends: WELL },
    Moment { about: "fork: huge pages do not reach the child", words: "outlive child", ends: WELL },
    Moment { about: "exec: during copies, again and again", words: "trap_forks exec", ends: WELL },
    Moment { about: "filter: kills for all that is not in adma(7)", words: "trap_surroundings least", ends: WELL },
    Moment { about: "filter: kills for a call of shared copies", words: "outlive masking", ends: WELL },
    Moment { about: "filter: for all threads, without exit", words: "outlive leaving kill", ends: WELL },
    Moment { about: "limit: no descriptor", words: "trap_surroundings no-files", ends: WELL },
    Moment { about: "limit: no address space", words: "trap_workers no-memory", ends: WELL },
    Moment { about: "limit: no further thread", words: "trap_workers no-processes", ends: WELL },
    Moment { about: "end: _exit while threads copy", words: "trap_ends _exit-while-copying", ends: Ends::With(7) },
    Moment { about: "end: abort", words: "trap_ends abort", ends: Ends::BySignal(libc::SIGABRT) },
];

/// Plays a program and returns its status, if our name is that of one.
pub fn play(words: ArgsOs) -> Option<i32> {
    let mut words = words.peekable();
    let name = words.peek()?.to_str()?.strip_prefix(NAME)?.to_owned();
    let (_, main) = PROGRAMS.iter().find(|(program, _)| *program == name)?;
    // SAFETY: a terminated name.
    let is_loaded = unsafe { !libc::dlsym(libc::RTLD_DEFAULT, c"adma_version".as_ptr()).is_null() };
    if std::env::var_os("LD_PRELOAD").is_some() && !is_loaded {
        return Some(NOT_LOADED);
    }
    let words: Vec<CString> = words.filter_map(|word| CString::new(word.into_vec()).ok()).collect();
    let mut pointers: Vec<*mut c_char> =
        words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    pointers.push(std::ptr::null_mut());
    // SAFETY: as the C library calls `main`: terminated words that stay, and null behind them.
    Some(unsafe { main(words.len() as c_int, pointers.as_mut_ptr()) })
}

/// Plays the moments whose line contains `word`. Returns 0 if every one ends as it should, 1 otherwise.
pub fn command(word: &str) -> i32 {
    options::check_environment();
    let path = library::preloadable(library::find());
    let mut counts = Counts::default();
    let begun = Instant::now();
    let chosen = || MOMENTS.iter().filter(|moment| moment.about.contains(word));
    if chosen().next().is_none() {
        fail(FAILED, printable(&format!("check: no moment with {word}; see check --moments")));
    }
    out(format_args!("moments under {}\n", path.display()));
    for moment in chosen() {
        let begun = Instant::now();
        let end = moment.compare(&path);
        let (verdict, why) = counts.add(moment, end);
        let (took, why) = (begun.elapsed().as_millis(), printable(&why));
        let line = format!("  {:<49} {verdict:<9} {took:>5} ms  {why}", moment.about);
        out(format_args!("{}\n", line.trim_end()));
    }
    out(format_args!("{}", counts.sentence(begun.elapsed())));
    i32::from(counts.differ > 0)
}

#[derive(Default)]
struct Counts {
    same: usize,
    differ: usize,
    not_shown: usize,
    no_workers: bool,
}

impl Counts {
    /// Counts an end. Returns a word for it, and the reason if there is one.
    fn add(&mut self, moment: &Moment, end: End) -> (&'static str, String) {
        match end {
            End::Same => {
                self.same += 1;
                ("ok", String::new())
            }
            End::Differs(why) if moment.wants_workers() => {
                self.no_workers = true;
                ("no", why)
            }
            End::Differs(why) => {
                self.differ += 1;
                ("DIFFERS", why)
            }
            End::NotShown(why) => {
                self.not_shown += 1;
                ("not shown", why)
            }
        }
    }

    fn sentence(&self, took: Duration) -> String {
        let &Self { same, differ, not_shown, no_workers } = self;
        let mut text = match differ {
            0 if same == 1 => "This moment ends as without adma".to_owned(),
            0 => format!("All {same} moments end as without adma"),
            _ => format!("{differ} of {} moments differ from those without adma", same + differ),
        };
        if not_shown > 0 {
            text += &format!("; {not_shown} not shown");
        }
        text += &format!(" ({:.1} s).\n", took.as_secs_f64());
        if no_workers {
            text += "No worker came, so these copies were the C library's; see adma check.\n";
        }
        text
    }
}

/// How a moment has ended.
enum End {
    Same,
    Differs(String),
    NotShown(String),
}

impl Moment {
    /// Returns whether it shows that workers come: without any, the others show little.
    fn wants_workers(&self) -> bool {
        self.words == WORKERS
    }

    /// Plays it with the library; and without, where it does not end as it should with it.
    fn compare(&self, library: &Path) -> End {
        let mut with = self.command();
        with.env("LD_PRELOAD", library);
        for (knob, value) in [("ADMA_MIN_BYTES", "64K"), ("ADMA_CHANNELS", "4")] {
            if std::env::var_os(knob).is_none() {
                with.env(knob, value);
            }
        }
        if self.wants_workers() {
            with.env("TRAP_WORKERS", "1");
        }
        match self.play(&mut with) {
            End::Differs(why) => match self.play(&mut self.command()) {
                End::Same => End::Differs(why),
                _ => End::NotShown("fails without adma as well".to_owned()),
            },
            end => end,
        }
    }

    /// Returns the command that plays it, without the library, quiet, and with few rounds.
    fn command(&self) -> Command {
        let mut words = self.words.split(' ');
        let mut command = Command::new(library::myself());
        command.arg0(format!("{NAME}{}", words.next().unwrap_or_default())).args(words);
        command.env_remove("LD_PRELOAD").env_remove("TRAP_WORKERS").env("TRAP_LESS", "10");
        for name in ["ADMA_STATS", "ADMA_STATS_FILE", "ADMA_PROFILE", "ADMA_LOG", "ADMA_LIVE"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.process_group(0);
        command
    }

    fn play(&self, command: &mut Command) -> End {
        let mut child = command
            .spawn()
            .unwrap_or_else(|why| fail(FAILED, format_args!("cannot start again: {why}")));
        let Some(status) = wait(&mut child) else {
            return End::Differs(format!("hangs, killed after {} s", LIMIT.as_secs()));
        };
        let said = last_line(&mut child);
        if status.code() == Some(NOT_LOADED) {
            fail(FAILED, "the library could not be loaded");
        }
        if status.code() == Some(CANNOT_BE_SHOWN) {
            return End::NotShown(said);
        }
        let is_expected = match self.ends {
            Ends::With(code) => status.code() == Some(code),
            Ends::BySignal(signal) => status.signal() == Some(signal),
        };
        match is_expected {
            true => End::Same,
            false => End::Differs(format!("{status}: {said}").trim_end_matches(": ").to_owned()),
        }
    }
}

/// Waits for the end of a child. `None`: it took too long, and was killed with all its processes.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if begun.elapsed() > LIMIT {
            let group = Pid::from_raw(child.id() as i32);
            // A failure leaves it to itself.
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the last line of a child's standard error. Reads what is there: a process that is left
/// may keep it open.
fn last_line(child: &mut Child) -> String {
    let Some(mut pipe) = child.stderr.take() else { return String::new() };
    let mut text = Vec::new();
    if fcntl_setfl(&pipe, OFlags::NONBLOCK).is_ok() {
        let _ = pipe.read_to_end(&mut text); // ends with an error where it is still open
    }
    String::from_utf8_lossy(&text).lines().last().unwrap_or_default().to_owned()
}
