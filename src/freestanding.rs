//! Replacements for the standard library: an allocator on the C library, and a panic handler.
//! Without it the library has half as many symbols to look up at start-up, a third of the
//! relocations and no thread-local storage; its panics would print backtraces, with an unwinder and
//! a reader of debug information.

use crate::os::{arch, text};
use core::alloc::{GlobalAlloc, Layout};
use core::arch::global_asm;
use core::ffi::c_void;
use core::panic::PanicInfo;
use core::ptr::null_mut;

#[link(name = "c")]
unsafe extern "C" {}

struct Malloc;

#[global_allocator]
static MALLOC: Malloc = Malloc;

/// Alignment of what malloc returns.
const ALIGNED: usize = 16;

// SAFETY: the C library's allocator, or an interposer of it, keeps the promises of the trait.
unsafe impl GlobalAlloc for Malloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: no memory is passed.
            return unsafe { libc::malloc(layout.size()) }.cast();
        }
        let mut memory = null_mut::<c_void>();
        // SAFETY: a power of two that is large enough, and a place for the answer.
        match unsafe { libc::posix_memalign(&mut memory, layout.align(), layout.size()) } {
            0 => memory.cast(),
            _ => null_mut(),
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: memory of `alloc` or `realloc`, which is malloc's.
        unsafe { libc::free(memory.cast()) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: memory of `alloc` or `realloc`, with the layout that it was asked for.
        unsafe {
            if layout.align() <= ALIGNED {
                return libc::realloc(memory.cast(), size).cast();
            }
            let fresh = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !fresh.is_null() {
                fresh.copy_from_nonoverlapping(memory, layout.size().min(size));
                self.dealloc(memory, layout);
            }
            fresh
        }
    }
}

#[panic_handler]
fn end_after(panic: &PanicInfo<'_>) -> ! {
    text::say(format_args!("{panic}"));
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

// The C library identifies this object by an address in it, which the compiler's start files would
// define.
global_asm!(
    ".pushsection .data.__dso_handle,\"aw\",@progbits",
    ".globl __dso_handle",
    ".hidden __dso_handle",
    ".p2align 3",
    "__dso_handle: .quad __dso_handle",
    ".size __dso_handle, 8",
    ".popsection",
);

// Nothing ever unwinds through this library, but the prebuilt core refers to these two.
global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    ".type rust_eh_personality, @function",
    "rust_eh_personality:",
    ".globl _Unwind_Resume",
    ".hidden _Unwind_Resume",
    ".type _Unwind_Resume, @function",
    "_Unwind_Resume:",
    arch::trap!(),
    ".size _Unwind_Resume, . - _Unwind_Resume",
    ".size rust_eh_personality, . - rust_eh_personality",
);
