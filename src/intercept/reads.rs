//! The calls that read files. Where a register holds the number of bytes, the entry is that of
//! memcpy. fread has to multiply first, and only the slow path can sum up a list of buffers.

use crate::backend::libc::{self as original, ENTRIES};
use crate::backend::threads::reads::{Buffers, ReadCall};
use crate::backend::threads::segments::{Segment, SegmentList};
use crate::backend::threads::streams::StreamCall;
use crate::functions::{Op, min_offset, next_offset};
use crate::runtime::DISPATCHER;
use core::arch::naked_asm;
use core::ffi::c_void;

macro_rules! entry {
    ($compare:literal, $jump:literal: $($name:ident $op:ident to $slow:ident),* $(,)?) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.start")]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $compare,
                concat!($jump, " 2f"),
                "jmp qword ptr [rip + {entries} + {next}]",
                "2:",
                "mov r9, [rsp]", // the call site, behind the five arguments that there can be
                "jmp {slow}",
                ".p2align 5",
                ".cfi_endproc",
                entries = sym ENTRIES,
                min = const min_offset(Op::$op),
                next = const next_offset(Op::$op),
                slow = sym $slow,
            )
        }
    )* };
}

entry! { "cmp rdx, [rip + {entries} + {min}]", "jae":
    read Read to slow_read,
    __read Read to slow_read,
    pread Pread to slow_pread,
    pread64 Pread to slow_pread,
    __pread64 Pread to slow_pread,
    __read_chk ReadChk to slow_read_chk,
    __pread_chk PreadChk to slow_pread_chk,
    __pread64_chk PreadChk to slow_pread_chk,
}

// Lists of buffers: functions::NEVER is -1.
entry! { "cmp qword ptr [rip + {entries} + {min}], -1", "jne":
    readv Readv to slow_readv,
    preadv Preadv to slow_preadv,
    preadv64 Preadv to slow_preadv,
    preadv2 Preadv2 to slow_preadv2,
    preadv64v2 Preadv2 to slow_preadv2,
}

// A product above 64 bits wraps, as it does in libc.
entry! { "mov rax, rsi\nimul rax, rdx\ncmp rax, [rip + {entries} + {min}]", "jae":
    fread Fread to slow_fread,
    fread_unlocked FreadUnlocked to slow_fread_unlocked,
}

entry! { "mov rax, rdx\nimul rax, rcx\ncmp rax, [rip + {entries} + {min}]", "jae":
    __fread_chk FreadChk to slow_fread_chk,
    __fread_unlocked_chk FreadUnlockedChk to slow_fread_unlocked_chk,
}

/// Entry points of large reads.
macro_rules! slow {
    ($($name:ident($a:ident, $b:ident, $c:ident, $d:ident, $e:ident)
        $read:ident $op:ident, $third:expr, $fourth:expr;)*) => { $(
        unsafe extern "C" fn $name(
            $a: usize, $b: usize, $c: usize, $d: usize, $e: usize, site: usize,
        ) -> isize {
            // SAFETY: the program's own call.
            unsafe { $read(Op::$op, [$a, $b, $c, $d, $e], $third, $fourth, site) }
        }
    )* };
}

slow! {
    slow_read(fd, base, len, d, e) one Read, None, len;
    slow_pread(fd, base, len, offset, e) one Pread, Some(offset), len;
    slow_read_chk(fd, base, len, room, e) one ReadChk, None, room;
    slow_pread_chk(fd, base, len, offset, room) one PreadChk, Some(offset), room;
    slow_readv(fd, at, count, d, e) list Readv, None, 0;
    slow_preadv(fd, at, count, offset, e) list Preadv, Some(offset), 0;
    slow_preadv2(fd, at, count, offset, flags)
        list Preadv2, (offset != usize::MAX).then_some(offset), flags as u32 as usize;
    slow_fread(to, size, count, stream, e) items Fread, [to, size, count, stream], usize::MAX;
    slow_fread_unlocked(to, size, count, stream, e)
        items FreadUnlocked, [to, size, count, stream], usize::MAX;
    slow_fread_chk(to, room, size, count, stream)
        items FreadChk, [to, size, count, stream], room;
    slow_fread_unlocked_chk(to, room, size, count, stream)
        items FreadUnlockedChk, [to, size, count, stream], room;
}

/// Reads into one buffer with this much room; `arguments` as the function takes them.
unsafe fn one(
    op: Op,
    arguments: [usize; 5],
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
unsafe fn list(
    op: Op,
    arguments: [usize; 5],
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

/// Reads items of a stream, into this much room.
unsafe fn items(
    op: Op,
    arguments: [usize; 5],
    [to, size, count, stream]: [usize; 4],
    room: usize,
    site: usize,
) -> isize {
    let is_checked = matches!(op, Op::FreadChk | Op::FreadUnlockedChk);
    let fits = size.checked_mul(count).is_some_and(|bytes| bytes <= room);
    // SAFETY: the program's own call. One that does not fit is libc's to end the program for.
    unsafe {
        if fits || !is_checked {
            let call = StreamCall { op, to, size, count, stream, site };
            return DISPATCHER.read_stream(&call) as isize;
        }
        let next = core::mem::transmute::<*mut c_void, original::ReadFn>(original::next(op));
        let [a, b, c, d, e] = arguments;
        next(a, b, c, d, e)
    }
}

/// Returns the int in a register, whose upper half is undefined.
fn fd_of(register: usize) -> usize {
    register as u32 as usize
}
