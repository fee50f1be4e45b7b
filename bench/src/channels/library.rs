//! A libadma.so, and its connection with the other process.

use super::LARGEST;
use crate::arms::symbol;
use libc::c_void;
use std::ffi::{CStr, CString};
use std::ptr;

type Transfer = unsafe extern "C" fn(i32, *mut c_void, usize) -> isize;

pub(super) struct Library {
    pub(super) read: Transfer,
    pub(super) write: Transfer,
    attach: unsafe extern "C" fn(i32) -> i32,
    alloc: unsafe extern "C" fn(usize) -> *mut c_void,
    info: Transfer,
    pub(super) connection: i32,
    /// Blocks to send from and to receive into.
    pub(super) blocks: [*mut u8; 2],
}

impl Library {
    pub(super) fn open(path: &str) -> Self {
        let name = CString::new(path).expect("a path");
        // SAFETY: a terminated path; the functions have these types, see include/adma.h.
        unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null(), "{path} cannot be opened");
            Self {
                read: symbol(handle, c"adma_read").expect("adma_read"),
                write: symbol(handle, c"adma_write").expect("adma_write"),
                attach: symbol(handle, c"adma_attach").expect("adma_attach"),
                alloc: symbol(handle, c"adma_alloc").expect("adma_alloc"),
                info: symbol(handle, c"adma_connection_info").expect("adma_connection_info"),
                connection: 0,
                blocks: [ptr::null_mut(); 2],
            }
        }
    }

    pub(super) fn connect(&mut self, socket: i32) {
        // SAFETY: a connected socket.
        self.connection = unsafe { (self.attach)(socket) };
        assert!(self.connection > 0, "attach: {}", self.connection);
        self.blocks = [(); 2].map(|()| {
            // SAFETY: a new block, which is never freed.
            let block: *mut u8 = unsafe { (self.alloc)(LARGEST) }.cast();
            assert!(!block.is_null(), "no memory for a block");
            block
        });
    }

    pub(super) fn about(&self) -> String {
        let mut text = [0u8; 300];
        // SAFETY: the text has this room.
        unsafe { (self.info)(self.connection, text.as_mut_ptr().cast(), text.len()) };
        CStr::from_bytes_until_nul(&text).unwrap_or(c"?").to_string_lossy().into()
    }
}
