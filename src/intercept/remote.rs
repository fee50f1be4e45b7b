//! The two calls that copy between processes. Their lengths are in lists, which only the slow path
//! reads.

use crate::backend::kernel_calls::remote::TransferCall;
use crate::backend::kernel_calls::segments::SegmentList;
use crate::functions::Op;
use crate::runtime::DISPATCHER;

/// Rust entry points of transfers, with the call site behind the arguments.
pub mod large {
    use crate::functions::Op;

    macro_rules! transfers {
        ($($name:ident: $symbols:tt $unit:literal $length:tt $kind:ident::$large:ident
            $original:tt;)*) => { $( transfer! { $kind $name $large } )* };
    }

    macro_rules! transfer {
        (transfer $name:ident $large:ident) => {
            pub unsafe extern "C" fn $name(
                pid: usize,
                local: usize,
                local_count: usize,
                remote: usize,
                remote_count: usize,
                flags: usize,
                site: usize,
            ) -> isize {
                let arguments = [pid, local, local_count, remote, remote_count, flags];
                // SAFETY: the program's own call of this function.
                unsafe { super::$large(Op::$name, arguments, site) }
            }
        };
        ($other:ident $name:ident $large:ident) => {};
    }

    adma_shared::intercepted_functions! { transfers }
}

unsafe fn share(op: Op, arguments: [usize; 6], site: usize) -> isize {
    let [pid, local, local_count, remote, remote_count, flags] = arguments;
    let local = SegmentList { at: local, count: local_count };
    let remote = SegmentList { at: remote, count: remote_count };
    // SAFETY: the program's own call.
    unsafe { DISPATCHER.transfer(&TransferCall { op, pid, local, remote, flags, site }) }
}
