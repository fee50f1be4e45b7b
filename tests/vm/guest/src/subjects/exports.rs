//! Buffers that one process exports and another reaches through a port: bytes, rights, limits.

use super::*;

const LEN: usize = 80 * PAGE;
const WAYS: [u32; 2] = [SUBMIT_PULL, SUBMIT_PUSH];

/// Copies one piece one way, and checks every byte around it.
fn carry(scene: &Scene, way: u32, ours: usize, theirs: usize, len: usize) -> Outcome {
    let watched = match way {
        SUBMIT_PULL => Watched::new(&scene.ours, ours, &scene.theirs, theirs, len, 200),
        _ => Watched::new(&scene.theirs, theirs, &scene.ours, ours, len, 200),
    };
    let place = format!("way {way}, {ours} and {theirs}, {len} bytes");
    scene.finish(way, &mut [scene.piece(way, ours, theirs, len)]).context(&place)?;
    watched.expect_copied().context(&place)
}

pub fn export_bytes_of_any_place_and_length_arrive() -> Outcome {
    let scene = Scene::shared(LEN)?;
    if scene.device.info()?.src_align > 1 {
        skip!("this engine wants everything aligned");
    }
    let before = Statistics::now()?;
    let mut copies = Vec::new();
    for way in WAYS {
        for len in [1, 7, 8, 63, 64, 65, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 17] {
            for (ours, theirs) in [(0, 0), (1, 0), (0, 1), (63, 4095), (PAGE - 3, 64 * PAGE - 5)] {
                copies.push((way, ours, theirs, len));
            }
        }
        copies.extend([(way, 0, 0, LEN), (way, 100, 33, LEN - 100)]);
    }
    let mut random = Random::new(31);
    for _ in 0..rounds(100) {
        let len = 1 + random.below(20 * PAGE as u64) as usize;
        let mut place = || random.below((LEN - len) as u64) as usize;
        let (ours, theirs) = (place(), place());
        copies.push((random.pick(&WAYS), ours, theirs, len));
    }
    for &(way, ours, theirs, len) in &copies {
        carry(&scene, way, ours, theirs, len)?;
    }
    let bytes = copies.iter().map(|copy| copy.3 as u64).sum();
    let moved = Statistics::now()?.since(&before);
    ensure_eq!((moved.export_bytes, moved.bytes), (bytes, bytes), "bytes that were counted");
    scene.partner.must(Order::Unexport(scene.export, 1000)).map(drop)
}

pub fn export_memory_of_every_kind_is_reached() -> Outcome {
    for kind in [PageKind::SharedAnonymous, PageKind::SharedFile, PageKind::LayeredFile] {
        let theirs = Region::of_kind(kind, LEN)?;
        let scene = Scene::of(theirs).context(format_args!("{kind:?}"))?;
        for way in WAYS {
            carry(&scene, way, 64, 128, 70 * PAGE).context(format_args!("{kind:?}"))?;
        }
    }
    Ok(())
}

pub fn export_pieces_on_all_channels_arrive() -> Outcome {
    let scene = Scene::shared(LEN)?;
    for parts in [2, 16, MAX_PIECES] {
        let watched = Watched::new(&scene.ours, 0, &scene.theirs, 0, LEN, 0);
        scene.finish(SUBMIT_PULL, &mut scene.pieces(SUBMIT_PULL, parts)?)?;
        watched.expect_copied().context(format_args!("{parts} pieces"))?;
    }
    Ok(())
}

/// Ordinary memory, at the same address in both processes.
pub fn export_memory_of_its_owner_alone_is_written() -> Outcome {
    let scene = Scene::private(LEN)?;
    scene.theirs.fill(3);
    scene.carry(SUBMIT_PUSH)?;
    scene.partner.must(Order::Expect(0, 2)).context("what was pushed")?;
    scene.theirs.expect(3).context("our own memory at that address")?;
    scene.partner.must(Order::Fill(0, 4))?;
    scene.carry(SUBMIT_PULL)?;
    scene.ours.expect(4).context("what was pulled")?;
    scene.theirs.expect(3)?;
    // After it was revoked it is out of reach.
    scene.partner.must(Order::Unexport(scene.export, 1000))?;
    scene.expect_refused(ENOENT, "taken back")?;
    scene.partner.must(Order::Expect(0, 4)).map(drop)
}

