//! Looks up functions of the C library, and a variable: the next definitions after ours, as
//! dlsym(RTLD_NEXT) finds them. All look-ups of this library are made here.
//!
//! Start-up walks over the loaded objects once: it notes what other libraries define between ours and
//! libc, and where libc's table of symbols lies. A name that none of them defines is looked up in
//! that table when it is first needed, because most names never are, and each costs a tenth of a
//! microsecond. dlsym and dl_iterate_phdr are not called later, for they wait for locks of the loader.
//! A thread may hold such a lock for long (a constructor that waits for another thread), and the child of a
//! fork inherits the lock of dl_iterate_phdr in its locked state. The table needs no lock: libc is never
//! unloaded.

use crate::os::arch;
use crate::os::once::Once;
use core::ffi::{c_char, c_void};
use core::ops::Range;
use core::ptr::{null, null_mut};
use core::slice::from_raw_parts;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// Names to look for: where each begins in the text, and its hash. Offsets instead of addresses,
/// which the loader would have to relocate.
struct Names<const N: usize> {
    text: &'static str,
    names: [(u16, u32); N],
}

impl<const N: usize> Names<N> {
    /// Builds the table from `text`: N names, each terminated by a zero.
    const fn new(text: &'static str) -> Self {
        let (bytes, mut names, mut name, mut at) = (text.as_bytes(), [(0, 0); N], 0, 0);
        while name < N {
            let (start, mut hash) = (at, 5381u32);
            while bytes[at] != 0 {
                hash = hash.wrapping_mul(33).wrapping_add(bytes[at] as u32);
                at += 1;
            }
            names[name] = (start as u16, hash);
            (name, at) = (name + 1, at + 1);
        }
        assert!(at == bytes.len());
        Self { text, names }
    }
}

/// Functions to be looked up: the first symbol of each row of the table of intercepted functions, and others.
macro_rules! functions {
    ([$($name:ident)*] $($row:ident: ($symbol:ident $($alias:ident)*) $unit:literal $length:tt
        $kind:ident::$large:ident $original:tt;)*) => { functions! { $($symbol)* $($name)* } };
    ($($name:ident)*) => {
        #[allow(non_camel_case_types, dead_code)]
        #[derive(Clone, Copy, Debug)]
        pub enum Function { $($name),* }

        const COUNT: usize = [$(Function::$name),*].len();
        static NAMES: Names<COUNT> = Names::new(concat!($(stringify!($name), "\0"),*));
    };
}

adma_shared::intercepted_functions! { functions [
    flockfile funlockfile fileno fwide feof_unlocked ferror_unlocked __freading __fwriting
    __fbufsize ftello64 fseeko64 _pthread_cleanup_push _pthread_cleanup_pop pthread_testcancel
    sigaction abort
    unshare setns setuid setgid seteuid setegid setreuid setregid setresuid setresgid setgroups
    initgroups capset
    mprotect pkey_mprotect madvise mremap prctl syscall
    pthread_attr_init pthread_attr_setdetachstate pthread_attr_setstacksize pthread_attr_destroy
    pthread_create
    dlopen dlsym __cxa_atexit __cxa_at_quick_exit on_exit sysconf getgrgid_r
    cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister
    _dl_find_object program_invocation_name __libc_single_threaded
] }

/// Addresses found so far; null: not found yet.
static FOUND: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(null_mut()) }; COUNT];
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static LIBC: Once<Libc> = Once::new();

#[derive(Clone)]
struct Libc {
    extent: Range<usize>,
    /// Extent of libpthread, which before 2.34 has read functions of its own, in place of libc's for programs
    /// with threads. Empty: not loaded.
    libpthread: Range<usize>,
    /// Table of symbols of libc; `None`: its format is not one that we read.
    symbols: Option<SymbolTable>,
    /// Set if no other library defines a function that we look for.
    is_alone: bool,
}

