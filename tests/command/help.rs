//! Help, manual page and completion know every option.

use super::*;

/// Returns what a shell would offer for the last of these words.
fn offered(words: &[&str]) -> Vec<String> {
    let (out, err) = succeed(adma().arg("--complete").args(words));
    assert_eq!(err, "", "{words:?}");
    out.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

/// Returns the options that the command itself knows.
fn options() -> Vec<String> {
    let options = offered(&["-"]);
    assert!(options.len() >= 17, "{options:?}");
    options
}

#[test]
fn help_fits_a_screen_and_version_is_the_crates() {
    let version = concat!("adma ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(succeed(adma().arg("--version")), (version.to_owned(), String::new()));
    let (out, err) = succeed(adma().arg("--help"));
    assert_eq!(err, "");
    assert!(out.lines().count() <= 24, "{} lines", out.lines().count());
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert!(out.starts_with("usage: adma "), "{out}");
    assert!(out.contains(&format!("report as {} (a comma", FORMATS.join(", "))), "{out}");
    for option in options().into_iter().filter(|option| option != "--check") {
        let named = |line: &str| line.split([' ', ',']).any(|word| word == option);
        assert!(out.lines().any(named), "{option}");
    }
}

#[test]
fn help_lists_values_that_the_options_take() {
    let (out, _) = succeed(adma().arg("--help"));
    for (option, before, count) in [("--backend", "", 5), ("--stats", "report as ", 2)] {
        let told = |line: &'_ str| Some(line.split_once(&format!("{option} <"))?.1.to_owned());
        let line = out.lines().find_map(told).expect(option);
        let values = line.split_once('>').unwrap().1.trim_start().strip_prefix(before).unwrap();
        let values: Vec<_> = values.split(" (").next().unwrap().split(", ").collect();
        assert_eq!(values.len(), count, "{values:?}");
        values.iter().for_each(|value| _ = succeed(adma().args([option, value, "true"])));
    }
}

#[test]
fn help_of_a_subcommand_is_its_own() {
    for (subcommand, about) in [
        ("check", "what this machine offers"),
        ("report", "--html"),
        ("top", "--set PID"),
        ("bench", "--with"),
    ] {
        for option in ["-h", "--help"] {
            let (out, err) = succeed(adma().args([subcommand, option]));
            assert_eq!(err, "", "{subcommand}");
            assert!(out.starts_with(&format!("usage: adma {subcommand}")), "{out}");
            assert!(out.contains(about), "{out}");
            assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
        }
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
    for subcommand in [".Cm bench", ".Cm check", ".Cm report", ".Cm top"] {
        assert!(page.contains(subcommand), "{subcommand}");
    }
}

fn completions(name: &str) -> PathBuf {
    root().join("command/completions").join(name)
}

/// Returns a shell with our own command first in PATH.
fn shell(name: &str) -> Command {
    let mut shell = plain(name);
    let path = std::env::var("PATH").unwrap();
    shell.env("PATH", format!("{}:{path}", command().parent().unwrap().display()));
    shell
}

/// Returns what bash offers for the last of these words.
fn completed(words: &[&str]) -> Vec<String> {
    let line = format!(
        "source '{}'; COMP_WORDS=({}); COMP_CWORD={}; _adma; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        completions("adma.bash").display(),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1
    );
    let (out, err) = succeed(shell("bash").args(["--norc", "-c", &line]).current_dir(root()));
    assert_eq!(err, "", "{words:?}");
    out.lines().map(str::to_owned).collect()
}

#[test]
fn completion_of_bash_knows_options_values_programs_and_files() {
    assert_eq!(completed(&["adma", "-"]), options());
    // Words, and what is offered for the last of them.
    let table: [(&[&str], &[&str]); 14] = [
        (&["adma", "--libp"], &["--libpath"]),
        (&["adma", "-b", "th"], &["threads"]),
        (&["adma", "--backend", "=", "th"], &["threads"]),
        (&["adma", "--backend=th"], &["--backend=threads"]),
        (&["adma", "--stats", "="], &["off", "text", "json"]),
        (&["adma", "-q", "--stats", "js"], &["json"]),
        (&["adma", "report", "--h"], &["--html", "--hlog", "--help"]),
        (&["adma", "report", "Cargo.t"], &["Cargo.toml"]),
        (&["adma", "report", "--html", "Cargo.t"], &["Cargo.toml"]),
        (&["adma", "cat", "Cargo.t"], &["Cargo.toml"]),
        (&["adma", "top", "--o"], &["--once"]),
        (&["adma", "check", "x"], &[""]),
        (&["adma", "bench", "--with", "ADMA_CHA"], &["ADMA_CHANNELS="]),
        (&["adma", "bench", "--with", "ADMA_BACKEND=th"], &["ADMA_BACKEND=threads"]),
    ];
    for (words, expected) in table {
        assert_eq!(completed(words), expected, "{words:?}");
    }
    let has = |words: &[&str], word: &str| completed(words).iter().any(|offer| offer == word);
    assert!(has(&["adma", "che"], "check") && !has(&["adma", "-q", "repor"], "report"));
    assert!(has(&["adma", "-m", "64K", "--", "readlin"], "readlink"));
    // Words of the shell itself are no programs.
    assert!(!has(&["adma", "whil"], "while") && !has(&["adma", "mapfil"], "mapfile"));
    let line = format!("source '{}'; complete -p adma", completions("adma.bash").display());
    assert!(succeed(plain("bash").args(["--norc", "-c", &line])).0.contains("-F _adma"));
}

#[test]
fn completion_of_zsh_loads_and_that_of_fish_answers() {
    if found("zsh") {
        let folder = completions("");
        let script = "autoload -Uz compinit && compinit -D && whence -v _adma && \
                      autoload +X _adma && [[ ${_comps[adma]} == _adma ]] && echo loaded";
        let mut zsh = shell("zsh");
        zsh.args(["-f", "-c", &format!("fpath=('{}' $fpath); {script}", folder.display())]);
        let (out, err) = succeed(zsh.env("HOME", scratch("zsh")));
        assert!(out.ends_with("loaded\n") && err.is_empty(), "{out}{err}");
    } else {
        skip_this("zsh is not installed");
    }
    needs!(has("fish"));
    for (line, offered) in [
        ("adma -b th", "threads"),
        ("adma --backend=th", "--backend=threads"),
        ("adma report Cargo.t", "Cargo.toml"),
        ("adma report --html=Cargo.t", "--html=Cargo.toml"),
        ("adma cat Cargo.t", "Cargo.toml"),
        ("adma bench --discard", "--discard-output\tthrow the output away instead of comparing it"),
    ] {
        let script =
            format!("source '{}'; complete -C '{line}'", completions("adma.fish").display());
        let mut fish = shell("fish");
        fish.args(["-c", &script]).env("HOME", scratch("fish")).current_dir(root());
        assert_eq!(succeed(&mut fish).0.trim(), offered, "{line}");
    }
}

#[test]
fn help_and_version_are_subcommands_too() {
    let same = |words: &[&str], options: &[&str]| {
        assert_eq!(succeed(adma().args(words)), succeed(adma().args(options)), "{words:?}");
    };
    same(&["help"], &["--help"]);
    same(&["help", "bench"], &["bench", "--help"]);
    same(&["version"], &["--version"]);
    let done = finish(adma().args(["help", "tpo"]));
    assert_eq!(done.status.code(), Some(125));
    assert!(text(&done.stderr).contains("did you mean top?"), "{}", text(&done.stderr));
}
