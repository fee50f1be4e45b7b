//! The documentation: length, completeness, and no dead paths.

mod common;

use adma_shared::knobs::{Form, KNOBS};
use common::{
    Folder, copy_program, executable, finish, has, library, needs, only_report, plain, preloaded,
    root, succeed, victim,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the names of the knobs, except for the one behind `adma check`.
fn knobs() -> impl Iterator<Item = &'static str> {
    KNOBS.iter().filter(|knob| !knob.about.is_empty()).map(|knob| knob.name)
}

fn manual_pages() -> Vec<PathBuf> {
    let pages = fs::read_dir(root().join("man")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> =
        pages.filter(|page| page.extension().is_some_and(|end| end.len() == 1)).collect();
    pages.sort();
    assert!(pages.len() >= 3, "{pages:?}");
    pages
}

/// Returns words that look like names of knobs.
fn knobs_in(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_')
        .filter(|word| word.starts_with("ADMA_"))
        .map(|word| word.trim_end_matches('_'))
        .collect()
}

/// Returns every file of a folder, with those below it.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    entries.flat_map(below).collect()
}

/// The map of messages is in ipc/mod.rs. Tests are named by what they test.
#[test]
fn map_of_the_library_names_every_module() {
    let source = root().join("src");
    let words = |file: &str| -> BTreeSet<String> {
        let text = read(file);
        let map = text.lines().take_while(|line| line.is_empty() || line.starts_with("//!"));
        let map: String = map.map(|line| format!("{line}\n")).collect();
        let is_other = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        map.split(is_other).map(str::to_owned).collect()
    };
    let (all, messages) = (words("src/lib.rs"), words("src/ipc/mod.rs"));
    for path in files_below(&source) {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let inside = path.strip_prefix(&source).unwrap();
        let is_test = inside.to_str().unwrap().contains("tests") || stem.ends_with("loom");
        let known = if inside.starts_with("ipc") { &messages } else { &all };
        if !is_test && !["lib", "mod"].contains(&stem) {
            assert!(known.contains(stem) || all.contains(stem), "no word about {inside:?}");
        }
    }
}

/// In a tree of its own, without packages and cargo, with an apt-get that checks what was printed
/// so far.
#[test]
fn tests_run_names_what_it_installs_before_it_does() {
    let place = Folder::new("needs");
    let (tools, said) = (place.join("tools"), place.join("said"));
    fs::create_dir_all(&tools).unwrap();
    fs::create_dir(place.join("tests")).unwrap();
    copy_program(root().join("tests/run"), place.join("tests/run"));
    for tool in
        ["bash", "cat", "cut", "dirname", "env", "grep", "mkdir", "paste", "readlink", "sort"]
    {
        let path = ["/usr/bin", "/bin"].map(|folder| PathBuf::from(folder).join(tool));
        let path = path.into_iter().find(|path| path.exists()).expect(tool);
        std::os::unix::fs::symlink(path, tools.join(tool)).unwrap();
    }
    let look = "#!/bin/sh\n[ $1 = update ] || grep -q openmpi-bin said && echo \"$@\" >>calls\n";
    executable(&tools.join("apt-get"), look);
    executable(&tools.join("id"), "#!/bin/sh\necho 0\n");
    let run = |option: &[&str]| {
        let mut command = plain("/bin/sh");
        command.args(["-c", "exec tests/run \"$@\" >said 2>&1", "sh"]).args(option);
        let status = finish(command.current_dir(&place).env("PATH", &tools)).status.code();
        let calls = fs::read_to_string(place.join("calls")).unwrap_or_default();
        (status, fs::read_to_string(&said).unwrap(), calls)
    };
    let (status, needs, calls) = run(&["--needs"]);
    assert_eq!((status, &*calls), (Some(0), ""), "{needs}");
    assert!(run(&["--no-install"]).2.is_empty());
    let (status, told, calls) = run(&[]);
    assert!(status == Some(1) && told.contains("no cargo"), "{told}");
    let asked = calls.lines().find(|line| line.starts_with("install ")).expect(&calls);
    for package in ["openmpi-bin", "libopenmpi-dev", "dkms", "xfsprogs", "btrfs-progs"] {
        assert!(needs.contains(package), "{package}: {needs}");
    }
    for package in ["openmpi-bin", "libopenmpi-dev"] {
        assert!(told.contains(&format!("  {package}\n")), "{told}");
        assert!(asked.split(' ').any(|word| word == package), "{asked}");
    }
}

