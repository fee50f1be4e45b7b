//! Functions of the C library, and a variable, found at start-up by one walk over the loaded objects: the next
//! definitions after ours, as dlsym(RTLD_NEXT) finds them. There is no other way in this library.
//!
//! Nothing is looked up later, because dlsym and dl_iterate_phdr wait for locks of the loader. A
//! thread may hold one for long (a constructor that waits for another thread), and the child of a
//! fork inherits that of dl_iterate_phdr held. The walk allocates nothing, and takes a tenth of
//! what dlsym takes for each name, which at the start of every small program is too much.

use core::ffi::{c_char, c_void};
use core::ops::Range;
use core::ptr::null_mut;
use core::slice::from_raw_parts;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Names to look for: where each begins in the text, and its hash. Offsets instead of addresses,
/// which the loader would have to relocate.
struct Names<const N: usize> {
    text: &'static str,
    names: [(u16, u32); N],
}

impl<const N: usize> Names<N> {
    /// `text`: N names, each with a zero behind it.
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

macro_rules! functions {
    (at start-up: $($name:ident)*; on demand: $($other:ident)*) => {
        #[allow(non_camel_case_types, dead_code)]
        #[derive(Clone, Copy, Debug)]
        pub enum Function { $($name,)* $($other),* }

        static NAMES: Names<COUNT> =
            Names::new(concat!($(stringify!($name), "\0",)* $(stringify!($other), "\0"),*));
        const AT_START: usize = [$(Function::$name),*].len();
        const COUNT: usize = AT_START + [$(Function::$other),*].len();
    };
}

// Each name costs about an eighth of a microsecond at start-up, because what has to be read for it
// is in no cache.
functions! {
    at start-up:
    memmove mempcpy memset wmemset memcmp wmemcmp
    read pread64 readv preadv64 preadv64v2 fread fread_unlocked
    flockfile funlockfile fileno fwide feof_unlocked ferror_unlocked __freading __fwriting
    ftello64 fseeko64 pthread_setcancelstate pthread_testcancel
    sigaction
    abort
    unshare setns setuid setgid seteuid setegid setreuid setregid setresuid setresgid setgroups
    initgroups capset
    mprotect pkey_mprotect madvise
    pthread_attr_init pthread_attr_setdetachstate pthread_attr_setstacksize pthread_attr_destroy
    pthread_create
    dlopen dlsym __cxa_atexit
    cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister
    __cxa_at_quick_exit on_exit sysconf getgrgid_r;
    on demand:
    memcpy bcopy wmemcpy wmemmove __memcpy_chk __memmove_chk __mempcpy_chk __memset_chk bzero bcmp
    process_vm_readv process_vm_writev __read_chk __pread64_chk __fread_chk __fread_unlocked_chk
    _dl_find_object program_invocation_name
}

#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, as for the next
static FOUND: [AtomicPtr<c_void>; AT_START] = [const { AtomicPtr::new(null_mut()) }; AT_START];
#[unsafe(link_section = ".data")]
static RESOLVED: AtomicBool = AtomicBool::new(false);
/// Not in `.data`, which would take a second page then.
static OTHERS: [AtomicPtr<c_void>; COUNT - AT_START] =
    [const { AtomicPtr::new(null_mut()) }; COUNT - AT_START];

/// Finds every function that is looked for at start-up; returns where libc lies.
pub fn resolve() -> Range<usize> {
    let libc = find_next(0, &FOUND);
    RESOLVED.store(true, Ordering::Release);
    libc
}

/// Finds the others too. Only for start-up.
#[cold]
pub fn resolve_others() {
    find_next(AT_START, &OTHERS);
}

/// Finds a function in libc, whatever other objects define it. Only for start-up.
#[cold]
pub fn resolve_in_libc(function: Function) -> *mut c_void {
    let place = [AtomicPtr::new(null_mut())];
    walk(function as usize, &place, Walk { behind_us: true, only_libc: true, ..Walk::default() });
    place[0].load(Ordering::Relaxed)
}

/// Finds a function or variable in any object, from the program on to the loader, which comes after
/// libc. Only for start-up.
#[cold]
pub fn resolve_anywhere(function: Function) -> *mut c_void {
    let place = [AtomicPtr::new(null_mut())];
    walk(function as usize, &place, Walk { behind_us: true, past_libc: true, ..Walk::default() });
    place[0].load(Ordering::Relaxed)
}

/// Returns what was found at start-up, or null.
pub fn found(function: Function) -> *mut c_void {
    let number = function as usize;
    FOUND.get(number).unwrap_or_else(|| &OTHERS[number - AT_START]).load(Ordering::Relaxed)
}

/// Notes a function of a library that was loaded since.
pub fn note(function: Function, found: *mut c_void) {
    FOUND[function as usize].store(found, Ordering::Relaxed);
}

/// Returns the function after ours, or null. A constructor of another library may call before our
/// start-up: that is still the moment to look.
pub fn original(function: Function) -> *mut c_void {
    if !RESOLVED.load(Ordering::Acquire) {
        resolve();
    }
    found(function)
}

/// Calls a function that was found with up to four words, as many as it takes. `None`: there is none.
///
/// # Safety
/// The program's own call of the function, which returns a number.
pub unsafe fn call(found: *mut c_void, arguments: [usize; 4]) -> Option<isize> {
    type AnyFn = unsafe extern "C" fn(usize, usize, usize, usize) -> isize;
    let [first, second, third, fourth] = arguments;
    // SAFETY: null is `None`; no argument is wider than a word.
    let function = unsafe { core::mem::transmute::<*mut c_void, Option<AnyFn>>(found) }?;
    // SAFETY: the caller's promise.
    Some(unsafe { function(first, second, third, fourth) })
}

/// Functions of the C library that most programs never need of us, with their types. A symbol that
/// the loader has to find for us would cost every program more than one on the walk.
macro_rules! rare {
    ($(fn $name:ident($($argument:ty),*) -> $answer:ty;)*) => { $(
        /// # Safety
        /// As the function of this name.
        pub unsafe fn $name() -> Option<unsafe extern "C" fn($($argument),*) -> $answer> {
            let found = $crate::os::lookup::found($crate::os::lookup::Function::$name);
            // SAFETY: null, which is `None`, or a function of this kind.
            unsafe { core::mem::transmute(found) }
        }
    )* };
}

pub(crate) use rare;

/// Looks up the functions from number `first` on in the objects after ours, up to libc, and returns
/// where that lies. A library that was opened by dlopen comes after libc: then it looks in libc only.
fn find_next(first: usize, places: &[AtomicPtr<c_void>]) -> Range<usize> {
    match walk(first, places, Walk::default()) {
        libc if libc.is_empty() => {
            places.iter().for_each(|place| place.store(null_mut(), Ordering::Relaxed));
            let only_libc = Walk { behind_us: true, only_libc: true, ..Walk::default() };
            walk(first, places, only_libc)
        }
        libc => libc,
    }
}

/// Looks up the functions from number `first` on that have no place yet.
fn walk(first: usize, found: &[AtomicPtr<c_void>], how: Walk<'_>) -> Range<usize> {
    let mut walk = Walk { names: &NAMES.names[first..][..found.len()], found, ..how };
    // SAFETY: the callback gets `walk` and uses it before this returns.
    unsafe { libc::dl_iterate_phdr(Some(look_into), (&raw mut walk).cast()) };
    walk.libc
}

#[derive(Default)]
struct Walk<'a> {
    names: &'a [(u16, u32)],
    found: &'a [AtomicPtr<c_void>],
    /// Objects before ours, and ours, are passed over.
    behind_us: bool,
    only_libc: bool,
    past_libc: bool,
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
    let is_libc = whole.contains(&(libc::__errno_location as *const () as usize));
    let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC);
    if let Some(dynamic) = dynamic.filter(|_| is_libc || !walk.only_libc) {
        // SAFETY: a loaded object, and where its dynamic section is.
        if let Some(table) = unsafe { SymbolTable::of(object.dlpi_addr as usize, dynamic) } {
            for (&(at, hash), found) in walk.names.iter().zip(walk.found) {
                if found.load(Ordering::Relaxed).is_null() {
                    let name = &NAMES.text.as_bytes()[at as usize..];
                    // SAFETY: the table of a loaded object.
                    found.store(unsafe { table.look_up(name, hash) }, Ordering::Relaxed);
                }
            }
        }
    }
    // No object behind libc defines its functions.
    if is_libc {
        walk.libc = whole;
    }
    i32::from(is_libc && !walk.past_libc)
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

