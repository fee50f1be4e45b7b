use super::*;

#[test]
fn restorer_has_the_bytes_that_unwinders_look_for() {
    let expected = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    // SAFETY: code of ours, of this length.
    let bytes = unsafe { core::slice::from_raw_parts(handler::restorer() as *const u8, 9) };
    assert_eq!(bytes, expected);
}

#[test]
fn what_is_noted_is_what_the_handler_goes_by() {
    static STAND: Stand = Stand::new(handler::ON_SIGSEGV[0]);
    let unusual = handler::unusual as *const () as usize;
    let action = Action { handler: 0x1000, flags: SIGINFO, restorer: 0x2000, mask: 5 };
    for round in 0..20 {
        let action = Action { mask: round, ..action };
        STAND.note(&action);
        assert_eq!(STAND.program(), action);
        assert_eq!(STAND.next.load(Ordering::Relaxed), 0x1000);
    }
    for unlike in [
        Action { flags: SIGINFO | RESETHAND, ..action },
        Action { handler: libc::SIG_DFL, ..action },
    ] {
        STAND.note(&unlike);
        assert_eq!(STAND.next.load(Ordering::Relaxed), unusual);
    }
}

#[test]
fn ours_has_the_flags_mask_and_restorer_of_the_programs() {
    let nodefer = libc::SA_NODEFER as usize;
    let flags = RESETHAND | nodefer | RESTORER;
    let program = Action { handler: 0x1000, flags, restorer: 0x2000, mask: 5 };
    let front = SEGV.stands[3].in_front_of(&program);
    let ours = handler::ON_SIGSEGV[3] as *const () as usize;
    let flags = nodefer | RESTORER | SIGINFO;
    assert_eq!(front, Action { handler: ours, flags, ..program });
    let front = BUS.stands[0].in_front_of(&Action::NONE);
    assert_eq!((front.flags, front.restorer), (RESTORER | SIGINFO, handler::restorer()));
}

#[test]
fn stands_are_taken_in_turn_but_for_what_one_of_them_stands_for() {
    static FRONT: Front = Front::new(libc::SIGSEGV, handler::ON_SIGSEGV);
    let action = |handler| Action { handler, ..Action::NONE };
    let number = |handler| {
        let stand = FRONT.stand_for(&action(handler));
        assert_eq!(stand.program(), action(handler));
        FRONT.stands.iter().position(|other| core::ptr::eq(other, stand)).unwrap()
    };
    let first = number(0x1000);
    let others: Vec<_> = (0..STANDS - 1).map(|i| number(0x2000 + i)).collect();
    assert!(!others.contains(&first), "one that may be called is not used for another action");
    assert_eq!(number(0x1000), first);
    assert_eq!(number(0x2003), others[3]);
    assert_eq!(number(0x3000), first, "the one that was taken longest ago");
}

/// In a child: the signals of the test process are its harness's.
#[test]
fn fault_in_a_copy_loop_ends_the_loop_and_leaves_the_default_action_to_be_seen() {
    use crate::backend::copy_loop::{Copied, CopyLoop};
    use crate::backend::threads::workers;
    workers::init();
    let mut target = [0u8; 4096];
    // SAFETY: the child makes system calls only, and one copy from a bad address by a loop that
    // survives it.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            crate::os::process::claim_memory();
            workers::forget_after_fork();
            forget_after_fork(); // another test may just have held the lock
            libc::alarm(20);
            assert_eq!(Action::NONE.exchange(libc::SIGSEGV).map(drop), Ok(()));
            assert_eq!(stand_in_front(), Ok(()));
            for copy_loop in [CopyLoop::Ordinary, CopyLoop::Stream] {
                let copied = copy_loop.copy(target.as_mut_ptr() as usize, 4096, 4096);
                assert_eq!(copied, Copied::BadPage);
            }
            let mut seen: libc::sigaction = core::mem::zeroed();
            calls::sigaction(libc::SIGSEGV, core::ptr::null(), &mut seen);
            assert_eq!(seen.sa_sigaction, libc::SIG_DFL);
            (4096 as *const u8).read_volatile();
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert!(libc::WIFSIGNALED(status), "{status:#x}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
}
