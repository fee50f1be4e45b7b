//! Help, manual page and completion know every option.

use super::*;

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
fn help_of_a_subcommand_is_its_own() {
    for (subcommand, about) in
        [("check", "what this machine offers"), ("report", "--html"), ("top", "--set PID")]
    {
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
