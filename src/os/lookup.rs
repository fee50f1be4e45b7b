//! The next definitions after ours, as dlsym(RTLD_NEXT) finds them, of many names in one walk
//! over the loaded objects. dlsym takes more than a microsecond a name, which at the start of
//! every small program is too much. What the walk does not find is left to dlsym.

use core::ffi::{CStr, c_char, c_void};
use core::ops::Range;
use core::ptr::null_mut;
use core::slice::from_raw_parts;

/// A name to look for.
pub struct Name {
    name: &'static CStr,
    hash: u32,
}

impl Name {
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, hash: gnu_hash(name.to_bytes()) }
    }
}

/// What was found under each name, null where there is nothing; and where libc lies.
pub struct Found<const N: usize> {
    pub functions: [*mut c_void; N],
    pub libc: Range<usize>,
}

/// A function of the C library's that most programs never need of us. A symbol that the loader
/// has to find for us costs every program a fraction of a microsecond, so these are looked up when
/// they are needed; never for the hook.
macro_rules! rare {
    ($(fn $name:ident($($argument:ty),*) -> $answer:ty;)*) => { $(
        /// # Safety
        /// As the function of this name.
        pub unsafe fn $name() -> Option<unsafe extern "C" fn($($argument),*) -> $answer> {
            const NAME: &core::ffi::CStr = match core::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => panic!(),
            };
            // SAFETY: a terminated name; null, which is `None`, or a function of this kind.
            unsafe { core::mem::transmute(libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr())) }
        }
    )* };
}

pub(crate) use rare;

rare! {
    fn dlopen(*const c_char, i32) -> *mut c_void;
}

/// As dlopen; null where that is not to be had. Never for the hook.
pub fn open(name: &CStr, flags: i32) -> *mut c_void {
    // SAFETY: a terminated name; what the library does when it is loaded is its own business.
    unsafe { dlopen().map_or(null_mut(), |dlopen| dlopen(name.as_ptr(), flags)) }
}

/// Looks up all of them. May allocate: only for start-up, never for the hook.
pub fn find_next<const N: usize>(names: &'static [Name; N]) -> Found<N> {
    let mut found = [null_mut(); N];
    let libc = walk(names, &mut found);
    for (name, found) in names.iter().zip(&mut found).filter(|(_, found)| found.is_null()) {
        // SAFETY: a terminated name.
        *found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.name.as_ptr()) };
    }
    Found { functions: found, libc }
}

fn walk(names: &[Name], found: &mut [*mut c_void]) -> Range<usize> {
    let mut walk = Walk { names, found, behind_us: false, libc: 0..0 };
    // SAFETY: the callback gets `walk` and uses it before this returns.
    unsafe { libc::dl_iterate_phdr(Some(look_into), (&raw mut walk).cast()) };
    walk.libc
}

struct Walk<'a> {
    names: &'a [Name],
    found: &'a mut [*mut c_void],
    /// Objects before ours, and ours, are passed over.
    behind_us: bool,
    libc: Range<usize>,
}

