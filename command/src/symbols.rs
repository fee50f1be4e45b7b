//! Names of functions, from the symbol tables of executables and libraries: untrusted input, which
//! `object` reads with every number checked.

use crate::demangle;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol, SymbolKind};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Largest file that is read.
const LARGEST: u64 = 1 << 30;
/// Distance from the end of a function up to which its name is still useful.
const NEAR: u64 = 64 << 10;

/// Functions of the files that were read: start, end and name.
#[derive(Default)]
struct Symbols(HashMap<String, Vec<(u64, u64, String)>>);

thread_local! {
    /// Read once for all processes of a report: hundreds may run one program.
    static ALL: RefCell<Symbols> = RefCell::default();
}

/// Returns module and function of a return address; see `Symbols::name`.
pub fn name(module: &str, offset: u64) -> String {
    ALL.with_borrow_mut(|all| all.name(module, offset))
}

impl Symbols {
    /// Returns module and function of a return address, for people: `libc fread`. Where no symbol has
    /// it: `libc near fread`, the symbol in front of it, or `libc +0x1234` if that is far away.
    fn name(&mut self, module: &str, offset: u64) -> String {
        let read = || functions(Path::new(module)).unwrap_or_default();
        let functions = self.0.entry(module.to_owned()).or_insert_with(read);
        // A call may be the last instruction of its function.
        let call = offset.saturating_sub(1);
        let behind = functions.partition_point(|function| function.0 <= call);
        let module = short(module);
        match functions[..behind].last() {
            Some((_, end, name)) if call < *end => format!("{module} {}", demangle::name(name)),
            Some((_, end, name)) if call - end < NEAR => {
                format!("{module} near {}", demangle::name(name))
            }
            _ => format!("{module} +{offset:#x}"),
        }
    }
}

/// Returns the function at an address in code that was made at run time, from the map that Java, Node
/// and others write for perf.
pub fn in_perf_map(pid: i32, owner: u32, address: u64) -> Option<String> {
    let path = format!("/tmp/perf-{pid}.map");
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    // Any user may make a file there.
    file.metadata().ok().filter(|about| about.is_file() && about.uid() == owner)?;
    let mut map = Vec::new();
    file.take(LARGEST).read_to_end(&mut map).ok()?;
    in_map(&String::from_utf8_lossy(&map), address)
}

/// Finds an address in lines of `START SIZE NAME`, in hexadecimal.
fn in_map(map: &str, address: u64) -> Option<String> {
    let call = address.checked_sub(1)?;
    // A place may have been used again: the last one counts.
    map.lines().rev().find_map(|line| {
        let (start, rest) = line.split_once(' ')?;
        let (size, name) = rest.split_once(' ')?;
        let start = u64::from_str_radix(start.trim_start_matches("0x"), 16).ok()?;
        let size = u64::from_str_radix(size.trim_start_matches("0x"), 16).ok()?;
        let is_inside = call.checked_sub(start).is_some_and(|offset| offset < size);
        is_inside.then(|| crate::say::printable(name))
    })
}

/// Returns the name of a file without folder and extensions: `_multiarray_umath` of
/// `/…/_multiarray_umath.cpython-311-x86_64-linux-gnu.so`.
fn short(module: &str) -> &str {
    let name = module.rsplit('/').next().unwrap_or(module);
    let end = [".cpython-", ".abi3.", ".so"].iter().filter_map(|ending| name.find(ending)).min();
    end.map_or(name, |end| &name[..end])
}

/// Returns all functions of a file, in order; `None`: it is no 64-bit ELF file, or is truncated.
fn functions(path: &Path) -> Option<Vec<(u64, u64, String)>> {
    let about =
        fs::metadata(path).ok().filter(|about| about.is_file() && about.len() <= LARGEST)?;
    let file = fs::read(path).ok().filter(|file| file.len() as u64 <= about.len())?;
    let mut functions = of_file(&file)?;
    if let Some(debug) = debug_file(&file).and_then(|file| of_file(&file)) {
        functions.extend(debug);
        functions.sort_unstable();
        functions.dedup_by_key(|function| function.0);
    }
    Some(functions)
}

