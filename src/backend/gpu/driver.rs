//! The functions of NVIDIA's driver library that we need, found at run time: nothing is linked,
//! and on a machine without the library there is nothing.
//!
//! All of them may allocate and take locks: only the service thread calls them.

use crate::os::lookup::rare;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::transmute;
use core::ptr::null_mut;

/// What a call answers; 0 is success.
pub type CuResult = c_int;
pub type Device = c_int;
/// An address on the card.
pub type Address = u64;
pub type Context = *mut c_void;
pub type Stream = *mut c_void;

pub const SUCCESS: CuResult = 0;
pub const NOT_READY: CuResult = 600;
pub const INVALID_VALUE: CuResult = 1;
pub const OUT_OF_MEMORY: CuResult = 2;
const ALREADY_REGISTERED: CuResult = 712;
const NOT_PERMITTED: CuResult = 800;
pub const NOT_SUPPORTED: CuResult = 801;
/// What a function answers that is not there: CUDA_ERROR_NOT_INITIALIZED.
pub const NOT_INITIALIZED: CuResult = 3;

/// Attributes of a device.
pub const COPY_ENGINES: c_int = 40;

/// Of cuStreamCreate: no ordering with the program's default stream.
const NON_BLOCKING: c_uint = 1;
/// Of cuMemHostRegister: for every context, and with an address for the card.
const PORTABLE_AND_MAPPED: c_uint = 1 | 2;

const LIBRARY: &CStr = c"libcuda.so.1";

/// To, from, bytes, how many; attributes, the copies they begin with, how many; which failed.
type Batch = unsafe extern "C" fn(
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

/// Of the copies of a batch.
#[repr(C)]
struct BatchAttributes {
    order: u32,
    /// Kind and number of where source and destination are; 0: the driver finds out.
    from: [i32; 2],
    to: [i32; 2],
    flags: u32,
}
const _: () = assert!(size_of::<BatchAttributes>() == 24);
/// The source is read when the stream has come so far.
const IN_STREAM_ORDER: u32 = 1;

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ident: $type:ty),*);)*) => {
        pub struct Driver {
            $($field: unsafe extern "C" fn($($type),*) -> CuResult,)*
            /// Since version 12.8.
            batch: Option<Batch>,
        }

        impl Driver {
            /// `None`: there is no such library here, or it lacks one of the functions.
            pub fn open() -> Option<Self> {
                // The library stays: it does not like to be closed.
                let handle = open_library( libc::RTLD_NOW | libc::RTLD_LOCAL);
                if handle.is_null() {
                    return None;
                }
                // SAFETY: the functions of these names have these arguments, by the interface
                // that the numbers in their names stand for.
                unsafe { Some(Self {
                    $($field: transmute::<
                        *mut c_void,
                        unsafe extern "C" fn($($type),*) -> CuResult,
                    >(find(handle, $name)?),)*
                    batch: find(handle, c"cuMemcpyBatchAsync")
                        .map(|found| transmute::<*mut c_void, Batch>(found)),
                }) }
            }
        }
    };
}

rare! {
    fn dlopen(*const c_char, c_int) -> *mut c_void;
    fn dlsym(*mut c_void, *const c_char) -> *mut c_void;
}

/// The driver's library, or null.
fn open_library(flags: c_int) -> *mut c_void {
    // SAFETY: a terminated name; what the library does when it is loaded is its own business.
    unsafe { dlopen().map_or(null_mut(), |dlopen| dlopen(LIBRARY.as_ptr(), flags)) }
}

