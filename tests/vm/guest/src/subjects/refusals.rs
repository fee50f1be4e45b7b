//! What a submission or a wait must refuse, and that a refusal leaves nothing behind.

use crate::device::*;
use crate::kernel;
use crate::memory::{PAGE, Region};
use crate::verdict::{Context, Outcome};
use std::time::Duration;

tests! {
    refusal_unknown_flags_are_eopnotsupp
    refusal_reserved_not_zero_is_einval
    refusal_count_out_of_range_is_einval
    refusal_misaligned_piece_is_einval
    refusal_empty_piece_is_einval
    refusal_bad_addresses_never_succeed
    refusal_channel_out_of_range_is_einval
    refusal_wait_for_unknown_request_is_einval
    refusal_bad_last_piece_leaves_the_others_under_way
    refusal_results_into_read_only_memory_leave_no_slot_taken
}

/// Two sides of a few pages, and one piece between them.
struct Pair {
    device: Device,
    dst: Region,
    src: Region,
}

impl Pair {
    fn new() -> Outcome<Pair> {
        let (dst, src) = (Region::of_small_pages(4 * PAGE)?, Region::of_small_pages(4 * PAGE)?);
        dst.fill(1);
        src.fill(2);
        Ok(Pair { device: Device::open()?, dst, src })
    }

    fn piece(&self) -> Piece {
        Piece::new(&self.dst, PAGE, &self.src, PAGE, 2 * PAGE)
    }

    /// One piece, refused with one of these errors, and nothing done.
    fn refuses(&self, piece: Piece, errnos: &[Errno]) -> Outcome {
        let Submitted { result, out } = self.device.submit(&mut [piece]);
        ensure!(
            result.is_err_and(|errno| errnos.contains(&errno)),
            "{result:?}, want {errnos:?}: {piece:x?}"
        );
        ensure_eq!(out.accepted, 0, "accepted of {piece:x?}");
        self.dst.expect(1).context("written, but refused")
    }
}

fn refusal_unknown_flags_are_eopnotsupp() -> Outcome {
    let pair = Pair::new()?;
    let fd = pair.device.fd();
    for bit in 0..32 {
        let flags = 1 << bit;
        if flags != INFO_KEEP {
            let found = call(fd, INFO, &mut Info { flags, ..Info::new() });
            ensure_eq!(found, Err(EOPNOTSUPP), "INFO with flags {flags:#x}");
        }
        let wait = Wait::new(1, Duration::ZERO);
        let found = call(fd, WAIT, &mut Wait { flags, ..wait });
        ensure_eq!(found, Err(EOPNOTSUPP), "WAIT with flags {flags:#x}");
        if flags & (SUBMIT_PULL | SUBMIT_PUSH) == 0 {
            let mut pieces = [pair.piece()];
            let found = call(fd, SUBMIT, &mut Submit { flags, ..Submit::new(&mut pieces) });
            ensure_eq!(found, Err(EOPNOTSUPP), "SUBMIT with flags {flags:#x}");
        }
        pair.refuses(Piece { flags, ..pair.piece() }, &[EOPNOTSUPP])?;
    }
    pair.dst.expect(1).context("written, but refused")
}

fn refusal_reserved_not_zero_is_einval() -> Outcome {
    let device = Device::open()?;
    for reserved in [1, 1 << 31] {
        let mut info = Info { reserved, ..Info::new() };
        ensure_eq!(call(device.fd(), INFO, &mut info), Err(EINVAL), "INFO");
        ensure_eq!(ioctl(device.fd(), PORT, reserved.into()), Err(EINVAL), "PORT");
    }
    Ok(())
}

fn refusal_count_out_of_range_is_einval() -> Outcome {
    let pair = Pair::new()?;
    let mut pieces = [pair.piece(); MAX_PIECES + 1];
    for count in [0, MAX_PIECES as u32 + 1, 1 << 16, 1 << 31, u32::MAX] {
        let mut submit = Submit { count, ..Submit::new(&mut pieces) };
        let found = call(pair.device.fd(), SUBMIT, &mut submit);
        ensure_eq!(found, Err(EINVAL), "{count} pieces");
    }
    pair.dst.expect(1).context("written, but refused")
}

fn refusal_misaligned_piece_is_einval() -> Outcome {
    let pair = Pair::new()?;
    let good = pair.piece();
    for off in [1, 2, 8, 16, 32, 63] {
        pair.refuses(Piece { dst: good.dst + off, ..good }, &[EINVAL])?;
        pair.refuses(Piece { dst: good.dst - off, ..good }, &[EINVAL])?;
        pair.refuses(Piece { len: good.len + off, ..good }, &[EINVAL])?;
        pair.refuses(Piece { len: off, ..good }, &[EINVAL])?;
    }
    let align = u64::from(pair.device.info()?.src_align);
    if align > 1 {
        pair.refuses(Piece { src: good.src + align / 2, ..good }, &[EINVAL])?;
    }
    Ok(())
}

