//! The handler itself, in assembly, so that the program's handler gets everything as the kernel
//! gave it to us.
//!
//! For signals that are not ours it jumps to the program's function with the same registers (except those
//! that are scratch) and the same stack: the function returns to the restorer, and an unwinder sees the usual
//! frames. It uses no stack, because an alternate stack may be small. The registers are named in `os::arch`.

use super::{BUS, DISPOSITIONS, HandlerSlot, RESETHAND, SEGV, SLOTS, SignalChain, exchange};
use crate::backend::copy_loop;
use crate::os::arch::{self, Ucontext};
use crate::os::deferred;
use crate::os::once::Once;
use crate::os::signal_mask::SignalsHeld;
use crate::os::signal_set::{OF_THE_C_LIBRARY, block_signal, signal_set};
use crate::os::{holders, process};
use core::mem::offset_of;

const CODE: usize = offset_of!(libc::siginfo_t, si_code);

macro_rules! handlers {
    ($($name:ident, $all:ident before $chain:ident;)*) => { $(
        #[unsafe(naked)]
        unsafe extern "C" fn $name<const SLOT: usize>() {
            arch::signal_handler!(
                code = const CODE,
                end_loop = sym end_loop,
                of_the_c_library = const OF_THE_C_LIBRARY,
                unusual = sym unusual,
                chain = sym $chain,
                next = const next_of(SLOT),
                slot = const SLOT,
            )
        }

        pub const $all: [unsafe extern "C" fn(); SLOTS] = [
            $name::<0>, $name::<1>, $name::<2>, $name::<3>,
            $name::<4>, $name::<5>, $name::<6>, $name::<7>,
        ];
    )* };
}

handlers! {
    on_sigsegv, ON_SIGSEGV before SEGV;
    on_sigbus, ON_SIGBUS before BUS;
}

/// Returns the offset of a slot's `next` in its `SignalChain`.
const fn next_of(slot: usize) -> usize {
    offset_of!(SignalChain, slots) + slot * size_of::<HandlerSlot>() + offset_of!(HandlerSlot, next)
}

/// Handles a fault in a copy loop: the interrupted code goes on where the loop ends.
#[unsafe(naked)]
unsafe extern "C" fn end_loop() {
    arch::end_loop!(after = sym after)
}

/// Returns where code at `ip` goes on: between the loops lies nothing that can fault.
extern "C" fn after(ip: usize) -> usize {
    copy_loop::recover(ip).unwrap_or(ip)
}

/// Asks `decide`, and then returns or jumps to the program's function. A register holds the slot's number.
#[unsafe(naked)]
pub unsafe extern "C" fn unusual() {
    arch::unusual_signal!(decide = sym decide)
}

/// Decides the rare cases. Returns the function that is to run, or 0: return from the signal.
unsafe extern "C" fn decide(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut Ucontext,
    slot: usize,
) -> usize {
    // SAFETY: the kernel's, on the stack of this handler.
    let (info, context) = unsafe { (&*info, &mut *context) };
    let is_sent = info.si_code <= 0;
    if is_sent && is_in_shared_copy(context) {
        if holders::is_interrupt(info) {
            interrupt(context);
        } else {
            deferred(signal, info, context);
        }
        return 0;
    }
    let function = SignalChain::of(signal).and_then(|chain| function_to_run(chain, slot));
    if function.is_none() && !comes_again(signal, info) {
        send_to_oneself(signal, info);
    }
    function.unwrap_or(0)
}

/// Returns the program's function. `None`: it has the default action, left to the kernel.
fn function_to_run(chain: &SignalChain, slot: usize) -> Option<usize> {
    // A handler that interrupted the holder of the lock could deadlock.
    let _held = SignalsHeld::all();
    let is_ours = process::is_ours();
    let _lock = is_ours.then(|| DISPOSITIONS.lock());
    let slot = chain.slots.get(slot)?;
    let program = slot.program();
    let mut reset = program;
    reset.handler = libc::SIG_DFL;
    if !program.is_function() {
        if is_ours {
            POOL.get().inspect(|pool| (pool.let_pieces_end)());
        }
        let _ = exchange(chain.signal, &reset);
        return None;
    }
    // Like the kernel, before the handler is called: of two threads that fault at once only one
    // gets there.
    if program.flags & RESETHAND != 0 && is_ours {
        slot.note(&reset);
    } else if program.flags & RESETHAND != 0 {
        let _ = exchange(chain.signal, &reset); // in a child: the table of its own
    }
    Some(program.handler)
}

/// Returns whether the instruction, run again, raises the signal again: then everything is as
/// without us, even the kernel's log.
fn comes_again(signal: i32, info: &libc::siginfo_t) -> bool {
    const SI_KERNEL: i32 = 0x80; // no address: a general protection fault, a bad sigreturn
    const BUS_MCEERR_AO: i32 = 5; // a memory error elsewhere
    let elsewhere = signal == libc::SIGBUS && info.si_code == BUS_MCEERR_AO;
    info.si_code > 0 && info.si_code != SI_KERNEL && !elsewhere
}

/// Returns whether the thread shares a copy: its mask then blocks the C library's own two signals,
/// which no program can block.
fn is_in_shared_copy(context: &Ucontext) -> bool {
    context.mask & OF_THE_C_LIBRARY == OF_THE_C_LIBRARY
}

/// What the handler asks of the pool of workers, which is above it and registers this at start-up.
#[derive(Clone, Copy)]
pub struct WorkerPool {
    /// Returns whether a stack pointer is a worker's.
    pub is_worker_stack: fn(usize) -> bool,
    /// Waits until no worker has a piece, or for a while.
    pub let_pieces_end: fn(),
    /// Has every worker end when it has finished its piece.
    pub send_away: fn(),
}

#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
pub static POOL: Once<WorkerPool> = Once::new();

fn is_worker_stack(sp: usize) -> bool {
    POOL.get().is_some_and(|pool| (pool.is_worker_stack)(sp))
}

/// Handles an interruption of a thread that hangs in a page fault. If a signal waits for it, its
/// copy loop ends as at a bad page, and the caller goes on alone with signals let in.
fn interrupt(context: &mut Ucontext) {
    if is_worker_stack(context.stack) || holders::note_interrupt(context.mask) {
        let ip = context.instruction;
        context.instruction = copy_loop::recover(ip).unwrap_or(ip);
    }
}

/// Defers a signal that was sent while its thread shares a copy. The program's handler could jump
/// out of the copy while others write, so the signal waits like all others.
fn deferred(signal: i32, info: &libc::siginfo_t, context: &mut Ucontext) {
    let is_worker = is_worker_stack(context.stack);
    if is_worker {
        // Sent to the process, and blocked by all threads of the program: it goes back when this
        // worker blocks it.
        POOL.get().inspect(|pool| (pool.send_away)());
    }
    if !deferred::note(signal, info) {
        // No room. Blocked, it stays pending in the kernel, and bad pages go unnoticed.
        context.mask |= signal_set(signal);
        if let Some(ip) = copy_loop::recover(context.instruction) {
            context.instruction = ip;
        }
        if is_worker {
            block_signal(signal);
            deferred::send_to_process(signal, info);
        } else {
            send_to_oneself(signal, info);
        }
    }
}

/// Sends the signal again: it comes when this handler has returned and the mask allows it.
fn send_to_oneself(signal: i32, info: &libc::siginfo_t) {
    block_signal(signal); // with SA_NODEFER it would come at once
    deferred::send_to_oneself(signal, info);
}
