use super::*;

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
