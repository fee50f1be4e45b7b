//! What a user may lock.

use crate::device::*;
use crate::effort::{PATIENCE, eventually};
use crate::faults::Bench;
use crate::memory::{PAGE, Region};
use crate::process::{become_nobody, fork, limit_locked_memory};
use crate::verdict::{Context, Outcome};
use std::time::Duration;

tests! {
    limit_of_locked_memory_is_enomem_beyond_and_kept_below
    limit_of_locked_memory_counts_what_is_under_way
    limit_of_locked_memory_does_not_bind_root
}

const SMALL: usize = 4 * PAGE;
const LARGE: usize = 64 * PAGE;
const LIMIT: usize = 16 * PAGE;

struct Buffers {
    dst: Region,
    src: Region,
}

impl Buffers {
    fn new() -> Outcome<Buffers> {
        let (dst, src) = (Region::of_small_pages(LARGE)?, Region::of_small_pages(LARGE)?);
        src.fill(1);
        Ok(Buffers { dst, src })
    }

    fn piece(&self, len: usize) -> Piece {
        Piece::new(&self.dst, 0, &self.src, 0, len)
    }
}

fn limit_of_locked_memory_is_enomem_beyond_and_kept_below() -> Outcome {
    let child = fork(|| {
        let device = Device::open()?;
        let buffers = Buffers::new()?;
        limit_locked_memory(LIMIT as u64)?;
        become_nobody()?;
        // Ten times the limit in all: what is over must have been given back.
        for round in 0..10 * LIMIT / SMALL {
            device.carry(&mut [buffers.piece(SMALL)]).context(format_args!("round {round}"))?;
            let Submitted { result, out } = device.submit(&mut [buffers.piece(LARGE)]);
            ensure_eq!((result, out.accepted), (Err(ENOMEM), 0), "beyond the limit, round {round}");
        }
        // The first pieces fit, the others do not.
        let mut pieces = buffers.piece(LARGE).split(LARGE / SMALL, 1);
        let Submitted { result, out } = device.submit(&mut pieces);
        ensure_eq!(result, Err(ENOMEM), "pieces beyond the limit");
        ensure!((1..=LIMIT / SMALL).contains(&(out.accepted as usize)), "{out:?}");
        ensure_eq!(device.end(&out)?, 0, "failed pieces");
        buffers
            .dst
            .expect_part(0, out.accepted as usize * SMALL, 1)
            .context("the pieces that fitted")
    })?;
    child.succeed()
}

fn limit_of_locked_memory_counts_what_is_under_way() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    let child = fork(|| {
        let device = Device::keeping_nothing()?;
        let buffers = Buffers::new()?;
        // Both sides of one small copy, and a little more.
        limit_locked_memory(3 * SMALL as u64)?;
        become_nobody()?;
        // Piece by piece, so that it takes its time; on a busy host it may be over all the
        // same before the second one is asked for.
        let mut seen = (Ok(()), Ok(0));
        for _ in 0..20 {
            let first = device.start(&mut buffers.piece(SMALL).split(SMALL / PAGE, 1))?;
            // A look before: what is refused is refused when all that it had begun is over,
            // and that may have been behind the first one.
            let look = device.wait(first.id, Duration::ZERO);
            let second = device.submit(&mut [buffers.piece(SMALL)]);
            seen = (second.result, look);
            ensure_eq!(device.end(&first)?, 0, "failed pieces");
            if second.result.is_ok() {
                ensure_eq!(device.end(&second.out)?, 0, "failed pieces");
            }
            if seen == (Err(ENOMEM), Err(EAGAIN)) {
                break;
            }
        }
        ensure_eq!(seen, (Err(ENOMEM), Err(EAGAIN)), "a second copy at once");
        let again = || device.submit(&mut [buffers.piece(SMALL)]).result.is_ok();
        ensure!(eventually(PATIENCE, again), "the limit is not given back");
        Ok(())
    })?;
    child.succeed()
}

fn limit_of_locked_memory_does_not_bind_root() -> Outcome {
    let child = fork(|| {
        let device = Device::open()?;
        let buffers = Buffers::new()?;
        limit_locked_memory(0)?;
        device.carry(&mut [buffers.piece(LARGE)])?;
        buffers.dst.expect(1).context("with CAP_IPC_LOCK")
    })?;
    child.succeed()
}