pub fn export_again_pins_nothing() -> Outcome {
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

pub fn export_where_nothing_is_kept_is_reached() -> Outcome {
    let scene = Scene::shared(LEN)?;
    scene.partner.must(Order::Unexport(scene.export, 1000))?;
    scene.partner.must(Order::KeepNothing)?;
    scene.device.keep(0)?;
    let before = Statistics::now()?.pinned_pages;
    let export = scene.partner.must(Order::Export(0, 0, LEN, BOTH))?;
    let scene = Scene { export, ..scene };
    ensure_eq!(Statistics::now()?.pinned_pages - before, (LEN / PAGE) as u64, "pinned pages");
    for way in WAYS {
        carry(&scene, way, 5, 9, LEN - 9)?;
    }
    // A change of the mapping is still noticed.
    scene.partner.must(Order::Unmap(0))?;
    scene.expect_refused(EFAULT, "after munmap")
}

pub fn export_without_the_right_is_eacces() -> Outcome {
    let scene = Scene::shared(LEN)?;
    for (right, allowed, forbidden) in
        [(EXPORT_READ, SUBMIT_PULL, SUBMIT_PUSH), (EXPORT_WRITE, SUBMIT_PUSH, SUBMIT_PULL)]
    {
        scene.theirs.fill(1);
        scene.ours.fill(2);
        let export = scene.partner.must(Order::Export(0, 0, PAGE, right))?;
        scene.refuse(forbidden, scene.partner.port(), export, EACCES)?;
        let mut allow = [scene.piece(allowed, 0, 0, PAGE)];
        let found = scene.device.submit_across(&mut allow, allowed, scene.partner.port(), export);
        ensure_eq!(found.result, Ok(()), "way {allowed}");
        scene.device.finish(&found.out)?;
    }
    Ok(())
}

pub fn export_beyond_its_end_is_einval() -> Outcome {
    let scene = Scene::shared(LEN)?;
    // In the midst of pages, and of a line.
    let (from, len) = (3 * PAGE + 100, 5 * PAGE + 10);
    let export = scene.partner.must(Order::Export(0, from, len, BOTH))?;
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
        for way in WAYS {
            let mut piece = [scene.piece(way, 0, offset, count)];
            let found = scene.device.submit_across(&mut piece, way, scene.partner.port(), export);
            let what = format!("{count} bytes at {offset:#x}, way {way}");
            ensure_eq!((found.result, found.out.id), (Err(EINVAL), 0), "{what}");
        }
    }
    scene.expect_untouched()
}

pub fn export_of_unknown_number_or_port_is_refused() -> Outcome {
    let scene = Scene::shared(LEN)?;
    let stranger = Partner::new(&[&scene.theirs])?;
    let own_port = scene.device.port()?;
    let null = File::open("/dev/null")?;
    let (port, export) = (scene.partner.port(), scene.export);
    let numbers = [0, export + 1, export - 1, export + (1 << 32), u64::MAX, 1 << 63];
    let ports = [-1, i32::MAX, i32::MIN, 1000, null.as_raw_fd(), scene.device.fd(), 0];
    let others = [stranger.port(), own_port.fd()];
    for way in WAYS {
        numbers.iter().try_for_each(|&number| scene.refuse(way, port, number, ENOENT))?;
        others.iter().try_for_each(|&other| scene.refuse(way, other, export, ENOENT))?;
        ports.iter().try_for_each(|&no_port| scene.refuse(way, no_port, export, EBADF))?;
    }
    // Both ways at once, and an export where none is wanted.
    let mut pieces = [Piece::new(&scene.ours, 0, &scene.theirs, 0, PAGE)];
    for (flags, port, export) in
        [(SUBMIT_PULL | SUBMIT_PUSH, port, export), (0, port, 0), (0, 0, export)]
    {
        let found = scene.device.submit_across(&mut pieces, flags, port, export);
        ensure_eq!(found.result, Err(EINVAL), "flags {flags}, port {port}, export {export}");
    }
    scene.expect_untouched()
}