/// Walks over the loaded objects; returns where libc lies, and its libpthread.
pub fn resolve() -> [Range<usize>; 2] {
    let mut walk = Walk { found: &FOUND, ..Walk::default() };
    walk.over(0);
    let unknown = || Libc { extent: 0..0, libpthread: 0..0, symbols: None, is_alone: true };
    LIBC.set(walk.libc.unwrap_or_else(unknown))
        .map_or([0..0, 0..0], |libc| [libc.extent.clone(), libc.libpthread.clone()])
}

/// Returns whether no library between ours and libc defines a function that we look for.
pub fn is_alone() -> bool {
    LIBC.get().is_none_or(|libc| libc.is_alone)
}

/// Finds a function in libc, even if other objects define it too; null: libc does not define it.
#[inline(never)]
#[unsafe(link_section = ".text.start")] // see `intercept::entry`
pub fn in_libc(function: Function) -> *mut c_void {
    let Some(symbols) = LIBC.get().and_then(|libc| libc.symbols.as_ref()) else {
        return null_mut();
    };
    let (at, hash) = NAMES.names[function as usize];
    // SAFETY: the table is that of libc, which is loaded, relocated and never unloaded.
    unsafe { symbols.look_up(&NAMES.text.as_bytes()[at as usize..], hash) }
}

/// Finds a function or variable in any object, from the program on to the loader, which comes after
/// libc. Only for start-up.
#[cold]
pub fn resolve_anywhere(function: Function) -> *mut c_void {
    let place = [AtomicPtr::new(null_mut())];
    let mut walk = Walk { found: &place, behind_us: true, past_libc: true, ..Walk::default() };
    walk.over(function as usize);
    place[0].load(Ordering::Relaxed)
}

/// Returns the function after ours, or null; also null before start-up.
pub fn found(function: Function) -> *mut c_void {
    let place = &FOUND[function as usize];
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = in_libc(function);
    if !found.is_null() {
        place.store(found, Ordering::Relaxed);
    }
    found
}

/// Returns whether the C library knows of no second thread, which could install a signal handler at
/// any moment. False where it does not report it: before glibc 2.32, and before 2.35 in a program that has
/// its own copy of the flag. Looked up, because a library that is linked with a symbol of 2.32 does not
/// load on 2.31, even if the symbol is weak.
pub fn has_one_thread() -> bool {
    let flag = found(Function::__libc_single_threaded).cast::<AtomicU8>();
    // SAFETY: null, or a public byte of the C library.
    unsafe { flag.as_ref() }.is_some_and(|flag| flag.load(Ordering::Relaxed) != 0)
}

/// Like `found`, but stores nothing where possible, so as to dirty no page. For start-up.
pub fn found_at_start(function: Function) -> *mut c_void {
    if is_alone() { in_libc(function) } else { found(function) }
}

/// Notes a function of a library that was loaded since.
pub fn note(function: Function, found: *mut c_void) {
    FOUND[function as usize].store(found, Ordering::Relaxed);
}

/// Returns the function after ours, or null. A constructor of another library may call this before our
/// start-up; then the walk is made here.
pub fn original(function: Function) -> *mut c_void {
    if LIBC.get().is_none() {
        resolve();
    }
    found(function)
}

/// Finds a function in any object after ours, including objects behind libc and objects loaded since. Before
/// 2.34 glibc has threads in libpthread and dlopen in libdl; in a program that names libc first, or opens a
/// library that needs these two, they lie behind libc.
///
/// Not for the hook: waits for a lock of the loader. For functions that the program calls, or a thread
/// of ours that may wait.
#[cold]
pub fn behind_libc(function: Function) -> *mut c_void {
    let place = [AtomicPtr::new(null_mut())];
    let mut walk = Walk { found: &place, past_libc: true, ..Walk::default() };
    walk.over(function as usize);
    place[0].load(Ordering::Relaxed)
}

