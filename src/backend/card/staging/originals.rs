//! The program's own functions behind ours. They are looked up as the loader would for the code that
//! calls: among the libraries that its object is linked with, because Python modules and their like are
//! loaded so that their own libraries are visible to them alone; then in the scope of the whole program.
//! Nothing is looked up before the first call, so a program without a card pays nothing.
//!
//! The loader's lock is taken once for each call site, by a thread that is calling the driver, which
//! takes it as well.

use crate::backend::card::driver;
use crate::os::lookup::{self, Function, rare};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

rare! {
    fn dlopen(*const c_char, c_int) -> *mut c_void;
    fn dlsym(*mut c_void, *const c_char) -> *mut c_void;
}

/// Functions of the loader. dlclose and dladdr are looked up by dlsym, so that start-up looks for no more
/// names.
struct Loader {
    dlopen: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void,
    dlsym: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void,
    dlclose: CloseFn,
    dladdr: AddressFn,
}

type CloseFn = unsafe extern "C" fn(*mut c_void) -> c_int;
type AddressFn = unsafe extern "C" fn(*const c_void, *mut libc::Dl_info) -> c_int;

impl Loader {
    fn find() -> Option<Self> {
        lookup::original(Function::dlsym); // a constructor may call before our start-up
        // SAFETY: terminated names; functions of these names have these arguments.
        unsafe {
            let (dlopen, dlsym) = (dlopen()?, dlsym()?);
            let find = |name: &CStr| {
                let found = dlsym(libc::RTLD_DEFAULT, name.as_ptr());
                (!found.is_null()).then_some(found)
            };
            let (dlclose, dladdr) = (find(c"dlclose")?, find(c"dladdr")?);
            Some(Self {
                dlopen,
                dlsym,
                dlclose: transmute::<*mut c_void, CloseFn>(dlclose),
                dladdr: transmute::<*mut c_void, AddressFn>(dladdr),
            })
        }
    }

    /// Returns file name and base of the object that an address is in.
    unsafe fn object_of(&self, address: *const c_void) -> Option<(*const c_char, *mut c_void)> {
        let mut object = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: the loader compares the address, and fills in `object` if it knows it.
        unsafe {
            let is_known = (self.dladdr)(address, object.as_mut_ptr()) != 0;
            is_known.then(|| object.assume_init()).map(|found| (found.dli_fname, found.dli_fbase))
        }
    }
}

macro_rules! card_functions {
    ($($name:ident: $synchronous:literal $per_thread:literal;)*) => {
        /// Functions of CUDA's libraries that copy.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum CardFunction { $($name),* }

        /// All names, each terminated, in one text: in a table each name would need a relocation by the loader.
        const NAMES: &str = concat!($(stringify!($name), "\0"),*);

        impl CardFunction {
            fn name(self) -> &'static CStr {
                let mut names = terminated(NAMES);
                names.nth(self as usize).unwrap_or_default()
            }

            /// Returns whether the call waits for earlier work of its stream.
            pub fn is_synchronous(self) -> bool {
                match self { $(Self::$name => $synchronous),* }
            }

            /// Returns whether the default stream is the thread's own.
            pub fn is_per_thread(self) -> bool {
                match self { $(Self::$name => $per_thread),* }
            }
        }
    };
}

card_functions! {
    cudaMemcpy: true false;
    cudaMemcpy_ptds: true true;
    cudaMemcpyAsync: false false;
    cudaMemcpyAsync_ptsz: false true;
    cudaMemcpy2D: true false;
    cudaMemcpy2D_ptds: true true;
    cudaMemcpy2DAsync: false false;
    cudaMemcpy2DAsync_ptsz: false true;
    cuMemcpyHtoD_v2: true false;
    cuMemcpyHtoD_v2_ptds: true true;
    cuMemcpyHtoDAsync_v2: false false;
    cuMemcpyHtoDAsync_v2_ptsz: false true;
    cuMemcpyDtoH_v2: true false;
    cuMemcpyDtoH_v2_ptds: true true;
    cuMemcpyDtoHAsync_v2: false false;
    cuMemcpyDtoHAsync_v2_ptsz: false true;
}

/// Libraries whose functions these are, if all else fails: an object may have been loaded by a name that
/// leads nowhere now.
const LIBRARIES: &str = "libcudart.so.13\0libcudart.so.12\0libcudart.so.11.0\0libcuda.so.1\0";

/// Returns the names in a text, each with its zero.
fn terminated(text: &'static str) -> impl Iterator<Item = &'static CStr> {
    let names = text.as_bytes().split_inclusive(|&byte| byte == 0);
    names.filter_map(|name| CStr::from_bytes_with_nul(name).ok())
}

/// Call sites that are known, each with its function; later ones are looked up at each call.
const KNOWN: usize = 128;
static SITES: [AtomicUsize; KNOWN] = [const { AtomicUsize::new(0) }; KNOWN];
static FOUND: [AtomicPtr<c_void>; KNOWN] = [const { AtomicPtr::new(null_mut()) }; KNOWN];

/// Returns the function that a call from `site` would have reached without us, or null.
pub fn find(function: CardFunction, site: usize) -> *mut c_void {
    let key = site << 8 | function as usize;
    let first = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
    for place in (0..8).map(|next| (first + next) % KNOWN) {
        match SITES[place].load(Ordering::Acquire) {
            known if known == key => {
                let found = FOUND[place].load(Ordering::Acquire);
                if !found.is_null() {
                    return found;
                }
            }
            0 => {
                let found = look_up(function.name(), site);
                let is_free =
                    SITES[place].compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed);
                if is_free.is_ok() || is_free == Err(key) {
                    FOUND[place].store(found, Ordering::Release);
                }
                return found;
            }
            _ => {}
        }
    }
    look_up(function.name(), site)
}

#[cold]
fn look_up(name: &CStr, site: usize) -> *mut c_void {
    let Some(loader) = Loader::find() else { return null_mut() };
    in_scope_of(&loader, name, site)
        // SAFETY: RTLD_NEXT, which `find` takes like a handle.
        .or_else(|| unsafe { driver::find(libc::RTLD_NEXT, name) })
        .or_else(|| {
            terminated(LIBRARIES).find_map(|library| {
                let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
                // SAFETY: a terminated name; nothing is loaded; a handle of dlopen's.
                unsafe {
                    let handle = (loader.dlopen)(library.as_ptr(), flags);
                    if handle.is_null() { None } else { driver::find(handle, name) }
                }
            })
        })
        .unwrap_or(null_mut())
}

/// Looks among the libraries that the object of `site` is linked with. `None`: it is the program itself,
/// or there is none but ours.
fn in_scope_of(loader: &Loader, name: &CStr, site: usize) -> Option<*mut c_void> {
    // SAFETY: terminated names; the handle is closed once.
    unsafe {
        let (file, _) = loader.object_of(site as *const c_void)?;
        let handle = (loader.dlopen)(file, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return None;
        }
        let found = (loader.dlsym)(handle, name.as_ptr());
        (loader.dlclose)(handle);
        let (_, base) = loader.object_of(found)?;
        let (_, own) = loader.object_of(look_up as *const () as *const c_void)?;
        (base != own).then_some(found)
    }
}