/// Returns what the benchmarks printed on a machine whose results are kept, by their names.
fn kept_results(machine: &str) -> serde_json::Value {
    let folders = fs::read_dir(root().join("bench/evidence")).unwrap();
    let mut folders = folders.map(|entry| entry.unwrap().path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(machine))
    });
    let about = folders.next().expect(machine).join("about.json");
    let about: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(about).unwrap()).unwrap();
    about["texts"].clone()
}

/// Returns the rows that README.md must have, by the results: those whose quartiles touch the
/// quartiles of an empty library come last, in italics.
fn rows_of(results: &str) -> Vec<String> {
    let (jobs, tables) = results.split_once("All ratios").unwrap();
    let table = tables.split("\nshim, ").next().unwrap();
    let ratio = |word: &str| word.parse::<f64>().unwrap();
    let mut rows = Vec::new();
    for line in table.lines().skip_while(|line| !line.starts_with("  job")).skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [job, _, copies, "%", _, empty, whole, quartiles, _, _, cpu, ..] = words[..] else {
            continue;
        };
        let about = jobs.lines().filter_map(|line| line.trim().split_once("  "));
        let mut about = about.filter(|(name, _)| *name == job).map(|(_, about)| about.trim());
        let about = about.next_back().unwrap_or_else(|| panic!("{job}"));
        let (low, high) = quartiles.split_once('-').unwrap();
        let (empty_low, empty_high) = empty.split_once('-').unwrap();
        let noise = ratio(low) <= ratio(empty_high) && ratio(high) >= ratio(empty_low);
        let mark = if noise { "*" } else { "" };
        let row = format!(
            " | {mark}{about}{mark} | {copies} % | {mark}{whole} ({quartiles}){mark} | {empty} | {cpu} |"
        );
        rows.push((noise, (-1000.0 * ratio(whole)) as i64, row));
    }
    rows.sort();
    rows.into_iter().map(|(_, _, row)| row).collect()
}

#[test]
fn readme_table_is_the_one_of_the_results() {
    let [one, two, sixteen] = ["1-cpus-", "2-cpus-", "16-cpus-"].map(kept_results);
    let (readme, rows) = (read("README.md"), rows_of(two["programs"].as_str().unwrap()));
    let shown = readme.lines().skip_while(|line| !line.starts_with("| program | job |")).skip(2);
    let shown: Vec<&str> = shown.take_while(|line| line.starts_with('|')).collect();
    let same = shown.iter().zip(&rows).all(|(shown, row)| shown.ends_with(&**row));
    assert!(rows.len() > 10 && shown.len() == rows.len() && same, "want:\n{}", rows.join("\n"));
    let texts = [one, two, sixteen].map(|texts| texts.as_object().unwrap().clone());
    let results: String = texts.iter().flatten().filter_map(|(_, text)| text.as_str()).collect();
    let words: Vec<&str> = readme.split_whitespace().collect();
    let figures = words
        .windows(2)
        .filter(|pair| ["times", "ns"].iter().any(|unit| pair[1].starts_with(unit)));
    let figures: Vec<&str> =
        figures.map(|pair| pair[0]).filter(|word| word.contains('.')).collect();
    assert!(figures.len() >= 4, "{figures:?}");
    for figure in figures {
        assert!(results.contains(figure), "{figure} is in no table of bench/");
    }
}

