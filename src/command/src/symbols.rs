//! Names of functions, from the symbol tables of the files that programs are made of: untrusted
//! input, of which every number is checked before it is used.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Larger files are not looked at.
const LARGEST: u64 = 1 << 30;
const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;
const FUNCTION: u8 = 2;

/// Functions of the files that were asked about: where each begins and ends, and its name.
#[derive(Default)]
pub struct Symbols(HashMap<String, Vec<(u64, u64, String)>>);

impl Symbols {
    /// The module and the function that an address to return to lies in, for people: `libc fread`, or
    /// `libc +0x1234` where the file has no symbol for it.
    pub fn name(&mut self, module: &str, offset: u64) -> String {
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

/// The name of a file without its folder and its endings: `_multiarray_umath` of
/// `/…/_multiarray_umath.cpython-311-x86_64-linux-gnu.so`.
fn short(module: &str) -> &str {
    let name = module.rsplit('/').next().unwrap_or(module);
    let end = [".cpython-", ".abi3.", ".so"].iter().filter_map(|ending| name.find(ending)).min();
    end.map_or(name, |end| &name[..end])
}

/// All functions of a file, in order; `None`: it is no ELF file of 64 bits, or is cut off.
fn functions(path: &Path) -> Option<Vec<(u64, u64, String)>> {
    let about =
        fs::metadata(path).ok().filter(|about| about.is_file() && about.len() <= LARGEST)?;
    let file = fs::read(path).ok().filter(|file| file.len() as u64 <= about.len())?;
    of_file(&file)
}

fn of_file(file: &[u8]) -> Option<Vec<(u64, u64, String)>> {
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (word(file, 40, 8)?, word(file, 58, 2)?, word(file, 60, 2)?);
    let section = |number: u64| {
        let at = table.checked_add(number.checked_mul(size)?)? as usize;
        file.get(at..)?.get(..64)
    };
    let content = |header: &[u8]| {
        let (from, len) = (word(header, 24, 8)? as usize, word(header, 32, 8)? as usize);
        file.get(from..from.checked_add(len)?)
    };
    let mut functions = Vec::new();
    for header in (0..count).filter_map(section) {
        if ![SYMTAB, DYNSYM].contains(&(word(header, 4, 4)? as u32)) {
            continue;
        }
        let names = section(word(header, 40, 4)?).and_then(content);
        let (Some(symbols), Some(names)) = (content(header), names) else { continue };
        for symbol in symbols.chunks_exact(24) {
            let (start, len) = (word(symbol, 8, 8)?, word(symbol, 16, 8)?);
            if symbol[4] & 0xf != FUNCTION || word(symbol, 6, 2)? == 0 || len == 0 {
                continue;
            }
            let Some(name) = names.get(word(symbol, 0, 4)? as usize..) else { continue };
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            let name = crate::say::printable(&String::from_utf8_lossy(name));
            functions.push((start, start.saturating_add(len), name));
        }
    }
    functions.sort_unstable();
    functions.dedup_by_key(|function| function.0);
    Some(functions)
}

/// A number of `len` bytes at a place.
fn word(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)))
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
