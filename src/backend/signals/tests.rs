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
    static SLOT: HandlerSlot = HandlerSlot::new(handler::ON_SIGSEGV[0]);
    let unusual = handler::unusual as *const () as usize;
    let action = Action { handler: 0x1000, flags: SIGINFO, restorer: 0x2000, mask: 5 };
    for round in 0..20 {
        let action = Action { mask: round, ..action };
        SLOT.note(&action);
        assert_eq!(SLOT.program(), action);
        assert_eq!(SLOT.next.load(Ordering::Relaxed), 0x1000);
    }
    for unlike in [
        Action { flags: SIGINFO | RESETHAND, ..action },
        Action { handler: libc::SIG_DFL, ..action },
    ] {
        SLOT.note(&unlike);
        assert_eq!(SLOT.next.load(Ordering::Relaxed), unusual);
    }
}

#[test]
fn ours_has_the_flags_mask_and_restorer_of_the_programs() {
    let nodefer = libc::SA_NODEFER as usize;
    let flags = RESETHAND | nodefer | RESTORER;
    let program = Action { handler: 0x1000, flags, restorer: 0x2000, mask: 5 };
    let chain = SEGV.slots[3].in_front_of(&program);
    let ours = handler::ON_SIGSEGV[3] as *const () as usize;
    let flags = nodefer | RESTORER | SIGINFO;
    assert_eq!(chain, Action { handler: ours, flags, ..program });
    let chain = BUS.slots[0].in_front_of(&Action::NONE);
    assert_eq!((chain.flags, chain.restorer), (RESTORER | SIGINFO, handler::restorer()));
}

#[test]
fn slots_are_taken_in_turn_but_for_an_action_that_one_has() {
    static CHAIN: SignalChain = SignalChain::new(libc::SIGSEGV, handler::ON_SIGSEGV);
    let action = |handler| Action { handler, ..Action::NONE };
    let number = |handler| {
        let slot = CHAIN.slot_for(&action(handler));
        assert_eq!(slot.program(), action(handler));
        CHAIN.slots.iter().position(|other| core::ptr::eq(other, slot)).unwrap()
    };
    let first = number(0x1000);
    let others: Vec<_> = (0..SLOTS - 1).map(|i| number(0x2000 + i)).collect();
    assert!(!others.contains(&first), "one that may be called is not used for another action");
    assert_eq!(number(0x1000), first);
    assert_eq!(number(0x2003), others[3]);
    assert_eq!(number(0x3000), first, "the one that was taken longest ago");
}
