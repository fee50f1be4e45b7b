//! Buffers that one process exports and another reaches through a port: bytes, rights, limits.

use crate::device::*;
use crate::effort::{PATIENCE, rounds};
use crate::kernel::Statistics;
use crate::memory::{Kind, PAGE, Region};
use crate::oracle::Watched;
use crate::partner::{Order, Partner};
use crate::process::{Gate, become_nobody, fork, limit_locked_memory};
use crate::random::Random;
use crate::scene::{BOTH, Scene};
use crate::verdict::{Context, Outcome};
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::time::Duration;

tests! {
    export_bytes_of_any_place_and_length_arrive
    export_memory_of_every_kind_is_reached
    export_pieces_on_all_channels_arrive
    export_memory_of_its_owner_alone_is_written
    export_again_pins_nothing
    export_where_nothing_is_kept_is_reached
    export_without_the_right_is_eacces
    export_beyond_its_end_is_einval
    export_of_unknown_number_or_port_is_refused
    export_calls_are_for_the_owner_alone
    export_port_that_a_child_inherits_is_as_one_that_was_sent
    export_structures_are_checked
    export_of_bad_memory_is_efault
    export_into_bad_memory_is_efault
    export_result_into_read_only_memory_leaves_nothing
    export_limits_are_kept
    export_limit_of_locked_memory_is_the_owners
}

const LEN: usize = 80 * PAGE;

/// One piece one way, and every byte around it.
fn carry(scene: &Scene, way: u32, ours: usize, theirs: usize, len: usize) -> Outcome {
    let watched = match way {
        SUBMIT_PULL => Watched::new(&scene.ours, ours, &scene.theirs, theirs, len, 200),
        _ => Watched::new(&scene.theirs, theirs, &scene.ours, ours, len, 200),
    };
    let piece = scene.piece(way, ours, theirs, len);
    let Submitted { result, out } = scene.submit(way, &mut [piece]);
    ensure_eq!(result, Ok(()), "way {way}, {ours} and {theirs}, {len} bytes");
    ensure_eq!(out.accepted, 1, "pieces");
    ensure_eq!(scene.device.end(&out)?, 0, "failed pieces");
    watched.expect_copied().context(format_args!("way {way}, {ours}, {theirs}, {len} bytes"))
}

fn export_bytes_of_any_place_and_length_arrive() -> Outcome {
    let scene = Scene::shared(LEN)?;
    if scene.device.info()?.src_align > 1 {
        skip!("this engine wants everything aligned");
    }
    let before = Statistics::now()?;
    let mut bytes = 0;
    for way in [SUBMIT_PULL, SUBMIT_PUSH] {
        for len in [1, 7, 8, 63, 64, 65, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 17] {
            for (ours, theirs) in [(0, 0), (1, 0), (0, 1), (63, 4095), (PAGE - 3, 64 * PAGE - 5)] {
                carry(&scene, way, ours, theirs, len)?;
                bytes += len as u64;
            }
        }
        carry(&scene, way, 0, 0, LEN)?;
        carry(&scene, way, 100, 33, LEN - 100)?;
        bytes += 2 * LEN as u64 - 100;
    }
    let mut random = Random::new(31);
    for _ in 0..rounds(100) {
        let len = 1 + random.below(20 * PAGE as u64) as usize;
        let mut place = || random.below((LEN - len) as u64) as usize;
        let (ours, theirs) = (place(), place());
        carry(&scene, random.pick(&[SUBMIT_PULL, SUBMIT_PUSH]), ours, theirs, len)?;
        bytes += len as u64;
    }
    let moved = Statistics::now()?.since(&before);
    ensure_eq!((moved.export_bytes, moved.bytes), (bytes, bytes), "bytes that were counted");
    scene.partner.must(Order::Unexport(scene.export, 1000)).map(|_| ())
}

fn export_memory_of_every_kind_is_reached() -> Outcome {
    for kind in [Kind::SharedAnonymous, Kind::SharedFile, Kind::LayeredFile] {
        let theirs = Region::of_kind(kind, LEN)?;
        let scene = Scene::of(theirs).context(format_args!("{kind:?}"))?;
        for way in [SUBMIT_PULL, SUBMIT_PUSH] {
            carry(&scene, way, 64, 128, 70 * PAGE).context(format_args!("{kind:?}"))?;
        }
    }
    Ok(())
}