#[unsafe(link_section = ".text.start")] // see `intercept::entry`
unsafe extern "C" fn look_into(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    walk: *mut c_void,
) -> i32 {
    // SAFETY: the loader's description of an object, and our own `Walk`.
    let (object, walk) = unsafe { (&*object, &mut *walk.cast::<Walk<'_>>()) };
    // SAFETY: as the loader says.
    let segments = unsafe { from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let whole = extent(object.dlpi_addr as usize, segments);
    if !walk.behind_us {
        walk.behind_us = whole.contains(&(look_into as *const () as usize));
        return 0;
    }
    let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC);
    if let Some(dynamic) = dynamic {
        // SAFETY: a loaded object, and where its dynamic section is.
        if let Some(table) = unsafe { SymbolTable::of(object.dlpi_addr as usize, dynamic) } {
            let open = walk.names.iter().zip(&mut *walk.found);
            for (name, found) in open.filter(|(_, found)| found.is_null()) {
                // SAFETY: the table of a loaded object.
                *found = unsafe { table.look_up(name) };
            }
        }
    }
    // Behind libc nobody has anything of libc's.
    let is_libc = whole.contains(&(libc::__errno_location as *const () as usize));
    if is_libc {
        walk.libc = whole;
    }
    i32::from(is_libc)
}

/// From the lowest to the highest byte; what lies between belongs to the same object.
fn extent(base: usize, segments: &[libc::Elf64_Phdr]) -> Range<usize> {
    let (mut start, mut end) = (usize::MAX, 0);
    for segment in segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD) {
        start = start.min(base + segment.p_vaddr as usize);
        end = end.max(base + (segment.p_vaddr + segment.p_memsz) as usize);
    }
    start..end
}

/// Byte by byte: comparing strings is done by memcmp, that is, by us.
///
/// # Safety
/// A terminated string.
unsafe fn is_called(found: *const c_char, name: &CStr) -> bool {
    let bytes = name.to_bytes_with_nul().iter().enumerate();
    // SAFETY: the caller's promise; nothing behind the first difference, or the end, is read.
    bytes.into_iter().all(|(i, &byte)| unsafe { found.add(i).read() } as u8 == byte)
}

/// The symbols that an object defines, as its dynamic section tells.
struct SymbolTable {
    base: usize,
    hash: *const u32,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    versions: *const u16,
}

impl SymbolTable {
    /// `None`: it has no hash table of the kind that everybody has.
    ///
    /// # Safety
    /// A loaded object, and its PT_DYNAMIC.
    unsafe fn of(base: usize, dynamic: &libc::Elf64_Phdr) -> Option<Self> {
        const NULL: u64 = 0;
        const STRTAB: u64 = 5;
        const SYMTAB: u64 = 6;
        const GNU_HASH: u64 = 0x6fff_fef5;
        const VERSYM: u64 = 0x6fff_fff0;
        let (mut hash, mut symbols, mut names, mut versions) = (0, 0, 0, 0);
        let mut entry = (base + dynamic.p_vaddr as usize) as *const [u64; 2];
        loop {
            // SAFETY: entries up to the one that ends them.
            let [tag, value] = unsafe { entry.read() };
            match tag {
                NULL => break,
                STRTAB => names = value as usize,
                SYMTAB => symbols = value as usize,
                GNU_HASH => hash = value as usize,
                VERSYM => versions = value as usize,
                _ => {}
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
        // The loader makes addresses of them where it can write.
        let address = |value: usize| if value < base { base + value } else { value };
        (hash != 0 && symbols != 0 && names != 0).then(|| Self {
            base,
            hash: address(hash) as *const u32,
            symbols: address(symbols) as *const libc::Elf64_Sym,
            names: address(names) as *const c_char,
            versions: if versions == 0 { 0 } else { address(versions) } as *const u16,
        })
    }

    /// # Safety
    /// The object is loaded and relocated.
    unsafe fn look_up(&self, wanted: &Name) -> *mut c_void {
        const HIDDEN: u16 = 0x8000;
        const FUNCTION: u8 = 2;
        const IFUNC: u8 = 10;
        // SAFETY: the layout of DT_GNU_HASH: four numbers, a filter of 64-bit words, the
        // buckets, and for each symbol from the first hashed one on its hash, of which the
        // last bit ends a bucket.
        unsafe {
            let [buckets, first, words, shift] = self.hash.cast::<[u32; 4]>().read();
            let filter = self.hash.add(4).cast::<u64>();
            let word = filter.add((wanted.hash / 64 % words) as usize).read_unaligned();
            if word >> (wanted.hash % 64) & word >> ((wanted.hash >> shift) % 64) & 1 == 0 {
                return null_mut();
            }
            let bucket = filter.add(words as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut index = bucket.add((wanted.hash % buckets) as usize).read();
            if index < first {
                return null_mut();
            }
            loop {
                let hash = chain.add((index - first) as usize).read();
                let symbol = &*self.symbols.add(index as usize);
                let is_default = self.versions.is_null()
                    || self.versions.add(index as usize).read() & HIDDEN == 0;
                if hash | 1 == wanted.hash | 1
                    && symbol.st_shndx != 0
                    && is_default
                    && is_called(self.names.add(symbol.st_name as usize), wanted.name)
                {
                    let value = self.base + symbol.st_value as usize;
                    return match symbol.st_info & 0xf {
                        FUNCTION => value as *mut c_void,
                        IFUNC => {
                            core::mem::transmute::<usize, extern "C" fn() -> *mut c_void>(value)()
                        }
                        _ => null_mut(),
                    };
                }
                if hash & 1 != 0 {
                    return null_mut();
                }
                index += 1;
            }
        }
    }
}

const fn gnu_hash(name: &[u8]) -> u32 {
    let (mut hash, mut at) = (5381u32, 0);
    while at < name.len() {
        hash = hash.wrapping_mul(33).wrapping_add(name[at] as u32);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walk_finds_what_dlsym_finds() {
        static NAMES: [Name; 6] = [
            Name::new(c"memmove"),
            Name::new(c"memcpy"),
            Name::new(c"mempcpy"),
            Name::new(c"__memmove_chk"),
            Name::new(c"sigaction"),
            Name::new(c"qsort"),
        ];
        let mut found = [null_mut(); 6];
        let libc = walk(&NAMES, &mut found);
        assert!(!libc.is_empty());
        for (name, found) in NAMES.iter().zip(found) {
            // SAFETY: a terminated name.
            let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.name.as_ptr()) };
            assert_eq!(found, expected, "{:?}", name.name);
            assert!(libc.contains(&(found as usize)));
        }
        static NOTHING: [Name; 1] = [Name::new(c"adma_no_such_function")];
        let nothing = find_next(&NOTHING);
        assert_eq!((nothing.functions, nothing.libc), ([null_mut()], libc));
    }
}
