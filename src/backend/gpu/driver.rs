//! The functions of NVIDIA's driver library that we need, found at run time: nothing is linked,
//! and on a machine without the library there is nothing.
//!
//! All of them may allocate and take locks: only the service thread calls them, and threads of the
//! program that have called the driver themselves.

use super::Unavailable;
use crate::os::lookup::{self, Function, rare};
use alloc::vec::Vec;
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
const ALREADY_REGISTERED: CuResult = 712;
const NOT_PERMITTED: CuResult = 800;
pub const NOT_SUPPORTED: CuResult = 801;
/// Result of a missing function: CUDA_ERROR_NOT_INITIALIZED.
pub const NOT_INITIALIZED: CuResult = 3;

/// Attributes of a device.
pub const COPY_ENGINES: c_int = 40;

/// Flag of cuStreamCreate: no ordering with the program's default stream.
const NON_BLOCKING: c_uint = 1;
/// Flags of cuMemHostRegister: for every context, and with an address for the card.
const PORTABLE_AND_MAPPED: c_uint = 1 | 2;

const LIBRARY: &CStr = c"libcuda.so.1";

/// Destinations, sources, lengths, count; attributes, where each begins, count; failed index.
pub type Batch = unsafe extern "C" fn(
    *const Address,
    *const Address,
    *const usize,
    usize,
    *const BatchAttributes,
    *const usize,
    usize,
    *mut usize,
    Stream,
) -> CuResult;

/// Attributes of the copies of a batch.
#[repr(C)]
pub struct BatchAttributes {
    order: u32,
    /// Location of source and destination, as type and id; 0: the driver finds out.
    from: [i32; 2],
    to: [i32; 2],
    flags: u32,
}
const _: () = assert!(size_of::<BatchAttributes>() == 24);
/// The source is read in stream order.
const IN_STREAM_ORDER: u32 = 1;

macro_rules! functions {
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
            /// A handle of dlopen's.
            unsafe fn find(handle: *mut c_void) -> Option<Self> {
                // SAFETY: the functions of these names have these arguments, by the interface that
                // the numbers in their names stand for.
                unsafe {
                    Some(Self {
                        $($field: transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($type),*) -> CuResult,
                        >(find(handle, $name)?),)*
                    })
                }
            }
        }

        /// For the context that is current in this thread.
        ///
        /// # Safety
        /// As the function that is called: results have room, streams, addresses and registered
        /// memory are the card's, and stay until the stream has passed this point.
        impl $functions {
            $(pub unsafe fn $field(&self, $($argument: $type),*) -> Result<(), CuResult> {
                // SAFETY: results have room, and memory of the card stays until the stream has passed, as the
                // caller has ensured.
                done(unsafe { (self.$field)($($argument),*) })
            })*
        }
    };
}

rare! {
    fn dlopen(*const c_char, c_int) -> *mut c_void;
    fn dlsym(*mut c_void, *const c_char) -> *mut c_void;
}

/// Returns a handle of the driver's library, or null.
fn open_library(flags: c_int) -> *mut c_void {
    // SAFETY: a terminated name; what the library does when it is loaded is its own business.
    unsafe { dlopen().map_or(null_mut(), |dlopen| dlopen(LIBRARY.as_ptr(), flags)) }
}

/// # Safety
/// A handle of dlopen's, or RTLD_NEXT.
pub unsafe fn find(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle of dlopen's, as the caller has ensured, and a terminated name.
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
    // SAFETY: a handle of dlopen's.
    let found = if handle.is_null() { None } else { unsafe { find(handle, name) } };
    found.inspect(|&found| lookup::note(function, found))
}

