//! `adma check --moments`: moments that could break a program, played under the installed library.

use super::*;

/// Returns exit status and lines. The first names the library, the last is a verdict.
fn moments(adma: &mut Command, words: &str) -> (Option<i32>, Vec<String>) {
    let done = finish(adma.args(["check", words]));
    assert_eq!(text(&done.stderr), "");
    (done.status.code(), text(&done.stdout).lines().map(str::to_owned).collect())
}

#[test]
fn moments_under_this_library_end_as_without_it() {
    let (status, lines) = moments(&mut adma(), "--moments");
    let (verdict, played) = lines[1..].split_last().unwrap();
    assert_eq!((status, played.len()), (Some(0), 24), "{lines:#?}");
    for kind in ["signal", "jump", "fork", "exec", "filter", "limit", "end"] {
        let is_ok =
            |line: &&String| line.starts_with(&format!("  {kind}: ")) && line.contains(" ok ");
        assert!(played.iter().any(|line| is_ok(&line)), "{kind}: {lines:#?}");
    }
    assert!(verdict.starts_with("All ") && verdict.contains("end as without adma"), "{verdict}");
    assert!(!lines.iter().any(|line| line.contains("DIFFERS")), "{lines:#?}");
}

/// A library of one function.
const BROKEN: &str = r#"
#include <stddef.h>
#include <unistd.h>
int adma_version, calls;
void *memcpy(void *dst, const void *src, size_t size)
{
    char *to = dst;
    int is_large = size >= 65536;
    if (is_large && LEAVES_FILES && calls++ > 30)
        dup(0);
    void *at = dst;
    size_t left = size;
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(src), "+c"(left)::"memory");
    if (is_large && SPOILS)
        to[size / 2] ^= 1;
    return dst;
}
"#;

#[test]
fn moments_under_a_broken_library_differ() {
    for (flags, word, complaint) in [
        ("-DSPOILS=1 -DLEAVES_FILES=0", "limit: no descriptor", "byte "),
        ("-DSPOILS=0 -DLEAVES_FILES=1", "jump: no file", "descriptors became"),
        ("-DSPOILS=0 -DLEAVES_FILES=0", "limit: no descriptor", ""),
    ] {
        let place = scratch("broken-moments");
        fs::write(place.join("broken.c"), BROKEN).unwrap();
        let mut gcc = plain("gcc");
        gcc.args(["-O1", "-w", "-shared", "-fPIC", "-fno-builtin"]).args(flags.split(' '));
        succeed(gcc.arg("-o").arg(place.join("libadma.so")).arg(place.join("broken.c")));
        copy_program(command(), place.join("adma"));
        let word = format!("--moments={word}");
        let (status, lines) = moments(&mut plain(place.join("adma")), &word);
        let differs = |line: &&String| line.contains(" DIFFERS ") && line.contains(complaint);
        let differing = lines.iter().filter(differs).count();
        let expected = i32::from(!complaint.is_empty());
        assert_eq!((status, differing as i32), (Some(expected), expected), "{flags}: {lines:#?}");
        assert_eq!(lines.last().unwrap().contains(" differ from "), expected == 1, "{lines:#?}");
        fs::remove_dir_all(&place).unwrap();
    }
}

#[test]
fn moments_with_a_word_that_none_has_are_refused() {
    let done = finish(adma().args(["check", "--moments=xyzzy"]));
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(125), String::new()));
    assert!(text(&done.stderr).contains("no moment with xyzzy"), "{}", text(&done.stderr));
}
