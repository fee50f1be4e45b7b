//! Functions of NVIDIA's driver library, found at run time: nothing is linked with it, and without the
//! library no function is found.
//!
//! All of them may allocate and take locks: only a service thread calls them, and threads of the
//! program that have called the driver themselves.

use crate::os::lookup::{self, Function, rare};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::transmute;
use core::ptr::null_mut;

/// Result of a driver call; 0 is success.
pub type CuResult = c_int;
pub type Device = c_int;
/// An address on the card.
pub type Address = u64;
pub type Context = *mut c_void;
pub type Stream = *mut c_void;
pub type Event = *mut c_void;

pub const SUCCESS: CuResult = 0;
pub const NOT_READY: CuResult = 600;
pub const INVALID_VALUE: CuResult = 1;
pub const OUT_OF_MEMORY: CuResult = 2;
pub const NOT_SUPPORTED: CuResult = 801;
/// Result of a missing function: CUDA_ERROR_NOT_INITIALIZED.
pub const NOT_INITIALIZED: CuResult = 3;

const LIBRARY: &CStr = c"libcuda.so.1";

/// Defines a struct of driver functions, each with a method that calls it.
macro_rules! driver_functions {
    ($(#[$about:meta])* $functions:ident:
        $($field:ident = $name:literal: fn($($argument:ident: $type:ty),*);)*) => {
        $(#[$about])*
        pub struct $functions {
            $($field: unsafe extern "C" fn($($type),*) -> CuResult,)*
        }

        impl $functions {
            /// Finds all functions. `None`: one is missing.
            ///
            /// # Safety
            /// `handle` was returned by dlopen.
            pub(in crate::backend) unsafe fn find(handle: *mut c_void) -> Option<Self> {
                // SAFETY: the functions of these names have these arguments, by the interface that
                // the numbers in their names stand for.
                unsafe {
                    Some(Self {
                        $($field: transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($type),*) -> CuResult,
                        >(crate::backend::card::driver::find(handle, $name)?),)*
                    })
                }
            }
        }

        /// For the context that is current in this thread.
        ///
        /// # Safety
        /// As the function that is called: results have room; streams, addresses and registered memory
        /// are the card's, and stay until the stream has passed this point.
        impl $functions {
            $(pub unsafe fn $field(&self, $($argument: $type),*) -> Result<(), CuResult> {
                // SAFETY: results have room, and memory of the card stays until the stream has passed, as the
                // caller has ensured.
                crate::backend::card::driver::done(unsafe { (self.$field)($($argument),*) })
            })*
        }
    };
}
pub(in crate::backend) use driver_functions;

rare! {
    fn dlopen(*const c_char, c_int) -> *mut c_void;
    fn dlsym(*mut c_void, *const c_char) -> *mut c_void;
}

/// Returns a handle of the driver's library, or null.
pub fn open_library(flags: c_int) -> *mut c_void {
    // SAFETY: a terminated name. The library's constructors are trusted, as those of any library a program loads.
    unsafe { dlopen().map_or(null_mut(), |dlopen| dlopen(LIBRARY.as_ptr(), flags)) }
}

/// # Safety
/// `handle` was returned by dlopen, or is RTLD_NEXT.
pub unsafe fn find(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the caller has ensured that dlsym takes the handle; the name is terminated.
    let found = unsafe { dlsym()?(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Returns a function of the library for calls of the program's that are only passed on. Start-up has
/// found it if the program is linked with the library. Else the library was loaded since, and the
/// loader is asked, once.
pub fn passed_on(function: Function, name: &CStr) -> Option<*mut c_void> {
    let known = lookup::original(function);
    if !known.is_null() {
        return Some(known);
    }
    let handle = open_library(libc::RTLD_LAZY | libc::RTLD_NOLOAD);
    // SAFETY: not null, so dlopen has returned the handle.
    let found = if handle.is_null() { None } else { unsafe { find(handle, name) } };
    found.inspect(|&found| lookup::note(function, found))
}

driver_functions! {
    /// Functions for copies of the program between its memory and a card, by the threads that call
    /// for them, in their own contexts.
    CopyFunctions:
    current = c"cuCtxGetCurrent": fn(context: *mut Context);
    context_id = c"cuCtxGetId": fn(context: Context, id: *mut u64);
    device = c"cuCtxGetDevice": fn(device: *mut Device);
    primary_retain = c"cuDevicePrimaryCtxRetain": fn(context: *mut Context, device: Device);
    primary_release = c"cuDevicePrimaryCtxRelease_v2": fn(device: Device);
    push = c"cuCtxPushCurrent_v2": fn(context: Context);
    pop = c"cuCtxPopCurrent_v2": fn(context: *mut Context);
    pointer_attribute = c"cuPointerGetAttribute":
        fn(value: *mut c_void, attribute: c_int, address: Address);
    is_capturing = c"cuStreamIsCapturing": fn(stream: Stream, status: *mut c_int);
    stream_context = c"cuStreamGetCtx": fn(stream: Stream, context: *mut Context);
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode": fn(mode: *mut c_int);
    stream_synchronize = c"cuStreamSynchronize": fn(stream: Stream);
    event_create = c"cuEventCreate": fn(event: *mut Event, flags: c_uint);
    event_destroy = c"cuEventDestroy_v2": fn(event: Event);
    event_record = c"cuEventRecord": fn(event: Event, stream: Stream);
    event_synchronize = c"cuEventSynchronize": fn(event: Event);
    host_register = c"cuMemHostRegister_v2": fn(memory: *mut c_void, len: usize, flags: c_uint);
    host_unregister = c"cuMemHostUnregister": fn(memory: *mut c_void);
    host_to_card = c"cuMemcpyHtoDAsync_v2":
        fn(to: Address, from: *const c_void, len: usize, stream: Stream);
    card_to_host = c"cuMemcpyDtoHAsync_v2":
        fn(to: *mut c_void, from: Address, len: usize, stream: Stream);
}

impl CopyFunctions {
    /// Finds the functions in a library that the program has loaded. `None`: it has not, or the
    /// driver is older than version 12.
    pub fn of_loaded_library() -> Option<Self> {
        let handle = open_library(libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        // SAFETY: not null, so dlopen has returned the handle.
        if handle.is_null() { None } else { unsafe { Self::find(handle) } }
    }
}

pub fn done(answer: CuResult) -> Result<(), CuResult> {
    if answer == SUCCESS { Ok(()) } else { Err(answer) }
}
