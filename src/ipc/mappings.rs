//! Blocks of the other process, mapped here; see `blocks`.
//!
//! Their descriptors come over the doorbell socket, among the packets that wake: a record, and beside
//! it the descriptor. Each side keeps the last so many, in the order they were sent, so that the
//! sender knows which the receiver has.
//!
//! Nothing here is an error: what cannot be mapped is copied another way. What has come from who is
//! not our equal is mapped when a thread has made sure of its pages, for which it may let us wait.

use super::blocking::{CLOSERS, SEALERS, User};
use super::blocks::{self, BlockAddress};
use super::kicks;
use super::lock::Lock;
use super::os::{self, Beside, Fd, Foreign, Sealed, Share};
use crate::os::sys;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;

/// So many are kept. A block that its owner has freed costs address space only.
const MOST: usize = 64;

/// So long, in nanoseconds, messages wait until a block is mapped.
const LOOKED_AT: u64 = 1_000_000_000;

/// What comes over the doorbell socket beside `os::WAKE`: a block, and one that is lent, or, with
/// 0 for its serial, that none is; with it the number of times. That the last time shall not count,
/// and that it does not.
const BLOCK: u8 = 2;
const LEND: u8 = 3;
const TAKE_BACK: u8 = 4;
const AGREED: u8 = 5;
const RECORD: usize = 1 + size_of::<u64>() + size_of::<u32>();

/// One block. It stays mapped while somebody copies.
#[derive(Debug)]
pub struct Mapping {
    at: usize,
    size: usize,
    writable: bool,
}

impl Mapping {
    /// Of an equal, who could do worse than take pages away, or of one who cannot; what any other
    /// lends us is `fixed` before we touch it.
    fn new(memory: &Fd, of_equal: bool, is_lent: bool) -> os::Result<Self> {
        // Without pages it could be as large as our address space.
        let found = os::sealed_memory_of_others(memory).filter(|found| found.whole);
        let Sealed { size, fixed, .. } = found.ok_or(libc::EINVAL)?;
        if !(of_equal || fixed || is_lent) {
            return Err(libc::EINVAL);
        }
        let at = os::map_shared(memory, size, !fixed)? as usize;
        Ok(Self { at, size, writable: !fixed })
    }

    /// Its pages are all there, and stay. Waits for as long as its owner likes.
    fn fixed(self, memory: &Fd) -> os::Result<Self> {
        os::seal_for_good(memory)?;
        if os::first_hole(memory)? == self.size { Ok(self) } else { Err(libc::EINVAL) }
    }

    /// The address of a part, here; `None`: there is no such part.
    pub fn at(&self, offset: usize, len: usize, to_write: bool) -> Option<usize> {
        let inside = offset <= self.size && len <= self.size - offset;
        (inside && (self.writable || !to_write)).then(|| self.at + offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; who copies holds a count.
        unsafe { sys::unmap(self.at as *mut c_void, self.size) };
    }
}

/// A block that has come.
#[derive(Debug)]
enum View {
    Mapped(Arc<Mapping>),
    Unmapped,
    /// A thread looks at it; nobody waits for that beyond this moment.
    LookedAt(u64),
}

impl View {
    fn of(mapping: os::Result<Mapping>) -> Self {
        mapping.map_or(View::Unmapped, |mapping| View::Mapped(Arc::new(mapping)))
    }
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    Missing,
    Soon,
    Settled,
}

/// The blocks of one process that have come last.
#[derive(Default)]
struct Arrived {
    mappings: VecDeque<(u64, View)>,
    /// Blocks that were spoken of and have not come.
    missing: VecDeque<u64>,
    /// How often the other side has lent a block, or none; it says so itself.
    lends: u32,
}

/// What has gone the other way.
#[derive(Default)]
struct Sent {
    /// The serials of those that were sent last, and whether the other side may write them.
    blocks: VecDeque<(u64, bool)>,
    /// How often we have lent a block, or none.
    lends: u32,
    /// The last time was taken back, and the other side has not agreed yet: it may have counted it,
    /// and lent something itself.
    in_doubt: bool,
}

pub struct Mappings {
    /// Otherwise none is shown, or mapped.
    pub wanted: bool,
    equal: bool,
    /// Of the other process.
    pub user: User,
    sent: Lock<Sent>,
    /// Locked first, where both are.
    arrived: Arc<Lock<Arrived>>,
}

impl Mappings {
    /// With a process that is our equal, or not.
    pub fn new(wanted: bool, equal: bool, user: User) -> Self {
        Self { wanted, equal, user, sent: Lock::default(), arrived: Arc::default() }
    }

