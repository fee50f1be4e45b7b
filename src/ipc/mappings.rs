//! Blocks of a proven peer, mapped here (`blocks`).
//!
//! Descriptors come over the doorbell socket, among the packets that wake: a record, and beside it
//! the descriptor. A block is mapped by the first message that needs it. Each side keeps the last
//! `MOST` in the order they were sent, so the sender knows which the receiver has.
//!
//! Failure is not an error here: a message whose block cannot be mapped is copied another way.

use super::blocks::{self, BlockAddress};
use super::engine::Proven;
use super::lock::Lock;
use super::os::{self, Beside, Fd, Received};
use crate::os::sys;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;

/// Blocks that are kept. One that its owner has freed costs address space only.
const MOST: usize = 64;

/// Blocks that may wait to be mapped: each takes a descriptor.
const MOST_UNMAPPED: usize = 8;

/// Kind of a packet beside `os::WAKE`: a block.
const BLOCK: u8 = 2;
const RECORD: usize = 1 + size_of::<u64>();

/// One block. It stays mapped while a copy uses it.
#[derive(Debug)]
pub struct Mapping {
    at: usize,
    size: usize,
}

impl Mapping {
    fn new(memory: &Fd) -> Option<Self> {
        // Without pages it could be as large as our address space.
        let (size, _) = os::sealed_size(memory).filter(|(_, whole)| *whole)?;
        let at = os::map_shared(memory, size).ok()? as usize;
        Some(Self { at, size })
    }

    /// Returns the address of a part, here; `None`: it is outside of the block.
    pub fn at(&self, offset: usize, len: usize) -> Option<usize> {
        let inside = offset <= self.size && len <= self.size - offset;
        inside.then(|| self.at + offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; copies hold a count.
        unsafe { sys::unmap(self.at as *mut c_void, self.size) };
    }
}

/// What has become of a block that was sent.
enum View {
    Unmapped(Fd),
    Mapped(Arc<Mapping>),
    Unusable,
}

#[derive(Default)]
struct Arrived {
    blocks: VecDeque<(u64, View)>,
    /// Serials that a message named and that have not come.
    missing: VecDeque<u64>,
}

#[derive(Default)]
pub struct Mappings {
    /// Serials sent last.
    sent: Lock<VecDeque<u64>>,
    arrived: Lock<Arrived>,
}

impl Mappings {
    /// Sends a block of ours unless the peer has it. False: the peer does not get it. `ask`: returns
    /// the peer's proof if that still holds.
    pub fn show<'a>(
        &self,
        serial: u64,
        socket: i32,
        ask: impl FnOnce() -> Option<&'a Proven>,
    ) -> bool {
        let mut sent = self.sent.lock();
        if sent.contains(&serial) {
            return true;
        }
        let mut record = [BLOCK; RECORD];
        record[1..].copy_from_slice(&serial.to_ne_bytes());
        let shown =
            ask().is_some_and(|proven| blocks::send(serial, proven, socket, &record).is_ok());
        if shown {
            keep(&mut sent, serial);
        }
        shown
    }

    /// Returns whether a block may still come.
    pub fn is_expected(&self, place: BlockAddress) -> bool {
        let arrived = self.arrived.lock();
        let there = arrived.blocks.iter().any(|(serial, _)| *serial == place.serial);
        !there && !arrived.missing.contains(&place.serial)
    }

    /// Stops expecting a block that has not come by now.
    pub fn give_up(&self, place: BlockAddress) {
        if self.is_expected(place) {
            keep(&mut self.arrived.lock().missing, place.serial);
        }
    }

    /// Returns the mapping of a block, which is made by the first call.
    pub fn find(&self, place: BlockAddress) -> Option<Arc<Mapping>> {
        let mut arrived = self.arrived.lock();
        let (_, view) = arrived.blocks.iter_mut().find(|(serial, _)| *serial == place.serial)?;
        if let View::Unmapped(memory) = view {
            let mapped = Mapping::new(memory);
            *view = mapped.map_or(View::Unusable, |mapping| View::Mapped(Arc::new(mapping)));
        }
        match view {
            View::Mapped(mapping) => Some(mapping.clone()),
            _ => None,
        }
    }

    /// Notes a packet of the doorbell socket. An error: it is not of the protocol.
    pub fn take(&self, packet: &[u8], mut fds: Vec<Received>) -> os::Result<()> {
        let memory = fds.pop();
        if !fds.is_empty() {
            return Err(libc::EPROTO);
        }
        // Without a descriptor it only wakes, or there was no number for it here.
        let (Some(memory), Some((&BLOCK, serial))) = (memory, packet.split_first()) else {
            return Ok(());
        };
        let serial = serial.try_into().map(u64::from_ne_bytes).map_err(|_| libc::EPROTO)?;
        let memory = match memory.into_memory() {
            Err(libc::EPROTO) => return Err(libc::EPROTO),
            memory => memory.ok(),
        };
        let view = memory.map_or(View::Unusable, View::Unmapped);
        let mut arrived = self.arrived.lock();
        keep(&mut arrived.blocks, (serial, view));
        let unmapped = |block: &&mut (u64, View)| matches!(block.1, View::Unmapped(_));
        let mut waiting = arrived.blocks.iter_mut().rev().filter(unmapped);
        if let Some(block) = waiting.nth(MOST_UNMAPPED) {
            block.1 = View::Unusable;
        }
        Ok(())
    }
}

