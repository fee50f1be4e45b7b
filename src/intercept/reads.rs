//! The calls that read files. Where a register holds the number of bytes, the entry compares it, as
//! that of memcpy does. fread has to multiply first, and only the slow path can sum up a list of
//! buffers.

use crate::backend::kernel_calls::reads::{Buffers, ReadCall};
use crate::backend::kernel_calls::segments::{Segment, SegmentList};
use crate::backend::kernel_calls::streams::StreamCall;
use crate::backend::libc as original;
use crate::functions::Op;
use crate::runtime::DISPATCHER;
use core::ffi::c_void;

/// Rust entry points of large reads, with the call site behind the arguments.
pub mod large {
    use crate::functions::Op;

    macro_rules! large_reads {
        ($($name:ident: $symbols:tt $unit:literal $length:tt $kind:ident::$large:ident
            $original:tt;)*) => { $( large_read! { $kind $name $large } )* };
    }

    macro_rules! large_read {
        (file $name:ident $large:ident) => {
            pub unsafe extern "C" fn $name(
                a: usize,
                b: usize,
                c: usize,
                d: usize,
                e: usize,
                site: usize,
            ) -> isize {
                // SAFETY: the program's own call of this function.
                unsafe { super::$large(Op::$name, [a, b, c, d, e], site) }
            }
        };
        ($other:ident $name:ident $large:ident) => {};
    }

    adma_shared::intercepted_functions! { large_reads }
}

/// As the function takes them.
type Arguments = [usize; 5];

unsafe fn read(op: Op, arguments: Arguments, site: usize) -> isize {
    // SAFETY: the program's own call, as for all of these.
    unsafe { read_into(op, arguments, None, usize::MAX, site) }
}

unsafe fn read_checked(op: Op, arguments: Arguments, site: usize) -> isize {
    let [_, _, _, room, _] = arguments;
    // SAFETY: see `read`.
    unsafe { read_into(op, arguments, None, room, site) }
}

unsafe fn read_at(op: Op, arguments: Arguments, site: usize) -> isize {
    let [_, _, _, offset, _] = arguments;
    // SAFETY: see `read`.
    unsafe { read_into(op, arguments, Some(offset), usize::MAX, site) }
}

unsafe fn read_at_checked(op: Op, arguments: Arguments, site: usize) -> isize {
    let [_, _, _, offset, room] = arguments;
    // SAFETY: see `read`.
    unsafe { read_into(op, arguments, Some(offset), room, site) }
}

unsafe fn list(op: Op, arguments: Arguments, site: usize) -> isize {
    // SAFETY: see `read`.
    unsafe { list_into(op, arguments, None, 0, site) }
}

unsafe fn list_at(op: Op, arguments: Arguments, site: usize) -> isize {
    let [_, _, _, offset, _] = arguments;
    // SAFETY: see `read`.
    unsafe { list_into(op, arguments, Some(offset), 0, site) }
}

/// An offset of -1 means that of the file.
unsafe fn list_with_flags(op: Op, arguments: Arguments, site: usize) -> isize {
    let [_, _, _, offset, flags] = arguments;
    let offset = (offset != usize::MAX).then_some(offset);
    // SAFETY: see `read`.
    unsafe { list_into(op, arguments, offset, flags as u32 as usize, site) }
}

unsafe fn items(op: Op, [to, size, count, stream, _]: Arguments, site: usize) -> isize {
    // SAFETY: see `read`.
    unsafe { DISPATCHER.read_stream(&StreamCall { op, to, size, count, stream, site }) as isize }
}

/// A call that does not fit is libc's to end the program for.
unsafe fn items_checked(op: Op, arguments: Arguments, site: usize) -> isize {
    let [to, room, size, count, stream] = arguments;
    // SAFETY: see `read`.
    unsafe {
        if size.checked_mul(count).is_some_and(|bytes| bytes <= room) {
            return items(op, [to, size, count, stream, 0], site);
        }
        let next = core::mem::transmute::<*mut c_void, original::ReadFn>(original::next(op));
        let [a, b, c, d, e] = arguments;
        next(a, b, c, d, e)
    }
}

/// Reads into one buffer with this much room.
unsafe fn read_into(
    op: Op,
    arguments: Arguments,
    offset: Option<usize>,
    room: usize,
    site: usize,
) -> isize {
    let [fd, base, len, ..] = arguments;
    let buffers = Buffers::One(Segment { base, len });
    let call = ReadCall { op, fd: fd_of(fd), buffers, offset, flags: 0, arguments, site };
    // SAFETY: the program's own call. One that does not fit is libc's to end the program for.
    unsafe { if len > room { call.pass_on() } else { DISPATCHER.read(&call) } }
}

/// Reads into a list of buffers.
unsafe fn list_into(
    op: Op,
    arguments: Arguments,
    offset: Option<usize>,
    flags: usize,
    site: usize,
) -> isize {
    let [fd, at, count, ..] = arguments;
    // The count is an int; a negative one is more than the kernel takes.
    let buffers = Buffers::List(SegmentList { at, count: count as u32 as usize });
    let call = ReadCall { op, fd: fd_of(fd), buffers, offset, flags, arguments, site };
    // SAFETY: the program's own call.
    unsafe { DISPATCHER.read(&call) }
}

/// Returns the int in a register, whose upper half is undefined.
fn fd_of(register: usize) -> usize {
    register as u32 as usize
}