functions! {
    /// Functions of the service thread.
    Functions:
    init = c"cuInit": fn(flags: c_uint);
    device_get = c"cuDeviceGet": fn(device: *mut Device, number: c_int);
    device_get_name = c"cuDeviceGetName": fn(name: *mut c_char, len: c_int, device: Device);
    device_get_attribute = c"cuDeviceGetAttribute":
        fn(value: *mut c_int, attribute: c_int, device: Device);
    primary_retain = c"cuDevicePrimaryCtxRetain": fn(context: *mut Context, device: Device);
    primary_release = c"cuDevicePrimaryCtxRelease_v2": fn(device: Device);
    push = c"cuCtxPushCurrent_v2": fn(context: Context);
    pop = c"cuCtxPopCurrent_v2": fn(context: *mut Context);
    synchronize = c"cuCtxSynchronize": fn();
    stream_create = c"cuStreamCreate": fn(stream: *mut Stream, flags: c_uint);
    stream_destroy = c"cuStreamDestroy_v2": fn(stream: Stream);
    stream_query = c"cuStreamQuery": fn(stream: Stream);
    stream_synchronize = c"cuStreamSynchronize": fn(stream: Stream);
    stream_write = c"cuStreamWriteValue32_v2":
        fn(stream: Stream, word: Address, value: u32, flags: c_uint);
    alloc = c"cuMemAlloc_v2": fn(address: *mut Address, len: usize);
    free = c"cuMemFree_v2": fn(address: Address);
    host_address = c"cuMemHostGetDevicePointer_v2":
        fn(address: *mut Address, memory: *mut c_void, flags: c_uint);
    host_register = c"cuMemHostRegister_v2": fn(memory: *mut c_void, len: usize, flags: c_uint);
    host_unregister = c"cuMemHostUnregister": fn(memory: *mut c_void);
    host_to_card = c"cuMemcpyHtoDAsync_v2":
        fn(to: Address, from: *const c_void, len: usize, stream: Stream);
    card_to_host = c"cuMemcpyDtoHAsync_v2":
        fn(to: *mut c_void, from: Address, len: usize, stream: Stream);
}

functions! {
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
        // SAFETY: a handle of dlopen's.
        if handle.is_null() { None } else { unsafe { Self::find(handle) } }
    }
}

/// Copies of a batch. Registered memory has the same address for the card.
#[derive(Default)]
pub struct BatchParts {
    to: Vec<Address>,
    from: Vec<Address>,
    lens: Vec<usize>,
}

impl BatchParts {
    pub fn add(&mut self, to: usize, from: usize, len: usize) {
        self.to.push(to as Address);
        self.from.push(from as Address);
        self.lens.push(len);
    }
}

fn done(answer: CuResult) -> Result<(), CuResult> {
    if answer == SUCCESS { Ok(()) } else { Err(answer) }
}

/// The first card that the program may use, with a reference to its primary context, which is
/// current in this thread and in no other because of us.
pub struct Card {
    functions: Functions,
    /// Function that `straight` calls, since version 12.8.
    pub batch: Option<Batch>,
    device: Device,
}

impl core::ops::Deref for Card {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl Card {
    pub fn open() -> Result<Self, Unavailable> {
        // The library is never closed: it does not support that.
        let handle = open_library(libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            return Err(Unavailable::NoDriver);
        }
        // SAFETY: a handle of dlopen's; a function of that name has these arguments.
        let (functions, batch) = unsafe {
            let batch = find(handle, c"cuMemcpyBatchAsync");
            (Functions::find(handle), batch.map(|found| transmute::<*mut c_void, Batch>(found)))
        };
        let functions = functions.ok_or(Unavailable::NoDriver)?;
        let mut card = Self { functions, batch, device: 0 };
        card.take_context().map_err(Unavailable::Driver)?;
        Ok(card)
    }

    fn take_context(&mut self) -> Result<(), CuResult> {
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: results are written where there is room for them.
        unsafe {
            self.init(0)?;
            self.device_get(&mut device, 0)?;
            self.device = device;
            self.primary_retain(&mut context, device)?;
            let current = self.push(context);
            if current.is_err() {
                let _ = self.primary_release(device);
            }
            current
        }
    }

