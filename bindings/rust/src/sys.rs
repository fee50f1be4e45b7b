//! The one libadma of this process: opened when it is first used, never closed.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::io;
use std::sync::OnceLock;

const SONAME: &CStr = c"libadma.so.0";

/// `struct adma_peer`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RawPeer {
    pub pid: c_int,
    pub uid: c_uint,
    pub gid: c_uint,
    pub proven: c_int,
}

macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        pub struct Library { $(pub $name: unsafe extern "C" fn($($argument),*) -> $result,)* }

        impl Library {
            /// # Safety
            /// `handle` is of libadma.
            unsafe fn resolve(handle: *mut c_void) -> Result<Self, String> {
                Ok(Self { $($name: {
                    // SAFETY: the name ends with a zero.
                    let found = unsafe {
                        libc::dlsym(handle, concat!(stringify!($name), "\0").as_ptr().cast())
                    };
                    if found.is_null() {
                        return Err(concat!("libadma.so.0 is older and has no ", stringify!($name)).into());
                    }
                    // SAFETY: adma.h declares it so.
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(found)
                    }
                },)* })
            }
        }
    };
}

functions! {
    adma_strerror(c_int) -> *const c_char;
    adma_off() -> c_int;
    adma_on() -> c_int;
    adma_alloc(usize) -> *mut c_void;
    adma_free(*mut c_void) -> c_int;
    adma_copy(*const u8, *mut u8, usize) -> c_int;
    adma_icopy(*const u8, *mut u8, usize) -> i64;
    adma_poll_fd() -> c_int;
    adma_check(i64) -> isize;
    adma_wait(i64) -> isize;
    adma_cancel(i64) -> isize;
    adma_listen(*const c_char) -> c_int;
    adma_accept(c_int) -> c_int;
    adma_accept_for(c_int, c_int) -> c_int;
    adma_connect(*const c_char) -> c_int;
    adma_connect_for(*const c_char, c_int) -> c_int;
    adma_attach(c_int) -> c_int;
    adma_close(c_int) -> c_int;
    adma_peer(c_int, *mut RawPeer) -> c_int;
    adma_event_fd(c_int) -> c_int;
    adma_arm(c_int) -> c_int;
    adma_next(c_int) -> isize;
    adma_read(c_int, *mut u8, usize) -> isize;
    adma_read_for(c_int, *mut u8, usize, c_int) -> isize;
    adma_write(c_int, *const u8, usize) -> isize;
    adma_write_for(c_int, *const u8, usize, c_int) -> isize;
    adma_iread(c_int, *mut u8, usize) -> i64;
    adma_iwrite(c_int, *const u8, usize) -> i64;
}

pub fn library() -> io::Result<&'static Library> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(|| {
        // SAFETY: a string; the loader finds a library that is loaded by its soname.
        let handle = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: dlopen of this thread has just failed, so there is a text.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(why.to_string_lossy().into_owned());
        }
        // SAFETY: of libadma, see above.
        unsafe { Library::resolve(handle) }
    });
    opened.as_ref().map_err(|why| io::Error::new(io::ErrorKind::NotFound, why.as_str()))
}

/// A result of the library: bytes, a number or a cookie; negative: an errno.
pub fn told<T: TryInto<i64>>(result: T) -> io::Result<u64> {
    let result = result.try_into().unwrap_or(-i64::from(libc::EINVAL));
    u64::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result as i32))
}
