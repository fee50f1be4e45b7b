#![doc = include_str!("../README.md")]
//!
//! ```text
//! connection  listeners and connections
//! request     what is under way: futures, and the law about their buffers
//! block       buffers
//! reactor     wakes futures
//! sys         the library's functions
//! ```

mod block;
mod connection;
mod reactor;
mod request;
mod sys;

pub use block::Block;
pub use connection::{Connection, Listener, Peer};
pub use request::{Copy, Message};

use std::io;

/// Copies all of `src` into `dst`, which is as long, and returns when it is done.
pub fn copy(src: &[u8], dst: &mut [u8]) -> io::Result<()> {
    if src.len() != dst.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "slices of two lengths"));
    }
    // SAFETY: ours until it returns.
    unsafe { (sys::library()?.adma_copy)(src.as_ptr(), dst.as_mut_ptr(), src.len()) };
    Ok(())
}

/// Starts to copy `src` into `dst`, which is as long: `wait` for it, or `await` it.
pub fn icopy(src: Block, dst: Block) -> Copy {
    Copy::begin(src, dst)
}

/// Leaves large copies of this process, in all threads, to the C library until it is dropped.
pub struct Off(());

pub fn off() -> io::Result<Off> {
    // SAFETY: takes nothing.
    unsafe { (sys::library()?.adma_off)() };
    Ok(Off(()))
}

impl Drop for Off {
    fn drop(&mut self) {
        if let Ok(library) = sys::library() {
            // SAFETY: takes nothing.
            unsafe { (library.adma_on)() };
        }
    }
}

/// Says in the library's words what an error means.
pub fn describe(error: &io::Error) -> String {
    let (Some(errno), Ok(library)) = (error.raw_os_error(), sys::library()) else {
        return error.to_string();
    };
    // SAFETY: returns text that is never freed.
    let text = unsafe { std::ffi::CStr::from_ptr((library.adma_strerror)(-errno)) };
    text.to_string_lossy().into_owned()
}
