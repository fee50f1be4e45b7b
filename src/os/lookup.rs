//! Looks up functions of the C library, and a variable: the next definitions after ours, as
//! dlsym(RTLD_NEXT) finds them. All look-ups of this library are made here.
//!
//! Start-up walks over the loaded objects once: it notes what other libraries define between ours and
//! libc, and where libc's table of symbols lies. A name that none of them defines is looked up in
//! that table when it is first needed, because most names never are, and each costs a tenth of a
//! microsecond. dlsym and dl_iterate_phdr are not called later, for they wait for locks of the loader.
//! A thread may hold one for long (a constructor that waits for another thread), and the child of a
//! fork inherits that of dl_iterate_phdr held. The table needs no lock: libc is never unloaded.

use crate::os::once::Once;
use core::arch::asm;
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

/// Results so far.
static FOUND: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(null_mut()) }; COUNT];
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static LIBC: Once<Libc> = Once::new();

#[derive(Clone)]
struct Libc {
    extent: Range<usize>,
    /// Before 2.34 libpthread has reads of its own, which libc's are for programs with threads. Empty: not there.
    libpthread: Range<usize>,
    /// Table of symbols of libc; `None`: in no format that we read.
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

/// Finds a function in libc, whatever other objects define it; null: it has none.
#[inline(never)]
#[unsafe(link_section = ".text.start")] // see `intercept::entry`
pub fn in_libc(function: Function) -> *mut c_void {
    let Some(symbols) = LIBC.get().and_then(|libc| libc.symbols.as_ref()) else {
        return null_mut();
    };
    let (at, hash) = NAMES.names[function as usize];
    // SAFETY: libc's table.
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
/// any moment. False where it does not say: before glibc 2.32, and before 2.35 in a program that has
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

/// Returns the function after ours, or null. A constructor of another library may call before our
/// start-up: that is still the moment to look.
pub fn original(function: Function) -> *mut c_void {
    if LIBC.get().is_none() {
        resolve();
    }
    found(function)
}

/// Finds a function in any object after ours, libc's neighbours behind it included, also if they were
/// loaded since. Before 2.34 glibc has threads in libpthread and dlopen in libdl, and a program that
/// names libc first, or opens a library that needs them, has them behind libc.
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
/// The program's own call of the function, which returns a number.
pub unsafe fn call<const N: usize>(found: *mut c_void, arguments: [usize; N]) -> Option<isize> {
    type AnyFn = unsafe extern "C" fn(usize, usize, usize, usize, usize) -> isize;
    const { assert!(N <= 5) };
    let [first, second, third, fourth, fifth] =
        [0, 1, 2, 3, 4].map(|i| arguments.get(i).copied().unwrap_or(0));
    // SAFETY: null is `None`; no argument is wider than a word.
    let function = unsafe { core::mem::transmute::<*mut c_void, Option<AnyFn>>(found) }?;
    // SAFETY: a function of these arguments, of which it ignores the last ones: the program's own call.
    Some(unsafe { function(first, second, third, fourth, fifth) })
}

/// Functions of the C library that we rarely call, with their types. A symbol that the loader
/// resolves would cost every program more than one on the walk.
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
            // SAFETY: null, which is `None`, or a function of this kind.
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
    /// Walks over the objects for functions from number `first` on that were not found yet.
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
    // SAFETY: the loader's description of an object, and our own `Walk`.
    let (object, walk) = unsafe { (&*object, &mut *walk.cast::<Walk<'_>>()) };
    // SAFETY: the loader gives the address and the number of the object's program headers, which stay mapped.
    let segments = unsafe { from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let whole = extent(object.dlpi_addr as usize, segments);
    // A library that was opened by dlopen comes after libc, which then is all that is left.
    let is_libc = whole.contains(&address_in_libc());
    if !walk.behind_us && !is_libc {
        walk.behind_us = whole.contains(&(look_into as *const () as usize));
        return 0;
    }
    let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC);
    // SAFETY: a loaded object, and where its dynamic section is.
    let table =
        dynamic.and_then(|dynamic| unsafe { SymbolTable::of(object.dlpi_addr as usize, dynamic) });
    if is_libc && !walk.past_libc {
        let symbols = table.map(|table| SymbolTable { definitions: null(), ..table });
        let libpthread = walk.libpthread.take().unwrap_or_default();
        walk.libc = Some(Libc { extent: whole, libpthread, symbols, is_alone: !walk.any });
        return 1; // no object behind libc defines its functions
    }
    walk.behind_us = true;
    // SAFETY: the loader's name of an object.
    if unsafe { is_libpthread(object.dlpi_name) } {
        walk.libpthread = Some(whole);
    }
    if let Some(table) = table {
        for (&(at, hash), found) in walk.names.iter().zip(walk.found) {
            if found.load(Ordering::Relaxed).is_null() {
                let name = &NAMES.text.as_bytes()[at as usize..];
                // SAFETY: the table of a loaded object.
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

/// Returns the address of glibc's __register_atfork; `None`: another C library, for which a symbol that
/// is not weak would be missing.
pub fn register_atfork() -> Option<usize> {
    let address: usize;
    // SAFETY: reads what the loader has put there: an address, or null, for the symbol is weak.
    unsafe {
        asm!(".weak __register_atfork",
            "mov {}, qword ptr [rip + __register_atfork@GOTPCREL]",
            out(reg) address, options(pure, readonly, nostack, preserves_flags));
    }
    (address != 0).then_some(address)
}

/// The address of a function lies in the program itself where that is not position independent and
/// takes the address too. With __errno_location some do, with __register_atfork none.
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
/// A terminated string; `name` ends with its first zero.
unsafe fn is_called(found: *const c_char, name: &[u8]) -> bool {
    let end = name.iter().enumerate().find(|&(i, &byte)| {
        // SAFETY: `found` is terminated; nothing behind the first difference, or its end, is read.
        byte == 0 || unsafe { found.add(i).read() } as u8 != byte
    });
    // SAFETY: `found` equals `name` up to `i`, so its end is not before that.
    end.is_some_and(|(i, &byte)| byte == 0 && unsafe { found.add(i).read() } == 0)
}

/// # Safety
/// A terminated string, the path of an object.
unsafe fn is_libpthread(path: *const c_char) -> bool {
    let (mut name, mut at) = (path, path);
    // SAFETY: up to the end of the string.
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
    /// DT_GNU_HASH, and DT_HASH, which is read where there is no other; null: there is none.
    hash: *const u32,
    old_hash: *const u32,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    versions: *const u16,
    /// DT_VERDEF; null: any version matches.
    definitions: *const u8,
}

// SAFETY: only ever read, and where it lies it stays.
unsafe impl Send for SymbolTable {}
// SAFETY: only ever read, and where it lies it stays.
unsafe impl Sync for SymbolTable {}

impl SymbolTable {
    /// `None`: it has no table.
    ///
    /// # Safety
    /// A loaded object, and its PT_DYNAMIC.
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
            // SAFETY: entries up to the one that ends them.
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
            // SAFETY: not behind the entry that ends them, which was not this one.
            entry = unsafe { entry.add(1) };
        }
        // The loader makes addresses of them where it can write.
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

    /// Libraries of old linkers, or of --hash-style=sysv.
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

    /// Whether the symbol of this number is the definition of a name.
    unsafe fn defines(&self, index: u32, name: &[u8]) -> bool {
        const HIDDEN: u16 = 0x8000;
        // SAFETY: a symbol of this object.
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

    /// Whether the loader would bind a call of libc's function to it: not if it has a version of another
    /// name, as functions have that a library calls by such a name for itself.
    unsafe fn is_for_callers_of_libc(&self, index: u32) -> bool {
        const OF_NONE: u16 = 1; // the number of symbols without a version
        if self.definitions.is_null() || self.versions.is_null() {
            return true;
        }
        // SAFETY: the layout of DT_VERDEF: in each entry its number, and how far from it lie its names
        // and the next entry; a name begins with its place in the table of names.
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
        // SAFETY: a symbol of this object, which is relocated.
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
                // The loader's, which may come behind libc.
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