fn export_pieces_on_all_channels_arrive() -> Outcome {
    let scene = Scene::shared(LEN)?;
    for parts in [2, 16, MAX_PIECES] {
        let watched = Watched::new(&scene.ours, 0, &scene.theirs, 0, LEN, 0);
        let mut pieces = scene.pieces(SUBMIT_PULL, parts)?;
        let Submitted { result, out } = scene.submit(SUBMIT_PULL, &mut pieces);
        ensure_eq!((result, out.accepted as usize), (Ok(()), pieces.len()), "{parts} pieces");
        ensure_eq!(scene.device.end(&out)?, 0, "failed pieces");
        watched.expect_copied().context(format_args!("{parts} pieces"))?;
    }
    Ok(())
}

/// Ordinary memory, at the same address in both processes.
fn export_memory_of_its_owner_alone_is_written() -> Outcome {
    let scene = Scene::private(LEN)?;
    scene.theirs.fill(3);
    scene.carry(SUBMIT_PUSH)?;
    scene.partner.must(Order::Expect(0, 2)).context("what was pushed")?;
    scene.theirs.expect(3).context("our own memory at that address")?;
    scene.partner.must(Order::Fill(0, 4))?;
    scene.carry(SUBMIT_PULL)?;
    scene.ours.expect(4).context("what was pulled")?;
    scene.theirs.expect(3)?;
    // And after it was taken back it is out of reach.
    scene.partner.must(Order::Unexport(scene.export, 1000))?;
    scene.expect_refused(ENOENT, "taken back")?;
    scene.partner.must(Order::Expect(0, 4)).map(|_| ())
}

fn export_again_pins_nothing() -> Outcome {
    let scene = Scene::shared(LEN)?;
    carry(&scene, SUBMIT_PULL, 0, 0, LEN)?;
    scene.partner.must(Order::Unexport(scene.export, 1000))?;
    let before = Statistics::now()?;
    for round in 0..20 {
        let export = scene.partner.must(Order::Export(0, 64 * round, LEN - 64 * round, BOTH))?;
        ensure!(export > scene.export, "number {export} after {}", scene.export);
        scene.partner.must(Order::Unexport(export, 1000))?;
    }
    let moved = Statistics::now()?.since(&before);
    ensure_eq!((moved.pins, moved.exports), (0, 20), "pins and exports");
    Ok(())
}

fn export_where_nothing_is_kept_is_reached() -> Outcome {
    let theirs = Region::shared(LEN)?;
    theirs.touch();
    let ours = Region::of_small_pages(LEN)?;
    let partner = Partner::new(&[&theirs])?;
    partner.must(Order::KeepNothing)?;
    let device = Device::keeping_nothing()?;
    let before = Statistics::now()?.pinned_pages;
    let export = partner.must(Order::Export(0, 0, LEN, BOTH))?;
    let scene = Scene { device, theirs, ours, partner, export };
    ensure_eq!(Statistics::now()?.pinned_pages - before, (LEN / PAGE) as u64, "pinned pages");
    for way in [SUBMIT_PULL, SUBMIT_PUSH] {
        carry(&scene, way, 5, 9, LEN - 9)?;
    }
    // A change of the mapping is noticed all the same.
    scene.partner.must(Order::Unmap(0))?;
    let piece = scene.piece(SUBMIT_PULL, 0, 0, PAGE);
    ensure_eq!(scene.submit(SUBMIT_PULL, &mut [piece]).result, Err(EFAULT), "after munmap");
    Ok(())
}