    /// Sees to it that the other side has a block of ours, to read it or to write it. False: it
    /// will not. `still`: whether it is what it was.
    pub fn show(
        &self,
        socket: i32,
        serial: u64,
        to_write: bool,
        still: impl FnOnce() -> bool,
    ) -> bool {
        let mut sent = self.sent.lock();
        if let Some((_, writable)) = sent.blocks.iter().find(|sent| sent.0 == serial) {
            return *writable || !to_write;
        }
        let share = if self.equal { Share::Everything } else { Share::Read };
        let shown = self.wanted
            && (if self.equal { still() } else { !to_write })
            && blocks::send(serial, socket, &record(BLOCK, serial, 0), share).is_ok();
        if shown {
            keep(&mut sent.blocks, (serial, self.equal));
        }
        shown
    }

    /// Sends a block to who is not our equal, to write it, and `note_lent` follows; or says, with
    /// 0, that there is none. Answers how often we have done so.
    pub fn lend(&self, socket: i32, serial: u64) -> os::Result<u32> {
        let mut sent = self.sent.lock();
        let times = sent.lends + 1;
        let record = record(LEND, serial, times);
        if serial == 0 {
            os::send(socket, &record, &[])?;
        } else {
            blocks::send(serial, socket, &record, Share::Lent)?;
            keep(&mut sent.blocks, (serial, false));
        }
        sent.lends = times;
        Ok(times)
    }

    /// The other side has not lent anything: this time shall not count, unless another thread has
    /// gone on from there.
    pub fn take_back(&self, socket: i32, times: u32) {
        let met = self.has_borrowed(times);
        let mut sent = self.sent.lock();
        if sent.lends == times && !met {
            sent.in_doubt = os::send(socket, &record(TAKE_BACK, 0, times), &[]).is_ok();
        }
    }

    /// Whether it is not known what was lent last: nothing can be lent before it is.
    pub fn is_in_doubt(&self) -> bool {
        let borrowed = self.arrived.lock().lends;
        let mut sent = self.sent.lock();
        sent.in_doubt &= borrowed < sent.lends;
        sent.in_doubt
    }

    /// Whether the other side has lent a block as often, or none.
    pub fn has_borrowed(&self, times: u32) -> bool {
        self.arrived.lock().lends >= times
    }

    /// The other side has mapped a block, and can write it.
    pub fn note_lent(&self, serial: u64) {
        let mut sent = self.sent.lock();
        sent.blocks.iter_mut().filter(|sent| sent.0 == serial).for_each(|sent| sent.1 = true);
    }

    /// Whether a block has come in, or will not.
    pub fn knows(&self, place: BlockAddress) -> Arrival {
        let arrived = self.arrived.lock();
        match arrived.find(place) {
            Some(View::LookedAt(until)) if sys::nanoseconds() < *until => Arrival::Soon,
            None if self.wanted && !arrived.missing.contains(&place.serial) => Arrival::Missing,
            _ => Arrival::Settled,
        }
    }

    /// So many nanoseconds until a block is waited for no longer that a thread looks at: nobody
    /// tells of that moment.
    pub fn nanos_to_settle(&self) -> u64 {
        const MILLISECOND: u64 = 1_000_000;
        let now = sys::nanoseconds();
        let left = |(_, view): &(u64, View)| match view {
            // Who was just too early looks once more.
            View::LookedAt(until) => (until + MILLISECOND).checked_sub(now),
            _ => None,
        };
        self.arrived.lock().mappings.iter().filter_map(left).min().unwrap_or(u64::MAX)
    }

    /// The block of a place, if it is mapped.
    pub fn find(&self, place: BlockAddress) -> Option<Arc<Mapping>> {
        match self.arrived.lock().find(place) {
            Some(View::Mapped(mapping)) => Some(mapping.clone()),
            _ => None,
        }
    }