/// Returns what a newcomer types, and what README.md shows below it.
fn samples(readme: &str) -> Vec<(&str, &str)> {
    let blocks = readme.split("```console\n").skip(1).filter_map(|part| part.split("```").next());
    blocks.filter_map(|block| block.strip_prefix("$ ")?.split_once('\n')).collect()
}

/// Returns the label of a line: its first words. Continuation lines have none.
fn label(line: &str) -> &str {
    let text = line.trim_start();
    if line.len() - text.len() > 4 {
        return "";
    }
    let end = text.find(|c: char| !c.is_alphabetic() && !"/ :".contains(c)).unwrap_or(text.len());
    text[..end].split("  ").next().unwrap_or_default().trim_end()
}

/// The commands of README.md as they stand there. (tests/api.rs compiles and runs the example.)
#[test]
fn readme_samples_do_as_typed_what_they_show() {
    let readme = read("README.md");
    let samples = samples(&readme);
    let samples: Vec<_> =
        samples.iter().filter(|(command, _)| command.starts_with("./preload.sh ")).collect();
    assert_eq!(samples.len(), 2, "{samples:?}");
    let cpus = std::thread::available_parallelism().unwrap().get();
    for (command, shown) in samples {
        let command = command.replace(" bench ", " bench -n2 "); // for the verdict, ten take a minute
        let (out, err) = succeed(plain("sh").current_dir(root()).args(["-c", &command]));
        let told = out + &err;
        for name in shown.lines().map(label).filter(|name| !name.starts_with("with adma:")) {
            let found = cpus == 1 || told.lines().any(|line| label(line) == name);
            assert!(found, "{command}: no {name:?} in {told}");
        }
        if command.contains(" bench ") {
            let copied = shown.lines().last().unwrap().rsplit_once(", ").unwrap().0;
            let (_, by_engine) = told.split_once(copied).unwrap_or_else(|| panic!("{told}"));
            let percent = by_engine[2..].split_once(" % by the engine").unwrap().0;
            let percent: f64 = percent.parse().unwrap_or_else(|_| panic!("{told}"));
            assert!(cpus == 1 || percent >= 90.0, "{told}");
        }
    }
}

#[test]
fn readme_knobs_exist_and_have_the_values_that_it_gives_them() {
    let readme = read("README.md");
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `ADMA_")?.split_once('`'));
    let mut seen = 0;
    for (knob, _) in rows {
        let (name, value) = knob.split_once('=').expect("a value");
        let (_, err) = succeed(preloaded("true").env(format!("ADMA_{name}"), value));
        assert!(!err.contains("want") && !err.contains("no such"), "ADMA_{knob}: {err}");
        seen += 1;
    }
    assert!(seen >= 5, "the table was not understood");
    let unknown = knobs_in(&readme).into_iter().find(|name| knobs().all(|knob| knob != *name));
    assert_eq!(unknown, None);
}

/// The lines of C in README.md, with what a program has around them.
#[test]
fn readme_c_compiles() {
    let readme = read("README.md");
    let code = readme.split("```c\n").nth(1).and_then(|part| part.split("```").next()).unwrap();
    let (include, body) = code.split_once('\n').unwrap();
    let place = Folder::new("readme");
    let file = place.join("lines.c");
    let around = "void compute(void);\n\
                  void lines(const char *src, char *dst, size_t len, const char *image);\n\
                  void lines(const char *src, char *dst, size_t len, const char *image)\n";
    fs::write(&file, format!("{include}\n{around}{{\n{body}\n}}\n")).unwrap();
    let mut compiler = plain("cc");
    compiler.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I"]);
    succeed(compiler.arg(root().join("include")).arg(&file));
}

