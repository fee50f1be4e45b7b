//! The calls of CUDA's libraries that copy between memory of the program and a card. Each passes its
//! return address on: the original is that of the code which calls.

#![allow(non_snake_case)] // names of CUDA's libraries

use crate::backend::card::staging::{CardCall, CardFunction};
use crate::os::arch;
use crate::runtime::DISPATCHER;
use core::arch::naked_asm;
use core::ffi::c_int;

/// Values of cudaMemcpyKind.
const TO_CARD: u32 = 1;
const FROM_CARD: u32 = 2;

/// Exports functions with at most five arguments: the call site becomes the sixth.
macro_rules! in_registers {
    ($($name:ident: $as:ident;)*) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                arch::jump_with_site_sixth!("{large}"),
                ".cfi_endproc",
                large = sym large::$name,
            )
        }
    )*
        mod large {
            use super::*;
            $(pub unsafe extern "C" fn $name(
                a: usize, b: usize, c: usize, d: usize, e: usize, site: usize,
            ) -> c_int {
                let arguments = [a, b, c, d, e, 0, 0, 0];
                // SAFETY: the program's own call of this function.
                unsafe { DISPATCHER.card(&$as(CardFunction::$name, arguments, site)) as c_int }
            })*
        }
    };
}

in_registers! {
    cudaMemcpy: runtime_copy;
    cudaMemcpy_ptds: runtime_copy;
    cudaMemcpyAsync: runtime_copy_on_stream;
    cudaMemcpyAsync_ptsz: runtime_copy_on_stream;
    cuMemcpyHtoD_v2: copy_to_card;
    cuMemcpyHtoD_v2_ptds: copy_to_card;
    cuMemcpyHtoDAsync_v2: copy_to_card_on_stream;
    cuMemcpyHtoDAsync_v2_ptsz: copy_to_card_on_stream;
    cuMemcpyDtoH_v2: copy_from_card;
    cuMemcpyDtoH_v2_ptds: copy_from_card;
    cuMemcpyDtoHAsync_v2: copy_from_card_on_stream;
    cuMemcpyDtoHAsync_v2_ptsz: copy_from_card_on_stream;
}

/// Exports functions with seven or eight arguments.
macro_rules! on_stack {
    ($($name:ident $has_stream:literal;)*) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                arch::call_with_site_ninth!(),
                ".cfi_endproc",
                large = sym rows::$name,
            )
        }
    )*
        mod rows {
            use super::*;
            $(#[allow(clippy::too_many_arguments)] // as CUDA has them
            pub unsafe extern "C" fn $name(
                a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, h: usize,
                site: usize,
            ) -> c_int {
                let stream = if $has_stream { h } else { 0 };
                let call = copy_of_rows(CardFunction::$name, [a, b, c, d, e, f, g, h], stream, site);
                // SAFETY: the program's own call of this function.
                unsafe { DISPATCHER.card(&call) as c_int }
            })*
        }
    };
}

on_stack! {
    cudaMemcpy2D false;
    cudaMemcpy2D_ptds false;
    cudaMemcpy2DAsync true;
    cudaMemcpy2DAsync_ptsz true;
}

type Arguments = [usize; 8];

fn runtime_copy(function: CardFunction, arguments: Arguments, site: usize) -> CardCall {
    let [dst, src, len, direction, ..] = arguments;
    let direction = direction as u32;
    CardCall { function, arguments, site, dst, src, len, direction, stream: 0 }
}

fn runtime_copy_on_stream(function: CardFunction, arguments: Arguments, site: usize) -> CardCall {
    let [_, _, _, _, stream, ..] = arguments;
    CardCall { stream, ..runtime_copy(function, arguments, site) }
}

fn copy_to_card(function: CardFunction, arguments: Arguments, site: usize) -> CardCall {
    CardCall { direction: TO_CARD, ..runtime_copy(function, arguments, site) }
}

fn copy_to_card_on_stream(function: CardFunction, arguments: Arguments, site: usize) -> CardCall {
    let [_, _, _, stream, ..] = arguments;
    CardCall { stream, ..copy_to_card(function, arguments, site) }
}

fn copy_from_card(function: CardFunction, arguments: Arguments, site: usize) -> CardCall {
    CardCall { direction: FROM_CARD, ..runtime_copy(function, arguments, site) }
}

fn copy_from_card_on_stream(function: CardFunction, arguments: Arguments, site: usize) -> CardCall {
    let [_, _, _, stream, ..] = arguments;
    CardCall { stream, ..copy_from_card(function, arguments, site) }
}

/// Rows that do not follow each other are left to the original, as a copy of no length is.
fn copy_of_rows(
    function: CardFunction,
    arguments: Arguments,
    stream: usize,
    site: usize,
) -> CardCall {
    let [dst, dst_pitch, src, src_pitch, width, height, direction, _] = arguments;
    let is_whole = width == dst_pitch && width == src_pitch;
    let len = if is_whole { width.checked_mul(height).unwrap_or(0) } else { 0 };
    let direction = direction as u32;
    CardCall { function, arguments, site, dst, src, len, direction, stream }
}
