//! Channels that keep no order, the queues of idxd: `tests/vm/run --provider dsa provider`.
//!
//! Every second descriptor is overtaken by others, and nothing completes without an interrupt.
//! Words must still be right. `copy` and `wreck_unbind` run on them as well.

use super::*;

const LEN: usize = 32 * PAGE;
const PIECES: usize = 8;

/// Delays every second transfer by `ms`. Skipped on channels with order.
fn disordered(ms: u32) -> Outcome<(Bench, Device)> {
    if !is_dsa() {
        skip!("the channels keep their order; try --provider dsa");
    }
    let bench = Bench::new()?;
    if ms > 0 {
        bench.arm_all(Fault::always(Kind::Overtaken).value(ms))?;
    }
    Ok((bench, Device::open()?))
}

/// Maps two regions of pages that are not contiguous: a transfer for each page.
fn scattered() -> Outcome<(Region, Region)> {
    Ok((Region::of_scattered_pages(LEN)?, Region::of_scattered_pages(LEN)?))
}

/// Waits until `channels` channels are in use.
fn expect_usable(device: &Device, channels: usize) -> Outcome {
    let usable = || device.info().is_ok_and(|info| info.usable as usize == channels);
    ensure!(eventually(PATIENCE, usable), "{:?}, want {channels} usable", device.info()?);
    Ok(())
}

/// Waits for the end of a request of which pieces may fail, which are named.
fn expect_named(device: &Device, request: &Submit, watched: &Watched<'_>) -> Outcome<u64> {
    let failed = device.end(request)?;
    println!("failed pieces: {failed:#x}");
    watched.expect_copied_but_for(|at| failed >> (at / (LEN / PIECES)) & 1 != 0)?;
    Ok(failed)
}

/// Required by old I/OAT engines, and by the software provider.
pub fn provider_source_that_is_not_aligned_is_einval() -> Outcome {
    let device = Device::open()?;
    let align = device.info()?.src_align as usize;
    if align == 1 {
        skip!("the channels read from anywhere; try --provider software");
    }
    let (dst, src) = scattered()?;
    let watched = Watched::new(&dst, 0, &src, align, 3 * PAGE, PAGE);
    device.carry(&mut [watched.piece()])?;
    watched.expect_copied()?;
    let odd = Piece::new(&dst, 0, &src, align / 2, PAGE);
    ensure_eq!(device.submit(&mut [odd]).result, Err(EINVAL), "a source that is not aligned");
    Ok(())
}

/// On one channel, and over all of them.
pub fn provider_without_order_words_follow_the_data() -> Outcome {
    let (bench, device) = disordered(1)?;
    let words = device.all_words()?;
    let (dst, src) = scattered()?;
    let all = device.info()?.channels;
    let mut by_words = 0;
    for round in 0..rounds(100) {
        src.fill(round as u64);
        let channels = if round % 2 == 0 { 1 } else { all };
        let mut pieces = Piece::new(&dst, 0, &src, 0, LEN).split(PIECES, channels);
        let request = device.start(&mut pieces)?;
        // A first copy, in flight while the rest of it is pinned, promises none.
        if wait_by_words(&words, &request)? {
            by_words += 1;
            dst.expect(round as u64).context(format_args!("round {round}, by words"))?;
        }
        device.finish(&request)?;
    }
    println!("{by_words} copies by words");
    ensure!(by_words > 0 && bench.struck()? > 0, "nothing was overtaken, or no word promised");
    Ok(())
}

/// When it has returned nothing is written any more, whatever was answered first.
pub fn provider_without_order_munmap_waits_for_every_transfer() -> Outcome {
    let (_bench, device) = disordered(2)?;
    let src = Region::of_scattered_pages(LEN)?;
    src.fill(7);
    for round in 0..rounds(20) {
        let file = memory_file(LEN)?;
        let view = || Region::of_file(&file, libc::MAP_SHARED);
        let (dst, other) = (view()?, view()?);
        dst.touch();
        let request = device.start(&mut Piece::new(&dst, 0, &src, 0, LEN).split(PIECES, 1))?;
        dst.unmap_part(0, LEN)?;
        other.fill(round as u64);
        device.finish(&request)?;
        other.expect(round as u64).context("written after munmap")?;
    }
    Ok(())
}

/// idxd sleeps when its queue is full, and a queue that hangs would never wake it.
pub fn provider_without_order_more_transfers_than_entries_are_right() -> Outcome {
    let (bench, device) = disordered(0)?;
    bench.arm_all(Fault::always(Kind::Slow).value(300))?;
    let (dst, src) = scattered()?;
    src.fill(5);
    for _ in 0..rounds(8) {
        device.carry_in_turn(&mut Piece::new(&dst, 0, &src, 0, LEN).split(PIECES, 1))?;
    }
    Ok(dst.expect(5)?)
}