#[test]
fn manual_describes_every_knob_with_its_values_and_no_other() {
    let page = read("man/adma.7");
    let name = |entry: &'static str| entry.lines().next().unwrap();
    let entries = page.leak().split(".It Ev ").skip(1).filter(|entry| entry.starts_with("ADMA_"));
    let entries: BTreeMap<_, _> = entries.map(|entry| (name(entry), entry)).collect();
    assert_eq!(entries.keys().copied().collect::<BTreeSet<_>>(), knobs().collect());
    for knob in KNOBS.iter().filter(|knob| !knob.about.is_empty()) {
        let words: Vec<&str> = entries[knob.name].split_whitespace().collect();
        let Form::Word(values) = knob.form else { continue };
        for value in values.iter().filter(|value| !["0", "1"].contains(value)) {
            let told = words.windows(2).any(|pair| pair[0] == ".Cm" && pair[1] == *value);
            assert!(told, "{}: {value} is not in its entry in man/adma.7", knob.name);
        }
    }
}

#[test]
fn manual_explains_every_reason_of_a_report() {
    let page = read("man/adma.7");
    let report = only_report(&mut preloaded(victim("trap_copy")));
    let reasons = report["fallbacks"].as_object().unwrap();
    assert!(reasons.len() >= 10, "{reasons:?}");
    for reason in reasons.keys() {
        assert!(page.contains(&format!(".It Li {reason}\n")), "{reason}");
    }
}

#[test]
fn links_and_paths_of_the_guides_exist() {
    for file in ["README.md", "CONTRIBUTING.md", "SUPPORT.md", "packaging/README.md"] {
        let (text, folder) = (read(file), root().join(file).parent().unwrap().to_owned());
        let mut seen = 0;
        for part in text.split("](").skip(1) {
            let link = part.split([')', '#']).next().unwrap();
            if !link.contains("://") && !link.is_empty() {
                assert!(folder.join(link).exists(), "{file}: dead link {link}");
                seen += 1;
            }
        }
        // Paths of the tree, in backquotes or in the map.
        for word in text.split(|c: char| c.is_whitespace() || "`(),;:*".contains(c)) {
            let path = word.trim_end_matches('.');
            let ours = ["src/", "tests/", "include/", "man/", "kmod-c/", "packaging/", "bench/"];
            if ours.iter().any(|folder| path.starts_with(folder))
                && !path.contains(['<', '[', ']', '$', '"'])
            {
                assert!(root().join(path).exists(), "{file}: there is no {path}");
                seen += 1;
            }
        }
        assert!(seen > 3, "{file} was not understood");
    }
}

/// Returns the names that sources define: in Rust after a keyword, in C where a line begins with them.
fn defined_names() -> BTreeSet<String> {
    let is_other = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let keywords =
        ["fn", "struct", "enum", "trait", "mod", "static", "const", "type", "macro_rules"];
    let mut names = BTreeSet::new();
    for path in ["src", "shared", "command", "report", "include", "kmod-c"].map(|f| root().join(f))
    {
        for file in files_below(&path) {
            let kind = file.extension().and_then(|end| end.to_str()).unwrap_or_default();
            if !["rs", "c", "h"].contains(&kind) {
                continue;
            }
            for line in fs::read_to_string(&file).unwrap().lines() {
                let words: Vec<&str> =
                    line.split(is_other).filter(|word| !word.is_empty()).collect();
                if kind == "rs" {
                    let pairs = words.windows(2).filter(|pair| keywords.contains(&pair[0]));
                    names.extend(pairs.map(|pair| pair[1].to_owned()));
                } else if line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains('(') {
                    let head = line.split('(').next().unwrap_or_default();
                    names.extend(head.split(is_other).next_back().map(str::to_owned));
                }
            }
        }
    }
    names
}

