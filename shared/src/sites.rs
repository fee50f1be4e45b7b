//! Call sites: the code that has made the large calls, by return address, in a fixed table.
//!
//! An entry is claimed by one compare-and-swap and then only added to. The function's name is the
//! command's to find, in the symbol table of the module's file.

use crate::{Counters, Sums, Text};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use zerocopy::{FromBytes, IntoBytes};

const SITES: usize = 64;
const MODULES: usize = 16;
const NAME: usize = 244;
/// Entries that are probed for an address; then it is counted among the others.
const PROBES: usize = 8;

#[repr(C)] // lies in live files
#[derive(FromBytes, IntoBytes)]
pub struct Sites {
    sites: [Site; SITES],
    /// Calls that found no entry.
    others: Sums<3>,
    modules: [Module; MODULES],
}

#[repr(C)]
#[derive(FromBytes, IntoBytes)]
struct Site {
    /// Return address; 0: free.
    address: AtomicU64,
    /// Offset in the module's file, as in its symbols.
    offset: AtomicU64,
    /// Number of the module from 1 up; 0: not known.
    module: AtomicU64,
    /// Calls, bytes, ticks.
    sums: Sums<3>,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes)]
struct Module {
    /// 0: free; 1: being written; 2: can be read.
    state: AtomicU32,
    /// Name of the file; the program's own is empty.
    name: Text<NAME>,
    base: AtomicU64,
}

/// Module of an address: load address, and name of its file.
pub struct Origin<'a> {
    pub base: u64,
    pub name: &'a [u8],
}

/// Address, module (`None`: not known), offset in it, calls, bytes and ticks of one site.
pub struct Counted<'a> {
    /// Return address; 0: of all that found no entry.
    pub address: u64,
    pub module: Option<&'a [u8]>,
    pub offset: u64,
    pub calls: u64,
    pub bytes: u64,
    pub ticks: u64,
}

// SAFETY: every field is atomic, as the trait demands.
unsafe impl Counters for Sites {}

impl Sites {
    /// Counts a call; `origin` is asked once for each address. Address 0: not known.
    pub fn note<'a>(
        &self,
        address: u64,
        bytes: u64,
        ticks: u64,
        origin: impl FnOnce() -> Option<Origin<'a>>,
    ) {
        self.sums(address, origin).add([1, bytes, ticks]);
    }

    fn sums<'a>(&self, address: u64, origin: impl FnOnce() -> Option<Origin<'a>>) -> &Sums<3> {
        if address == 0 {
            return &self.others;
        }
        let hash = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
        for probe in 0..PROBES {
            let site = &self.sites[(hash + probe) % SITES];
            match site.address.load(Relaxed) {
                found if found == address => return &site.sums,
                0 => match site.address.compare_exchange(0, address, Relaxed, Relaxed) {
                    Ok(_) => {
                        let origin = origin();
                        let base = origin.as_ref().map_or(0, |origin| origin.base);
                        site.offset.store(address.wrapping_sub(base), Relaxed);
                        let module = origin.and_then(|origin| self.module(&origin));
                        site.module.store(module.map_or(0, |number| number as u64 + 1), Release);
                        return &site.sums;
                    }
                    Err(found) if found == address => return &site.sums,
                    Err(_) => {}
                },
                _ => {}
            }
        }
        &self.others
    }

    /// Returns the index of a module, which may be a new one; `None`: there is no room.
    fn module(&self, origin: &Origin<'_>) -> Option<usize> {
        for (number, module) in self.modules.iter().enumerate() {
            match module.state.compare_exchange(0, 1, Acquire, Acquire) {
                Ok(_) => {
                    module.base.store(origin.base, Relaxed);
                    module.name.set(origin.name);
                    module.state.store(2, Release);
                    return Some(number);
                }
                Err(2) if module.base.load(Relaxed) == origin.base => return Some(number),
                Err(_) => {} // a duplicate of one that is just being written does no harm
            }
        }
        None
    }

    /// Calls `use_it` with every entry whose count is not zero.
    pub fn for_each(&self, mut use_it: impl FnMut(&Counted<'_>)) {
        for site in &self.sites {
            let mut room = [0; NAME];
            let number = site.module.load(Acquire).wrapping_sub(1) as usize;
            let module = self.modules.get(number).map(|module| module.name.get(&mut room));
            let place = [&site.address, &site.offset].map(|number| number.load(Relaxed));
            hand_to(&site.sums, module, place, &mut use_it);
        }
        hand_to(&self.others, None, [0, 0], &mut use_it);
    }

    pub fn absorb(&self, from: &Self) {
        self.others.absorb(&from.others);
        for site in &from.sites {
            let address = site.address.load(Relaxed);
            if address == 0 {
                continue;
            }
            let mut room = [0; NAME];
            let number = site.module.load(Acquire).wrapping_sub(1) as usize;
            let module = from.modules.get(number);
            let name = module.map(|module| (module.base.load(Relaxed), module.name.get(&mut room)));
            let origin = || name.map(|(base, name)| Origin { base, name });
            self.sums(address, origin).absorb(&site.sums);
        }
    }
}

fn hand_to(
    sums: &Sums<3>,
    module: Option<&[u8]>,
    [address, offset]: [u64; 2],
    use_it: &mut impl FnMut(&Counted<'_>),
) {
    let [calls, bytes, ticks] = sums.get();
    if calls > 0 {
        use_it(&Counted { address, module, offset, calls, bytes, ticks });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    fn listed(sites: &Sites) -> Vec<(Option<String>, u64, u64, u64)> {
        let mut all = Vec::new();
        sites.for_each(|site| {
            let module = site.module.map(|name| String::from_utf8_lossy(name).into_owned());
            all.push((module, site.offset, site.calls, site.bytes));
        });
        all.sort();
        all
    }

    #[test]
    fn sites_are_counted_by_address_and_asked_for_once() {
        let (sites, mut asked) = (Sites::ZERO, 0);
        for _ in 0..3 {
            sites.note(0x1234, 10, 1, || {
                asked += 1;
                Some(Origin { base: 0x1000, name: b"/lib/a.so" })
            });
        }
        sites.note(0x99, 7, 1, || None);
        sites.note(0, 5, 1, || unreachable!());
        let expected =
            [(None, 0, 1, 5), (None, 0x99, 1, 7), (Some("/lib/a.so".into()), 0x234, 3, 30)];
        assert_eq!((asked, listed(&sites)), (1, expected.to_vec()));
        let other = Sites::ZERO;
        other.absorb(&sites);
        assert_eq!((listed(&other), listed(&sites)), (expected.to_vec(), Vec::new()));
        other.clear();
        assert_eq!(listed(&other), []);
    }

    #[test]
    fn sites_without_room_are_counted_together_and_nothing_is_lost() {
        let sites = Sites::ZERO;
        for number in 1..=200u64 {
            let base = number % 40 * 0x1000;
            sites.note(base + number, 1, 1, || Some(Origin { base, name: &[b'x'; 300] }));
        }
        let all = listed(&sites);
        assert_eq!(all.iter().map(|site| site.2).sum::<u64>(), 200);
        assert!(all.len() <= SITES + 1);
        let names = all.iter().filter_map(|site| site.0.as_ref());
        assert!(names.clone().count() > 0 && names.clone().all(|name| name.len() == NAME));
    }
}
