//! Software channels: worker threads that claim pieces from the board beside the caller.
//!
//! Workers are made with the bare clone system call, for four reasons. pthread_create
//! enters the allocator, and the program may be copying inside its own. glibc would think
//! the program multi-threaded from then on and make its malloc and stdio slower. A program
//! whose main thread leaves by pthread_exit would wait for us for ever. And a library's
//! thread needs nothing of what libc would set up. The price is the law of this file: a
//! worker calls no libc function but memmove, which uses no thread-local storage.
//!
//! An idle worker spins a little, sleeps, and after `IDLE_NANOS` ends. So no thread of ours
//! stands in the way of a program that wants to be alone (unshare, setuid) when it is not
//! copying.

use super::Refused;
use super::board::{Board, End, Posted, Slot};
use super::kernel::Kernel;
use super::libc as original;
use crate::cpus;
use crate::plan::{Cut, PAGE};
use crate::sync::{Ordering, Woken, pause};
use crate::sys::{self, SignalsHeld};
use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

/// How copies are to be carried.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Worker threads, besides the caller; at most `MOST_WORKERS`.
    pub workers: usize,
    pub kernel: Kernel,
    pub wait: Wait,
    /// Part of each copy the caller does alone; `None`: it claims pieces like a worker.
    pub share: Option<f32>,
    pub faults: Faults,
}

/// What is done for a program that handles SIGSEGV or SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// The kernel copies and reports bad pages: right whatever happens meanwhile.
    Strict,
    /// The caller touches every page first, so that a bad one faults there and then. Faster,
    /// and right unless a page goes bad while it is being copied (another thread unmaps it,
    /// another process truncates the file): then the process dies without its handler.
    Touch,
}

/// How the caller waits for pieces that others have begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Spin as long as a piece usually takes, then sleep.
    Auto,
    Spin,
    Yield,
    Sleep,
    Umwait,
}

pub const MOST_WORKERS: usize = 64;

/// Signals are held while a copy is under way: a handler that jumped out of it would leave
/// workers writing. This bounds how long they are held.
const CHUNK: usize = 16 << 20;

/// An idle worker ends after this.
const IDLE_NANOS: u64 = 100_000_000;

/// How long anybody spins before sleeping: about 20 µs, the price of a wake-up.
const SPIN_TICKS: u64 = 50_000;

static BOARD: Board = Board::new();
static WORKERS: [Worker; MOST_WORKERS] = [const { Worker::new() }; MOST_WORKERS];
static ALIVE: AtomicU32 = AtomicU32::new(0);
/// Most workers alive at once; set when the backend starts.
static LIMIT: AtomicU32 = AtomicU32::new(0);
/// The system refused a thread or a futex: nothing is asked of it again.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// Bytes copied by callers in copies that were shared.
static CALLER_BYTES: AtomicU64 = AtomicU64::new(0);
/// Copies in which the caller redid pieces because a page refused.
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// The process all of this belongs to: a vfork child shares our memory and must not make
/// workers, for they would die with it, perhaps in the middle of a piece.
static PID: AtomicI32 = AtomicI32::new(0);
/// The seccomp mode the process started with.
static SECCOMP: AtomicI32 = AtomicI32::new(0);
/// Workers of an earlier crew end at once: they have rights the program has given up.
static CREW: AtomicU32 = AtomicU32::new(0);
/// Under which user number the crew was made; asked only of a program that started as root.
static USER: AtomicI32 = AtomicI32::new(NO_MATTER);
const NO_MATTER: i32 = -1;

#[repr(align(128))]
struct Worker {
    /// 0: no such thread. The kernel clears it when the thread has left its stack.
    tid: AtomicU32,
    crew: AtomicU32,
    bytes: AtomicU64,
    stack: Stack,
}

/// A worker's stack. Its deepest call chain needs a few hundred bytes; no handler ever runs
/// on it because all signals are blocked.
#[repr(align(64))]
struct Stack(UnsafeCell<[u8; Stack::SIZE]>);

