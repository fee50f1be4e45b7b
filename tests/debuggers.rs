//! Support of debuggers and profilers: every instruction of the library can be unwound, and has a
//! name.

mod common;

use common::{finish, has, library, needs, plain, preloaded, skip_this, succeed, text, victim};

#[test]
fn gdb_backtraces_lead_out_of_the_library_at_every_step() {
    needs!(has("gdb"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/debugged.py");
    let preload = format!("set environment LD_PRELOAD {}", library().display());
    let mut command = plain("gdb");
    command.args(["-nx", "-batch", "-ex", &preload, "-x", script, "--args"]);
    command.arg(victim("debugged"));
    let done = finish(command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2"));
    let said = text(&done.stdout) + &text(&done.stderr);
    if said.contains("ptrace: Operation not permitted") {
        return skip_this("ptrace is not permitted");
    }
    assert!(done.status.success() && said.contains("\nworker:"), "{said}");
}

/// They do not see how a worker and its caller agree: drd aborted, and helgrind found ten million races.
#[test]
fn thread_checkers_of_valgrind_find_nothing_in_shared_copies() {
    needs!(has("valgrind"));
    for tool in ["drd", "helgrind"] {
        let mut command = preloaded("valgrind");
        command.args(["-q", "--error-exitcode=9", &format!("--tool={tool}")]);
        command
            .arg(victim("outlive"))
            .arg("once")
            .env("ADMA_MIN_BYTES", "64K")
            .env("ADMA_CHANNELS", "2");
        succeed(&mut command);
    }
}

/// Returns the address ranges of the unwind entries.
fn addresses<'a>(text: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    let range = text.lines().filter_map(|line| line.split_once("pc=")?.1.split_once(".."));
    let number = |text: &str| usize::from_str_radix(text.trim(), 16).unwrap();
    range.map(move |(from, to)| (number(from), number(to)))
}

#[test]
fn unwind_tables_cover_every_function_but_the_restorer_of_signals() {
    let readelf = |option: &str| succeed(plain("readelf").args(["-W", option]).arg(library())).0;
    let frames = readelf("--debug-dump=frames");
    let covered: Vec<_> = addresses(&frames).collect();
    assert!(covered.len() > 100, "{}", covered.len());
    let is_covered = |at: usize| covered.iter().any(|&(from, to)| (from..to).contains(&at));
    let symbols = readelf("-s");
    let mut functions = 0;
    for line in symbols.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, value, size, "FUNC", _, _, section, name] = words[..] else { continue };
        // Two symbols of one instruction that core refers to and never calls.
        if section == "UND"
            || ["adma_restorer", "_Unwind_Resume", "rust_eh_personality"].contains(&name)
        {
            continue;
        }
        let (value, size) =
            (usize::from_str_radix(value, 16).unwrap(), size.parse::<usize>().unwrap());
        if size == 0 {
            continue; // _init and _fini, the linker's
        }
        functions += 1;
        assert!(is_covered(value) && is_covered(value + size - 1), "{name} cannot be unwound");
    }
    assert!(functions > 100, "{functions}");
    for name in ["adma_copy_loop", "adma_loop_movsb", "adma_fill_stosb", "adma_compare_sse2"] {
        let named = |line: &str| line.contains(" FUNC ") && line.ends_with(&format!(" {name}"));
        assert!(symbols.lines().any(named), "{name} is no function in the symbol table");
    }
}
