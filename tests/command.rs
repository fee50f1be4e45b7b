//! The command adma as it is installed: where it finds its library, what the program inherits,
//! what it says of programs that cannot be helped, and its reports in a browser.
//!
//! What preload.sh has in common with it is tested in tests/preload.rs.

mod common;

use common::{
    command, finish, found, is_root, library, plain, preloaded, root, scratch, skip, statistics,
    succeed, victim, victim_with,
};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The command of the source tree, with no knob of ours inherited.
fn adma() -> Command {
    plain(command())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn executable(path: &Path, contents: &str) {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

// ---- where the library is ----------------------------------------------------------------

#[test]
fn library_is_found_in_every_layout_of_an_installation() {
    let layouts = [
        ("bin/adma", "lib/x86_64-linux-gnu/libadma.so.0"),
        ("bin/adma", "lib/libadma.so.0"),
        ("bin/adma", "lib64/libadma.so.0"),
        ("bin/adma", "lib/libadma.so"),
        ("target/release/adma", "target/release/libadma.so"),
        ("lib/adma/adma", "lib/libadma.so.0"),
    ];
    for (binary, lib) in layouts {
        let place = scratch("layout").canonicalize().unwrap();
        for (from, to) in [(command(), place.join(binary)), (library(), place.join(lib))] {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        }
        let expected = format!("{}\n", place.join(lib).display());
        let (out, err) = succeed(plain(place.join(binary)).arg("--libpath").current_dir("/"));
        assert_eq!((out, err), (expected.clone(), String::new()), "{binary}");
        // By a link from somewhere else, and by its name in PATH.
        let away = place.join("away");
        fs::create_dir(&away).unwrap();
        symlink(place.join(binary), away.join("adma")).unwrap();
        let (out, _) = succeed(plain(away.join("adma")).arg("--libpath"));
        assert_eq!(out, expected, "{binary} by a link");
        let path = format!("{}:{}", away.display(), std::env::var("PATH").unwrap());
        let mut named = plain("sh");
        named.args(["-c", "adma sh -c 'echo $LD_PRELOAD'"]).env("PATH", path);
        assert_eq!(succeed(&mut named).0, expected, "{binary} by PATH");
        fs::remove_dir_all(&place).unwrap();
    }
}

#[test]
fn command_without_its_library_says_so_and_runs_nothing() {
    let place = scratch("alone");
    fs::copy(command(), place.join("adma")).unwrap();
    for arguments in [&["echo", "ran"][..], &["--libpath"], &["check"]] {
        let done = finish(plain(place.join("adma")).args(arguments));
        assert_eq!(done.status.code(), Some(125), "{arguments:?}");
        assert_eq!(text(&done.stdout), "", "{arguments:?}");
        let err = text(&done.stderr);
        assert!(err.starts_with("adma: no libadma.so") && err.lines().count() == 1, "{err}");
    }
}

#[test]
fn library_that_cannot_be_loaded_does_not_check_for_ever() {
    let place = scratch("broken");
    fs::copy(command(), place.join("adma")).unwrap();
    fs::write(place.join("libadma.so"), "no library").unwrap();
    let done = finish(plain(place.join("adma")).arg("check"));
    assert_eq!(done.status.code(), Some(125));
    assert!(text(&done.stderr).ends_with("adma: the library could not be loaded\n"));
}

#[test]
fn check_is_a_word_and_an_option() {
    for spelling in ["check", "--check"] {
        let (out, err) = succeed(adma().arg(spelling));
        assert!(out.starts_with("adma ") && out.contains("\n  gain "), "{out}");
        assert_eq!(err, "");
    }
    let done = finish(adma().args(["check", "this"]));
    assert_eq!(done.status.code(), Some(125));
    assert!(text(&done.stderr).contains("adma -- check"), "{}", text(&done.stderr));
}

// ---- what the program inherits -----------------------------------------------------------

#[test]
fn signals_and_closed_descriptors_are_inherited_unchanged() {
    // Ignored and blocked signals, and which descriptors are open.
    let show = "grep -E \"^Sig(Blk|Ign)\" /proc/self/status; ls /proc/self/fd; :";
    let prepare = ["true", "trap '' PIPE", "trap '' HUP INT", "exec 0<&-", "exec 7</dev/null"];
    for before in prepare {
        let run = |with: &str| {
            let script = format!("{before}; exec {with} sh -c '{show}'");
            succeed(plain("bash").args(["-c", &script])).0
        };
        let ours = command();
        for options in ["-q", ""] {
            let ours = format!("'{}' {options}", ours.display());
            assert_eq!(run(&ours), run("env"), "{before}: {options}");
        }
    }
}

#[test]
fn program_takes_the_process_over_where_nothing_is_collected() {
    let mut child = adma();
    child.args(["-q", "sh", "-c", "echo $$; exit 9"]).stdout(Stdio::piped());
    let child = child.spawn().unwrap();
    let number = child.id();
    let done = child.wait_with_output().unwrap();
    assert_eq!(text(&done.stdout), format!("{number}\n"));
    assert_eq!(done.status.code(), Some(9));
    let done = finish(adma().args(["sh", "-c", "kill -KILL $$"]));
    assert_eq!(done.status.signal(), Some(9));
}

#[test]
fn program_with_the_name_of_a_subcommand_runs_behind_dashes() {
    let place = scratch("names");
    for name in ["check", "report"] {
        executable(&place.join(name), "#!/bin/sh\necho a program \"$@\"\n");
        let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
        for before in [&["--"][..], &["-q"], &["-b", "libc"]] {
            let (out, _) = succeed(adma().args(before).args([name, "x"]).env("PATH", &path));
            assert_eq!(out, "a program x\n", "{before:?} {name}");
        }
    }
}

#[test]
fn script_without_an_interpreter_is_the_shells() {
    let script = scratch("plain").join("script");
    executable(&script, "echo ran by a shell\n");
    assert_eq!(succeed(adma().arg(&script)).0, "ran by a shell\n");
}

#[test]
fn program_that_is_not_there_or_not_executable_has_the_shells_status() {
    let place = scratch("missing");
    fs::write(place.join("data"), "text").unwrap();
    let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
    for (program, status) in [("no-such-program", 127), ("data", 126), ("./data", 126), ("", 127)] {
        let done = finish(adma().arg(program).current_dir(&place).env("PATH", &path));
        let err = text(&done.stderr);
        assert_eq!(done.status.code(), Some(status), "{program}: {err}");
        assert!(err.starts_with("adma: ") && err.lines().count() == 1, "{program}: {err}");
    }
    executable(&place.join("stale"), "#!/no/such/interpreter\n");
    let done = finish(adma().arg(place.join("stale")));
    assert_eq!(done.status.code(), Some(127), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("interpreter"), "{}", text(&done.stderr));
}

// ---- programs that cannot be helped --------------------------------------------------------

/// One line that says `why`, and the program runs all the same.
fn warns(program: &Path, why: &str, mut run: impl FnMut() -> Command) {
    let name = program.display().to_string();
    let done = finish(run().arg(program));
    let err = text(&done.stderr);
    assert!(err.starts_with(&format!("adma: warning: {name} ")), "{err}");
    assert!(err.contains(why) && err.lines().count() == 1, "{why}: {err}");
    for quiet in [&["-q"][..], &["--quiet"]] {
        let done = finish(run().args(quiet).arg(program));
        assert_eq!(text(&done.stderr), "", "{name} {quiet:?}");
    }
    let done = finish(run().arg(program).env("ADMA_LOG", "error"));
    assert_eq!(text(&done.stderr), "", "{name} with ADMA_LOG=error");
}

#[test]
fn warning_for_a_statically_linked_program_and_its_scripts() {
    let program = victim_with("trap_stdout", &["-static"]);
    warns(&program, "is statically linked", adma);
    let place = scratch("static");
    let script = place.join("script");
    executable(&script, &format!("#!{} x\n", program.display()));
    warns(
        &script,
        &format!("is executed by {}, which is statically linked", program.display()),
        adma,
    );
    let link = place.join("interpreter");
    symlink(&program, &link).unwrap();
    executable(&script, "#!/usr/bin/env -S A=1 interpreter\n");
    let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
    warns(&script, "which is statically linked", || {
        let mut command = adma();
        command.env("PATH", &path);
        command
    });
    // The same text as without us.
    let (out, _) = succeed(adma().arg(&program));
    assert_eq!(out, succeed(&mut plain(&program)).0);
}

#[test]
fn program_of_another_c_library_is_warned_of_and_runs_without_ours() {
    // glibc's loader under the name of musl's: the program runs, and is not what it seems.
    let place = scratch("musl").canonicalize().unwrap();
    let loader = place.join("ld-musl-x86_64.so.1");
    symlink("/lib64/ld-linux-x86-64.so.2", &loader).unwrap();
    let source = place.join("show.c");
    fs::write(&source, "#include <stdio.h>\n#include <stdlib.h>\nint main(void)\n{\n\tconst char *p = getenv(\"LD_PRELOAD\");\n\tputs(p ? p : \"none\");\n\treturn 3;\n}\n").unwrap();
    let program = place.join("show");
    let flag = format!("-Wl,--dynamic-linker={}", loader.display());
    succeed(plain("gcc").arg("-o").arg(&program).arg(&source).arg(flag));
    warns(&program, "has another C library", adma);
    let done = finish(adma().arg(&program));
    assert_eq!((text(&done.stdout), done.status.code()), ("none\n".to_owned(), Some(3)));
}

/// LD_PRELOAD reaches such a program as a child, too; its loader would refuse to start it for a
/// symbol that only glibc has.
#[test]
fn musl_program_runs_unharmed_also_as_a_child() {
    const NAME: &str = "musl_program_runs_unharmed_also_as_a_child";
    if finish(plain("sh").args(["-c", "command -v musl-gcc"])).stdout.is_empty() {
        return skip(NAME, "no musl-gcc (musl-tools)");
    }
    let place = scratch("real-musl").canonicalize().unwrap();
    let program = place.join("oracle");
    let source = root().join("tests/programs/musl.c");
    succeed(plain("musl-gcc").args(["-O1", "-fno-builtin", "-o"]).arg(&program).arg(source));
    let expected = succeed(&mut plain(&program)).0;
    assert_eq!(expected, "copied 100 times, caught one\n");
    warns(&program, "has another C library", adma);
    assert_eq!(succeed(adma().arg(&program)).0, expected);
    // Nobody has looked at this one before it is executed.
    let (out, err) = succeed(adma().args(["sh", "-c", "\"$0\"; \"$0\""]).arg(&program));
    assert_eq!((out, err), (expected.repeat(2), String::new()));
    fs::remove_dir_all(place).unwrap();
}

#[test]
fn program_of_32_bits_is_warned_of_and_runs_as_it_would() {
    let place = scratch("bits");
    let source = place.join("seven.s");
    fs::write(&source, ".globl _start\n_start:\nmovl $1, %eax\nmovl $7, %ebx\nint $0x80\n")
        .unwrap();
    let program = place.join("seven");
    let built = finish(
        plain("gcc").args(["-m32", "-nostdlib", "-static", "-o"]).arg(&program).arg(&source),
    );
    if !built.status.success() {
        return skip("program_of_32_bits_is_warned_of_and_runs_as_it_would", "no 32-bit assembler");
    }
    let without = finish(plain("sh").arg("-c").arg(&program)).status.code();
    warns(&program, "is a 32-bit program", adma);
    assert_eq!(finish(adma().arg(&program)).status.code(), without);
}

#[test]
fn program_with_rights_of_its_own_is_warned_of() {
    const NAME: &str = "program_with_rights_of_its_own_is_warned_of";
    if !is_root() || !found("setpriv") {
        return skip(NAME, "needs root and setpriv to become another user");
    }
    // Where another user can come, and rights are given.
    let place = std::env::temp_dir().join(format!("adma-rights-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    for (from, to) in [
        (command(), "adma"),
        (library(), "libadma.so"),
        ("/bin/true".into(), "suid"),
        ("/bin/true".into(), "sgid"),
        ("/bin/true".into(), "able"),
    ] {
        fs::copy(from, place.join(to)).unwrap();
        fs::set_permissions(place.join(to), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(place.join("suid"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(place.join("sgid"), fs::Permissions::from_mode(0o2755)).unwrap();
    let another = |options: &[&str]| {
        let mut command = plain("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(options);
        command.arg(place.join("adma")).current_dir("/");
        command
    };
    let mounted = fs::read_to_string("/proc/self/mounts").unwrap();
    let nosuid = mounted.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        let here = words.next().is_some_and(|point| place.starts_with(point) && point != "/");
        here && words.nth(1).is_some_and(|options| options.contains("nosuid"))
    });
    if nosuid {
        let _ = fs::remove_dir_all(&place);
        return skip(NAME, "the folder for temporary files gives no rights");
    }
    warns(&place.join("suid"), "is set-user-id", || another(&[]));
    warns(&place.join("sgid"), "is set-user-id", || another(&[]));
    // Without new privileges the bits mean nothing, as for their owner.
    assert_eq!(succeed(another(&["--no-new-privs"]).arg(place.join("suid"))).1, "");
    assert_eq!(succeed(adma().arg(place.join("suid"))).1, "");
    if found("setcap") || Path::new("/sbin/setcap").exists() {
        let path = format!("{}:/sbin:/usr/sbin", std::env::var("PATH").unwrap());
        let mut set = plain("setcap");
        set.arg("cap_net_raw+ep").arg(place.join("able")).env("PATH", path);
        if finish(&mut set).status.success() {
            warns(&place.join("able"), "has capabilities", || another(&[]));
        }
    }
    fs::remove_dir_all(&place).unwrap();
}

#[test]
fn nothing_is_said_of_programs_that_can_be_helped() {
    let place = scratch("fine");
    let script = place.join("script");
    executable(&script, "#!/usr/bin/env sh\necho ran\n");
    let empty = place.join("empty");
    executable(&empty, "");
    let programs = [PathBuf::from("true"), PathBuf::from("/bin/sh"), script, empty];
    for program in programs {
        let (_, err) = succeed(adma().arg(&program));
        assert_eq!(err, "", "{}", program.display());
    }
    // The loader is linked with nothing, and preloads all the same.
    let (out, err) = succeed(adma().args([
        "/lib64/ld-linux-x86-64.so.2",
        "/bin/sh",
        "-c",
        "grep -c libadma /proc/self/maps",
    ]));
    assert!(out.trim() != "0" && err.is_empty(), "{out}{err}");
}

// ---- help, manual page, completion ---------------------------------------------------------

/// The options, from their table.
fn options() -> Vec<String> {
    let source = fs::read_to_string(root().join("src/command/src/options.rs")).unwrap();
    let table =
        source.split("const OPTIONS").nth(1).unwrap().split("];").next().unwrap().to_owned();
    let words = table.split('"').filter(|word| word.starts_with('-')).map(str::to_owned);
    let words: Vec<_> = words.collect();
    assert!(words.len() >= 17, "{words:?}");
    words
}

#[test]
fn help_fits_a_screen() {
    let (out, err) = succeed(adma().arg("--help"));
    assert_eq!(err, "");
    assert!(out.lines().count() <= 24, "{} lines", out.lines().count());
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert!(out.starts_with("usage: adma "), "{out}");
    for option in options() {
        let named = |line: &str| line.split([' ', ',']).any(|word| word == option);
        assert!(out.lines().any(named), "{option}");
    }
}

#[test]
fn manual_page_names_every_option_and_subcommand() {
    let page = fs::read_to_string(root().join("man/adma.1")).unwrap();
    for option in options() {
        let name = &option[1..];
        let told = |line: &str| {
            let words: Vec<&str> = line.split([' ', '|']).collect();
            words
                .windows(2)
                .any(|pair| matches!(pair, [".It" | "Fl" | "," | ".Fl", word] if *word == name))
                || words.windows(3).any(|three| three[0] == "Fl" && three[2] == name)
        };
        assert!(page.lines().any(told), "{option}");
    }
    for subcommand in [".Cm check", ".Cm report", ".Cm top"] {
        assert!(page.contains(subcommand), "{subcommand}");
    }
    if found("mandoc") {
        succeed(
            plain("mandoc").args(["-T", "lint", "-W", "warning"]).arg(root().join("man/adma.1")),
        );
    }
}

fn completions(name: &str) -> PathBuf {
    root().join("src/command/completions").join(name)
}

/// What bash offers for the last of these words.
fn completed(words: &[&str]) -> Vec<String> {
    let line = format!(
        "source '{}'; COMP_WORDS=({}); COMP_CWORD={}; _adma; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        completions("adma.bash").display(),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1
    );
    let (out, err) = succeed(plain("bash").args(["--norc", "-c", &line]).current_dir(root()));
    assert_eq!(err, "", "{words:?}");
    out.lines().map(str::to_owned).collect()
}

#[test]
fn completion_of_bash_knows_options_values_programs_and_files() {
    let offered = completed(&["adma", "-"]);
    for option in options() {
        assert!(offered.contains(&option), "{option}: {offered:?}");
    }
    assert_eq!(completed(&["adma", "--libp"]), ["--libpath"]);
    assert_eq!(completed(&["adma", "-b", "th"]), ["threads"]);
    assert_eq!(completed(&["adma", "-q", "--stats", "js"]), ["json"]);
    assert!(completed(&["adma", "che"]).contains(&"check".to_owned()));
    assert!(!completed(&["adma", "-q", "repor"]).contains(&"report".to_owned()));
    assert!(completed(&["adma", "-q", "readlin"]).contains(&"readlink".to_owned()));
    assert!(completed(&["adma", "-m", "64K", "--", "readlin"]).contains(&"readlink".to_owned()));
    assert_eq!(completed(&["adma", "report", "--h"]), ["--html", "--help"]);
    assert_eq!(completed(&["adma", "report", "Cargo.t"]), ["Cargo.toml"]);
    assert_eq!(completed(&["adma", "cat", "Cargo.t"]), ["Cargo.toml"]);
    let line = format!("source '{}'; complete -p adma", completions("adma.bash").display());
    assert!(succeed(plain("bash").args(["--norc", "-c", &line])).0.contains("-F _adma"));
}

#[test]
fn completion_of_zsh_loads_and_knows_every_option() {
    let file = fs::read_to_string(completions("_adma")).unwrap();
    for option in options() {
        let known = |word: &str| word == option || word.trim_end_matches(['{', '}']) == option;
        assert!(file.split([' ', ',', '\'', '[', '(', ')', '{', '}', '\n']).any(known), "{option}");
    }
    if !found("zsh") {
        return skip("completion_of_zsh_loads_and_knows_every_option", "zsh is not installed");
    }
    let folder = completions("");
    let script = "autoload -Uz compinit && compinit -D && whence -v _adma && \
                  autoload +X _adma && [[ ${_comps[adma]} == _adma ]] && echo loaded";
    let mut zsh = plain("zsh");
    zsh.args(["-f", "-c", &format!("fpath=('{}' $fpath); {script}", folder.display())]);
    let (out, err) = succeed(zsh.env("HOME", scratch("zsh")));
    assert!(out.ends_with("loaded\n") && err.is_empty(), "{out}{err}");
}

// ---- adma report ---------------------------------------------------------------------------

/// Reports of a real program: one process and its children.
fn reports() -> (PathBuf, Vec<serde_json::Value>) {
    let folder = scratch("reports");
    let mut all = Vec::new();
    for (number, size) in ["300000", "2000000", "9000000"].iter().enumerate() {
        let mut run = preloaded(victim("stats_copies"));
        run.args(["memcpy", size, "40"]).env("ADMA_CHANNELS", "2").env("ADMA_MIN_BYTES", "256K");
        let values = statistics(&mut run);
        let lines: String = values.iter().map(|value| format!("{value}\n")).collect();
        fs::write(folder.join(format!("{number}.json")), lines).unwrap();
        all.extend(values);
    }
    (folder, all)
}

#[test]
fn report_of_one_process_tells_what_the_library_tells() {
    let (folder, all) = reports();
    let (out, err) = succeed(adma().arg("report").arg(folder.join("1.json")));
    assert_eq!(err, "");
    assert!(out.starts_with("adma: stats_copies (pid "), "{out}");
    let engine = &all[1]["paths"]["engine"];
    let line = out.lines().find(|line| line.contains("by the engine")).unwrap();
    assert!(line.contains(&format!(" {} ", engine["calls"])), "{line}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[test]
fn reports_of_several_files_standard_input_and_one_file_with_several_are_summed() {
    let (folder, all) = reports();
    let calls: u64 = all.iter().map(|v| v["paths"]["engine"]["calls"].as_u64().unwrap()).sum();
    let files: Vec<_> = (0..3).map(|n| folder.join(format!("{n}.json"))).collect();
    let (separate, _) = succeed(adma().arg("report").args(&files));
    assert!(separate.starts_with("adma: 3 processes"), "{separate}");
    let line = separate.lines().find(|line| line.contains("by the engine")).unwrap();
    assert!(line.contains(&format!(" {calls} ")), "{line}");
    let together: Vec<u8> = files.iter().flat_map(|file| fs::read(file).unwrap()).collect();
    fs::write(folder.join("all.json"), &together).unwrap();
    assert_eq!(succeed(adma().arg("report").arg(folder.join("all.json"))).0, separate);
    let mut piped = adma();
    piped.args(["report", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&together).unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), separate);
}

#[test]
fn report_of_bad_files_names_them_and_shows_the_others() {
    let (folder, _) = reports();
    let whole = fs::read(folder.join("0.json")).unwrap();
    fs::write(folder.join("cut.json"), &whole[..whole.len() / 2]).unwrap();
    let page = folder.join("page.html");
    let done = finish(
        adma()
            .arg("report")
            .args(["missing.json", "cut.json", "0.json", "--html"])
            .arg(&page)
            .current_dir(&folder),
    );
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{err}");
    assert_eq!(err.lines().count(), 2, "{err}");
    assert!(
        err.contains("adma: missing.json: No such file")
            && err.contains("adma: cut.json: report 1 is cut off"),
        "{err}"
    );
    assert!(text(&done.stdout).starts_with("adma: stats_copies"));
    assert!(page.exists());
    // Nothing good: no page, no report.
    fs::remove_file(&page).unwrap();
    let done = finish(adma().arg("report").arg(folder.join("cut.json")).arg("--html").arg(&page));
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(1), String::new()));
    assert!(!page.exists());
    for arguments in [&["report"][..], &["report", "--html"], &["report", "--nonsense", "x"]] {
        let done = finish(adma().args(arguments));
        assert_eq!(done.status.code(), Some(125), "{arguments:?}");
    }
    let done = finish(
        adma().arg("report").arg(folder.join("0.json")).args(["--html", "/no/such/folder/x"]),
    );
    assert_eq!(done.status.code(), Some(1));
}

/// Debian's, in either package.
fn browser() -> Option<&'static str> {
    ["chromium", "chromium-headless-shell"].into_iter().find(|name| found(name))
}

fn browse(page: &Path, options: &[&str]) -> String {
    let mut command = plain(browser().unwrap());
    let profile = scratch("profile");
    command.args(["--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage"]);
    command.args(["--hide-scrollbars", "--force-device-scale-factor=1"]);
    command.arg(format!("--user-data-dir={}", profile.display())).args(options);
    command.arg(format!("file://{}", page.display())).env("HOME", &profile);
    let (out, _) = succeed(&mut command);
    let _ = fs::remove_dir_all(profile);
    out
}

#[test]
fn page_stands_alone_in_a_browser() {
    const NAME: &str = "page_stands_alone_in_a_browser";
    if browser().is_none() {
        return skip(NAME, "no chromium is installed");
    }
    let (folder, all) = reports();
    let files: Vec<_> = (0..3).map(|n| folder.join(format!("{n}.json"))).collect();
    // A name that would be markup, if it were let.
    let odd = fs::read_to_string(&files[0]).unwrap();
    let exe = all[0]["exe"].as_str().unwrap();
    fs::write(&files[0], odd.replace(exe, "/tmp/<img src=x onerror=document.title='taken'>"))
        .unwrap();
    let page = folder.canonicalize().unwrap().join("page.html");
    succeed(adma().arg("report").args(&files).arg("--html").arg(&page));

    let dom = browse(&page, &["--dump-dom"]);
    assert!(!dom.contains("<img") && !dom.contains("taken</title>"), "markup came through");
    assert!(dom.contains("&lt;img src=x"), "the name is shown");
    // What the browser has made of it: pictures with names, tables with heads, things to open.
    let count = |what: &str| dom.matches(what).count();
    assert!(count("<svg viewBox") >= 17, "{} pictures", count("<svg viewBox"));
    assert_eq!(count("role=\"img\""), count("<svg viewBox"), "every picture has a description");
    assert_eq!(count("<details>"), 3);
    assert!(count("<caption>") >= 4 * 3 && count("scope=\"col\"") > 40);
    for part in
        ["size of a copy", "copies", "bytes", "time of a copy", "part of the copies", "MiB", "µs"]
    {
        assert!(count(part) > 0, "{part}");
    }
    let calls: u64 = all.iter().map(|v| v["paths"]["engine"]["calls"].as_u64().unwrap()).sum();
    assert!(dom.contains(&format!(
        "<b>{}</b>",
        calls + all.iter().map(|v| v["paths"]["libc"]["calls"].as_u64().unwrap()).sum::<u64>()
    )));

    // The picture is drawn: a page of one colour packs to next to nothing.
    for (name, scheme) in [("light", "1"), ("dark", "0")] {
        let png = folder.join(format!("{name}.png"));
        let shot = format!("--screenshot={}", png.display());
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        browse(&page, &[&shot, &scheme, "--window-size=1200,2400"]);
        let bytes = fs::read(&png).unwrap();
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 40_000, "{name}: {}", bytes.len());
    }
    assert_ne!(
        fs::read(folder.join("light.png")).unwrap(),
        fs::read(folder.join("dark.png")).unwrap()
    );
}
