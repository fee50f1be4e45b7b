//! The calls that read files. Where a register holds the number of bytes, the entry is that of
//! memcpy. fread has to multiply first, and how much a list of buffers holds only the slow path
//! can tell.

use crate::backend::libc::ENTRIES;
use crate::backend::threads::reads::{Buffers, ReadCall};
use crate::backend::threads::segments::{Segment, SegmentList};
use crate::backend::threads::streams::StreamCall;
use crate::functions::{EntryPoint, Op};
use crate::runtime;
use core::arch::naked_asm;
use core::mem::offset_of;

macro_rules! entry {
    ($($name:ident: $op:ident if $($compare:literal),* => $jump:literal to $slow:ident;)*) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.start")]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $($compare,)*
                concat!($jump, " 2f"),
                "jmp qword ptr [rip + {entries} + {next}]",
                "2:",
                "mov r9, [rsp]", // the call site, behind the five arguments that there can be
                "jmp {slow}",
                ".p2align 5",
                ".cfi_endproc",
                entries = sym ENTRIES,
                min = const Op::$op as usize * size_of::<EntryPoint>() + offset_of!(EntryPoint, min),
                next = const Op::$op as usize * size_of::<EntryPoint>() + offset_of!(EntryPoint, next),
                slow = sym $slow,
            )
        }
    )* };
}

entry! {
    read: Read if "cmp rdx, [rip + {entries} + {min}]" => "jae" to slow_read;
    __read: Read if "cmp rdx, [rip + {entries} + {min}]" => "jae" to slow_read;
    pread: Pread if "cmp rdx, [rip + {entries} + {min}]" => "jae" to slow_pread;
    pread64: Pread if "cmp rdx, [rip + {entries} + {min}]" => "jae" to slow_pread;
    __pread64: Pread if "cmp rdx, [rip + {entries} + {min}]" => "jae" to slow_pread;
    __read_chk: ReadChk if "cmp rdx, [rip + {entries} + {min}]" => "jae" to slow_read_chk;
    __pread_chk: PreadChk if "cmp rdx, [rip + {entries} + {min}]" => "jae" to slow_pread_chk;
    __pread64_chk: PreadChk if "cmp rdx, [rip + {entries} + {min}]" => "jae" to slow_pread_chk;
    // functions::NEVER
    readv: Readv if "cmp qword ptr [rip + {entries} + {min}], -1" => "jne" to slow_readv;
    preadv: Preadv if "cmp qword ptr [rip + {entries} + {min}], -1" => "jne" to slow_preadv;
    preadv64: Preadv if "cmp qword ptr [rip + {entries} + {min}], -1" => "jne" to slow_preadv;
    preadv2: Preadv2 if "cmp qword ptr [rip + {entries} + {min}], -1" => "jne" to slow_preadv2;
    preadv64v2: Preadv2 if "cmp qword ptr [rip + {entries} + {min}], -1" => "jne" to slow_preadv2;
    // What is more than 64 bits counts less; libc does that too.
    fread: Fread
        if "mov rax, rsi", "imul rax, rdx", "cmp rax, [rip + {entries} + {min}]"
        => "jae" to slow_fread;
    fread_unlocked: FreadUnlocked
        if "mov rax, rsi", "imul rax, rdx", "cmp rax, [rip + {entries} + {min}]"
        => "jae" to slow_fread_unlocked;
    __fread_chk: FreadChk
        if "mov rax, rdx", "imul rax, rcx", "cmp rax, [rip + {entries} + {min}]"
        => "jae" to slow_fread_chk;
    __fread_unlocked_chk: FreadUnlockedChk
        if "mov rax, rdx", "imul rax, rcx", "cmp rax, [rip + {entries} + {min}]"
        => "jae" to slow_fread_unlocked_chk;
}

/// One buffer with this much room; `arguments` as the function takes them.
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
    unsafe { if len > room { call.pass_on() } else { runtime::read(&call) } }
}

