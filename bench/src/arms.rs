//! The ways to copy that are compared: a function, and how many threads share
//! the work.

use crate::memory::{CopyFn, Spot};
use crate::pieces;
use crate::rival::Rival;
use crate::team::Team;
use libc::c_void;
use std::ffi::CStr;
use std::hint::black_box;
use std::rc::Rc;
use std::{mem, ptr};

#[derive(Clone)]
pub struct Arm {
    pub name: String,
    pub copy: CopyFn,
    pub threads: usize,
    /// A process that has its turns instead of this one.
    pub rival: Option<Rc<Rival>>,
}

impl Arm {
    fn new(name: &str, copy: CopyFn, threads: usize) -> Self {
        Arm { name: name.into(), copy, threads, rival: None }
    }

    pub fn libc() -> Self {
        Arm::new("libc", real_memcpy(), 1)
    }

    /// What the program itself gets when it says memcpy.
    pub fn shim() -> Self {
        Arm::new("shim", interposed_memcpy(), 1)
    }

    /// What any number of threads can reach with no shim between.
    pub fn ceiling(threads: usize) -> Self {
        Arm::new(&format!("{threads} threads"), real_memcpy(), threads)
    }

    /// Another library than ours.
    pub fn rival(rival: Rival) -> Self {
        Arm { rival: Some(Rc::new(rival)), ..Arm::new("against", real_memcpy(), 1) }
    }

    /// Streaming stores, the widest of this CPU.
    pub fn streaming(threads: usize) -> Option<Self> {
        pieces::available().pop().map(|(name, copy)| Arm::new(name, copy, threads))
    }

    /// # Safety
    /// `spot` is good for `size` bytes on both sides (`memory`, the law), and
    /// `team` was gathered when the arm has several threads.
    #[inline]
    pub unsafe fn run(&self, team: &Team, spot: Spot, size: usize) {
        if self.threads == 1 {
            // SAFETY: the caller's promise.
            unsafe { (self.copy)(spot.dst.cast(), spot.src.cast(), size) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { team.copy(self.copy, self.threads, spot, size) };
        }
    }
}

/// A function of libc.so.6 itself, past any interposer: a lookup through the
/// handle of one library does not see LD_PRELOAD.
pub fn real(name: &CStr) -> *mut c_void {
    // SAFETY: plain lookups in a library that is loaded already.
    let symbol = unsafe {
        let handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        assert!(!handle.is_null(), "libc.so.6 is not loaded");
        libc::dlsym(handle, name.as_ptr())
    };
    assert!(!symbol.is_null(), "libc.so.6 has no {name:?}");
    symbol
}

pub fn real_memcpy() -> CopyFn {
    // SAFETY: the symbol has this type.
    unsafe { mem::transmute::<*mut c_void, CopyFn>(real(c"memcpy")) }
}

pub fn interposed_memcpy() -> CopyFn {
    black_box(libc::memcpy as CopyFn)
}

/// The file that `memcpy` comes from, when that is not libc.
pub fn shim_path() -> Option<String> {
    let ours = interposed_memcpy() as usize;
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: `info` is ours; the address is only looked up.
    let found = unsafe { libc::dladdr(ours as *const c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() || ours == real_memcpy() as usize {
        return None;
    }
    // SAFETY: dladdr gave a string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(name.to_string_lossy().into_owned())
}

/// One line that says what the shim arm is.
pub fn describe_shim() -> String {
    match shim_path() {
        Some(path) => format!("shim: {}", path.rsplit('/').next().unwrap_or(&path)),
        None => "shim: NOT LOADED, the shim arm is libc itself: this shows the noise".into(),
    }
}
