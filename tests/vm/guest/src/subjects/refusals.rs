//! Requests and waits that must be refused, without side effects.

use super::interface::each_call;
use super::*;

tests! {
    refusal_unknown_flags_are_eopnotsupp = unknown_flags();
    refusal_misaligned_piece_is_einval = refused(misaligned);
    refusal_empty_piece_is_einval = refused(|good, _| vec![Piece { len: 0, ..good }]);
    refusal_channel_out_of_range_is_einval = refused(|good, info| {
        let all = [info.channels, info.channels + 1, 32, 63, 64, 1 << 31, CHANNEL_ANY - 1];
        all.into_iter().filter(|&channel| channel >= info.channels).map(|n| good.on(n)).collect()
    });
}

/// Returns a piece in the middle of four pages.
fn piece(pair: &Pair) -> Piece {
    pair.part(PAGE, 2 * PAGE)
}

/// Checks that each of the pieces alone is EINVAL, and that nothing is written.
fn refused(bad: fn(Piece, Info) -> Vec<Piece>) -> Outcome {
    let pair = Pair::new(4 * PAGE)?;
    let info = pair.device.info()?;
    bad(piece(&pair), info).into_iter().try_for_each(|piece| pair.refuse(piece, EINVAL, "alone"))
}

fn misaligned(good: Piece, info: Info) -> Vec<Piece> {
    let mut all = Vec::new();
    for off in [1, 2, 8, 16, 32, 63] {
        all.push(Piece { dst: good.dst + off, ..good });
        all.push(Piece { dst: good.dst - off, ..good });
        all.push(Piece { len: good.len + off, ..good });
        all.push(Piece { len: off, ..good });
    }
    if info.src_align > 1 {
        all.push(Piece { src: good.src + u64::from(info.src_align / 2), ..good });
    }
    all
}

fn unknown_flags() -> Outcome {
    each_call(|call| {
        let known = match call.name {
            "INFO" => INFO_KEEP,
            "SUBMIT" => SUBMIT_PULL | SUBMIT_PUSH,
            "EXPORT" => EXPORT_READ | EXPORT_WRITE,
            _ => 0,
        };
        for flags in (0..32).map(|bit| 1 << bit).filter(|flags| flags & known == 0) {
            ensure_eq!(call.with_flags(flags), Err(EOPNOTSUPP), "flags {flags:#x}");
        }
        Ok(())
    })?;
    let pair = Pair::new(4 * PAGE)?;
    (0..32).try_for_each(|bit| {
        pair.refuse(Piece { flags: 1 << bit, ..piece(&pair) }, EOPNOTSUPP, "flags of a piece")
    })
}

pub fn refusal_reserved_not_zero_is_einval() -> Outcome {
    let device = Device::open()?;
    for reserved in [1, 1 << 31] {
        let mut info = Info { reserved, ..Info::new() };
        ensure_eq!(call(device.fd(), INFO, &mut info), Err(EINVAL), "INFO");
        ensure_eq!(ioctl(device.fd(), PORT, reserved.into()), Err(EINVAL), "PORT");
    }
    Ok(())
}

pub fn refusal_count_out_of_range_is_einval() -> Outcome {
    let pair = Pair::new(4 * PAGE)?;
    let mut pieces = [piece(&pair); MAX_PIECES + 1];
    for count in [0, MAX_PIECES as u32 + 1, 1 << 16, 1 << 31, u32::MAX] {
        let mut submit = Submit { count, ..Submit::new(&mut pieces) };
        let found = call(pair.device.fd(), SUBMIT, &mut submit);
        ensure_eq!(found, Err(EINVAL), "{count} pieces");
    }
    pair.dst.expect(1).context("written, but refused")
}