    /// Takes the context off this thread and gives the reference back.
    pub fn close(self) {
        // SAFETY: the counterparts of what `open` has done, in the same thread.
        unsafe {
            let _ = self.pop(&mut null_mut());
            let _ = self.primary_release(self.device);
        }
    }

    /// Writes the name into `room` and returns how many copy engines there are.
    pub fn describe(&self, room: &mut [u8; 64]) -> usize {
        let mut engines = 0;
        // SAFETY: the name is written into `room`, and cut there.
        unsafe {
            let _ = self.device_get_name(room.as_mut_ptr().cast(), 63, self.device);
            let _ = self.device_get_attribute(&mut engines, COPY_ENGINES, self.device);
        }
        usize::try_from(engines).unwrap_or(0)
    }

    pub fn new_stream(&self) -> Result<Stream, CuResult> {
        let mut stream = null_mut();
        // SAFETY: `stream` is writable.
        unsafe { self.stream_create(&mut stream, NON_BLOCKING) }?;
        Ok(stream)
    }

    /// Returns memory on the card.
    pub fn new_memory(&self, len: usize) -> Result<Address, CuResult> {
        let mut address = 0;
        // SAFETY: `address` is writable.
        unsafe { self.alloc(&mut address, len) }?;
        Ok(address)
    }

    /// Registers memory of ours that the card writes words to. Returns where the card sees it.
    pub fn register_words(&self, start: usize, len: usize) -> Result<Address, CuResult> {
        let (memory, mut address) = (start as *mut c_void, 0);
        // SAFETY: pins pages; the result is written where there is room for it.
        unsafe {
            self.host_register(memory, len, PORTABLE_AND_MAPPED)?;
            let seen = self.host_address(&mut address, memory, 0);
            if seen.is_err() {
                let _ = self.host_unregister(memory);
            }
            seen.map(|()| address)
        }
    }

    /// Pins memory of the program's. `Ok(false)`: this memory cannot be registered.
    pub fn register(&self, start: usize, len: usize) -> Result<bool, CuResult> {
        // SAFETY: pins pages and changes no byte.
        match unsafe { self.host_register(start as *mut c_void, len, 0) } {
            Ok(()) => Ok(true),
            Err(
                INVALID_VALUE | OUT_OF_MEMORY | ALREADY_REGISTERED | NOT_PERMITTED | NOT_SUPPORTED,
            ) => Ok(false),
            Err(answer) => Err(answer),
        }
    }

    /// Copies between registered memory: one engine reads and writes, without a buffer. Only the
    /// batch call does that; single copies between host memory are made by the CPU.
    ///
    /// # Safety
    /// All ranges stay registered until the stream has passed this point; the card may write `to`.
    pub unsafe fn straight(&self, parts: &BatchParts, stream: Stream) -> Result<(), CuResult> {
        let Some(batch) = self.batch else { return Err(NOT_SUPPORTED) };
        let attributes =
            BatchAttributes { order: IN_STREAM_ORDER, from: [0; 2], to: [0; 2], flags: 0 };
        let (to, from, lens) = (parts.to.as_ptr(), parts.from.as_ptr(), parts.lens.as_ptr());
        let (count, first, mut failed) = (parts.lens.len(), 0, 0);
        // SAFETY: the ranges stay registered until the stream has passed, as the caller has ensured; arrays of `count`
        // elements are read during the call.
        done(unsafe { batch(to, from, lens, count, &attributes, &first, 1, &mut failed, stream) })
    }

    /// Returns when the card writes nothing more for these streams: they are done, or their
    /// context is dead, which its own synchronisation has confirmed by an error.
    pub fn drain(&self, streams: impl Iterator<Item = Stream>) {
        for stream in streams {
            // SAFETY: streams of `new_stream`.
            unsafe {
                if self.stream_synchronize(stream).is_err() {
                    let _ = self.synchronize();
                }
            }
        }
    }
}