/// Byte by byte: comparing strings is done by memcmp, that is, by us.
///
/// # Safety
/// A terminated string; `name` ends with its first zero.
unsafe fn is_called(found: *const c_char, name: &[u8]) -> bool {
    let end = name.iter().enumerate().find(|&(i, &byte)| {
        // SAFETY: the caller's promise; nothing behind the first difference, or the end, is read.
        byte == 0 || unsafe { found.add(i).read() } as u8 != byte
    });
    // SAFETY: as above.
    end.is_some_and(|(i, &byte)| byte == 0 && unsafe { found.add(i).read() } == 0)
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
    /// `None`: it has no DT_GNU_HASH.
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
    unsafe fn look_up(&self, name: &[u8], wanted: u32) -> *mut c_void {
        const HIDDEN: u16 = 0x8000;
        const OBJECT: u8 = 1;
        const FUNCTION: u8 = 2;
        const IFUNC: u8 = 10;
        // SAFETY: the layout of DT_GNU_HASH: four numbers, a filter of 64-bit words, the
        // buckets, and for each symbol from the first hashed one on its hash, of which the
        // last bit ends a bucket.
        unsafe {
            let [buckets, first, words, shift] = self.hash.cast::<[u32; 4]>().read();
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
                let symbol = &*self.symbols.add(index as usize);
                let is_default = self.versions.is_null()
                    || self.versions.add(index as usize).read() & HIDDEN == 0;
                if hash | 1 == wanted | 1
                    && symbol.st_shndx != 0
                    && is_default
                    && is_called(self.names.add(symbol.st_name as usize), name)
                {
                    let value = self.base + symbol.st_value as usize;
                    return match symbol.st_info & 0xf {
                        OBJECT | FUNCTION => value as *mut c_void,
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

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::CStr;

    #[test]
    fn walk_finds_what_dlsym_finds() {
        let libc = resolve();
        assert!(!libc.is_empty());
        resolve_others();
        let places = FOUND.iter().chain(&OTHERS);
        for (&(at, _), place) in NAMES.names.iter().zip(places) {
            let name = CStr::from_bytes_until_nul(&NAMES.text.as_bytes()[at as usize..]).unwrap();
            // SAFETY: a terminated name.
            let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            let found = place.load(Ordering::Relaxed);
            if name == c"_dl_find_object" {
                // The loader's, which may come behind libc.
                assert_eq!(resolve_anywhere(Function::_dl_find_object), expected);
                continue;
            }
            assert_eq!(found, expected, "{name:?}");
            let is_drivers = name.to_bytes().starts_with(b"cu");
            assert!(is_drivers || libc.contains(&(found as usize)), "{name:?}");
        }
        assert_eq!(resolve_in_libc(Function::memmove), found(Function::memmove));
    }
}