/// # Safety
/// A handle of dlopen's.
unsafe fn find(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the caller's promise, and a terminated name.
    let found = unsafe { dlsym()?(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// A function of the library, if the program or we have loaded it. For calls of the program's
/// that are only passed on.
pub fn loaded(name: &CStr) -> Option<*mut c_void> {
    let handle = open_library(libc::RTLD_LAZY | libc::RTLD_NOLOAD);
    // SAFETY: a handle of dlopen's.
    if handle.is_null() { None } else { unsafe { find(handle, name) } }
}

functions! {
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
    to_card = c"cuMemcpyHtoDAsync_v2":
        fn(to: Address, from: *const c_void, len: usize, stream: Stream);
    from_card = c"cuMemcpyDtoHAsync_v2":
        fn(to: *mut c_void, from: Address, len: usize, stream: Stream);
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

/// The card that is used, with a reference to its primary context, which is current in this
/// thread and in no other because of us.
pub struct Card {
    driver: Driver,
    device: Device,
}

impl Card {
    /// The first card that the program may use.
    pub fn open(driver: Driver) -> Result<Self, CuResult> {
        let (mut device, mut context) = (0, core::ptr::null_mut());
        // SAFETY: results are written where there is room for them.
        unsafe {
            done((driver.init)(0))?;
            done((driver.device_get)(&mut device, 0))?;
            done((driver.primary_retain)(&mut context, device))?;
            if let Err(answer) = done((driver.push)(context)) {
                (driver.primary_release)(device);
                return Err(answer);
            }
        }
        Ok(Self { driver, device })
    }

    /// Takes the context off this thread and gives the reference back.
    pub fn close(self) {
        let mut context = core::ptr::null_mut();
        // SAFETY: the counterparts of what `open` has done, in the same thread.
        unsafe {
            (self.driver.pop)(&mut context);
            (self.driver.primary_release)(self.device);
        }
    }

    /// Writes the name into `room` and answers how many copy engines there are.
    pub fn describe(&self, room: &mut [u8; 64]) -> usize {
        let mut engines = 0;
        // SAFETY: the name is written into `room`, and cut there.
        unsafe {
            (self.driver.device_get_name)(room.as_mut_ptr().cast(), 63, self.device);
            (self.driver.device_get_attribute)(&mut engines, COPY_ENGINES, self.device);
        }
        usize::try_from(engines).unwrap_or(0)
    }

    pub fn new_stream(&self) -> Result<Stream, CuResult> {
        let mut stream = core::ptr::null_mut();
        // SAFETY: `stream` is writable.
        done(unsafe { (self.driver.stream_create)(&mut stream, NON_BLOCKING) })?;
        Ok(stream)
    }

    /// # Safety
    /// A stream of `new_stream`, not used any more.
    pub unsafe fn end_stream(&self, stream: Stream) {
        // SAFETY: the caller's promise.
        unsafe { (self.driver.stream_destroy)(stream) };
    }

    /// Memory on the card.
    pub fn new_memory(&self, len: usize) -> Result<Address, CuResult> {
        let mut address = 0;
        // SAFETY: `address` is writable.
        done(unsafe { (self.driver.alloc)(&mut address, len) })?;
        Ok(address)
    }

    /// # Safety
    /// Memory of `new_memory`, not used any more.
    pub unsafe fn end_memory(&self, address: Address) {
        // SAFETY: the caller's promise.
        unsafe { (self.driver.free)(address) };
    }

    /// Registers memory of ours that the card writes words to; answers where the card sees it.
    pub fn register_words(&self, start: usize, len: usize) -> Result<Address, CuResult> {
        let (memory, mut address) = (start as *mut c_void, 0);
        // SAFETY: pins pages; the result is written where there is room for it.
        unsafe {
            done((self.driver.host_register)(memory, len, PORTABLE_AND_MAPPED))?;
            if let Err(answer) = done((self.driver.host_address)(&mut address, memory, 0)) {
                (self.driver.host_unregister)(memory);
                return Err(answer);
            }
        }
        Ok(address)
    }

    /// Pins memory of the program's. `Ok(false)`: this memory cannot be had.
    pub fn register(&self, start: usize, len: usize) -> Result<bool, CuResult> {
        // SAFETY: pins pages and changes no byte.
        match unsafe { (self.driver.host_register)(start as *mut c_void, len, 0) } {
            SUCCESS => Ok(true),
            INVALID_VALUE | OUT_OF_MEMORY | ALREADY_REGISTERED | NOT_PERMITTED | NOT_SUPPORTED => {
                Ok(false)
            }
            answer => Err(answer),
        }
    }

    /// # Safety
    /// Registered by us, and no copy uses it.
    pub unsafe fn unregister(&self, start: usize) -> Result<(), CuResult> {
        // SAFETY: the caller's promise.
        done(unsafe { (self.driver.host_unregister)(start as *mut c_void) })
    }

    /// # Safety
    /// Registered memory, and as much room on the card, until the stream has come this far.
    pub unsafe fn to_card(
        &self,
        to: Address,
        from: usize,
        len: usize,
        stream: Stream,
    ) -> Result<(), CuResult> {
        // SAFETY: the caller's promise.
        done(unsafe { (self.driver.to_card)(to, from as *const c_void, len, stream) })
    }

    /// # Safety
    /// As `to_card`; the memory is the card's to write.
    pub unsafe fn back_from_card(
        &self,
        to: usize,
        from: Address,
        len: usize,
        stream: Stream,
    ) -> Result<(), CuResult> {
        // SAFETY: the caller's promise.
        done(unsafe { (self.driver.from_card)(to as *mut c_void, from, len, stream) })
    }

    /// Whether there is `straight`.
    pub fn has_straight(&self) -> bool {
        self.driver.batch.is_some()
    }

    /// Copies between registered memory: one engine reads and writes, with nothing between. Only
    /// the call for batches does that; those for one copy of host memory have the CPU make it.
    ///
    /// # Safety
    /// Registered memory, until the stream has come so far; `to` is the card's to write.
    pub unsafe fn straight(&self, parts: &BatchParts, stream: Stream) -> Result<(), CuResult> {
        let Some(batch) = self.driver.batch else { return Err(NOT_SUPPORTED) };
        let attributes =
            BatchAttributes { order: IN_STREAM_ORDER, from: [0; 2], to: [0; 2], flags: 0 };
        let (to, from, lens) = (parts.to.as_ptr(), parts.from.as_ptr(), parts.lens.as_ptr());
        let (count, first, mut failed) = (parts.lens.len(), 0, 0);
        // SAFETY: the caller's promise; arrays of `count`, which are read during the call.
        done(unsafe { batch(to, from, lens, count, &attributes, &first, 1, &mut failed, stream) })
    }

    /// The card writes `value` when everything before it in the stream is done and can be seen.
    ///
    /// # Safety
    /// A word of `register_words`.
    pub unsafe fn write(&self, stream: Stream, word: Address, value: u32) -> Result<(), CuResult> {
        // SAFETY: the caller's promise. Flags of 0 ask for a barrier before the word.
        done(unsafe { (self.driver.stream_write)(stream, word, value, 0) })
    }

    /// Whether everything in a stream is done.
    ///
    /// # Safety
    /// A stream of `new_stream`.
    pub unsafe fn is_idle(&self, stream: Stream) -> Result<bool, CuResult> {
        // SAFETY: the caller's promise.
        match unsafe { (self.driver.stream_query)(stream) } {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            answer => Err(answer),
        }
    }

    /// When this returns, the card writes nothing more for these streams: they are done, or
    /// their context is dead, which its own synchronisation has confirmed by an error.
    ///
    /// # Safety
    /// Streams of `new_stream`.
    pub unsafe fn drain(&self, streams: impl Iterator<Item = Stream>) {
        for stream in streams {
            // SAFETY: the caller's promise.
            unsafe {
                if (self.driver.stream_synchronize)(stream) != SUCCESS {
                    (self.driver.synchronize)();
                }
            }
        }
    }
}