fn export_without_the_right_is_eacces() -> Outcome {
    let scene = Scene::shared(LEN)?;
    scene.theirs.fill(1);
    scene.ours.fill(2);
    let port = scene.partner.port();
    for (right, allowed, forbidden) in
        [(EXPORT_READ, SUBMIT_PULL, SUBMIT_PUSH), (EXPORT_WRITE, SUBMIT_PUSH, SUBMIT_PULL)]
    {
        let export = scene.partner.must(Order::Export(0, 0, PAGE, right))?;
        let piece = |way| scene.piece(way, 0, 0, PAGE);
        let found = scene.device.submit_across(&mut [piece(forbidden)], forbidden, port, export);
        ensure_eq!((found.result, found.out.id), (Err(EACCES), 0), "way {forbidden}");
        scene.theirs.expect(1).context("written, but refused")?;
        scene.ours.expect(2).context("written, but refused")?;
        let found = scene.device.submit_across(&mut [piece(allowed)], allowed, port, export);
        ensure_eq!(found.result, Ok(()), "way {allowed}");
        ensure_eq!(scene.device.end(&found.out)?, 0, "failed pieces");
        scene.theirs.fill(1);
        scene.ours.fill(2);
    }
    Ok(())
}

fn export_beyond_its_end_is_einval() -> Outcome {
    let theirs = Region::shared(LEN)?;
    theirs.fill(1);
    let ours = Region::of_small_pages(LEN)?;
    ours.fill(2);
    let partner = Partner::new(&[&theirs])?;
    // In the midst of pages, and of a line.
    let (from, len) = (3 * PAGE + 100, 5 * PAGE + 10);
    let export = partner.must(Order::Export(0, from, len, BOTH))?;
    let device = Device::open()?;
    for (offset, count) in [
        (0, len + 1),
        (1, len),
        (len, 1),
        (len + 1, 1),
        (len - 63, 64),
        (usize::MAX, 1),
        (usize::MAX - 63, 64),
        (1 << 63, 64),
        (1 << 30, 64),
        (0usize.wrapping_sub(from), 64),
    ] {
        for way in [SUBMIT_PULL, SUBMIT_PUSH] {
            let mut piece = Piece::new(&ours, 0, &ours, 0, count);
            match way {
                SUBMIT_PULL => piece.src = offset as u64,
                _ => piece.dst = offset as u64,
            }
            let found = device.submit_across(&mut [piece], way, partner.port(), export);
            let what = format!("{count} bytes at {offset:#x}, way {way}");
            ensure_eq!((found.result, found.out.id), (Err(EINVAL), 0), "{what}");
        }
    }
    theirs.expect(1).context("the other's memory")?;
    ours.expect(2).context("our memory")
}

fn export_of_unknown_number_or_port_is_refused() -> Outcome {
    let scene = Scene::shared(LEN)?;
    scene.ours.fill(2);
    scene.theirs.fill(1);
    let stranger = Partner::new(&[&scene.theirs])?;
    let own_port = scene.device.port();
    let Ok(own_port) = own_port else { fail!("no port") };
    let null = std::fs::File::open("/dev/null")?;
    let refuse = |port: i32, export: u64, errno: Errno| -> Outcome {
        for way in [SUBMIT_PUSH, SUBMIT_PULL] {
            let mut pieces = [scene.piece(way, 0, 0, PAGE)];
            let found = scene.device.submit_across(&mut pieces, way, port, export);
            ensure_eq!(found.result, Err(errno), "port {port}, export {export:#x}, way {way}");
        }
        Ok(())
    };
    let (port, export) = (scene.partner.port(), scene.export);
    for number in [0, export + 1, export - 1, export + (1 << 32), u64::MAX, 1 << 63] {
        refuse(port, number, ENOENT)?;
    }
    for other in [stranger.port(), own_port.fd()] {
        refuse(other, export, ENOENT)?;
    }
    for no_port in [-1, i32::MAX, i32::MIN, 1000, null.as_raw_fd(), scene.device.fd(), 0] {
        refuse(no_port, export, EBADF)?;
    }
    // Both ways at once, and an export where none is wanted.
    let mut pieces = [Piece::new(&scene.ours, 0, &scene.theirs, 0, PAGE)];
    for (flags, port, export) in
        [(SUBMIT_PULL | SUBMIT_PUSH, port, export), (0, port, 0), (0, 0, export)]
    {
        let found = scene.device.submit_across(&mut pieces, flags, port, export);
        ensure_eq!(found.result, Err(EINVAL), "flags {flags}, port {port}, export {export}");
    }
    scene.theirs.expect(1).context("the other's memory")?;
    scene.ours.expect(2).context("our memory")
}