    /// Nobody waits for a block that has not come by now.
    pub fn give_up(&self, place: BlockAddress) {
        if self.knows(place) == Arrival::Missing {
            keep(&mut self.arrived.lock().missing, place.serial);
        }
    }

    /// Takes everything that has come over the doorbell socket. Descriptors that are no block, or
    /// more than one, are an error: they come from nobody who keeps to the protocol, and closing
    /// them is work. Nothing is to be taken from there any more.
    pub fn take_in(&self, socket: i32) -> os::Result<()> {
        /// A side that talks without end is heard another time.
        const MOST_READS: usize = 1000;
        let mut arrived = self.arrived.lock();
        for _ in 0..MOST_READS {
            // An equal could do worse; its number may be that of strangers as well.
            if !self.equal && CLOSERS.is_behind(self.user) {
                return Err(libc::EMFILE);
            }
            let (mut room, mut beside) = ([0; RECORD], Beside::of(self.user));
            match os::receive(socket, &mut room, &mut beside) {
                Ok(0) if beside.fds.is_empty() => break,
                Ok(count) => arrived.take(&room[..count], beside.fds, self, socket)?,
                Err(libc::EINTR) => {}
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// With `arrived` locked.
    fn view(&self, memory: Fd, serial: u64, is_lent: bool) -> View {
        let mapping = match Mapping::new(&memory, self.equal, is_lent) {
            Ok(mapping) if !self.equal => mapping,
            mapping => return View::of(mapping),
        };
        let arrived = self.arrived.clone();
        let look = move || {
            let view = View::of(mapping.fixed(&memory));
            let mut arrived = arrived.lock();
            if let Some(place) = arrived.mappings.iter_mut().find(|block| block.0 == serial) {
                place.1 = view;
            }
            drop(arrived);
            kicks::kick_all(); // somebody may wait for it
        };
        match SEALERS.take(self.user, Box::new(look)) {
            true => View::LookedAt(sys::nanoseconds() + LOOKED_AT),
            false => View::Unmapped,
        }
    }
}

impl Arrived {
    fn find(&self, place: BlockAddress) -> Option<&View> {
        self.mappings.iter().find(|(serial, _)| *serial == place.serial).map(|(_, view)| view)
    }

    fn take(
        &mut self,
        packet: &[u8],
        mut fds: Vec<Foreign>,
        by: &Mappings,
        socket: i32,
    ) -> os::Result<()> {
        // None: it only wakes, or there was no number for it here.
        let memory = fds.pop().map(Foreign::into_memory);
        let no_block =
            matches!(memory, Some(Err(libc::EPROTO))) || (memory.is_some() && !by.wanted);
        if no_block || !fds.is_empty() {
            return Err(libc::EPROTO);
        }
        let Some((&kind, rest)) = packet.split_first() else { return Ok(()) };
        let Some((&serial, times)) = rest.split_first_chunk() else { return Ok(()) };
        let Ok(times) = times.try_into().map(u32::from_ne_bytes) else { return Ok(()) };
        let serial = u64::from_ne_bytes(serial);
        let memory = memory.and_then(Result::ok);
        let is_lent = kind == LEND;
        match kind {
            BLOCK | LEND => {
                let view = memory.map_or(View::Unmapped, |memory| by.view(memory, serial, is_lent));
                if serial != 0 && by.wanted {
                    keep(&mut self.mappings, (serial, view));
                }
                self.lends = if is_lent { times } else { self.lends };
            }
            TAKE_BACK => {
                let sent = by.sent.lock();
                // Unless we have lent something for it.
                if sent.lends < times {
                    self.lends = self.lends.min(times - 1);
                    let _ = os::send(socket, &record(AGREED, 0, times), &[]);
                }
            }
            AGREED => {
                let mut sent = by.sent.lock();
                if sent.in_doubt && sent.lends == times {
                    (sent.in_doubt, sent.lends) = (false, times - 1);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn record(kind: u8, serial: u64, times: u32) -> [u8; RECORD] {
    let mut record = [kind; RECORD];
    record[1..9].copy_from_slice(&serial.to_ne_bytes());
    record[9..].copy_from_slice(&times.to_ne_bytes());
    record
}

fn keep<T>(list: &mut VecDeque<T>, new: T) {
    if list.len() == MOST {
        list.pop_front();
    }
    list.push_back(new);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mappings(equal: bool) -> Mappings {
        Mappings::new(true, equal, 0)
    }

    /// What has become of a block that was sent: not before a thread has looked at it.
    fn mapped(receiver: &Mappings, serial: u64) -> Option<Arc<Mapping>> {
        let place = BlockAddress { serial, offset: 0 };
        let soon = || matches!(receiver.arrived.lock().find(place), Some(View::LookedAt(_)));
        while soon() {
            std::thread::yield_now();
        }
        receiver.find(place)
    }

    /// What one side sends and the other takes in.
    fn pass(serial: u64, equal: bool) -> Option<Arc<Mapping>> {
        let [here, there] = os::unix_pair().unwrap();
        let (sender, receiver) = (mappings(equal), mappings(equal));
        if !sender.show(there.raw(), serial, false, || true) {
            return None;
        }
        os::send_byte(there.raw());
        receiver.take_in(here.raw()).unwrap();
        let mapping = mapped(&receiver, serial);
        assert_eq!(receiver.knows(BlockAddress { serial, offset: 0 }), Arrival::Settled);
        mapping
    }

    #[test]
    fn only_what_lies_in_a_block_is_mapped() {
        let block = blocks::allocate(10_000, 1).unwrap() as usize;
        let place = blocks::find(block + 100, 9_000).unwrap();
        assert_eq!(place.offset, 100);
        assert_eq!(blocks::find(block + 100, 3 * 4096), None, "longer than the block");
        assert_eq!(blocks::find(block - 1, 2), None);

        let view = pass(place.serial, true).unwrap();
        assert_eq!(view.at(0, 3 * 4096, true), Some(view.at));
        assert_eq!(view.at(3 * 4096, 0, true), Some(view.at + 3 * 4096));
        for (offset, len) in [(0, 3 * 4096 + 1), (3 * 4096, 1), (usize::MAX, 2), (2, usize::MAX)] {
            assert_eq!(view.at(offset, len, false), None, "{offset} {len}");
        }
        // SAFETY: both are mapped.
        unsafe {
            ((block + 100) as *mut u8).write_volatile(7);
            assert_eq!((view.at(100, 1, false).unwrap() as *const u8).read_volatile(), 7);
        }
        assert!(pass(place.serial + 1000, true).is_none(), "no such block");
        // An equal has it, who may take pages away: nobody else gets it any more.
        assert!(pass(place.serial, false).is_none());
        // SAFETY: nobody uses it any more.
        unsafe { blocks::free(block, 1) }.unwrap();
        assert_eq!(blocks::find(block, 1), None);
        assert!(pass(place.serial, true).is_none(), "freed");
    }

    #[test]
    fn who_is_not_an_equal_can_only_read_and_its_pages_stay() {
        let block = blocks::allocate(10_000, 4).unwrap() as usize;
        let serial = blocks::find(block, 1).unwrap().serial;
        let view = pass(serial, false).unwrap();
        assert_eq!((view.at(5, 5, false), view.at(5, 5, true)), (Some(view.at + 5), None));
        assert!(pass(serial, false).is_some(), "another one sees it too, as adma.h says");
        // SAFETY: memory of the test.
        unsafe {
            (block as *mut u8).write_volatile(9);
            os::take_pages_away(block as *mut c_void, 4096);
            assert_eq!((view.at as *const u8).read_volatile(), 9);
            blocks::free(block, 4).unwrap();
        }
    }

    /// As `pass`, of a block that is lent.
    fn borrow(serial: u64) -> os::Result<Arc<Mapping>> {
        let [here, there] = os::unix_pair().unwrap();
        let (lender, borrower) = (mappings(false), mappings(false));
        assert!(!lender.show(there.raw(), serial, true, || true), "not unasked");
        assert_eq!(lender.lend(there.raw(), serial)?, 1);
        assert!(!lender.show(there.raw(), serial, true, || true) && !blocks::is_sealed(serial));
        let at_the_same_time = mappings(false).lend(there.raw(), serial);
        assert_eq!(at_the_same_time, Err(libc::EBUSY));
        for equal in [true, false] {
            let others = mappings(equal);
            assert!(
                !others.show(there.raw(), serial, false, || true),
                "it would be sealed too early"
            );
        }
        assert_eq!(lender.lend(there.raw(), 0)?, 2, "and nothing");
        assert!(!borrower.has_borrowed(1));
        borrower.take_in(here.raw()).unwrap();
        assert!(borrower.has_borrowed(2) && !borrower.has_borrowed(3));
        // Who has lent in vain does so again; not where another thread has lent since.
        for (times, counts) in [(2, 1), (1, 0), (7, 0)] {
            lender.take_back(there.raw(), times);
            borrower.take_in(here.raw()).unwrap();
            lender.take_in(there.raw()).unwrap();
            assert!(borrower.has_borrowed(counts) && !borrower.has_borrowed(counts + 1));
        }
        assert_eq!(lender.lend(there.raw(), 0)?, 1);
        let mapping = mapped(&borrower, serial).unwrap();
        assert!(blocks::is_sealed(serial));
        blocks::settle(serial, 0).unwrap();
        lender.note_lent(serial);
        assert!(lender.show(there.raw(), serial, true, || true));
        Ok(mapping)
    }

    /// Who has lent in vain takes it back; the other side lends, before it hears of that or after.
    #[test]
    fn time_that_is_taken_back_counts_for_both_or_for_none() {
        for heard_first in [false, true] {
            let [here, there] = os::unix_pair().unwrap();
            let (one, other) = (mappings(false), mappings(false));
            assert_eq!(one.lend(here.raw(), 0), Ok(1));
            one.take_back(here.raw(), 1);
            if heard_first {
                other.take_in(there.raw()).unwrap();
            }
            assert_eq!(other.lend(there.raw(), 0), Ok(1));
            other.take_in(there.raw()).unwrap();
            assert_eq!(other.has_borrowed(1), !heard_first, "the first was met");
            assert!(one.is_in_doubt());
            one.take_in(here.raw()).unwrap();
            assert!(!one.is_in_doubt() && one.has_borrowed(1));
            assert_eq!(one.lend(here.raw(), 0), Ok(if heard_first { 1 } else { 2 }));
            other.take_in(there.raw()).unwrap();
            assert!(other.has_borrowed(if heard_first { 1 } else { 2 }));
        }
    }

    #[test]
    fn block_is_lent_once_and_keeps_its_pages_then() {
        let new = || {
            let block = blocks::allocate(10_000, 5).unwrap() as usize;
            (block, blocks::serial_of(block, 5).unwrap())
        };
        let ((block, serial), (other, shown)) = (new(), new());
        assert_eq!(blocks::serial_of(block + 4096, 5), Err(libc::EINVAL));
        assert_eq!(blocks::serial_of(block, 6), Err(libc::EINVAL), "somebody else's");
        let view = borrow(serial).unwrap();
        assert_eq!(view.at(5, 5, true), Some(view.at + 5));
        // SAFETY: memory of the test.
        unsafe {
            (view.at as *mut u8).write_volatile(9);
            os::take_pages_away(block as *mut c_void, 4096);
            assert_eq!((block as *const u8).read_volatile(), 9);
        }
        // Others can read it, and nobody else borrows it, nor what was shown before.
        assert_eq!(pass(serial, false).unwrap().at(5, 5, true), None);
        assert!(pass(shown, false).is_some());
        assert_eq!([serial, shown].map(|serial| borrow(serial).err()), [Some(libc::EBUSY); 2]);
        // SAFETY: nobody uses them any more.
        unsafe { [block, other].into_iter().for_each(|block| blocks::free(block, 5).unwrap()) };
    }

    /// What is lent by somebody who is not trusted, and not as it should be.
    #[test]
    fn lent_memory_whose_pages_could_go_is_not_mapped() {
        const SEALED: i32 = os::SIZE_SEALS | libc::F_SEAL_SEAL;
        let lent = |seals: i32, pages: bool| {
            let memory = os::sealed_memory(c"test", 8192, 0).unwrap();
            // Those beyond its end do not make up for those that are not there.
            let (mode, add) = (libc::FALLOC_FL_KEEP_SIZE, libc::F_ADD_SEALS);
            // SAFETY: no memory but that of the test.
            unsafe {
                let there = if pages { 8192 } else { 4096 };
                assert!(libc::write(memory.raw(), [0; 8192].as_ptr().cast(), there) > 0);
                assert_eq!(libc::fallocate(memory.raw(), mode, 8192, 8192), 0);
                assert_eq!(libc::fcntl(memory.raw(), add, seals), 0);
            }
            let fixed = |is_lent| Mapping::new(&memory, false, is_lent)?.fixed(&memory);
            let shown = fixed(false).map(|mapping| mapping.writable);
            assert!(matches!(shown, Err(libc::EINVAL) | Ok(false)), "not lent");
            fixed(true).map(|mapping| mapping.writable)
        };
        assert_eq!(lent(os::SIZE_SEALS, true), Ok(true));
        assert_eq!(lent(os::SIZE_SEALS, false), Err(libc::EINVAL), "holes");
        assert_eq!(lent(0, true), Err(libc::EINVAL), "could become smaller");
        assert_eq!(lent(SEALED, true), Err(libc::EPERM), "cannot be sealed any more");
        assert_eq!(lent(SEALED | libc::F_SEAL_FUTURE_WRITE, true), Ok(false), "to read");
        let hole = lent(SEALED | libc::F_SEAL_FUTURE_WRITE, false);
        assert_eq!(hole, Err(libc::EINVAL), "to read, with pages behind its end");
    }

    /// A stranger writes what never comes into the memory it sends, or has got, and so holds the
    /// lock that seals are added under.
    #[test]
    fn stranger_who_holds_the_lock_of_its_memory_holds_up_nobody() {
        const SIZE: usize = 8192;
        let memory = os::sealed_memory(c"test", SIZE, os::SIZE_SEALS).unwrap();
        os::fill_with_pages(&memory, SIZE).unwrap();
        let at = os::map_page_at(0).unwrap();
        // SAFETY: memory of the test; structures as in linux/userfaultfd.h.
        let faults = unsafe {
            let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
            let faults = libc::syscall(libc::SYS_userfaultfd, flags) as i32;
            let (mut api, mut range) = ([0xaau64, 0, 0], [at as u64, 4096, 1, 0]);
            if libc::ioctl(faults, 0xc018_aa3f, &mut api) != 0
                || libc::ioctl(faults, 0xc020_aa00, &mut range) != 0
            {
                return println!("skipped: no userfaultfd here");
            }
            Fd::owned(faults)
        };
        let [here, there] = os::unix_pair().unwrap();
        let receiver = Mappings::new(true, false, 77);
        std::thread::scope(|scope| {
            let (stranger, ours) = (memory.raw(), &memory);
            let (tell, answers) = std::sync::mpsc::channel();
            // SAFETY: as above.
            scope.spawn(move || unsafe { libc::pwrite(stranger, at as *const c_void, 1, 0) });
            // It is at the page that does not come.
            let stuck = os::poll_few([(faults.raw(), libc::POLLIN)], 60_000);
            let receiver = &receiver;
            scope.spawn(move || {
                // More of them than have a thread, or a place in the queue.
                for serial in 1..=300 {
                    os::send(there.raw(), &record(LEND, serial, 1), &[ours.raw()]).unwrap();
                    receiver.take_in(here.raw()).unwrap();
                }
                let known =
                    [300, 301].map(|serial| receiver.knows(BlockAddress { serial, offset: 0 }));
                tell.send((known, os::seal_with_stranger(ours, 77))).unwrap();
            });
            let answer = answers.recv_timeout(core::time::Duration::from_secs(120));
            drop(faults); // now they come
            assert_eq!(stuck, [libc::POLLIN]);
            let known = [Arrival::Settled, Arrival::Missing];
            assert_eq!(answer, Ok((known, Err(libc::ETIMEDOUT))));
        });
        assert!(receiver.find(BlockAddress { serial: 300, offset: 0 }).is_none());
    }

    #[test]
    fn nonsense_over_the_doorbell_is_mapped_only_if_it_is_a_block() {
        let [here, there] = os::unix_pair().unwrap();
        let receiver = mappings(true);
        let with_pages = |seals| {
            let memory = os::sealed_memory(c"test", 4096, seals).unwrap();
            os::fill_with_pages(&memory, 4096).unwrap();
            memory
        };
        let (good, unsealed) = (with_pages(os::SIZE_SEALS), with_pages(0));
        let holes = os::sealed_memory(c"test", 1 << 40, os::SIZE_SEALS).unwrap();
        let send = |bytes: &[u8], fds: &[i32]| os::send(there.raw(), bytes, fds).unwrap();
        let sent = [
            (vec![good.raw()], Some(true)),
            (vec![holes.raw()], Some(false)),
            (vec![unsealed.raw()], Some(false)),
            (vec![], Some(false)),
        ];
        for (serial, (fds, _)) in (1..).zip(&sent) {
            os::send_byte(there.raw());
            send(&record(BLOCK, serial, 0), fds);
            // Cut, of no kind, too long, and nothing.
            send(&record(BLOCK, 99, 0)[..4], &[good.raw()]);
            send(&record(77, 99, 0), &[good.raw()]);
            send(&[&[os::WAKE][..], &record(BLOCK, 99, 0)].concat(), &[]);
        }
        receiver.take_in(here.raw()).unwrap();
        let mapped = |serial| {
            let place = BlockAddress { serial, offset: 0 };
            let known = receiver.knows(place) == Arrival::Settled;
            known.then(|| receiver.find(place).is_some())
        };
        for (serial, (_, found)) in (1..).zip(&sent) {
            assert_eq!(mapped(serial), *found, "{serial}");
        }
        assert_eq!(mapped(99), None);
        // A fault in huge pages can be fatal, whoever has made it.
        let flags = libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        // SAFETY: a terminated name, and a descriptor of our own.
        let huge = unsafe {
            let huge = libc::memfd_create(c"test".as_ptr(), flags); // not in every kernel
            libc::ftruncate(huge, 2 << 20);
            libc::fcntl(huge, libc::F_ADD_SEALS, os::SIZE_SEALS);
            Fd::owned(huge)
        };
        let is_memory = |memory: &Fd| os::sealed_memory_of_others(memory).is_some();
        assert_eq!([&holes, &huge].map(is_memory), [true, false]);
        // Nothing at all is not the end, which says the same.
        send(&[], &[]);
        send(&record(BLOCK, 9, 0), &[good.raw()]);
        receiver.take_in(here.raw()).unwrap();
        receiver.take_in(here.raw()).unwrap();
        assert_eq!(mapped(9), Some(true));
        // Descriptors that nobody honest sends, and which may take long to close.
        let [other, _] = os::unix_pair().unwrap();
        for fds in [&[other.raw()][..], &[good.raw(), good.raw()]] {
            for bytes in [&record(BLOCK, 10, 0)[..], &[os::WAKE], &[]] {
                send(bytes, fds);
                assert_eq!(receiver.take_in(here.raw()), Err(libc::EPROTO), "{fds:?} {bytes:?}");
            }
        }
        send(&record(BLOCK, 10, 0), &[good.raw()]);
        assert_eq!(Mappings::new(false, true, 0).take_in(here.raw()), Err(libc::EPROTO));
        assert_eq!(mapped(10), None);
    }

    /// Both sides forget the same ones.
    #[test]
    fn those_sent_last_are_kept_by_both_sides() {
        let [here, there] = os::unix_pair().unwrap();
        let (sender, receiver) = (mappings(true), mappings(true));
        let serial = |_| {
            let block = blocks::allocate(1, 2).unwrap() as usize;
            (block, blocks::find(block, 1).unwrap().serial)
        };
        let all: Vec<(usize, u64)> = (0..MOST + 6).map(serial).collect();
        for (_, serial) in &all {
            assert!(sender.show(there.raw(), *serial, false, || true));
            receiver.take_in(here.raw()).unwrap();
            let place = BlockAddress { serial: *serial, offset: 0 };
            assert!(receiver.find(place).is_some());
        }
        for (index, (block, serial)) in all.into_iter().enumerate() {
            let kept = index >= 6;
            assert_eq!(sender.sent.lock().blocks.contains(&(serial, true)), kept);
            assert_eq!(receiver.find(BlockAddress { serial, offset: 0 }).is_some(), kept);
            // SAFETY: nobody uses it any more.
            unsafe { blocks::free(block, 2) }.unwrap();
        }
    }
}