// SAFETY: only the worker whose `tid` is set touches the bytes.
unsafe impl Sync for Stack {}

impl Stack {
    const SIZE: usize = 16384;

    fn top(&self) -> usize {
        self.0.get() as usize + Self::SIZE
    }
}

impl Worker {
    const STARTING: u32 = u32::MAX;

    const fn new() -> Self {
        Self {
            tid: AtomicU32::new(0),
            crew: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            stack: Stack(UnsafeCell::new([0; Stack::SIZE])),
        }
    }
}

impl Worker {
    fn is_wanted(&self) -> bool {
        self.crew.load(Ordering::Relaxed) == CREW.load(Ordering::Relaxed)
    }
}

/// Notes whose memory this is. At start-up, before anybody copies.
pub fn settle_in() {
    PID.store(sys::getpid(), Ordering::Relaxed);
    SECCOMP.store(sys::seccomp_mode() as i32, Ordering::Relaxed);
    // SAFETY: reads a value the kernel has given the process.
    if unsafe { libc::getauxval(libc::AT_EUID) } == 0 {
        USER.store(sys::geteuid(), Ordering::Relaxed);
    }
}

/// Whether workers may be made: this is not a vfork child, and the program has not installed
/// a seccomp filter since it started, which may kill where we would only be refused.
pub fn may_start() -> Result<(), Refused> {
    if sys::getpid() != PID.load(Ordering::Relaxed) {
        return Err(Refused::NotOurs);
    }
    if sys::seccomp_mode() as i32 != SECCOMP.load(Ordering::Relaxed) {
        return Err(Refused::System);
    }
    Ok(())
}

/// Prepares for up to `workers` threads; none is made before the first copy.
pub fn start(workers: usize) {
    LIMIT.store(workers.min(MOST_WORKERS) as u32, Ordering::Relaxed);
}

/// In the child of a fork nobody works for us any more.
pub fn forget_after_fork() {
    PID.store(sys::getpid(), Ordering::Relaxed);
    BOARD.forget_everything();
    for worker in &WORKERS {
        if worker.tid.load(Ordering::Relaxed) != 0 {
            worker.tid.store(0, Ordering::Relaxed);
        }
        // Read first: a child that never copied should not pay for touching every page.
        if worker.bytes.load(Ordering::Relaxed) != 0 {
            worker.bytes.store(0, Ordering::Relaxed);
        }
    }
    ALIVE.store(0, Ordering::Relaxed);
    CALLER_BYTES.store(0, Ordering::Relaxed);
    FAULTS.store(0, Ordering::Relaxed);
}

/// Bytes by channel: the caller's, then each worker's.
pub fn bytes_by_channel() -> (u64, impl Iterator<Item = u64>) {
    let workers = WORKERS.iter().map(|worker| worker.bytes.load(Ordering::Relaxed));
    (CALLER_BYTES.load(Ordering::Relaxed), workers)
}

/// Copies in which a bad page was left to the caller.
pub fn faults() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// Carries one copy of ranges that do not overlap. After a refusal nothing has been written.
///
/// # Safety
/// As memcpy; a bad page ends as it would in memcpy.
pub unsafe fn copy(dst: usize, src: usize, len: usize, how: &How) -> Result<(), Refused> {
    let mut at = 0;
    while at < len {
        // No small last chunk: the rest goes along when it is less than half of one.
        let chunk = if len - at < CHUNK + CHUNK / 2 { len - at } else { CHUNK };
        // SAFETY: part of the caller's ranges.
        match unsafe { carry(dst + at, src + at, chunk, how) } {
            Ok(()) => at += chunk,
            Err(refused) if at == 0 => return Err(refused),
            Err(_) => {
                // SAFETY: the rest of the caller's ranges.
                unsafe { original::copy(dst + at, src + at, len - at) };
                break;
            }
        }
    }
    Ok(())
}

