//! Slow path of large calls: converts each function's arguments and result for one way to copy, one
//! to fill and one to compare.

use crate::backend::libc as original;
use crate::backend::threads::task::{Task, Work};
use crate::functions::Op;
use crate::runtime::DISPATCHER;
use core::ffi::c_void;

/// Frames for any caller. Hand-written assembly and JITs may call with a stack that is misaligned
/// by 8 bytes: libc's functions do not mind, but compiled code does. The frame is an ordinary one,
/// so that debuggers and unwinders find the caller, whose return address is the fifth argument, for
/// the table of call sites.
pub mod aligned {
    use super::large;
    use crate::os::arch;
    use core::arch::naked_asm;

    macro_rules! frames {
        ($($name:ident: $symbols:tt $unit:literal $length:tt $kind:ident::$large:ident
            $original:tt;)*) => { $( frame! { $kind $name } )* };
    }

    macro_rules! frame {
        (file $name:ident) => {};
        (transfer $name:ident) => {};
        ($memory:ident $name:ident) => {
            #[unsafe(naked)]
            #[unsafe(link_section = ".text.fork")]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc",
                    arch::call_aligned!(),
                    ".cfi_endproc",
                    large = sym large::$name,
                )
            }
        };
    }

    adma_shared::intercepted_functions! { frames }
}

/// Compares the first bytes, which end most comparisons, before there is even a frame. If they
/// differ, the call goes to libc untimed and uncounted. Touches only the pages where the two
/// sides begin.
pub mod looking {
    use super::aligned;
    use crate::backend::libc::ENTRIES;
    use crate::functions::{Op, min_offset, next_offset};
    use crate::os::arch;
    use core::arch::naked_asm;

    macro_rules! looks {
        ($($name:ident: $symbols:tt $unit:literal $length:tt $kind:ident::$large:ident
            $original:tt;)*) => { $( look! { $kind $name } )* };
    }

    macro_rules! look {
        (compare $name:ident) => {
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc",
                    arch::look!(),
                    ".cfi_endproc",
                    entries = sym ENTRIES,
                    min = const min_offset(Op::$name),
                    next = const next_offset(Op::$name),
                    slow = sym aligned::$name,
                )
            }
        };
        ($other:ident $name:ident) => {};
    }

    adma_shared::intercepted_functions! { looks }
}

/// Rust entry points of large calls, with the call site behind the arguments.
mod large {
    use crate::functions::Op;

    macro_rules! large_calls {
        ($($name:ident: $symbols:tt $unit:literal $length:tt $kind:ident::$large:ident
            $original:tt;)*) => { $( large_call! { $kind $name $large } )* };
    }

    macro_rules! large_call {
        (file $name:ident $large:ident) => {};
        (transfer $name:ident $large:ident) => {};
        ($memory:ident $name:ident $large:ident) => {
            #[unsafe(link_section = ".text.fork")] // see `entry`
            pub unsafe extern "C" fn $name(
                a: usize,
                b: usize,
                c: usize,
                d: usize,
                site: usize,
            ) -> usize {
                // SAFETY: the program's own call of this function.
                unsafe { super::$large(Op::$name, [a, b, c, d], site) }
            }
        };
    }

    adma_shared::intercepted_functions! { large_calls }
}

type Arguments = [usize; 4];

unsafe fn copy(op: Op, [dst, src, count, _]: Arguments, site: usize) -> usize {
    // SAFETY: the program's own call, as for all of these.
    unsafe { copy_into(op, dst, src, count, ANY, site) }
}

unsafe fn copy_to_end(op: Op, [dst, src, count, _]: Arguments, site: usize) -> usize {
    // SAFETY: see `copy`.
    let dst = unsafe { copy_into(op, dst, src, count, ANY, site) };
    dst.wrapping_add(count.wrapping_mul(op.unit()))
}

unsafe fn copy_backwards(op: Op, [src, dst, count, _]: Arguments, site: usize) -> usize {
    // SAFETY: see `copy`.
    unsafe { copy_into(op, dst, src, count, ANY, site) }
}

unsafe fn copy_checked(op: Op, [dst, src, count, room]: Arguments, site: usize) -> usize {
    // SAFETY: see `copy`.
    unsafe { copy_into(op, dst, src, count, room, site) }
}

unsafe fn copy_to_end_checked(op: Op, [dst, src, count, room]: Arguments, site: usize) -> usize {
    // SAFETY: see `copy`.
    let dst = unsafe { copy_into(op, dst, src, count, room, site) };
    dst.wrapping_add(count.wrapping_mul(op.unit()))
}

unsafe fn fill(op: Op, [dst, value, count, _]: Arguments, site: usize) -> usize {
    // SAFETY: see `copy`.
    unsafe { fill_into(op, dst, value, count, ANY, site) }
}

unsafe fn fill_checked(op: Op, [dst, value, count, room]: Arguments, site: usize) -> usize {
    // SAFETY: see `copy`.
    unsafe { fill_into(op, dst, value, count, room, site) }
}

unsafe fn clear(op: Op, [dst, count, ..]: Arguments, site: usize) -> usize {
    // SAFETY: see `copy`.
    unsafe { fill_into(op, dst, 0, count, ANY, site) }
}

/// Room at the destination for functions that do not check it.
const ANY: usize = usize::MAX;

/// Returns the bytes of `count` units. `None`: they do not fit, so libc ends the program, or exceed
/// the address space, so it fails.
fn bytes(op: Op, count: usize, room: usize) -> Option<usize> {
    count.checked_mul(op.unit()).filter(|&len| len <= room)
}

unsafe fn copy_into(
    op: Op,
    dst: usize,
    src: usize,
    count: usize,
    room: usize,
    site: usize,
) -> usize {
    // SAFETY: the program's own call: these ranges may be read and written as the function does.
    unsafe {
        let Some(len) = bytes(op, count, room) else {
            return pass_on(op, dst, src, count, room);
        };
        DISPATCHER.call(Some(op), site, &Task { work: Work::Copy, dst, src, len });
    }
    dst
}

/// Fills. Wide characters of four equal bytes, such as 0, are filled as bytes.
unsafe fn fill_into(
    op: Op,
    dst: usize,
    value: usize,
    count: usize,
    room: usize,
    site: usize,
) -> usize {
    let byte = value as u8;
    let is_byte = op.unit() == 1 || value as u32 == u32::from_ne_bytes([byte; 4]);
    // SAFETY: the program's own call: these ranges may be read and written as the function does.
    unsafe {
        let Some(len) = bytes(op, count, room).filter(|_| is_byte) else {
            return pass_on(op, dst, value, count, room);
        };
        DISPATCHER.call(Some(op), site, &Task::fill(dst, byte, len));
    }
    dst
}

unsafe fn compare(op: Op, [a, b, count, _]: Arguments, site: usize) -> usize {
    // SAFETY: the program's own call: these ranges may be read.
    unsafe {
        let Some(len) = bytes(op, count, ANY) else { return pass_on(op, a, b, count, ANY) };
        let task = Task { work: Work::Compare(op), dst: a, src: b, len };
        DISPATCHER.call(Some(op), site, &task) as usize
    }
}

/// Calls the function we stand in front of, with the arguments it was called with.
unsafe fn pass_on(op: Op, dst: usize, src: usize, len: usize, room: usize) -> usize {
    type MemoryFn = unsafe extern "C" fn(usize, usize, usize, usize) -> usize;
    // SAFETY: a function of these arguments, or of the first three of them.
    unsafe {
        let next = core::mem::transmute::<*mut c_void, MemoryFn>(original::next(op));
        next(dst, src, len, room)
    }
}