/// A list of buffers.
unsafe fn list(
    op: Op,
    arguments: [usize; 5],
    offset: Option<usize>,
    flags: usize,
    site: usize,
) -> isize {
    let [fd, at, count, ..] = arguments;
    // An int; a negative one is more than anybody takes.
    let buffers = Buffers::List(SegmentList { at, count: count as u32 as usize });
    let call = ReadCall { op, fd: fd_of(fd), buffers, offset, flags, arguments, site };
    // SAFETY: the program's own call.
    unsafe { runtime::read(&call) }
}

/// The upper half of a register that holds an int is anything.
fn fd_of(register: usize) -> usize {
    register as u32 as usize
}

unsafe extern "C" fn slow_read(
    fd: usize,
    base: usize,
    len: usize,
    _: usize,
    _: usize,
    site: usize,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { one(Op::Read, [fd, base, len, 0, 0], None, len, site) }
}

unsafe extern "C" fn slow_pread(
    fd: usize,
    base: usize,
    len: usize,
    offset: usize,
    _: usize,
    site: usize,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { one(Op::Pread, [fd, base, len, offset, 0], Some(offset), len, site) }
}

unsafe extern "C" fn slow_read_chk(
    fd: usize,
    base: usize,
    len: usize,
    room: usize,
    _: usize,
    site: usize,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { one(Op::ReadChk, [fd, base, len, room, 0], None, room, site) }
}

unsafe extern "C" fn slow_pread_chk(
    fd: usize,
    base: usize,
    len: usize,
    offset: usize,
    room: usize,
    site: usize,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { one(Op::PreadChk, [fd, base, len, offset, room], Some(offset), room, site) }
}

unsafe extern "C" fn slow_readv(
    fd: usize,
    at: usize,
    count: usize,
    _: usize,
    _: usize,
    site: usize,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { list(Op::Readv, [fd, at, count, 0, 0], None, 0, site) }
}

unsafe extern "C" fn slow_preadv(
    fd: usize,
    at: usize,
    count: usize,
    offset: usize,
    _: usize,
    site: usize,
) -> isize {
    // SAFETY: the program's own call.
    unsafe { list(Op::Preadv, [fd, at, count, offset, 0], Some(offset), 0, site) }
}

unsafe extern "C" fn slow_preadv2(
    fd: usize,
    at: usize,
    count: usize,
    offset: usize,
    flags: usize,
    site: usize,
) -> isize {
    let position = (offset != usize::MAX).then_some(offset);
    // SAFETY: the program's own call.
    unsafe {
        list(Op::Preadv2, [fd, at, count, offset, flags], position, flags as u32 as usize, site)
    }
}

macro_rules! streams {
    ($($name:ident: $op:ident, $checked:ident: $checked_op:ident;)*) => { $(
        unsafe extern "C" fn $name(to: usize, size: usize, count: usize, stream: usize, _: usize, site: usize) -> usize {
            // SAFETY: the program's own call.
            unsafe { runtime::read_stream(&StreamCall { op: Op::$op, to, size, count, stream, site }) }
        }

        unsafe extern "C" fn $checked(to: usize,
            room: usize,
            size: usize,
            count: usize,
            stream: usize, site: usize) -> usize {
            if size.checked_mul(count).is_none_or(|bytes| bytes > room) {
                type Checked = unsafe extern "C" fn(usize, usize, usize, usize, usize) -> usize;
                let next = crate::backend::libc::next(Op::$checked_op);
                // SAFETY: the program's own call, passed on: libc ends the program.
                return unsafe {
                    core::mem::transmute::<*mut core::ffi::c_void, Checked>(next)(
                        to, room, size, count, stream,
                    )
                };
            }
            // SAFETY: the program's own call.
            unsafe {
                let op = Op::$checked_op;
                runtime::read_stream(&StreamCall { op, to, size, count, stream, site })
            }
        }
    )* };
}

streams! {
    slow_fread: Fread, slow_fread_chk: FreadChk;
    slow_fread_unlocked: FreadUnlocked, slow_fread_unlocked_chk: FreadUnlockedChk;
}