/// Calls a function that was found, with up to five words. `None`: there is none.
///
/// # Safety
/// The function takes `arguments`, as the program passed them in its own call, and returns a number.
pub unsafe fn call<const N: usize>(found: *mut c_void, arguments: [usize; N]) -> Option<isize> {
    type AnyFn = unsafe extern "C" fn(usize, usize, usize, usize, usize) -> isize;
    const { assert!(N <= 5) };
    let [first, second, third, fourth, fifth] =
        [0, 1, 2, 3, 4].map(|i| arguments.get(i).copied().unwrap_or(0));
    // SAFETY: null becomes `None`; any other address is that of a function whose arguments are words, by the
    // caller's promise.
    let function = unsafe { core::mem::transmute::<*mut c_void, Option<AnyFn>>(found) }?;
    // SAFETY: the caller passes the arguments of the program's own call; the function ignores the words
    // behind its last argument.
    Some(unsafe { function(first, second, third, fourth, fifth) })
}

/// Functions of the C library that we rarely call, with their types. A symbol that the loader resolves costs
/// every program more than one more name on the walk.
macro_rules! rare {
    ($(fn $name:ident($($argument:ty),*) -> $answer:ty;)*) => { $(
        /// # Safety
        /// As the function of this name.
        pub unsafe fn $name() -> Option<unsafe extern "C" fn($($argument),*) -> $answer> {
            let function = $crate::os::lookup::Function::$name;
            let mut found = $crate::os::lookup::found(function);
            if found.is_null() {
                found = $crate::os::lookup::behind_libc(function);
            }
            // SAFETY: `found` is null, which is `None`, or the C library's function of this name, which has
            // this type.
            unsafe { core::mem::transmute(found) }
        }
    )* };
}

pub(crate) use rare;

#[derive(Default)]
struct Walk<'a> {
    names: &'a [(u16, u32)],
    found: &'a [AtomicPtr<c_void>],
    /// Set once the walk has passed our own object.
    behind_us: bool,
    past_libc: bool,
    any: bool,
    libpthread: Option<Range<usize>>,
    libc: Option<Libc>,
}

impl Walk<'_> {
    /// Walks over the objects and looks for those functions from number `first` on that were not found yet.
    fn over(&mut self, first: usize) {
        self.names = &NAMES.names[first..][..self.found.len()];
        // SAFETY: the callback gets `self` and uses it before this returns.
        unsafe { libc::dl_iterate_phdr(Some(look_into), (&raw mut *self).cast()) };
    }
}

