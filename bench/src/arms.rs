//! The ways to copy that are compared: a function, and how many threads share the work.

use crate::memory::{CopyFn, Spot};
use crate::pieces;
use crate::rival::Rival;
use crate::team::Team;
use libc::c_void;
use std::ffi::CStr;
use std::hint::black_box;
use std::mem;
use std::rc::Rc;

#[derive(Clone)]
pub struct Arm {
    pub name: String,
    pub copy: CopyFn,
    pub threads: usize,
    /// Process that takes its turns instead of this one.
    pub rival: Option<Rc<Rival>>,
}

impl Arm {
    fn new(name: &str, copy: CopyFn, threads: usize) -> Self {
        Arm { name: name.into(), copy, threads, rival: None }
    }

    pub fn libc() -> Self {
        Arm::new("libc", real_memcpy(), 1)
    }

    /// Returns the arm of the memcpy that the program itself gets.
    pub fn shim() -> Self {
        Arm::new("shim", interposed_memcpy(), 1)
    }

    /// Returns the arm of a number of threads with no shim between.
    pub fn ceiling(threads: usize) -> Self {
        Arm::new(&format!("{threads} threads"), real_memcpy(), threads)
    }

    /// Returns the arm of what people could have instead.
    pub fn rival(rival: Rival) -> Self {
        let arm = Arm::new(rival.name, real_memcpy(), 1);
        Arm { rival: Some(Rc::new(rival)), ..arm }
    }

    /// Returns the arm of streaming stores, the widest of this CPU.
    pub fn streaming(name: &str, threads: usize) -> Self {
        Arm::new(name, pieces::widest(), threads)
    }

    /// # Safety
    /// `spot` is good for `size` bytes on both sides (`memory`, the law), and
    /// `team` was gathered when the arm has several threads.
    #[inline]
    pub unsafe fn run(&self, team: &Team, spot: Spot, size: usize) {
        if self.threads == 1 {
            // SAFETY: the spot holds `size` bytes on both sides, as the caller has ensured.
            unsafe { (self.copy)(spot.dst.cast(), spot.src.cast(), size) };
        } else {
            // SAFETY: the spot holds `size` bytes on both sides, and the team is gathered.
            unsafe { team.copy(self.copy, self.threads, spot, size) };
        }
    }
}

/// Returns a function of a loaded library, or of any (`RTLD_DEFAULT`).
///
/// # Safety
/// `F` is the type of that function.
pub unsafe fn symbol<F>(handle: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a terminated name; the address is that of a function of type `F`.
    unsafe {
        let found = libc::dlsym(handle, name.as_ptr());
        (!found.is_null()).then(|| mem::transmute_copy(&found))
    }
}

/// Returns a function of libc.so.6 itself, not an interposed one: a lookup through the handle of
/// one library ignores LD_PRELOAD.
///
/// # Safety
/// `F` is the type of that function.
pub unsafe fn real<F>(name: &CStr) -> F {
    // SAFETY: the library is loaded already; the caller has given the function's own type.
    unsafe {
        let handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        symbol(handle, name).expect("libc.so.6 has it")
    }
}

pub fn real_memcpy() -> CopyFn {
    // SAFETY: memcpy has this type.
    unsafe { real(c"memcpy") }
}

pub fn interposed_memcpy() -> CopyFn {
    black_box(libc::memcpy as CopyFn)
}

/// Returns the file that `memcpy` comes from, when that is not libc.
fn shim_path() -> Option<String> {
    let ours = interposed_memcpy() as usize;
    if ours == real_memcpy() as usize {
        return None;
    }
    // SAFETY: zeros are null pointers, and the address is only looked up; a name that dladdr gives
    // lives as long as its library.
    unsafe {
        let mut info: libc::Dl_info = mem::zeroed();
        libc::dladdr(ours as *const c_void, &mut info);
        let name = (!info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname));
        name.map(|name| name.to_string_lossy().into_owned())
    }
}

/// Returns a line that describes the shim arm.
pub fn describe_shim() -> String {
    match shim_path() {
        Some(path) => format!("shim: {}", path.rsplit('/').next().unwrap_or(&path)),
        None => "shim: NOT LOADED, the shim arm is libc itself: this shows the noise".into(),
    }
}
