//! Naked functions of x86-64.

/// Names the register of an argument.
macro_rules! argument {
    (second) => {
        "rsi"
    };
    (third) => {
        "rdx"
    };
    (fourth) => {
        "rcx"
    };
}

/// Jumps to a function: `concat!(jump!(), " {function}")`.
macro_rules! jump {
    () => {
        "jmp"
    };
}

/// An instruction that is never reached.
macro_rules! trap {
    () => {
        "ud2"
    };
}

/// Jumps to the original, with operands `entries` and `next`.
macro_rules! jump_to_next {
    () => {
        "jmp qword ptr [rip + {entries} + {next}]"
    };
}

/// An entry: to `slow` if the argument has reached the threshold. `entries`, `min`, `next`, `slow`.
macro_rules! memory_entry {
    ($length:ident) => {
        concat!(
            "cmp ",
            $crate::os::arch::argument!($length),
            ", qword ptr [rip + {entries} + {min}]
            jae {slow}
            jmp qword ptr [rip + {entries} + {next}]"
        )
    };
}

/// Jumps to 2 if the bytes that a file call asks for reach the threshold: an argument, a product of two,
/// which above 64 bits wraps, as it does in libc; or a list, which only the slow path sums up
/// (`functions::NEVER` is -1). `entries`, `min`.
macro_rules! compare_bytes {
    ((list)) => {
        "cmp qword ptr [rip + {entries} + {min}], -1\njne 2f"
    };
    (($length:ident)) => {
        concat!("cmp ", $crate::os::arch::argument!($length), ", [rip + {entries} + {min}]\njae 2f")
    };
    (($size:ident * $count:ident)) => {
        concat!(
            "mov rax, ",
            $crate::os::arch::argument!($size),
            "\nimul rax, ",
            $crate::os::arch::argument!($count),
            "\ncmp rax, [rip + {entries} + {min}]\njae 2f"
        )
    };
}

/// Jumps to a function with the call site as its sixth argument, given as the template's name for it.
macro_rules! jump_with_site_sixth {
    ($function:literal) => {
        concat!("mov r9, [rsp]\njmp ", $function)
    };
}

/// Calls `slow` with the call site as its seventh argument.
macro_rules! call_with_site_seventh {
    () => {
        "push rbp
        .cfi_def_cfa_offset 16
        .cfi_offset rbp, -16
        mov rbp, rsp
        .cfi_def_cfa_register rbp
        sub rsp, 16
        and rsp, -16
        mov rax, [rbp + 8]
        mov [rsp], rax
        call {slow}
        leave
        .cfi_def_cfa rsp, 8
        ret"
    };
}

/// Calls `large` with the call site as its ninth argument: the two on the stack are pushed again, behind
/// it.
macro_rules! call_with_site_ninth {
    () => {
        "mov rax, [rsp]
        push rax
        .cfi_adjust_cfa_offset 8
        push [rsp + 24]
        .cfi_adjust_cfa_offset 8
        push [rsp + 24]
        .cfi_adjust_cfa_offset 8
        call {large}
        add rsp, 24
        .cfi_adjust_cfa_offset -24
        ret"
    };
}

/// Calls `large` with the call site as its fifth argument, and an aligned stack.
macro_rules! call_aligned {
    () => {
        "mov r8, [rsp]
        push rbp
        .cfi_def_cfa_offset 16
        .cfi_offset rbp, -16
        mov rbp, rsp
        .cfi_def_cfa_register rbp
        and rsp, -16
        call {large}
        leave
        .cfi_def_cfa rsp, 8
        ret"
    };
}

