//! The kernel interface is written twice, in C for the helper and in Rust for the library.
//! Sizes, offsets and constants of both compilers are compared.

mod common;

use adma_shared::abi;
use common::{Folder, plain, root, succeed};
use std::collections::BTreeMap;
use std::mem::offset_of;

/// Values by name, as written in a C expression.
type Numbers = BTreeMap<String, u64>;

macro_rules! layout {
    ($numbers:ident, $rust:ident is $c:literal: $($field:ident),* $(,)?) => {
        let size = size_of::<abi::$rust>();
        $numbers.insert(format!("sizeof(struct {})", $c), size as u64);
        // No field is left out, and there is no padding.
        let fields = [$(size_of_field(|s: &abi::$rust| &s.$field)),*];
        assert_eq!(fields.iter().sum::<usize>(), size, $c);
        $(
            let (c, field) = ($c, stringify!($field));
            let length = size_of_field(|s: &abi::$rust| &s.$field);
            $numbers.insert(format!("sizeof(((struct {c} *)0)->{field})"), length as u64);
            let offset = offset_of!(abi::$rust, $field);
            $numbers.insert(format!("offsetof(struct {c}, {field})"), offset as u64);
        )*
    };
}

fn size_of_field<S, F>(_: impl Fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Compares constants, which have the header's names without ADMA_.
macro_rules! constants {
    ($numbers:ident: $($name:ident)*) => {
        $($numbers.insert(format!("ADMA_{}", stringify!($name)), abi::$name as u64);)*
    };
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
    constants!(numbers: ABI_VERSION ALIGN MAX_PIECES SLOTS MAX_CHANNELS WORD_STRIDE MAX_EXPORTS
        INFO_KEEP FEATURE_WORDS FEATURE_EXPORTS FEATURE_NODES CHANNEL_ANY SUBMIT_PULL SUBMIT_PUSH
        EXPORT_READ EXPORT_WRITE IOC_TYPE IOC_INFO IOC_SUBMIT IOC_WAIT IOC_PORT IOC_EXPORT
        IOC_UNEXPORT);
    numbers.insert("ADMA_WORDS_OFFSET(7, 4096)".into(), abi::words_offset(7, 4096) as u64);
    numbers
}

/// The compiler refuses a number that differs in C.
#[test]
fn header_and_its_mirror_agree_on_every_number() {
    let asserted =
        |(c, value): (&String, &u64)| format!("_Static_assert({c} == {value}ull, \"{c}\");\n");
    let asserts: String = in_rust().iter().map(asserted).collect();
    let folder = Folder::new("abi");
    let file = folder.join("abi.c");
    let includes = "#include <stddef.h>\n#include \"adma_ioctl.h\"\n";
    std::fs::write(&file, format!("{includes}{asserts}")).unwrap();
    let mut gcc = plain("gcc");
    gcc.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I"]);
    succeed(gcc.arg(root().join("kmod-c")).arg(&file));
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
