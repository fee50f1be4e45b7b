//! The card that carries copies in loopback: its functions of the driver, and the calls they serve.

use super::Unavailable;
use crate::backend::card::driver::{
    Address, Context, CuResult, Device, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Stream, done,
    driver_functions, find, open_library,
};
use alloc::vec::Vec;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::transmute;
use core::ptr::null_mut;

const ALREADY_REGISTERED: CuResult = 712;
const NOT_PERMITTED: CuResult = 800;

/// Attributes of a device.
pub const COPY_ENGINES: c_int = 40;

/// Flag of cuStreamCreate: no ordering with the program's default stream.
const NON_BLOCKING: c_uint = 1;
/// Flags of cuMemHostRegister: for every context, and with an address for the card.
const PORTABLE_AND_MAPPED: c_uint = 1 | 2;

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

driver_functions! {
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
        // SAFETY: dlopen has returned the handle; a function of that name has these arguments.
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
