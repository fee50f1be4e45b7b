//! Signals are held while the helper is called; faults come when the engine has ended.

use super::*;

/// How a child ends that has this handler for SIGSEGV and leaves with what `body` answers.
fn status_of_child(handler: extern "C" fn(i32), body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes nothing of other threads' its own, and is ended here.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            crate::os::process::claim_memory();
            workers::forget_after_fork();
            crate::backend::signals::forget_after_fork(); // another test may have held the lock
            libc::alarm(20);
            libc::signal(libc::SIGSEGV, handler as *const () as usize);
            libc::_exit(body());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    }
}

/// Our handler gets bad pages meanwhile, and so a signal that is sent.
#[test]
fn fault_signal_that_is_sent_waits_for_the_end_of_the_copy() {
    static FAKE: std::sync::OnceLock<&'static Kernel> = std::sync::OnceLock::new();
    /// 1: it came while the engine was writing; 2: afterwards.
    static CAME: AtomicU32 = AtomicU32::new(0);
    extern "C" fn on_signal(_: i32) {
        let under_way = FAKE.get().is_none_or(|kernel| kernel.under_way() > 0);
        CAME.store(if under_way { 1 } else { 2 }, Ordering::SeqCst);
    }
    let engine = engine(2, [Trouble { late: LATE, ..FINE }]);
    let kernel = kernel(&engine);
    let _ = FAKE.set(kernel);
    let status = status_of_child(on_signal, || {
        // SAFETY: a number.
        let thread = unsafe { libc::pthread_self() };
        kernel.at_end(move || {
            // SAFETY: the thread waits for the copy.
            unsafe { libc::pthread_kill(thread, libc::SIGSEGV) };
        });
        let how = CopyOptions { share: Some(0.5), ..HOW };
        let done = copy_at(&engine, (0, 0), 1 << 20, &how);
        if done.is_ok() { CAME.load(Ordering::SeqCst) as i32 } else { 3 }
    });
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 2, "{status:#x}");
}

#[test]
fn caller_copies_its_share_while_the_engine_works() {
    let engine = engine(2, [Trouble { late: VERY_LATE, ..FINE }]);
    let (source, mut target) = (vec![0x11u8; 100_000], vec![0xeeu8; 100_000]);
    let (dst, src) = (target.as_mut_ptr() as usize, source.as_ptr() as usize);
    let seen = std::sync::Arc::new(AtomicU32::new(0));
    let note = seen.clone();
    kernel(&engine).at_end(move || {
        // SAFETY: the target lives until the copy has returned, which is after this.
        note.store(unsafe { (dst as *const u8).read_volatile() }.into(), Ordering::SeqCst);
    });
    let how = CopyOptions { share: Some(0.5), ..HOW };
    // SAFETY: the vectors' own memory.
    assert_eq!(unsafe { engine.copy(Stretch { dst, src, len: 100_000 }, &how) }, Ok(()));
    assert_eq!(seen.load(Ordering::SeqCst), 0x11);
    assert!(source == target);
}

/// In a child, which may be left by a jump: a bad page in the caller's own part.
#[test]
fn fault_in_the_callers_share_comes_when_the_engine_has_ended() {
    static ENGINE: std::sync::OnceLock<Engine> = std::sync::OnceLock::new();
    extern "C" fn on_fault(_: i32) {
        let is_idle = |engine: &Engine| {
            engine.helper.fake().is_some_and(|kernel| kernel.under_way() == 0)
                && engine.lists.taken.load(Ordering::Relaxed) == 0
        };
        // SAFETY: ends the child, with 7 if the engine was idle and nothing is taken.
        unsafe { libc::_exit(if ENGINE.get().is_some_and(is_idle) { 7 } else { 1 }) };
    }
    let engine = ENGINE.get_or_init(|| engine(2, [Trouble { late: LATE, ..FINE }]));
    let len = 1 << 20;
    let (source, mut target) = (vec![0x11u8; len], vec![0xeeu8; len + 2 * PAGE]);
    let src = source.as_ptr() as usize;
    let dst = (target.as_mut_ptr() as usize).next_multiple_of(PAGE) + 40;
    let middle = (dst + len / 8).next_multiple_of(PAGE);
    // In the caller's share, and in the few bytes that it copies before the request.
    for (share, bad) in [(0.5, middle), (0.0, dst - 40)] {
        // SAFETY: a page of the vector's, in the child only; the copy ends in the handler.
        let status = status_of_child(on_fault, || unsafe {
            libc::mprotect(bad as *mut c_void, PAGE, libc::PROT_READ);
            let _ = engine.copy(Stretch { dst, src, len }, &CopyOptions { share: Some(share), ..HOW });
            2
        });
        let is_right = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7;
        assert!(is_right, "{share}: {status:#x}");
    }
}