fn export_calls_are_for_the_owner_alone() -> Outcome {
    let scene = Scene::shared(LEN)?;
    let port = scene.partner.port();
    let mut export = Export::new(scene.ours.address(0), PAGE, BOTH);
    ensure_eq!(call(port, EXPORT, &mut export), Err(EPERM), "EXPORT at the other's port");
    let mut unexport = Wait::new(scene.export, Duration::ZERO);
    ensure_eq!(call(port, UNEXPORT, &mut unexport), Err(EPERM), "UNEXPORT at the other's port");
    let Ok(own) = scene.device.port() else { fail!("no port") };
    for number in [INFO, SUBMIT, WAIT, PORT, INFO + 6, INFO + 7] {
        let found = call(own.fd(), number, &mut Info::new());
        ensure_eq!(found, Err(ENOTTY), "call {number:#x} of a port");
        let found = call(port, number, &mut Info::new());
        ensure_eq!(found, Err(EPERM), "call {number:#x} of the other's port");
    }
    for number in [EXPORT, UNEXPORT] {
        let found = call(scene.device.fd(), number, &mut export);
        ensure_eq!(found, Err(ENOTTY), "call {number:#x} of the device");
    }
    Ok(())
}

/// It has not the file. The port is to it as one that was sent to it: it is not the maker.
fn export_port_that_a_child_inherits_is_as_one_that_was_sent() -> Outcome {
    let device = Device::open()?;
    let Ok(port) = device.port() else { fail!("no port") };
    // Memory that fork leaves alone, so that the export is not void.
    let buffer = Region::shared(PAGE)?;
    buffer.fill(5);
    let Ok(export) = port.export(buffer.address(0), PAGE, EXPORT_READ) else { fail!("no export") };
    let taken_back = Gate::new()?;
    let pulled = Gate::new()?;
    let child = fork(|| {
        ensure_eq!(call(device.fd(), INFO, &mut Info::new()), Err(EPERM), "the file in a child");
        ensure_eq!(port.export(buffer.address(0), PAGE, BOTH), Err(EPERM), "EXPORT in a child");
        ensure_eq!(port.unexport(export, Duration::ZERO), Err(EPERM), "UNEXPORT in a child");
        let own = Device::open()?;
        let copy = Region::of_small_pages(PAGE)?;
        let piece = || Piece { dst: copy.address(0), src: 0, len: PAGE as u64, ..ANY };
        let Submitted { result, out } =
            own.submit_across(&mut [piece()], SUBMIT_PULL, port.fd(), export);
        ensure_eq!(result, Ok(()), "a pull through the port");
        ensure_eq!(own.end(&out)?, 0, "failed pieces");
        copy.expect(5).context("pulled")?;
        let push = Piece { dst: 0, src: copy.address(0), len: PAGE as u64, ..ANY };
        let refused = own.submit_across(&mut [push], SUBMIT_PUSH, port.fd(), export).result;
        ensure_eq!(refused, Err(EACCES), "a push to what may only be read");
        pulled.open();
        taken_back.pass();
        let late = own.submit_across(&mut [piece()], SUBMIT_PULL, port.fd(), export).result;
        ensure_eq!(late, Err(ENOENT), "a pull of what was taken back");
        Ok(())
    })?;
    pulled.pass();
    ensure_eq!(port.unexport(export, PATIENCE), Ok(()), "taken back by its owner");
    taken_back.open();
    child.succeed()
}

const ANY: Piece = Piece { dst: 0, src: 0, len: 0, channel: CHANNEL_ANY, flags: 0 };