/// One chunk, from posting to the last byte.
unsafe fn carry(dst: usize, src: usize, len: usize, how: &How) -> Result<(), Refused> {
    if REFUSED.load(Ordering::Relaxed) {
        return Err(Refused::System);
    }
    if user_has_changed() {
        return Err(Refused::Busy);
    }
    let mut held = SignalsHeld::all().ok_or(Refused::System)?;
    let manner = Manner::now(how.kernel, how.faults)?;
    if manner.touch != Touch::Nothing {
        // Faults come here, before anybody else has begun; signals must come too.
        drop(held);
        // SAFETY: the caller's ranges.
        unsafe { manner.touch.pages(dst, src, len) };
        held = SignalsHeld::all().ok_or(Refused::System)?;
    }
    let slot = BOARD.take().ok_or(Refused::Busy)?;
    // Workers are for CPUs that nobody else uses: with a caller on every other one there is
    // none left for a helper each.
    if BOARD.copies() > how.workers.div_ceil(2) {
        BOARD.leave(slot);
        return Err(Refused::Busy);
    }

    let alone = how.share.map_or(0, |share| (len as f64 * f64::from(share)) as usize).min(len);
    let cut = Cut::new(dst + alone, len - alone, how.workers + 1);
    if alone < len {
        let copy = Posted { dst: dst + alone, src: src + alone, cut, manner: manner.pack() };
        BOARD.post(slot, &copy);
        summon(1);
    }
    // SAFETY: the caller's ranges; bad pages are `Manner`'s business.
    let done_alone = alone == 0 || unsafe { manner.kernel.copy(dst, src, alone) };
    let mut own = alone;
    if how.share.is_some() {
        leave_to_others(slot, &mut own);
    }
    while let Some((copy, index, _)) = slot.claim(End::Front) {
        own += copy_piece(slot, &copy, index, manner.kernel);
    }
    wait(slot, how.wait);
    let failed = slot.failed();
    BOARD.leave(slot);
    CALLER_BYTES.fetch_add(own as u64, Ordering::Relaxed);

    // Nobody writes any more and signals come again: whatever could not be copied faults
    // now, in the program's thread, as it would have without us.
    drop(held);
    if !done_alone || !failed.is_empty() {
        FAULTS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: parts of the caller's ranges.
    unsafe {
        if !done_alone {
            original::copy(dst, src, alone);
        }
        if !failed.is_empty() {
            let (from, last) = (cut.piece(failed.start), cut.piece(failed.end - 1));
            let (start, end) = (alone + from.offset, alone + last.offset + last.len);
            original::copy(dst + start, src + start, end - start);
        }
    }
    Ok(())
}

fn copy_piece(slot: &Slot, copy: &Posted, index: usize, kernel: Kernel) -> usize {
    let piece = copy.cut.piece(index);
    // SAFETY: claimed, so the poster waits for us inside its memcpy, whose ranges these are.
    let done = unsafe { kernel.copy(copy.dst + piece.offset, copy.src + piece.offset, piece.len) };
    slot.finish(index, done);
    piece.len
}

/// With a fixed share the rest is for the workers. When none of them takes a piece for a
/// while, the caller does: no copy depends on another thread being scheduled.
fn leave_to_others(slot: &Slot, own: &mut usize) {
    let mut since = sys::ticks();
    while slot.is_open() {
        if slot.is_busy() {
            since = sys::ticks();
        } else if sys::ticks() - since > 4 * SPIN_TICKS
            && let Some((copy, index, _)) = slot.claim(End::Front)
        {
            *own += copy_piece(slot, &copy, index, Manner::unpack(copy.manner).kernel);
        }
        pause();
    }
}

fn wait(slot: &Slot, how: Wait) {
    match how {
        Wait::Sleep => {}
        Wait::Spin => spin_while_busy(slot, u64::MAX),
        Wait::Umwait if cpus::features().umwait => {
            while slot.is_busy() {
                // SAFETY: the CPU has the instruction; it only waits, 100 µs at most by the
                // kernel's default limit.
                unsafe {
                    asm!("umonitor {word}", "xor ecx, ecx", "umwait ecx",
                        word = in(reg) &raw const *slot, out("ecx") _,
                        in("eax") u32::MAX, in("edx") u32::MAX, options(nostack));
                }
            }
        }
        Wait::Yield => {
            while slot.is_busy() {
                sys::yield_now();
            }
        }
        Wait::Auto | Wait::Umwait => spin_while_busy(slot, SPIN_TICKS),
    }
    if slot.is_busy() && !slot.sleep_until_idle() {
        REFUSED.store(true, Ordering::Relaxed);
        spin_while_busy(slot, u64::MAX);
    }
}

fn spin_while_busy(slot: &Slot, most: u64) {
    let begun = sys::ticks();
    while slot.is_busy() && sys::ticks().wrapping_sub(begun) < most {
        pause();
    }
}

/// Calls more workers: wakes those that sleep, or makes them. Each worker that comes calls
/// two again, so that many are up soon and the caller pays for one.
fn summon(count: u32) {
    match BOARD.wake_sleepers(count) {
        Some(true) => {}
        Some(false) => REFUSED.store(true, Ordering::Relaxed),
        None => {
            for _ in 0..count {
                if ALIVE.load(Ordering::Relaxed) < LIMIT.load(Ordering::Relaxed) {
                    spawn();
                }
            }
        }
    }
}

/// setuid of the C library reaches its own threads only. Workers that still have the rights
/// of the user before are sent away, and new ones made when they have gone.
fn user_has_changed() -> bool {
    let before = USER.load(Ordering::Relaxed);
    if before == NO_MATTER || before == sys::geteuid() {
        return false;
    }
    if ALIVE.load(Ordering::Acquire) == 0 {
        USER.store(sys::geteuid(), Ordering::Relaxed);
        return false;
    }
    CREW.fetch_add(1, Ordering::Relaxed);
    BOARD.ring_for_all();
    true
}

fn spawn() {
    match may_start() {
        Ok(()) => {}
        Err(Refused::System) => return REFUSED.store(true, Ordering::Relaxed),
        Err(_) => return,
    }
    let limit = LIMIT.load(Ordering::Relaxed);
    let before = ALIVE.fetch_add(1, Ordering::Relaxed);
    let free = |worker: &&Worker| {
        let (zero, starting) = (0, Worker::STARTING);
        worker.tid.compare_exchange(zero, starting, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let worker = if before < limit { WORKERS.iter().find(free) } else { None };
    let Some(worker) = worker else {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        return;
    };
    worker.crew.store(CREW.load(Ordering::Relaxed), Ordering::Relaxed);
    if clone_thread(worker) < 0 {
        worker.tid.store(0, Ordering::Release);
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        // What the others can do without another one they may.
        LIMIT.fetch_min(before, Ordering::Relaxed);
        if before == 0 {
            REFUSED.store(true, Ordering::Relaxed);
        }
    }
}

/// Signals are held here, by the caller's `SignalsHeld` or because a worker calls: the new
/// thread is born with all of them blocked.
fn clone_thread(worker: &'static Worker) -> sys::Answer {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let tid = worker.tid.as_ptr() as usize;
    let answer;
    // SAFETY: the child starts on a stack of its own, at a 16-byte boundary, with no frame
    // to return to: it calls `work`, which never returns. The parent's registers are kept
    // but for those named.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => answer,
            in("rdi") flags as usize,
            in("rsi") worker.stack.top(),
            in("rdx") tid,
            in("r10") tid,
            in("r8") 0usize,
            in("r12") &raw const *worker,
            in("r13") work as *const (),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// The life of a worker.
extern "C" fn work(me: &'static Worker) -> ! {
    let number = (me as *const Worker as usize - WORKERS.as_ptr() as usize) / size_of::<Worker>();
    set_name(number);
    while me.is_wanted() {
        let heard = BOARD.bell();
        if let Some(slot) = BOARD.find_work(number) {
            help(slot, me);
            continue;
        }
        let begun = sys::ticks();
        while BOARD.bell() == heard && sys::ticks().wrapping_sub(begun) < SPIN_TICKS {
            pause();
        }
        if BOARD.bell() != heard {
            continue;
        }
        match BOARD.sleep(heard, IDLE_NANOS) {
            Woken::LookAgain => {}
            Woken::TimedOut => break,
            Woken::Refused => {
                REFUSED.store(true, Ordering::Relaxed);
                break;
            }
        }
    }
    ALIVE.fetch_sub(1, Ordering::Release);
    // SAFETY: ends this thread only; the kernel clears `tid` when the stack is free again.
    unsafe { asm!("syscall", in("rax") libc::SYS_exit, in("rdi") 0, options(noreturn, nostack)) }
}

fn help(slot: &Slot, me: &Worker) {
    let mut called = false;
    while me.is_wanted()
        && let Some((copy, index, more)) = slot.claim(End::Back)
    {
        if more && !called {
            summon(2);
            called = true;
        }
        let manner = Manner::unpack(copy.manner);
        manner.adopt_rights();
        // Counted before it is over: then the caller may go on, and report.
        me.bytes.fetch_add(copy.cut.piece(index).len as u64, Ordering::Relaxed);
        copy_piece(slot, &copy, index, manner.kernel);
    }
}

/// "adma-N", as tools show it.
fn set_name(number: usize) {
    let mut name = *b"adma-00\0";
    if number < 10 {
        name[5] = b'0' + number as u8;
        name[6] = 0;
    } else {
        name[5] = b'0' + (number / 10) as u8;
        name[6] = b'0' + (number % 10) as u8;
    }
    let option = libc::PR_SET_NAME as usize;
    // SAFETY: a terminated name of at most 16 bytes.
    unsafe { sys::syscall(libc::SYS_prctl, [option, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// How the pieces of one copy are copied: by which kernel, with whose rights.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Manner {
    kernel: Kernel,
    /// The caller's protection-key rights, where the CPU has keys: they belong to the
    /// thread, and a worker must see exactly the memory its caller sees.
    rights: Option<u32>,
    touch: Touch,
}

/// Which pages the caller touches before it posts, so that a bad one faults there and then,
/// in the program's thread, with nothing on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    Nothing,
    /// Reads one byte of every source page.
    Source,
    /// Copies one byte of every page on either side.
    Both,
}

impl Touch {
    /// # Safety
    /// As memcpy.
    unsafe fn pages(self, dst: usize, src: usize, len: usize) {
        let mut at = 0;
        while at < len {
            let rest = |address: usize| PAGE - (address + at) % PAGE;
            // SAFETY: inside the caller's ranges.
            let byte = unsafe { ((src + at) as *const u8).read_volatile() };
            if self == Touch::Both {
                // SAFETY: inside the caller's ranges.
                unsafe { ((dst + at) as *mut u8).write_volatile(byte) };
                at += rest(dst).min(rest(src));
            } else {
                at += rest(src);
            }
        }
    }
}

impl Manner {
    /// Faults belong to the caller. When the program handles SIGSEGV or SIGBUS, nobody may
    /// fault while a copy is on the board, so the kernel copies and reports bad pages.
    fn now(kernel: Kernel, faults: Faults) -> Result<Self, Refused> {
        let keys = cpus::features().protection_keys;
        let handled = sys::handles_faults().ok_or(Refused::System)?;
        if handled && faults == Faults::Strict {
            // Of the two sides the kernel looks at the keys of one only, the destination.
            let touch = if keys { Touch::Source } else { Touch::Nothing };
            // Asked anew each time: a child of a bare fork has another number than it knows.
            let kernel = Kernel::NoFault { pid: sys::getpid() };
            return Ok(Self { kernel, rights: keys.then(read_rights), touch });
        }
        let touch = if handled { Touch::Both } else { Touch::Nothing };
        Ok(Self { kernel, rights: keys.then(read_rights), touch })
    }

    fn adopt_rights(self) {
        if let Some(rights) = self.rights.filter(|&rights| rights != read_rights()) {
            // SAFETY: only exists where the CPU has keys. The caller runs with these rights
            // and can reach its stack and our data, so a worker can too.
            unsafe {
                asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0,
                    options(nostack, preserves_flags));
            }
        }
    }

    /// rights: 32 bits | process number: 22 bits, as the kernel's | has rights | kernel: 2 bits
    fn pack(self) -> usize {
        let (kind, pid) = match self.kernel {
            Kernel::Libc => (0, 0),
            Kernel::Movsb => (1, 0),
            Kernel::Stream => (2, 0),
            Kernel::NoFault { pid } => (3, pid as usize & 0x3f_ffff),
        };
        let has_rights = usize::from(self.rights.is_some());
        (self.rights.unwrap_or(0) as usize) << 32 | pid << 3 | has_rights << 2 | kind
    }

    fn unpack(packed: usize) -> Self {
        let kernel = match packed & 3 {
            0 => Kernel::Libc,
            1 => Kernel::Movsb,
            2 => Kernel::Stream,
            _ => Kernel::NoFault { pid: (packed >> 3 & 0x3f_ffff) as i32 },
        };
        let rights = (packed & 4 != 0).then_some((packed >> 32) as u32);
        Self { kernel, rights, touch: Touch::Nothing }
    }
}

/// The protection-key rights of this thread. Only where the CPU has keys.
fn read_rights() -> u32 {
    let rights;
    // SAFETY: callers have checked the CPU; reads one register.
    unsafe {
        asm!("rdpkru", out("eax") rights, in("ecx") 0, out("edx") _,
            options(nomem, nostack, preserves_flags));
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manner_survives_packing() {
        let last = Kernel::NoFault { pid: (1 << 22) - 1 };
        for kernel in [Kernel::Libc, Kernel::Movsb, Kernel::Stream, last] {
            for rights in [None, Some(0), Some(u32::MAX)] {
                let manner = Manner { kernel, rights, touch: Touch::Nothing };
                assert_eq!(Manner::unpack(manner.pack()), manner);
            }
        }
    }

    #[test]
    fn copies_of_many_threads_are_right_with_every_way_to_wait() {
        original::resolve();
        settle_in();
        start(3);
        let waits = [Wait::Auto, Wait::Spin, Wait::Yield, Wait::Sleep, Wait::Umwait];
        std::thread::scope(|scope| {
            for number in 0..6usize {
                scope.spawn(move || {
                    for round in 0..60 {
                        let len = 70_000 + round * 4999 + number;
                        let source: Vec<u8> =
                            (0..len).map(|i| (i * 31 + number + round) as u8).collect();
                        let mut target = vec![0u8; len + 2];
                        let how = How {
                            workers: 3,
                            kernel: Kernel::Libc,
                            wait: waits[round % waits.len()],
                            share: [None, Some(0.0), Some(0.5), Some(1.0)][round % 4],
                            faults: Faults::Strict,
                        };
                        let (to, from) = (target.as_mut_ptr() as usize + 1, source.as_ptr());
                        // SAFETY: inside both vectors.
                        let done = unsafe { copy(to, from as usize, len, &how) };
                        match done {
                            Ok(()) => assert_eq!(target[1..=len], source[..]),
                            Err(refused) => assert_eq!(refused, Refused::Busy),
                        }
                        assert_eq!((target[0], target[len + 1]), (0, 0));
                    }
                });
            }
        });
    }
}
