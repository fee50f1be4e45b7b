//! Channels that keep no order, as those of idxd: `tests/vm/run --provider hostile provider`.
//!
//! Of two workers of each channel one begins at the end of the queue, nothing is answered
//! without an interrupt, and transfers are limited in length and alignment. What a word says
//! must be true all the same. `copy`, `kept` and `ring` run on them as well.

use crate::device::*;
use crate::effort::{PATIENCE, eventually, rounds};
use crate::kernel::{Parameter, Statistics, reserve_huge_pages};
use crate::memory::{HUGE, Kind, PAGE, Region};
use crate::oracle::Watched;
use crate::verdict::{Context, Outcome};
use std::time::Duration;

tests! {
    provider_without_order_words_follow_the_data
    provider_without_order_munmap_waits_for_every_transfer
    provider_without_order_transfers_are_short_and_aligned
    provider_error_in_the_middle_names_the_pieces
    provider_error_again_and_again_leaves_the_channels_out
}

const LEN: usize = 32 * PAGE;

/// Skipped on channels with order. So slow are half of the transfers.
fn slowed(us: u64) -> Outcome<(Parameter, Device)> {
    if std::env::var("GUEST_PROVIDER").as_deref() != Ok("hostile") {
        skip!("the channels keep their order; try --provider hostile");
    }
    Ok((Parameter::set("adma_soft", "delay", us)?, Device::open()?))
}

/// Scattered pages, a transfer each: on one channel, and over all of them.
fn provider_without_order_words_follow_the_data() -> Outcome {
    let (_delay, device) = slowed(500)?;
    let words = device.all_words()?;
    let (dst, src) = (Region::of_scattered_pages(LEN)?, Region::of_scattered_pages(LEN)?);
    let all = device.info()?.channels;
    // A first copy, some of which was in flight while the rest was pinned, promises no word.
    device.carry(&mut Piece::new(&dst, 0, &src, 0, LEN).split(8, all))?;
    for round in 0..rounds(100) {
        src.fill(round as u64);
        let channels = if round % 2 == 0 { 1 } else { all };
        let mut pieces = Piece::new(&dst, 0, &src, 0, LEN).split(8, channels);
        let request = device.start(&mut pieces)?;
        ensure!(wait_by_words(&words, &request)?, "no word was promised");
        dst.expect(round as u64).context(format_args!("round {round}, by words"))?;
        ensure_eq!(device.end(&request)?, 0, "failed pieces");
    }
    Ok(())
}

/// When it has returned nothing is written any more, whatever was answered first.
fn provider_without_order_munmap_waits_for_every_transfer() -> Outcome {
    let (_delay, device) = slowed(2000)?;
    let src = Region::of_scattered_pages(LEN)?;
    src.fill(7);
    for round in 0..rounds(20) {
        let file = crate::memory::memory_file(LEN)?;
        let view = |file: &std::fs::File| {
            use std::os::fd::AsRawFd;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            Region::map_file(file.as_raw_fd(), 0, LEN, rights, libc::MAP_SHARED)
        };
        let (dst, other) = (view(&file)?, view(&file)?);
        dst.touch();
        let request = device.start(&mut Piece::new(&dst, 0, &src, 0, LEN).split(8, 1))?;
        dst.unmap_part(0, LEN)?;
        other.fill(round as u64);
        ensure_eq!(device.end(&request)?, 0, "failed pieces");
        other.expect(round as u64).context("written after munmap")?;
    }
    Ok(())
}

fn provider_without_order_transfers_are_short_and_aligned() -> Outcome {
    let (_delay, device) = slowed(0)?;
    ensure_eq!(device.info()?.src_align, 8, "alignment of sources");
    reserve_huge_pages(4)?;
    let (dst, src) =
        (Region::of_kind(Kind::Huge, 2 * HUGE)?, Region::of_kind(Kind::Huge, 2 * HUGE)?);
    src.fill(3);
    let before = Statistics::now()?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, 2 * HUGE)])?;
    dst.expect(3)?;
    let moved = Statistics::now()?.since(&before);
    println!("{} transfers for {} bytes", moved.descriptors, 2 * HUGE);
    ensure!(moved.descriptors >= 4, "transfers of more than 1 MiB: {moved:?}");
    ensure_eq!(moved.ring_full, 0, "transfers that were not taken");
    let watched = Watched::new(&dst, 0, &src, 8, 3 * PAGE, PAGE);
    device.carry(&mut [watched.piece()])?;
    watched.expect_copied()?;
    let odd = Piece::new(&dst, 0, &src, 4, PAGE);
    ensure_eq!(device.submit(&mut [odd]).result, Err(EINVAL), "a source that is not aligned");
    Ok(())
}

/// Some pieces fail, they are named, and all others are right.
fn provider_error_in_the_middle_names_the_pieces() -> Outcome {
    const PIECES: usize = 8;
    let (_delay, device) = slowed(300)?;
    let (dst, src) = (Region::of_scattered_pages(LEN)?, Region::of_scattered_pages(LEN)?);
    let channels = device.info()?.channels;
    for nth in [1, 2, 7, 20, LEN / PAGE] {
        let usable = || device.info().is_ok_and(|info| info.usable == channels);
        ensure!(eventually(PATIENCE, usable), "a channel does not come back");
        let watched = Watched::new(&dst, 0, &src, 0, LEN, 0);
        let mut pieces = watched.piece().split(PIECES, channels);
        let before = Statistics::now()?;
        let fail = Parameter::set("adma_soft", "fail", nth as u64)?;
        let request = device.start(&mut pieces)?;
        let failed = device.end(&request)?;
        drop(fail);
        println!("transfer {nth} failed: pieces {failed:#x}");
        ensure_eq!(Statistics::now()?.since(&before).errors, 1, "errors");
        ensure!(failed != 0, "transfer {nth} failed, and no piece did");
        let of_channel: Vec<u32> =
            (0..PIECES).filter(|i| failed >> i & 1 != 0).map(|i| pieces[i].channel).collect();
        ensure!(of_channel.iter().all(|c| *c == of_channel[0]), "failed on {of_channel:?}");
        let left = |at: usize| failed >> (at / (LEN / PIECES)) & 1 != 0;
        watched.expect_copied_but_for(left).context(format_args!("transfer {nth}"))?;
        // Sixty-four good ones make up for it.
        for _ in 0..64 {
            for channel in 0..channels {
                device.carry_in_turn(&mut [Piece::new(&dst, 0, &src, 0, PAGE).on(channel)])?;
            }
        }
    }
    Ok(())
}

/// And comes back only with the module; requests end all the time.
fn provider_error_again_and_again_leaves_the_channels_out() -> Outcome {
    let (_delay, device) = slowed(0)?;
    crate::kernel::announce("adma");
    let (dst, src) = (Region::of_scattered_pages(LEN)?, Region::of_scattered_pages(LEN)?);
    src.fill(1);
    let given_up = eventually(2 * PATIENCE, || {
        let _fail = Parameter::set("adma_soft", "fail", 1);
        let Submitted { result, out } = device.submit(&mut [Piece::new(&dst, 0, &src, 0, PAGE)]);
        if out.accepted > 0 {
            let _ = device.wait(out.id, PATIENCE);
        }
        std::thread::sleep(Duration::from_millis(20));
        result == Err(ENODEV)
    });
    drop(device);
    crate::modules::load_again()?;
    ensure!(given_up, "channels that fail are still in use");
    let again = Device::open()?;
    again.carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)])?;
    Ok(dst.expect(1)?)
}