/// Some pieces fail, they are named, and all others are right.
pub fn provider_error_half_way_names_the_pieces() -> Outcome {
    let (bench, device) = disordered(1)?;
    let (dst, src) = scattered()?;
    let places = bench.find_channels(&device)?;
    let channels = places.len() as u32;
    for (number, kind) in [Kind::Write, Kind::Read, Kind::Other].into_iter().enumerate() {
        expect_usable(&device, places.len())?;
        let watched = Watched::new(&dst, 0, &src, 0, LEN, 0);
        let mut pieces = watched.piece().split(PIECES, channels);
        let before = Statistics::now()?;
        let bad = number % places.len();
        bench.arm(places[bad], Fault::once(kind).after(3 * number as u32))?;
        let request = device.start(&mut pieces)?;
        let failed = expect_named(&device, &request, &watched).context(format_args!("{kind:?}"))?;
        ensure_eq!(Statistics::now()?.since(&before).errors, 1, "errors");
        let of_channel = |piece: &usize| pieces[*piece].channel as usize == bad;
        let is_failed = |piece: &usize| failed >> piece & 1 != 0;
        ensure!((0..PIECES).any(|piece| is_failed(&piece)), "no piece failed");
        ensure!((0..PIECES).filter(is_failed).all(|piece| of_channel(&piece)), "{failed:#x}");
        // Sixty-four good ones compensate for it.
        for _ in 0..64 {
            for channel in 0..channels {
                device.carry_in_turn(&mut [Piece::new(&dst, 0, &src, 0, PAGE).on(channel)])?;
            }
        }
    }
    Ok(())
}

/// The queues return only when the module is loaded again; requests keep ending.
pub fn provider_error_again_and_again_leaves_the_queues_out() -> Outcome {
    let (bench, device) = disordered(0)?;
    kernel::announce("adma");
    let (dst, src) = scattered()?;
    src.fill(1);
    bench.arm_all(Fault::always(Kind::Write))?;
    let given_up = eventually(2 * PATIENCE, || {
        let Submitted { result, out } = device.submit(&mut [Piece::new(&dst, 0, &src, 0, PAGE)]);
        if out.accepted > 0 {
            let _ = device.wait(out.id, PATIENCE);
        }
        sleep(Duration::from_millis(20));
        result == Err(ENODEV)
    });
    drop((device, bench));
    modules::load_again()?;
    ensure!(given_up, "channels that fail are still in use");
    let again = Device::open()?;
    again.carry(&mut [Piece::new(&dst, 0, &src, 0, LEN)])?;
    Ok(dst.expect(1)?)
}

/// idxd looks at its records at an interrupt only: the probe's brings the answers.
pub fn provider_error_lost_interrupt_is_made_up_for() -> Outcome {
    let (bench, device) = disordered(0)?;
    let (dst, src) = scattered()?;
    let places = bench.find_channels(&device)?;
    src.fill(2);
    let before = bench.struck()?;
    bench.arm(places[0], Fault::once(Kind::Lost))?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, PAGE).on(0)])?;
    ensure_eq!(bench.struck()? - before, 1, "interrupts lost");
    dst.expect_part(0, PAGE, 2)?;
    expect_usable(&device, places.len())
}

/// Every piece is copied or named, nothing is written afterwards, and the next load of the module
/// finds the queue again.
pub fn provider_error_disabled_queue_ends_every_request() -> Outcome {
    kernel::announce("idxd|adma");
    let (dst, src) = scattered()?;
    for queue in [0, 1] {
        let (bench, device) = disordered(1)?;
        let channels = device.info()?.channels;
        bench.arm_all(Fault::always(Kind::Slow).value(10_000))?;
        let watched = Watched::new(&dst, 0, &src, 0, LEN, 0);
        let request = device.start(&mut watched.piece().split(PIECES, channels))?;
        fs::write("/sys/bus/dsa/drivers/dmaengine/unbind", format!("wq0.{queue}"))?;
        expect_named(&device, &request, &watched)?;
        let refused = device.submit(&mut [Piece::new(&dst, 0, &src, 0, PAGE)]).result;
        ensure_eq!(refused, Err(ENODEV), "with the queues given back");
        drop((bench, device));
        modules::reload()?;
        Device::open()?.carry(&mut watched.piece().split(PIECES, channels))?;
    }
    Ok(())
}

/// Until the DSA is unbound: that resets it, and the transfer is dead.
pub fn provider_error_hung_queue_holds_up_its_own_copies_only() -> Outcome {
    if kernel::has_checkers() {
        skip!("idxd writes to a channel that it has freed when a queue that hangs is unbound");
    }
    let (bench, device) = disordered(0)?;
    kernel::announce("idxd|adma");
    let places = bench.find_channels(&device)?;
    let channels = places.len() as u32;
    if channels == 1 {
        skip!("needs another queue beside the one that hangs");
    }
    let (dst, src) = scattered()?;
    bench.arm(places[0], Fault::always(Kind::Hang).after(2))?;
    let watched = Watched::new(&dst, 0, &src, 0, LEN, 0);
    let request = device.start(&mut watched.piece().split(PIECES, channels))?;
    expect_usable(&device, places.len() - 1)?;
    let (to, from) = scattered()?;
    for seed in 1..20 {
        from.fill(seed);
        device.carry_in_turn(&mut Piece::new(&to, 0, &from, 0, LEN).split(PIECES, channels))?;
        to.expect(seed)?;
    }
    ensure_eq!(device.wait(request.id, Duration::ZERO), Err(EAGAIN), "what hangs");
    fs::write("/sys/bus/dsa/drivers/idxd/unbind", "dsa0")?;
    let failed = expect_named(&device, &request, &watched)?;
    ensure!(failed != 0, "nothing of what hung has failed");
    drop((device, bench));
    modules::reload()
}