fn refusal_empty_piece_is_einval() -> Outcome {
    let pair = Pair::new()?;
    pair.refuses(Piece { len: 0, ..pair.piece() }, &[EINVAL])
}

fn refusal_bad_addresses_never_succeed() -> Outcome {
    const TOP: u64 = 0x7fff_ffff_f000;
    let pair = Pair::new()?;
    let good = pair.piece();
    let errnos = [EINVAL, EFAULT];
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
    for address in bad {
        pair.refuses(Piece { dst: address, ..good }, &errnos)?;
        pair.refuses(Piece { src: address, ..good }, &errnos)?;
        pair.refuses(Piece { dst: address, src: address, ..good }, &errnos)?;
    }
    // Lengths that leave the address space, or come round to where they began.
    for len in [1 << 47, 1 << 48, 1 << 62, 1 << 63, !63, 0u64.wrapping_sub(good.dst) & !63] {
        let Submitted { result, out } = pair.device.submit(&mut [Piece { len, ..good }]);
        ensure!(
            result.is_err_and(|errno| errnos.contains(&errno)),
            "{len:#x} bytes: {result:?}, {out:x?}"
        );
        ensure_eq!(out.accepted, 0, "accepted of {len:#x} bytes");
    }
    Ok(())
}

fn refusal_channel_out_of_range_is_einval() -> Outcome {
    let pair = Pair::new()?;
    let channels = pair.device.info()?.channels;
    for channel in [channels, channels + 1, 32, 63, 64, 1 << 31, CHANNEL_ANY - 1] {
        if channel >= channels {
            pair.refuses(pair.piece().on(channel), &[EINVAL])?;
        }
    }
    Ok(())
}

fn refusal_wait_for_unknown_request_is_einval() -> Outcome {
    let pair = Pair::new()?;
    let unknown = |id: u64| -> Outcome {
        for timeout in [Duration::ZERO, Duration::from_secs(1)] {
            ensure_eq!(pair.device.wait(id, timeout), Err(EINVAL), "request {id}");
        }
        Ok(())
    };
    unknown(0)?;
    unknown(u64::MAX)?;
    let other = Device::open()?;
    let request = pair.device.carry(&mut [pair.piece()])?;
    unknown(u64::MAX)?;
    unknown(request.id + 1)?;
    unknown(request.id + (1 << 32))?;
    // A request of another file is unknown, unless the numbers happen to be equal.
    ensure_eq!(other.wait(request.id, Duration::ZERO), Err(EINVAL), "request of another file");
    // And one that is over stays known, as often as it is asked for.
    for _ in 0..3 {
        ensure_eq!(pair.device.wait(request.id, Duration::ZERO), Ok(0), "request that is over");
    }
    Ok(())
}

fn refusal_bad_last_piece_leaves_the_others_under_way() -> Outcome {
    let pair = Pair::new()?;
    let good = pair.piece();
    let channels = pair.device.info()?.channels;
    for (bad, errno) in [
        (Piece { dst: good.dst + 8, ..good }, EINVAL),
        (Piece { len: 0, ..good }, EINVAL),
        (good.on(channels), EINVAL),
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
            ensure_eq!(pair.device.end(&out)?, 0, "failed pieces");
            pair.dst.expect_part(PAGE, 2 * PAGE, 2).context("the good piece")?;
        } else {
            ensure_eq!(out.accepted, 0, "accepted");
            pair.dst.expect(1).context("written, but nothing accepted")?;
        }
    }
    Ok(())
}

fn refusal_results_into_read_only_memory_leave_no_slot_taken() -> Outcome {
    kernel::announce_overlap();
    let pair = Pair::new()?;
    let fd = pair.device.fd();
    let argument = Region::anonymous(PAGE)?;
    let mut pieces = [pair.piece()];
    // SAFETY: a region has room and is aligned; memory law.
    unsafe { (argument.address(0) as *mut Submit).write_volatile(Submit::new(&mut pieces)) };
    argument.protect(0, PAGE, libc::PROT_READ)?;
    for round in 0..2 * SLOTS {
        let found = ioctl(fd, SUBMIT, argument.address(0));
        ensure!(matches!(found, Err(EFAULT | EAGAIN)), "round {round}: {found:?}");
    }
    // Whatever became of them, there is room for a good one in the end.
    pair.device.carry_in_turn(&mut [pair.piece()])?;
    pair.dst.expect_part(PAGE, 2 * PAGE, 2).context("the good piece")
}
