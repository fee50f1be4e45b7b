//! No unwinder: panics abort, so nothing ever unwinds through this library.
//!
//! The standard library's panic handler would print a backtrace and for that pulls
//! libgcc_s.so into every program, a tenth of the start-up time of a small one. These local
//! symbols satisfy it; a backtrace then simply ends at once. They are hidden: the unwinder
//! of the program is not touched.

use core::arch::global_asm;

global_asm!(
    ".macro no_unwinding name, result",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name:",
    "mov eax, \\result",
    "ret",
    ".size \\name, . - \\name",
    ".endm",
    "no_unwinding _Unwind_Backtrace, 5", // end of stack
    "no_unwinding _Unwind_GetIP, 0",
    "no_unwinding _Unwind_GetIPInfo, 0",
    "no_unwinding _Unwind_GetCFA, 0",
    "no_unwinding _Unwind_GetDataRelBase, 0",
    "no_unwinding _Unwind_GetTextRelBase, 0",
    "no_unwinding _Unwind_GetRegionStart, 0",
    "no_unwinding _Unwind_GetLanguageSpecificData, 0",
    "no_unwinding _Unwind_SetGR, 0",
    "no_unwinding _Unwind_SetIP, 0",
    "no_unwinding _Unwind_FindEnclosingFunction, 0",
    // Who asks for unwinding after all gets the end of the process instead.
    ".globl _Unwind_Resume",
    ".hidden _Unwind_Resume",
    ".type _Unwind_Resume, @function",
    "_Unwind_Resume:",
    "ud2",
    ".size _Unwind_Resume, . - _Unwind_Resume",
    ".purgem no_unwinding",
);