fn export_structures_are_checked() -> Outcome {
    let device = Device::open()?;
    let Ok(port) = device.port() else { fail!("no port") };
    let buffer = Region::of_small_pages(PAGE)?;
    let good = Export::new(buffer.address(0), PAGE, BOTH);
    for bit in 2..32 {
        let found = call(port.fd(), EXPORT, &mut Export { flags: 1 << bit, ..good });
        ensure_eq!(found, Err(EOPNOTSUPP), "EXPORT with flag {bit}");
    }
    for bit in 0..32 {
        let unexport = Wait { flags: 1 << bit, ..Wait::new(1, Duration::ZERO) };
        ensure_eq!(call(port.fd(), UNEXPORT, &mut { unexport }), Err(EOPNOTSUPP), "flag {bit}");
    }
    for bad in [
        Export { flags: 0, ..good },
        Export { len: 0, ..good },
        Export { len: (1 << 30) + 1, ..good },
        Export { len: u64::MAX, ..good },
        Export { addr: 1 << 63, ..good },
        Export { addr: u64::MAX, ..good },
    ] {
        ensure_eq!(call(port.fd(), EXPORT, &mut { bad }), Err(EINVAL), "{bad:x?}");
    }
    // Structures of other sizes.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Larger<T>(T, [u64; 3]);
    for size in [0, 4, 8, 24, size_of::<Export>() - 1] {
        let found = call(port.fd(), EXPORT, &mut Export { size: size as u32, ..good });
        ensure_eq!(found, Err(EINVAL), "EXPORT of {size} bytes");
        let unexport = Wait { size: size.min(31) as u32, ..Wait::new(1, Duration::ZERO) };
        ensure_eq!(
            call(port.fd(), UNEXPORT, &mut { unexport }),
            Err(EINVAL),
            "UNEXPORT, {size} bytes"
        );
    }
    let size = size_of::<Larger<Export>>() as u32;
    let mut larger = Larger(Export { size, ..good }, [0, 0, 1]);
    ensure_eq!(call(port.fd(), EXPORT, &mut larger), Err(E2BIG), "a tail that is not zero");
    larger.1[2] = 0;
    ensure_eq!(call(port.fd(), EXPORT, &mut larger), Ok(()), "a tail of zeros");
    let size = size_of::<Larger<Wait>>() as u32;
    let mut larger = Larger(Wait { size, ..Wait::new(larger.0.id, Duration::ZERO) }, [1, 0, 0]);
    ensure_eq!(call(port.fd(), UNEXPORT, &mut larger), Err(E2BIG), "a tail that is not zero");
    larger.1[0] = 0;
    ensure_eq!(call(port.fd(), UNEXPORT, &mut larger), Ok(()), "a tail of zeros");
    ensure_eq!(call(port.fd(), UNEXPORT, &mut larger), Err(ENOENT), "taken back twice");
    for pointer in [0, 1, 1 << 47, 1 << 63, u64::MAX] {
        for number in [EXPORT, UNEXPORT] {
            ensure_eq!(
                ioctl(port.fd(), number, pointer),
                Err(EFAULT),
                "{number:#x} at {pointer:#x}"
            );
        }
    }
    Ok(())
}

fn export_of_bad_memory_is_efault() -> Outcome {
    let device = Device::open()?;
    let Ok(port) = device.port() else { fail!("no port") };
    let buffer = Region::of_small_pages(300 * PAGE)?;
    buffer.unmap_part(200 * PAGE, PAGE)?;
    buffer.protect(290 * PAGE, PAGE, libc::PROT_READ)?;
    let pinned = Statistics::now()?.pinned_pages;
    let export = |at: usize, len: usize, flags: u32| -> Result<(), Errno> {
        let export = port.export(buffer.address(at), len, flags)?;
        port.unexport(export, Duration::ZERO)
    };
    ensure_eq!(export(0, 300 * PAGE, EXPORT_READ), Err(EFAULT), "a hole");
    ensure_eq!(export(200 * PAGE, 1, EXPORT_READ), Err(EFAULT), "nothing but a hole");
    ensure_eq!(export(290 * PAGE, 64, EXPORT_WRITE), Err(EFAULT), "a page for reading alone");
    ensure_eq!(export(290 * PAGE, 64, BOTH), Err(EFAULT), "the same");
    ensure_eq!(export(290 * PAGE, 64, EXPORT_READ), Ok(()), "the same, for reading");
    ensure_eq!(export(0, 200 * PAGE, BOTH), Ok(()), "all before the hole");
    drop(port);
    drop(device);
    crate::kernel::settle(crate::kernel::pins_outstanding()?)?;
    ensure_eq!(Statistics::now()?.pinned_pages, pinned, "pinned pages");
    Ok(())
}

