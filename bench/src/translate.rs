//! The papers' translation cache (translate.h), and what misses in it.

use std::collections::HashSet;

#[repr(C)]
struct Raw {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn study_new(sets: u32, ways: u32) -> *mut Raw;
    fn study_free(cache: *mut Raw);
    fn study_touch(cache: *mut Raw, space: u32, line: u64) -> i32;
    #[cfg(test)]
    fn study_drop(cache: *mut Raw, space: u32, line: u64);
    #[cfg(test)]
    fn study_set_of(cache: *mut Raw, space: u32, line: u64) -> u32;
}

/// C, L and A of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub entries: u32,
    pub line: u32,
    pub ways: u32,
}

pub struct Cache {
    raw: *mut Raw,
    line: u64,
    seen: HashSet<(u32, u64)>,
    pub lookups: u64,
    pub cold: u64,
    pub other: u64,
}

impl Cache {
    pub fn new(shape: Shape) -> Self {
        let sets = shape.entries / shape.line / shape.ways;
        assert!(sets.is_power_of_two(), "{shape:?}");
        // SAFETY: both numbers are above 0.
        let raw = unsafe { study_new(sets, shape.ways) };
        let line = shape.line.into();
        Self { raw, line, seen: HashSet::new(), lookups: 0, cold: 0, other: 0 }
    }

    /// One page of one process is needed.
    pub fn page(&mut self, space: u32, page: u64) {
        let line = page / self.line;
        self.lookups += 1;
        // SAFETY: `raw` is a cache of ours, and nobody else uses it.
        let hit = unsafe { study_touch(self.raw, space, line) } == 1;
        if !hit {
            // The first use of a line misses whatever the cache is like.
            match self.seen.insert((space, line)) {
                true => self.cold += 1,
                false => self.other += 1,
            }
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: made by `study_new`, and not used any more.
        unsafe { study_free(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same, as anybody would write it down: each set is a list, the youngest last.
    struct Naive {
        sets: Vec<Vec<(u32, u64)>>,
        ways: usize,
    }

    impl Naive {
        fn touch(&mut self, set: usize, key: (u32, u64)) -> bool {
            let list = &mut self.sets[set];
            let hit = list.iter().position(|&other| other == key);
            match hit {
                Some(at) => drop(list.remove(at)),
                None if list.len() == self.ways => drop(list.remove(0)),
                None => {}
            }
            list.push(key);
            hit.is_some()
        }

        fn drop(&mut self, set: usize, key: (u32, u64)) {
            self.sets[set].retain(|&other| other != key);
        }
    }

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *state >> 33
    }

    #[test]
    fn cache_agrees_with_the_naive_model_whatever_its_shape() {
        let mut state = 7;
        for (sets, ways) in [(1, 1), (1, 8), (2, 2), (16, 4), (64, 2), (64, 4), (256, 8)] {
            // SAFETY: both numbers are above 0.
            let raw = unsafe { study_new(sets, ways) };
            let mut naive = Naive { sets: vec![vec![]; sets as usize], ways: ways as usize };
            let lines = u64::from(sets * ways) * 3;
            for round in 0..100_000 {
                let key = (1 + random(&mut state) as u32 % 3, random(&mut state) % lines);
                // SAFETY: `raw` is ours until the end of the round.
                unsafe {
                    let set = study_set_of(raw, key.0, key.1) as usize;
                    if random(&mut state).is_multiple_of(16) {
                        study_drop(raw, key.0, key.1);
                        naive.drop(set, key);
                    } else {
                        let hit = study_touch(raw, key.0, key.1) == 1;
                        assert_eq!(hit, naive.touch(set, key), "{sets} x {ways}, round {round}");
                    }
                }
            }
            // SAFETY: made above.
            unsafe { study_free(raw) };
        }
    }

    #[test]
    fn sets_of_one_buffer_are_used_evenly_and_differ_between_processes() {
        // SAFETY: made, used and freed here.
        unsafe {
            let raw = study_new(64, 4);
            let mut used = [0; 64];
            (0x7f00_0000..0x7f00_0000 + 256u64)
                .for_each(|line| used[study_set_of(raw, 5, line) as usize] += 1);
            assert_eq!(used, [4; 64]);
            let sets: HashSet<u32> =
                (1..=32).map(|space| study_set_of(raw, space, 0x7f00_0000)).collect();
            assert!(sets.len() > 16, "32 processes meet in {} sets", sets.len());
            study_free(raw);
        }
    }

    #[test]
    fn misses_are_cold_once_and_other_after_that() {
        let mut cache = Cache::new(Shape { entries: 128, line: 64, ways: 2 });
        let touch = |cache: &mut Cache, page: u64| cache.page(1, page);
        (0..64).for_each(|page| touch(&mut cache, page));
        assert_eq!((cache.lookups, cache.cold, cache.other), (64, 1, 0));
        [64, 128, 0].into_iter().for_each(|page| touch(&mut cache, page));
        assert_eq!((cache.cold, cache.other), (3, 1), "the first one has made room for the third");
    }
}
