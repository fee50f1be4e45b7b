//! Memory that no copy may write, to see whether one does.
//!
//! A page that was unpinned while a channel still wrote to it is given out again. So a
//! canary is made right after the moment in question, when the kernel gives out the pages
//! that have just become free.

use crate::memory::Region;
use crate::verdict::{Context, Outcome};

const SEED: u64 = 0x0ca_a71;

pub struct Canary(Region);

impl Canary {
    pub fn new(len: usize) -> Outcome<Canary> {
        let region = Region::anonymous(len)?;
        region.fill(SEED);
        Ok(Canary(region))
    }

    pub fn expect_alive(&self) -> Outcome {
        self.0.expect(SEED).context("memory outside the copy was written")
    }
}