/// The ways through the files that CONTRIBUTING.md shows: every file and function on them.
#[test]
fn ways_of_the_guide_name_files_and_functions_that_exist() {
    let (guide, names) = (read("CONTRIBUTING.md"), defined_names());
    let files = ["src", "shared", "command", "report", "kmod-c", "tests"];
    let files: Vec<PathBuf> =
        files.iter().flat_map(|folder| files_below(&root().join(folder))).collect();
    let mut seen = 0;
    for block in guide.split("```text\n").skip(1).filter_map(|part| part.split("```").next()) {
        for word in block.split(|c: char| c.is_whitespace() || "(),;=".contains(c)) {
            let word = word.trim_end_matches([':', '.']);
            if [".rs", ".c", ".h", ".html"].iter().any(|end| word.ends_with(end)) {
                assert!(files.iter().any(|file| file.ends_with(word)), "there is no file {word}");
                seen += 1;
            } else if !word.contains('/') {
                let parts: Vec<&str> = word.split("::").collect();
                let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                for part in &parts {
                    if parts.len() > 1 || part.contains('_') && part.chars().all(is_part) {
                        assert!(names.contains(*part), "{word}: {part} is defined nowhere");
                        seen += 1;
                    }
                }
            }
        }
    }
    assert!(seen > 100, "{seen}: the ways were not understood");
}

/// `tests/run support` makes the table from what the test commands have noted.
#[test]
fn support_table_is_that_of_the_results() {
    let (table, _) = succeed(plain(root().join("tests/systems/results")).arg("table"));
    let support = read("SUPPORT.md");
    let shown = support.split("<!-- results -->\n").nth(1).expect("a marker");
    let shown = shown.split("<!-- end of results -->\n").next().unwrap();
    assert_eq!(shown.trim(), table.trim(), "run: tests/run support");
    // Every result is in a row, and every row has one.
    let results = read("tests/systems/results.csv");
    let header = "kind,name,kernel,libc,cpu,suite,passed,failed,skipped,date";
    assert_eq!(results.lines().next(), Some(header));
    for line in results.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), header.split(',').count(), "{line}");
        let row = shown.lines().find(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            cells.len() > 6 && cells[1..6] == fields[..5] && cells[6].contains(fields[5])
        });
        assert!(row.is_some(), "{line} is in no row");
    }
}

/// Texts of the package `adma` link to nothing that only the source tree has.
#[test]
fn packaged_texts_point_to_what_is_installed() {
    let (docs, spec) = (read("packaging/debian/adma.docs"), read("packaging/adma.spec"));
    for file in docs.lines().filter(|file| file.ends_with(".md")) {
        assert!(spec.contains(&format!(" {file}")), "{file} is in the Debian package only");
        let text = read(file);
        let links = text.split("](").skip(1).map(|part| part.split(')').next().unwrap());
        let dead = { links }.find(|link| docs.lines().all(|other| other != *link));
        assert_eq!(dead, None, "{file}");
    }
}

#[test]
fn manual_pages_have_no_warnings() {
    needs!(has("mandoc"));
    for page in manual_pages() {
        succeed(plain("mandoc").args(["-T", "lint", "-W", "warning"]).arg(page));
    }
}

/// Returns the names in a page's NAME section.
fn names_of(text: &str) -> Vec<String> {
    let head = text.split(".Sh NAME\n").nth(1).expect("a NAME section");
    let lines = head.lines().take_while(|line| !line.starts_with(".Sh"));
    let names = lines.filter_map(|line| line.strip_prefix(".Nm "));
    names.map(|name| name.trim_end_matches(" ,").to_owned()).collect()
}

/// Returns what the library exports under its own version.
fn exported() -> BTreeSet<String> {
    let mut names = plain("nm");
    names.args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library());
    let (listing, _) = succeed(&mut names);
    let (own, others): (Vec<&str>, Vec<&str>) = listing
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .partition(|name| name.ends_with("@@ADMA_0.1"));
    let is_foreign = |name: &&str| !name.contains('@') && !name.starts_with("adma_");
    assert!(others.iter().all(is_foreign), "{others:?}");
    own.iter().map(|name| name.trim_end_matches("@@ADMA_0.1").to_owned()).collect()
}

