//! Names of functions, from the symbol tables of executables and libraries: untrusted input, which
//! `object` reads with every number checked.

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol, SymbolKind};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Largest file that is read.
const LARGEST: u64 = 1 << 30;

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
    /// Returns module and function of a return address, for people: `libc fread`, or `libc +0x1234`
    /// where the file has no symbol for it.
    fn name(&mut self, module: &str, offset: u64) -> String {
        let read = || functions(Path::new(module)).unwrap_or_default();
        let functions = self.0.entry(module.to_owned()).or_insert_with(read);
        // A call may be the last instruction of its function.
        let call = offset.saturating_sub(1);
        let behind = functions.partition_point(|function| function.0 <= call);
        let found = functions[..behind].last().filter(|function| call < function.1);
        let module = short(module);
        match found {
            Some((_, _, name)) => format!("{module} {name}"),
            None => format!("{module} +{offset:#x}"),
        }
    }
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
    of_file(&file)
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
        assert_eq!(Symbols::default().name("/no/such/lib.so.6", 16), "lib +0x10");
        assert_eq!(short("/x/_umath.cpython-311-x86_64-linux-gnu.so"), "_umath");
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