pub fn refusal_bad_addresses_never_succeed() -> Outcome {
    const TOP: u64 = 0x7fff_ffff_f000;
    let pair = Pair::new(4 * PAGE)?;
    let good = piece(&pair);
    let bad = [
        0,
        64,
        4096,
        TOP - 4096,
        TOP,
        TOP + 4096,
        1 << 47,
        (1 << 47) + 4096,
        0x5aa5_5aa5_5aa5_5a80,
        1 << 63,
        0xffff_7fff_ffff_f000,
        0xffff_8000_0000_0000,
        0xffff_8880_0010_0000,
        0xffff_ffff_8100_0000,
        0xffff_ffff_ff60_0000,
        0u64.wrapping_sub(8192),
        0u64.wrapping_sub(4096),
        0u64.wrapping_sub(64),
    ];
    // Lengths that leave the address space, or wrap around to the start.
    let lens = [1 << 47, 1 << 48, 1 << 62, 1 << 63, !63, 0u64.wrapping_sub(good.dst) & !63];
    let pieces = bad.into_iter().flat_map(|address| {
        [(address, good.src), (good.dst, address), (address, address)].map(|(dst, src)| Piece {
            dst,
            src,
            ..good
        })
    });
    for piece in pieces.chain(lens.map(|len| Piece { len, ..good })) {
        let Submitted { result, out } = pair.device.submit(&mut [piece]);
        ensure!(matches!(result, Err(EINVAL | EFAULT)), "{piece:x?}: {result:?}");
        ensure_eq!(out.accepted, 0, "accepted of {piece:x?}");
    }
    pair.dst.expect(1).context("written, but refused")
}

pub fn refusal_wait_for_unknown_request_is_einval() -> Outcome {
    let pair = Pair::new(4 * PAGE)?;
    let unknown = |id: u64| -> Outcome {
        for timeout in [Duration::ZERO, Duration::from_secs(1)] {
            ensure_eq!(pair.device.wait(id, timeout), Err(EINVAL), "request {id}");
        }
        Ok(())
    };
    unknown(0)?;
    unknown(u64::MAX)?;
    let id = pair.carry(1)?.id;
    for id in [u64::MAX, id + 1, id + (1 << 32)] {
        unknown(id)?;
    }
    // A request of another file is unknown, unless the numbers happen to be equal.
    let other = Device::open()?;
    ensure_eq!(other.wait(id, Duration::ZERO), Err(EINVAL), "request of another file");
    // A request that is over stays known, as often as it is asked for.
    for _ in 0..3 {
        ensure_eq!(pair.device.wait(id, Duration::ZERO), Ok(0), "request that is over");
    }
    Ok(())
}

pub fn refusal_bad_last_piece_leaves_the_others_under_way() -> Outcome {
    let pair = Pair::new(4 * PAGE)?;
    let good = piece(&pair);
    for (bad, errno) in [
        (Piece { dst: good.dst + 8, ..good }, EINVAL),
        (Piece { len: 0, ..good }, EINVAL),
        (good.on(pair.channels), EINVAL),
        (Piece { flags: 4, ..good }, EOPNOTSUPP),
        (Piece { src: 1 << 63, ..good }, EINVAL),
    ] {
        pair.dst.fill(1);
        let Submitted { result, out } = pair.device.submit(&mut [good, bad]);
        ensure!(
            result == Err(errno) || errno == EINVAL && result == Err(EFAULT),
            "{bad:x?} behind a good piece: {result:?}"
        );
        // Looking at all of them first is allowed too.
        if out.accepted == 1 {
            pair.device.finish(&out)?;
            pair.dst.expect_part(PAGE, 2 * PAGE, 2).context("the good piece")?;
        } else {
            ensure_eq!(out.accepted, 0, "accepted");
            pair.dst.expect(1).context("written, but nothing accepted")?;
        }
    }
    Ok(())
}

pub fn refusal_results_into_read_only_memory_leave_no_slot_taken() -> Outcome {
    kernel::announce_overlap();
    let pair = Pair::new(4 * PAGE)?;
    let argument = Region::anonymous(PAGE)?;
    let mut pieces = [piece(&pair)];
    argument.store(0, Submit::new(&mut pieces));
    argument.protect(0, PAGE, libc::PROT_READ)?;
    for round in 0..2 * SLOTS {
        let found = ioctl(pair.device.fd(), SUBMIT, argument.address(0));
        ensure!(matches!(found, Err(EFAULT | EAGAIN)), "round {round}: {found:?}");
    }
    // There is room for a good one in the end.
    pair.device.carry_in_turn(&mut [piece(&pair)])?;
    pair.dst.expect_part(PAGE, 2 * PAGE, 2).context("the good piece")
}
