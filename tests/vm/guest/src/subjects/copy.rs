//! Right bytes in the right places, for every size and offset.

use super::*;

/// One copy in `parts` pieces on `channels` channels.
fn copy(
    pair: &Pair,
    dst_at: usize,
    src_at: usize,
    len: usize,
    parts: usize,
    channels: u32,
) -> Outcome {
    let src_at = pair.device.source(src_at)?;
    let watched = Watched::new(&pair.dst, dst_at, &pair.src, src_at, len, 2 * ALIGN);
    let place = format!("to {dst_at} from {src_at}, {len} bytes in {parts} pieces");
    pair.device.carry(&mut watched.piece().split(parts, channels)).context(&place)?;
    watched.expect_copied().context(&place)
}

pub fn copy_every_source_offset_is_right() -> Outcome {
    let pair = Pair::new(8 * PAGE)?;
    let align = pair.device.info()?.src_align as usize;
    let offsets = (0..=64).chain([65, 127, 128, 1000, 2048, 3000, 4032, 4033, 4094, 4095]);
    for offset in offsets.filter(|offset| offset % align == 0) {
        for len in [ALIGN, 1024, PAGE, PAGE + ALIGN] {
            copy(&pair, PAGE, PAGE + offset, len, 1, 1)?;
        }
    }
    for offset in [0, 1, 33, 2048, 4095].into_iter().filter(|offset| offset % align == 0) {
        for dst_at in [PAGE + ALIGN, 2 * PAGE - ALIGN, PAGE + 2048] {
            copy(&pair, dst_at, PAGE + offset, 3 * PAGE + ALIGN, 1, 1)?;
        }
    }
    Ok(())
}

pub fn copy_every_size_is_right() -> Outcome {
    let pair = Pair::new(8 * PAGE)?;
    for len in (ALIGN..=2 * PAGE + ALIGN).step_by(ALIGN) {
        copy(&pair, PAGE + 2048, PAGE, len, 1, 1)?;
        copy(&pair, PAGE, PAGE + 4095, len, 1, 1)?;
    }
    Ok(())
}

/// The first and the last bytes of both sides: one byte too much faults, or is refused.
pub fn copy_at_the_edge_of_memory_is_right() -> Outcome {
    let pair = Pair::new(4 * PAGE)?;
    let end = pair.dst.len();
    for len in [ALIGN, PAGE - ALIGN, PAGE, 2 * PAGE + ALIGN, end] {
        copy(&pair, 0, 0, len, 1, 1)?;
        copy(&pair, end - len, end - len, len, 1, 1)?;
        copy(&pair, 0, end - len, len, 1, 1)?;
        copy(&pair, end - len, 0, len, 1, 1)?;
    }
    Ok(())
}

pub fn copy_at_random_is_right() -> Outcome {
    const LARGEST: usize = 1 << 20;
    let pair = Pair::new(LARGEST + 3 * PAGE)?;
    let mut random = Random::new(7);
    for _ in 0..rounds(24) {
        let mut below = |limit: usize| random.below(limit as u64) as usize;
        // As many copies between 512 KiB and 1 MiB as between 4 and 8 KiB.
        let limit = LARGEST >> below(9);
        let len = (limit / 2 + below(limit / 2)).next_multiple_of(ALIGN);
        let (dst_at, src_at) = (PAGE + below(PAGE / ALIGN) * ALIGN, PAGE + below(PAGE));
        copy(&pair, dst_at, src_at, len, 1 + below(8), pair.channels)?;
    }
    copy(&pair, PAGE, PAGE, LARGEST, pair.channels as usize, pair.channels)
}