fn export_into_bad_memory_is_efault() -> Outcome {
    let scene = Scene::shared(LEN)?;
    scene.theirs.fill(1);
    scene.ours.fill(2);
    scene.ours.unmap_part(8 * PAGE, PAGE)?;
    let piece = |at: usize, len: usize| scene.piece(SUBMIT_PULL, at, 0, len);
    let found = scene.submit(SUBMIT_PULL, &mut [piece(7 * PAGE, 2 * PAGE)]);
    ensure_eq!((found.result, found.out.accepted), (Err(EFAULT), 0), "a hole of ours");
    scene.ours.expect_part(0, 8 * PAGE, 2).context("refused, but written")?;
    // What comes before it is under way.
    let mut pieces = [piece(0, 4 * PAGE), piece(4 * PAGE, 4 * PAGE), piece(8 * PAGE, PAGE)];
    let Submitted { result, out } = scene.submit(SUBMIT_PULL, &mut pieces);
    ensure_eq!((result, out.accepted), (Err(EFAULT), 2), "two good pieces and a bad one");
    ensure_eq!(scene.device.end(&out)?, 0, "failed pieces");
    scene.ours.expect_part(0, 4 * PAGE, 1).context("the first piece")
}

fn export_result_into_read_only_memory_leaves_nothing() -> Outcome {
    let device = Device::open()?;
    let Ok(port) = device.port() else { fail!("no port") };
    let buffer = Region::of_small_pages(4 * PAGE)?;
    let room = Region::anonymous(PAGE)?;
    let export = Export::new(buffer.address(0), 4 * PAGE, BOTH);
    // SAFETY: inside the region and aligned; memory law.
    unsafe { (room.address(0) as *mut Export).write_volatile(export) };
    room.protect(0, PAGE, libc::PROT_READ)?;
    for _ in 0..2 * MAX_EXPORTS {
        ensure_eq!(ioctl(port.fd(), EXPORT, room.address(0)), Err(EFAULT), "EXPORT");
    }
    match port.export(buffer.address(0), PAGE, BOTH) {
        Ok(_) => Ok(()),
        Err(errno) => fail!("a good export after the refused ones: {errno:?}"),
    }
}

fn export_limits_are_kept() -> Outcome {
    let device = Device::open()?;
    let Ok(port) = device.port() else { fail!("no port") };
    let buffer = Region::of_small_pages(PAGE)?;
    let mut exports = Vec::new();
    for round in 0..MAX_EXPORTS {
        match port.export(buffer.address(round), 1, EXPORT_READ) {
            Ok(export) => exports.push(export),
            Err(errno) => fail!("export {round}: {errno:?}"),
        }
    }
    let another = device.port();
    let Ok(another) = another else { fail!("no second port") };
    for port in [&port, &another] {
        ensure_eq!(port.export(buffer.address(0), 1, EXPORT_READ), Err(EAGAIN), "one too many");
    }
    ensure_eq!(port.unexport(exports[7], Duration::ZERO), Ok(()), "one taken back");
    ensure!(another.export(buffer.address(0), 1, EXPORT_READ).is_ok(), "there is room for one");
    drop(port);
    let export = another.export(buffer.address(0), 1, EXPORT_READ);
    ensure!(export.is_ok(), "with the port its exports went: {export:?}");
    Ok(())
}

fn export_limit_of_locked_memory_is_the_owners() -> Outcome {
    const LIMIT: usize = 16;
    let child = fork(|| {
        let device = Device::open()?;
        let Ok(port) = device.port() else { fail!("no port") };
        let buffer = Region::of_small_pages(64 * PAGE)?;
        limit_locked_memory((LIMIT * PAGE) as u64)?;
        become_nobody()?;
        for round in 0..20 {
            let large = port.export(buffer.address(0), 64 * PAGE, BOTH);
            ensure_eq!(large, Err(ENOMEM), "beyond the limit, round {round}");
            let small = port.export(buffer.address(0), LIMIT * PAGE, BOTH);
            let Ok(small) = small else { fail!("within the limit, round {round}: {small:?}") };
            let more = port.export(buffer.address(40 * PAGE), PAGE, BOTH);
            ensure_eq!(more, Err(ENOMEM), "one page more, round {round}");
            ensure_eq!(port.unexport(small, Duration::ZERO), Ok(()), "taken back");
        }
        Ok(())
    })?;
    child.succeed()
}
