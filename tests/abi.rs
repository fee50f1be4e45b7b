//! The kernel interface is written twice, in C for the helper and in Rust for the library.
//! Sizes, offsets and constants of both compilers are compared.

#[path = "../src/backend/ioat/abi.rs"]
mod abi;
mod common;

use common::{plain, root, scratch, succeed};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::mem::offset_of;

/// Names as a C expression has them, and their values.
type Numbers = BTreeMap<String, u64>;

macro_rules! layout {
    ($numbers:ident, $rust:ident is $c:literal: $($field:ident),* $(,)?) => {
        let size = size_of::<abi::$rust>();
        $numbers.insert(format!("sizeof(struct {})", $c), size as u64);
        // No field is left out, and there is no padding.
        let fields = [$(size_of_field(|s: &abi::$rust| &s.$field)),*];
        assert_eq!(fields.iter().sum::<usize>(), size, $c);
        $(
            let field = stringify!($field);
            let end = offset_of!(abi::$rust, $field) + size_of_field(|s: &abi::$rust| &s.$field);
            $numbers.insert(format!("offsetof(struct {}, {field})", $c),
                offset_of!(abi::$rust, $field) as u64);
            $numbers.insert(format!("offsetofend({}, {field})", $c), end as u64);
        )*
    };
}

fn size_of_field<S, F>(_: impl Fn(&S) -> &F) -> usize {
    size_of::<F>()
}

fn in_rust() -> Numbers {
    let mut numbers = Numbers::new();
    layout!(numbers, Info is "adma_info": size, flags, abi, features, channels, usable,
        src_align, reserved, max_bytes, max_pages, keep_pages, pages, hits, misses, evictions,
        invalidations);
    layout!(numbers, Piece is "adma_piece": dst, src, len, channel, flags);
    layout!(numbers, Submit is "adma_submit": size, flags, pieces, count, port, export, id,
        accepted, slot, channels, pinned);
    layout!(numbers, Wait is "adma_wait": size, flags, id, timeout_ns, failed);
    layout!(numbers, Export is "adma_export": size, flags, addr, len, id);
    let constants = [
        ("ADMA_ABI_VERSION", abi::ABI_VERSION as u64),
        ("ADMA_ALIGN", abi::ALIGN as u64),
        ("ADMA_MAX_PIECES", abi::MAX_PIECES as u64),
        ("ADMA_SLOTS", abi::SLOTS as u64),
        ("ADMA_MAX_CHANNELS", abi::MAX_CHANNELS as u64),
        ("ADMA_WORDS_OFFSET(7, 4096)", abi::words_offset(7, 4096) as u64),
        ("ADMA_WORD_STRIDE", abi::WORD_STRIDE as u64),
        ("ADMA_MAX_EXPORTS", abi::MAX_EXPORTS as u64),
        ("ADMA_INFO_KEEP", abi::INFO_KEEP as u64),
        ("ADMA_FEATURE_WORDS", abi::FEATURE_WORDS as u64),
        ("ADMA_FEATURE_EXPORTS", abi::FEATURE_EXPORTS as u64),
        ("ADMA_FEATURE_NODES", abi::FEATURE_NODES as u64),
        ("ADMA_CHANNEL_ANY", abi::CHANNEL_ANY as u64),
        ("ADMA_SUBMIT_PULL", abi::SUBMIT_PULL as u64),
        ("ADMA_SUBMIT_PUSH", abi::SUBMIT_PUSH as u64),
        ("ADMA_EXPORT_READ", abi::EXPORT_READ as u64),
        ("ADMA_EXPORT_WRITE", abi::EXPORT_WRITE as u64),
        ("ADMA_IOC_TYPE", abi::IOC_TYPE as u64),
        ("ADMA_IOC_INFO", abi::IOC_INFO as u64),
        ("ADMA_IOC_SUBMIT", abi::IOC_SUBMIT as u64),
        ("ADMA_IOC_WAIT", abi::IOC_WAIT as u64),
        ("ADMA_IOC_PORT", abi::IOC_PORT as u64),
        ("ADMA_IOC_EXPORT", abi::IOC_EXPORT as u64),
        ("ADMA_IOC_UNEXPORT", abi::IOC_UNEXPORT as u64),
    ];
    numbers.extend(constants.map(|(name, value)| (name.to_owned(), value)));
    numbers
}

/// Values of these expressions in C.
fn in_c(expressions: &Numbers) -> Numbers {
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"adma_ioctl.h\"\n\
         #define offsetofend(s, f) \\\n\
         (offsetof(struct s, f) + sizeof(((struct s *)0)->f))\n\
         int main(void)\n{\n",
    );
    for expression in expressions.keys() {
        let _ = writeln!(
            source,
            "printf(\"%s|%llu\\n\", \"{expression}\", (unsigned long long)({expression}));"
        );
    }
    source.push_str("return 0;\n}\n");
    let folder = scratch("abi");
    let (file, program) = (folder.join("abi.c"), folder.join("abi"));
    std::fs::write(&file, source).unwrap();
    succeed(
        plain("gcc")
            .args(["-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .arg(&file)
            .arg("-I")
            .arg(root().join("kmod-c")),
    );
    let (out, _) = succeed(&mut plain(&program));
    std::fs::remove_dir_all(folder).unwrap();
    let line = |line: &str| {
        let (name, value) = line.rsplit_once('|').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    out.lines().map(line).collect()
}

#[test]
fn header_and_its_mirror_agree_on_every_number() {
    let rust = in_rust();
    assert_eq!(in_c(&rust), rust);
}

/// The comparison above leaves nothing out when the header grows.
#[test]
fn every_constant_of_the_header_is_compared() {
    let compared = in_rust();
    let header = root().join("kmod-c/adma_ioctl.h");
    let (macros, _) = succeed(plain("gcc").args(["-dM", "-E"]).arg(header));
    let names = macros.lines().filter_map(|line| line.strip_prefix("#define ADMA_"));
    let names: Vec<&str> = names.filter_map(|line| line.split([' ', '(']).next()).collect();
    assert!(names.len() > 20, "{macros}");
    for name in names.into_iter().filter(|name| !name.ends_with("_H")) {
        let known = |known: &String| known.split('(').next() == Some(&format!("ADMA_{name}"));
        assert!(compared.keys().any(known), "not compared: ADMA_{name}");
    }
}
