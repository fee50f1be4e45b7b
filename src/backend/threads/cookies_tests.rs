//! Outstanding copies: what the table promises, one caller at a time.

use super::*;
use crate::backend::mode::Mode;
use crate::os::mapped::zeroed;
use crate::plan::Cut;

fn copy_of(pieces: usize) -> Posted {
    let cut = Cut::with_piece(0, pieces * 4096, 4096);
    Posted { dst: 0x1000, src: 0x2000, cut, mode: Mode::from_bits_truncate(5) }
}

fn single(table: &Table, pieces: usize) -> (&Entry, Cookie) {
    let owner = table.take().unwrap();
    table.start(owner, None, false, 5);
    let cookie = table.cookie(owner);
    table.add(owner, owner, &copy_of(pieces), true);
    assert_eq!(table.close(owner), None);
    (owner, cookie)
}

fn is_over(table: &Table, cookie: Cookie) -> bool {
    matches!(table.look(cookie), CookieState::Over(_))
}

#[test]
fn cookie_is_over_after_its_last_piece_and_retired_once() {
    let table = zeroed::<Table>();
    let (owner, cookie) = single(&table, 3);
    let mut claimed = 0;
    while let Some((number, part)) = table.find_work(0) {
        assert_eq!(number, table.number(owner));
        let (_, index) = table.claim(part, End::Back).unwrap();
        assert!(!is_over(&table, cookie) && !table.retire(cookie));
        let ended = table.finish(part, index, true);
        claimed += 1;
        assert_eq!(ended, (claimed == 3).then_some(Ended { bytes: 3 * 4096, begun: 5 }));
    }
    assert!(!table.has_work());
    assert!(is_over(&table, cookie) && table.retire(cookie) && !table.retire(cookie));
    table.free(owner);
    assert!(matches!(table.look(cookie), CookieState::Unknown));
    let (_, again) = single(&table, 1);
    assert_ne!(cookie, again);
}

#[test]
fn owner_of_several_parts_ends_with_the_last_one() {
    let table = zeroed::<Table>();
    let owner = table.take().unwrap();
    table.start(owner, None, false, 0);
    let cookie = table.cookie(owner);
    for _ in 0..3 {
        table.add(owner, table.take().unwrap(), &copy_of(2), true);
    }
    assert_eq!(table.parts(owner).count(), 3);
    for part in table.parts(owner) {
        while let Some((_, index)) = table.claim(part, End::Front) {
            assert_eq!(table.finish(part, index, index != 1), None);
        }
    }
    assert!(matches!(table.look(cookie), CookieState::UnderWay(_)), "parts may still be added");
    assert!(table.close(owner).is_some());
    assert!(is_over(&table, cookie) && table.has_failed(owner) && table.retire(cookie));
    table.free(owner);
    assert!(table.used.iter().all(|word| word.load(Ordering::Relaxed) == 0));
}

#[test]
fn full_table_is_claimed_in_turn_and_reset_table_knows_no_cookie() {
    let table = zeroed::<Table>();
    let all: Vec<_> = (0..ENTRIES).map(|_| single(&table, 1)).collect();
    assert!(table.take().is_none() && !table.has_room() && table.room() == 0);
    let mut at = 17;
    for _ in 0..ENTRIES {
        let (number, part) = table.find_work(at).unwrap();
        assert_eq!(number, (at + 1) % ENTRIES);
        at = number;
        let (_, index) = table.claim(part, End::Back).unwrap();
        table.finish(part, index, true);
    }
    assert!(table.find_work(at).is_none() && !table.has_work());
    let (owner, cookie) = all[5];
    assert!(table.retire(cookie));
    table.free(owner);
    let (owner, cookie) = single(&table, 2);
    table.claim(owner, End::Front).unwrap();
    table.forget_everything();
    assert!(matches!(table.look(cookie), CookieState::Unknown));
    assert!(table.find_work(0).is_none() && !table.has_work() && table.room() == ENTRIES);
    assert!(table.claim(owner, End::Front).is_none());
}