/// Compares the first 128 bytes: to `slow` if they are equal or cannot be looked at, else to the original.
/// `entries`, `min`, `next`, `slow`.
macro_rules! look {
    () => {
        "cmp qword ptr [rip + {entries} + {min}], 0 # before start-up, and for a profile: all calls
        je {slow}
        cmp rdx, 4096
        jb {slow}
        mov eax, edi
        mov ecx, esi
        and eax, 4095
        and ecx, 4095
        cmp eax, 4096 - 128
        ja {slow}
        cmp ecx, 4096 - 128
        ja {slow}
        xor ecx, ecx
        2:
        movdqu xmm0, [rdi + rcx]
        movdqu xmm4, [rsi + rcx]
        movdqu xmm1, [rdi + rcx + 16]
        movdqu xmm5, [rsi + rcx + 16]
        movdqu xmm2, [rdi + rcx + 32]
        movdqu xmm6, [rsi + rcx + 32]
        movdqu xmm3, [rdi + rcx + 48]
        movdqu xmm7, [rsi + rcx + 48]
        pcmpeqb xmm0, xmm4
        pcmpeqb xmm1, xmm5
        pcmpeqb xmm2, xmm6
        pcmpeqb xmm3, xmm7
        pand xmm0, xmm1
        pand xmm2, xmm3
        pand xmm0, xmm2
        pmovmskb eax, xmm0
        cmp eax, 0xffff
        jne 3f
        xor ecx, 64
        jnz 2b
        jmp {slow}
        3:
        jmp qword ptr [rip + {entries} + {next}]"
    };
}

/// libc's syscall: jumps to `filter` for the numbers `seccomp`, `prctl` and `madvise`, else to `next`.
macro_rules! syscall_entry {
    () => {
        "cmp rdi, {seccomp}
        je {filter}
        cmp rdi, {prctl}
        je {filter}
        cmp rdi, {madvise}
        je {filter}
        jmp qword ptr [rip + {next}]"
    };
}

/// Calls `find`, and jumps to the function that it returns with the arguments as they came.
macro_rules! find_and_jump {
    () => {
        "push rdi
        push rsi
        push rdx
        push rcx
        push r8
        push r9
        sub rsp, 8
        .cfi_adjust_cfa_offset 56
        call {find}
        add rsp, 8
        pop r9
        pop r8
        pop rcx
        pop rdx
        pop rsi
        pop rdi
        .cfi_adjust_cfa_offset -56
        jmp rax"
    };
}

/// Changes the arguments of one function into those of another.
macro_rules! change_arguments {
    (swapped) => {
        "xchg rdi, rsi"
    };
    (wide) => {
        "shl rdx, 2"
    };
    (zeros) => {
        "mov rdx, rsi\nxor esi, esi"
    };
    // rcx is the room at the destination. An overflow ends the program. Another C library has no
    // such function, and its programs do not call the checked variants.
    (checked) => {
        ".weak __chk_fail\ncmp rcx, rdx\njae 3f\njmp [rip + __chk_fail@GOTPCREL]\n3:"
    };
    (checked_fifth) => {
        concat!("xchg rcx, r8\n", $crate::os::arch::change_arguments!(checked), "\nmov rcx, r8")
    };
    // The checked variants of fread take the room at the destination as their second argument: rdx
    // and rcx are size and number of the items.
    (checked_items) => {
        ".weak __chk_fail
        mov r9, rdx
        mov rax, rdx
        mul rcx
        jo 2f
        cmp rsi, rax
        jae 3f
        2: jmp [rip + __chk_fail@GOTPCREL]
        3: mov rsi, r9
        mov rdx, rcx
        mov rcx, r8"
    };
}

/// Hands to a macro what serves until libc's functions are known: see `bootstrap` in backend/libc.rs.
macro_rules! bootstrap_functions {
    ($macro:ident) => {
        $macro! {
            // rdi, rsi, rdx as memmove; rax is kept. Copies from the end where the destination is inside
            // the source.
            move_bytes: "mov rcx, rdx", "mov r8, rdi", "sub r8, rsi", "cmp r8, rdx", "jb 2f",
                "rep movsb", "ret",
                "2:", "lea rdi, [rdi + rdx - 1]", "lea rsi, [rsi + rdx - 1]",
                "std", "rep movsb", "cld", "ret";
            bootstrap_memmove: "mov rax, rdi" => move_bytes;
            bootstrap_mempcpy: "lea rax, [rdi + rdx]" => move_bytes;
            bootstrap_memset: "mov eax, esi", "mov rcx, rdx",
                "mov r8, rdi", "rep stosb", "mov rax, r8", "ret";
            bootstrap_wmemset: "mov eax, esi", "mov rcx, rdx",
                "mov r8, rdi", "rep stosd", "mov rax, r8", "ret";
            // The kernel takes the flags after an offset in two halves, of which 64-bit programs use the
            // first.
            bootstrap_preadv2: "mov r9, r8" => bootstrap_preadv2_of_six;
        }
    };
}