/// Takes all packets of a doorbell socket. An error: one is not of the protocol, and nothing more is
/// to be taken.
pub fn take_packets(socket: i32, mappings: Option<&Mappings>) -> os::Result<()> {
    /// Packets taken at a time from a peer that sends without end.
    const MOST_READS: usize = 1000;
    for _ in 0..MOST_READS {
        let (mut room, mut beside) = ([0; RECORD], Beside::default());
        match os::receive(socket, &mut room, &mut beside) {
            Ok(0) if beside.fds.is_empty() => break,
            Ok(count) => match mappings {
                Some(mappings) => mappings.take(&room[..count], beside.fds)?,
                None if beside.fds.is_empty() => {}
                None => return Err(libc::EPROTO),
            },
            Err(libc::EINTR) => {}
            Err(_) => break,
        }
    }
    Ok(())
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

    /// Has a memfd arrive as a block, and returns its mapping.
    fn arrive(mappings: &Mappings, serial: u64, memory: &Fd) -> os::Result<Option<Arc<Mapping>>> {
        let [here, there] = os::unix_pair().unwrap();
        let mut record = [BLOCK; RECORD];
        record[1..].copy_from_slice(&serial.to_ne_bytes());
        os::send(there.raw(), &record, &[memory.raw()]).unwrap();
        take_packets(here.raw(), Some(mappings))?;
        Ok(mappings.find(BlockAddress { serial, offset: 0 }))
    }

    fn memory(pages: usize, filled: usize) -> Fd {
        let memory = os::sealed_memory(c"test", pages * 4096).unwrap();
        os::fill_with_pages(&memory, filled * 4096).unwrap();
        memory
    }

    #[test]
    fn only_what_lies_in_a_block_is_mapped() {
        let view = arrive(&Mappings::default(), 5, &memory(3, 3)).unwrap().unwrap();
        assert_eq!(view.at(0, 3 * 4096), Some(view.at));
        assert_eq!(view.at(3 * 4096, 0), Some(view.at + 3 * 4096));
        for (offset, len) in [(0, 3 * 4096 + 1), (3 * 4096, 1), (usize::MAX, 2), (2, usize::MAX)] {
            assert_eq!(view.at(offset, len), None, "{offset} {len}");
        }
    }

    #[test]
    fn memory_without_pages_is_not_mapped_and_other_files_break_the_protocol() {
        let mappings = Mappings::default();
        assert!(arrive(&mappings, 1, &memory(3, 2)).unwrap().is_none());
        assert!(!mappings.is_expected(BlockAddress { serial: 1, offset: 0 }));
        let socket = os::unix_socket().unwrap();
        assert_eq!(arrive(&mappings, 2, &socket).err(), Some(libc::EPROTO));
        let [here, there] = os::unix_pair().unwrap();
        os::send(there.raw(), &[BLOCK; RECORD], &[memory(1, 1).raw()]).unwrap();
        assert_eq!(take_packets(here.raw(), None), Err(libc::EPROTO), "from a peer without proof");
    }

    /// A descriptor each would use up the program's numbers; mapped at once, its address space.
    #[test]
    fn blocks_are_mapped_by_the_first_message_and_few_wait_for_it() {
        let mappings = Mappings::default();
        let [here, there] = os::unix_pair().unwrap();
        let count = 2 * MOST_UNMAPPED as u64;
        for serial in 0..count {
            let mut record = [BLOCK; RECORD];
            record[1..].copy_from_slice(&serial.to_ne_bytes());
            os::send(there.raw(), &record, &[memory(1, 1).raw()]).unwrap();
        }
        take_packets(here.raw(), Some(&mappings)).unwrap();
        let views = |wanted: fn(&View) -> bool| {
            let arrived = mappings.arrived.lock();
            arrived.blocks.iter().filter(|(_, view)| wanted(view)).count()
        };
        assert_eq!(views(|view| matches!(view, View::Mapped(_))), 0);
        assert_eq!(views(|view| matches!(view, View::Unmapped(_))), MOST_UNMAPPED);
        let find = |serial| mappings.find(BlockAddress { serial, offset: 0 });
        assert!(find(count - 1).is_some() && find(0).is_none());
        assert_eq!(views(|view| matches!(view, View::Mapped(_))), 1);
        let place = BlockAddress { serial: 99, offset: 0 };
        assert!(mappings.is_expected(place));
        mappings.give_up(place);
        assert!(!mappings.is_expected(place));
    }
}
