//! Finds the loaded object that holds a code address, without a lock.

use super::sites::Origin;
use crate::os::lookup::{self, Function};
use core::ffi::{c_char, c_void};
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The loader's `_dl_find_object`, which glibc has since 2.35; null: there is none.
static FIND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Longest name that is read: no path is longer.
const LONGEST: usize = 4096;

/// struct dl_find_object of <dlfcn.h>.
#[repr(C)]
struct Found {
    flags: u64,
    start: *mut c_void,
    end: *mut c_void,
    link_map: *const LinkMap,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

/// The beginning of struct link_map.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
}

/// Looks for what `origin` needs. Only for start-up, where statistics are kept.
pub fn resolve() {
    FIND.store(lookup::resolve_anywhere(Function::_dl_find_object), Ordering::Relaxed);
}

/// Returns the object that holds the return address of a call of ours: it stays loaded as long as
/// that call lasts. The program's own name is empty.
pub fn origin(address: usize) -> Option<Origin<'static>> {
    type Find = unsafe extern "C" fn(usize, *mut Found) -> i32;
    let find = FIND.load(Ordering::Relaxed);
    if find.is_null() {
        return None;
    }
    let mut found = core::mem::MaybeUninit::<Found>::uninit();
    // SAFETY: the loader's function, which takes no lock and may be called in a signal handler; it
    // fills `found` where it answers 0. The object is loaded, see above, and so is its name.
    unsafe {
        let find = core::mem::transmute::<*mut c_void, Find>(find);
        if find(address, found.as_mut_ptr()) != 0 {
            return None;
        }
        let map = &*found.assume_init_ref().link_map;
        // Bounded by hand, so that strlen is not called.
        let ends = |at: &usize| map.name.is_null() || *map.name.add(*at) == 0;
        let len = (0..LONGEST).find(ends).unwrap_or(LONGEST);
        let name = if len == 0 { &[][..] } else { slice::from_raw_parts(map.name.cast(), len) };
        Some(Origin { base: map.base as u64, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_libc_and_of_the_program_is_found_and_data_is_not() {
        resolve();
        let libc = origin(libc::getpid as *const () as usize).unwrap();
        assert!(libc.name.ends_with(b"libc.so.6"), "{:?}", str::from_utf8(libc.name));
        let own = origin(resolve as *const () as usize).unwrap();
        assert_eq!(own.name, b"");
        assert!(origin(&raw const own as usize).is_none(), "the stack is no object");
    }
}