/// As many pieces as a request may have, of different lengths, in no order, on all channels.
pub fn copy_of_many_pieces_is_right() -> Outcome {
    let pair = Pair::new(80 * PAGE)?;
    let mut random = Random::new(3);
    for round in 0..4 {
        let len = 64 * PAGE + 640 * round;
        let src_at = pair.device.source(PAGE + 77)?;
        let watched = Watched::new(&pair.dst, PAGE, &pair.src, src_at, len, PAGE);
        let mut pieces = watched.piece().split(MAX_PIECES, pair.channels);
        for i in (1..pieces.len()).rev() {
            pieces.swap(i, random.below(i as u64 + 1) as usize);
        }
        if round % 2 == 1 {
            pieces.iter_mut().for_each(|piece| piece.channel = CHANNEL_ANY);
        }
        pair.device.carry(&mut pieces)?;
        watched.expect_copied()?;
        ensure!(pieces.iter().all(|piece| piece.channel < pair.channels), "{pieces:?}");
    }
    Ok(())
}

/// The contents that such pieces write are undefined, but not the place.
pub fn copy_of_overlapping_pieces_writes_nothing_else() -> Outcome {
    kernel::announce_overlap();
    let pair = Pair::new(20 * PAGE)?;
    let len = 8 * PAGE;
    let watched = Watched::new(&pair.dst, 4 * PAGE, &pair.src, 4 * PAGE, len, 2 * PAGE);
    let whole = watched.piece();
    let mut pieces: Vec<Piece> = (0..8u64)
        .map(|i| {
            let (dst, len) = (whole.dst + i * 2048, whole.len - i * 2048);
            Piece { dst, len, channel: i as u32 % pair.channels, ..whole }
        })
        .collect();
    pair.device.carry(&mut pieces)?;
    watched.expect_copied_but_for(|_| true)?;

    // Within one buffer, where both sides of a piece overlap.
    pair.dst.fill(5);
    let onto_itself = Piece::new(&pair.dst, PAGE + 64, &pair.dst, PAGE, len);
    pair.device.carry(&mut [onto_itself])?;
    pair.dst.expect_part(0, PAGE + 64, 5).context("before the piece")?;
    let behind = PAGE + 64 + len;
    pair.dst.expect_part(behind, pair.dst.len() - behind, 5).context("behind the piece")
}

pub fn copy_by_words_needs_no_call() -> Outcome {
    let pair = Pair::new(40 * PAGE)?;
    let device = &pair.device;
    let words = device.all_words()?;
    let (rounds, mut by_words) = (rounds(60), 0);
    for round in 0..rounds {
        let len = (1 + round % 32) * PAGE;
        let src_at = device.source(PAGE + round % 64)?;
        let watched = Watched::new(&pair.dst, PAGE, &pair.src, src_at, len, ALIGN);
        let mut pieces = watched.piece().split(1 + round % 7, pair.channels);
        let request = device.start(&mut pieces)?;
        if wait_by_words(&words, &request)? {
            by_words += 1;
        } else {
            device.finish(&request)?;
        }
        watched.expect_copied().context(format_args!("round {round}"))?;
        let used = pieces.iter().fold(0, |mask, piece| mask | 1 << piece.channel);
        ensure_eq!(request.channels & !used, 0, "channels that were given nothing");
        for channel in (0..pair.channels).filter(|channel| request.channels & 1 << channel != 0) {
            let word = words[channel as usize].of(request.slot);
            ensure_eq!(word, request.id, "word {} of channel {channel}", request.slot);
        }
    }
    println!("{by_words} of {rounds} copies were told by words alone");
    ensure!(2 * by_words > rounds, "only {by_words} of {rounds} copies were told by words alone");
    Ok(())
}

