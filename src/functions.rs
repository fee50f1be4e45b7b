//! The C library's functions that we intercept, and the data that their entry code reads. Their
//! table is shared/src/functions.rs.

pub use adma_shared::functions::CARD;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize};

macro_rules! operations {
    ($($name:ident: $symbols:tt $unit:literal $length:tt $kind:ident::$large:ident $original:tt;)*) => {
        /// The functions we intercept, by their names in the table.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Op { $($name),* }

        impl Op {
            pub const ALL: [Op; [$(Op::$name),*].len()] = [$(Op::$name),*];

            /// Iterates without moving the array, which compilers do by memcpy, that is, by us.
            pub fn all() -> impl Iterator<Item = Op> {
                const { &Self::ALL }.iter().copied()
            }

            pub const fn name(self) -> &'static str {
                match self { $(Op::$name => stringify!($name)),* }
            }

            /// Returns the bytes per counted unit.
            pub const fn unit(self) -> usize {
                match self { $(Op::$name => $unit),* }
            }

            /// Returns whether the kernel copies, so that `KERNEL_CALLS_FROM` applies.
            pub const fn is_kernel_call(self) -> bool {
                match self { $(Op::$name => is_kernel_call!($kind)),* }
            }
        }
    };
}

macro_rules! is_kernel_call {
    (memory) => {
        false
    };
    (compare) => {
        false
    };
    (file) => {
        true
    };
    (transfer) => {
        true
    };
}

adma_shared::intercepted_functions! { operations }

/// Size from which system calls are shared where sizes are learned: each costs a microsecond and more
/// before the first byte moves.
pub const KERNEL_CALLS_FROM: usize = 1 << 20;

/// Data of one exported function: below `min` units it jumps to `next`.
#[repr(C)]
pub struct EntryPoint {
    pub min: AtomicUsize,
    pub next: AtomicPtr<c_void>,
}

/// Returns the offset of a field of one entry in `ENTRIES`, for assembly.
pub const fn min_offset(op: Op) -> usize {
    op as usize * size_of::<EntryPoint>() + core::mem::offset_of!(EntryPoint, min)
}

pub const fn next_offset(op: Op) -> usize {
    op as usize * size_of::<EntryPoint>() + core::mem::offset_of!(EntryPoint, next)
}

/// Threshold larger than any copy: the entry always jumps to `next`.
pub const NEVER: usize = usize::MAX;