pub fn export_calls_are_for_the_owner_alone() -> Outcome {
    let scene = Scene::shared(LEN)?;
    let port = scene.partner.port();
    let mut export = Export::new(scene.ours.address(0), PAGE, BOTH);
    ensure_eq!(call(port, EXPORT, &mut export), Err(EPERM), "EXPORT at the other's port");
    let mut unexport = Wait::new(scene.export, Duration::ZERO);
    ensure_eq!(call(port, UNEXPORT, &mut unexport), Err(EPERM), "UNEXPORT at the other's port");
    let own = scene.device.port()?;
    for number in [INFO, SUBMIT, WAIT, PORT, INFO + 6, INFO + 7] {
        let found = [own.fd(), port].map(|port| call(port, number, &mut Info::new()));
        ensure_eq!(
            found,
            [Err(ENOTTY), Err(EPERM)],
            "call {number:#x} of our and the other's port"
        );
    }
    for number in [EXPORT, UNEXPORT] {
        let found = call(scene.device.fd(), number, &mut export);
        ensure_eq!(found, Err(ENOTTY), "call {number:#x} of the device");
    }
    Ok(())
}

/// The child lacks the file, and is not the maker of the port, as if it had been sent.
pub fn export_port_that_a_child_inherits_is_as_one_that_was_sent() -> Outcome {
    let device = Device::open()?;
    let port = device.port()?;
    // Memory that fork leaves alone, so that the export is not void.
    let buffer = Region::shared(PAGE)?;
    buffer.fill(5);
    let export = port.export(buffer.address(0), PAGE, EXPORT_READ)?;
    let (pulled, taken_back) = (Gate::new()?, Gate::new()?);
    let child = fork(|| {
        ensure_eq!(call(device.fd(), INFO, &mut Info::new()), Err(EPERM), "the file in a child");
        ensure_eq!(port.export(buffer.address(0), PAGE, BOTH), Err(EPERM), "EXPORT in a child");
        ensure_eq!(port.unexport(export, Duration::ZERO), Err(EPERM), "UNEXPORT in a child");
        let own = Device::open()?;
        let copy = Region::of_small_pages(PAGE)?;
        let whole = Piece::new(&copy, 0, &copy, 0, PAGE);
        let pull = || {
            let mut piece = [Piece { src: 0, ..whole }];
            own.submit_across(&mut piece, SUBMIT_PULL, port.fd(), export)
        };
        let Submitted { result, out } = pull();
        ensure_eq!(result, Ok(()), "a pull through the port");
        own.finish(&out)?;
        copy.expect(5).context("pulled")?;
        let mut push = [Piece { dst: 0, ..whole }];
        let refused = own.submit_across(&mut push, SUBMIT_PUSH, port.fd(), export).result;
        ensure_eq!(refused, Err(EACCES), "a push to what may only be read");
        pulled.open();
        taken_back.pass();
        ensure_eq!(pull().result, Err(ENOENT), "a pull of what was taken back");
        Ok(())
    })?;
    pulled.pass();
    ensure_eq!(port.unexport(export, PATIENCE), Ok(()), "taken back by its owner");
    taken_back.open();
    child.succeed()
}

/// Sizes, flags and pointers are tested with those of all calls: see `interface` and `refusals`.
pub fn export_structures_are_checked() -> Outcome {
    let device = Device::open()?;
    let port = device.port()?;
    let buffer = Region::of_small_pages(PAGE)?;
    let good = Export::new(buffer.address(0), PAGE, BOTH);
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
    let export = port.export(good.addr, PAGE, BOTH)?;
    ensure_eq!(port.unexport(export, Duration::ZERO), Ok(()), "taken back");
    ensure_eq!(port.unexport(export, Duration::ZERO), Err(ENOENT), "taken back twice");
    Ok(())
}