/// The first frame of a worker, which has no caller: backtraces end here. Calls `work` with the number
/// from `clone_thread`.
macro_rules! first_frame {
    () => {
        ".cfi_undefined rip
        xor ebp, ebp
        sub rsp, 16 # perf does not read the last word of a stack
        .cfi_adjust_cfa_offset 16
        mov rdi, r12
        call {work}
        ud2"
    };
}

/// A signal handler, see `backend::signals::handler`: rdi the signal, rsi the siginfo, rdx the context, and
/// the restorer to return to on the stack. r11 is scratch.
macro_rules! signal_handler {
    ($($operands:tt)*) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "endbr64",
            "mov r10, [rdx + {rip}]",
            "lea r11, [rip + adma_loops_begin]",
            "cmp r10, r11",
            "jb 2f",
            "lea r11, [rip + adma_loop_interrupted]",
            "cmp r10, r11",
            "ja 2f",
            "cmp dword ptr [rsi + {code}], 0",
            "jg {end_loop}",
            // A signal that was sent, while a copy is shared.
            "2:",
            "cmp dword ptr [rsi + {code}], 0",
            "jg 3f",
            "mov r10, [rdx + {mask}]",
            "mov r11, {of_the_c_library}",
            "and r10, r11",
            "cmp r10, r11",
            "je 4f",
            "3:",
            "mov r11, [rip + {chain} + {next}]",
            "lea r10, [rip + {unusual}]",
            "cmp r10, r11",
            "je 4f",
            "mov r10, [rdx + {r10}]",
            "jmp r11",
            "4:",
            "mov r11d, {slot}",
            "jmp {unusual}",
            ".cfi_endproc",
            rip = const Ucontext::INSTRUCTION,
            mask = const core::mem::offset_of!(Ucontext, mask),
            r10 = const Ucontext::offset_of(2),
            $($operands)*
        )
    };
}

/// Ends a loop: the interrupted code goes on where the function `after` says, which is asked with its
/// address in r10.
macro_rules! end_loop {
    ($($operands:tt)*) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "mov rdi, r10",
            "call {after}",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "mov [rdx + {rip}], rax",
            "ret",
            ".cfi_endproc",
            rip = const Ucontext::INSTRUCTION,
            $($operands)*
        )
    };
}

/// Calls `decide` with the handler's arguments and the slot's number in r11, and then returns or jumps to
/// the function that this has returned.
macro_rules! unusual_signal {
    ($($operands:tt)*) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "endbr64",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "mov ecx, r11d",
            "call {decide}",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "test rax, rax",
            "jz 2f",
            "mov rcx, [rdx + {rcx}]",
            "mov r8, [rdx + {r8}]",
            "mov r9, [rdx + {r9}]",
            "mov r10, [rdx + {r10}]",
            "mov r11, rax",
            "xor eax, eax",
            "jmp r11",
            "2: ret",
            ".cfi_endproc",
            rcx = const Ucontext::offset_of(14),
            r8 = const Ucontext::offset_of(0),
            r9 = const Ucontext::offset_of(1),
            r10 = const Ucontext::offset_of(2),
            $($operands)*
        )
    };
}

#[cfg_attr(test, allow(unused_imports))] // test executables have no entries
pub(crate) use {
    argument, bootstrap_functions, call_aligned, call_with_site_ninth, call_with_site_seventh,
    change_arguments, compare_bytes, end_loop, find_and_jump, first_frame, jump, jump_to_next,
    jump_with_site_sixth, look, memory_entry, signal_handler, syscall_entry, trap, unusual_signal,
};
