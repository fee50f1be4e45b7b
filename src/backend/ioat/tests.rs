//! The engine against a helper that makes every trouble the real one may make.

mod bytes;
mod pieces;
mod signals;
mod start;
mod trouble;

use super::*;
use crate::backend::ioat::fake::{Kernel, Trouble};
use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const HOW: Options = Options { channels: None, share: Some(0.0), spins: false };
const LATE: Duration = Duration::from_millis(3);
/// Later than a caller comes that has to wait for a CPU.
const VERY_LATE: Duration = Duration::from_millis(300);

fn engine(kernel: &'static Kernel) -> Engine {
    crate::backend::libc::resolve();
    workers::settle_in();
    let engine = Engine::new();
    engine.helper.set_fake(kernel);
    assert!(engine.start(crate::os::sys::NoNewFilter::look().unwrap()));
    engine
}

/// One copy of `len` bytes between the given offsets into pages: every byte of it is right
/// and none beside it touched, and nothing is under way when it has returned.
fn copy_at(
    engine: &Engine,
    (dst_at, src_at): (usize, usize),
    len: usize,
    how: &Options,
) -> Result<(), Refused> {
    let kernel = engine.helper.fake().unwrap();
    // As long as a prime number, so that no two pages are alike.
    let block: Vec<u8> = (0..65_521).map(|i: usize| (i * 31 + i / 251 + len) as u8).collect();
    let source = block.repeat(len / block.len() + 2);
    let mut target = vec![0xeeu8; len + 4 * PAGE];
    let page = (target.as_ptr() as usize).next_multiple_of(PAGE) - target.as_ptr() as usize;
    let from = (source.as_ptr() as usize).next_multiple_of(PAGE) - source.as_ptr() as usize;
    let (to, from) = (page + dst_at, from + src_at);
    let (dst, src) = (target.as_mut_ptr() as usize + to, source.as_ptr() as usize + from);
    // SAFETY: inside both vectors.
    let done = unsafe { engine.copy(dst, src, len, how) };
    assert_eq!(kernel.under_way(), 0, "returned while the engine writes");
    assert_eq!(engine.lists.taken.load(Ordering::Relaxed), 0, "a list was not given back");
    if done.is_ok() {
        let right = target[to..to + len] == source[from..from + len];
        assert!(right, "{len} bytes from {src_at} to {dst_at}, {how:?}");
    }
    assert!(target[..to].iter().all(|&byte| byte == 0xee), "written before the copy");
    assert!(target[to + len..].iter().all(|&byte| byte == 0xee), "written behind the copy");
    done
}

fn copy(engine: &Engine, len: usize) -> Result<(), Refused> {
    copy_at(engine, (40, 17), len, &HOW)
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn lens(kernel: &Kernel) -> Vec<usize> {
    kernel.seen.lock().unwrap().iter().map(|piece| piece.len as usize).collect()
}

fn channels(kernel: &Kernel) -> Vec<u32> {
    kernel.seen.lock().unwrap().iter().map(|piece| piece.channel).collect()
}