/// Returns the functions of a page's SYNOPSIS as prototypes.
fn synopsis(text: &str) -> Vec<String> {
    let section = text.split(".Sh SYNOPSIS\n").nth(1).unwrap_or_default();
    let section = section.split(".Sh ").next().unwrap_or_default();
    let (mut result, mut found) = (String::new(), Vec::new());
    let arguments = |quoted: &str| match quoted.contains('"') {
        true => quoted.split('"').skip(1).step_by(2).collect::<Vec<_>>().join(", "),
        false => quoted.to_owned(),
    };
    // One argument in a line, or all of them.
    let section = section.replace("\n.Fa", "").replace("\n.Fc", "").replace(".Fo ", ".Fn ");
    for line in section.lines() {
        if let Some(kind) = line.strip_prefix(".Ft ") {
            result = kind.to_owned();
        } else if let Some((name, rest)) = line.strip_prefix(".Fn ").and_then(|l| l.split_once(' '))
        {
            found.push(format!("{result} {name}({});", arguments(rest)));
        }
    }
    found
}

/// One page for each group of functions, and each function in one of them. The compiler refuses a
/// prototype that is not the header's.
#[test]
fn every_function_has_one_manual_page_with_its_prototype() {
    let (mut described, mut prototypes) = (Vec::new(), String::new());
    for page in manual_pages().iter().filter(|page| page.extension().unwrap() == "3") {
        let text = fs::read_to_string(page).unwrap();
        let (names, shown) = (names_of(&text), synopsis(&text));
        assert!(page.ends_with(format!("{}.3", names[0])), "{}: {names:?}", page.display());
        for name in &names {
            let is_shown = shown.iter().any(|shown| shown.contains(&format!("{name}(")));
            assert!(is_shown, "{}: {name} is not in the synopsis", page.display());
            assert!(text.contains(&format!(".Fn {name}\n")), "{name} is not described");
        }
        assert_eq!(names.len(), shown.len(), "{}", page.display());
        assert!(names.len() <= 11, "{}: more than one group", page.display());
        described.extend(names);
        prototypes += &(shown.join("\n") + "\n");
    }
    described.sort();
    let exported = exported();
    assert_eq!(described, exported.iter().cloned().collect::<Vec<_>>());
    // Each is declared: its address can be taken.
    let uses: String = exported.iter().map(|name| format!("\t(void)&{name};\n")).collect();
    let place = Folder::new("prototypes");
    let file = place.join("all.c");
    let code = format!("#include <adma.h>\nvoid all(void);\nvoid all(void)\n{{\n{uses}}}\n");
    fs::write(&file, code + &prototypes).unwrap();
    let mut compiler = plain("cc");
    compiler.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I"]);
    succeed(compiler.arg(root().join("include")).arg(&file));
    let map = read("include/adma.map");
    for name in exported {
        assert!(map.contains(&format!("\t{name};")), "{name} is not in adma.map");
    }
}

/// References to our own pages lead to one, if only by another of its names.
#[test]
fn manual_pages_refer_to_pages_that_exist() {
    let mut names = BTreeSet::new();
    for page in manual_pages() {
        let section = page.extension().unwrap().to_str().unwrap().to_owned();
        for name in names_of(&fs::read_to_string(&page).unwrap()) {
            names.insert((name, section.clone()));
        }
    }
    for page in manual_pages() {
        for line in fs::read_to_string(&page).unwrap().lines() {
            let mut words = line.split_whitespace().skip_while(|word| !word.ends_with("Xr"));
            let (Some(_), Some(name), Some(section)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            if name.starts_with("adma") {
                let known = names.contains(&(name.to_owned(), section.to_owned()));
                assert!(known, "{}: {name}({section})", page.display());
            }
        }
    }
}