pub fn export_of_bad_memory_is_efault() -> Outcome {
    let device = Device::open()?;
    let port = device.port()?;
    let buffer = Region::of_small_pages(300 * PAGE)?;
    buffer.unmap_part(200 * PAGE, PAGE)?;
    buffer.protect(290 * PAGE, PAGE, libc::PROT_READ)?;
    let pinned = Statistics::now()?.pinned_pages;
    for (what, at, len, flags, wanted) in [
        ("a hole", 0, 300 * PAGE, EXPORT_READ, Err(EFAULT)),
        ("nothing but a hole", 200 * PAGE, 1, EXPORT_READ, Err(EFAULT)),
        ("a page for reading alone, to be written", 290 * PAGE, 64, EXPORT_WRITE, Err(EFAULT)),
        ("a page for reading alone, for both", 290 * PAGE, 64, BOTH, Err(EFAULT)),
        ("a page for reading alone, to be read", 290 * PAGE, 64, EXPORT_READ, Ok(())),
        ("all before the hole", 0, 200 * PAGE, BOTH, Ok(())),
    ] {
        let export = port.export(buffer.address(at), len, flags);
        let found = export.and_then(|export| port.unexport(export, Duration::ZERO));
        ensure_eq!(found, wanted, "{what}");
    }
    drop(port);
    drop(device);
    kernel::settle(kernel::pins_outstanding()?)?;
    ensure_eq!(Statistics::now()?.pinned_pages, pinned, "pinned pages");
    Ok(())
}

pub fn export_into_bad_memory_is_efault() -> Outcome {
    let scene = Scene::shared(LEN)?;
    scene.ours.unmap_part(8 * PAGE, PAGE)?;
    let piece = |at: usize, len: usize| scene.piece(SUBMIT_PULL, at, 0, len);
    let found = scene.submit(SUBMIT_PULL, &mut [piece(7 * PAGE, 2 * PAGE)]);
    ensure_eq!((found.result, found.out.accepted), (Err(EFAULT), 0), "a hole of ours");
    scene.ours.expect_part(0, 8 * PAGE, 2).context("refused, but written")?;
    // Pieces before it are in flight.
    let mut pieces = [piece(0, 4 * PAGE), piece(4 * PAGE, 4 * PAGE), piece(8 * PAGE, PAGE)];
    let Submitted { result, out } = scene.submit(SUBMIT_PULL, &mut pieces);
    ensure_eq!((result, out.accepted), (Err(EFAULT), 2), "two good pieces and a bad one");
    scene.device.finish(&out)?;
    scene.ours.expect_part(0, 4 * PAGE, 1).context("the first piece")
}

pub fn export_result_into_read_only_memory_leaves_nothing() -> Outcome {
    let device = Device::open()?;
    let port = device.port()?;
    let buffer = Region::of_small_pages(4 * PAGE)?;
    let room = Region::anonymous(PAGE)?;
    room.store(0, Export::new(buffer.address(0), 4 * PAGE, BOTH));
    room.protect(0, PAGE, libc::PROT_READ)?;
    for _ in 0..2 * MAX_EXPORTS {
        ensure_eq!(ioctl(port.fd(), EXPORT, room.address(0)), Err(EFAULT), "EXPORT");
    }
    port.export(buffer.address(0), PAGE, BOTH).map(drop).context("a good one after the refused")
}

pub fn export_limits_are_kept() -> Outcome {
    let device = Device::open()?;
    let (port, another) = (device.port()?, device.port()?);
    let buffer = Region::of_small_pages(PAGE)?;
    let export = |port: &Port, at| port.export(buffer.address(at), 1, EXPORT_READ);
    let exports: Vec<u64> =
        (0..MAX_EXPORTS).map(|at| export(&port, at)).collect::<Result<_, _>>()?;
    for port in [&port, &another] {
        ensure_eq!(export(port, 0), Err(EAGAIN), "one too many");
    }
    ensure_eq!(port.unexport(exports[7], Duration::ZERO), Ok(()), "one taken back");
    export(&another, 0).context("there is room for one")?;
    drop(port);
    export(&another, 0).map(drop).context("with the port its exports went")
}

pub fn export_limit_of_locked_memory_is_the_owners() -> Outcome {
    const LIMIT: usize = 16 * PAGE;
    in_child(|| {
        let buffer = Region::of_small_pages(64 * PAGE)?;
        let device = Device::with_limit(LIMIT)?;
        let port = device.port()?;
        for round in 0..20 {
            let large = port.export(buffer.address(0), 64 * PAGE, BOTH);
            ensure_eq!(large, Err(ENOMEM), "beyond the limit, round {round}");
            let small = port.export(buffer.address(0), LIMIT, BOTH).context("within the limit")?;
            let more = port.export(buffer.address(40 * PAGE), PAGE, BOTH);
            ensure_eq!(more, Err(ENOMEM), "one page more, round {round}");
            ensure_eq!(port.unexport(small, Duration::ZERO), Ok(()), "taken back");
        }
        Ok(())
    })
}
