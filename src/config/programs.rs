//! Exclusion of programs by ADMA_ONLY and ADMA_NOT, and under valgrind.

use super::environment::environment;
use crate::os::lookup::{Function, resolve_anywhere};
use adma_shared::knobs::is_list_of_programs;
use core::ffi::{CStr, c_char};

/// Returns whether ADMA_ONLY, ADMA_NOT or valgrind leaves this program out. Asked before anything else, and
/// without allocating: a program that is left out has nothing to do with us. Only for start-up.
pub fn leaves_this_program_out() -> bool {
    // SAFETY: reads a value the kernel has given the process.
    let raised = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    !raised && leaves_out(environment(), names_of_program)
}

fn leaves_out<'a>(
    environment: impl Iterator<Item = &'a [u8]>,
    names: impl Fn() -> [&'a [u8]; 2],
) -> bool {
    let (mut only, mut not, mut check) = (None, None, false);
    for variable in environment {
        if is_under_valgrind(variable) {
            return true;
        }
        let good = |list: &&[u8]| core::str::from_utf8(list).is_ok_and(is_list_of_programs);
        only = variable.strip_prefix(b"ADMA_ONLY=").filter(good).or(only);
        not = variable.strip_prefix(b"ADMA_NOT=").filter(good).or(not);
        check |= variable == b"ADMA_CHECK=1";
    }
    let is_among = |list: &[u8]| names().iter().any(|name| is_among(list, name));
    !check && (only.is_some_and(|list| !is_among(list)) || not.is_some_and(is_among))
}

/// Returns whether a variable shows that valgrind runs the program. It runs one thread at a time, so
/// sharing gains nothing; drd aborts at a bare clone, and helgrind takes every byte of a shared copy for
/// a race, because it does not see how the threads agree.
fn is_under_valgrind(variable: &[u8]) -> bool {
    let preloaded = variable.strip_prefix(b"LD_PRELOAD=").unwrap_or_default();
    preloaded.windows(11).any(|word| word == b"/vgpreload_")
}

/// Returns whether one of a comma list of patterns is this name.
fn is_among(patterns: &[u8], name: &[u8]) -> bool {
    patterns.split(|&byte| byte == b',').any(|pattern| matches(pattern, name))
}

/// `*` stands for any bytes, `?` for one. As many steps as the product of the two lengths at most.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // Position of the last star, for backtracking.
    let mut star = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_name));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => {
                let Some((of_star, from)) = star else { return false };
                star = Some((of_star, from + 1));
                (at, in_name) = (of_star + 1, from + 1);
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

/// Returns the names of this program: of the file that was executed, which may be a script, and
/// `argv[0]`. Not the target of links: redis-server is redis-check-rdb that way.
fn names_of_program() -> [&'static [u8]; 2] {
    // The program may hold that variable itself, by a copy relocation.
    let called = resolve_anywhere(Function::program_invocation_name).cast::<*const c_char>();
    // SAFETY: strings that the kernel has put there for good, or null.
    let [file, called] = unsafe {
        let file = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        let called = called.as_ref().map_or(core::ptr::null(), |called| *called);
        [file, called]
            .map(|name| if name.is_null() { &b""[..] } else { CStr::from_ptr(name).to_bytes() })
    };
    [file, called].map(|name| {
        let name = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
        name.strip_prefix(b"-").unwrap_or(name) // a login shell
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_a_shell_would() {
        let good = [
            ("redis-server", "redis-server"),
            ("python3*", "python3"),
            ("python3*", "python3.11"),
            ("*", ""),
            ("*sh", "bash"),
            ("a*b*c", "aXbYbZc"),
            ("?ash", "dash"),
            ("**x", "x"),
        ];
        for (pattern, name) in good {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        let bad = [("python3", "python3.11"), ("a*b", "ac"), ("?", ""), ("", "x"), ("*a", "b")];
        for (pattern, name) in bad {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        // No pattern takes long.
        assert!(!matches("*a".repeat(100).as_bytes(), "b".repeat(4000).as_bytes()));
    }

    #[test]
    fn programs_are_left_out_by_name() {
        let decide = |environment: &[&str], names: [&'static str; 2]| {
            let environment = environment.iter().map(|variable| variable.as_bytes());
            leaves_out(environment, || names.map(str::as_bytes))
        };
        let python = ["script.py", "python3"];
        assert!(!decide(&["PATH=/bin"], python));
        assert!(!decide(&["ADMA_ONLY=python3*,redis-server"], python));
        assert!(!decide(&["ADMA_ONLY=script.py"], python));
        assert!(decide(&["ADMA_ONLY=redis-server"], python));
        assert!(decide(&["ADMA_NOT=py*"], python));
        assert!(decide(&["ADMA_ONLY=python3", "ADMA_NOT=script*"], python));
        assert!(!decide(&["ADMA_ONLY=redis-server", "ADMA_CHECK=1"], python));
        assert!(decide(&["LD_PRELOAD=/usr/lib/valgrind/vgpreload_core.so:/x/libadma.so"], python));
        assert!(!decide(&["LD_PRELOAD=/home/vgpreload/libadma.so"], python));
        for bad in ["", ",", "a,,b", "/usr/bin/a", "a,b/c"] {
            assert!(!decide(&[&format!("ADMA_ONLY={bad}")], python), "{bad}: said, and not obeyed");
        }
    }
}