/// Order holds on one channel only, and there only behind a fence: here the engine lets small
/// transfers overtake all others.
pub fn copy_is_not_overtaken_by_its_words() -> Outcome {
    let pair = Pair::new(40 * PAGE)?;
    let bench = Bench::new()?;
    let struck = bench.struck()?;
    let device = &pair.device;
    // A queue of idxd has room for few transfers, and refuses others before long.
    bench.arm_all(Fault::always(Kind::Overtaken).value(if is_dsa() { 2 } else { 30 }))?;
    let words = device.all_words()?;
    let mut by_words = 0;
    for round in 0..rounds(20).max(5) {
        // Fresh memory is pinned in chunks, each of them a transfer of its own.
        pair.dst.replace()?;
        let watched = Watched::new(&pair.dst, PAGE, &pair.src, PAGE, 32 * PAGE, ALIGN);
        let mut pieces = watched.piece().split(1 + round % 7, pair.channels);
        let request = device.start(&mut pieces)?;
        if wait_by_words(&words, &request)? {
            by_words += 1;
            watched.expect_copied().context(format_args!("round {round}, by words"))?;
        }
        ensure_eq!(device.end(&request)?, 0, "failed pieces, round {round}");
        watched.expect_copied().context(format_args!("round {round}"))?;
    }
    ensure!(bench.struck()? > struck, "nothing could be overtaken: nothing was shown");
    // A slow kernel is late with every copy, and then promises no word.
    ensure!(by_words > 0 || kernel::has_checkers(), "no copy was told by words: nothing was shown");
    Ok(())
}

/// The words also cover the begun part of a piece that is then refused: the caller copies that
/// piece itself, and its memory is its own again.
pub fn copy_taken_in_part_is_not_overtaken_by_its_words() -> Outcome {
    if is_dsa() {
        skip!("a queue of idxd is shorter; see provider");
    }
    let bench = Bench::new()?;
    bench.arm_all(Fault::always(Kind::Overtaken).value(60))?;
    bench.arm_all(Fault::always(Kind::Slow).value(5000))?;
    // The second piece has two batches, of which the queue takes one.
    const LEN: usize = 129 * PAGE;
    let _depth = Parameter::set("adma", "depth", 16 * PAGE as u64)?;
    let pair = Pair::scattered(LEN)?;
    let words = pair.device.all_words()?;
    let struck = bench.struck()?;
    let mut pieces = [pair.part(0, PAGE).on(0), pair.part(PAGE, LEN - PAGE).on(0)];
    let Submitted { result, out } = pair.device.submit(&mut pieces);
    ensure_eq!((result, out.accepted), (Err(EBUSY), 1), "result and accepted");
    if !wait_by_words(&words, &out)? {
        pair.device.finish(&out)?;
    }
    pair.dst.fill(9);
    sleep(Duration::from_millis(200));
    pair.dst.expect(9).context("written after the end")?;
    ensure!(bench.struck()? > struck, "nothing was begun of the second piece: nothing was shown");
    Ok(())
}

pub fn copy_requests_have_numbers_of_their_own() -> Outcome {
    let pair = Pair::new(4 * PAGE)?;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..rounds(200).max(SLOTS + 1) {
        let request = pair.device.carry(&mut [Piece::new(&pair.dst, 0, &pair.src, 0, ALIGN)])?;
        ensure!(seen.insert(request.id), "number {} was used twice", request.id);
    }
    Ok(())
}

fn copies_of_a_thread(device: &Device, number: usize) -> Outcome {
    let len = 32 * PAGE;
    let (dst, src) = (Region::of_small_pages(len)?, Region::of_small_pages(len)?);
    let channels = device.info()?.channels;
    let mut random = Random::new(number as u64);
    for round in 0..rounds(16) {
        let len = (1 + random.below(28) as usize) * PAGE;
        let src_at = device.source(random.below(PAGE as u64) as usize)?;
        let watched = Watched::new(&dst, PAGE, &src, src_at, len, ALIGN);
        let parts = 1 + random.below(8) as usize;
        let mut pieces = match round % 2 {
            0 => watched.piece().spread(parts),
            _ => watched.piece().split(parts, channels),
        };
        device.carry_in_turn(&mut pieces)?;
        watched.expect_copied().context(format_args!("thread {number}, round {round}"))?;
    }
    Ok(())
}

pub fn copy_by_many_threads_is_right() -> Outcome {
    let device = &Device::open()?;
    in_threads(6, |number| copies_of_a_thread(device, number))
}

pub fn copy_by_many_files_is_right() -> Outcome {
    in_threads(6, |number| copies_of_a_thread(&Device::open()?, number))
}