/// Returns the file with the symbols that a stripped one lacks: of a package with debug symbols, or in
/// the cache of debuginfod. Nothing is fetched.
fn debug_file(file: &[u8]) -> Option<Vec<u8>> {
    let file = ElfFile64::<Endianness>::parse(file).ok()?;
    let id: String = file.build_id().ok()??.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = id.split_at_checked(2)?;
    let home = std::env::var("HOME").unwrap_or_default();
    let cache = std::env::var("XDG_CACHE_HOME").unwrap_or(format!("{home}/.cache"));
    let cache =
        std::env::var("DEBUGINFOD_CACHE_PATH").unwrap_or(format!("{cache}/debuginfod_client"));
    let places = [
        format!("/usr/lib/debug/.build-id/{first}/{rest}.debug"),
        format!("{cache}/{id}/debuginfo"),
    ];
    let usable = |path: &String| {
        fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() <= LARGEST)
    };
    fs::read(places.iter().find(|path| usable(path))?).ok()
}

fn of_file(file: &[u8]) -> Option<Vec<(u64, u64, String)>> {
    let file = ElfFile64::<Endianness>::parse(file).ok()?;
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let functions = symbols.filter(|symbol| {
        symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0
    });
    let described = functions.map(|symbol| {
        let name = String::from_utf8_lossy(symbol.name_bytes().unwrap_or_default());
        let (start, size) = (symbol.address(), symbol.size());
        (start, start.saturating_add(size), crate::say::printable(&name))
    });
    let mut functions: Vec<_> = described.collect();
    functions.sort_unstable();
    functions.dedup_by_key(|function| function.0);
    Some(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn adma_symbols_test_function() -> u64 {
        std::hint::black_box(4711)
    }

    #[test]
    fn functions_of_this_program_are_found_by_address() {
        let own = fs::read("/proc/self/exe").unwrap();
        let all = of_file(&own).unwrap();
        let found = all.iter().find(|function| function.2 == "adma_symbols_test_function").unwrap();
        assert_eq!(adma_symbols_test_function(), 4711);
        let mut symbols = Symbols::default();
        let path = fs::read_link("/proc/self/exe").unwrap().to_str().unwrap().to_owned();
        let program = short(&path).to_owned();
        let name = |symbols: &mut Symbols, offset| symbols.name(&path, offset);
        let expected = format!("{program} adma_symbols_test_function");
        assert_eq!(name(&mut symbols, found.0 + 1), expected);
        assert_eq!(name(&mut symbols, found.1), expected, "a call at the end");
        assert_eq!(name(&mut symbols, 7), format!("{program} +0x7"));
        let functions =
            vec![(0x1000, 0x1100, "_ZN2cv5firstEv".to_owned()), (0x90000, 0x90010, "far".into())];
        let mut sparse = Symbols([("/x/lib.so".to_owned(), functions)].into());
        assert_eq!(sparse.name("/x/lib.so", 0x1100), "lib cv::first");
        assert_eq!(sparse.name("/x/lib.so", 0x1200), "lib near cv::first");
        assert_eq!(sparse.name("/x/lib.so", 0x80000), "lib +0x80000");
        assert_eq!(Symbols::default().name("/no/such/lib.so.6", 16), "lib +0x10");
        assert_eq!(short("/x/_umath.cpython-311-x86_64-linux-gnu.so"), "_umath");
    }

    #[test]
    fn perf_map_names_the_function_at_an_address() {
        let map = "7f00 10 old\n7f00 20 LazyCompile:~copy /srv/app.js:3\nnonsense\n9000 8 end\n";
        assert_eq!(in_map(map, 0x7f20).unwrap(), "LazyCompile:~copy /srv/app.js:3");
        assert_eq!((in_map(map, 0x7f21), in_map(map, 0), in_map("", 1)), (None, None, None));
        assert_eq!(in_perf_map(-1, 0, 1), None);
    }

    #[test]
    fn files_that_are_cut_off_or_spoiled_are_survived() {
        let own = fs::read("/proc/self/exe").unwrap();
        for end in [0, 5, 6, 63, 64, 100, own.len() / 2, own.len() - 1] {
            let _ = of_file(&own[..end]);
        }
        let mut small = own[..4096.min(own.len())].to_vec();
        for at in (0..64).chain([40, 58, 60]) {
            let before = std::mem::replace(&mut small[at], 0xff);
            let _ = of_file(&small);
            small[at] = before;
        }
        assert_eq!(of_file(b"no program"), None);
    }
}