#[unsafe(link_section = ".text.start")] // see `intercept::entry`
unsafe extern "C" fn look_into(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    walk: *mut c_void,
) -> i32 {
    // SAFETY: the loader passes its description of an object, and the `Walk` that `over` gave it, which
    // nothing else uses meanwhile.
    let (object, walk) = unsafe { (&*object, &mut *walk.cast::<Walk<'_>>()) };
    // SAFETY: the loader gives the address and the number of the object's program headers, which stay mapped.
    let segments = unsafe { from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let whole = extent(object.dlpi_addr as usize, segments);
    // If our library was opened by dlopen, it comes after libc; then libc is the only object to search.
    let is_libc = whole.contains(&address_in_libc());
    if !walk.behind_us && !is_libc {
        walk.behind_us = whole.contains(&(look_into as *const () as usize));
        return 0;
    }
    let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC);
    // SAFETY: the object is loaded at this address, and `dynamic` is its PT_DYNAMIC.
    let table =
        dynamic.and_then(|dynamic| unsafe { SymbolTable::of(object.dlpi_addr as usize, dynamic) });
    if is_libc && !walk.past_libc {
        let symbols = table.map(|table| SymbolTable { definitions: null(), ..table });
        let libpthread = walk.libpthread.take().unwrap_or_default();
        walk.libc = Some(Libc { extent: whole, libpthread, symbols, is_alone: !walk.any });
        return 1; // no object behind libc defines its functions
    }
    walk.behind_us = true;
    // SAFETY: the loader's name of an object is a terminated string.
    if unsafe { is_libpthread(object.dlpi_name) } {
        walk.libpthread = Some(whole);
    }
    if let Some(table) = table {
        for (&(at, hash), found) in walk.names.iter().zip(walk.found) {
            if found.load(Ordering::Relaxed).is_null() {
                let name = &NAMES.text.as_bytes()[at as usize..];
                // SAFETY: the table is that of an object that is loaded and relocated.
                let address = unsafe { table.look_up(name, hash) };
                if !address.is_null() {
                    found.store(address, Ordering::Relaxed);
                    walk.any = true;
                }
            }
        }
    }
    0
}

/// Returns the address of glibc's __register_atfork; `None`: another C library. The symbol is weak, because
/// such a library does not define it, and its loader would refuse to load ours.
pub fn register_atfork() -> Option<usize> {
    let address = arch::register_atfork();
    (address != 0).then_some(address)
}

/// Returns an address inside libc. A program that is not position independent and takes the address of a
/// function moves that address into itself. Some programs take that of __errno_location, none that of
/// __register_atfork.
fn address_in_libc() -> usize {
    register_atfork().unwrap_or(libc::__errno_location as *const () as usize)
}

/// Returns an object's range from its lowest to its highest byte.
fn extent(base: usize, segments: &[libc::Elf64_Phdr]) -> Range<usize> {
    let (mut start, mut end) = (usize::MAX, 0);
    for segment in segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD) {
        start = start.min(base + segment.p_vaddr as usize);
        end = end.max(base + (segment.p_vaddr + segment.p_memsz) as usize);
    }
    start..end
}

/// Compares byte by byte, because comparing strings calls memcmp, that is, us.
///
/// # Safety
/// `found` is a terminated string; `name` ends with its first zero.
unsafe fn is_called(found: *const c_char, name: &[u8]) -> bool {
    let end = name.iter().enumerate().find(|&(i, &byte)| {
        // SAFETY: `found` is terminated; nothing behind the first difference, or its end, is read.
        byte == 0 || unsafe { found.add(i).read() } as u8 != byte
    });
    // SAFETY: `found` equals `name` up to `i`, so its end is not before that.
    end.is_some_and(|(i, &byte)| byte == 0 && unsafe { found.add(i).read() } == 0)
}

/// # Safety
/// `path` is a terminated string, the path of an object.
unsafe fn is_libpthread(path: *const c_char) -> bool {
    let (mut name, mut at) = (path, path);
    // SAFETY: `path` is terminated, and nothing behind its end is read.
    unsafe {
        while at.read() != 0 {
            at = at.add(1);
            if at.sub(1).read() as u8 == b'/' {
                name = at;
            }
        }
        is_called(name, b"libpthread.so.0\0")
    }
}

/// The symbols that an object defines, by its dynamic section.
#[derive(Clone)]
struct SymbolTable {
    base: usize,
    /// DT_GNU_HASH, and DT_HASH, which is read where the first is missing; null: missing.
    hash: *const u32,
    old_hash: *const u32,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    versions: *const u16,
    /// DT_VERDEF; null: any version matches.
    definitions: *const u8,
}

// SAFETY: the pointers are only read through, and the one table that is kept is libc's, which is never
// unloaded.
unsafe impl Send for SymbolTable {}
// SAFETY: the pointers are only read through, and the one table that is kept is libc's, which is never
// unloaded.
unsafe impl Sync for SymbolTable {}

impl SymbolTable {
    /// Finds the tables of an object. `None`: it has no table of symbols.
    ///
    /// # Safety
    /// `base` is the address of a loaded object, and `dynamic` its PT_DYNAMIC.
    unsafe fn of(base: usize, dynamic: &libc::Elf64_Phdr) -> Option<Self> {
        const NULL: u64 = 0;
        const HASH: u64 = 4;
        const STRTAB: u64 = 5;
        const SYMTAB: u64 = 6;
        const GNU_HASH: u64 = 0x6fff_fef5;
        const VERSYM: u64 = 0x6fff_fff0;
        const VERDEF: u64 = 0x6fff_fffc;
        let (mut hash, mut old_hash, mut symbols, mut names) = (0, 0, 0, 0);
        let (mut versions, mut definitions) = (0, 0);
        let mut entry = (base + dynamic.p_vaddr as usize) as *const [u64; 2];
        loop {
            // SAFETY: `entry` is not behind the entry `NULL`, which ends the section.
            let [tag, value] = unsafe { entry.read() };
            match tag {
                NULL => break,
                STRTAB => names = value as usize,
                SYMTAB => symbols = value as usize,
                HASH => old_hash = value as usize,
                GNU_HASH => hash = value as usize,
                VERSYM => versions = value as usize,
                VERDEF => definitions = value as usize,
                _ => {}
            }
            // SAFETY: this entry is not `NULL`, so another one follows.
            entry = unsafe { entry.add(1) };
        }
        // The loader replaces these offsets by addresses where the section is writable.
        let address = |value: usize| if value != 0 && value < base { base + value } else { value };
        (hash | old_hash != 0 && symbols != 0 && names != 0).then(|| Self {
            base,
            hash: address(hash) as *const u32,
            old_hash: address(old_hash) as *const u32,
            symbols: address(symbols) as *const libc::Elf64_Sym,
            names: address(names) as *const c_char,
            versions: address(versions) as *const u16,
            definitions: address(definitions) as *const u8,
        })
    }

    /// # Safety
    /// The object is loaded and relocated.
    unsafe fn look_up(&self, name: &[u8], wanted: u32) -> *mut c_void {
        // SAFETY: the layout of DT_GNU_HASH: four numbers, a filter of 64-bit words, the
        // buckets, and for each symbol from the first hashed one on its hash, of which the
        // last bit ends a bucket.
        unsafe {
            if self.hash.is_null() {
                return self.look_up_by_old_hash(name);
            }
            let [buckets, first, words, shift] = self.hash.cast::<[u32; 4]>().read();
            if buckets == 0 || words == 0 {
                return null_mut();
            }
            let filter = self.hash.add(4).cast::<u64>();
            let word = filter.add((wanted / 64 % words) as usize).read_unaligned();
            if word >> (wanted % 64) & word >> ((wanted >> shift) % 64) & 1 == 0 {
                return null_mut();
            }
            let bucket = filter.add(words as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut index = bucket.add((wanted % buckets) as usize).read();
            if index < first {
                return null_mut();
            }
            loop {
                let hash = chain.add((index - first) as usize).read();
                if hash | 1 == wanted | 1 && self.defines(index, name) {
                    return self.address_of(index);
                }
                if hash & 1 != 0 {
                    return null_mut();
                }
                index += 1;
            }
        }
    }

    /// Looks a symbol up in DT_HASH, for libraries of old linkers or linked with --hash-style=sysv.
    #[cold]
    unsafe fn look_up_by_old_hash(&self, name: &[u8]) -> *mut c_void {
        let hash = name.iter().take_while(|&&byte| byte != 0).fold(0u32, |hash, &byte| {
            let sum = (hash << 4).wrapping_add(byte.into());
            (sum ^ (sum >> 24 & 0xf0)) & 0x0fff_ffff
        });
        // SAFETY: the layout of DT_HASH: two numbers, the buckets, and for each symbol the next one
        // of its bucket; 0 ends it.
        unsafe {
            let buckets = self.old_hash.read();
            if buckets == 0 {
                return null_mut();
            }
            let bucket = self.old_hash.add(2);
            let chain = bucket.add(buckets as usize);
            let mut index = bucket.add((hash % buckets) as usize).read();
            while index != 0 && !self.defines(index, name) {
                index = chain.add(index as usize).read();
            }
            if index == 0 { null_mut() } else { self.address_of(index) }
        }
    }

    /// Returns whether the symbol of this number is the definition of `name`.
    unsafe fn defines(&self, index: u32, name: &[u8]) -> bool {
        const HIDDEN: u16 = 0x8000;
        // SAFETY: `index` comes from the object's hash table, so it is the number of one of its symbols.
        unsafe {
            let symbol = self.symbols.add(index as usize);
            let is_default = || {
                self.versions.is_null() || self.versions.add(index as usize).read() & HIDDEN == 0
            };
            (*symbol).st_shndx != 0
                && is_default()
                && is_called(self.names.add((*symbol).st_name as usize), name)
                && self.is_for_callers_of_libc(index)
        }
    }

    /// Returns whether the loader would bind a call of libc's function to this symbol: not if the symbol has
    /// a version whose name does not begin with GLIBC_. Libraries give such versions to functions for their
    /// own use.
    unsafe fn is_for_callers_of_libc(&self, index: u32) -> bool {
        const OF_NONE: u16 = 1; // the number of symbols without a version
        if self.definitions.is_null() || self.versions.is_null() {
            return true;
        }
        // SAFETY: the layout of DT_VERDEF: each entry holds its number, and the distances from it to its
        // names and to the next entry; a name begins with its offset in the table of names.
        unsafe {
            let (number, mut entry) = (self.versions.add(index as usize).read(), self.definitions);
            if number <= OF_NONE {
                return true;
            }
            loop {
                let next = entry.add(16).cast::<u32>().read() as usize;
                if entry.add(4).cast::<u16>().read() == number {
                    let first = entry.add(entry.add(12).cast::<u32>().read() as usize);
                    let version = self.names.add(first.cast::<u32>().read() as usize);
                    return (0..)
                        .zip(b"GLIBC_")
                        .all(|(i, &byte)| version.add(i).read() as u8 == byte);
                }
                if next == 0 {
                    return true;
                }
                entry = entry.add(next);
            }
        }
    }

    unsafe fn address_of(&self, index: u32) -> *mut c_void {
        const NO_TYPE: u8 = 0; // of assembly that names none
        const OBJECT: u8 = 1;
        const FUNCTION: u8 = 2;
        const IFUNC: u8 = 10;
        // SAFETY: `index` is the number of a symbol of this object, which is relocated, so that a resolver
        // (IFUNC) can run.
        unsafe {
            let symbol = self.symbols.add(index as usize);
            let value = self.base + (*symbol).st_value as usize;
            match (*symbol).st_info & 0xf {
                NO_TYPE | OBJECT | FUNCTION => value as *mut c_void,
                IFUNC => core::mem::transmute::<usize, extern "C" fn() -> *mut c_void>(value)(),
                _ => null_mut(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::CStr;

    #[test]
    fn walk_finds_what_dlsym_finds() {
        let [libc, _] = resolve();
        assert!(!libc.is_empty());
        for (number, &(at, _)) in NAMES.names.iter().enumerate() {
            let name = CStr::from_bytes_until_nul(&NAMES.text.as_bytes()[at as usize..]).unwrap();
            // SAFETY: a terminated name.
            let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            // SAFETY: the number of a function.
            let found = found(unsafe { core::mem::transmute::<u8, Function>(number as u8) });
            if name == c"_dl_find_object" {
                // The loader defines it, and may come behind libc.
                assert_eq!(resolve_anywhere(Function::_dl_find_object), expected);
                continue;
            }
            assert_eq!(found, expected, "{name:?}");
            let is_drivers = name.to_bytes().starts_with(b"cu");
            assert!(is_drivers || libc.contains(&(found as usize)), "{name:?}");
        }
        assert_eq!(in_libc(Function::memmove), found(Function::memmove));
        // tests/surroundings.rs has a program whose libpthread comes behind libc.
        assert_eq!(behind_libc(Function::pthread_create), found(Function::pthread_create));
    }

    #[test]
    fn libpthread_is_known_by_its_name_alone() {
        for (path, expected) in [
            (c"/lib/x86_64-linux-gnu/libpthread.so.0", true),
            (c"libpthread.so.0", true),
            (c"/usr/lib/libpthread.so.0/libother.so", false),
            (c"/usr/lib/notlibpthread.so.0", false),
            (c"/usr/lib/libpthread.so.0.1", false),
            (c"", false),
        ] {
            // SAFETY: terminated.
            assert_eq!(unsafe { is_libpthread(path.as_ptr()) }, expected, "{path:?}");
        }
    }
}
