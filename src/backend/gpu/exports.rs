//! The program's own calls to register memory with the card. The driver would refuse them where we have
//! registered the same memory. There is no logic here, as in all exported functions.

use super::GPU;
use crate::backend::card::driver::{self, passed_on as driver_function};
use crate::os::lookup::{self, Function};
use core::ffi::{CStr, c_int};

/// Result of a call of a function that the driver does not have.
const NO_DRIVER: c_int = driver::NOT_INITIALIZED;

/// Passes a call on to the driver, once no registration of ours is in its way.
unsafe fn register(which: Function, name: &CStr, start: usize, len: usize, flags: usize) -> c_int {
    GPU.let_go(start, len.max(1));
    let function = driver_function(which, name).unwrap_or(core::ptr::null_mut());
    // SAFETY: the program's own call, passed on.
    let answer = unsafe { lookup::call(function, [start, len, flags, 0]) };
    answer.map_or(NO_DRIVER, |answer| answer as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister(start: usize, len: usize, flags: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { register(Function::cuMemHostRegister, c"cuMemHostRegister", start, len, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister_v2(start: usize, len: usize, flags: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { register(Function::cuMemHostRegister_v2, c"cuMemHostRegister_v2", start, len, flags) }
}

/// Memory that the program registers and unregisters itself is not ours.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostUnregister(start: usize) -> c_int {
    // SAFETY: the program's own call.
    unsafe { register(Function::cuMemHostUnregister, c"cuMemHostUnregister", start, 0, 0) }
}
