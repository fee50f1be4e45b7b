//! adma carries the large memory copies of unmodified programs over copy channels.
//!
//! CONTRIBUTING.md follows copies, a cached read, a message and a report through the files. What each
//! module is for; imports go down this list and never up:
//!
//! ```text
//! intercept   the C library's names; entry: short copies leave by tail jump; slow: large ones; reads:
//!             of files; remote: between processes; card: CUDA's names; filters, leave, memory,
//!             signals: calls that must be noted; alone: calls before which workers leave
//! api         our own names, include/adma.h: validation only; those of messages are in ipc/calls
//! runtime     the one global: start, fork, exit; figures: the numbers of its report
//! check       what the machine offers, for `adma check`
//! dispatch    decide: which way a large call takes; perform: takes it; completion: records it;
//!             operation: what can be shared; reads, card: which reads of files and copies to a card
//!             are; engine: its life; background: asynchronous copies; callers: how many copy at once;
//!             look: where the bytes of a copy are
//! learn       which way costs the program least; cell: for calls of one kind; marks: whether huge
//!             pages pay
//! stats       lock-free counters of large calls, in a live file; modules: whose code an address is;
//!             snapshot: all data of a report; report: writes it, by json and text
//! config      the settings (their table: shared/); environment: reads them; programs: which are
//!             left out
//! ipc         messages between processes in one copy; its own map is in ipc/mod.rs
//! backend     asynchronous/  copies that their caller does not wait for: begin, end;
//!                            per_process: the tag of its cookies, and the descriptor to poll
//!             card/          staging: copies of the program between its memory and a graphics card, by
//!                            pinned buffers (ring), in place of its own calls (originals); driver:
//!                            what is common to all that calls the card's driver
//!             gpu/           a graphics card's copy engines in loopback; slots: from the hook to the
//!                            thread that calls the driver; service: that thread; registrations:
//!                            memory the card may reach; wishes: what is worth registering; watch:
//!                            how we learn that such memory has gone; driver: its calls; submit:
//!                            one copy to it; lead: when a sleeping caller wakes up; exports: calls
//!                            of the program that register memory; unavailable: why there is none;
//!                            counts, report, check: its figures
//!             ioat/          one copy by the kernel helper; words: how its channels signal the end;
//!                            helper: its file and calls; piece_lists: a request as the kernel reads
//!                            it; queues: channels by driver; across: to another process; fake: a
//!                            helper for tests; counts, report, check: its figures
//!             kernel_calls/  system calls that copy; kernel_work: their pieces; remote: one shared
//!                            transfer between processes, table_threads: how many take part; reads:
//!                            one shared read of a file; streams: of fread; segments: lists of
//!                            buffers
//!             threads/       share: one shared copy; worker: one thread, from clone to exit;
//!                            workers: all of them; watch: the one that watches over callers; queue:
//!                            which piece is claimed; cookies: asynchronous copies;
//!                            piece: one claimed piece; task: what is done with its memory;
//!                            parallel: the same function on every CPU; refusal: what the system
//!                            refuses is tried again
//!             signals/       our handler in front of the program's, for bad pages; calls: the
//!                            program's own sigaction and its relatives
//!             engine/        the trait of engines that copy by themselves, and what they share;
//!                            request: an asynchronous one; stretch: a long copy, part by
//!                            part; tuning: estimates from past copies
//!             mode: all bits of a copy's mode word; piece_end: how a piece ended; copy_loop: how
//!             bytes move; alone: streaming stores of a caller without help; libc: the originals
//! plan        overlap, head / body / tail, pieces: pure arithmetic
//! functions   what we stand in front of, and what the entry code of each reads
//! os          arch/          what depends on the instruction set: instructions, entries: naked functions,
//!                            loops: of copies
//!             cpus: what the machine leaves us; memory_policy: on which node the caller's new pages
//!             come; file: what is known of an open file; brief_file: files that a call opens and
//!             closes; mappings: as the kernel shows them; huge_pages: for fresh memory; remap: of
//!             what that has split; real_time: callers that must not wait; process: whose memory this
//!             is; sync: atomics and sleeping; lock: one to wait for, and one that is only tried; mapped:
//!             values that begin as zeros; lookup: finding functions of the C library; folder: where
//!             live files are; signal_mask: signals that are held during a copy; signal_set: sets of
//!             them, and their calls; deferred: those that wait for the end of a copy; holders: threads
//!             whose signals wait, and that may hang; text: made without allocating; standard_error: the
//!             one the program started with; once, thread: as their names say; sys: system calls
//! freestanding  why the standard library is not there; export: names with versions
//! interleavings, models: of lock-free parts, for loom
//! ```
//!
//! Law of this library, cited as "the hook's law": between a program's call of memcpy and
//! our return we do not allocate, block on a lock, panic, log, or touch errno or
//! thread-local storage. Worker threads have no thread-local storage at all.

// Test executables have the standard library; see `freestanding`.
#![cfg_attr(not(any(test, loom)), no_std)]
// Test executables hold the parts without the whole, loom's only the claiming protocol.
#![cfg_attr(any(test, loom), allow(dead_code, unused_macros))]

#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_env = "gnu",
    target_endian = "little"
)))]
compile_error!(
    "adma interposes glibc's memcpy on x86-64 and aarch64 Linux; other systems have no port yet"
);

extern crate alloc;

#[cfg_attr(loom, path = "backend/models.rs")]
mod backend;
#[cfg(all(test, loom))]
mod interleavings;
#[cfg_attr(loom, path = "ipc/models.rs")]
mod ipc;
#[cfg_attr(loom, path = "os/loom.rs")]
mod os;
mod plan;

// Under loom only the claiming protocol is built: its atomics are loom's.
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod dispatch;
#[cfg(not(loom))]
mod functions;
#[cfg(not(loom))]
mod learn;
#[cfg(not(loom))]
mod stats;

// Exports stay out of test executables: they would replace the harness's own memcpy.
#[cfg(not(any(test, loom)))]
mod api;
#[cfg(not(any(test, loom)))]
mod check;
#[cfg(not(any(test, loom)))]
mod export;
#[cfg(not(any(test, loom)))]
mod freestanding;
#[cfg(not(any(test, loom)))]
mod intercept;
#[cfg(not(any(test, loom)))]
mod runtime;
